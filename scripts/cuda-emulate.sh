#!/usr/bin/env bash
# Runs a program built with CUDA without a GPU, on a driver emulated by the processor (tests/emulator/driver.cpp): the GPU
# engine, its kernels and its calls of the driver and of cuBLASLt, slowly.
#
#   scripts/cuda-emulate.sh target/gpu-test/gpu_engine
#   scripts/cuda-emulate.sh target/gpu-test/mt train --device cuda --config … --set model.d_model=32 …
#
#   MT_EMULATED_DEVICES=2 scripts/cuda-emulate.sh target/gpu-test/mt train --devices 2 --set train.accumulate=2 …
#
# MT_TEST_DEVICE is cuda unless it is set. MT_EMULATED_BYTES limits the device's memory; MT_EMULATED_NCCL_FAILS=RANK:N lets
# operation N of a rank fail.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/target/emulated-cuda

[ $# -gt 0 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
mkdir -p "$folder"
sources=("$root"/tests/emulator/* "$root"/src/gpu/kernels/*)
if [ ! -e "$folder/libcuda.so.1" ] || [ -n "$(find "${sources[@]}" -newer "$folder/libcuda.so.1")" ]; then
    # The program loads libraries by name: one file serves as the driver and as all of them.
    "${CXX:-c++}" -std=c++17 -O2 -g -fPIC -shared -fsanitize=alignment -fsanitize-undefined-trap-on-error \
        -DMT_EMULATED -I "$root/tests/emulator" \
        "$root/tests/emulator/driver.cpp" -o "$folder/new.so"
    for library in libcublasLt.so.1{2,3} libcublas.so.1{2,3} libcurand.so.10 libnvrtc.so.1{2,3} libnccl.so.2; do
        ln -sf libcuda.so.1 "$folder/$library"
    done
    # Another program may be running on the old one.
    mv "$folder/new.so" "$folder/libcuda.so.1"
fi
export MT_TEST_DEVICE=${MT_TEST_DEVICE:-cuda}
LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$@"
