#!/usr/bin/env python3
"""What a client notices while another client, or a backend of another pool, floods the front door with HTTP/2 frames.

  PENSTOCK=target/release/penstock bench/flood_latency.py [--from backend]

penstock has one worker on core 0; the client, the attackers and nginx, the backend, share core 1. The client sends one
request after the other on a kept connection and notes how long each takes, by turns alone and beside each kind of flood.
Attackers connect, flood, are cut off, and begin again, at once or --pause later. With --from backend they send a request to
a pool whose backend floods; they are answered 502 when penstock has cut it off, and begin again. Prints Markdown: medians
over the rounds, and least and greatest in parentheses. The client and nginx have real-time priority (needs root), so that the
attackers' own work on core 1 does not delay them; in the line "requests" the attackers behave well, for comparison.
"""

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import sys
import threading
import time

from timed_client import front_door, latencies, penstock_of, spread

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4\0" + bytes(4)
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def block(*fields):
    """A header block without table or Huffman code (RFC 7541 section 6.2.2)."""
    return b"".join(b"\0" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in fields)


GET = block((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"flood"))
OPEN = frame(HEADERS, END_HEADERS, 1, GET)


def of_streams(*frames):
    return b"".join(b"".join(frame(k, f, 2 * n + 1, p) for k, f, p in frames) for n in range(5000))


OF_CLIENTS = {
    "streams opened and reset": of_streams((HEADERS, END_HEADERS | END_STREAM, GET), (RESET, 0, bytes(3) + b"\x08")),
    "streams made to be reset": of_streams((HEADERS, END_HEADERS, GET), (WINDOW, 0, b"\x7f\xff\xff\xff")),
    "PING": frame(PING, 0, 0, bytes(8)) * 20000,
    "SETTINGS": frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff") * 20000,
    "WINDOW_UPDATE": OPEN + frame(WINDOW, 0, 1, b"\0\0\0\1") * 20000,
    "empty DATA": OPEN + frame(DATA, 0, 1) * 20000,
    "PRIORITY": frame(PRIORITY, 0, 3, bytes(4) + b"\1") * 20000,
    "unknown frames": frame(0xbb, 0, 0, bytes(20)) * 20000,
    "CONTINUATION": frame(HEADERS, 0, 1, GET) + frame(CONTINUATION, 0, 1, block((b"x", b"y"))) * 20000,
    "header table bomb": frame(HEADERS, END_HEADERS | END_STREAM, 1,
                               GET + b"\x40\x01x\x7f\x81\x1e" + b"a" * 4000 + b"\xbe" * 8000),
}


def status(code, *fields):
    return block((b":status", code), *fields)


# By the stream of the request that a backend answers so.
OF_BACKENDS = {
    "PING": lambda _: frame(PING, 0, 0, bytes(8)) * 20000,
    "PING acknowledged": lambda _: frame(PING, 1, 0, bytes(8)) * 20000,
    "SETTINGS": lambda _: frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff") * 20000,
    "WINDOW_UPDATE": lambda _: frame(WINDOW, 0, 0, b"\0\0\0\1") * 20000,
    "empty DATA": lambda n: frame(HEADERS, END_HEADERS, n, status(b"200")) + frame(DATA, 0, n) * 20000,
    "PRIORITY": lambda _: frame(PRIORITY, 0, 99, bytes(4) + b"\1") * 20000,
    "unknown frames": lambda _: frame(0xbb, 0, 0, bytes(20)) * 20000,
    "CONTINUATION": lambda n: frame(HEADERS, 0, n, status(b"200")) + frame(CONTINUATION, 0, n, block((b"x", b"y"))) * 20000,
    "103 responses": lambda n: frame(HEADERS, END_HEADERS, n, status(b"103", (b"link", b"x" * 100))) * 20000,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1000, help="requests of the client in each turn")
    parser.add_argument("--attackers", type=int, default=2)
    parser.add_argument("--from", dest="side", choices=["client", "backend"], default="client", help="who floods")
    parser.add_argument("--pause", type=float, default=0, help="seconds between two attacks of an attacker")
    options = parser.parse_args()
    penstock = penstock_of(parser, options)
    turns = {"alone": None, "requests": "requests", **(OF_CLIENTS if options.side == "client" else OF_BACKENDS)}
    samples = {name: [] for name in turns}
    with flooding_backend() as flooder, front_door(penstock, sections=flooded(flooder.port)) as (port, _, _):
        options.flooder = flooder
        latencies(port, range(options.requests))
        for _ in range(options.rounds):
            for name, flood in turns.items():
                with attack(port, name, flood, options) as attackers:
                    p50, p99, _ = latencies(port, range(options.requests))
                samples[name].append((p50, p99, attackers.rate))
    print(f"{options.attackers} attackers, {options.pause} s between their attacks, {options.rounds} rounds of "
          f"{options.requests} requests\n")
    print("| beside the client | p50 us | p99 us | p99 against alone | attackers cut off, each second |")
    print("|---|---:|---:|---:|---:|")
    alone = [p99 for _, p99, _ in samples["alone"]]
    for name, rounds in samples.items():
        ratios = [p99 / quiet for (_, p99, _), quiet in zip(rounds, alone)]
        p50, p99, rate = ([r[n] for r in rounds] for n in range(3))
        cut = "-" if name in ("alone", "requests") else f"{statistics.median(rate):,.0f}"
        print(f"| {name} | {spread(p50, '.0f')} | {spread(p99, '.0f')} | {spread(ratios, '.2f')} | {cut} |")


class Attackers:
    def __init__(self):
        self.rate = 0.0


@contextlib.contextmanager
def attack(port, name, flood, options):
    attackers = Attackers()
    if flood is None:
        yield attackers
        return
    cut, begun = multiprocessing.Value("Q", 0), multiprocessing.Semaphore(0)
    target = behave if flood == "requests" else misbehave if options.side == "client" else ask_for_flood
    if options.side == "backend" and flood != "requests":
        options.flooder.choose(name)
    processes = [multiprocessing.Process(target=target, args=(port, flood, options.pause, cut, begun), daemon=True)
                 for _ in range(options.attackers)]
    for process in processes:
        process.start()
    for process in processes:
        begun.acquire()
    since, before = time.monotonic(), cut.value
    yield attackers
    attackers.rate = (cut.value - before) / (time.monotonic() - since)
    for process in processes:
        process.kill()
        process.join()
    if flood != "requests" and cut.value == 0:
        sys.exit(f"{name}: the flood was never cut off")


def misbehave(port, flood, pause, cut, begun):
    told = False
    while True:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Until it is cut off, whether that shows in sending or in reading.
            with contextlib.suppress(ConnectionError):
                connection.sendall(PREFACE + flood)
                while connection.recv(65536):
                    pass
        with cut.get_lock():
            cut.value += 1
        if not told:
            told = True
            begun.release()
        time.sleep(pause)


def ask_for_flood(port, _flood, pause, cut, begun):
    connection, told = None, False
    while True:
        if connection is None:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"GET /flood HTTP/1.1\r\nHost: other\r\n\r\n")
        if not refused(connection):
            connection.close()
            connection = None
        with cut.get_lock():
            cut.value += 1
        if not told:
            told = True
            begun.release()
        time.sleep(pause)


def refused(connection):
    """Reads up to the end of a response of 502. False if the connection ended: the response had begun."""
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
        head, end, body = answer[max(answer.find(b"HTTP/1.1 502 "), 0):].partition(b"\r\n\r\n")
        if end and head.startswith(b"HTTP/1.1 502 "):
            length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
            if len(body) >= int(length):
                return True
    return False


def behave(port, _flood, pause, _cut, begun):
    begun.release()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: other\r\n\r\n")
            connection.recv(4096)
            time.sleep(pause)


class Flooder:
    """A process that listens as a backend and answers each request with a flood."""

    def __init__(self, port, chosen):
        self.port, self.chosen = port, chosen

    def choose(self, name):
        self.chosen.value = list(OF_BACKENDS).index(name)


def flooded(port):
    """Sections for a pool whose backend floods."""
    return (f'[[listener.web.route]]\npath = "/flood"\npool = "flood"\n'
            f'[pool.flood]\nbackends = ["127.0.0.1:{port}"]\nhttp2 = "on"\nretries = 0\npassive = "off"\n')


@contextlib.contextmanager
def flooding_backend():
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    chosen = multiprocessing.Value("I", 0)
    process = multiprocessing.Process(target=flood_all, args=(listening, chosen), daemon=True)
    process.start()
    yield Flooder(listening.getsockname()[1], chosen)
    process.kill()
    process.join()


def flood_all(listening, chosen):
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=flood_one, args=(connection, chosen), daemon=True).start()


def flood_one(connection, chosen):
    with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as read:
        connection.sendall(frame(SETTINGS, 0, 0) + frame(SETTINGS, 1, 0))
        read.read(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        while len(head := read.read(9)) == 9:
            read.read(int.from_bytes(head[:3], "big"))
            if head[3] == HEADERS:
                flood = list(OF_BACKENDS.values())[chosen.value]
                connection.sendall(flood(int.from_bytes(head[5:], "big")))


if __name__ == "__main__":
    main()
