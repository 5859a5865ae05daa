#!/bin/sh
# The machine and the versions that a number was measured with; sourced or run by the scripts beside it.
set -eu
printf 'machine   %s cores, %s\n' "$(nproc)" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
printf 'memory    %s\n' "$(sed -n 's/^MemTotal: *//p' /proc/meminfo)"
printf 'kernel    %s\n' "$(uname -sr)"
printf 'load      %s\n' "$(cut -d ' ' -f 1-3 /proc/loadavg)"
printf 'date      %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
