#!/usr/bin/env python3
"""Which threads of penstock delay its worker while operators send 10,000 commands a second to the control socket.

  PENSTOCK=target/release/penstock bench/control_delay.py [--seconds 6] [--mix both]

The set-up is that of bench/control_load.py: one worker and all other threads of penstock on core 0. perf(1) records each wake-up
of the worker and each switch of that core. From the wake-up until the worker runs, the time is charged to the thread that has
the core. Time of other processes is left out, so the figures hold on a busy machine as well; the p99 of the client does not.
Threads of the kernel are rows of their own: some of their work is for penstock, such as the journal for its stores.
Needs root and perf.
"""

import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import control_load
from timed_client import SERVER_CORE, front_door, latencies, penstock_of

LINE = re.compile(r"\s*.*?\s+\d+\s+\[(\d+)\]\s+([\d.]+):\s+sched:(\S+):\s*(.*)")
SWITCH = re.compile(r"prev_comm=(.*) prev_pid=(\d+) .*?prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+)")
OTHER = "other processes"
# Threads of the kernel, which also work for the stores of penstock.
KERNEL = re.compile(r"(kworker|jbd2|ksoftirqd|rcu|migration|kcompactd|kswapd)")
# A delay that counts, in microseconds.
LONG = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--mix", choices=[*control_load.MIXES], default="both")
    options = parser.parse_args()
    penstock = penstock_of(parser, options)
    how = SimpleNamespace(rate=options.rate, connections=4)
    with (front_door(penstock, 'state-directory = "{directory}/state"', control_load.SPARE) as (port, control, server),
          tempfile.NamedTemporaryFile() as record):
        latencies(port, control_load.turns(1))
        with control_load.operators(control, control_load.commands_of(options.mix, how.connections), how) as sent:
            time.sleep(1)
            events = ["-e", "sched:sched_switch", "-e", "sched:sched_waking"]
            perf = subprocess.Popen(["perf", "record", "-q", *events, "-a", "-m", "4096", "-o", record.name, "--", "sleep",
                                     str(options.seconds)], stderr=subprocess.DEVNULL)
            p50, p99, count = latencies(port, control_load.turns(options.seconds))
            if perf.wait() != 0:
                sys.exit("perf record failed")
        names = {int(task.name): (task / "comm").read_text().strip() for task in Path(f"/proc/{server.pid}/task").iterdir()}
        script = subprocess.run(["perf", "script", "-i", record.name, "-F", "comm,tid,cpu,time,event,trace"],
                                capture_output=True, text=True, check=True)
    delays, switches = delays_of(script.stdout, names)
    own = sorted(sum(us for name, us in parts.items() if name in names.values()) for parts in delays)
    at = [f"p{share} {own[int(len(own) * share / 100)]:.0f}" for share in (50, 90, 99, 99.9)]
    print(f"{sent.rate:,.0f} commands/s; {count} requests, p50 {p50:.0f} us, p99 {p99:.0f} us")
    print(f"{len(delays)} times the worker had to wait, for threads of penstock in us: {', '.join(at)}, max {own[-1]:.0f}\n")
    print(f"| thread | ms in all | longer than {LONG} us | times it got the core |")
    print("|---|---:|---:|---:|")
    for name in sorted(switches, key=lambda name: -switches[name]):
        parts = [parts.get(name, 0) for parts in delays]
        print(f"| {name} | {sum(parts) / 1000:.1f} | {sum(us > LONG for us in parts)} | {switches[name]} |")


def name_of(thread, comm, names):
    kernel = KERNEL.match(comm)
    return names.get(thread) or (f"kernel: {kernel[1]}" if kernel else OTHER)


def delays_of(script, names):
    """For each time that the worker was ready and did not run, the microseconds that each thread had the core."""
    worker = next(tid for tid, name in names.items() if name.startswith("worker"))
    delays, switches = [], collections.Counter()
    ready = since = running = None
    for line in script.splitlines():
        found = LINE.match(line)
        if not found:
            continue
        core, now, event, text = int(found[1]), float(found[2]) * 1e6, found[3], found[4]
        if event == "sched_waking" and f" pid={worker} " in f" {text} " and ready is None and running != worker:
            ready, since = collections.Counter(), now
        switch = SWITCH.search(text) if event == "sched_switch" and core == SERVER_CORE else None
        if not switch:
            continue
        comm, before, state, next_comm, after = switch[1], int(switch[2]), switch[3], switch[4], int(switch[5])
        switches[name_of(after, next_comm, names)] += 1
        if ready is not None:
            ready[name_of(before, comm, names)] += now - since
            since = now
            if after == worker:
                delays.append(ready)
                ready = None
        elif before == worker and state.startswith("R"):
            # Another thread has taken the core from it.
            ready, since = collections.Counter(), now
        running = after
    return delays, switches


if __name__ == "__main__":
    main()
