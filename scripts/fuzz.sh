#!/usr/bin/env bash
# Runs all fuzz targets, or those named, for some seconds each (default: 600): scripts/fuzz.sh [SECONDS [TARGET...]]
# Needs a nightly compiler (rustup toolchain install nightly) and cargo-fuzz (cargo install cargo-fuzz).
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

seconds=${1:-600}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    targets=(configuration corpus tokenizer components sentencepiece checkpoint import parquet card bleu translate comet test_set)
fi
# So that reports name lines.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: needs rustup toolchain install nightly, and cargo install cargo-fuzz" >&2
    exit 1
fi

# The first inputs are files of the project itself.
seed() {
    mkdir -p "fuzz/corpus/$1"
    cp -u "${@:2}" "fuzz/corpus/$1/"
}
seed configuration configs/*.toml
seed bleu data/quickstart/README.md
seed translate data/quickstart/README.md

# Where the targets write; they leave something.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

crashed=()
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 || crashed+=("$target")
done
if [ ${#crashed[@]} -gt 0 ]; then
    echo "fuzz: failed: ${crashed[*]}" >&2
    exit 1
fi
