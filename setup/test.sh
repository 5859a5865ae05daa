#!/bin/sh
# Makes sure that everything the tests and benchmarks need is there: the build's needs, real clients and servers
# from Debian, and Python programs in environments of their own. Quick and silent when it is.
set -eu
cd "$(dirname "$0")/.."
setup/build.sh
setup/bench.sh
. setup/packages.sh

missing=
need() { have "$1" || missing="$missing $2"; }
need nginx nginx-light
need wrk wrk
need h2load nghttp2-client
need nghttpd nghttp2-server
need slowhttptest slowhttptest
need socat socat
need nc netcat-openbsd
need curl curl
need haproxy haproxy
need dockerd docker.io
need docker docker.io
need setpriv util-linux
need openssl openssl
need gnutls-cli gnutls-bin
need sslscan sslscan
need ps procps
need valgrind valgrind
need shellcheck shellcheck
need sshd openssh-server
need dropbear dropbear-bin
need busybox busybox
need nsenter util-linux
need ssh openssh-client
need parallel-ssh pssh
need pdsh pdsh
need clush clustershell
need rsnapshot rsnapshot
need ganesha.nfsd "nfs-ganesha nfs-ganesha-vfs"
need nfs-ls libnfs-utils
need sshfs sshfs
need knotd knot
need unbound unbound
need kdig knot-dnsutils
need named bind9
need nsupdate bind9-dnsutils
need faketime faketime
need gpg gnupg
need dirmngr dirmngr
need pv pv
need oathtool oathtool
need pamtester pamtester
need sudo sudo
need ykclient libykclient-dev
ls /usr/lib/*/libpam_wrapper.so >/dev/null 2>&1 || missing="$missing libpam-wrapper"
ls /lib/security/pam_yubico.so >/dev/null 2>&1 || missing="$missing libpam-yubico"
need rsyslogd rsyslog
need dh debhelper
need fakeroot fakeroot
need lintian lintian
need mmdebstrap mmdebstrap
need systemd-nspawn systemd-container
need keepalived keepalived
need tshark tshark
need tcpdump tcpdump
need ip iproute2
need ethtool ethtool
need bpftool bpftool
need clang-14 clang-14
need llvm-strip-14 llvm-14
need lynx lynx
need w3m w3m
need gsasl gsasl
need swaks "swaks libnet-ssleay-perl"
need krb5kdc "krb5-kdc krb5-admin-server krb5-user"
need sasl-sample-server "sasl2-bin libsasl2-modules-gssapi-mit"
[ -d /usr/lib/python3/dist-packages/gssapi ] || missing="$missing python3-gssapi"
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3 python3-venv"
# shellcheck disable=SC2086 # a list of names
[ -z "$missing" ] || install_packages $missing

# A server of SSH separates privileges, as it does in real life, only for somebody who is not root.
if [ "$(id -u)" = 0 ] && ! id penstock-test >/dev/null 2>&1; then
    useradd --system --create-home --home-dir /var/lib/penstock-test --shell /bin/sh --password '*' penstock-test
fi

for component in fmt clippy; do
    cargo $component --version >/dev/null 2>&1 && continue
    have rustup || die "cargo $component is missing: install it with your Rust"
    # The component of `cargo fmt` is called rustfmt.
    rustup component add "$(echo $component | sed 's/^fmt$/rustfmt/')"
done

cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
mkdir -p "$cache"
# The key distribution centre of Heimdal: Debian's packages of it and of MIT exclude each other, so they are unpacked here.
if [ ! -x "$cache/heimdal/usr/lib/heimdal-servers/kdc" ]; then
    have apt-get || die "this is not a Debian system: unpack heimdal-kdc and heimdal-clients with their libraries into $cache/heimdal"
    say "unpacking Heimdal"
    unpacking=$(mktemp -d)
    (cd "$unpacking" && apt-get download -qq heimdal-kdc heimdal-clients libasn1-8-heimdal libcap-ng0 libcom-err2 libedit2 libbsd0 libmd0 \
        libgssapi3-heimdal libhcrypto5-heimdal libhdb9-heimdal libheimbase1-heimdal libheimntlm0-heimdal libhx509-5-heimdal \
        libkadm5clnt7-heimdal libkadm5srv8-heimdal libkafs0-heimdal libkdc2-heimdal libkrb5-26-heimdal libotp0-heimdal \
        libroken19-heimdal libsl0-heimdal libwind0-heimdal) ||
        die "apt-get could not download Heimdal; is the network there, and apt-get update done?"
    for package in "$unpacking"/*.deb; do
        dpkg -x "$package" "$cache/heimdal.new"
    done
    rm -rf "$unpacking" "$cache/heimdal"
    mv "$cache/heimdal.new" "$cache/heimdal"
fi
# Builds a program of a Go module, unless it is there.
go_program() {
    [ -x "$cache/bin/$1" ] && return
    PATH=$PATH:/usr/local/go/bin
    have go || install_packages golang-go
    say "building $1"
    GOBIN=$cache/bin go install "$2" || die "go could not build $1; is the network there, and go 1.24 or newer?"
}
go_program h2spec github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible
go_program pebble github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1
go_program pebble-challtestsrv github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@v2.10.1
# Builds the SSH server of the tests, unless one is there that is newer than its sources.
server=crates/penstock/tests/servers/go
if [ -n "$(find "$server" -newer "$cache/bin/ssh-server" 2>/dev/null || echo missing)" ]; then
    PATH=$PATH:/usr/local/go/bin
    have go || install_packages golang-go
    say "building ssh-server"
    (cd "$server" && go build -o "$cache/bin/ssh-server" .) ||
        die "go could not build $server; is the network there, and go 1.24 or newer?"
fi
for requirements in setup/requirements-*.txt; do
    name=$(basename "$requirements" .txt)
    environment=$cache/venv-${name#requirements-}
    # The stamp is written last, so an environment that was interrupted is made again. Its interpreter is a link
    # that an update of the system's Python can break.
    if cmp -s "$requirements" "$environment/.installed" && "$environment/bin/python3" -c '' 2>/dev/null; then
        continue
    fi
    say "making the Python environment $environment"
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements" ||
        die "pip could not install $requirements; is the network there?"
    cp "$requirements" "$environment/.installed"
done
