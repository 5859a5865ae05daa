#!/bin/sh
# Runs every scenario once, quickly, and leaves a page, Markdown and JSON in ./penstock-bench-DATE/.
# PENSTOCK is the program to measure with, and to measure: a release build.
set -eu
cd "$(dirname "$0")/.."
exec "${PENSTOCK:?name the release binary: PENSTOCK=/path/to/penstock bench/run.sh}" bench all --quick "$@"
