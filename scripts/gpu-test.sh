#!/usr/bin/env bash
# Tests on a GPU: the engine and its kernels, forward and backward, the optimizer and decoding, compared with the processor
# (tests/gpu_engine); then the commands end to end on data/quickstart; then plain operations, and a small model learned in f32
# and bf16 (tests/device.rs).
#
#   scripts/gpu-test.sh [DEVICE]        build and run; DEVICE: cuda (the default), cuda:1, ...
#   scripts/gpu-test.sh build           only build, and pack target/gpu-test.tar.xz for another machine
#   scripts/gpu-test.sh run [DEVICE]    only run what was built, or unpacked there: no Rust is needed
#   scripts/gpu-test.sh sanitize [DEVICE] [NAME]
#                                       only the tests of tests/gpu_engine whose names contain NAME (all), each watched by
#                                       compute-sanitizer of the CUDA toolkit: accesses to memory, races of threads
#
# The other machine needs a checkout of this repository, with the pack unpacked in its root (tar xf gpu-test.tar.xz; without
# xz, python3 -m tarfile -e gpu-test.tar.xz .).
# `run cpu` is a trial without a GPU: tests/device.rs runs the plain operations on the processor, the commands its own.
# The tests of a file run in one process, for 200 seconds at most (MT_GPU_TEST_LIMIT). If one fails, each runs again in a
# process of its own, for 40: what one does to the device does not affect the next. The commands have three minutes. All
# tests run, whatever fails, unless a second one takes too long; those that failed are named at the end. A failed test runs
# once more, waiting for every kernel, so that the message names the kernel that fails. CUDA's libraries may be those that
# came with PyTorch.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

folder=target/gpu-test
tests="gpu_engine device"
mt=$folder/mt

fail() {
    echo "gpu-test: $*" >&2
    exit 1
}

# Builds and prints the executable that cargo names.
built() {
    scripts/cuda-build.sh "$@" 2>&1 | tee >(cat >&2) | sed -n 's/.*Executable.*(\(.*\))$/\1/p'
}

build() {
    local test executable tool
    # Before a build that takes long.
    for tool in strip:binutils xz:xz-utils; do
        command -v "${tool%:*}" >/dev/null || fail "${tool%:*} is missing; on Debian: apt-get install ${tool#*:}"
    done
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
    # The executables share Candle's kernels: only a dictionary as large as all of them finds the repetition.
    XZ_OPT=--lzma2=preset=6,dict=256MiB tar -cJf "$folder.tar.xz" "$folder"
    echo "packed $folder.tar.xz, $(du -m "$folder.tar.xz" | cut -f 1) MiB"
}

# The folders of the CUDA libraries that came with Python's torch, if it is installed.
libraries() {
    "${PYTHON:-python3}" -c '
import glob, importlib.util, os
torch = importlib.util.find_spec("torch")
packages = os.path.dirname(os.path.dirname(torch.origin)) if torch else ""
print(":".join(sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))))' 2>/dev/null || true
}

failed=()
late=0
# Seconds for all tests of an executable. A GPU needs a fraction of it; where time on one is limited, a kernel that hangs must
# not use it up.
whole_limit=${MT_GPU_TEST_LIMIT:-200}

# Whether `timeout` ended a command, which then had this status.
is_late() {
    [ "$1" -eq 124 ] || [ "$1" -eq 137 ]
}

# part LIMIT NAME COMMAND…: reports whether it passed and how long it took; shows its output only if it failed.
part() {
    local limit=$1 name=$2 start=$SECONDS status=0
    shift 2
    timeout --kill-after=10 "$limit" "$@" >"$work/output" 2>&1 </dev/null || status=$?
    if [ "$status" -eq 0 ]; then
        echo "ok      $name ($((SECONDS - start)) s)"
        return
    fi
    failed+=("$name")
    echo "FAILED  $name ($((SECONDS - start)) s, status $status)"
    tail -n 40 "$work/output"
    if is_late "$status"; then
        late=$((late + 1))
        [ "$late" -lt 2 ] || fail "two took longer than they may; ${#failed[@]} failed so far: ${failed[*]}"
    elif [ "$MT_TEST_DEVICE" != cpu ]; then
        echo "once more, each kernel waited for:"
        CUDA_LAUNCH_BLOCKING=1 timeout --kill-after=10 "$limit" "$@" 2>&1 </dev/null | tail -n 20 || true
    fi
}

# tests_in FILE: the names of an executable's tests.
tests_in() {
    local names
    [ -x "$folder/$1" ] || fail "$folder/$1 is missing; run 'scripts/gpu-test.sh build'"
    names=$("$folder/$1" --list --format terse | sed -n 's/: test$//p')
    [ -n "$names" ] || fail "$folder/$1 names no tests"
    echo "$names"
}

# tests_of FILE: all tests of an executable.
tests_of() {
    local test=$1 limit=$whole_limit name names start=$SECONDS status=0 outcome=failed before=${#failed[@]}
    names=$(tests_in "$test")
    timeout --kill-after=10 "$limit" "$folder/$test" --test-threads 1 >"$work/whole" 2>&1 </dev/null || status=$?
    if [ "$status" -eq 0 ]; then
        echo "ok      tests/$test, $(wc -w <<<"$names") tests ($((SECONDS - start)) s)"
        return
    fi
    if is_late "$status"; then
        outcome="took longer than $limit s"
        tail -n 5 "$work/whole"
    fi
    echo "        tests/$test $outcome ($((SECONDS - start)) s): now each of its tests alone"
    for name in $names; do
        part 40 "$name" "$folder/$test" --test-threads 1 --exact "$name"
    done
    if [ ${#failed[@]} -eq "$before" ]; then
        failed+=("tests/$test in one process")
        tail -n 40 "$work/whole"
    fi
}

# Where a part's output goes, and where CUDA is.
begin() {
    export MT_TEST_DEVICE=$1
    local found
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    if [ "$MT_TEST_DEVICE" != cpu ]; then
        found=$(libraries)
        [ -z "$found" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found
        # The driver compiles only once, even without a home directory.
        export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$PWD/.cuda/cache}
    fi
}

# Says at the end which parts failed.
end() {
    [ ${#failed[@]} -eq 0 ] || fail "${#failed[@]} failed: ${failed[*]}"
    echo "gpu-test: passed on $MT_TEST_DEVICE"
}

run() {
    local precision
    begin "$1"
    [ -x "$mt" ] || fail "nothing is built; run 'scripts/gpu-test.sh build'"
    # Says what is missing, once, instead of in every test.
    "$mt" train --config configs/quickstart.toml --run-dir "$work/run" --device "$MT_TEST_DEVICE" --dry-run -q >/dev/null ||
        fail "$MT_TEST_DEVICE cannot be used; nothing was tested"
    tests_of gpu_engine
    for precision in f32 bf16; do
        part 180 "training and translation, $precision" bash "$PWD/scripts/gpu-test.sh" end-to-end "$MT_TEST_DEVICE" "$precision"
        grep '^beam' "$work/output" || true
    done
    tests_of device
    end
}

# sanitize DEVICE NAME. A test may take MT_GPU_TEST_LIMIT seconds; one that takes longer counts as failed, and the next one follows.
sanitize() {
    local tool name names status
    begin "$1"
    command -v compute-sanitizer >/dev/null || fail "compute-sanitizer is missing; it is in the bin folder of the CUDA toolkit"
    names=$(tests_in gpu_engine)
    names=$(grep -F -- "$2" <<<"$names") || fail "no test of tests/gpu_engine has '$2' in its name"
    for tool in memcheck racecheck; do
        for name in $names; do
            status=0
            timeout --kill-after=10 "$whole_limit" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$folder/gpu_engine" --test-threads 1 --exact "$name" >"$work/output" 2>&1 </dev/null || status=$?
            if [ "$status" -eq 0 ]; then
                echo "ok      $tool: $name"
            elif is_late "$status"; then
                echo "FAILED  $tool: $name: not over after $whole_limit s"
                failed+=("$tool: $name")
            else
                echo "FAILED  $tool: $name (status $status)"
                failed+=("$tool: $name")
                tail -n 40 "$work/output"
            fi
        done
    done
    end
}

# Trains a small model in two runs and translates with it on the device and on the processor.
end_to_end() {
    local device=$1 precision=$2 beam same least=95
    [ "$precision" != bf16 ] || least=75
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    head -n 100 data/quickstart/test.en >"$work/source"
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
        # Rounding decides if two words are nearly equally likely; in bf16 more often (98 and 91 were the same on an H100).
        same=$(paste -d '\n' "$work/here" "$work/there" | awk 'NR % 2 { first = $0; next } { same += $0 == first } END { print same + 0 }')
        echo "beam $beam: $same of 100 translations are the processor's"
        [ "$same" -ge "$least" ] || fail "translations differ: $same of 100 are the same, fewer than $least"
    done
}

case ${1:-cuda} in
build) build ;;
run) run "${2:-cuda}" ;;
sanitize) sanitize "${2:-cuda}" "${3:-}" ;;
end-to-end) end_to_end "$2" "$3" ;;
libraries) libraries ;;
cuda | cuda:*)
    build
    run "${1:-cuda}"
    ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
