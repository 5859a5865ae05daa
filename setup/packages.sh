# shellcheck shell=sh
# Sourced by the scripts beside it: installs the Debian packages of programs that are missing.

# Debian keeps daemons out of an ordinary user's PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin
export PATH

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# install_packages NAME...: through apt, as root or with sudo; elsewhere it names them and ends.
install_packages() {
    have apt-get || die "this is not a Debian system: install the equivalents of these Debian packages: $*"
    if [ "$(id -u)" -eq 0 ]; then
        as_root=
    elif have sudo; then
        as_root=sudo
    else
        die "root is needed once; run this as root: apt-get update && apt-get install -y $*"
    fi
    say "installing $*"
    $as_root apt-get update -qq || say "apt-get update failed; trying with the package lists that are there"
    # RUNLEVEL=1: what is installed here is for the tests to start, so no package may start a service of its own.
    $as_root env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        die "installing failed; run this as root and see why: apt-get install -y $*"
}
