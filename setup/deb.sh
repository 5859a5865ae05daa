#!/bin/sh
# Builds the Debian packages from the files of this tree into $OUT. Needs no network once `cargo fetch --locked` has run.
#
# OUT             where the packages go (target/deb)
# PENSTOCK_BUILT  a directory that has penstock and libpam_penstock.so already: nothing is compiled, for tests
set -eu
# The packages do not depend on the mask of the user who builds them.
umask 022
cd "$(dirname "$0")/.."
. setup/packages.sh

missing=
need() { have "$1" || missing="$missing $2"; }
need dpkg-buildpackage dpkg-dev
need dh debhelper
need fakeroot fakeroot
need python3 python3
# shellcheck disable=SC2086 # a list of names
[ -z "$missing" ] || install_packages $missing

cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
target=${CARGO_TARGET_DIR:-$cache/target}
out=${OUT:-$target/deb}
MDBOOK=${MDBOOK:-$cache/venv-mdbook/bin/mdbook}
[ -x "$MDBOOK" ] || die "mdbook is missing: \`make setup\` installs it"
export MDBOOK

version=$(python3 -c 'import sys; sys.path.insert(0, "packaging"); import crates; print(crates.version())')
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH PYTHONDONTWRITEBYTECODE=1

tree=$out/penstock-$version
rm -rf "$out"/penstock* "$out"/libpam-penstock*
mkdir -p "$tree"
# What git knows, as it is here: times of files stay, so that cargo builds only what has changed.
git ls-files -z | tar --create --mode=u=rwX,go=rX --null --files-from=- | tar --extract --directory "$tree"
tar --create --xz --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --file "$out/penstock_$version.orig.tar.xz" --directory "$out" "penstock-$version"

cp -R "$tree/packaging/debian" "$tree/debian"
python3 packaging/changelog.py "$(LC_ALL=C date --utc --date="@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S %z')" >"$tree/debian/changelog"
python3 packaging/copyright.py "$tree/debian"

cd "$tree"
# --no-check-builddeps: Rust comes from rustup and mdbook from `make setup`; what is missing was named above.
if [ -n "${PENSTOCK_BUILT:-}" ]; then
    # Packages for tests are made in seconds.
    export DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1
else
    export CARGO_TARGET_DIR="$out/build"
fi
dpkg-buildpackage --build=full --unsigned-source --unsigned-changes --no-check-builddeps --no-pre-clean
ls -l "$out"/*.deb >&2
