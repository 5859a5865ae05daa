#!/usr/bin/env python3
"""CPU of a client that moves 1 GB through SSH, against one sshd on loopback: `penstock put` and `get` beside `scp`, which use
SFTP too, and a forward of `penstock tunnel` beside `ssh -L`.

All use the same cipher; the client has core 0, sshd and the ends of the forward have core 1. The file is random, in
memory (/dev/shm), so that no disk is measured. Each round runs every client once, and the ratio of a round is taken
within it.

    bench/copies.py PENSTOCK [ROUNDS] [CIPHER...]
"""

import filecmp
import os
import pathlib
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SIZE = 1_000_000_000
CIPHERS = ["aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Place:
    """An sshd, its client's configuration and the file, all in one directory."""

    def __init__(self, at):
        self.at, self.port = at, free_port()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", at / name], check=True)
        shutil.copy(at / "user.pub", at / "authorized")
        (at / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\n"
            f"StrictModes no\nPidFile none\nPermitRootLogin yes\nUsePAM no\nSubsystem sftp internal-sftp\n"
        )
        key = (at / "host.pub").read_text().split()
        (at / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n")
        self.file = at / "file"
        with open(self.file, "wb") as out:
            for _ in range(SIZE // 1_000_000):
                out.write(os.urandom(1_000_000))
        self.environment = dict(
            os.environ,
            HOME=str(at / "home"),
            XDG_CONFIG_HOME=str(at / "config"),
            XDG_STATE_HOME=str(at / "state"),
            XDG_CACHE_HOME=str(at / "cache"),
        )
        (at / "home" / ".ssh").mkdir(parents=True)
        (at / "home" / ".ssh" / "config").symlink_to(at / "ssh_config")
        command = ["taskset", "-c", "1", shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", at / "sshd_config"]
        self.sshd = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while "listening" not in self.sshd.stderr.readline():
            if self.sshd.poll() is not None:
                sys.exit("sshd ended")

    def configure(self, cipher):
        (self.at / "ssh_config").write_text(
            f"Host 127.0.0.1\n  Port {self.port}\n  User {os.environ.get('USER', 'root')}\n"
            f"  IdentityFile {self.at}/user\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.at}/known_hosts\n  Ciphers {cipher}\n"
        )

    def measure(self, command, result):
        """Returns seconds of CPU (user, system) of one copy, and checks what it has made."""
        for place in ("there", "here"):
            shutil.rmtree(self.at / place, ignore_errors=True)
            (self.at / place).mkdir()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(["taskset", "-c", "0", *command], env=self.environment, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
        if not filecmp.cmp(self.file, result, shallow=False):
            sys.exit(f"{' '.join(map(str, command))}: the copy differs")
        return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def forwards(place, penstock, rounds):
    far = socket.create_server(("127.0.0.1", 0))
    port = far.getsockname()[1]
    ports = [free_port(), free_port()]
    (place.at / "penstock.toml").write_text(
        f'[tunnel.t]\nhost = "127.0.0.1"\n\n[tunnel.t.forward.f]\nlisten = "127.0.0.1:{ports[0]}"\n'
        f'connect = "127.0.0.1:{port}"\ncheck = "none"\n'
    )
    commands = [
        [penstock, "tunnel", "up", "t", "--config", place.at / "penstock.toml"],
        ["ssh", "-F", place.at / "ssh_config", "-N", "-L", f"{ports[1]}:127.0.0.1:{port}", "127.0.0.1"],
    ]
    clients = [Forward(place, command, port) for command, port in zip(commands, ports)]
    for _ in clients:  # The connections that saw whether they listen.
        far.accept()[0].close()
    figures = {f"forward {direction}": ([], []) for direction in ("up", "down")}
    for _ in range(rounds):
        for direction in ("up", "down"):
            for client, to in zip(clients, figures[f"forward {direction}"]):
                to.append(client.measure(far, direction))
    for client in clients:
        client.end()
    return figures


class Forward:
    """A client that forwards a port, by which 1 GB goes up or down."""

    def __init__(self, place, command, port):
        self.port = port
        self.client = subprocess.Popen(
            ["taskset", "-c", "0", *command], env=place.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                if self.client.poll() is not None:
                    sys.exit(f"{' '.join(map(str, command))}: it ended")
                time.sleep(0.02)

    def cpu(self):
        fields = open(f"/proc/{self.client.pid}/stat").read().rsplit(")", 1)[1].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return int(fields[11]) / ticks, int(fields[12]) / ticks

    def measure(self, far, direction):
        before = self.cpu()
        child = os.fork()
        if child == 0:
            os.sched_setaffinity(0, {1})
            with socket.create_connection(("127.0.0.1", self.port)) as near:
                other, _ = far.accept()
                down = direction == "down"
                source, sink = (other, near) if down else (near, other)
                if os.fork() == 0:
                    block, left = bytes(1 << 18), SIZE
                    while left:
                        left -= source.send(block[: min(left, len(block))])
                    source.shutdown(socket.SHUT_WR)
                    os._exit(0)
                source.close()
                buffer, total = bytearray(1 << 18), 0
                while count := sink.recv_into(buffer):
                    total += count
                os._exit(0 if total == SIZE else 1)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"forward {direction}: not all came")
        after = self.cpu()
        return after[0] - before[0], after[1] - before[1]

    def end(self):
        self.client.terminate()
        self.client.wait()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    penstock, rounds = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        at = pathlib.Path(directory)
        place = Place(at)
        try:
            subprocess.run([penstock, "host", "import", at / "known_hosts"], env=place.environment, check=True, capture_output=True)
            options = ["-F", at / "ssh_config"]
            there, here = at / "there", at / "here"
            ways = {
                "put": (
                    ([penstock, "put", *options, "-w", "127.0.0.1", place.file, there / "file"], there / "file"),
                    (["scp", *options, "-q", place.file, f"127.0.0.1:{there}/file"], there / "file"),
                ),
                "get": (
                    ([penstock, "get", *options, "-w", "127.0.0.1", place.file, f"{here}/"], here / "127.0.0.1" / "file"),
                    (["scp", *options, "-q", f"127.0.0.1:{place.file}", here / "file"], here / "file"),
                ),
            }
            print("| cipher | copy | penstock, s of CPU | user | scp, s of CPU | user | penstock / scp |\n|---|---|---:|---:|---:|---:|---:|")
            for cipher in sys.argv[3:] or CIPHERS:
                place.configure(cipher)
                figures = {way: ([], []) for way in ways}
                for _ in range(rounds):
                    for way, pair in ways.items():
                        for (command, result), to in zip(pair, figures[way]):
                            to.append(place.measure(command, result))
                figures |= forwards(place, penstock, rounds)
                for way, (ours, theirs) in figures.items():
                    ratios = [sum(one) / sum(other) for one, other in zip(ours, theirs)]
                    cells = [cipher.split("@")[0], way]
                    for kind in (ours, theirs):
                        totals = [sum(one) for one in kind]
                        cells.append(f"{statistics.median(totals):.2f} ({min(totals):.2f} to {max(totals):.2f})")
                        cells.append(f"{statistics.median(one[0] for one in kind):.2f}")
                    cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
                    print("| " + " | ".join(cells) + " |", flush=True)
        finally:
            place.sshd.terminate()
            place.sshd.wait()


if __name__ == "__main__":
    main()
