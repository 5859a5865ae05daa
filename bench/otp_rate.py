#!/usr/bin/env python3
"""How many one-time passwords a second the validation server accepts, each of them durable before it says OK.

  PENSTOCK=target/release/penstock bench/otp_rate.py [--seconds 10] [--connections 256]

wrk asks `/wsapi/2.0/verify` over kept connections, an OTP of a YubiKey in software with each request, from a core of its own; every
answer must be OK. Then clients that remember each OK go on until the server is killed (SIGKILL) in the middle, some times over: each
OTP that was OK must be known to the store, and be a replay for the next server. Prints Markdown; ends with 1 if an answer was
another one than OK, if an OTP was lost, or if the rate is below the bar of 10,000 a second. The bar counts on a quiet machine alone.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BAR = 10_000
SERVER_CORE, LOAD_CORE = 0, 1
AES_KEY, PRIVATE = "87fe7c2b3d4f5a6b8c9d0e1f2a3b4c5d", bytes.fromhex("0123456789ab")
MODHEX = str.maketrans("0123456789abcdef", "cbdefghijklnrtuv")
KILLS, KILL_CLIENTS = 5, 64

LUA = r"""
local threads = 0
function setup(thread) thread:set("number", threads); threads = threads + 1; all = all or {}; table.insert(all, thread) end
function init(args)
  good, bad, sample = 0, 0, ""
  lines = {}
  for line in io.lines(args[1]) do lines[#lines + 1] = line end
  at = 0
end
function request()
  at = at + 1
  if at > #lines then wrk.thread:stop(); at = #lines end
  return "GET /wsapi/2.0/verify?id=1&nonce=0123456789abcdef&otp=" .. lines[at] .. " HTTP/1.1\r\nHost: x\r\n\r\n"
end
function response(status, headers, body)
  if body:find("status=OK\r\n", 1, true) then good = good + 1 else bad = bad + 1; sample = body end
end
function done(summary, latency, requests)
  local good, bad, sample = 0, 0, ""
  for _, thread in ipairs(all) do
    good, bad, sample = good + thread:get("good"), bad + thread:get("bad"), thread:get("sample")
  end
  io.write(string.format("\nRESULT %d %d %d %d %d %d\n", good, bad, summary.duration, latency:percentile(50),
    latency:percentile(99), latency.max))
  if bad > 0 then io.write("SAMPLE " .. sample:gsub("%s+", " ") .. "\n") end
end
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    parser.add_argument("--seconds", type=int, default=10, help="length of the run")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--directory", help="where the store is: its disk is measured (default: the temporary directory)")
    options = parser.parse_args()
    if not options.penstock:
        parser.error("name the release binary: --penstock or PENSTOCK")
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        bench = Bench(Path(options.penstock).resolve(), Path(name))
        sys.exit(0 if bench.run(options) else 1)


class Bench:
    def __init__(self, penstock, directory):
        self.penstock, self.directory = penstock, directory
        self.port = free_port()
        (directory / "penstock.toml").write_text(
            f'[process]\nworkers = 1\n[listener.web]\nbind = "127.0.0.1:{self.port}"\npool = "app"\n'
            f'[pool.app]\nbackends = ["127.0.0.1:9"]\n[access-log]\ntarget = "off"\n'
            f'[otp]\nstore = "{directory}/otp"\nkey-file = "{directory}/otp.key"\nlisteners = ["web"]\n'
        )

    def run(self, options):
        self.otp("init")
        # As many tokens as 16 rounds of all connections: an OTP is answered before the next one of its token is asked.
        tokens = [name(number) for number in range(options.connections * 16)]
        killed = [name(0x10_0000 + number) for number in range(KILL_CLIENTS)]
        lines = "".join(f"1,{token},{PRIVATE.hex()},{AES_KEY},000000000000,2009-12-03T22:44:31,\n" for token in tokens + killed)
        self.otp("import", "ksm", "-", given=lines)
        self.otp("client", "add", "--unsigned")
        count = options.seconds * 8 * BAR
        rounds = -(-count // len(tokens))
        blocks = encrypted([number for number in range(rounds) for _ in tokens])
        otps = self.directory / "otps"
        otps.write_text("".join(f"{tokens[at % len(tokens)]}{block}\n" for at, block in enumerate(blocks)))
        rate_is_good = self.rate(options, otps)
        return self.kills(killed) and rate_is_good

    def rate(self, options, otps):
        script = self.directory / "load.lua"
        script.write_text(LUA)
        server = self.start()
        before = cpu(server.pid)
        ran = subprocess.run(
            ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{options.connections}", f"-d{options.seconds}s", "--timeout", "10s",
             "-s", str(script), f"http://127.0.0.1:{self.port}", "--", str(otps)],
            capture_output=True, text=True, check=True)
        used = cpu(server.pid) - before
        stop(server)
        found = re.search(r"^RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)$", ran.stdout, re.MULTILINE)
        if not found:
            sys.exit(f"wrk says nothing:\n{ran.stdout}{ran.stderr}")
        good, bad, duration, median, p99, most = map(int, found.groups())
        rate = good / (duration / 1e6)
        errors = re.search(r"Socket errors: .*", ran.stdout)
        print("| OTPs that were OK | others | OK a second | median | p99 | longest | CPU for each |")
        print("|---|---|---|---|---|---|---|")
        print(f"| {good} | {bad} | {rate:,.0f} | {median / 1e3:.1f} ms | {p99 / 1e3:.1f} ms | {most / 1e3:.1f} ms | {used / max(good, 1) * 1e6:.0f} us |\n")
        if bad:
            print("an answer that was not OK:", re.search(r"^SAMPLE (.*)$", ran.stdout, re.MULTILINE).group(1))
        if errors:
            print(errors.group())
        if rate < BAR:
            print(f"below the bar of {BAR:,} OK a second")
        return bad == 0 and not errors and rate >= BAR

    def kills(self, tokens):
        """Kills the server in the middle, and looks whether each OTP that was OK is known."""
        blocks = encrypted(range(60_000))
        clients = [Client(token, self.port, blocks) for token in tokens]
        lost = twice = 0
        for _ in range(KILLS):
            server = self.start()
            threads = [threading.Thread(target=client.go) for client in clients]
            for thread in threads:
                thread.start()
            time.sleep(random.uniform(0.5, 1.5))
            server.send_signal(signal.SIGKILL)
            server.wait()
            for thread in threads:
                thread.join()
            known = {token["token"]: token for token in json.loads(self.otp("list", "--json"))["tokens"]}
            for client in clients:
                token = known[client.token]
                stored = -1 if token["session"] is None else (token["session"] - 1) * 256 + token["press"]
                lost += stored < client.last_ok
            server = self.start()
            twice += sum(client.asks_again() == "OK" for client in clients)
            stop(server)
            for client in clients:
                # One may be on the disk without an answer.
                client.next += 2
        total = sum(client.count for client in clients)
        print(f"killed {KILLS} times: {total} OTPs were OK, {lost} of the last ones were lost, {twice} were OK once more")
        others = [answer for client in clients for answer in client.others]
        if others:
            print("answers that were not OK:", sorted(set(others)))
        return lost == 0 and twice == 0 and not others and total > 0

    def otp(self, *arguments, given=""):
        store = ["--store", str(self.directory / "otp"), "--key-file", str(self.directory / "otp.key")]
        ran = subprocess.run([self.penstock, "otp", *store, *arguments], input=given, capture_output=True, text=True)
        if ran.returncode != 0:
            sys.exit(f"penstock otp {' '.join(arguments)}: {ran.stderr}")
        return ran.stdout

    def start(self):
        server = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), self.penstock, "serve", "--config", str(self.directory / "penstock.toml")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return server
            except OSError:
                if server.poll() is not None:
                    sys.exit("the server has ended")
                time.sleep(0.01)
        sys.exit("the server does not listen")


class Client:
    """Asks for the OTPs of one token, one after the other, and remembers the last one that was OK."""

    def __init__(self, token, port, blocks):
        self.token, self.port, self.blocks = token, port, blocks
        self.next, self.last_ok, self.count, self.others = 0, -1, 0, []

    def go(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                while self.next < len(self.blocks):
                    status = self.ask(connection, self.blocks[self.next], "0123456789abcdef")
                    if status == "OK":
                        self.last_ok, self.count = self.next, self.count + 1
                    else:
                        self.others.append(status)
                    self.next += 1
        except (OSError, EOFError):
            pass

    def asks_again(self):
        if self.last_ok < 0:
            return None
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            return self.ask(connection, self.blocks[self.last_ok], "fedcba9876543210")

    def ask(self, connection, block, nonce):
        path = f"/wsapi/2.0/verify?id=1&nonce={nonce}&otp={self.token}{block}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = b""
        while b"status=" not in answer or not answer.endswith(b"\r\n\r\n"):
            part = connection.recv(4096)
            if not part:
                raise EOFError
            answer += part
        return re.search(rb"status=(\w+)", answer).group(1).decode()


def encrypted(numbers):
    """The encrypted parts of the OTPs with these numbers: all tokens have the same key."""
    made = {}
    plain = bytearray()
    for number in numbers:
        if number not in made:
            session, press = number // 256 + 1, number % 256
            block = PRIVATE + session.to_bytes(2, "little") + b"\x03\x02\x04" + bytes([press]) + b"\x0b\xec"
            made[number] = block + (~crc(block) & 0xFFFF).to_bytes(2, "little")
        plain += made[number]
    ran = subprocess.run(["openssl", "enc", "-aes-128-ecb", "-nopad", "-K", AES_KEY], input=bytes(plain), capture_output=True, check=True)
    text = ran.stdout.hex().translate(MODHEX)
    return [text[at:at + 32] for at in range(0, len(text), 32)]


def crc(data):
    value = 0xFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x8408 if value & 1 else 0)
    return value


def name(number):
    return f"{number:012x}".translate(MODHEX)


def cpu(pid):
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stop(server):
    server.terminate()
    server.wait(20)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
