#!/usr/bin/env python3
"""Makes an image for containers of a static program, without an engine and without another image below it.

    packaging/image.py PROGRAM IMAGE.tar [ROOTS [NOTICES]]

PROGRAM   penstock, linked statically (setup/static.sh makes one)
IMAGE     what `docker load` reads: an OCI layout (image-spec 1.1), with the index that Docker before version 25 needs
ROOTS     certificates of public authorities, for ACME and for backends that speak TLS
NOTICES   a directory in which packaging/copyright.py has written whose work is in the program, under which licences

The same files give the same bytes: all times are SOURCE_DATE_EPOCH, in seconds since 1970 (0 if it is not set).
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import struct
import sys
import tarfile

import crates

# Everywhere the user of images without a system ("nonroot").
USER = 65532
ROOTS = "/etc/ssl/certs/ca-certificates.crt"
CONFIG = "/etc/penstock/penstock.toml"
SOCKET = "/run/penstock/control.sock"
# e_machine of an ELF header, and the name in an image.
MACHINES = {0x3E: "amd64", 0xB7: "arm64"}
PROGRAM_HEADER_INTERPRETER = 3


def main():
    if len(sys.argv) not in (3, 4, 5):
        sys.exit(__doc__.strip())
    program, image = sys.argv[1:3]
    roots = sys.argv[3] if len(sys.argv) > 3 else ROOTS
    notices = {}
    if len(sys.argv) > 4:
        notices = {name: os.path.join(sys.argv[4], name) for name in ("NOTICE", "copyright")}
    try:
        content = read(program)
        architecture = static_architecture(program, content)
        notices = {name: read(path) for name, path in notices.items()}
        layer = tree_of(content, read(os.path.join(crates.root(), "packaging/container.toml")), read(roots), notices)
        write(image, layer, architecture)
    except OSError as error:
        sys.exit(f"image.py: cannot use {error.filename}: {error.strerror}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def static_architecture(path, content):
    """The architecture of an ELF program; ends with an error if it needs shared libraries, which the image has not."""
    if content[:5] != b"\x7fELF\x02" or len(content) < 64:
        sys.exit(f"image.py: {path} is no program of Linux for 64 bits")
    machine, = struct.unpack_from("<H", content, 18)
    if machine not in MACHINES:
        sys.exit(f"image.py: {path} is for a processor that is not known here (e_machine {machine:#x})")
    headers, = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    if headers + size * count > len(content):
        sys.exit(f"image.py: {path} is cut short: copy it, or build it, again")
    for number in range(count):
        kind, = struct.unpack_from("<I", content, headers + number * size)
        if kind == PROGRAM_HEADER_INTERPRETER:
            sys.exit(f"image.py: {path} needs shared libraries, and an image has none: setup/static.sh builds one that needs none")
    return MACHINES[machine]


def when():
    told = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not told.isdecimal():
        sys.exit(f"image.py: SOURCE_DATE_EPOCH is {told!r}, not a number of seconds since 1970: unset it, or give one")
    seconds = int(told)
    return seconds, datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Archive:
    """A tar file of which the same entries give the same bytes."""

    def __init__(self):
        self.bytes = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.bytes, mode="w", format=tarfile.USTAR_FORMAT)

    def add(self, name, mode, content=None, owner=0):
        entry = tarfile.TarInfo(name)
        entry.mode, entry.uid, entry.gid, entry.mtime = mode, owner, owner, when()[0]
        if content is None:
            entry.type = tarfile.DIRTYPE
        else:
            entry.size = len(content)
        self.tar.addfile(entry, io.BytesIO(content or b""))

    def close(self):
        self.tar.close()
        return self.bytes.getvalue()


def tree_of(program, config, roots, notices):
    """The files of the image."""
    archive = Archive()
    for directory in ("etc", "etc/penstock", "etc/ssl", "etc/ssl/certs", "run", "usr", "usr/bin"):
        archive.add(directory, 0o755)
    # No /var/lib/penstock: a directory for state that ends with the container would promise too much.
    # /run is a file system of its own with --read-only: then --tmpfs /run/penstock:uid=65532 is asked for.
    archive.add("run/penstock", 0o755, owner=USER)
    archive.add("tmp", 0o1777)
    archive.add("etc/passwd", 0o644, f"root:x:0:0::/:\npenstock:x:{USER}:{USER}::/:\n".encode())
    archive.add("etc/group", 0o644, f"root:x:0:\npenstock:x:{USER}:\n".encode())
    archive.add(ROOTS.lstrip("/"), 0o644, roots)
    archive.add(CONFIG.lstrip("/"), 0o644, config)
    archive.add("usr/bin/penstock", 0o755, program)
    for directory in ("usr/share", "usr/share/doc", "usr/share/doc/penstock") if notices else ():
        archive.add(directory, 0o755)
    for name, text in notices.items():
        archive.add(f"usr/share/doc/penstock/{name}", 0o644, text)
    return archive.close()


def write(path, layer, architecture):
    version, created = crates.version(), when()[1]
    packed = gzip.compress(layer, 9, mtime=0)
    config = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin", f"PENSTOCK_CONTROL_SOCKET={SOCKET}"],
            "Entrypoint": ["/usr/bin/penstock"],
            "Cmd": ["serve", CONFIG],
            "ExposedPorts": {"8080/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "penstock",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.created": created,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
            # Not of OCI, but of Docker and Podman; in nanoseconds.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/penstock", "ctl", "health"],
                "Interval": 10_000_000_000,
                "Timeout": 5_000_000_000,
                "StartPeriod": 10_000_000_000,
                "Retries": 3,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        "history": [{"created": created, "created_by": "packaging/image.py"}],
    }
    archive = Archive()
    archive.add("blobs", 0o755)
    archive.add("blobs/sha256", 0o755)
    blobs = {}

    def blob(kind, content):
        blobs[digest(content)] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(content), "size": len(content)}

    config = blob("config.v1+json", as_json(config))
    layers = [blob("layer.v1.tar+gzip", packed)]
    manifest = blob("manifest.v1+json", as_json({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": layers,
    }))
    manifest["platform"] = {"architecture": architecture, "os": "linux"}
    manifest["annotations"] = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"docker.io/library/penstock:{version}"}
    for name, content in sorted(blobs.items()):
        archive.add(f"blobs/{name.replace(':', '/')}", 0o644, content)
    archive.add("oci-layout", 0o644, as_json({"imageLayoutVersion": "1.0.0"}))
    archive.add("index.json", 0o644, as_json({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    }))
    place = lambda found: f"blobs/{found['digest'].replace(':', '/')}"
    archive.add("manifest.json", 0o644, as_json([
        {"Config": place(config), "RepoTags": [f"penstock:{version}"], "Layers": [place(layer) for layer in layers]},
    ]))
    with open(path, "wb") as file:
        file.write(archive.close())


def digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def as_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


main()
