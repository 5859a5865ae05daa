#!/usr/bin/env python3
"""Writes a list of all that the programs are made of (SBOM, CycloneDX 1.5, JSON) on standard output.

    packaging/sbom.py >penstock.cdx.json

The same sources give the same bytes: the time is that of the last commit (SOURCE_DATE_EPOCH), the serial number a hash
of Cargo.lock.
"""

import datetime
import hashlib
import json
import os
import sys
import uuid

import crates


def main():
    everything = crates.linked()
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial()}",
        "version": 1,
        "metadata": {
            "timestamp": when(),
            "component": {"type": "application", "name": "penstock", "version": crates.version(), "bom-ref": "penstock"},
        },
        "components": [component(crate) for crate in everything],
        "dependencies": [{"ref": crate.label, "dependsOn": crate.dependencies} for crate in everything]
        + [{"ref": "penstock", "dependsOn": [crate.label for crate in everything if crate.name in crates.PROGRAMS]}],
    }
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    print()


def component(crate):
    found = {
        "type": "library",
        "name": crate.name,
        "version": crate.version,
        "bom-ref": crate.label,
        "licenses": [{"expression": crate.licence.replace(" / ", "/").replace("/", " OR ")}],
    }
    if crate.source is not None:
        found["purl"] = f"pkg:cargo/{crate.name}@{crate.version}"
    elif not crate.ours:
        found["description"] = f"with small changes: {os.path.relpath(crate.directory, crates.root())}/README.md"
    if crate.checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": crate.checksum}]
    if crate.repository:
        found["externalReferences"] = [{"type": "vcs", "url": crate.repository}]
    return found


def serial():
    with open(os.path.join(crates.root(), "Cargo.lock"), "rb") as file:
        return uuid.UUID(bytes=hashlib.sha256(file.read()).digest()[:16], version=4)


def when():
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    main()
