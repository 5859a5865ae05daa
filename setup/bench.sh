#!/bin/sh
# Makes sure that the programs are there with which the benchmarks compare. Quick and silent when they are. A machine
# that cannot install them still measures everything else: the report names what is missing.
set -eu
cd "$(dirname "$0")/.."
. setup/packages.sh

missing=
need() { have "$1" || missing="$missing $2"; }
need haproxy haproxy
need nginx nginx-light
need pen pen
need hitch hitch
need openssl openssl
need nft nftables
need ip iproute2
need certtool gnutls-bin
need dockerd docker.io
need docker docker.io
[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || missing="$missing libnginx-mod-stream"
# shellcheck disable=SC2086 # a list of names
[ -z "$missing" ] || (install_packages $missing) || say "measuring without: $missing"
