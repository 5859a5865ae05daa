#!/usr/bin/env python3
"""Holds the load generator of `penstock bench` against wrk and h2load, with nginx as the judge.

  PENSTOCK=target/release/penstock bench/verify_load.py [WORK ...]

nginx has one worker on core 0, the generators run on core 1, in turns (A B C A B C). nginx counts the requests itself,
so no generator is believed about its own rate. Prints Markdown: medians over the rounds, and least and greatest in
parentheses. Works: keep-alive, large, new-connection, https, pace, stall; all of them unless some are named.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

SERVER_CORE, LOAD_CORE = 0, 1
STALL_PERIOD, STALL = 1.0, 0.2


class Work:
    """What is asked of the server. `rate` makes an open loop of all clients together; none is a closed loop."""

    def __init__(self, title, path="/small", scheme="http", close=False, rate=None, connections=64, stall=False):
        self.title, self.path, self.scheme, self.close = title, path, scheme, close
        self.rate, self.connections, self.stall = rate, connections, stall
        self.counted = None


WORKS = {
    "keep-alive": Work("100 bytes, kept connections"),
    "large": Work("64 KiB, kept connections", path="/large"),
    "new-connection": Work("100 bytes, a new connection for each request", close=True),
    "https": Work("100 bytes, kept connections, TLS 1.3", scheme="https"),
    "pace": Work("100 bytes, 5,000 requests a second", rate=5000, connections=50),
    "stall": Work("100 bytes, 1,000 requests a second, a server that stands still for 200 ms in each second",
                  rate=1000, connections=50, stall=True),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help="some of: " + ", ".join(WORKS))
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="length of each run")
    options = parser.parse_args()
    if not options.penstock:
        parser.error("name the release binary: --penstock or PENSTOCK")
    unknown = set(options.works) - set(WORKS)
    if unknown:
        parser.error(f"there is no work {', '.join(sorted(unknown))}")
    if os.cpu_count() < 2:
        sys.exit("server and load need a core each")
    describe(options)
    with Nginx() as server:
        for name in options.works or WORKS:
            verify(WORKS[name], server, options)


def verify(work, server, options):
    generators = [generator for generator in GENERATORS if generator.can(work)]
    samples = {generator: [] for generator in generators}
    for _ in range(options.rounds):
        for generator in generators:
            samples[generator].append(measure(generator, work, server, options))
    loop = "open loop" if work.rate else "closed loop"
    print(f"\n### {work.title}\n\n{work.connections} connections, {loop}, {options.rounds} rounds of {options.seconds} s\n")
    columns = ["requests/s as told", "told / counted by nginx", "server CPU us/request", "own CPU us/request",
               "own sleeps/request", "server sleeps/request", "mean ms", "p50 ms", "p90 ms", "p99 ms", "in flight"]
    print("| generator | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
    for generator in generators:
        cells = [cell([sample[column] for sample in samples[generator]]) for column in columns]
        print(f"| {generator.name} | " + " | ".join(cells) + " |", flush=True)


def measure(generator, work, server, options):
    """One run of a generator: what it says, and what nginx and the kernel say."""
    with tempfile.TemporaryDirectory() as directory, stalls(server.worker_descriptor) if work.stall else contextlib.nullcontext():
        command, stdin = generator.command(work, server, options, Path(directory))
        requests, cpu, sleeps = server.requests(), server.cpu(), server.sleeps()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True)
            os.sched_setaffinity(process.pid, {LOAD_CORE})
            if stdin:
                process.stdin.write(stdin)
                process.stdin.flush()
            own, own_sleeps = wait(process, options.seconds + 15)
            output.seek(0)
            text = output.read()
        cpu, sleeps = server.cpu() - cpu, server.sleeps() - sleeps
        # The question itself is a request.
        work.counted = counted = server.requests() - requests - 1
        told = generator.told(text, work, Path(directory))
    if told["units"] == 0:
        sys.exit(f"{generator.name} has done nothing:\n{text}")
    rate = told["units"] / told["seconds"]
    sample = {
        "requests/s as told": rate,
        "told / counted by nginx": told["units"] / counted,
        "server CPU us/request": cpu / counted * 1e6,
        "own CPU us/request": own / counted * 1e6,
        "own sleeps/request": own_sleeps / counted,
        "server sleeps/request": sleeps / counted,
        "in flight": told["mean"] * rate if told.get("mean") else None,
    }
    for name in ("mean", "p50", "p90", "p99"):
        sample[f"{name} ms"] = told[name] * 1e3 if told.get(name) is not None else None
    return sample


def wait(process, limit):
    """Waits for a generator and gives its CPU time in seconds and how often it slept, with all its threads."""
    end = time.monotonic() + limit
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw
        if time.monotonic() > end:
            process.kill()
            process.wait()
            sys.exit(f"it did not end: {' '.join(process.args)}")
        time.sleep(0.02)


class Wrk:
    name = "wrk"

    def can(self, work):
        return work.rate is None or work.stall

    def command(self, work, server, options, directory):
        close = ["-H", "Connection: close"] if work.close else []
        load = ["-t1", f"-c{work.connections}", f"-d{options.seconds}s", "--latency", *close]
        return ["wrk", *load, server.url(work)], None

    def told(self, text, work, directory):
        units, took = re.search(r"(\d+) requests in (\S+),", text).groups()
        errors = re.search(r"Socket errors.*|Non-2xx.*", text)
        if errors:
            print(f"wrk: {errors.group()}", file=sys.stderr)
        shares = dict(re.findall(r"^ +(50|90|99)% +(\S+)$", text, re.M))
        mean = re.search(r"Latency +(\S+)", text).group(1)
        told = {f"p{share}": seconds(value) for share, value in shares.items()}
        return told | {"units": int(units), "seconds": seconds(took), "mean": seconds(mean)}


class H2load:
    """Without a log it tells no percentiles; writing one costs it CPU time."""

    def __init__(self, name, log, clients=None):
        self.name, self.log, self.clients = name, log, clients

    def can(self, work):
        if self.clients:
            return bool(work.rate) and not work.stall
        return self.log or not work.rate

    def command(self, work, server, options, directory):
        clients = self.clients or work.connections
        # With `Connection: close` its runs of a given length do not end. The number is that of the run before.
        length = f"-n{work.counted}" if work.close else f"-D{options.seconds}"
        load = ["--h1", "-t1", f"-c{clients}", length]
        if work.close:
            load += ["-H", "Connection: close"]
        if work.rate:
            load.append(f"--rps={work.rate // clients}")
        if self.log:
            load.append(f"--log-file={directory / 'log'}")
        return ["h2load", *load, server.url(work)], None

    def told(self, text, work, directory):
        took = re.search(r"finished in (\S+),", text).group(1)
        done, failed = re.search(r"(\d+) succeeded, (\d+) failed", text).groups()
        if int(failed):
            print(f"h2load: {failed} failed", file=sys.stderr)
        mean = re.search(r"time for request: +\S+ +\S+ +(\S+)", text).group(1)
        told = {"units": int(done), "seconds": seconds(took), "mean": seconds(mean)}
        if self.log:
            lines = (directory / "log").read_text().splitlines()
            taken = sorted(int(line.split("\t")[2]) / 1e6 for line in lines)
            told |= {f"p{share}": quantile(taken, share / 100) for share in (50, 90, 99)}
        return told


class Penstock:
    """The load process of `penstock bench`, told what to do as a run tells it: one line of JSON."""

    name = "penstock"

    def can(self, work):
        return True

    def command(self, work, server, options, directory):
        requests = {
            "server": {"tcp": server.address(work)},
            "path": work.path,
            "connections": work.connections,
            "reuse": "never" if work.close else "keep",
            "pace": {"open": work.rate} if work.rate else "closed",
        }
        client = {"certificate": str(server.certificate), "version": "v13", "resumption": "never", "group": "x25519"}
        order = {"https": {"requests": requests, "client": client}} if work.scheme == "https" else {"http": requests}
        window = {"warm_up": {"secs": 0, "nanos": 0}, "duration": {"secs": options.seconds, "nanos": 0}}
        task = {"order": order, "window": window, "metered": []}
        return [options.penstock, "bench-load"], json.dumps(task) + "\n"

    def told(self, text, work, directory):
        event = json.loads(text)
        if "done" not in event:
            sys.exit(f"penstock: {text}")
        tally = event["done"]
        if tally["errors"]:
            print(f"penstock: {tally['errors']} errors, {tally['first_error']}", file=sys.stderr)
        points = [(time / 1e9, count) for time, count in tally["latency"]["points"]]
        units = tally["units"]
        told = {"units": units, "seconds": tally["seconds"], "mean": sum(t * count for t, count in points) / units}
        for share in (50, 90, 99):
            seen = 0
            for value, count in points:
                seen += count
                if seen >= units * share / 100:
                    told[f"p{share}"] = value
                    break
        return told


GENERATORS = [
    Wrk(),
    H2load("h2load", log=False),
    H2load("h2load with a log", log=True),
    H2load("h2load with a log, 5 clients", log=True, clients=5),
    Penstock(),
]


class Nginx:
    """nginx with one worker on its own core, counting requests."""

    def __enter__(self):
        self._directory = tempfile.TemporaryDirectory()
        directory = Path(self._directory.name)
        self.certificate = directory / "certificate"
        key = directory / "key"
        openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                   "-days", "2", "-subj", "/CN=bench.test", "-addext", "subjectAltName=DNS:bench.test",
                   "-keyout", key, "-out", self.certificate]
        subprocess.run(openssl, check=True, stderr=subprocess.DEVNULL)
        (directory / "large").write_bytes(b"x" * 65536)
        self._ports = {"http": free_port(), "https": free_port()}
        configuration = directory / "nginx.conf"
        configuration.write_text(NGINX.format(
            user="user root;" if os.geteuid() == 0 else "",
            directory=directory, small="x" * 100, http=self._ports["http"], https=self._ports["https"],
        ))
        self._process = subprocess.Popen(["nginx", "-p", directory, "-e", "stderr", "-c", configuration])
        self.worker = self._find_worker()
        # Stands for that process also when its number is given to another one.
        self.worker_descriptor = os.pidfd_open(self.worker)
        os.sched_setaffinity(self.worker, {SERVER_CORE})
        return self

    def __exit__(self, *_):
        signal.pidfd_send_signal(self.worker_descriptor, signal.SIGCONT)
        os.close(self.worker_descriptor)
        self._process.terminate()
        self._process.wait()
        self._directory.cleanup()

    def address(self, work):
        return f"127.0.0.1:{self._ports[work.scheme]}"

    def url(self, work):
        return f"{work.scheme}://{self.address(work)}{work.path}"

    def requests(self):
        """How many requests it has had, this one included."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports['http']}/status", timeout=5) as response:
            return int(response.read().split()[9])

    def cpu(self):
        """CPU time of the worker in seconds, exact to the nanosecond while it waits."""
        return int(Path(f"/proc/{self.worker}/schedstat").read_text().split()[0]) / 1e9

    def sleeps(self):
        """How often the worker has gone to sleep because there was nothing to do."""
        status = Path(f"/proc/{self.worker}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.M).group(1))

    def _find_worker(self):
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        end = time.monotonic() + 5
        while time.monotonic() < end and self._process.poll() is None:
            pids = children.read_text().split()
            with contextlib.suppress(OSError):
                if pids:
                    self.requests()
                    return int(pids[0])
            time.sleep(0.02)
        sys.exit("nginx did not start")


NGINX = """{user}
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    tcp_nodelay on;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{http} backlog=1024;
        listen 127.0.0.1:{https} ssl backlog=1024;
        ssl_certificate {directory}/certificate;
        ssl_certificate_key {directory}/key;
        ssl_protocols TLSv1.3;
        ssl_ecdh_curve X25519;
        ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;
        location = /small {{ return 200 "{small}"; }}
        location = /large {{ root {directory}; }}
        location = /status {{ stub_status; }}
    }}
}}
"""


@contextlib.contextmanager
def stalls(process):
    """Stops a process, given by a descriptor, for STALL seconds in the middle of each STALL_PERIOD."""
    over = threading.Event()
    start = time.monotonic() + STALL_PERIOD / 2

    def work():
        number = 0
        while not over.wait(max(0, start + number * STALL_PERIOD - time.monotonic())):
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            time.sleep(max(0, start + number * STALL_PERIOD + STALL - time.monotonic()))
            signal.pidfd_send_signal(process, signal.SIGCONT)
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.pidfd_send_signal(process, signal.SIGCONT)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def seconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m|h)", text).groups()
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}[unit]


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * share // 1) - 1))]


def cell(values):
    if None in values:
        return "-"
    return f"{figure(statistics.median(values))} ({figure(min(values))}..{figure(max(values))})"


def figure(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value >= 1 else f"{value:.3f}"


def describe(options):
    def first_line(*command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout.splitlines()[0]

    machine = subprocess.run([Path(__file__).with_name("machine.sh")], stdout=subprocess.PIPE, text=True, check=True)
    print("```text\n" + machine.stdout.rstrip())
    wrk = first_line("wrk", "-v").split(" Copyright")[0]
    versions = [wrk, first_line("h2load", "--version"), first_line("nginx", "-v"), first_line(options.penstock, "--version")]
    print("\n".join(f"program   {version}" for version in versions) + "\n```", flush=True)


if __name__ == "__main__":
    main()
