#!/bin/bash
# Installs, serves, changes, upgrades under load, downgrades, removes, purges and reinstalls the Debian packages, in a Debian 12
# of its own that systemd boots in a container. Needs root; the network only for the first run, which makes that Debian.
#
#   packaging/test.sh [DIRECTORY]     DIRECTORY has penstock and libpam_penstock.so (target/release)
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/packages.sh

cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
built=$(realpath "${1:-${CARGO_TARGET_DIR:-$cache/target}/release}")
if [ "$(id -u)" != 0 ]; then
    [ -n "${PENSTOCK_TEST_WITHOUT_ROOT:-}" ] || die "packaging/test.sh needs root; PENSTOCK_TEST_WITHOUT_ROOT=1 leaves it out"
    say "not tested: the Debian packages, which need root"
    exit 0
fi
# Mounts are seen by this script and its children only, and end with them.
[ -n "${IN_NAMESPACE:-}" ] || IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"

root=$cache/debian-12
if [ ! -e "$root/.complete" ]; then
    say "making a Debian 12 in $root"
    rm -rf "$root"
    # shellcheck disable=SC2016 # apt-get replaces it
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | head -n 1)
    mmdebstrap --quiet --variant=minbase --include=systemd-sysv,nginx-light,curl,procps,libpam-runtime \
        bookworm "$root" ${mirror:+"$mirror"}
    touch "$root/.complete"
fi

scratch=$(mktemp -d)
machine=$scratch/penstock
container=
leader=
ended() {
    # Process 1 of the container outlives the program that made it.
    [ -z "$container" ] || kill -KILL ${leader:+"$leader"} "$container" 2>/dev/null || true
    wait
    umount --lazy "$machine" 2>/dev/null || true
    rm -rf "$scratch"
}
trap ended EXIT

step() { printf '%4d s  %s\n' "$SECONDS" "$*" >&2; }
fail() {
    printf 'packaging/test.sh: %s\n' "$*" >&2
    [ ! -e "$scratch/said" ] || sed 's/^/    /' "$scratch/said" >&2
    [ -z "$leader" ] || inside journalctl --no-pager --lines 20 --unit penstock >&2 || true
    exit 1
}
inside() { nsenter --target "$leader" --all -- "$@"; }
# What a command said is in $scratch/said.
run() { inside "$@" >"$scratch/said" 2>&1; }
ok() { run "$@" || fail "failed: $*"; }
refused() { ! run "$@" || fail "did not fail: $*"; }
said() { grep -q -- "$1" "$scratch/said" || fail "was not said: $1"; }
not_said() { ! grep -q -- "$1" "$scratch/said" || fail "was said: $1"; }
# Tries until a command succeeds, for at most a minute: a busy machine boots slowly.
eventually() {
    local until=$((SECONDS + 60))
    until run "$@"; do [ $SECONDS -lt $until ] || fail "still fails: $*"; done
}
serves() { eventually curl --silent --fail --location --max-time 5 "$1"; }
pid() { inside systemctl show --property MainPID --value penstock; }
config() { cat >"$machine/etc/penstock/penstock.toml"; }
install() { ok env DEBIAN_FRONTEND=noninteractive dpkg --force-confold --install "$@"; }
purge() { ok dpkg --purge penstock penstock-doc penstock-mpssh libpam-penstock; }
# All files but those that dpkg, the journal and programs at work make.
files() {
    inside find / -xdev -not -path '/proc/*' -not -path '/sys/*' -not -path '/dev/*' -not -path '/tmp/*' \
        -not -path '/var/lib/dpkg/*' -not -path '/var/log/*' -not -path '/var/cache/*' -not -path '/deb/*' \
        -not -path '/run/systemd/*' -not -path '/run/log/*' -not -path '/var/lib/nginx/*' -not -path '/var/lib/systemd/*' \
        -not -path '/run/dmeventd*' -not -path '/run/initctl' -not -name '*-' | sort
}

step "packages"
OUT=$scratch/deb PENSTOCK_BUILT=$built setup/deb.sh >"$scratch/said" 2>&1 || fail "setup/deb.sh failed"
(umask 077 && OUT=$scratch/again TZ=Pacific/Auckland PENSTOCK_BUILT=$built setup/deb.sh) >"$scratch/said" 2>&1 || fail "setup/deb.sh failed"
for file in "$scratch"/deb/*.deb "$scratch"/deb/*.dsc "$scratch"/deb/*.tar.xz; do
    cmp "$file" "$scratch/again/${file##*/}" >"$scratch/said" 2>&1 || fail "the user's mask and time zone change a package"
done
rm -rf "$scratch/again"
version=$(dpkg-deb --field "$scratch"/deb/penstock_*.deb Version)
# What is overridden is explained in debian/*.lintian-overrides and debian/source/lintian-overrides. The binary for tests has no lines for a debugger. Rust puts strings
# beside each other without an end, which lintian reads as misspelt words; which overrides are needed differs between builds.
mapfile -t debs < <(find "$scratch/deb" -name '*.deb' -not -name '*-dbgsym_*' -o -name '*.dsc')
lintian --pedantic -EIL +pedantic --suppress-tags spelling-error-in-binary,unused-override --allow-root --fail-on error,warning,info,pedantic,experimental "${debs[@]}" >"$scratch/said" 2>&1 ||
    fail "lintian finds faults"
ssh-keygen -q -t ed25519 -N '' -f "$scratch/key"
SIGNING_KEY=$scratch/key setup/release.sh "$scratch/deb" >"$scratch/said" 2>&1 || fail "setup/release.sh failed"
echo "us $(cat "$scratch/key.pub")" >"$scratch/signers"
verified() { ssh-keygen -Y verify -f "$scratch/signers" -I us -n file -s "$scratch/deb/SHA256SUMS.sig" <"$1" >"$scratch/said" 2>&1; }
verified "$scratch/deb/SHA256SUMS" || fail "the signature is not ours"
(cd "$scratch/deb" && sha256sum --quiet --check SHA256SUMS) >"$scratch/said" 2>&1 || fail "checksums do not fit"
sed 's/[0-9a-f]/0/' "$scratch/deb/SHA256SUMS" >"$scratch/forged"
! verified "$scratch/forged" || fail "changed checksums are taken for signed ones"
# as_version VERSION [PROGRAM]: the same package as another version, with a change of its configuration, or with another program.
as_version() {
    dpkg-deb --raw-extract "$scratch/deb/penstock_${version}_amd64.deb" "$scratch/other"
    sed -i "s/^Version: .*/Version: $1/" "$scratch/other/DEBIAN/control"
    [ -z "${2:-}" ] || cp "$2" "$scratch/other/usr/bin/penstock"
    echo "# Of version $1." >>"$scratch/other/etc/penstock/penstock.toml"
    dpkg-deb -Znone --build "$scratch/other" "$scratch/deb/penstock_$1.deb" >/dev/null
    rm -rf "$scratch/other"
}
as_version 0.0.1-1
as_version 99.0-1
# The header of a program for another processor: e_machine is that of RISC-V.
head -c 18 "$built/penstock" >"$scratch/foreign"
printf '\363\000' >>"$scratch/foreign"
head -c 100000 "$built/penstock" | tail -c +21 >>"$scratch/foreign"
as_version 99.1-1 "$scratch/foreign"

step "boot"
mkdir "$scratch/upper" "$scratch/work" "$machine"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" "$machine"
mkdir "$machine/deb"
cp "$scratch"/deb/*.deb "$machine/deb/"
# The container may restrict itself as a whole machine may: the sandbox of the service is tested, too.
systemd-nspawn --quiet --directory="$machine" --boot --register=no --keep-unit --private-network --link-journal=no \
    --resolv-conf=off --timezone=off --console=pipe \
    --system-call-filter="seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self" </dev/null >"$scratch/console" 2>&1 &
container=$!
for _ in $(seq 600); do
    leader=$(pgrep --parent "$container" systemd | head -n 1) && [ "$(cat "/proc/$leader/comm")" = systemd ] && break
    sleep 0.1
done
eventually systemctl is-system-running
mkdir -p "$machine/srv/www"
head -c 8000000 /dev/urandom >"$machine/srv/www/big"
echo "from nginx" >"$machine/srv/www/index.html"
# nginx has port 80 as after its installation, and is the backend on another one.
cat >"$machine/etc/nginx/conf.d/app.conf" <<'EOF'
server { listen 127.0.0.1:8000; root /srv/www; }
EOF
ok systemctl restart nginx
files >"$scratch/before"

step "install: the service runs, on loopback only, beside nginx on port 80"
packages() { echo "/deb/penstock_$version"_amd64.deb "/deb/penstock-doc_$version"_all.deb "/deb/penstock-mpssh_$version"_all.deb "/deb/libpam-penstock_$version"_amd64.deb; }
# shellcheck disable=SC2046 # a list of files
install $(packages)
not_said fault
ok systemctl is-active penstock
ok systemctl is-enabled penstock
serves http://127.0.0.1:8080/
ok penstock doctor
said 'ok .*served by process'
inside sh -c 'cat /proc/net/tcp' >"$scratch/said"
# 8080 and 9900: 127.0.0.1 only.
not_said '00000000:1F90'
not_said '00000000:26AC'
run journalctl --no-pager --unit penstock
not_said 'NOT restricted'
[ "$(inside readlink --canonicalize /usr/bin/mpssh)" = /usr/bin/penstock ] || fail "mpssh is no link to penstock"
for file in usr/share/man/man1/penstock-doctor.1.gz usr/share/man/man1/mpssh.1.gz usr/share/doc/penstock/html/index.html \
    usr/share/doc-base/penstock-doc.penstock usr/share/bash-completion/completions/penstock usr/share/zsh/vendor-completions/_penstock \
    usr/share/fish/vendor_completions.d/penstock.fish usr/share/doc/penstock/copyright usr/share/doc/penstock/NOTICE usr/share/doc/penstock/examples/nas/README.md \
    usr/share/pam-configs/penstock; do
    [ -e "$machine/$file" ] || [ -L "$machine/$file" ] || fail "$file is not there"
done
ok test -e /usr/lib/x86_64-linux-gnu/security/pam_penstock.so
# Works inside crates: a library in C, and data.
ok grep -q 'Microsoft Corporation, Daan Leijen' /usr/share/doc/penstock/copyright
ok grep -q '^License: Unicode-DFS-2016' /usr/share/doc/penstock/copyright
! grep -q penstock "$machine/etc/pam.d/common-auth" || fail "the PAM module is in use after its installation"
cp packaging/debian/tests/smoke "$machine/deb/smoke"
ok /deb/smoke
ok dpkg --verify penstock-doc
ok systemctl restart penstock

step "the first own configuration, by the commands of docs/install.md: it serves, on a port below 1024"
awk '/^# cat >>/ { on = 1; next } on && $0 == "EOF" { exit } on' docs/install.md | sed 's/":80"/":81"/' >>"$machine/etc/penstock/penstock.toml"
mapfile -t commands < <(awk '/^# cat >>/ { on = 1; next } on && /^```/ { exit } on && sub(/^# /, "")' docs/install.md)
[ ${#commands[@]} = 2 ] || fail "docs/install.md has other commands: ${commands[*]}"
for command in "${commands[@]}"; do ok sh -c "$command"; done
serves http://127.0.0.1:81/
said 'from nginx'

step "change: a port that nginx has is refused, with its name, and the old configuration serves on"
served=$(pid)
config <<'EOF'
[process]
user = "penstock"
[control]
socket = "/run/penstock/control.sock"
[listener.web]
bind = "127.0.0.1:80"
pool = "app"
[pool.app]
backends = ["127.0.0.1:8000"]
EOF
refused penstock ctl reload
said '127.0.0.1:80'
refused penstock doctor --quiet
said '127.0.0.1:80 is taken by nginx'
serves http://127.0.0.1:8088/
sed -i 's/127.0.0.1:80"/127.0.0.1:8081"/' "$machine/etc/penstock/penstock.toml"
ok penstock ctl reload
serves http://127.0.0.1:8081/
said 'from nginx'
[ "$(pid)" = "$served" ] || fail "a reload changed the process"
ok systemctl stop penstock
ok penstock doctor --quiet
not_said fault
ok systemctl start penstock

step "a start with a wrong configuration fails once and says why, and a taken port is tried again until it is free"
cp "$machine/etc/penstock/penstock.toml" "$scratch/good.toml"
sed -i 's/^backends =/backend =/' "$machine/etc/penstock/penstock.toml"
refused systemctl restart penstock
run systemctl status penstock || true
said 'did you mean "backends"'
run systemctl show --property NRestarts --property ActiveState penstock
said 'NRestarts=0'
said 'ActiveState=failed'
sed 's/127.0.0.1:8081"/127.0.0.1:80"/' "$scratch/good.toml" | config
refused systemctl restart penstock
# More often than systemd would by its own limit, five times.
# shellcheck disable=SC2016 # the shell of the container replaces it
eventually sh -c '[ "$(systemctl show --property NRestarts --value penstock)" -ge 6 ]'
mv "$machine/etc/nginx/sites-enabled/default" "$machine/root/"
ok systemctl reload nginx
# Old workers of nginx have the port until their connections have ended.
eventually sh -c 'curl --silent http://127.0.0.1:80/ | grep --quiet "from nginx"'
config <"$scratch/good.toml"
ok systemctl restart penstock
mv "$machine/root/default" "$machine/etc/nginx/sites-enabled/"
ok systemctl reload nginx
serves http://127.0.0.1:8081/

step "downgrade and upgrade under load: no request fails, and what the operator wrote stays"
cp "$machine/etc/penstock/penstock.toml" "$scratch/mine.toml"
inside sh -c 'while [ ! -e /srv/enough ]; do curl --silent --fail --output /dev/null http://127.0.0.1:8081/ && echo good || echo bad; done' >"$scratch/load" 2>&1 &
load=$!
inside curl --silent --fail --limit-rate 1M http://127.0.0.1:8081/big >"$scratch/big" &
download=$!
install /deb/penstock_0.0.1-1.deb
said 'serves on\|has handed over'
serves http://127.0.0.1:8081/
install "/deb/penstock_${version}_amd64.deb"
install /deb/penstock_99.0-1.deb
serves http://127.0.0.1:8081/
wait "$download" || fail "a download broke"
cmp "$scratch/big" "$machine/srv/www/big" || fail "a download has other bytes"
touch "$machine/srv/enough"
wait "$load"
rm "$machine/srv/enough"
! grep -q bad "$scratch/load" || fail "$(grep -c bad "$scratch/load") of $(wc -l <"$scratch/load") requests failed"
cmp "$scratch/mine.toml" "$machine/etc/penstock/penstock.toml" || fail "an upgrade changed what the operator wrote"
ok test -e /etc/penstock/penstock.toml.dpkg-dist
rm "$machine/etc/penstock/penstock.toml.dpkg-dist"
requests=$(wc -l <"$scratch/load")
ok systemctl restart penstock
serves http://127.0.0.1:8081/

step "upgrade ($requests requests went through): a configuration that is refused is told, and the process serves on"
served=$(pid)
echo 'pol = "app"' >>"$machine/etc/penstock/penstock.toml"
install "/deb/penstock_${version}_amd64.deb"
said 'penstock.toml:[0-9]*:'
said 'serves on'
[ "$(pid)" = "$served" ] || fail "the process did not stay"
serves http://127.0.0.1:8081/
cp "$scratch/mine.toml" "$machine/etc/penstock/penstock.toml"

step "upgrade while the process is frozen: it is not asked, so it serves on as it was when it goes on"
served=$(pid)
ok systemctl kill --kill-whom=main --signal=STOP penstock
install /deb/penstock_99.0-1.deb
said 'no answer on /run/penstock/control.sock'
said 'serves on, because nothing was handed over'
ok systemctl kill --kill-whom=main --signal=CONT penstock
serves http://127.0.0.1:8081/
ok penstock ctl events
not_said 'upgrade asked for'
[ "$(pid)" = "$served" ] || fail "the process was upgraded afterwards"

step "a package whose program cannot run here: it says so, the process serves on, and another package mends it"
refused env DEBIAN_FRONTEND=noninteractive dpkg --force-confold --install /deb/penstock_99.1-1.deb
said 'Exec format error'
said 'cannot be run here: a process that serves goes on'
serves http://127.0.0.1:8081/
[ "$(pid)" = "$served" ] || fail "the process did not stay"
install "/deb/penstock_${version}_amd64.deb"
said 'has handed over'
serves http://127.0.0.1:8081/

step "two upgrades at once: one is done or both are, one after the other, and the process serves"
run sh -c "for deb in '/deb/penstock_${version}_amd64.deb' /deb/penstock_99.0-1.deb; do dpkg --force-confold --install \$deb & done; wait" || true
ok dpkg --configure --pending
[ -z "$(inside dpkg --audit)" ] || fail "dpkg finds faults: $(inside dpkg --audit)"
serves http://127.0.0.1:8081/
ok penstock ctl status
install /deb/penstock_99.0-1.deb

step "upgrade with a full disk: nothing has changed, and it can be tried again"
ok mount -t tmpfs -o size=64k tmpfs /usr/share/man/man1
refused env DEBIAN_FRONTEND=noninteractive dpkg --force-confold --install /deb/penstock_99.0-1.deb
said 'No space left'
serves http://127.0.0.1:8081/
ok penstock check /etc/penstock/penstock.toml
ok umount /usr/share/man/man1
install /deb/penstock_99.0-1.deb
ok systemctl is-active penstock

step "remove keeps the configuration and the state; a new installation serves with them"
ok test -d /var/lib/penstock
ok dpkg --remove penstock penstock-mpssh
refused pgrep --exact penstock
ok test -e /etc/penstock/penstock.toml
ok test -d /var/lib/penstock
install "/deb/penstock_${version}_amd64.deb" "/deb/penstock-mpssh_${version}_all.deb"
serves http://127.0.0.1:8081/
ok systemctl is-enabled penstock

step "a service that the operator has stopped and disabled stays so over an upgrade"
ok systemctl disable --now penstock
install /deb/penstock_99.0-1.deb
refused systemctl is-active penstock
refused systemctl is-enabled penstock
ok systemctl enable --now penstock

step "purge while it runs: everything that it made is gone, and nothing else"
echo mine >"$machine/etc/penstock/mine.pem"
# Not a process of the service: it is let alone.
inside penstock serve --listen 127.0.0.1:8089 --backend 127.0.0.1:8000 >/dev/null 2>&1 &
serves http://127.0.0.1:8089/
purge
serves http://127.0.0.1:8089/
ok pkill --exact penstock
ok cat /etc/penstock/mine.pem
rm -r "$machine/etc/penstock"
files >"$scratch/after"
# The user stays, in files that were there before.
diff "$scratch/before" "$scratch/after" >"$scratch/said" || fail "files are left, or gone"
ok id penstock

step "install where /run cannot be written: it is complete, says that the service could not start, and a start mends it"
ok mount --bind /run /run
ok mount -o remount,bind,ro /run
# shellcheck disable=SC2046 # a list of files
install $(packages)
said 'could not start'
ok umount /run
ok systemctl start penstock
serves http://127.0.0.1:8080/
purge

step "install where the port is taken: it says by which process, and is complete"
sed -i 's/8000/8000; listen 127.0.0.1:8080/' "$machine/etc/nginx/conf.d/app.conf"
ok systemctl restart nginx
# shellcheck disable=SC2046 # a list of files
install $(packages)
said 'could not start'
said '127.0.0.1:8080 is taken by nginx'
sed -i 's/; listen 127.0.0.1:8080//' "$machine/etc/nginx/conf.d/app.conf"
ok systemctl restart nginx
ok systemctl start penstock
serves http://127.0.0.1:8080/
purge
files >"$scratch/after"
diff "$scratch/before" "$scratch/after" >"$scratch/said" || fail "files are left, or gone"

run systemctl poweroff || true
wait "$container" || true
container=
step "all is well"
