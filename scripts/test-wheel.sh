#!/usr/bin/env bash
# Installs the wheel of `make wheel` into a fresh virtual environment, in a temporary folder. There it uses mt from the PATH:
# it trains a few updates on a copy of data/quickstart, and translates.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

fail() {
    echo "test-wheel: $*" >&2
    exit 1
}

wheels=("$PWD"/target/wheels/*.whl)
[ -f "${wheels[0]}" ] || fail "there is no wheel in target/wheels; run 'make wheel' first"
[ ${#wheels[@]} -eq 1 ] || fail "there are several wheels in target/wheels"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp configs/quickstart.toml data/quickstart/*.en data/quickstart/*.de "$folder"
cd "$folder"

python3 -m venv environment
SECONDS=0
environment/bin/python -m pip install --quiet --no-index "${wheels[0]}"
echo "== Installed in about $SECONDS s"
PATH=$folder/environment/bin:$PATH
hash -r
[ "$(command -v mt)" = "$folder/environment/bin/mt" ] || fail "the wheel put no mt on the PATH"
mt --version

echo "== A few updates"
mt train --config quickstart.toml --set data.root=. --set train.max_updates=20 --set train.save_every=10 --set valid.samples=0
translated=$(head -n 5 test.en | mt translate --model runs/quickstart --quiet | wc -l)
[ "$translated" -eq 5 ] || fail "5 lines, but $translated translations"
mt completions bash | bash -n
echo "== The wheel trains and translates"
