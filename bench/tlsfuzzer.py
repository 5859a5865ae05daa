#!/usr/bin/env python3
"""What penstock's TLS listeners do with the conversations of tlsfuzzer, and why some end otherwise than it expects.

  git clone https://github.com/tlsfuzzer/tlsfuzzer DIR
  PENSTOCK=target/release/penstock bench/tlsfuzzer.py --tree DIR --results bench/results/DATE-tlsfuzzer.md

Starts penstock on loopback with certificates made by openssl, runs every script of tlsfuzzer with all its conversations, two
at a time, and says of each conversation that failed by which rule of bench/tlsfuzzer.toml. That file also says which arguments
and which listener a script gets, and which scripts cannot be run. Ends with 1 if no rule covers a failure, or if penstock
ended, panicked or kept a connection. --only PATTERN runs some of the scripts, --keep DIR keeps what each of them printed. All
of them take about a quarter of an hour on two cores.

Most scripts for TLS 1.2 know cipher suites only that penstock does not have (RSA key exchange, CBC). They would fail at their
first message, so `Suites` says what is put in their place while a script runs; the files of tlsfuzzer stay as they are.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import enum
import fnmatch
import importlib
import json
import os
import platform
import re
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import venv
from pathlib import Path

CLASSES = ("not offered", "other alert", "script", "ours")
LIBRARIES = ("tlslite-ng==0.9.0b2", "kyber-py==1.2.0", "dilithium-py==1.5.1")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock" / "tlsfuzzer"
LISTENERS = {
    "rsa": ("an RSA certificate (2048 bits)", "rsa", "", "http"),
    "ecdsa": ("an ECDSA certificate (P-256)", "ecdsa", "", "http"),
    "clients": ("the RSA certificate; asks for client certificates", "rsa",
                ', client-certificates = {{ ca = "{0}/ca.crt", mode = "request" }}', "http"),
    "tls12": ("the RSA certificate; TLS 1.2 only", "rsa", ', ciphers = ["ECDHE-RSA-AES128-GCM-SHA256"]', "http"),
    "echo": ("the RSA certificate; TCP to a backend that sends back what it gets", "rsa", "", "tcp"),
}


class Suites(enum.Enum):
    """What replaces the cipher suites of a script while it runs."""

    WRITTEN = "as written"
    GCM = "ECDHE with AES-GCM for ECDHE with AES-CBC"
    ECDHE = "ECDHE with AES-128-GCM for RSA with AES-128-CBC, and the extensions and the message that come with it"
    POINTS = "as ECDHE, and the extension ec_point_formats is not awaited"


Call = collections.namedtuple("Call", "script listener suites arguments limit")
Conversation = collections.namedtuple("Conversation", "call name fault")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK"), help="release binary (default: $PENSTOCK)")
    parser.add_argument("--tree", type=Path, help="checkout of https://github.com/tlsfuzzer/tlsfuzzer")
    parser.add_argument("--commit", help="commit of --tree, where git cannot say")
    parser.add_argument("--only", default="*", help="scripts to run, as a pattern of their names")
    parser.add_argument("--results", type=Path, help="file for the results, in Markdown")
    parser.add_argument("--keep", type=Path, help="directory for what the scripts print")
    options = parser.parse_args()
    if not options.penstock:
        parser.error("name the release binary: --penstock or PENSTOCK")
    if not options.tree or not (options.tree / "tlsfuzzer" / "_apps").is_dir():
        parser.error("--tree must be a checkout: git clone https://github.com/tlsfuzzer/tlsfuzzer DIR")
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    python = environment()
    with tempfile.TemporaryDirectory() as name, front_door(options.penstock, Path(name)) as door:
        calls, absent = plan(table, options, Path(name))
        keep = options.keep or Path(name) / "printed"
        keep = keep.resolve()
        keep.mkdir(parents=True, exist_ok=True)

        def one(numbered):
            number, call = numbered
            found = run(python, options.tree.resolve(), call, door.ports[call.listener], keep / f"{number:03}-{call.script}")
            door.alive()
            bad = sum(c.fault is not None for c in found)
            print(f"{number + 1}/{len(calls)} {call.script} ({call.listener}): {len(found)} conversations, {bad} failed",
                  file=sys.stderr, flush=True)
            return found

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            conversations = [c for found in pool.map(one, enumerate(calls)) for c in found]
        faults = door.settle()
    faults += judge(conversations, table["rule"], options)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    if options.results:
        options.results.write_text(report(conversations, absent, table["rule"], options))
    sys.exit(1 if faults else 0)


def environment():
    """Makes an environment with the library that tlsfuzzer needs; gives its Python."""
    directory = CACHE / "-".join(LIBRARIES)
    python = directory / "bin" / "python"
    if not (directory / "ready").exists():
        venv.create(directory, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *LIBRARIES], check=True)
        (directory / "ready").touch()
    return python


def plan(table, options, directory):
    """Gives the calls, and the scripts that are not run with the reasons."""
    calls, absent = [], {}
    scripts = sorted(path.stem for path in (options.tree / "scripts").glob("test-*.py"))
    for script in (s for s in scripts if fnmatch.fnmatchcase(s, options.only)):
        if script in table["absent"]:
            absent[script] = table["absent"][script]
            continue
        for entry in [e for e in table["call"] if e["script"] == script] or [{}]:
            listener = entry.get("listener", "rsa")
            suites, arguments = usual(options.tree / "tlsfuzzer" / "_apps" / f"{script.replace('-', '_')}.py", listener)
            if "suites" in entry:
                suites, arguments = Suites[entry["suites"].upper()], []
            more = [word.format(directory) for word in entry.get("arguments", [])]
            calls.append(Call(script, listener, suites, arguments + more, entry.get("limit", 600)))
    for name in set(table["absent"]) | {entry["script"] for entry in table["call"]}:
        if name not in scripts:
            sys.exit(f"bench/tlsfuzzer.toml names {name}, which this tlsfuzzer does not have")
    return calls, absent


def usual(source, listener):
    """What lets a script speak a cipher suite of ours, by the options that it takes."""
    taken = re.search(r'getopt\.getopt\(\s*argv,\s*"([^"]*)"', source.read_text())[1]
    arguments = ["-n", "0"] if "n:" in taken else []
    arguments += ["-d"] if "d" in taken else []
    if "C:" in taken and "tls13" not in source.name:
        arguments += ["-C", f"TLS_ECDHE_{'ECDSA' if listener == 'ecdsa' else 'RSA'}_WITH_AES_128_GCM_SHA256"]
    elliptic = "tls13" in source.name or "-d" in arguments or "-C" in arguments
    return (Suites.GCM if elliptic else Suites.ECDHE), arguments


def run(python, tree, call, port, printed):
    """Runs a script, and reads its conversations from what it prints."""
    command = [python, Path(__file__).resolve(), "--inside", tree, call.suites.name, call.script,
               "-h", "127.0.0.1", "-p", str(port), *call.arguments]
    fault = None
    with open(printed, "w+", errors="replace") as output:
        try:
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env={**os.environ, "PYTHONUNBUFFERED": "1"}, cwd=tree, timeout=call.limit).returncode
        except subprocess.TimeoutExpired:
            ended, fault = None, f"not finished after {call.limit} s"
        output.seek(0)
        text = output.read()
    found, block = [], None
    for line in text.split("\nTest end\n")[0].splitlines():
        if named := re.fullmatch(r'"(.+)" repeat \d+(?:\.\.\.)?|(?!Log: )(.+?) ?\.\.\.', line):
            block = []
            found.append((named[1] or named[2], block))
        elif block is not None:
            block.append(line)
    found = [Conversation(call, name, fault_of(block)) for name, block in found]
    counts = re.findall(r"^(?:PASS|FAIL|XFAIL): (\d+)$", text, re.MULTILINE)
    if fault is None and (not counts or sum(map(int, counts)) != len(found)):
        last = text.strip().splitlines()[-1:] or ["nothing"]
        fault = f"ended with {ended} without its own count of what was read here; the last line: {last[0]}"
    return found + ([Conversation(call, "(the script)", fault)] if fault else [])


def fault_of(block):
    """The exception that ended a conversation, and the step that it ended; None if there was none."""
    if "OK" in block:
        return None
    raised = [line for before, line in zip(block, block[1:]) if before.startswith("    ") and re.match(r"[A-Za-z_]", line)]
    step = re.search(r"processing node (?:<tlsfuzzer\.\w+\.)?(\w+)", "\n".join(block))
    return (raised[-1] if raised else "ended without a result") + (f", at {step[1]}" if step else "")


class Door:
    """A running penstock with a port for each listener."""

    def __init__(self, penstock, directory, server):
        self.penstock, self.directory, self.server, self.ports = penstock, directory, server, {}
        deadline = time.monotonic() + 20
        while not self.ports and time.monotonic() < deadline and server.poll() is None:
            with contextlib.suppress(ValueError):
                self.ports = {entry["name"]: int(entry["bound"][0].rsplit(":", 1)[1]) for entry in self.status()["listeners"]}
            time.sleep(0.05)
        if not self.ports:
            sys.exit("penstock did not start:\n" + (directory / "log").read_text())

    def status(self):
        asked = subprocess.run([self.penstock, "ctl", "--socket", self.directory / "control", "status", "--json"],
                               capture_output=True, text=True)
        return json.loads(asked.stdout)

    def alive(self):
        if self.server.poll() is not None:
            sys.exit(f"penstock ended with {self.server.returncode}:\n" + (self.directory / "log").read_text())

    def settle(self):
        """Waits until no connection is left, longer than any time limit of a listener; gives what is wrong."""
        deadline = time.monotonic() + 90
        while (status := self.status())["connections"]["now"] and time.monotonic() < deadline:
            time.sleep(0.5)
        self.alive()
        faults = [f"{status['connections']['now']} connections are kept"] if status["connections"]["now"] else []
        return faults + ([f"{status['counters']['panics']} panics"] if status["counters"]["panics"] else [])


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(ConnectionError):
            while data := self.request.recv(65536):
                self.request.sendall(data)


@contextlib.contextmanager
def front_door(penstock, directory):
    certificates(directory)
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as echo:
        threading.Thread(target=echo.serve_forever, daemon=True).start()
        text = (f'[process]\nworkers = 1\n[control]\nsocket = "{directory}/control"\n[access-log]\ntarget = "off"\n'
                f'[pool.echo]\nbackends = ["127.0.0.1:{echo.server_address[1]}"]\n')
        for name, (_, pair, more, protocol) in LISTENERS.items():
            text += (f'[listener.{name}]\nbind = "127.0.0.1:0"\nprotocol = "{protocol}"\n'
                     f'tls = {{ certificates = "{directory}/{pair}", policy = "compatible"{more.format(directory)} }}\n')
            text += 'pool = "echo"\n' if protocol == "tcp" else f'route = [{{ redirect = "https://localhost/there" }}]\n'
        (directory / "penstock.toml").write_text(text)
        with open(directory / "log", "w") as log:
            server = subprocess.Popen([penstock, "serve", "--config", directory / "penstock.toml"], stderr=log)
        try:
            yield Door(penstock, directory, server)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
            echo.shutdown()


def certificates(directory):
    """Makes the certificates of the listeners, and an authority with certificates for clients."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    rsa, ec = ("rsa:2048",), ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    common = ("-x509", "-nodes", "-days", "30")
    for name, key in (("rsa", rsa), ("ecdsa", ec)):
        (directory / name).mkdir()
        openssl("req", *common, "-newkey", *key, "-keyout", f"{name}/default.key", "-out", f"{name}/default.crt",
                "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
        (directory / name / "default.key").chmod(0o600)
    openssl("req", *common, "-newkey", *rsa, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    openssl("genpkey", "-genparam", "-algorithm", "DSA", "-pkeyopt", "dsa_paramgen_bits:2048", "-out", "dsa.parameters")
    for name, key in (("rsa", rsa), ("ecdsa", ec), ("dsa", ("dsa:dsa.parameters",)), ("pss", ("rsa-pss",)),
                      ("ed25519", ("ed25519",)), ("ed448", ("ed448",)),
                      ("brainpool", ("ec", "-pkeyopt", "ec_paramgen_curve:brainpoolP256r1"))):
        openssl("req", *common, "-newkey", *key, "-keyout", f"client-{name}.key", "-out", f"client-{name}.crt",
                "-subj", f"/CN={name}", "-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE",
                "-addext", f"subjectAltName=DNS:{name}.example")


def judge(conversations, rules, options):
    """Gives each failure its rule in `rule["covers"]`; tells of failures without rule, and of rules without failure."""
    for rule in rules:
        rule["covers"] = []
        if rule["class"] not in CLASSES:
            sys.exit(f"bench/tlsfuzzer.toml: no class {rule['class']!r}")
    without = collections.defaultdict(list)
    for found in (c for c in conversations if c.fault is not None):
        rule = next((r for r in rules if covers(r, found)), None)
        if rule:
            rule["covers"].append(found)
        else:
            without[found.call.script, found.call.listener, re.sub(r"\d+", "N", found.fault)].append(found.name)
    for rule in rules:
        if not rule["covers"] and options.only == "*":
            print(f"note: this rule covers nothing: {rule['script']}: {rule['reason']}", file=sys.stderr)
    return [f"no rule: {script} ({listener}): {fault}: {len(names)}, such as {', '.join(map(repr, names[:4]))}"
            for (script, listener, fault), names in without.items()]


def covers(rule, found):
    scripts = [rule["script"]] if isinstance(rule["script"], str) else rule["script"]
    return (any(fnmatch.fnmatchcase(found.call.script, pattern) for pattern in scripts)
            and rule.get("listener", found.call.listener) == found.call.listener
            and rule.get("arguments", "") in " ".join(found.call.arguments)
            and re.fullmatch(rule.get("conversation", ".*"), found.name)
            and re.search(rule["fault"], found.fault))


def report(conversations, absent, rules, options):
    """What the results file says, in Markdown."""
    asked = subprocess.run(["git", "-C", options.tree, "rev-parse", "HEAD"], capture_output=True, text=True)
    commit = options.commit or asked.stdout.strip() or "(commit unknown)"
    version = subprocess.run([options.penstock, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    ran = {found.call.script for found in conversations}
    newer = sum(script.startswith("test-tls13-") for script in ran)
    failed = [found for found in conversations if found.fault is not None]
    calls = len({id(found.call) for found in conversations})
    lines = [
        f"# tlsfuzzer, {datetime.date.today()}", "",
        f"`bench/tlsfuzzer.py` ran {len(ran)} scripts of tlsfuzzer {commit} with {LIBRARIES[0]}",
        f"against {version} on loopback: {len(ran) - newer} of TLS 1.2, {newer} of TLS 1.3, some with several keys or listeners",
        f"({calls} calls), two at a time, on "
        f"{os.cpu_count()} cores of {platform.machine()} with {platform.system()} {'.'.join(platform.release().split('.')[:2])}; "
        f"{len(absent)} scripts were not run (last table).", "",
        f"Of {len(conversations):,} conversations {len(conversations) - len(failed):,} ended as the script awaits. Of the others,",
        "the rules of `bench/tlsfuzzer.toml` say:", "",
        "| class | conversations | rules |", "|---|---|---|",
    ]
    for name in CLASSES:
        kept = [rule for rule in rules if rule["class"] == name and rule["covers"]]
        lines.append(f"| {name} | {sum(len(rule['covers']) for rule in kept):,} | {len(kept)} |")
    lines += [f"| without a rule | {len(failed) - sum(len(rule['covers']) for rule in rules):,} | |", "",
              "| class | conversations | scripts | reason |", "|---|---|---|---|"]
    for rule in sorted((r for r in rules if r["covers"]), key=lambda r: (-CLASSES.index(r["class"]), -len(r["covers"]))):
        scripts = collections.Counter(found.call.script.removeprefix("test-") for found in rule["covers"]).most_common()
        named = ", ".join([name for name, _ in scripts[:3]] + ([f"{len(scripts) - 3} more"] if len(scripts) > 3 else []))
        lines.append(f"| {rule['class']} | {len(rule['covers']):,} | {named} | {rule['reason']} |")
    lines += ["", "| not run | why |", "|---|---|", *(f"| {script} | {why} |" for script, why in sorted(absent.items())), ""]
    return "\n".join(lines)


def inside(tree, suites, script, *arguments):
    """Runs a script of tlsfuzzer in this process, with `suites` in the place of its own."""
    sys.path[0] = tree
    sys.argv[1:] = arguments
    from tlslite.constants import CipherSuite, ExtensionType, GroupName, SignatureScheme
    from tlslite.extensions import SignatureAlgorithmsExtension, SupportedGroupsExtension
    from tlsfuzzer import expect, messages, tree as nodes
    if suites != "WRITTEN":
        ours = CipherSuite.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        CipherSuite.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA = CipherSuite.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256 = ours
        CipherSuite.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA = CipherSuite.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        CipherSuite.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA = CipherSuite.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
    if suites in ("ECDHE", "POINTS"):
        CipherSuite.TLS_RSA_WITH_AES_128_CBC_SHA = ours
        add, generate, fuzz = nodes.TreeNode.add_child, messages.ClientHelloGenerator.generate, messages.fuzz_message
        more = {ExtensionType.supported_groups: SupportedGroupsExtension().create([GroupName.secp256r1]),
                ExtensionType.signature_algorithms: SignatureAlgorithmsExtension().create(
                    [SignatureScheme.rsa_pss_rsae_sha256, SignatureScheme.rsa_pkcs1_sha256])}

        def add_child(self, child):
            after = isinstance(self, (expect.ExpectCertificate, expect.ExpectCertificateStatus))
            if after and isinstance(child, (expect.ExpectServerHelloDone, expect.ExpectCertificateRequest)):
                return add(add(self, expect.ExpectServerKeyExchange()), child)
            return add(self, child)

        def missing(hello):
            there = hello.extensions or {}
            return {kind: one for kind, one in more.items() if ours in hello.ciphers and not hello.ssl2 and kind not in there}

        def with_extensions(self, state):
            if missing(self):
                self.extensions = {**(self.extensions or {}), **missing(self)}
            return generate(self, state)

        def fuzz_message(hello, substitutions=None, xors=None):
            # A script counts some places from the end, where our extensions come.
            added = sum(len(one.write()) for one in missing(hello).values()) if hasattr(hello, "ciphers") else 0
            moved = [place and {at - added * (at < 0): byte for at, byte in place.items()} for place in (substitutions, xors)]
            return fuzz(hello, *moved)

        nodes.TreeNode.add_child, messages.ClientHelloGenerator.generate = add_child, with_extensions
        messages.fuzz_message = fuzz_message
    if suites == "POINTS":
        start = expect.ExpectServerHello.__init__

        def without_points(self, extensions=None, *words, **named):
            awaited = extensions and {kind: one for kind, one in extensions.items() if kind != ExtensionType.ec_point_formats}
            start(self, awaited, *words, **named)

        expect.ExpectServerHello.__init__ = without_points
    importlib.import_module("tlsfuzzer._apps." + script.replace("-", "_")).main()


if __name__ == "__main__":
    inside(*sys.argv[2:]) if sys.argv[1:2] == ["--inside"] else main()
