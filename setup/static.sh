#!/bin/sh
# Builds penstock without shared libraries, for any Linux of this processor, into $OUT: an archive with the program, man pages
# and completions, and an image for containers. Needs no network once `cargo fetch --locked` has run.
#
# OUT              where they go (target/static)
# PENSTOCK_STATIC  a program that is linked statically already: it is not built, only packed
set -eu
cd "$(dirname "$0")/.."
. setup/packages.sh

cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
target=${CARGO_TARGET_DIR:-$cache/target}
out=${OUT:-$target/static}
machine=$(uname -m)
triple=$machine-unknown-linux-musl
version=$(python3 -c 'import sys; sys.path.insert(0, "packaging"); import crates; print(crates.version())')
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH PYTHONDONTWRITEBYTECODE=1

program=${PENSTOCK_STATIC:-$out/build/$triple/dist/penstock}
[ -z "${PENSTOCK_STATIC:-}" ] || [ -f "$program" ] || die "PENSTOCK_STATIC names $program, which is no file"
if [ -z "${PENSTOCK_STATIC:-}" ]; then
    have musl-gcc || install_packages musl-tools
    [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || rustup target add "$triple" ||
        die "Rust lacks its library for $triple: rustup target add $triple"
    # No path of this machine is to be in the program.
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    prefixes="$PWD=/penstock $out/build=/target $cargo_home=/cargo"
    RUSTFLAGS=
    CFLAGS=
    for prefix in $prefixes; do
        RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$prefix"
        CFLAGS="$CFLAGS -ffile-prefix-map=$prefix"
    done
    # aws-lc and mimalloc are written in C.
    export RUSTFLAGS CFLAGS CC_"$machine"_unknown_linux_musl=musl-gcc CARGO_TARGET_DIR="$out/build"
    cargo build --locked --profile dist --target "$triple" --package penstock
fi

name=penstock-$version-linux-$machine
mkdir -p "$out"
rm -rf "${out:?}/$name"* "$out/penstock-$version-image-$machine.tar"
mkdir "$out/$name" "$out/$name/completions"
strip -o "$out/$name/penstock" "$program"
cp LICENSE-APACHE LICENSE-MIT "$out/$name"
# The other works in the program, and their licences.
rm -rf "$out/notices"
mkdir "$out/notices"
packaging/copyright.py "$out/notices"
cp "$out/notices/copyright" "$out/notices/NOTICE" "$out/$name"
"$out/$name/penstock" man --directory "$out/$name/man"
for shell in bash zsh fish; do
    "$out/$name/penstock" completions "$shell" >"$out/$name/completions/penstock.$shell"
done
packaging/image.py "$out/$name/penstock" "$out/penstock-$version-image-$machine.tar" /etc/ssl/certs/ca-certificates.crt "$out/notices"
tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=u-w \
    --directory "$out" "$name" | gzip --no-name --best >"$out/$name.tar.gz"
rm -rf "${out:?}/$name" "$out/notices"
ls -l "$out"/*.tar "$out"/*.tar.gz >&2
