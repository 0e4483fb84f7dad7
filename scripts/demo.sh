#!/usr/bin/env bash
# Trains a model on data/quickstart, scores it on the test set and shows five translations. `make demo` builds it first.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

mt=target/release/mt
run=runs/quickstart
data=data/quickstart

if [ ! -x "$mt" ]; then
    echo "demo: $mt is missing; run 'make demo', or 'make build' first" >&2
    exit 1
fi

echo "== Training on $data; validation BLEU as it goes"
"$mt" train --config configs/quickstart.toml --run-dir "$run" --overwrite

echo
echo "== BLEU on the test set"
"$mt" eval --model "$run" --bleu

echo
echo "== The first five sentences of the test set"
translations=$(head -n 5 "$data/test.en" | "$mt" translate --model "$run" --quiet)
paste -d '\n' \
    <(head -n 5 "$data/test.en" | sed 's/^/source       /') \
    <(printf '%s\n' "$translations" | sed 's/^/translation  /') \
    <(head -n 5 "$data/test.de" | sed 's/^/reference    /') \
    /dev/null

echo "The model is in $run. Try:  $mt translate --model $run 'The old dog sleeps.'"
