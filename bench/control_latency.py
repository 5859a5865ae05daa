#!/usr/bin/env python3
"""Latency of HTTP requests with a quiet control socket, with idle clients on it, and with flooding ones.

  bench/control_latency.py [ROUNDS]       9 unless said otherwise

The three states take turns within each round, so that a noisy phase of the machine meets all of them alike. A request
is sent every 2 ms (open loop) on kept connections. Printed: the median of the rounds' medians and of their 99th
percentiles, with lowest and highest round.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time

from front_door import FrontDoor, describe_machine

REQUESTS = 1_000
EVERY = 0.002
STATES = ("quiet", "idle", "flooding")

# In a process of its own: what is measured must not share an interpreter with what disturbs.
DISTURB = r"""
import socket, sys, time
kind, path = sys.argv[1:]
def connect():
    s = socket.socket(socket.AF_UNIX); s.settimeout(1); s.connect(path); return s
if kind == "idle":
    held = []
    for _ in range(60):
        try: held.append(connect())
        except OSError: break
    print("on", flush=True); time.sleep(3600)
print("on", flush=True)
while True:
    try:
        s = connect()
        while True: s.sendall(b"status\nbackends json\nevents 1024\n" * 50)
    except OSError: pass
"""


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    describe_machine()
    with FrontDoor() as door:
        measure(door.address, 300)
        results = {state: [] for state in STATES}
        for number in range(rounds):
            order = STATES[number % 3:] + STATES[:number % 3]
            for state in order:
                with disturbed(state, door.control):
                    results[state].append(measure(door.address, REQUESTS))
        print(f"requests  {REQUESTS} a round, one every {EVERY * 1000:.0f} ms, {rounds} rounds")
        print(f"{'control':<10}{'median us (lowest..highest)':>32}{'p99 us (lowest..highest)':>32}{'failed':>8}")
        for state in STATES:
            medians, tails, failed = zip(*results[state])
            print(f"{state:<10}{spread(medians):>32}{spread(tails):>32}{sum(failed):>8}")
        quiet = statistics.median(median for median, _, _ in results["quiet"])
        for state in STATES[1:]:
            ratio = statistics.median(median for median, _, _ in results[state]) / quiet
            print(f"{state} / quiet: {ratio:.2f} (median)")
        if any(failed for state in STATES for _, _, failed in results[state]):
            sys.exit("FAILED: requests failed")


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f}..{max(values):.0f})"


class disturbed:
    """Clients on the control socket for as long as the block lasts."""

    def __init__(self, state, path):
        self.state, self.path, self.process = state, path, None

    def __enter__(self):
        if self.state != "quiet":
            # Niced: a client that takes the processor away would be measured as well, and says nothing about the server.
            self.process = subprocess.Popen(
                [sys.executable, "-c", DISTURB, self.state, self.path], stdout=subprocess.PIPE, preexec_fn=lambda: os.nice(19)
            )
            self.process.stdout.readline()

    def __exit__(self, *_):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def measure(address, requests):
    return asyncio.run(measure_async(address, requests))


async def measure_async(address, requests):
    times, failed = [], 0
    connections = [await asyncio.open_connection(*address) for _ in range(4)]
    start = time.perf_counter()
    for number in range(requests):
        reader, writer = connections[number % len(connections)]
        due = start + number * EVERY
        await asyncio.sleep(max(0, due - time.perf_counter()))
        sent = time.perf_counter()
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"hello"), 5)
            times.append((time.perf_counter() - sent) * 1e6)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            failed += 1
            connections[number % len(connections)] = await asyncio.open_connection(*address)
    for _, writer in connections:
        writer.close()
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)], failed


main()
