#!/usr/bin/env python3
"""Bytes per CPU-second of the client, bulk through one SSH session: ours against OpenSSH's on the same cipher.

  cargo build --release -p ssh --example bulk
  bench/ssh_bulk.py target/release/examples/bulk [MIB] [ROUNDS] [CIPHER ...]

A real sshd on a loopback address. Down: `head -c N /dev/zero` there, thrown away here. Up: zeros from here into
`cat >/dev/null` there. The two clients take turns within each round. CPU is user and system time of the client process
alone (wait4), connecting included. Printed: the median of the rounds with lowest and highest.
"""

import os
import pwd
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CIPHERS = ["aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com"]


def main():
    bulk = os.path.abspath(sys.argv[1])
    size = int(sys.argv[2] if len(sys.argv) > 2 else 2048) << 20
    rounds = int(sys.argv[3] if len(sys.argv) > 3 else 5)
    ciphers = sys.argv[4:] or CIPHERS
    with tempfile.TemporaryDirectory() as directory:
        server, address, port = sshd(directory)
        try:
            for cipher in ciphers:
                for direction in ["down", "up"]:
                    contest(directory, bulk, address, port, cipher, direction, size, rounds)
        finally:
            server.terminate()
            server.wait()


def contest(directory, bulk, address, port, cipher, direction, size, rounds):
    user = pwd.getpwuid(os.geteuid()).pw_name
    ours = [bulk, f"{address}:{port}", user, f"{directory}/client", f"{directory}/host.pub", cipher, direction, str(size)]
    remote = f"head -c {size} /dev/zero" if direction == "down" else "cat >/dev/null"
    theirs = ["ssh", "-F", "none", "-T", "-c", cipher, "-p", str(port), "-i", f"{directory}/client",
              "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={directory}/known_hosts", f"{user}@{address}", remote]
    results = {"penstock": [], "openssh": []}
    for _ in range(rounds):
        for name, command in [("penstock", ours), ("openssh", theirs)]:
            feed = name == "openssh" and direction == "up"
            results[name].append(measure(command, size if feed else 0))
    rate = {}
    for name, runs in results.items():
        per_second = sorted(size / cpu / 1e6 for cpu, _ in runs)
        wall = statistics.median(size / wall / 1e6 for _, wall in runs)
        rate[name] = statistics.median(per_second)
        print(f"{cipher} {direction} {name}: {rate[name]:.0f} MB per CPU-second "
              f"({per_second[0]:.0f}-{per_second[-1]:.0f}), {wall:.0f} MB/s wall")
    print(f"{cipher} {direction}: {rate['penstock'] / rate['openssh']:.2f} x OpenSSH", flush=True)


def measure(command, feed):
    """CPU and wall seconds of one run."""
    source = subprocess.Popen(["head", "-c", str(feed), "/dev/zero"], stdout=subprocess.PIPE) if feed else None
    begun = time.monotonic()
    process = subprocess.Popen(command, stdin=source.stdout if source else subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - begun
    if source:
        source.stdout.close()
        source.wait()
    if process.returncode != 0:
        sys.exit(f"{command[0]} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, wall


def sshd(directory):
    for name in ["host", "client"]:
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", f"{directory}/{name}"], check=True)
    address = "127.83.1.9"
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    key = open(f"{directory}/host.pub", encoding="ascii").read()
    open(f"{directory}/known_hosts", "w", encoding="ascii").write(f"[{address}]:{port} {key}")
    os.link(f"{directory}/client.pub", f"{directory}/authorized_keys")
    config = f"{directory}/sshd_config"
    open(config, "w", encoding="ascii").write(
        f"ListenAddress {address}\nPort {port}\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/authorized_keys\n"
        "PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n")
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", config], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if line.startswith("Server listening"):
            break
    return server, address, port


if __name__ == "__main__":
    main()
