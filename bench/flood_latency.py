#!/usr/bin/env python3
"""What a client notices while another client, or a backend of another pool, floods the front door with HTTP/2 frames.

  PENSTOCK=target/release/penstock bench/flood_latency.py [--from backend]

penstock has one worker on core 0; the client, the attackers and nginx, the backend, share core 1. The client sends one
request after the other on a kept connection and notes how long each takes, by turns alone and beside each kind of flood.
Attackers connect, flood, are cut off, and begin again, at once or --pause later. With --from backend they send a request to
a pool whose backend floods; they are answered 502 when penstock has cut it off, and begin again. What is no flood of frames is
not cut off: ten connections of each attacker hold closed windows and bodies in crumbs from a second before the turn to its end,
and requests with large heads or trailers come again ten times a second. Prints Markdown: medians over the rounds, and least
and greatest in parentheses. The client and nginx have real-time priority (needs root), so that the
attackers' own work on core 1 does not delay them; in the line "requests" the attackers behave well, for comparison.
"""

import argparse
import contextlib
import multiprocessing
import os
import resource
import select
import socket
import statistics
import sys
import threading
import time

from timed_client import front_door, latencies, penstock_of, spread

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4\0" + bytes(4)
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, PADDED = 1, 4, 8


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def block(*fields):
    """A header block without table or Huffman code (RFC 7541 section 6.2.2)."""
    return b"".join(b"\0" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in fields)


def request(method, path):
    return block((b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"flood"))


def crumbs(name, count):
    """A field of one byte as a new entry of the table (RFC 7541 section 6.2.1), and references to it."""
    return b"\x40" + bytes([len(name)]) + name + b"\1a" + b"\xbe" * count


GET = request(b"GET", b"/")
OPEN = frame(HEADERS, END_HEADERS, 1, GET)


def of_streams(*frames, streams=5000):
    return b"".join(b"".join(frame(k, f, 2 * n + 1, p) for k, f, p in frames) for n in range(streams))


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
    "PING acknowledged": frame(PING, 1, 0, bytes(8)) * 20000,
    "WINDOW_UPDATE of the connection": frame(WINDOW, 0, 0, b"\0\0\0\1") * 20000,
    "padded empty DATA": OPEN + frame(DATA, PADDED, 1, b"\3\0\0\0") * 20000,
    "GOAWAY": frame(GOAWAY, 0, 0, bytes(8)) * 20000,
    "PRIORITY of many streams": of_streams((PRIORITY, 0, bytes(4) + b"\1")),
    "streams beyond the limit": of_streams((HEADERS, END_HEADERS, request(b"POST", b"/held"))),
    "large unknown frames": frame(0xfa, 0, 0, bytes(16_000)) * 1000,
}

BIG = of_streams((HEADERS, END_HEADERS | END_STREAM, request(b"GET", b"/big")), streams=100)

# Connections that wait, and are held for as long as the turn takes.
HELD_BY_CLIENTS = {
    "zero window": frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)) + BIG,
    "tiny window": frame(SETTINGS, 0, 0, b"\0\4\0\0\1\x2c") + BIG,
    "responses that are not read": frame(SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff") + frame(WINDOW, 0, 0, b"\x7f\xff\0\0") + BIG,
    "small DATA": b"".join(frame(HEADERS, END_HEADERS, n, request(b"POST", b"/held")) + frame(DATA, 0, n, b"x") * 8000
                           for n in (1, 3, 5, 7)),
}

# Requests that are all answered or refused, on a new connection each time.
REPEATED_BY_CLIENTS = {
    "trailers": of_streams((HEADERS, END_HEADERS, request(b"POST", b"/held")), streams=99)
    + of_streams((HEADERS, END_HEADERS | END_STREAM, crumbs(b"x", 900)), streams=99),
    "large heads": of_streams((HEADERS, END_HEADERS | END_STREAM, GET + block((b"x-long", b"v" * 126)) * 24), streams=99),
    "cookies in crumbs": of_streams((HEADERS, END_HEADERS | END_STREAM, GET + crumbs(b"cookie", 400)), streams=99),
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
    parser.add_argument("--beside-others", action="store_true",
                        help="give penstock real-time priority too, where other programs keep the machine busy")
    parser.add_argument("--only", action="append", metavar="KIND", help="this kind, as the table names it; may be repeated")
    parser.add_argument("--pause", type=float, default=0, help="seconds between two attacks of an attacker")
    options = parser.parse_args()
    penstock = penstock_of(parser, options)
    of_clients = {**OF_CLIENTS, **HELD_BY_CLIENTS, **REPEATED_BY_CLIENTS}
    turns = {"alone": None, "requests": "requests", **(of_clients if options.side == "client" else OF_BACKENDS)}
    if options.only:
        turns = {name: flood for name, flood in turns.items() if name == "alone" or name in options.only}
    samples = {name: [] for name in turns}
    prefix = ["chrt", "--fifo", "1"] if options.beside_others else []
    with (flooding_backend() as flooder, holding_backend() as holder,
          front_door(penstock, sections=flooded(flooder.port) + held(holder), prefix=prefix) as (port, _, _)):
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
        cut = "-" if is_legal(name) else f"{statistics.median(rate):,.0f}"
        print(f"| {name} | {spread(p50, '.0f')} | {spread(p99, '.0f')} | {spread(ratios, '.2f')} | {cut} |")


def is_legal(name):
    """Whether penstock has no reason to cut the attackers off."""
    return name in ("alone", "requests", *HELD_BY_CLIENTS, *REPEATED_BY_CLIENTS)


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
    target = (behave if flood == "requests" else ask_for_flood if options.side == "backend" else hold if name in HELD_BY_CLIENTS
              else repeat if name in REPEATED_BY_CLIENTS else misbehave)
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
    if not is_legal(name) and cut.value == 0:
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


def hold(port, flood, _pause, _cut, begun):
    connections = []
    for _ in range(CONNECTIONS_HELD):
        connection = socket.create_connection(("127.0.0.1", port))
        # Where penstock does not read on, the rest stays here.
        connection.settimeout(0.1)
        with contextlib.suppress(TimeoutError, ConnectionError):
            connection.sendall(PREFACE + flood)
        connections.append(connection)
    time.sleep(SETTLING)
    begun.release()
    time.sleep(3600)


def repeat(port, flood, pause, _cut, begun):
    begun.release()
    while True:
        with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(PREFACE + flood)
            time.sleep(max(pause, BETWEEN_REPEATED))


CONNECTIONS_HELD, SETTLING, BETWEEN_REPEATED = 10, 1.0, 0.1


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


def held(port):
    """Sections for a pool whose backend takes a request and never answers."""
    return (f'[[listener.web.route]]\npath = "/held"\npool = "held"\n'
            f'[pool.held]\nbackends = ["127.0.0.1:{port}"]\nretries = 0\npassive = "off"\n')


@contextlib.contextmanager
def holding_backend():
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    process = multiprocessing.Process(target=hold_all, args=(listening,), daemon=True)
    process.start()
    yield listening.getsockname()[1]
    process.kill()
    process.join()


def hold_all(listening):
    """Reads nothing, and closes what the peer has closed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    poll, taken = select.epoll(), {}
    poll.register(listening, select.EPOLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listening.fileno():
                connection, _ = listening.accept()
                taken[connection.fileno()] = connection
                poll.register(connection, select.EPOLLRDHUP)
            else:
                taken.pop(descriptor).close()


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
