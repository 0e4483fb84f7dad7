#!/usr/bin/env bash
# The tests for a GPU: the engine and its kernels, forward and back, the optimizer and decoding held against the processor
# (tests/gpu_engine.rs), plain operations and a small model learned in f32 and bf16 (tests/device.rs), then the commands end
# to end on data/quickstart.
#
#   scripts/gpu-test.sh [DEVICE]        build and run; DEVICE: cuda (the default), cuda:1, ...
#   scripts/gpu-test.sh build           only build, and pack target/gpu-test.tar.xz for another machine
#   scripts/gpu-test.sh run [DEVICE]    only run what was built, or unpacked there: no Rust is needed
#
# On the other machine: a checkout of this repository, with the pack unpacked in its root (tar xf gpu-test.tar.xz).
# `run cpu` is a trial without a GPU: tests/device.rs runs the plain operations on the processor, the commands its own.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=target/gpu-test
tests="gpu_engine device"
mt=$folder/mt

fail() {
    echo "gpu-test: $*" >&2
    exit 1
}

# The executable that cargo has built and named.
built() {
    scripts/cuda-build.sh "$@" 2>&1 | tee >(cat >&2) | sed -n 's/.*Executable.*(\(.*\))$/\1/p'
}

build() {
    local test executable
    scripts/cuda-build.sh
    mkdir -p "$folder"
    strip -o "$mt" target/cuda/release/mt
    for test in $tests; do
        executable=$(built test --no-run --test "$test")
        [ -x "$executable" ] || fail "cargo named no executable of tests/$test.rs"
        strip -o "$folder/$test" "$executable"
    done
    executable=$(built test --no-run --bench train_step)
    [ -x "$executable" ] || fail "cargo named no executable of benches/train_step.rs"
    strip -o "$folder/train_step" "$executable"
    tar -cJf "$folder.tar.xz" "$folder"
    echo "packed $folder.tar.xz"
}

run() {
    local device=$1 test
    for test in $tests; do
        [ -x "$folder/$test" ] && [ -x "$mt" ] || fail "nothing is built; run 'scripts/gpu-test.sh build'"
        echo "tests/$test.rs on $device"
        MT_TEST_DEVICE=$device "$folder/$test" --test-threads 1
    done
    end_to_end "$device"
    echo "gpu-test: passed on $device"
}

# Trains a small model in two goes and translates with it on the device and on the processor.
end_to_end() {
    local device=$1 precision same
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    head -n 100 data/quickstart/test.en >"$work/source"
    for precision in f32 bf16; do
        echo "training and translation on $device, $precision"
        train() {
            "$mt" train --config configs/quickstart.toml --run-dir "$work/$precision" --device "$device" -q \
                --set runtime.precision="$precision" --set train.average_last=0 --set valid.max_sentences=50 \
                --set valid.every=100 --set train.save_every=100 "$@"
        }
        train --set train.max_updates=100
        train --set train.max_updates=200 --resume
        translate() {
            "$mt" translate --model "$work/$precision" --input "$work/source" --output "$work/$1" --device "$2" -q --beam "$3"
        }
        for beam in 1 4; do
            translate here cpu "$beam"
            translate there "$device" "$beam"
            # Rounding decides where two words are nearly as likely.
            same=$(paste -d '\n' "$work/here" "$work/there" | awk 'NR % 2 { first = $0; next } { same += $0 == first } END { print same }')
            echo "beam $beam: $same of 100 translations are the processor's"
            [ "$precision" = bf16 ] || [ "$same" -ge 95 ] || fail "translations differ: $same of 100 are the same"
        done
    done
}

case ${1:-cuda} in
build) build ;;
run) run "${2:-cuda}" ;;
cuda | cuda:*)
    build
    run "${1:-cuda}"
    ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
