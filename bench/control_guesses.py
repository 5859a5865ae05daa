#!/usr/bin/env python3
"""What an operator over the network notices while one address makes 10,000 wrong log-ins a second, and what a log-in by Kerberos costs.

  PENSTOCK=target/release/penstock bench/control_guesses.py [--rounds 7] [--seconds 5] [--rate 10000] [--tests BINARY]

penstock has core 0; the operator and the attackers share core 1, the operator with real-time priority (needs root), so that the
attackers' own work does not delay it. The operator has logged in by SCRAM from 127.0.0.2 and sends `health` every millisecond. Its
turns are by turns alone and beside the attack; which is first changes from round to round. The attackers, all at 127.0.0.66, first
guess with SCRAM until the address must wait, then connect at --rate (as many as are taken with 0), each connection a guess that the
server refuses. With --addresses N they use N addresses instead, each for one wrong log-in of SMTP's grammar: what that takes in
memory is printed too.

"CPU" is the processor time of penstock for each connection of the attackers. Prints Markdown: medians over the rounds, least and
greatest in parentheses. The bar: the p99 beside the attack is within the spread of that alone. With --tests, the binary of
crates/penstock/tests/access of a release build, the cost of GS2-KRB5 of both sides together (bar 700 us).
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import multiprocessing
import os
import resource
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timed_client import SERVER_CORE, penstock_of, real_time, spread

ATTACKER, OPERATOR = "127.0.0.66", "127.0.0.2"
TICK = 0.005


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5, help="of each turn")
    parser.add_argument("--rate", type=int, default=10_000, help="connections a second; 0: as many as are taken")
    parser.add_argument("--addresses", type=int, default=0, help="also: so many addresses with one wrong log-in each")
    parser.add_argument("--tests", help="binary of the tests of crates/penstock/tests/access")
    options = parser.parse_args()
    penstock = penstock_of(parser, options)
    samples = {"alone": [], "beside the attack": []}
    with tempfile.TemporaryDirectory() as name, server(penstock, Path(name)) as (process, port, authority):
        operator = log_in(port, authority, OPERATOR, "ann", "pencil")
        guess_until_refused(port, authority)
        turn(operator, 1)
        before = memory(process)
        for number in range(options.rounds):
            names = list(samples)
            for name in names[number % 2:] + names[:number % 2]:
                with attack(port, options.rate) if name != "alone" else contextlib.nullcontext() as made:
                    started, cpu, count = time.monotonic(), processor_time(process), made.value if made else 0
                    p50, p99 = turn(operator, options.seconds)
                    took = time.monotonic() - started
                    count = (made.value if made else 0) - count
                    each = (processor_time(process) - cpu) / count * 1e6 if count else 0
                    samples[name].append((p50, p99, count / took, each))
        after = memory(process)
        print(f"{options.rounds} rounds of {options.seconds:g} s; core {SERVER_CORE} is the server's\n")
        print("| operator | p50 us | p99 us | connections/s | CPU us of each |")
        print("|---|---:|---:|---:|---:|")
        for name, rounds in samples.items():
            p50, p99, rate, each = ([one[at] for one in rounds] for at in range(4))
            flood = f"{spread(rate, ',.0f')} | {spread(each, '.1f')}" if name != "alone" else "- | -"
            print(f"| {name} | {spread(p50, '.0f')} | {spread(p99, '.0f')} | {flood} |")
        alone, beside = ([one[1] for one in rounds] for rounds in samples.values())
        met = min(alone) <= statistics.median(beside) <= max(alone) or statistics.median(beside) < min(alone)
        print(f"\np99 within the spread of that alone: {'met' if met else 'MISSED'}")
        print(f"memory of the server: {before:.1f} MiB before, {after:.1f} MiB after")
        if options.addresses:
            for at in range(options.addresses):
                wrong_log_in(port, authority, f"127.{2 + at // 60000}.{at // 250 % 240}.{at % 250 + 1}")
            print(f"after wrong log-ins from {options.addresses:,} addresses: {memory(process):.1f} MiB")
    if options.tests:
        run = subprocess.run([options.tests, "--exact", "kerberos::cost_of_a_handshake", "--ignored", "--nocapture"],
                             capture_output=True, text=True)
        line = [line for line in run.stdout.splitlines() if line.startswith("GS2-KRB5: ")]
        print(line[0] if line else f"GS2-KRB5 was not measured: {run.stdout[-500:]}{run.stderr[-500:]}")


@contextlib.contextmanager
def server(penstock, directory):
    """A server whose users are ann (password pencil) and bob; gives its process, its port and the file of its authority."""
    certs = directory / "certs"
    certs.mkdir()
    run = lambda *command, **more: subprocess.run(command, check=True, capture_output=True, text=True, **more)
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(certs / "localhost.key"), "-out",
        str(certs / "localhost.crt"))
    users = directory / "users"
    for name, password in [("ann", "pencil"), ("bob", "eraser")]:
        run(penstock, "user", "--file", str(users), "add", name, "--role", "operate", "--password-file", "-", "--iterations", "4096",
            input=password)
    (directory / "penstock.toml").write_text(
        f'[process]\nworkers = 1\n[control]\nsocket = "{directory}/control"\nlisten = "127.0.0.1:0"\nusers = "{users}"\n'
        f'tls = {{ certificates = "{certs}" }}\n[access-log]\ntarget = "off"\n[listener.web]\nbind = "127.0.0.1:0"\n'
        f'pool = "app"\n[pool.app]\nbackends = ["127.0.0.1:9"]\nhealth = "off"\n')
    with open(directory / "log", "w") as log:
        process = subprocess.Popen(["taskset", "-c", str(SERVER_CORE), penstock, "serve", "--config",
                                    str(directory / "penstock.toml")], stderr=log)
    try:
        yield process, port_of(directory, process), certs / "localhost.crt"
        if process.poll() is not None:
            sys.exit(f"penstock ended with {process.returncode}")
    finally:
        process.terminate()
        process.wait()


def port_of(directory, process):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        for line in (directory / "log").read_text().splitlines():
            if "listening control over the network" in line:
                return int(line.rsplit(":", 1)[1])
        time.sleep(0.05)
    sys.exit("penstock did not start:\n" + (directory / "log").read_text())


class Connection:
    """A client of the grammar of SMTP, over TLS."""

    def __init__(self, port, authority, address):
        tcp = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(address, 0))
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tls = ssl.create_default_context(cafile=str(authority)).wrap_socket(tcp, server_hostname="localhost")
        self.buffer = b""
        self.line()

    def line(self):
        while b"\n" not in self.buffer:
            piece = self.tls.recv(65536)
            if not piece:
                raise ConnectionError("the server has closed the connection")
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.strip()

    def ask(self, line):
        self.tls.sendall(line + b"\r\n")
        return self.line()

    def scram(self, name, password):
        """Logs in; returns the last answer."""
        coded = lambda data: base64.b64encode(data)
        bare = b"n=" + name.encode() + b",r=fyko+d2lbbFgONRv9qkxdawL"
        answer = self.ask(b"AUTH SCRAM-SHA-256 " + coded(b"n,," + bare))
        if not answer.startswith(b"334 "):
            return answer
        challenge = base64.b64decode(answer[4:])
        fields = dict(field.split(b"=", 1) for field in challenge.split(b","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"]))
        sign = lambda key, text: hmac.digest(key, text, "sha256")
        key = sign(salted, b"Client Key")
        last = b"c=biws,r=" + fields[b"r"]
        signature = sign(hashlib.sha256(key).digest(), bare + b"," + challenge + b"," + last)
        proof = bytes(one ^ other for one, other in zip(key, signature))
        answer = self.ask(coded(last + b",p=" + coded(proof)))
        return self.ask(b"") if answer.startswith(b"334 ") else answer

    def health(self):
        self.tls.sendall(b"health\n")
        first = self.line()
        while self.line() != b".":
            pass
        return first


def log_in(port, authority, address, name, password):
    connection = Connection(port, authority, address)
    answer = connection.scram(name, password)
    if not answer.startswith(b"235 "):
        sys.exit(f"the operator was answered {answer!r}")
    return connection


def guess_until_refused(port, authority):
    for _ in range(20):
        try:
            if not Connection(port, authority, ATTACKER).scram("bob", "wrong").startswith(b"535 "):
                return
        except (OSError, ConnectionError):
            return
    sys.exit("twenty guesses were taken")


def wrong_log_in(port, authority, address):
    connection = Connection(port, authority, address)
    connection.ask(b"AUTH SCRAM-SHA-256 bm90IHJpZ2h0")
    connection.tls.close()


def turn(operator, seconds):
    """Median and 99th percentile of the time of a command, in microseconds."""
    times, end = [], time.perf_counter() + seconds
    with real_time():
        while time.perf_counter() < end:
            begun = time.perf_counter()
            operator.health()
            times.append((time.perf_counter() - begun) * 1e6)
            time.sleep(0.001)
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100]


@contextlib.contextmanager
def attack(port, rate):
    made, begun = multiprocessing.Value("Q", 0), multiprocessing.Semaphore(0)
    process = multiprocessing.Process(target=flood, args=(port, rate, made, begun), daemon=True)
    process.start()
    begun.acquire()
    yield made
    if not process.is_alive():
        sys.exit("the attackers ended early")
    process.kill()
    process.join()


def flood(port, rate, made, begun):
    """Connects without waiting for each: what is due every few milliseconds."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    most = min(5000, most - 100)
    poll, open_ones = select.epoll(), {}
    started = time.monotonic()
    begun.release()
    while True:
        due = 200 if rate == 0 else int((time.monotonic() - started) * rate) - made.value
        for _ in range(min(max(due, 0), 500, most - len(open_ones))):
            tcp = socket.socket()
            tcp.setblocking(False)
            tcp.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            tcp.bind((ATTACKER, 0))
            try:
                tcp.connect(("127.0.0.1", port))
            except BlockingIOError:
                pass
            except OSError:
                tcp.close()
                continue
            open_ones[tcp.fileno()] = tcp
            poll.register(tcp.fileno(), select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
            made.value += 1
        for fd, _ in poll.poll(TICK):
            open_ones.pop(fd).close()


def processor_time(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process):
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
