#!/usr/bin/env bash
# Type-checks mt with Candle's Metal backend for Apple's processors, on any machine with rustup. Nothing is linked or run, and
# C code of dependencies is not compiled, so no Apple compiler is needed.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

target=aarch64-apple-darwin
rustup target add "$target"
nothing=$(command -v true)
for tool in CC CXX AR; do
    export "${tool}_${target//-/_}=$nothing"
done
cargo check --locked --features metal --target "$target" --target-dir target/metal
