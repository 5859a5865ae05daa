#!/usr/bin/env python3
"""Draws doc comments, messages and names at random, to be read without the code beside them.

    setup/sample.py [SEED] [--names N] [--messages N] [--comments N]

What is drawn depends on the file and on the place among the items of that file, not on the words: after an item was
reworded, the same seed draws it again."""

import argparse
import hashlib
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
NAME = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?(?:async )?(?:const )?(struct|enum|trait|fn) (\w+)", re.MULTILINE)


def sources():
    """Each Rust file outside tests, without its unit tests."""
    for path in sorted(ROOT.glob("crates/*/src/**/*.rs")):
        if "tests" in path.name or "tests" in path.parts:
            continue
        yield path.relative_to(ROOT), path.read_text().split("#[cfg(test)]\nmod ")[0]


def comments(text):
    """Doc comments, each as one line."""
    block = []
    for line in text.split("\n") + [""]:
        stripped = line.strip()
        if stripped.startswith(("///", "//!")):
            block.append(stripped[3:].strip())
        elif block:
            yield " ".join(block)
            block = []


def messages(text):
    """Texts that may be shown: strings with at least three words."""
    code = "\n".join(line for line in text.split("\n") if not line.strip().startswith("//"))
    # The quote of a character literal begins no string.
    code = re.sub(r"b?'\\?\"'", "' '", code)
    for match in STRING.finditer(code):
        shown = re.sub(r"\\\n\s*", "", match.group(1))
        letters = sum(character.isalpha() or character == " " for character in shown)
        if len(re.findall(r"[A-Za-z]{2,}", shown)) >= 3 and letters > 0.75 * len(shown):
            yield shown


def names(text):
    """Types and functions, except those of the standard library's traits."""
    for kind, name in NAME.findall(text):
        if name not in ("fmt", "drop", "from", "from_str", "default", "deref", "next"):
            yield f"{kind} {name}"


def main():
    """Prints the sample."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("seed", nargs="?", type=int, default=14)
    for what, count in (("names", 20), ("messages", 40), ("comments", 40)):
        parser.add_argument(f"--{what}", type=int, default=count)
    arguments = parser.parse_args()
    for what, found in (("names", names), ("messages", messages), ("comments", comments)):
        every = {
            hashlib.sha256(f"{arguments.seed} {what} {path} {place}".encode()).hexdigest(): (item, path)
            for path, text in sources()
            for place, item in enumerate(found(text))
        }
        drawn = [every[key] for key in sorted(every)[: getattr(arguments, what)]]
        print(f"# {what}: {len(drawn)} of {len(every)}")
        for item, path in drawn:
            print(f"{path}: {item}")


if __name__ == "__main__":
    main()
