#!/usr/bin/env python3
"""What the sandbox of `penstock serve` costs for each request and each session: with it, and with --no-sandbox.

  PENSTOCK=target/release/penstock bench/sandbox.py [--rounds 11] [--seconds 1]

penstock has one worker on core 0, beside a process that uses up its idle time, so that work always waits; wrk and nginx, the
backend, share core 1. In each round every contestant is started anew and takes a turn with each kind of work; which is first
changes from round to round. `with it, again` is the sandbox a second time: how far its ratio is from 1 is the noise. CPU is that
of all threads (schedstat), divided by what wrk has counted. Prints Markdown: medians, and in parentheses the interval that holds
the true median with at least 93 % (order statistics).
"""

import argparse
import contextlib
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CORE, LOAD_CORE = 0, 1
CONTESTANTS = {"with it": [], "without it": ["--no-sandbox"], "with it, again": []}
# Name, listener of penstock, whether a connection is kept.
WORKS = {
    "request, kept connection, TCP backend": ("http", True),
    "request, kept connection, Unix backend": ("http-unix", True),
    "session, TCP backend": ("tcp", False),
    "session, Unix backend": ("tcp-unix", False),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=int, default=1, help="of each turn")
    options = parser.parse_args()
    if not options.penstock:
        parser.error("name the release binary: --penstock or PENSTOCK")
    if os.cpu_count() < 2:
        sys.exit("the server and the load need a core each")
    samples = {(work, name): [] for work in WORKS for name in CONTESTANTS}
    with backend() as (directory, port):
        for number in range(options.rounds):
            names = list(CONTESTANTS)
            for name in names[number % 3:] + names[:number % 3]:
                with server(options.penstock, CONTESTANTS[name], directory, port) as (process, ports), spinner():
                    for work, (listener, kept) in WORKS.items():
                        turn(process, ports[listener], kept, 1)
                        samples[work, name].append(turn(process, ports[listener], kept, options.seconds))
    print(f"{options.rounds} rounds of {options.seconds} s\n")
    print("| work | with it | without it | with it / without it | with it, again / with it |")
    print("|---|---:|---:|---:|---:|")
    for work in WORKS:
        with_it, without, again = (samples[work, name] for name in CONTESTANTS)
        cost = [a / b for a, b in zip(with_it, without)]
        noise = [a / b for a, b in zip(again, with_it)]
        figures = [interval(with_it, ".2f", " us"), interval(without, ".2f", " us"), interval(cost, ".3f"), interval(noise, ".3f")]
        print(f"| {work} | {' | '.join(figures)} |")


def interval(values, form, unit=""):
    """Median and the narrowest pair of ordered values that holds the true median with at least 93 %."""
    ordered, count = sorted(values), len(values)
    skip = 0
    while sum(math.comb(count, k) for k in range(skip + 1 + 1)) * 2 <= 0.07 * 2 ** count:
        skip += 1
    return f"{statistics.median(ordered):{form}}{unit} ({ordered[skip]:{form}} to {ordered[count - 1 - skip]:{form}})"


def turn(process, port, kept, seconds):
    """CPU of one unit of work in microseconds."""
    header = [] if kept else ["-H", "Connection: close"]
    load = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t", "1", "-c", "64", "-d", str(seconds), *header, f"http://127.0.0.1:{port}/"]
    before = cpu_of(process)
    text = subprocess.run(load, capture_output=True, text=True, check=True).stdout
    used = cpu_of(process) - before
    done = int(re.search(r"(\d+) requests in", text)[1])
    if "Non-2xx" in text or "Socket errors" in text or done == 0:
        sys.exit(f"wrk was not served:\n{text}")
    return used / 1e3 / done


def cpu_of(process):
    """Nanoseconds that all threads of the process have run."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{process.pid}/task").iterdir())


@contextlib.contextmanager
def spinner():
    process = subprocess.Popen(["taskset", "-c", str(CORE), sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        end(process)


@contextlib.contextmanager
def backend():
    """nginx on a TCP port and a Unix socket."""
    with tempfile.TemporaryDirectory() as name:
        directory, port = Path(name), 18_000 + os.getpid() % 10_000
        (directory / "nginx.conf").write_text(
            f"daemon off; user root; pid {name}/pid; error_log stderr crit; worker_processes 1;\n"
            f"events {{ worker_connections 4000; }} http {{ access_log off; keepalive_requests 100000000;\n"
            f"server {{ listen 127.0.0.1:{port}; listen unix:{name}/backend; return 200 'hello'; }} }}\n")
        process = subprocess.Popen(["taskset", "-c", str(LOAD_CORE), "nginx", "-c", f"{name}/nginx.conf", "-p", name])
        try:
            wait_for(lambda: (directory / "pid").exists() and (directory / "pid").read_text().strip())
            yield directory, port
        finally:
            end(process)


@contextlib.contextmanager
def server(penstock, options, directory, port):
    """penstock with a listener for each kind of work; gives the process and the ports."""
    text = '[process]\nworkers = 1\ndrain-timeout = "100ms"\nshares = { source = 100 }\n[access-log]\ntarget = "off"\n'
    for listener in {listener for listener, _ in WORKS.values()}:
        address = f"unix:{directory}/backend" if listener.endswith("-unix") else f"127.0.0.1:{port}"
        text += (f'[listener.{listener}]\nbind = "127.0.0.1:0"\nprotocol = "{listener.removesuffix("-unix")}"\npool = "{listener}"\n'
                 f'[pool.{listener}]\nbackends = ["{address}"]\nkeep-alive = 1024\n')
    (directory / "penstock.toml").write_text(text)
    command = ["taskset", "-c", str(CORE), penstock, "serve", "--config", str(directory / "penstock.toml"), *options]
    with open(directory / "log", "w+") as log:
        process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
        try:
            said = lambda: (directory / "log").read_text()
            wait_for(lambda: " ready" in said() or process.poll() is not None)
            ports = dict(re.findall(r"listening listener=(\S+) address=\S+:(\d+)", said()))
            if process.poll() is not None or len(ports) != len(WORKS):
                sys.exit(f"penstock did not start:\n{said()}")
            yield process, ports
        finally:
            end(process)


def wait_for(happened):
    deadline = time.monotonic() + 20
    while not happened():
        if time.monotonic() > deadline:
            sys.exit("a program did not start within 20 s")
        time.sleep(0.02)


def end(process):
    process.terminate()
    process.wait()


if __name__ == "__main__":
    main()
