#!/usr/bin/env python3
"""`penstock run` at two edges, against a lab of its own: a reader that stops, and far fewer descriptors than hosts.

    python3 bench/fleet_edges.py [--hosts 200] [--bytes 10000000] [--many 5000] [--descriptors 256]

First, many hosts send much at once and nobody reads until everything has come to a stand; then all is read, and the
SHA-256 of what each host said is compared with what OpenSSH gets from it. Second, more hosts than `ulimit -n` allows
connections must all be reached. Prints a table for each: hosts, equal sums (or answers), peak memory (ru_maxrss), time, CPU.
The binary is the release build, or what PENSTOCK names.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

from front_door import binary

PENSTOCK = binary()


@contextlib.contextmanager
def lab(hosts):
    """A lab of so many hosts: its directory, and the environment of a user who knows them."""
    with tempfile.TemporaryDirectory(prefix="fleet-edges") as place:
        directory = pathlib.Path(place, "lab")
        process = subprocess.Popen(
            [PENSTOCK, "lab", str(hosts), "--dir", directory], stdout=subprocess.PIPE, text=True
        )
        try:
            for line in process.stdout:
                if "ready: " in line:
                    break
            else:
                sys.exit("the lab did not start")
            environment = {"HOME": place, "PATH": os.environ["PATH"]}
            subprocess.run(
                [PENSTOCK, "host", "import", directory / "known_hosts"],
                env=environment, check=True, stdout=subprocess.DEVNULL,
            )
            yield directory, environment
        finally:
            process.terminate()
            process.wait()


def run(directory, *arguments):
    return [PENSTOCK, "run", "-q", "-F", directory / "ssh_config", "--hosts", directory / "hosts", *arguments]


def end(process):
    """Waits for it, and gives its exit code and what it used."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage


def stand_still(process, directory, hosts):
    """Waits until every host has got the command and the process has done next to nothing for two seconds."""

    def used():
        return sum(int(field) for field in pathlib.Path(f"/proc/{process.pid}/stat").read_text().split()[13:15])

    while (directory / "journal").read_text().count(" exec ") < hosts:
        time.sleep(0.2)
    last, since = used(), time.monotonic()
    while time.monotonic() - since < 2:
        if used() > last + 4:
            last, since = used(), time.monotonic()
        time.sleep(0.05)


def by_openssh(directory, host, command):
    ssh = ["ssh", "-F", directory / "ssh_config", host, command]
    with subprocess.Popen(ssh, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        return hashlib.file_digest(process.stdout, "sha256").hexdigest()


def row(name, usage, wall, **values):
    values |= {
        "peak RSS": f"{usage.ru_maxrss / 1024:.0f} MiB",
        "wall": f"{wall:.1f} s",
        "CPU": f"{usage.ru_utime + usage.ru_stime:.1f} s",
    }
    print(f"\n{name}\n\n| {' | '.join(values)} |\n|{' --- |' * len(values)}")
    print(f"| {' | '.join(str(value) for value in values.values())} |", flush=True)


def stopped_reader(hosts, size):
    command = f"flood {size}"
    with lab(hosts) as (directory, environment):
        begin = time.monotonic()
        process = subprocess.Popen(
            run(directory, command), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        stand_still(process, directory, hosts)
        held = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())[1])
        stood = time.monotonic() - begin
        sums = {}
        for line in process.stdout:
            name, text = line.split(b" -> ", 1)
            name = name.rstrip().decode()
            if name not in sums:
                sums[name] = hashlib.sha256()
            sums[name].update(text)
        code, usage = end(process)
        wall = time.monotonic() - begin
        names = (directory / "hosts").read_text().split()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wanted = pool.map(lambda name: by_openssh(directory, name, command), names)
            equal = sum(sums[name].hexdigest() == wish for name, wish in zip(names, wanted) if name in sums)
        row(
            f"{size / 1e6:g} MB from each host, nobody reads for the first {stood:.0f} s", usage, wall,
            **{"hosts": hosts, "equal sums": equal, "RSS while nobody read": f"{held / 1024:.0f} MiB", "exit": code},
        )
        return code == 0 and equal == hosts


def few_descriptors(hosts, limit):
    with lab(hosts) as (directory, environment):
        begin = time.monotonic()
        process = subprocess.Popen(
            run(directory, "hostname"), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        )
        answers = {tuple(line.decode().split(" -> ", 1)) for line in process.stdout}
        code, usage = end(process)
        own = sum(name.strip() == said.strip() for name, said in answers)
        row(
            f"`ulimit -n {limit}`", usage, time.monotonic() - begin,
            **{"hosts": hosts, "answers": own, "exit": code},
        )
        return code == 0 and own == hosts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--bytes", type=int, default=10_000_000)
    parser.add_argument("--many", type=int, default=5_000)
    parser.add_argument("--descriptors", type=int, default=256)
    options = parser.parse_args()
    well = [stopped_reader(options.hosts, options.bytes), few_descriptors(options.many, options.descriptors)]
    sys.exit(0 if all(well) else 1)


main()
