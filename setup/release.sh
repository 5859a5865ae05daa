#!/bin/sh
# Adds to a directory of packages what a release has beside them: the list of parts (SBOM), the notes, checksums, a signature.
#
#   setup/release.sh DIRECTORY
#
# SIGNING_KEY   a private key of ssh-keygen, with which SHA256SUMS is signed; without it there is no signature, and that is said
set -eu
cd "$(dirname "$0")/.."
. setup/packages.sh

[ -d "${1:-}" ] || die "name the directory of the packages: setup/release.sh ~/.cache/penstock/target/deb"
directory=$(cd "$1" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH PYTHONDONTWRITEBYTECODE=1
version=$(python3 -c 'import sys; sys.path.insert(0, "packaging"); import crates; print(crates.version())')

packaging/sbom.py >"$directory/penstock-$version.cdx.json"
# The newest section of the changelog, without its heading.
awk '/^## / { sections++; next } sections == 1' CHANGELOG.md >"$directory/RELEASE-NOTES.md"

cd "$directory"
rm -f SHA256SUMS SHA256SUMS.sig
find . -maxdepth 1 -type f -not -name 'SHA256SUMS*' | sed 's|^\./||' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
if [ -n "${SIGNING_KEY:-}" ]; then
    ssh-keygen -q -Y sign -f "$SIGNING_KEY" -n file SHA256SUMS
    say "signed SHA256SUMS; to verify: ssh-keygen -Y verify -f ALLOWED_SIGNERS -I NAME -n file -s SHA256SUMS.sig <SHA256SUMS"
else
    say "SHA256SUMS is not signed: SIGNING_KEY names no key"
fi
