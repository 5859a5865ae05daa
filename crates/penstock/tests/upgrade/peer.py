"""A new process that is none: it says what a real one says, up to a point.

Its text is preceded by POINT = "...", where it ends, and HOW = "exit", "die", "stop", "foreign", "newer", "garbage" or "long".
"""
import json
import os
import signal
import socket
import sys
import time

link = socket.socket(fileno=os.dup(0))


def say(**message):
    link.send(json.dumps(message).encode())


def hear():
    text, descriptors, _, _ = socket.recv_fds(link, 1 << 16, 253)
    for descriptor in descriptors:
        os.close(descriptor)
    if not text:
        sys.exit(9)
    return json.loads(text)


def at(point):
    if point != POINT:
        return
    if HOW == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if HOW == "garbage":
        link.send(b"\xff\x00 no JSON")
        time.sleep(60)
    if HOW == "long":
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        link.send(b"x" * (40 * 1024))
        time.sleep(60)
    sys.exit(7)


at("start")
magic = "something-else" if HOW == "foreign" else "penstock-upgrade"
oldest, newest = (90, 99) if HOW == "newer" else (1, 1)
say(say="hello", magic=magic, oldest=oldest, newest=newest, version="99.0.0", pid=os.getpid())
at("hello")
taken = []
while (message := hear())["say"] != "offered":
    if message.get("what") == "listener":
        taken.append(message["key"])
at("offered")
say(say="ready", taken=taken)
at("ready")
hear()
at("state")
say(say="prepared")
at("prepared")
hear()
at("go")
sys.exit(8)
