#!/usr/bin/env python3
"""What a client notices while operators send 10,000 commands a second to the control socket.

  PENSTOCK=target/release/penstock bench/control_load.py [--seconds 60] [--mix both] [--rate 10000]

penstock has one worker and its control thread on core 0; the client, the operators and nginx, the backend, share core 1. The
client sends one request after the other on a kept connection for --seconds and notes how long each takes, by turns alone and
beside the commands. The operators send what is due every 5 ms, over --connections kept connections, and read each answer;
with --rate 0 as much as the socket takes, and with --connections 0 one connection for each command. What they send:

  read    backends app, events 5, status, help, why of a URL
  change  weight, drain and ready of a backend that gets no traffic: marks that are set, logged and stored
  both    these by turns
  access  an entry that is added to an access list and removed from it: changes of the configuration

With --floor also beside a program that gives the same answers from memory and does nothing else (bench/control_floor.c), in the
background on core 0 as the control thread: what even a control socket without any work would cost the client.

Prints Markdown: medians over the rounds with least and greatest in parentheses, and whether the p99 beside the commands lies
within the spread of that alone. The client and nginx have real-time priority (needs root), so that the operators' own work on
core 1 does not delay them. "CPU" is the processor time of penstock in each turn, of one core.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timed_client import SERVER_CORE, front_door, latencies, penstock_of, spread, wait_for

TICK = 0.005

# A pool whose path the client never asks for.
SPARE = '''[[listener.web.route]]
path = "/spare"
pool = "spare"
acl = "spare"
[pool.spare]
backends = ["127.0.0.1:9"]
[acl.spare]
entries = ["deny 192.0.2.1"]
default = "permit"'''

READ = [b"backends app", b"events 5", b"status", b"help", b"why http://client/"]
CHANGE = [b"weight spare 127.0.0.1:9 7", b"drain spare 127.0.0.1:9", b"ready spare 127.0.0.1:9",
          b"weight spare 127.0.0.1:9 default"]
MIXES = {"read": READ, "change": CHANGE, "both": [one for pair in zip(READ, CHANGE) for one in pair], "access": []}
RUNS = itertools.count()


def commands_of(mix, connections):
    """What is sent in one turn. Each turn and connection has an entry of its own, so that none is there twice."""
    if mix != "access":
        return MIXES.get(mix)
    run = next(RUNS)
    entries = [f"deny 198.18.{run}.{at}" for at in range(max(connections, 1))]
    return [f'{verb} acl.spare.entries "{entry}"'.encode() for verb in ("add", "remove") for entry in entries]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="length of each turn")
    parser.add_argument("--rate", type=int, default=10_000, help="commands a second; 0: as many as are taken")
    parser.add_argument("--connections", type=int, default=4, help="control connections; 0: one for each command")
    parser.add_argument("--mix", choices=[*MIXES, "all"], default="all")
    parser.add_argument("--floor", action="store_true", help="also beside a program that only answers (needs cc)")
    options = parser.parse_args()
    penstock = penstock_of(parser, options)
    mixes = list(MIXES) if options.mix == "all" else [options.mix]
    floors = {f"{name}: the answers alone": name for name in mixes if options.floor and name != "access"}
    samples = {name: [] for name in ["alone", *mixes, *floors]}
    with front_door(penstock, 'state-directory = "{directory}/state"', SPARE) as (port, control, server), answers_alone(control, floors) as floor:
        latencies(port, turns(1))
        for _ in range(options.rounds):
            for name, rounds in samples.items():
                before = processor_time(server)
                commands = commands_of(floors.get(name, name), options.connections)
                with operators(floor if name in floors else control, commands, options) as sent:
                    begun = time.monotonic()
                    p50, p99, count = latencies(port, turns(options.seconds))
                    took = time.monotonic() - begun
                cpu = (processor_time(server) - before) / took
                rounds.append((p50, p99, count / took, sent.rate, cpu * 100))
    pace = f"{options.rate:,} commands a second" if options.rate else "as many commands as are taken"
    ways = f"{options.connections} connections" if options.connections else "a connection for each command"
    print(f"{pace} over {ways}, {options.rounds} rounds of {options.seconds:g} s\n")
    print("| beside the client | commands/s | p50 us | p99 us | p99 against alone | CPU % | verdict |")
    print("|---|---:|---:|---:|---:|---:|---|")
    alone = [p99 for _, p99, *_ in samples["alone"]]
    for name, rounds in samples.items():
        p50, p99, _, rate, cpu = ([r[n] for r in rounds] for n in range(5))
        ratios = [one / quiet for one, quiet in zip(p99, alone)]
        within = min(alone) <= statistics.median(p99) <= max(alone) or statistics.median(p99) < min(alone)
        verdict = "-" if name == "alone" else "within the spread" if within else "slower"
        commands = "-" if name == "alone" else spread(rate, ",.0f")
        print(f"| {name} | {commands} | {spread(p50, '.0f')} | {spread(p99, '.0f')} | {spread(ratios, '.2f')} | "
              f"{spread(cpu, '.0f')} | {verdict} |")


@contextlib.contextmanager
def answers_alone(control, floors):
    """Starts the program that has the answers of penstock in memory; gives its socket."""
    if not floors:
        yield None
        return
    with tempfile.TemporaryDirectory() as name:
        operator = Operator(control)
        with open(f"{name}/answers", "wb") as file:
            for command in [*READ, *CHANGE]:
                operator.send([command])
                text = b""
                while not text.endswith(b"\n.\n"):
                    text += operator.socket.recv(262_144)
                file.write(b"%s %d\n%s" % (command, len(text), text))
        source = Path(__file__).with_name("control_floor.c")
        subprocess.run(["cc", "-O2", "-o", f"{name}/floor", str(source)], check=True)
        words = ["taskset", "-c", str(SERVER_CORE), f"{name}/floor", f"{name}/socket", f"{name}/answers"]
        process = subprocess.Popen(words)
        try:
            wait_for(Path(f"{name}/socket"))
            yield f"{name}/socket"
            if process.poll() is not None:
                sys.exit("bench/control_floor.c ended early")
        finally:
            process.kill()
            process.wait()


def turns(seconds):
    """Turns of the client until the time is over."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield
        # The operators share this core: a client that never waits would starve them.
        time.sleep(0.0005)


def processor_time(server):
    fields = Path(f"/proc/{server.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Sent:
    def __init__(self):
        self.rate = 0.0


@contextlib.contextmanager
def operators(control, commands, options):
    sent = Sent()
    if commands is None:
        yield sent
        return
    answered, begun = multiprocessing.Value("Q", 0), multiprocessing.Semaphore(0)
    target = over_many if options.connections == 0 else over_kept
    process = multiprocessing.Process(target=target, args=(control, commands, options, answered, begun), daemon=True)
    process.start()
    begun.acquire()
    since, before = time.monotonic(), answered.value
    yield sent
    sent.rate = (answered.value - before) / (time.monotonic() - since)
    if not process.is_alive():
        sys.exit("the operators ended early")
    process.kill()
    process.join()


class Operator:
    """A kept connection, on which several commands may be under way."""

    def __init__(self, control):
        self.socket = connect(control)
        self.under_way, self.read = 0, b""

    def send(self, lines):
        self.socket.sendall(b"".join(line + b"\n" for line in lines))
        self.under_way += len(lines)

    def answers(self):
        """Reads until every command is answered; each answer ends with a line of a dot."""
        done = self.under_way
        while self.under_way:
            piece = self.socket.recv(262_144)
            if not piece:
                raise EOFError("the control connection was closed")
            # A dot that is cut in two is found with the end of the piece before.
            text = self.read + piece
            self.under_way -= text.count(b"\n.\n")
            self.read = text[text.rfind(b"\n.\n") + 3:][-8:] if b"\n.\n" in text else text[-8:]
            if b"\nerror" in text or text.startswith(b"error"):
                raise ValueError(text[:300])
        return done


def connect(control):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(control)
    return connection


def over_kept(control, commands, options, answered, begun):
    several = [Operator(control) for _ in range(options.connections)]
    number, start = 0, time.monotonic()
    begun.release()
    while True:
        due = int((time.monotonic() - start) * options.rate) - number if options.rate else 100 * len(several)
        # What a slow server leaves undone is not made up for later: that would be a burst.
        due = min(due, 400)
        if due <= 0:
            time.sleep(TICK)
            continue
        parts = [[] for _ in several]
        for at in range(due):
            parts[(number + at) % len(several)].append(commands[(number + at) % len(commands)])
        number += due
        for operator, lines in zip(several, parts):
            if lines:
                operator.send(lines)
        done = sum(operator.answers() for operator in several)
        with answered.get_lock():
            answered.value += done
        if options.rate:
            number = max(number, int((time.monotonic() - start) * options.rate) - 400)
            time.sleep(TICK)


def over_many(control, commands, options, answered, begun):
    number, start = 0, time.monotonic()
    begun.release()
    while True:
        if options.rate and number > (time.monotonic() - start) * options.rate:
            time.sleep(TICK)
            continue
        operator = Operator(control)
        operator.send([commands[number % len(commands)]])
        operator.answers()
        operator.socket.close()
        number += 1
        with answered.get_lock():
            answered.value += 1


if __name__ == "__main__":
    main()
