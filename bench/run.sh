#!/bin/sh
# Every measurement in this directory, one after the other, on this machine.
set -eu
cd "$(dirname "$0")"
echo "== what an idle connection costs"
./idle_connections.py
echo
echo "== what clients of the control socket do to traffic"
./control_latency.py
