"""Stands between the old process and a real new one: of an earlier version, or without further descriptors.

Its text is preceded by BINARY, FEW (whether it lacks descriptors) and SESSIONS (what an earlier version says of itself about sessions:
None for nothing, 1 for those that are TCP from their beginning).
"""
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time

old = socket.socket(fileno=os.dup(0))
new, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = subprocess.Popen([BINARY, *sys.argv[1:]], stdin=theirs)
theirs.close()


def limit(pid):
    """Lets a process open one descriptor more than it has, when its last thread, that of the control socket, has what it needs."""
    tasks = []
    until = time.monotonic() + 60
    while "control" not in tasks:
        if time.monotonic() > until:
            raise TimeoutError(f"process {pid} has no control thread after 60 s")
        try:
            tasks = [open(f"/proc/{pid}/task/{task}/comm").read().strip() for task in os.listdir(f"/proc/{pid}/task")]
        except FileNotFoundError:
            time.sleep(0.01)
    used = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
    most = next(number for number in range(1, 10000) if number - len(used & set(range(number))) == 1)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))


limited = False
while True:
    readable, _, _ = select.select([old, new], [], [])
    for source in readable:
        text, descriptors, _, _ = socket.recv_fds(source, 1 << 16, 253)
        if not text:
            sys.exit(0)
        message = json.loads(text)
        if FEW and message["say"] == "session" and not limited:
            limited = True
            limit(child.pid)
        if not FEW and message["say"] == "session" and (SESSIONS is None or message["session"].get("request")):
            # An earlier version does not know it.
            os.kill(child.pid, 9)
        if not FEW and message["say"] == "hello":
            message["sessions"] = SESSIONS
        socket.send_fds(new if source is old else old, [json.dumps(message).encode()], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
