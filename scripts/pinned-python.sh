#!/usr/bin/env bash
# Runs the Python of a virtual environment that has certain packages from PyPI, in these versions; installs what is missing or
# of another version: scripts/pinned-python.sh FOLDER 'NAME==VERSION NAME…' FILE [ARGUMENT...]
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

environment=$1
read -ra packages <<<"$2"
shift 2

# A version may be followed by how it was built, as in 2.11.0+cpu.
if ! "$environment/bin/python" -c '
import importlib.metadata, sys
for package in sys.argv[1:]:
    name, _, version = package.partition("==")
    found = importlib.metadata.version(name)
    if version and version not in (found, found.split("+")[0]):
        sys.exit(1)' "${packages[@]}" 2>/dev/null; then
    echo "installing into $environment: ${packages[*]}" >&2
    python3 -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet "${packages[@]}"
fi
exec "$environment/bin/python" "$@"
