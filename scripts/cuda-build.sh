#!/usr/bin/env bash
# Builds mt with CUDA kernels: target/cuda/release/mt. No GPU is needed to build.
#
#   scripts/cuda-build.sh            build
#   scripts/cuda-build.sh toolkit    only fetch and check the toolkit
#
# With nvcc on the PATH that toolkit is used. Otherwise the parts of CUDA 13.0 that the build needs come from PyPI
# (0.7 GB, once) and are laid out as a toolkit in .cuda/. The binary is linked against the CUDA libraries and starts only
# on a machine that has them.
#
#   CUDA_COMPUTE_CAP   GPU generation to build for, 90 for an H100; default: that of this machine's GPU, else 80 (A100),
#                      whose kernels newer GPUs run too
set -euo pipefail
cd "$(dirname "$0")/.."

toolkit=$PWD/.cuda/toolkit

fail() {
    echo "cuda-build: $*" >&2
    exit 1
}

# Unpacks the wheels and gives them the layout of an installed toolkit: bin, include, nvvm, lib64.
fetch_toolkit() {
    command -v python3 >/dev/null || fail "python3 with pip is needed to fetch CUDA; or install the CUDA toolkit, so that nvcc is on the PATH"
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip; install python3-pip, or the CUDA toolkit"
    command -v cc >/dev/null || fail "a C compiler is needed (cc); install gcc"
    local parts=$PWD/.cuda/parts
    rm -rf "$parts" "$toolkit"
    # One release for all: Candle's bindings are chosen by nvcc's version. cuRAND counts its own versions.
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --no-compile --only-binary=:all: --target "$parts" \
        'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' \
        'nvidia-cuda-cccl==13.0.*' 'nvidia-cublas==13.0.*' 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-curand==10.4.0.*'
    local tree=$parts/nvidia/cu13
    [ -d "$tree/bin" ] && [ -d "$tree/lib" ] || fail "the wheels have another layout than expected: no bin and lib in $tree"
    # Wheels do not always keep the run bit.
    chmod +x "$tree"/bin/* "$tree"/nvvm/bin/*
    ln -s lib "$tree/lib64"
    # The linker looks for libX.so; wheels have libX.so.N only.
    local library
    for library in "$tree"/lib/lib*.so.*; do
        ln -sf "$(basename "$library")" "${library%%.so.*}.so"
    done
    # The driver's library belongs to the machine that runs the binary: an empty one of that name satisfies the linker.
    cc -shared -fPIC -Wl,-soname,libcuda.so.1 -x c /dev/null -o "$tree/lib/libcuda.so"
    mv "$tree" "$toolkit"
    rm -rf "$parts"
}

# Compiles a one-line kernel, so that a broken toolkit is found before eight minutes of Candle's.
check_toolkit() {
    local folder
    folder=$(mktemp -d)
    echo '__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }' >"$folder/scale.cu"
    nvcc --ptx -arch="sm_$1" "$folder/scale.cu" -o "$folder/scale.ptx" && grep -q '\.entry' "$folder/scale.ptx" \
        || fail "nvcc wrote no PTX for compute capability $1"
    nvcc -c -arch="sm_$1" "$folder/scale.cu" -o "$folder/scale.o" \
        || fail "nvcc wrote no object for compute capability $1; is its host compiler (g++) there?"
    rm -r "$folder"
}

if ! command -v nvcc >/dev/null; then
    [ -x "$toolkit/bin/nvcc" ] || fetch_toolkit
    export CUDA_HOME=$toolkit PATH=$toolkit/bin:$PATH
    # The wheels' libraries refer to libraries that only a machine with a GPU has.
    export RUSTFLAGS="${RUSTFLAGS:-} -C link-arg=-Wl,--unresolved-symbols=ignore-all -L $toolkit/lib64"
fi

if [ -z "${CUDA_COMPUTE_CAP:-}" ]; then
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '.' || true)
    CUDA_COMPUTE_CAP=${capability:-80}
fi
export CUDA_COMPUTE_CAP

nvcc --version | tail -n 2
check_toolkit "$CUDA_COMPUTE_CAP"
if [ "${1:-}" = toolkit ]; then
    exit 0
fi

echo "building for compute capability $CUDA_COMPUTE_CAP; Candle's kernels take about eight minutes of one core"
cargo build --release --locked --features cuda --target-dir target/cuda
echo "built target/cuda/release/mt"
