"""Stands between the old process and a real new one, and ends one of them at a message.

Its text is preceded by BINARY, MESSAGE (what it waits for), WHEN ("before" or "after" it is passed on) and VICTIM ("new", or the
number of the old process).
"""
import json
import os
import select
import signal
import socket
import subprocess
import sys

old = socket.socket(fileno=os.dup(0))
new, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = subprocess.Popen([BINARY, *sys.argv[1:]], stdin=theirs)
theirs.close()


def strike():
    os.kill(child.pid if VICTIM == "new" else VICTIM, signal.SIGKILL)
    if VICTIM == "new":
        child.wait()
        sys.exit(5)
    # The real old process closes its end when it is ended, and so does this one.
    new.close()
    child.wait()
    sys.exit(0)


while True:
    readable, _, _ = select.select([old, new], [], [])
    for source in readable:
        target = new if source is old else old
        text, descriptors, _, _ = socket.recv_fds(source, 1 << 16, 253)
        if not text:
            sys.exit(6)
        is_it = json.loads(text)["say"] == MESSAGE
        if is_it and WHEN == "before":
            strike()
        socket.send_fds(target, [text], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if is_it:
            strike()
