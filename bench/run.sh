#!/bin/sh
# Every measurement, one after the other, on this machine. PENSTOCK is the program to measure with, and to measure: a release
# build. The scenarios leave a page, Markdown and JSON in ./penstock-bench-DATE/.
set -eu
cd "$(dirname "$0")/.."
: "${PENSTOCK:?name the release binary: PENSTOCK=/path/to/penstock bench/run.sh}"
echo "== what an idle connection costs"
bench/idle_connections.py
echo
echo "== what clients of the control socket do to traffic"
bench/control_latency.py
echo
exec "$PENSTOCK" bench all --quick "$@"
