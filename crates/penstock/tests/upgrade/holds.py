"""Stands between the old process and a real new one, and keeps a message of the new one until a file is there.

Its text is preceded by BINARY, MESSAGE (what it keeps), HELD (the file that it makes then) and GO (the file that it waits for).
"""
import json
import os
import select
import socket
import subprocess
import sys
import time

old = socket.socket(fileno=os.dup(0))
new, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = subprocess.Popen([BINARY, *sys.argv[1:]], stdin=theirs)
theirs.close()

while True:
    readable, _, _ = select.select([old, new], [], [])
    for source in readable:
        text, descriptors, _, _ = socket.recv_fds(source, 1 << 16, 253)
        if not text:
            # The real process that is left hears of it, and ends or goes on.
            old.close()
            new.close()
            sys.exit(child.wait() if source is old else 0)
        if json.loads(text)["say"] == MESSAGE:
            open(HELD, "w").close()
            until = time.monotonic() + 60
            while not os.path.exists(GO) and time.monotonic() < until:
                # The old process may have ended the upgrade.
                if select.select([old], [], [], 0.01)[0]:
                    break
        socket.send_fds(new if source is old else old, [text], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
