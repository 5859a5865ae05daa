#!/usr/bin/env python3
"""What many host files cost a program that starts: whole processes, from fork to end, with 5,000 pinned hosts.

  bench/pins.py [HOSTS [ROUNDS]]       5000 and 21 unless said otherwise

The files are made by `penstock lab`, one for each host, each with a key of its own. Commands take turns within each round.
`none known` is the same program with an empty directory: what is left is starting it. The first round, in which files come
from the disk and not from memory where they did not just get written, is shown by itself.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

from front_door import binary, describe_machine


def main():
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 21
    program = binary()
    describe_machine()
    with tempfile.TemporaryDirectory() as place:
        lab = os.path.join(place, "lab")
        maker = subprocess.Popen([program, "lab", str(hosts), "--dir", lab], stdout=subprocess.PIPE)
        ready = maker.stdout.readline()
        maker.terminate()
        maker.wait()
        assert ready.startswith(b"ready: "), "the lab did not start"
        files = [name for name in os.listdir(os.path.join(lab, "config/penstock/hosts")) if name.endswith(".host")]
        assert len(files) == hosts, f"{len(files)} files of {hosts} hosts"
        last = max(files).removesuffix(".host")
        known = [program, "known-hosts", last]
        commands = {
            "host list": ([program, "host", "list"], "config", hosts),
            f"known-hosts {last}": (known, "config", 1),
            "host list, none known": ([program, "host", "list"], "empty", 0),
        }
        times = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, (words, config, least) in commands.items():
                seconds, lines = run(words, lab, config)
                # What it was to say is there: one that fails is fast.
                assert lines >= least, f"{name}: {lines} lines"
                times[name].append(seconds)
        print(f"{hosts} host files, {rounds} rounds after the first")
        print(f"{'whole process':<26}{'median ms (lowest..highest)':>30}{'first':>8}")
        for name, (first, *others) in times.items():
            values = sorted(1000 * value for value in others)
            spread = f"{statistics.median(values):.1f} ({values[0]:.1f}..{values[-1]:.1f})"
            print(f"{name:<26}{spread:>30}{1000 * first:>8.1f}")


def run(words, lab, config):
    """Seconds of a whole run, and how many lines it printed."""
    variables = {"XDG_CONFIG_HOME": config, "XDG_STATE_HOME": "state", "HOME": "home"}
    environment = {name: os.path.join(lab, value) for name, value in variables.items()}
    begin = time.perf_counter()
    output = subprocess.run(words, env=os.environ | environment, stdout=subprocess.PIPE, check=True).stdout
    return time.perf_counter() - begin, output.count(b"\n")


if __name__ == "__main__":
    main()
