#!/usr/bin/env bash
# Makes target/wheels: a Python wheel that carries the binary, for Macs like this one, or for any Linux with this kind of
# processor and glibc 2.17 (2012) or newer. There, zig compiles C and links, as it has the symbols of that glibc.
# maturin and zig come from PyPI (target/wheel-tools). For others, it needs cargo-about, too (scripts/licences.sh).
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

packages='maturin==1.16.0'
set -- --release --locked --out target/wheels
if [ "$(uname -s)" = Linux ]; then
    packages="$packages ziglang==0.17.1"
    set -- "$@" --zig --compatibility manylinux2014
fi
scripts/licences.sh --or-names
rm -rf target/wheels
# maturin runs `python3 -m ziglang`.
PATH=$PWD/target/wheel-tools/bin:$PATH scripts/pinned-python.sh target/wheel-tools "$packages" -m maturin build "$@"
