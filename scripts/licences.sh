#!/usr/bin/env bash
# Makes target/licences/THIRD-PARTY-LICENCES.txt: the licences of everything that the binary for this machine contains.
# Needs cargo-about (cargo install cargo-about).
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

if ! cargo about --version >/dev/null 2>&1; then
    echo "licences: cargo-about is missing: cargo install --locked --features cli cargo-about" >&2
    exit 1
fi
mkdir -p target/licences
# Offline: the texts are those in the crates, not what their repositories have today.
cargo fetch --locked --quiet
cargo about generate --offline --locked --fail --config scripts/licences/about.toml \
    --target "$(rustc -vV | sed -n 's/^host: //p')" \
    --output-file target/licences/THIRD-PARTY-LICENCES.txt scripts/licences/about.hbs
