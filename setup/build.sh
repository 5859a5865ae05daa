#!/bin/sh
# Makes sure that everything the build needs is there. Quick and silent when it is.
set -eu
cd "$(dirname "$0")/.."
. setup/packages.sh

missing=
have git || missing="$missing git"
have make || missing="$missing make"
# A compiler without the C library's headers is there on some machines and builds nothing.
if ! have cc || ! echo '#include <stdlib.h>' | cc -E - >/dev/null 2>&1; then
    missing="$missing gcc libc6-dev"
fi
# shellcheck disable=SC2086 # a list of names
[ -z "$missing" ] || install_packages $missing

# 1.95.0 -> 1095
number() { echo "$1" | awk -F. '{ print $1 * 1000 + $2 }'; }
needed=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' Cargo.toml)
if have rustup; then
    remedy='rustup update stable && rustup default stable'
else
    remedy="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
fi
if ! have cargo || ! found=$(rustc --version 2>/dev/null | awk '{ print $2 }') || [ -z "$found" ]; then
    say "Rust is missing ($needed or newer is needed); this installs it, then run the command again:"
    say "  $remedy"
    exit 1
fi
if [ "$(number "$found")" -lt "$(number "$needed")" ]; then
    say "Rust $found is too old ($needed or newer is needed); this brings a newer one, then run the command again:"
    say "  $remedy"
    exit 1
fi

# Cargo takes what another clone built in the same target directory for its own, with the paths of that clone in it.
if [ -d "${CARGO_TARGET_DIR:-}" ]; then
    clone=$CARGO_TARGET_DIR/clone
    [ "$(cat "$clone" 2>/dev/null)" = "$PWD" ] || find crates vendor -name '*.rs' -exec touch {} +
    echo "$PWD" >"$clone"
fi
