"""A front door with a small backend behind it, for the scripts in this directory: started, watched, ended."""

import asyncio
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent

BACKEND = r"""
import asyncio
class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.data = transport, b""
    def data_received(self, data):
        self.data += data
        while b"\r\n\r\n" in self.data:
            _, self.data = self.data.split(b"\r\n\r\n", 1)
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def binary():
    """The release binary, or what PENSTOCK names."""
    named = os.environ.get("PENSTOCK")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = pathlib.Path(named) if named else target / "release" / "penstock"
    if not path.exists():
        sys.exit(f"{path} does not exist: run `cargo build --release -p penstock`, or set PENSTOCK to a binary")
    return path


def describe_machine():
    """Prints what a reader must know to judge a number."""
    print(subprocess.run([ROOT / "bench" / "machine.sh"], check=True, capture_output=True, text=True).stdout, end="")
    version = subprocess.run([binary(), "--version"], check=True, capture_output=True, text=True).stdout.strip()
    profile = "debug build: not a performance figure" if "debug" in str(binary()) else "release build"
    print(f"penstock  {version} ({profile})", flush=True)


class FrontDoor:
    """`penstock serve` in front of one backend; a context manager."""

    def __init__(self, extra=""):
        self.extra = extra

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        self.control = f"{self.directory.name}/control.sock"
        self.backend = subprocess.Popen([sys.executable, "-c", BACKEND], stdout=subprocess.PIPE, text=True)
        port = int(self.backend.stdout.readline())
        config = pathlib.Path(self.directory.name) / "penstock.toml"
        config.write_text(
            f'[access-log]\ntarget = "off"\n[control]\nsocket = "{self.control}"\n{self.extra}\n'
            '[listener.web]\nbind = "127.0.0.1:0"\nprotocol = "http"\npool = "app"\ntimeouts = { idle = "10m" }\n'
            f'[pool.app]\nbackends = ["127.0.0.1:{port}"]\n'
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
        self.server = subprocess.Popen(
            [binary(), "serve", "--config", config], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
        )
        seen = []
        for line in self.server.stderr:
            seen.append(line)
            found = re.search(r"listening listener=web address=(\S+):(\d+)", line)
            if found:
                self.address = (found[1], int(found[2]))
            if " ready" in line:
                break
        else:
            sys.exit("the front door did not start:\n" + "".join(seen))
        # Nobody reads further lines; a full pipe must not stop the server.
        threading.Thread(target=self.server.stderr.read, daemon=True).start()
        return self

    def __exit__(self, *_):
        for process in (self.server, self.backend):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.directory.cleanup()

    def memory(self):
        """Proportional set size in bytes (PSS of /proc/PID/smaps_rollup)."""
        text = pathlib.Path(f"/proc/{self.server.pid}/smaps_rollup").read_text()
        return int(re.search(r"^Pss:\s+(\d+) kB", text, re.M)[1]) * 1024

    def url(self):
        return f"http://{self.address[0]}:{self.address[1]}/"


async def first_answer(address, source=None):
    """Opens a keep-alive connection, makes one request, gives the open streams."""
    reader, writer = await asyncio.open_connection(*address, local_addr=source)
    writer.write(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n")
    await reader.readuntil(b"hello")
    return reader, writer
