#!/usr/bin/env bash
# Measures training speed in target tokens per second: the median over updates 21 to 100 of a short run.
#
#   scripts/bench.sh                                         the quickstart model
#   scripts/bench.sh configs/multi30k-tiny.toml --threads 2  another configuration, and flags of `mt train`
#   scripts/bench.sh --threads 2                             flags alone
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac

config=configs/quickstart.toml
case ${1:--} in
    -*) ;;
    *)
        config=$(realpath "$1")
        shift
        ;;
esac
cd "$(dirname "$0")/.."
mt=target/release/mt

if [ ! -x "$mt" ]; then
    echo "bench: $mt is missing; run 'make bench', or 'make build' first" >&2
    exit 1
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# No validation, no averaging and no checkpoint before the end, so that only updates are timed.
if ! "$mt" train --config "$config" --run-dir "$folder/run" \
    --set train.max_updates=100 --set train.log_every=20 --set train.average_last=0 --set valid.every=0 --set train.save_every=1000 \
    "$@" 2>"$folder/messages"; then
    cat "$folder/messages" >&2
    exit 1
fi

# The first line of the log, updates 1 to 20, is warm-up.
speeds=$({ grep '"event":"train"' "$folder/run/log.jsonl" || true; } | sed -n '2,$s/.*"tokens_per_second":\([0-9.eE+]*\).*/\1/p' | sort -g)
printf '%s\n' "$speeds" | awk -v config="$config" '
    NF { value[++n] = $1 }
    END {
        if (!n) { print "bench: the log has no training speed" > "/dev/stderr"; exit 1 }
        median = n % 2 ? value[(n + 1) / 2] : (value[n / 2] + value[n / 2 + 1]) / 2
        printf "%s: %.0f target tokens/s (%.0f to %.0f)\n", config, median, value[1], value[n]
    }'
