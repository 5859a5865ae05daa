#!/usr/bin/env python3
"""Writes debian/copyright (DEP-5): whose work is in the packages, and under which licences.

    packaging/copyright.py DIRECTORY

DIRECTORY is the `debian/` of a source package: the notices of each crate are copied into its `crates/`, where the
stanzas of DIRECTORY/copyright refer to them. Ends with 1 and names every crate whose licence is unknown here, or whose
text is neither in its sources nor in /usr/share/common-licenses.
"""

import os
import re
import shutil
import sys
import textwrap

import crates

# Licences in the order in which one is chosen where a crate leaves the choice, each with words that are in its text.
KNOWN = {
    "MIT": "Permission is hereby granted, free of charge, to any person obtaining",
    "Apache-2.0": "Apache License",
    "ISC": "Permission to use, copy, modify, and/or distribute this software",
    "BSD-3-Clause": "Redistribution and use in source and binary forms",
    "BSD-2-Clause": "Redistribution and use in source and binary forms",
    "Zlib": "This software is provided 'as-is'",
    "BSL-1.0": "Boost Software License",
    "Unicode-3.0": "UNICODE LICENSE V3",
    "Unlicense": "This is free and unencumbered software",
    "0BSD": "Permission to use, copy, modify",
    "CC0-1.0": "CC0 1.0 Universal",
    "MIT-0": "Permission is hereby granted, free of charge",
}
# Licences of works in a crate that its own licence does not name, each with words that are in its text.
INSIDE = {
    "Unicode-DFS-2016": "to any person obtaining a copy of the Unicode data files",
}
# Texts that every Debian system has.
COMMON = {"Apache-2.0", "CC0-1.0", "MPL-2.0"}
# Font licences and scripts of the book's program.
BOOK = """\
Files: docs/*
Copyright: the Penstock maintainers
           Mathieu David, Michael-F-Bryan and contributors (styles and scripts that mdBook adds to penstock-doc)
           Ivan Sagalaev (highlight.js, added by mdBook)
           Zeno Rocha (clipboard.js, added by mdBook)
           Oliver Nightingale, Wei Song (elasticlunr.js, added by mdBook)
           Julian Kühnel (mark.js, added by mdBook)
License: MIT and MPL-2.0 and BSD-3-Clause
Comment: The pages are Penstock's own, under MIT or Apache-2.0. mdBook is under MPL-2.0, highlight.js under
 BSD-3-Clause, the other scripts under MIT. Fonts of mdBook are left out of the package.
"""


def main(directory):
    version = crates.version()
    everything = crates.linked()
    problems, used = [], {}
    stanzas = [head(version), ours()]
    for crate in everything:
        if crate.ours:
            continue
        try:
            found = texts(crate)
            chosen = choose(crate.licence, found)
            chosen.update({licence: text for licence in INSIDE if (text := text_of(licence, found))})
            for licence, text in chosen.items():
                # The shortest text is the licence alone.
                if text and len(text) < len(used.get(licence) or text + " "):
                    used[licence] = text
                used.setdefault(licence, None)
        except Missing as missing:
            problems.append(f"{crate.label}: {missing}")
            continue
        copy_notices(crate, directory)
        stanzas.append(stanza(crate, chosen, found))
    if problems:
        sys.exit("packaging/copyright.py: licences are missing:\n  " + "\n  ".join(problems))
    stanzas.append(runtime())
    stanzas.append(BOOK)
    used.setdefault("MPL-2.0", None)
    stanzas.extend(paragraph(licence, text) for licence, text in sorted(used.items()))
    with open(os.path.join(directory, "copyright"), "w", encoding="utf-8") as file:
        file.write("\n".join(stanzas))
    with open(os.path.join(directory, "NOTICE"), "w", encoding="utf-8") as file:
        file.write("\n".join(notices(crate) for crate in everything if not crate.ours and crate.notice_files()))
    count = sum(not crate.ours for crate in everything)
    print(f"copyright: {count} crates, {len(used)} licences, none missing", file=sys.stderr)


class Missing(Exception):
    pass


def choose(expression, found):
    """Licences of an SPDX expression that hold together, each with its text: of `A OR B` the first that KNOWN has and
    whose text is there."""
    if not expression:
        raise Missing("it names no licence")
    # `A/B` is how crates said it before SPDX.
    rest = re.sub(r"\s*/\s*", " OR ", expression).replace("Apache-2.0 WITH LLVM-exception", "Apache-2.0")
    chosen = {}
    for group in re.split(r"\s+AND\s+", rest):
        options = [word.strip(" ()") for word in re.split(r"\s+OR\s+", group)]
        known = [licence for licence in KNOWN if licence in options]
        if not known:
            raise Missing(f"unknown licence {group!r}: add it to KNOWN in packaging/copyright.py, and to deny.toml")
        texts_of = {licence: text_of(licence, found) for licence in known}
        option = next((licence for licence in known if texts_of[licence] or licence in COMMON), None)
        if option is None:
            raise Missing(f"no text of {' or '.join(known)} in its sources")
        chosen.setdefault(option, texts_of[option])
    return chosen


def text_of(licence, found):
    return next((text for text in found if words((KNOWN | INSIDE)[licence]) in words(text)), None)


def texts(crate):
    """Texts of its licence files, or the comment at the head of its source."""
    found = []
    for path in crate.licence_files():
        with open(path, encoding="utf-8", errors="replace") as file:
            found.append(file.read())
    source = os.path.join(crate.directory, "src", "lib.rs")
    if not found and os.path.exists(source):
        with open(source, encoding="utf-8") as file:
            comment = re.match(r"\s*/\*(.*?)\*/", file.read(), re.DOTALL)
        if comment:
            found.append(re.sub(r"^ \* ?", "", comment.group(1), flags=re.MULTILINE).strip() + "\n")
    return found


def words(text):
    return " ".join(re.findall(r"[A-Za-z0-9]+", text)).lower()


def is_notice(line):
    """Whether a line says whose work it is. It is not the wording of a licence: "Copyright [yyyy] [name of copyright owner]",
    "copyright notice"."""
    begins = re.match(r"(copyright|©)\s*(\(c\)|©|[12]\d\d\d|by\b|the\b|[A-Z])", line, re.IGNORECASE)
    wording = r"[\[{]yyyy|notice|license|owner or entity|interest|and related rights|holders? (be|or)"
    return bool(begins) and not re.search(wording, line, re.IGNORECASE) and len(line) < 200


def holders(crate, found):
    """Whose work a crate is: its notices, else its authors."""
    lines = []
    for text in found:
        for line in text.splitlines():
            line = line.strip(" *#/-;.")
            if is_notice(line):
                line = re.sub(r"^(copyright|©|\(c\)|[:,\s])+", "", line, flags=re.IGNORECASE)
                lines += [line] if line and line not in lines else []
    return lines or crate.authors or [f"the {crate.name} developers"]


def copy_notices(crate, directory):
    target = os.path.join(directory, "crates", crate.label)
    os.makedirs(target, exist_ok=True)
    for path in crate.licence_files():
        shutil.copyfile(path, os.path.join(target, os.path.relpath(path, crate.directory).replace(os.sep, "-")))
    with open(os.path.join(target, "LICENSE.spdx"), "w", encoding="utf-8") as file:
        file.write(f"{crate.licence}\n")


def notices(crate):
    """What the Apache License asks to be passed on with the program (section 4 d)."""
    texts = [f"The crate {crate.name} {crate.version}:\n"]
    for path in crate.notice_files():
        with open(path, encoding="utf-8", errors="replace") as file:
            texts.append(file.read().strip() + "\n")
    return "\n".join(texts)


def stanza(crate, chosen, found):
    patched = os.path.relpath(crate.directory, crates.root()) if crate.source is None else None
    files = [f"debian/crates/{crate.label}/*"] + ([f"{patched}/*"] if patched else [])
    lines = holders(crate, found)
    text = [f"Files: {' '.join(files)}", f"Copyright: {lines[0]}"]
    text += [f"           {line}" for line in lines[1:]]
    text.append(f"License: {' and '.join(chosen)}")
    text.append(f"Comment: The crate {crate.name} {crate.version} is under {crate.licence}.")
    if patched:
        text.append(f" It has small changes, which {patched}/README.md tells.")
    return "\n".join(text) + "\n"


def head(version):
    return (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        "Upstream-Name: Penstock\n"
        f"Comment: The programs of version {version} are linked with the crates below, at the versions of Cargo.lock.\n"
        " Their sources are not in this package; debian/crates has their notices. packaging/copyright.py wrote this file.\n"
    )


def ours():
    return "Files: *\nCopyright: the Penstock maintainers\nLicense: MIT or Apache-2.0\n"


def runtime():
    return (
        "Files: debian/rules\n"
        "Copyright: the Rust Project contributors\n"
        "           the Penstock maintainers\n"
        "License: MIT or Apache-2.0\n"
        "Comment: The programs are also linked with the standard library of Rust, which is under MIT or Apache-2.0.\n"
    )


def paragraph(licence, text):
    body = [f"License: {licence}"]
    if licence in COMMON:
        body += [f" On Debian systems the text is in /usr/share/common-licenses/{licence}."]
    else:
        lines = [line.rstrip() for line in without_holders(text)]
        body += [f" {line}" if line else " ." for line in lines]
    return "\n".join(body) + "\n"


def without_holders(text):
    """The licence itself: the notices of each crate are in its own stanza."""
    lines = [line for line in text.strip().splitlines() if not is_notice(line.strip())]
    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(line, 100) or [""]
    while wrapped and not wrapped[0]:
        wrapped.pop(0)
    # A blank line stands for as many.
    return [line for at, line in enumerate(wrapped) if line or wrapped[at - 1]]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
