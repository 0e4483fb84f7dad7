#!/usr/bin/env bash
# Runs the tests of code with `unsafe` (kernels, decoder, memory) under the address sanitizer. Needs a nightly compiler.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

target=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS:-}"
# So that its reports name lines.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/sanitize}
# Leaks are not memory errors, and rayon's threads end with the process.
export ASAN_OPTIONS=detect_leaks=0
run() {
    cargo +nightly test --release --locked --target "$target" "$@"
}
run --lib -- ops:: infer:: device:: decode:: checkpoint:: data::
run --test gradients --test variants --test decode_equivalence --test inspect
