#!/bin/sh
# Checks what cargo does not see: the shell scripts, the service file and the book. A checker that this machine lacks is named.
set -eu
cd "$(dirname "$0")/.."
. setup/packages.sh

for script in setup/*.sh bench/*.sh packaging/*.sh fuzz/*.sh .ci/run packaging/debian/*.p* packaging/debian/tests/smoke; do
    [ -e "$script" ] || continue
    case $(head -n 1 "$script") in
        *bash*) bash -n "$script" ;;
        *) sh -n "$script" ;;
    esac
done
if have shellcheck; then
    shellcheck --external-sources setup/*.sh packaging/*.sh fuzz/*.sh .ci/run packaging/debian/*.p* packaging/debian/tests/smoke
else
    say "not checked: the scripts with shellcheck, which is not installed"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Links and anchors are checked by crates/penstock/tests/tree/documents.rs.
mdbook=${XDG_CACHE_HOME:-$HOME/.cache}/penstock/venv-mdbook/bin/mdbook
if [ -x "$mdbook" ]; then
    "$mdbook" build docs --dest-dir "$scratch/book" 2>"$scratch/mdbook" || die "docs/ is no book: $(cat "$scratch/mdbook")"
    ! grep -E 'WARN|ERROR' "$scratch/mdbook" >&2 || die "docs/ has faults as a book"
else
    say "not checked: docs/ as a book, for want of mdbook, which \`make setup\` installs"
fi

if have systemd-analyze; then
    # The unit names a binary and a user that need not exist on the machine that checks it.
    sed -e 's|/usr/bin/penstock|/bin/true|' -e '/^\(User\|Group\)=/d' packaging/penstock.service >"$scratch/penstock.service"
    systemd-analyze verify --man=no --recursive-errors=no "$scratch/penstock.service" || die "packaging/penstock.service has faults"
else
    say "not checked: packaging/penstock.service, for want of systemd-analyze"
fi
