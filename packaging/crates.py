"""The crates that are compiled into the released programs, from `cargo metadata --locked`.

Those of tests and of build scripts are left out: nothing of them is in a package. Needs no network once `cargo fetch
--locked` has run.
"""

import json
import os
import re
import subprocess

PROGRAMS = ("penstock", "pam")
TARGET = "x86_64-unknown-linux-gnu"
NOTICE_FILE = re.compile(r"notices?(\.(txt|md))?$", re.IGNORECASE)
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|unlicense|notice)", re.IGNORECASE)


def root():
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Crate:
    def __init__(self, package):
        self.name = package["name"]
        self.version = package["version"]
        self.licence = package["license"]
        self.authors = [author.split(" <")[0] for author in package["authors"]]
        self.repository = package["repository"]
        self.checksum = None
        self.source = package["source"]
        self.directory = os.path.dirname(package["manifest_path"])
        self.dependencies = []

    @property
    def label(self):
        return f"{self.name}-{self.version}"

    def licence_files(self):
        """Its own first, then those of works of others in it, such as libraries in C."""
        found = []
        for directory, below, names in os.walk(self.directory):
            below.sort()
            found += [os.path.join(directory, name) for name in sorted(names) if LICENCE_FILE.match(name)]
        return found

    def notice_files(self):
        return [path for path in self.licence_files() if NOTICE_FILE.match(os.path.basename(path))]


def linked():
    """All crates of the programs in the order of their names; `ours` says which are of this workspace."""
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version=1", f"--filter-platform={TARGET}"]
    metadata = json.loads(subprocess.check_output(command, cwd=root()))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    members = set(metadata["workspace_members"])
    waiting = [member for member in members if packages[member]["name"] in PROGRAMS]
    crates = {}
    while waiting:
        identity = waiting.pop()
        if identity in crates:
            continue
        crate = crates[identity] = Crate(packages[identity])
        crate.ours = identity in members
        for dependency in nodes[identity]["deps"]:
            # The kind of a dependency that is neither of tests nor of build scripts is null.
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                crate.dependencies.append(dependency["pkg"])
                waiting.append(dependency["pkg"])
    for crate in crates.values():
        crate.dependencies = sorted(crates[identity].label for identity in crate.dependencies)
    checksums = locked()
    for crate in crates.values():
        crate.checksum = checksums.get((crate.name, crate.version))
    return sorted(crates.values(), key=lambda crate: (crate.name, crate.version))


def locked():
    """Checksums of Cargo.lock, by name and version."""
    with open(os.path.join(root(), "Cargo.lock"), encoding="utf-8") as file:
        blocks = file.read().split("[[package]]")[1:]
    found = {}
    for block in blocks:
        fields = dict(re.findall(r'^(name|version|checksum) = "(.*)"$', block, re.MULTILINE))
        if "checksum" in fields:
            found[fields["name"], fields["version"]] = fields["checksum"]
    return found


def version():
    """Version of the workspace: the only place that has it is Cargo.toml."""
    with open(os.path.join(root(), "Cargo.toml"), encoding="utf-8") as file:
        section = file.read().split("[workspace.package]")[1]
    return re.search(r'^version = "(.*)"$', section, re.MULTILINE).group(1)
