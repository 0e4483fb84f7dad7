#!/usr/bin/env bash
# Makes target/dist: an archive with the binary, a list of everything that it is built from (SBOM, CycloneDX), and checksums.
# Needs cargo-cyclonedx (cargo install cargo-cyclonedx).
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

if ! cargo cyclonedx --version >/dev/null 2>&1; then
    echo "dist: cargo-cyclonedx is missing: cargo install --locked cargo-cyclonedx" >&2
    exit 1
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name="mt-$version-$(rustc -vV | sed -n 's/^host: //p')"
rm -rf target/dist
mkdir -p "target/dist/$name"

# It writes beside Cargo.toml.
trap 'rm -f "$name.cdx.json"' EXIT
cargo cyclonedx --format json --target all --override-filename "$name.cdx"
mv "$name.cdx.json" target/dist/

cp target/release/mt README.md LICENSE* "target/dist/$name/"
# The same input gives the same archive.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -C target/dist -cf - "$name" |
    gzip -9n >"target/dist/$name.tar.gz"
rm -r "target/dist/${name:?}"
(cd target/dist && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
