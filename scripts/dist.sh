#!/usr/bin/env bash
# Makes target/dist: what a release for this kind of machine consists of. An archive with the binary, its manual pages,
# completions and licences; the wheel; a list of everything that the binary is built from (SBOM, CycloneDX); checksums.
# `make dist` makes the wheel first, whose binary the archive has, too. Needs cargo-cyclonedx, cargo-about, GNU tar (on a Mac:
# brew install gnu-tar), and a git checkout: files in the archive have the date of the last commit.
#
#   scripts/dist.sh check    only tells what is missing
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

missing=
lacks() {
    echo "dist: $1" >&2
    missing=yes
}
cargo cyclonedx --version >/dev/null 2>&1 ||
    lacks "cargo-cyclonedx is missing: cargo install --locked cargo-cyclonedx"
cargo about --version >/dev/null 2>&1 ||
    lacks "cargo-about is missing, so the wheel would lack licences: cargo install --locked --features cli cargo-about"
tar=$(command -v gtar || command -v tar)
case $("$tar" --version) in *GNU*) ;; *) lacks "GNU tar is missing: brew install gnu-tar" ;; esac
date=$(git log -1 --format=%ct 2>/dev/null) || lacks "this is no git checkout, so the archive would have no date"
if [ -n "$missing" ]; then
    exit 1
fi
if [ "${1:-}" = check ]; then
    exit
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name="mt-$version-$(rustc -vV | sed -n 's/^host: //p')"
folder=target/dist/$name
rm -rf target/dist
mkdir -p "$folder/completions"

# It writes beside Cargo.toml.
trap 'rm -f "$name.cdx.json"' EXIT
cargo cyclonedx --format json --target all --override-filename "$name.cdx"
mv "$name.cdx.json" target/dist/

cp target/wheels/*.whl target/dist/
python3 -m zipfile -e target/wheels/*.whl target/dist/wheel
install target/dist/wheel/*.data/scripts/mt "$folder/mt"
rm -r target/dist/wheel
"$folder/mt" man "$folder/man" --quiet
"$folder/mt" completions bash >"$folder/completions/mt.bash"
"$folder/mt" completions zsh >"$folder/completions/_mt"
"$folder/mt" completions fish >"$folder/completions/mt.fish"
cp README.md LICENSE* target/licences/THIRD-PARTY-LICENCES.txt "$folder/"

# The same input gives the same archive.
"$tar" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$date" -C target/dist -cf - "$name" |
    gzip -9n >"target/dist/$name.tar.gz"
rm -r "$folder"
(cd target/dist && shasum -a 256 -- * >"$name.sha256" && cat "$name.sha256")
