"""An SFTP server (version 3) on standard input and output that answers oddly. Argument: what is odd.

/top is a directory for some and a file for others; what is in it depends on the argument.
"""

import struct
import sys

MODE = sys.argv[1]
DIRECTORY, FILE, LINK = 0o040755, 0o100644, 0o120777
MOST = 2**64 - 1

read = sys.stdin.buffer
write = sys.stdout.buffer


def text(value):
    return struct.pack(">I", len(value)) + value


def send(kind, body):
    packet = bytes([kind]) + body
    write.write(struct.pack(">I", len(packet)) + packet)
    write.flush()


def status(id, code, message=b""):
    send(101, struct.pack(">II", id, code) + text(message) + text(b""))


def attributes(mode, size=0):
    return struct.pack(">IQI", 0x1 | 0x4, size, mode)


def entries(path):
    """Batches of names, modes and sizes."""
    if MODE == "up":
        yield [(b"../x", FILE, 1)]
    elif MODE == "absolute":
        yield [(b"/tmp/penstock-absolute", FILE, 1)]
    elif MODE == "long":
        yield [(b"n" * 10_000, FILE, 1)]
    elif MODE == "loop":
        yield [(b"d", DIRECTORY, 0)]
    elif MODE == "wide":
        number = 0
        while True:
            yield [(b"%d" % (number + each), FILE, 1) for each in range(100)]
            number += 100
    elif MODE == "bushy":
        # A few below each other, each with much that is never reached.
        yield [(b"d", DIRECTORY, 0)] + [(b"%d" % each, FILE, 1) for each in range(400)]
    elif MODE in ("fat", "fatter", "talkative"):
        # Names of 20 kB, in packets of 200 kB and in one that is more than any packet may be; or so much told of each name.
        each = 100 if MODE == "fatter" else 5
        number = 0
        while True:
            yield [(b"%d" % (number + at) + b"n" * (0 if MODE == "talkative" else 20_000), FILE, 1) for at in range(each)]
            number += each
    elif MODE == "gush":
        yield [(b"1", FILE, 1)]
    elif MODE == "dots":
        while True:
            yield [(b".", DIRECTORY, 0), (b"..", DIRECTORY, 0)]
    elif MODE in ("outside", "through"):
        if path == b"/top":
            yield [(b"l", LINK, 0), (b"l", DIRECTORY, 0)]
        else:
            yield [(b"owned", FILE, 3)]
    elif MODE == "terminal":
        yield [(b"\x1b[31mred\nline", FILE, 3), (b"pipe\x1b[2J", 0o010644, 3)]


def top():
    if MODE in ("up", "absolute", "long", "loop", "wide", "bushy", "fat", "fatter", "talkative", "gush", "dots", "outside", "through", "terminal"):
        return DIRECTORY, 0
    return {
        "huge": (FILE, MOST),
        "top-link": (LINK, 3),
        "sparse": (FILE, 2**63),
        "short": (FILE, 5),
        "empty": (FILE, 5),
    }.get(MODE, (FILE, 3))


def data(offset, length):
    if MODE == "endless":
        return b"x" * length
    if MODE == "empty":
        return None
    if MODE == "nothing":
        return b""
    if MODE == "much":
        return b"x" * (length + 1)
    if MODE == "sparse":
        # It ends before what has come already.
        return b"x" * length if offset else None
    return b"abc"[offset:offset + length] or None


handles = {}


def answer(kind, id, body):
    def string(at):
        length = struct.unpack_from(">I", body, at)[0]
        return body[at + 4:at + 4 + length], at + 4 + length

    name, at = string(0)
    if kind in (7, 17):
        mode, size = (DIRECTORY, 0) if name != b"/top" else top()
        send(105, struct.pack(">I", id) + attributes(mode, size))
    elif kind == 11:
        handles[b"d%d" % id] = entries(name)
        send(102, struct.pack(">I", id) + text(b"d%d" % id))
    elif kind == 12:
        found = next(handles[name], None)
        if found is None:
            return status(id, 1)
        if MODE == "gush":
            # One answer after the other to the same question, and none to any other.
            while True:
                send(104, struct.pack(">II", id, 1) + text(b"n" * 200) + text(b"n" * 20_000) + attributes(FILE, 1))
        told = b"t" * 20_000 if MODE == "talkative" else b""
        listed = b"".join(text(each) + text(each + told) + attributes(mode, size) for each, mode, size in found)
        send(104, struct.pack(">II", id, len(found)) + listed)
    elif kind == 3:
        send(102, struct.pack(">I", id) + text(b"f%d" % id))
    elif kind == 5:
        offset, length = struct.unpack_from(">QI", body, at)
        if MODE == "silent":
            return
        if MODE == "ends":
            sys.exit(0)
        if MODE == "packet":
            write.write(b"\xff\xff\xff\xff" + b"x" * 100)
            write.flush()
            return
        found = data(offset, length)
        if found is None:
            status(id, 1)
        else:
            send(103, struct.pack(">I", id) + text(found))
    elif kind == 19:
        send(104, struct.pack(">II", id, 1) + text(b"/etc") + text(b"/etc") + attributes(LINK))
    elif kind == 200 and name == b"limits@openssh.com":
        each = {"limits": MOST, "least": 1, "zero": 0}[MODE]
        packet = 1024 if MODE == "least" else each
        send(201, struct.pack(">IQQQQ", id, packet, each, each, each))
    elif kind == 4:
        status(id, 0)
    else:
        status(id, 8, b"no such request")


while True:
    head = read.read(4)
    if len(head) < 4:
        break
    packet = read.read(struct.unpack(">I", head)[0])
    if packet[0] == 1:
        more = text(b"limits@openssh.com") + text(b"1") if MODE in ("limits", "least", "zero") else b""
        send(2, struct.pack(">I", 3) + more)
        continue
    answer(packet[0], struct.unpack_from(">I", packet, 1)[0], packet[5:])
