#!/usr/bin/env bash
# Trains real models on a GPU to their end and scores them: rows for docs/results.md.
#
#   scripts/gpu-results.sh --data FOLDER                       both corpora: FOLDER/multi30k and FOLDER/mixed-ende
#   scripts/gpu-results.sh --data FOLDER multi30k              configs/multi30k-tiny.toml alone; mixed-ende: configs/mixed-ende-base.toml
#   scripts/gpu-results.sh --data FOLDER -- --set train.max_updates=100    flags of `mt train` behind --
#
#   --device DEVICE     cuda (default), cuda:N or cpu
#   --binary FILE       mt (default: target/gpu-test/mt, which scripts/gpu-test.sh builds); needs no Rust here
#   --precision P       f32 or bf16 (default)
#   --limit N           stops a training after N seconds, saved; the same command goes on with it (default: none)
#   --runs FOLDER       where the runs are (default: runs/gpu)
#
# FOLDER must be on the machine with the GPU: where only the repository is copied there, put it into an ignored folder in it.
#
# Multi30k is scored on test_2016_flickr, lowercased and not, the mix on its validation set; both by the final model, in
# float32 and in the precision that trained it, on the device. CUDA's libraries may be those that came with PyTorch.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    echo "gpu-results: $*" >&2
    exit 1
}

device=cuda binary=$root/target/gpu-test/mt precision=bf16 limit='' runs=$root/runs/gpu data='' wanted=''
while [ $# -gt 0 ]; do
    case $1 in
        --)
            shift
            break
            ;;
        multi30k | mixed-ende)
            wanted="$wanted $1"
            shift
            continue
            ;;
        --device | --binary | --precision | --limit | --runs | --data) ;;
        *) fail "unknown argument $1; see the top of $0" ;;
    esac
    [ $# -ge 2 ] || fail "$1 needs a value"
    printf -v "${1#--}" %s "$2"
    shift 2
done
: "${wanted:=multi30k mixed-ende}"
[ -n "$data" ] || fail "--data is missing; see the top of $0"
[ -x "$binary" ] || fail "$binary is missing; build it with 'scripts/gpu-test.sh build', or name one with --binary"
for name in $wanted; do
    [ -d "$data/$name" ] || fail "$data/$name is missing"
done
if [ "$device" != cpu ]; then
    # Where CUDA's libraries lie that came with Python's torch, if it is there.
    found=$("$root/scripts/gpu-test.sh" libraries)
    [ -z "$found" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found
    export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$root/.cuda/cache}
fi

# score NAME RUN PRECISION FLAG…: BLEU with two decimals.
score() {
    local name=$1 run=$2 precision=$3 json bleu
    shift 3
    json=$("$binary" eval --model "$run" --device "$device" --precision "$precision" -q --json "$@") ||
        fail "$name could not be scored in $precision"
    bleu=$(sed -n 's/.*"score": *\([0-9.]*\).*/\1/p' <<<"$json" | head -n 1)
    [ -n "$bleu" ] || fail "$name: mt eval printed no score in $precision"
    printf '%.2f\n' "$bleu"
}

for name in $wanted; do
    run=$runs/$name
    config=$root/configs/multi30k-tiny.toml
    test=(--src "$data/$name/test_2016_flickr.en" --ref "$data/$name/test_2016_flickr.de")
    if [ "$name" = mixed-ende ]; then
        config=$root/configs/mixed-ende-base.toml
        test=(--src "$data/$name/valid.en" --ref "$data/$name/valid.de")
    fi
    if [ ! -e "$run/model.safetensors" ]; then
        going_on=()
        [ ! -d "$run" ] || going_on=(--resume)
        status=0
        ${limit:+timeout --preserve-status --signal=TERM "$limit"} "$binary" train --config "$config" --run-dir "$run" --device "$device" \
            --set data.root="\"$(realpath "$data/$name")\"" --set runtime.precision="$precision" "${going_on[@]}" "$@" || status=$?
        case $status in
            0) ;;
            143)
                echo "$name: stopped${limit:+ after $limit s}, saved; the same command goes on"
                continue
                ;;
            *) fail "$name: training ended with $status" ;;
        esac
    fi
    echo "| $name, $precision on $device | BLEU |"
    echo "|---|---:|"
    # In one precision, if float32 also trained it.
    for how in f32 $([ "$precision" = f32 ] || echo "$precision"); do
        bleu=$(score "$name" "$run" "$how" "${test[@]}")
        echo "| cased, translated in $how | $bleu |"
        [ "$name" != mixed-ende ] || continue
        bleu=$(score "$name" "$run" "$how" --lowercase "${test[@]}")
        echo "| lowercased, translated in $how | $bleu |"
    done
    "$binary" info "$run" | grep -E "^(final model is|updates|target tokens|time in training|best validation)"
done
