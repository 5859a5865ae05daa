"""A client that notes how long its requests take, on a core of its own beside the front door.

penstock has one worker on core 0; the client and nginx, the backend, share core 1 with what the script runs beside them. The
client and nginx have real-time priority (needs root), so that other work on core 1 does not delay them.
"""

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SERVER_CORE, CLIENT_CORE = 0, 1
REAL_TIME, ORDINARY = (os.SCHED_FIFO, os.sched_param(1)), (os.SCHED_OTHER, os.sched_param(0))


def penstock_of(parser, options):
    """The release binary that the options name; moves this process to the core of the client."""
    if not options.penstock:
        parser.error("name the release binary: --penstock or PENSTOCK")
    if os.cpu_count() < 2:
        sys.exit("the server and the others need a core each")
    os.sched_setaffinity(0, {CLIENT_CORE})
    return options.penstock


def spread(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def latencies(port, turns):
    """Median and 99th percentile of the time of one request in microseconds, and the number of requests: one in each turn."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection, real_time():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in turns:
            begun = time.perf_counter()
            connection.sendall(b"GET / HTTP/1.1\r\nHost: client\r\n\r\n")
            answer = connection.recv(4096)
            times.append((time.perf_counter() - begun) * 1e6)
            if not answer.startswith(b"HTTP/1.1 200 "):
                sys.exit(f"the client was answered {answer[:80]!r}")
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100], len(times)


@contextlib.contextmanager
def real_time():
    os.sched_setscheduler(0, *REAL_TIME)
    yield
    os.sched_setscheduler(0, *ORDINARY)


@contextlib.contextmanager
def front_door(penstock, process="", sections="", prefix=()):
    """nginx behind penstock, with more keys of [process] and more sections at its end, and a program before its command; gives the
    port of penstock, its control socket and its process."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        # Larger than the buffers on its way.
        (directory / "big").write_bytes(b"x" * 3_000_000)
        (directory / "nginx.conf").write_text(
            f"daemon off; user root; pid {name}/pid; error_log stderr crit; worker_processes 1;\n"
            f"worker_rlimit_nofile 16000; events {{ worker_connections 8000; }} http {{\n"
            f"access_log off; keepalive_requests 100000000; server {{ listen unix:{name}/backend;\n"
            f"location / {{ return 200 'hello'; }} location /big {{ root {name}; }} }} }}\n")
        (directory / "penstock.toml").write_text(
            f'[process]\nworkers = 1\n{process.format(directory=name)}\n[control]\nsocket = "{name}/control"\n'
            f'[access-log]\ntarget = "off"\n[listener.web]\nbind = "127.0.0.1:0"\npool = "app"\n'
            f'[pool.app]\nbackends = ["unix:{name}/backend"]\n{sections}\n')
        with real_time():
            nginx = subprocess.Popen(["nginx", "-c", f"{name}/nginx.conf", "-p", name])
        log = open(directory / "log", "w+")
        server = subprocess.Popen(["taskset", "-c", str(SERVER_CORE), *prefix, penstock, "serve", "--config", f"{name}/penstock.toml"],
                                  stderr=log)
        try:
            wait_for(directory / "backend")
            yield port_of(directory, penstock, server), f"{name}/control", server
            if server.poll() is not None:
                sys.exit(f"penstock ended with {server.returncode}")
        finally:
            for process in (server, nginx):
                process.send_signal(signal.SIGTERM)
                process.wait()


def wait_for(path):
    """Waits until a server has made its socket."""
    deadline = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"no server made the socket {path} within 20 s")
        time.sleep(0.05)


def port_of(directory, penstock, server):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and server.poll() is None:
        asked = subprocess.run([penstock, "ctl", "--socket", str(directory / "control"), "status"],
                               capture_output=True, text=True)
        for word in asked.stdout.split():
            if word.startswith("127.0.0.1:") and not word.endswith(":0"):
                return int(word.rsplit(":", 1)[1])
        time.sleep(0.05)
    sys.exit("penstock did not start:\n" + (directory / "log").read_text())
