#!/usr/bin/env bash
# Makes target/licences/THIRD-PARTY-LICENCES.txt: the licences of everything that the binary for this machine contains.
# Needs cargo-about (cargo install --locked --features cli cargo-about).
#
#   scripts/licences.sh               their texts, as a release needs them
#   scripts/licences.sh --or-names    without cargo-about only their names, as a wheel for oneself may have them
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

mkdir -p target/licences
if ! cargo about --version >/dev/null 2>&1; then
    missing="cargo-about is missing (cargo install --locked --features cli cargo-about)"
    if [ "${1:-}" != --or-names ]; then
        echo "licences: $missing" >&2
        exit 1
    fi
    echo "licences: $missing: only the names of the dependencies' licences are written" >&2
    cargo tree --locked --edges normal --prefix none --format '{p}  {l}' | sed 's| (/[^)]*)||; s/ (\*)$//' | sort -u \
        >target/licences/THIRD-PARTY-LICENCES.txt
    exit
fi
# Offline: the texts are those in the crates, not what their repositories have today.
cargo fetch --locked --quiet
cargo about generate --offline --locked --fail --config scripts/licences/about.toml \
    --target "$(rustc -vV | sed -n 's/^host: //p')" \
    --output-file target/licences/THIRD-PARTY-LICENCES.txt scripts/licences/about.hbs
