#!/usr/bin/env python3
"""What it costs a client of `penstock bench ciphers` only to carry: CPU per GB of a process that does no SSH.

Up it reads a pipe and writes a TCP connection on loopback, down the other way, 256 KiB at a time; it has core 0, its peers
have core 1, as in that benchmark. It is the floor of every client that is fed by a pipe: what OpenSSH's client costs, less
this, is what a better client can save.

    bench/carry.py [ROUNDS]
"""

import fcntl
import os
import resource
import socket
import statistics
import sys

TOTAL = 2_000_000_000
RING = 16 << 20
CHUNK = 256 << 10
# What the two ends of the benchmark move at once, and what sshd writes.
FEED, PACKET = 128 << 10, 32 << 10
F_SETPIPE_SZ = 1031


def peer(work):
    """Runs `work` in a process of its own on core 1."""
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {1})
        work()
        os._exit(0)
    return child


def send(write, ring, size):
    at, left = 0, TOTAL
    while left > 0:
        count = write(ring[at : at + min(size, left, RING - at)])
        at, left = (at + count) % RING, left - count


def drain(read):
    buffer = bytearray(CHUNK)
    while read(buffer) > 0:
        pass


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def carry(up, ring):
    reader, writer = os.pipe()
    fcntl.fcntl(reader, F_SETPIPE_SZ, 1 << 20)
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    theirs, _ = listener.accept()

    def closing(*ends):
        for end in ends:
            os.close(end) if isinstance(end, int) else end.close()

    def at_pipe():
        closing(ours, theirs, reader if up else writer)
        if up:
            send(lambda data: os.write(writer, data), ring, FEED)
        else:
            drain(lambda buffer: os.readv(reader, [buffer]))

    def at_socket():
        closing(ours, reader, writer)
        if up:
            drain(theirs.recv_into)
        else:
            send(theirs.send, ring, PACKET)

    peers = [peer(at_pipe), peer(at_socket)]
    closing(theirs, writer if up else reader)
    buffer, begin = bytearray(CHUNK), cpu()
    view = memoryview(buffer)
    if up:
        while (count := os.readv(reader, [buffer])) > 0:
            ours.sendall(view[:count])
    else:
        while (count := ours.recv_into(buffer)) > 0:
            done = 0
            while done < count:
                done += os.write(writer, view[done:count])
    spent = cpu() - begin
    closing(ours, reader if up else writer)
    for child in peers:
        os.waitpid(child, 0)
    return spent / TOTAL * 1e12


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    os.sched_setaffinity(0, {0})
    ring = memoryview(os.urandom(RING))
    figures = {"up": [], "down": []}
    for _ in range(rounds):
        for way, found in figures.items():
            found.append(carry(way == "up", ring))
    for way, found in figures.items():
        print(f"{way}: {statistics.median(found):.0f} ms per GB ({min(found):.0f} to {max(found):.0f})")


if __name__ == "__main__":
    main()
