#!/usr/bin/env bash
# Trains a model on data/quickstart, scores it on the test set and shows five translations. `make demo` builds mt first.
#
#   scripts/demo.sh announce    tells what `make demo` is going to do, and how long that takes
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

mt=target/release/mt
run=runs/quickstart
data=data/quickstart

if [ "${1:-}" = announce ]; then
    cores=$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
    if [ -x "$mt" ]; then
        echo "== Step 1 of 3: building mt again, if its source has changed"
    else
        # Half of the work is Rust that depends on each other: more than eight cores hardly help.
        cores_used=$((cores < 8 ? cores : 8))
        minutes="$((20 / cores_used)) to $((40 / cores_used))"
        echo "== Step 1 of 3: building mt with its dependencies, once: $minutes minutes on $cores cores"
        echo "   Cargo counts the crates below; the last one, mt itself, takes three minutes or more on two cores."
    fi
    echo "== Step 2 of 3: training, 2 to 5 minutes. Step 3: the test set, seconds."
    exit
fi

if [ ! -x "$mt" ]; then
    echo "demo: $mt is missing; run 'make demo', or 'make build' first" >&2
    exit 1
fi

echo "== Step 2 of 3: training on $data; validation BLEU as it goes"
"$mt" train --config configs/quickstart.toml --run-dir "$run" --overwrite

echo
echo "== Step 3 of 3: BLEU on the test set"
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
