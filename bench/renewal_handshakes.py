#!/usr/bin/env python3
"""Whether a handshake fails while certificates are renewed.

  PENSTOCK=target/release/penstock bench/renewal_handshakes.py

Two clients, a core each, shake hands without pause with names chosen at random (TLS 1.3 and 1.2 by turns, no resumption, the
certificate verified for its name) while the certificate of each of 100 names is replaced, one after the other: half of them
as one file, half as two, certificate and key, which do not fit for a moment. Prints Markdown; ends with 1 if a handshake
failed or a new certificate was not served within a second.
"""

import argparse
import multiprocessing
import os
import random
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = [f"host{n}.test" for n in range(100)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    options = parser.parse_args()
    if not options.penstock:
        parser.error("name the release binary: --penstock or PENSTOCK")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        served = directory / "certificates"
        served.mkdir()
        authority(directory)
        pairs = {(name, issue): pair(directory, name, issue) for issue in (1, 2) for name in NAMES}
        for name in NAMES:
            put(served, name, pairs[name, 1])
        server, port = start(options.penstock, directory, served)
        try:
            clients = [Client(port, directory / "ca.crt", core) for core in range(2)]
            since, before = time.monotonic(), sum(client.good.value for client in clients)
            waits = [renew(served, name, pairs[name, 2], port, directory / "ca.crt") for name in NAMES]
            took = time.monotonic() - since
            good = sum(client.good.value for client in clients) - before
            faults = [fault for client in clients for fault in client.stop()]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    late = sum(wait > 1 for wait in waits)
    print("| handshakes | each second | failed | certificates replaced | until served, median | slowest |")
    print("|---:|---:|---:|---:|---:|---:|")
    print(f"| {good:,} | {good / took:,.0f} | {len(faults)} | {len(waits)} | {statistics.median(waits) * 1e3:.0f} ms "
          f"| {max(waits) * 1e3:.0f} ms |")
    for fault in faults[:5]:
        print(f"\nfailed: {fault}")
    sys.exit(1 if faults or late or not good else 0)


class Client:
    def __init__(self, port, ca, core):
        self.good = multiprocessing.Value("Q", 0)
        self.end = multiprocessing.Event()
        self.ours, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=self.work, args=(port, ca, core, theirs), daemon=True)
        self.process.start()
        while self.good.value < 10:
            if not self.process.is_alive():
                sys.exit(f"no handshake succeeded: {self.ours.recv()}")
            time.sleep(0.01)

    def work(self, port, ca, core, results):
        os.sched_setaffinity(0, {core})
        contexts = [context(ca, ssl.TLSVersion.TLSv1_3), context(ca, ssl.TLSVersion.TLSv1_2)]
        faults, count = [], 0
        while not self.end.is_set() and len(faults) < 100:
            name = random.choice(NAMES)
            try:
                shake_hands(port, name, contexts[count % 2])
            except OSError as error:
                faults.append(f"{name}: {error}")
            else:
                count += 1
                self.good.value = count
        results.send(faults)

    def stop(self):
        self.end.set()
        faults = self.ours.recv()
        self.process.join()
        return faults


def context(ca, version):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(ca)
    made.minimum_version = made.maximum_version = version
    return made


def shake_hands(port, name, made):
    """Gives the serial number of the certificate, which was verified for the name."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        with made.wrap_socket(plain, server_hostname=name) as tls:
            serial = int(tls.getpeercert()["serialNumber"], 16)
            # Closed by a reset: 100,000 sockets in TIME_WAIT would use up the ports.
            tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return serial


def renew(served, name, files, port, ca):
    """Puts a certificate in place. Gives the seconds until it is served."""
    made = context(ca, ssl.TLSVersion.TLSv1_3)
    before = shake_hands(port, name, made)
    put(served, name, files)
    since = time.monotonic()
    while time.monotonic() - since < 10:
        if shake_hands(port, name, made) != before:
            return time.monotonic() - since
        time.sleep(0.002)
    sys.exit(f"{name}: the new certificate is not served after 10 s")


def put(served, name, files):
    """As one file for every other name, as two for the rest; each by rename."""
    certificate, key = files
    if NAMES.index(name) % 2:
        contents = {f"{name}.pem": certificate + key}
    else:
        contents = {f"{name}.crt": certificate, f"{name}.key": key}
    for file, text in contents.items():
        hidden = served / f".{file}"
        hidden.touch(mode=0o600)
        hidden.write_text(text)
        hidden.rename(served / file)


def authority(directory):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
            "-subj", "/CN=authority", "-keyout", directory / "ca.key", "-out", directory / "ca.crt")


def pair(directory, name, issue):
    request, key, certificate = (directory / f"{name}.{issue}.{kind}" for kind in ("csr", "key", "crt"))
    extensions = directory / f"{name}.ext"
    extensions.write_text(f"subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n")
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
            "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", directory / "ca.crt", "-CAkey", directory / "ca.key",
            "-set_serial", str(1000 * issue + NAMES.index(name)), "-days", str(10 + issue), "-extfile", extensions,
            "-out", certificate)
    return certificate.read_text(), key.read_text()


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"openssl {arguments[0]} failed: {done.stderr}")


def start(penstock, directory, served):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (directory / "penstock.toml").write_text(
        f'[process]\nworkers = 2\n[control]\nsocket = "{directory}/control"\n[access-log]\ntarget = "off"\n'
        f'[listener.web]\nbind = "127.0.0.1:{port}"\ntls = {{ certificates = "{served}" }}\npool = "app"\n'
        '[pool.app]\nbackends = ["127.0.0.1:9"]\n')
    log = open(directory / "log", "w+")
    server = subprocess.Popen([penstock, "serve", "--config", directory / "penstock.toml"], stderr=log)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, port
        except ConnectionRefusedError:
            time.sleep(0.05)
    sys.exit("penstock did not start:\n" + (directory / "log").read_text())


if __name__ == "__main__":
    main()
