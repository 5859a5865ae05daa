#!/bin/sh
# Runs each target for SECONDS (60), one after the other, or only those that are named: fuzz/run.sh [SECONDS [TARGET...]]
# Needs a nightly compiler and a C++ compiler. Inputs that led to new code are kept in fuzz/corpus; an input
# that a target does not survive is in fuzz/artifacts, and ends this with 1.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- gs2_header scram otp verify_query dns_answer openpgp
host=$(rustc -vV | sed -n 's/^host: //p')
: "${CARGO_TARGET_DIR:=$PWD/target}"
export CARGO_TARGET_DIR
# Coverage for libFuzzer: https://llvm.org/docs/LibFuzzer.html
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1"
cargo +nightly build --locked --release --target "$host"
status=0
for target in "$@"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "== $target, $seconds s"
    "$CARGO_TARGET_DIR/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" "corpus/$target" 2> "artifacts/$target.log" || status=1
    grep -E 'SUMMARY|number_of_executed_units|peak_rss_mb|^Done' "artifacts/$target.log" || true
done
exit $status
