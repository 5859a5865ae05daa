#!/bin/bash
# Loads an image for containers into a Docker engine of its own (bench/with_docker.py) and runs it. Needs root.
#
#   packaging/image_test.sh [PROGRAM]
#
# PROGRAM is a static penstock, of which image, user, health check and end are tested. Without it a program of ten lines is in its
# place, which says as whom and with which words the engine starts it.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/packages.sh

fail() { printf 'packaging/image_test.sh: %s\n' "$*" >&2; exit 1; }
equal() { [ "$1" = "$2" ] || fail "$3: \"$1\", not \"$2\""; }

if [ "${1:-}" = --inside ]; then
    image=$2
    program=${3:-}
    run() { docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges --tmpfs /run/penstock:uid=65532 "$@"; }
    docker load --quiet --input "$image" >/dev/null
    version=$(python3 -c 'import sys; sys.path.insert(0, "packaging"); import crates; print(crates.version())')
    if [ -z "$program" ]; then
        equal "$(run "penstock:$version")" "65532:65532 /usr/bin/penstock serve /etc/penstock/penstock.toml" "as whom and with which words"
        equal "$(run "penstock:$version" ctl status)" "65532:65532 /usr/bin/penstock ctl status" "with other words"
        equal "$(docker image inspect --format '{{.Config.Healthcheck.Test}}' "penstock:$version")" \
            "[CMD /usr/bin/penstock ctl health]" "health check"
        exit 0
    fi
    equal "$(run "penstock:$version" --version)" "penstock $version" "version"
    name=$(run --detach --publish 127.0.0.1:18080:8080 "penstock:$version")
    until [ "$(docker inspect --format '{{.State.Health.Status}}' "$name")" = healthy ]; do
        [ "$(docker inspect --format '{{.State.Running}}' "$name")" = true ] || fail "the container has ended"
        [ $SECONDS -lt 60 ] || fail "not healthy after $SECONDS s: $(docker logs "$name" 2>&1)"
        read -r -t 0.2 <> <(:) || true
    done
    curl --silent --show-error --fail http://127.0.0.1:18080/ | grep --quiet 'Penstock serves' || fail "no welcome page"
    docker exec "$name" /usr/bin/penstock ctl status >/dev/null || fail "ctl in the container"
    pid=$(docker inspect --format '{{.State.Pid}}' "$name")
    equal "$(awk '/^Uid/ { print $2 }' "/proc/$pid/status")" 65532 "user of the process"
    equal "$(awk '/^CapEff/ { print $2 }' "/proc/$pid/status")" 0000000000000000 "capabilities"
    equal "$(awk '/^Seccomp:/ { print $2 }' "/proc/$pid/status")" 2 "filter of system calls"
    docker logs "$name" 2>&1 | grep --quiet WARN && fail "it warns: $(docker logs "$name" 2>&1)"
    docker stop --time 10 "$name" >/dev/null
    name=$(run --detach --publish 127.0.0.1:18081:8081 "penstock:$version" serve --listen :8081 --backend 127.0.0.1:9)
    until docker exec "$name" /usr/bin/penstock ctl health >/dev/null 2>&1; do
        [ "$(docker inspect --format '{{.State.Running}}' "$name")" = true ] || fail "the container without a file has ended"
        [ $SECONDS -lt 90 ] || fail "without a file: not healthy after $SECONDS s: $(docker logs "$name" 2>&1)"
    done
    docker stop --time 10 "$name" >/dev/null
    printf 'packaging/image_test.sh: the image serves, %s s\n' "$SECONDS" >&2
    exit 0
fi

if [ "$(id -u)" != 0 ]; then
    [ -n "${PENSTOCK_TEST_WITHOUT_ROOT:-}" ] || die "packaging/image_test.sh needs root; PENSTOCK_TEST_WITHOUT_ROOT=1 leaves it out"
    say "not tested: the image for containers, which needs root"
    exit 0
fi
program=${1:-}
scratch=$(mktemp -d /var/tmp/penstock-image-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PYTHONDONTWRITEBYTECODE=1
if [ -n "$program" ]; then
    cp "$program" "$scratch/penstock"
else
    cat >"$scratch/penstock.c" <<'C'
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    printf("%d:%d", getuid(), getgid());
    for (int i = 0; i < count; i++) printf(" %s", words[i]);
    puts("");
    return 0;
}
C
    cc -static -o "$scratch/penstock" "$scratch/penstock.c"
fi
packaging/image.py "$scratch/penstock" "$scratch/image.tar"
packaging/image.py "$scratch/penstock" "$scratch/again.tar"
cmp "$scratch/image.tar" "$scratch/again.tar" || fail "the same program gave another image"
! packaging/image.py /bin/sh "$scratch/none.tar" 2>"$scratch/said" || fail "a program with shared libraries was taken"
grep --quiet 'needs shared libraries' "$scratch/said" || fail "why /bin/sh is refused: $(cat "$scratch/said")"
head --bytes 100 "$scratch/penstock" >"$scratch/short"
! packaging/image.py "$scratch/short" "$scratch/none.tar" 2>"$scratch/said" || fail "a program that is cut short was taken"
grep --quiet 'cut short' "$scratch/said" || fail "why a program that is cut short is refused: $(cat "$scratch/said")"
! packaging/image.py "$0" "$scratch/none.tar" 2>"$scratch/said" || fail "a script was taken for a program"
grep --quiet 'no program of Linux' "$scratch/said" || fail "why a script is refused: $(cat "$scratch/said")"
bench/with_docker.py "$0" --inside "$scratch/image.tar" ${program:+static}
