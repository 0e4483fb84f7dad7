#!/usr/bin/env bash
# Compares mt with PyTorch in training and decoding, in turns on one device: a Markdown table for docs/benchmarks.md.
#
#   scripts/gpu-bench.sh                                       the base model on data/quickstart, on the first GPU
#   scripts/gpu-bench.sh --binary ./mt --data …/multi30k       a binary built elsewhere, another corpus
#   scripts/gpu-bench.sh --device cpu --quick                  a trial of this script on the processor
#   scripts/gpu-bench.sh … -- --set tokenizer.vocab_size=10000   flags of `mt train` after --
#   scripts/gpu-bench.sh --full-length "base big tiny"         updates on full batches of random tokens, and a profile
#
#   --device DEVICE     cpu, cuda (default) or cuda:N
#   --binary FILE       mt (default: the newer of target/gpu-test/mt and target/cuda/release/mt; target/release/mt with
#                       --device cpu); needs no Rust here
#   --data DIR          folder with train, valid and test (or test_2016_flickr), .en and .de (default:
#                       data/quickstart)
#   --config FILE       configuration to train (default: configs/quickstart.toml, but with the shape of transformer-base,
#                       batches of 4,096 tokens and a suitable learning rate); its corpus is replaced by --data
#   --updates N         updates over which training is measured (default: 300)
#   --model-updates N   updates of the model for measuring decoding (default: 1000): mt's last training run has this many
#   --passes N          how often a measurement translates 2,000 sentences (default: 20 on a GPU, 4 on the processor)
#   --turns N           turns (default: 3)
#   --no-compile        without torch.compile of PyTorch's training, which takes a minute or two per measurement
#   --precision P       only f32 or only bf16 (default: both on a GPU, f32 on the processor)
#   --python FILE       Python with torch (default: python3)
#   --threads N         processor threads of both (default: with --device cpu all cores, else their own choice)
#   --quick             the quickstart model, few updates, two passes
#   --full-length LIST  only times full updates of these shapes, on 250 sentences of 100 tokens (tiny: 100 of 41) with
#                       V 32,000 (tiny: 10,000), and of PyTorch without and with compilation
#   --step FILE         the program that times them, of benches/train_step.rs (default: target/gpu-test/train_step, which
#                       scripts/gpu-test.sh builds)
#
# Training speed is the median of target tokens/s over stretches of 20 updates, without the first, in mt's log and in
# benches/pytorch_peer.py. They include no validation and no checkpoint. Decoding uses the weights that mt has trained in
# that precision. mt's time is that for 1 + passes times 2,000 sentences, minus that for 2,000: mt reads and sorts 2,000
# lines at a time, so the difference is exactly the further passes, without starting the process, loading and first calls.
# On a GPU, small batches are bound by the processor in PyTorch: for batches as large as those of --full-length, give
# -- --set train.batch_tokens=25000.
# PyTorch translates the 2,000 once, then the further passes are timed. mt's time includes tokenising and writing, PyTorch's
# only the work from token ids to token ids.
#
# Everything takes over an hour on a GPU (--turns 1 --passes 3 --precision bf16: some minutes). Figures go to stderr as they
# are measured, a row to stdout as soon as all of its figures are known. If PyTorch fails, its figure is a dash and the rest continues.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)

turns=3
log_every=20
# WINDOW in src/commands/shared/input.rs.
window=2000

device=cuda
binary=
data=$root/data/quickstart
config=
updates=
model_updates=
passes=
precisions=
python=python3
threads=
quick=
compile=1
shapes=
step=$root/target/gpu-test/train_step

fail() {
    echo "gpu-bench: $*" >&2
    exit 1
}

say() {
    echo "gpu-bench: $*" >&2
}

while [ $# -gt 0 ]; do
    case $1 in
        --quick)
            quick=1
            shift
            continue
            ;;
        --no-compile)
            compile=
            shift
            continue
            ;;
        --)
            shift
            break
            ;;
        --device | --binary | --data | --config | --updates | --model-updates | --passes | --turns | --precision | --python | --threads | --full-length | --step) ;;
        *) fail "unknown argument $1; see the top of $0" ;;
    esac
    [ $# -ge 2 ] || fail "$1 needs a value"
    case $1 in
        --device) device=$2 ;;
        --binary) binary=$2 ;;
        --data) data=$2 ;;
        --config) config=$2 ;;
        --updates) updates=$2 ;;
        --model-updates) model_updates=$2 ;;
        --passes) passes=$2 ;;
        --turns) turns=$2 ;;
        --precision) precisions=$2 ;;
        --python) python=$2 ;;
        --threads) threads=$2 ;;
        --full-length) shapes=$2 ;;
        --step) step=$2 ;;
    esac
    shift 2
done
# The remaining arguments are flags of `mt train`.

if [ -n "$quick" ]; then
    : "${updates:=60}" "${model_updates:=400}" "${passes:=2}"
else
    : "${updates:=300}" "${model_updates:=1000}"
fi
# A configuration given by --config keeps its shape.
base=
if [ -z "$config" ]; then
    config=$root/configs/quickstart.toml
    [ -n "$quick" ] || base=1
fi
case $device in
    cpu)
        compile=
        : "${binary:=$root/target/release/mt}" "${precisions:=f32}" "${threads:=$(nproc)}" "${passes:=4}"
        ;;
    *)
        built=$root/target/cuda/release/mt
        packed=$root/target/gpu-test/mt
        # A file that is missing is older.
        [ "$built" -nt "$packed" ] || [ ! -x "$packed" ] || built=$packed
        : "${binary:=$built}" "${precisions:=f32 bf16}" "${passes:=20}"
        ;;
esac

[ -n "$shapes" ] || [ -x "$binary" ] || fail "$binary is missing or cannot be run; build it with 'make cuda' (for --device cpu: 'make build'), or name one with --binary"
"$python" -c 'import torch' 2>/dev/null || fail "$python has no torch; name another with --python"
# As Multi30k's is called.
test=test
[ -s "$data/test.en" ] || [ ! -s "$data/test_2016_flickr.en" ] || test=test_2016_flickr
for file in {train,valid,"$test"}.{en,de}; do
    [ -s "$data/$file" ] || fail "$data/$file is missing or empty"
done
[ "$updates" -ge $((2 * log_every)) ] || fail "--updates must be at least $((2 * log_every))"
[ "$passes" -ge 1 ] || fail "--passes must be at least 1"
[ "$turns" -ge 1 ] || fail "--turns must be at least 1"
[ -n "$shapes" ] || binary=$(realpath "$binary")
data=$(realpath "$data")
config=$(realpath "$config")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mt_flags=(--device "$device" --quiet)
peer_flags=(--device "$device")
if [ -n "$threads" ]; then
    mt_flags+=(--threads "$threads")
    peer_flags+=(--threads "$threads")
fi

libraries=
tunables=
if [ "$device" = cpu ]; then
    # Without huge pages, PyTorch's figures vary because of page faults.
    tunables=glibc.malloc.hugetlb=1
else
    # If the machine has no CUDA of its own, mt uses the libraries that came with PyTorch.
    libraries=$("$python" -c '
import glob, os, torch
packages = os.path.dirname(os.path.dirname(torch.__file__))
print(":".join(sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))))')
fi
# An empty part would be the current folder.
library_path=${LD_LIBRARY_PATH:-}
[ -z "$libraries" ] || library_path=${library_path:+$library_path:}$libraries

# Runs a command and shows its stderr only if it fails.
attempt() {
    if ! "$@" 2>"$folder/messages"; then
        tail -n 40 "$folder/messages" >&2
        say "failed: $*"
        return 1
    fi
}

quietly() {
    attempt "$@" || exit 1
}

mt() {
    LD_LIBRARY_PATH=$library_path quietly "$binary" "$@"
}

# peer MODE PRECISION ARGUMENT…: prints a line of JSON, an empty object if it fails
peer() {
    local mode=$1 precision=$2
    shift 2
    GLIBC_TUNABLES=$tunables attempt "$python" "$root/benches/pytorch_peer.py" "$mode" --model "$folder/run-$precision" \
        --info "$folder/info-$precision.json" --precision "$precision" "${peer_flags[@]}" "$@" || echo '{}'
}

# The value of a key of JSON on stdin.
value() {
    "$python" -c '
import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1].split("."):
    value = value.get(key, "")
print(value)' "$1"
}

median() {
    sort -g | awk '
        NF { value[++n] = $1 }
        END {
            if (!n) exit 1
            print n % 2 ? value[(n + 1) / 2] : (value[n / 2] + value[n / 2 + 1]) / 2
        }'
}

# Prints 12345.6 as 12,346, and nothing as a dash.
grouped() {
    if [ -z "$1" ]; then
        echo –
        return
    fi
    printf '%.0f\n' "$1" | sed ':again; s/\([0-9]\)\([0-9]\{3\}\)\($\|,\)/\1,\2\3/; t again'
}

# figure NAME VALUE: records a figure of the turn
figure() {
    echo "$2" >>"$folder/figures-$1"
    say "turn $turn, $1: $(grouped "$2")"
}

# train_mt PRECISION UPDATES FLAG…
train_mt() {
    local precision=$1 last=$2
    shift 2
    mt train --config "$folder/config.toml" --run-dir "$folder/run-$precision" --overwrite "${mt_flags[@]}" \
        --set "runtime.precision=$precision" --set "train.max_updates=$last" "$@"
    # The first stretch is warm-up.
    grep '"event":"train"' "$folder/run-$precision/log.jsonl" \
        | sed -n "2,$((updates / log_every))"'s/.*"tokens_per_second":\([0-9.eE+]*\).*/\1/p' | median || fail "mt's log has no training speed"
}

# The seconds that mt takes to translate a file.
translate_mt() {
    local precision=$1 beam=$2 input=$3 start=$EPOCHREALTIME
    mt translate --model "$folder/run-$precision" --beam "$beam" --patience 0 --input "$input" --output "$input.out" "${mt_flags[@]}"
    awk -v start="$start" -v end="$EPOCHREALTIME" 'BEGIN { print end - start }'
}

# Sentences per second. If a disturbance made the first pass longer than all passes, measures again.
speed_of_mt() {
    local once repeated attempt
    for attempt in 1 2 3; do
        [ "$attempt" -eq 1 ] || say "$((passes + 1)) passes took no longer than one ($repeated and $once s): once more"
        once=$(translate_mt "$1" "$2" "$folder/sentences") || exit 1
        repeated=$(translate_mt "$1" "$2" "$folder/sentences-repeated") || exit 1
        if awk -v once="$once" -v repeated="$repeated" -v sentences=$((passes * window)) \
            'BEGIN { if (repeated <= once) exit 1; print sentences / (repeated - once) }'; then
            return
        fi
    done
    say "the machine is too busy to measure; raise --passes"
}

# The median of figures, or nothing if there are none.
median_of() {
    [ ! -e "$folder/figures-$1" ] || median <"$folder/figures-$1" || true
}

# ratio NAME PEER: the ratio of their medians
ratio() {
    awk -v this="$(median_of "$1")" -v peer="$(median_of "$2")" 'BEGIN { if (this && peer) printf "%.2f", this / peer }'
}

# row TEXT NAME RATIO
row() {
    local figure line="| $1 |"
    while read -r figure; do
        line+=" $(grouped "$figure") |"
    done <"$folder/figures-$2"
    echo "$line **$(grouped "$(median_of "$2")")** | $3 |"
}

# The head of a table with a column per turn.
head_of_table() {
    local turn first="|" second="|---|"
    for ((turn = 1; turn <= turns; turn++)); do
        first+=" | turn $turn"
        second+="---:|"
    done
    echo "$first | median | ratio |"
    echo "$second---:|---:|"
}

# full_updates COMMAND…: runs a program that times full updates
full_updates() {
    attempt env LD_LIBRARY_PATH="$library_path" GLIBC_TUNABLES=$tunables "$@"
}

# speed_of_step COMMAND…: target tokens per second of full updates, nothing if it fails
speed_of_step() {
    local line
    line=$(full_updates "$@") || return 0
    echo "$line" >>"$folder/steps"
    echo "$line" >&2
    sed -n 's/.* \([0-9]*\) target tokens\/s.*/\1/p' <<<"$line"
}

# First a profile of each shape, which tells the most in the least time; then the sides in turns.
full_length() {
    local shape precision speed who
    [ -x "$step" ] || fail "$step is missing; build it with 'scripts/gpu-test.sh build', or name it with --step"
    step=$(realpath "$step")
    for shape in $shapes; do
        flags_of "$shape"
        for precision in $precisions; do
            full_updates "$step" "${flags[@]}" --precision "$precision" --profile || continue
            echo
        done
    done
    head_of_table
    : >"$folder/steps"
    for shape in $shapes; do
        flags_of "$shape"
        for precision in $precisions; do
            rm -f "$folder"/figures-*
            for ((turn = 1; turn <= turns; turn++)); do
                speed=$(speed_of_step "$step" "${flags[@]}" --precision "$precision")
                figure mt "$speed"
                speed=$(speed_of_step "$python" "$root/benches/pytorch_train.py" "${flags[@]}" --precision "$precision")
                figure PyTorch "$speed"
                [ -n "$compile" ] || continue
                speed=$(speed_of_step "$python" "$root/benches/pytorch_train.py" "${flags[@]}" --precision "$precision" --compile)
                figure compiled "$speed"
            done
            for who in PyTorch compiled mt; do
                [ ! -e "$folder/figures-$who" ] || row "$shape, $precision, $who, target tokens/s" "$who" "$(ratio "$who" PyTorch)"
            done
        done
    done
    echo
    cat "$folder/steps"
}

# flags_of SHAPE: sets `flags`
flags_of() {
    local counts=(--warmup 8 --updates 20) size=(--sentences 250 --length 100)
    # Updates take a millisecond each: with fewer of them, the GPU's rising clock would take up half of the time.
    [ "$1" != tiny ] || counts=(--warmup 100 --updates 300) size=(--sentences 100 --length 41)
    [ -z "$quick" ] || counts=(--warmup 1 --updates 5) size=()
    flags=(--shape "$1" --device "$device" "${size[@]}" "${counts[@]}")
    [ -z "$threads" ] || flags+=(--threads "$threads")
}

if [ -n "$shapes" ]; then
    full_length
    exit
fi

{
    cat <<END
extends = '$config'

[data]
root = '$data'
train = [{ source = "train.en", target = "train.de" }]
valid = { source = "valid.en", target = "valid.de" }
test = { source = "$test.en", target = "$test.de" }

[tokenizer]
joint = true
dropout = 0.0

[valid]
every = 0

[train]
accumulate = 1
max_epochs = 0
log_every = $log_every
save_every = 1000000
average_last = 0
exponential_average = 0.0
END
    if [ -n "$base" ]; then
        cat <<END
batch_tokens = 4096
schedule = { kind = "inverse_sqrt", learning_rate = 5e-4, warmup = 500 }

[model]
preset = "transformer-base"
END
    fi
} >"$folder/config.toml"

awk -v lines="$window" '
    { line[n++] = $0 }
    END { for (i = 0; i < lines; i++) print line[i % n] }' "$data/$test.en" >"$folder/sentences"
for ((pass = 0; pass <= passes; pass++)); do cat "$folder/sentences"; done >"$folder/sentences-repeated"

# rows TEXT NAME: the rows of mt and PyTorch
rows() {
    row "$1, \`mt\`" "$2-mt" "$(ratio "$2-mt" "$2-PyTorch")"
    row "$1, PyTorch" "$2-PyTorch" ""
}

# Prints what was measured, and the head of the table.
title() {
    local info=$1 hardware cuda
    hardware=$(value gpu <"$folder/peer")
    if [ -z "$hardware" ]; then
        hardware="${threads:-all} threads of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    fi
    cuda=$(value cuda <"$folder/peer")
    echo "$(date '+%-d %B %Y'), $hardware, \`$("$binary" --version)\`, PyTorch $(value torch <"$folder/peer")${cuda:+ with CUDA $cuda}."
    echo "$(value config.model.encoder_layers <"$info")+$(value config.model.decoder_layers <"$info") layers," \
        "$(value config.model.d_model <"$info")/$(value config.model.d_ff <"$info"), $(value config.model.heads <"$info") heads," \
        "V $(grouped "$(value vocabulary.target <"$info")"), $(grouped "$(value parameters.total <"$info")") parameters;" \
        "$(basename "$data") in batches of $(grouped "$(value config.train.batch_tokens <"$info")") padded tokens, $updates updates;" \
        "decoding in batches of $(grouped "$(value config.decode.batch_tokens <"$info")")."
    echo
    head_of_table
}

# train_peer NAME FLAG…: records PyTorch's speed of training in a precision, under a name
train_peer() {
    local name=$1
    shift
    peer train "$precision" --source "$folder/train.en.subwords" --target "$folder/train.de.subwords" \
        --updates "$updates" --log-every "$log_every" "$@" >"$folder/result"
    # A run that failed does not say what it ran on.
    [ "$(cat "$folder/result")" = "{}" ] || cp "$folder/result" "$folder/peer"
    figure "$name" "$(value target_tokens_per_second <"$folder/result")"
}

echo '{}' >"$folder/peer"
titled=
for precision in $precisions; do
    for ((turn = 1; turn <= turns; turn++)); do
        last=$((turn == turns && model_updates > updates ? model_updates : updates))
        speed=$(train_mt "$precision" "$last" "$@")
        figure "train-$precision-mt" "$speed"
        if [ "$turn" -eq 1 ]; then
            mt info "$folder/run-$precision" --json >"$folder/info-$precision.json"
            # Every run has the same vocabulary.
            for file in "$data"/train.{en,de} "$folder/sentences"; do
                mt tokenize --model "$folder/run-$precision" --input "$file" >"$folder/$(basename "$file").subwords"
            done
        fi
        train_peer "train-$precision-PyTorch"
        [ -z "$compile" ] || train_peer "train-$precision-compiled" --compile
    done
    [ -n "$titled" ] || title "$folder/info-$precision.json"
    titled=1
    text="Training, $precision, target tokens/s"
    rows "$text" "train-$precision"
    [ -z "$compile" ] || row "$text, compiled PyTorch" "train-$precision-compiled" "$(ratio "train-$precision-compiled" "train-$precision-PyTorch")"
    same=
    for beam in 1 4; do
        for ((turn = 1; turn <= turns; turn++)); do
            speed=$(speed_of_mt "$precision" "$beam") || speed=
            figure "beam$beam-$precision-mt" "$speed"
            peer decode "$precision" --input "$folder/sentences.subwords" --output "$folder/translated" \
                --beam "$beam" --repeat "$passes" >"$folder/result"
            speed=$(value sentences_per_second <"$folder/result")
            figure "beam$beam-$precision-PyTorch" "$speed"
        done
        name=$([ "$beam" -eq 1 ] && echo Greedy || echo "Beam $beam")
        rows "$name, $precision, sentences/s" "beam$beam-$precision"
        if [ -n "$speed" ]; then
            mt detokenize --model "$folder/run-$precision" --target --input "$folder/translated" >"$folder/translated.text"
            equal=$(awk 'NR == FNR { line[FNR] = $0; next } line[FNR] == $0 { same++ } END { print same + 0 }' \
                "$folder/translated.text" "$folder/sentences.out") || equal=–
            tokens=$(value target_tokens <"$folder/result" | awk -v lines="$window" '{ printf "%.1f", $1 / lines }')
            same+=" $name: $equal of $window, of $tokens tokens on average."
        fi
    done
    echo "Translations that are the same, $precision.$same" >>"$folder/same"
done
echo
cat "$folder/same"
