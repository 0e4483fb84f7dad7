#!/usr/bin/env bash
# Runs tests of code with `unsafe` under a sanitizer: scripts/sanitize.sh [address|thread] (default: address)
#   address: kernels, decoder, memory, files: no access outside what was allocated
#   thread:  kernels whose threads write rows of one buffer: no two threads touch the same one
# Needs a nightly compiler; thread needs its source, too (rustup component add rust-src --toolchain nightly).
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

sanitizer=${1:-address}
target=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Zsanitizer=$sanitizer ${RUSTFLAGS:-}"
# So that its reports name lines.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
run() {
    cargo +nightly test --release --locked --target "$target" "$@"
}
case $sanitizer in
    address)
        export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/sanitize}
        # Leaks are not memory errors, and rayon's threads end with the process.
        export ASAN_OPTIONS=detect_leaks=0
        run --lib -- ops:: infer:: device:: decode:: checkpoint:: data::
        run --test gradients --test variants --test decode_equivalence --test inspect
        ;;
    thread)
        export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/sanitize-thread}
        # More threads than processors, so that they interrupt each other.
        export RAYON_NUM_THREADS=4
        # What it does not understand, each with its reason.
        export TSAN_OPTIONS="suppressions=$PWD/scripts/thread-sanitizer.txt halt_on_error=1"
        # The standard library is built with it, too: otherwise its locks are taken for none.
        run -Zbuild-std --lib -- ops:: infer:: decode:: data::prefetch
        ;;
    *)
        echo "sanitize: $sanitizer is neither address nor thread" >&2
        exit 2
        ;;
esac
