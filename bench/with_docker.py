#!/usr/bin/env python3
"""Runs a command beside a Docker engine of its own and ends the engine afterwards: `penstock bench forwarded` measures with it.

    bench/with_docker.py COMMAND...        as root; dockerd and docker must be installed (Debian package docker.io)

dockerd makes a bridge, packet filter rules, mounts and files. Here it has a network namespace and a mount namespace, so
that the machine keeps its own; the command runs in the same network. Its control groups and files have the name
penstock-docker-... and are removed at the end, also after Ctrl-C and SIGTERM.
"""

import glob
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

INSIDE = "--inside"
LIMIT = 60

# dockerd and its containerd write there even if all their own directories are elsewhere, and a containerd of the machine would
# be used if its socket were seen.
HIDDEN = ("run", "opt")
START = """
for directory in /run /opt /etc/docker; do
    [ ! -d "$directory" ] || mount -t tmpfs -o mode=0755 tmpfs "$directory"
done
exec "$@"
"""


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    if sys.argv[1] != INSIDE:
        if os.geteuid() != 0:
            sys.exit("with_docker.py: an engine needs root: run it with sudo")
        # Debian keeps daemons out of an ordinary user's PATH.
        os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
        for program, package in [("dockerd", "docker.io"), ("docker", "docker.io"), ("ip", "iproute2")]:
            if shutil.which(program) is None:
                sys.exit(f"with_docker.py: {program} is missing: run `make setup`, or apt-get install {package}")
        os.execvp("unshare", ["unshare", "--net", "--mount", "--", sys.executable, __file__, INSIDE, *sys.argv[1:]])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with Engine() as engine:
        status = engine.run(sys.argv[2:])
    sys.exit(status)


class Engine:
    """A running dockerd; a context manager."""

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="penstock-docker-")
        own = pathlib.Path(self.directory.name).resolve()
        if own.parts[1] in HIDDEN:
            sys.exit(f"with_docker.py: dockerd cannot see {own.parent}: set TMPDIR to another directory")
        self.group = own.name
        self.log = own / "log"
        self.socket = f"unix://{own}/socket"
        dockerd = [
            "dockerd",
            f"--data-root={own}/data",
            f"--exec-root={own}/exec",
            f"--pidfile={own}/pid",
            f"--host={self.socket}",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            f"--cgroup-parent=/{self.group}",
            "--shutdown-timeout=1",
        ]
        # If this process is killed, dockerd gets the signal with which it ends its containers. Ctrl-C is for the command only.
        command = ["setpriv", "--pdeathsig", "TERM", "--", "unshare", "--mount", "--", "sh", "-ec", START, "sh", *dockerd]
        with open(self.log, "wb") as log:
            self.dockerd = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self):
        end = time.monotonic() + LIMIT
        asking = ["docker", "--host", self.socket, "version"]
        while subprocess.run(asking, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT).returncode != 0:
            if self.dockerd.poll() is not None or time.monotonic() > end:
                why = "ended" if self.dockerd.poll() is not None else f"did not answer within {LIMIT} s"
                said = pathlib.Path(self.log).read_text(errors="replace").splitlines()[-15:]
                sys.exit("\n".join([f"with_docker.py: dockerd {why}; its last words:", *said]))
            time.sleep(0.05)

    def run(self, command):
        """Runs the command to its end and returns its status."""
        environment = {**os.environ, "DOCKER_HOST": self.socket}
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            sys.exit(f"with_docker.py: {error}")
        with process:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:
                    # The command got it too, and decides.
                    continue
                except SystemExit:
                    process.terminate()
                    raise

    def __exit__(self, *_):
        self.dockerd.terminate()
        try:
            self.dockerd.wait(30)
        except subprocess.TimeoutExpired:
            self.dockerd.kill()
            self.dockerd.wait()
        # One in each hierarchy; version 2 has one.
        for group in glob.glob(f"/sys/fs/cgroup/{self.group}") + glob.glob(f"/sys/fs/cgroup/*/{self.group}"):
            remove_cgroup(group)
        self.directory.cleanup()


def remove_cgroup(group):
    """Removes it with all below it, unless a process is in one of them."""
    for directory, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(directory)
        except OSError as error:
            print(f"with_docker.py: {directory} stays: {error.strerror}", file=sys.stderr)


if __name__ == "__main__":
    main()
