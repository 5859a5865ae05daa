#!/usr/bin/env python3
"""Writes debian/changelog from CHANGELOG.md.

    packaging/changelog.py DATE >debian/changelog

A heading `## 1.2.0 (2027-01-31)` is a release; `## Unreleased` becomes the version of Cargo.toml with DATE, in the form
of RFC 5322. Links to the documentation are left out: their pages are in penstock-doc.
"""

import datetime
import email.utils
import os
import re
import sys
import textwrap

import crates

MAINTAINER = "Penstock maintainers <maintainers@penstock.example>"


def main(date):
    with open(os.path.join(crates.root(), "CHANGELOG.md"), encoding="utf-8") as file:
        releases = re.split(r"^## ", file.read(), flags=re.MULTILINE)[1:]
    for number, release in enumerate(releases):
        if number > 0:
            print()
        heading, _, text = release.partition("\n")
        version, day = named(heading.strip(), date)
        print(f"penstock ({version}-1) unstable; urgency=medium\n")
        for section, items in sections(text):
            if section:
                print(f"  [ {section} ]")
            for item in items:
                print(textwrap.fill(plain(item), 78, initial_indent="  * ", subsequent_indent="    ",
                                    break_long_words=False, break_on_hyphens=False))
        print(f"\n -- {MAINTAINER}  {day}")


def named(heading, date):
    if heading == "Unreleased":
        return crates.version(), date
    found = re.fullmatch(r"\[?(\d+\.\d+\.\d+)\]? *\(?(\d{4}-\d\d-\d\d)\)?", heading)
    if not found:
        sys.exit(f"packaging/changelog.py: CHANGELOG.md has the heading {heading!r}: write `## 1.2.0 (2027-01-31)`")
    day = datetime.datetime.fromisoformat(found.group(2)).replace(tzinfo=datetime.timezone.utc)
    return found.group(1), email.utils.format_datetime(day)


def sections(text):
    """Sections of a release with their items."""
    for part in re.split(r"^### ", text, flags=re.MULTILINE):
        title, _, rest = part.partition("\n")
        items = re.split(r"^- ", rest if part is not text else part, flags=re.MULTILINE)[1:]
        if items:
            yield title.strip(), items


def plain(item):
    item = re.sub(r"\[(?:docs|examples)/[^\]]*\]\([^)]*\)", "", item)
    item = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", item)
    return re.sub(r"\s+", " ", item.replace("`", "")).strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
