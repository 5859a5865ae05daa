#!/bin/sh
# Builds the BPF programs from their source, and a record of what they were made of. The same source gives the same bytes in
# every directory: a test compares.
set -eu
cd "$(dirname "$0")"
flags="-O2 -g -target bpfel -mcpu=v3 -Wall -Wextra -fdebug-compilation-dir=."
for rung in xdp tc; do
    define=$(echo "$rung" | tr '[:lower:]' '[:upper:]')
    # shellcheck disable=SC2086 # a list of flags
    clang-14 $flags "-ffile-prefix-map=$PWD=." "-D$define" -c dsr.bpf.c -o "dsr-$rung.bpf.o"
    llvm-strip-14 -g "dsr-$rung.bpf.o"
done
{
    sha256sum dsr.bpf.c answers.bpf.h dsr-tc.bpf.o dsr-xdp.bpf.o
    echo "flags: $flags"
    clang-14 --version | head -n 1
} >dsr.bpf.record
