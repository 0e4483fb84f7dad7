#!/usr/bin/env bash
# Builds mt with CUDA kernels: target/cuda/release/mt. No GPU is needed to build.
#
#   scripts/cuda-build.sh                     build
#   scripts/cuda-build.sh toolkit             only fetch and check the toolkit
#   scripts/cuda-build.sh test [ARGUMENT...]  cargo test, or any other command of cargo, with the same settings
#
# If nvcc is on the PATH, its toolkit is used. Otherwise the parts of CUDA 13.0 that the build needs are fetched from PyPI
# (0.1 GB, once) and set up as a toolkit in .cuda/.
#
# The binary starts on any machine; without CUDA it works on the CPU. The CUDA libraries are loaded when a GPU is asked for
# (src/device/cuda.rs). That needs
#
#   libcuda        from NVIDIA's driver, where the dynamic loader looks (LD_LIBRARY_PATH, ldconfig); the driver must support
#                  the CUDA version of the build: 13.0 for the fetched one
#   libcublasLt, libcublas, libcurand, libnvrtc
#                  from CUDA, of the build's major version; where the loader looks, else in lib64 of $CUDA_HOME, $CUDA_PATH
#                  or /usr/local/cuda. Those from PyPI (nvidia-cublas, nvidia-curand, nvidia-cuda-nvrtc) work too, with
#                  their folder nvidia/cu13/lib on LD_LIBRARY_PATH
#
# How it works: the linker gets empty libraries in their place and leaves their functions undefined, to be resolved at the
# first call. So LD_BIND_NOW must not be set for this binary. CUDA's runtime (libcudart) is linked in.
#
#   CUDA_COMPUTE_CAP   GPU generation to build for, such as 90 for an H100; default: that of this machine's GPU, else 80
#                      (A100), whose kernels run on newer GPUs too. Of those for 90 and above, mt's own also run on newer GPUs,
#                      Candle's on that generation only
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

toolkit=$PWD/.cuda/toolkit
libraries=$PWD/.cuda/link
binary=target/cuda/release/mt

fail() {
    echo "cuda-build: $*" >&2
    exit 1
}

[[ $PWD != *[[:space:]]* ]] || fail "the path of this folder has a blank, which RUSTFLAGS cannot have: $PWD"

# Unpacks the wheels and gives them the layout of an installed toolkit: bin, include, nvvm, lib64.
fetch_toolkit() {
    command -v python3 >/dev/null || fail "python3 with pip is needed to fetch CUDA; or install the CUDA toolkit, so that nvcc is on the PATH"
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip; install python3-pip, or the CUDA toolkit"
    command -v cc >/dev/null || fail "a C compiler is needed (cc); install gcc"
    local parts=$PWD/.cuda/parts
    rm -rf "$parts" "$toolkit"
    # All of one release: Candle's bindings are chosen by nvcc's version.
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --no-compile --only-binary=:all: --target "$parts" \
        'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' \
        'nvidia-cuda-cccl==13.0.*'
    local tree=$parts/nvidia/cu13
    [ -d "$tree/bin" ] && [ -d "$tree/lib" ] || fail "the wheels have another layout than expected: no bin and lib in $tree"
    # Wheels do not always keep the executable bit.
    chmod +x "$tree"/bin/* "$tree"/nvvm/bin/*
    ln -s lib "$tree/lib64"
    mv "$tree" "$toolkit"
    rm -rf "$parts"
}

# Compiles a one-line kernel, to find a broken toolkit before Candle's kernels take eight minutes.
check_toolkit() {
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    echo '__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }' >"$folder/scale.cu"
    nvcc --ptx -arch="sm_$1" "$folder/scale.cu" -o "$folder/scale.ptx" && grep -q '\.entry' "$folder/scale.ptx" \
        || fail "nvcc wrote no PTX for compute capability $1"
    nvcc -c -arch="sm_$1" "$folder/scale.cu" -o "$folder/scale.o" \
        || fail "nvcc wrote no object for compute capability $1; is its host compiler (g++) there?"
}

# Sets up what the linker finds for -lcuda and the others: empty archives, and for -lcudart the static runtime, which Candle's
# compiled kernels call before main. GNU's linker leaves only the names in `functions` to the dynamic loader.
lay_out_libraries() {
    local library folder runtime
    rm -rf "$libraries"
    mkdir -p "$libraries"
    for library in cuda cublas cublasLt curand nvrtc; do
        ar rc "$libraries/lib$library.a"
    done
    echo '{ cu[A-Z]*; cublas*; curand*; nvrtc*; };' >"$libraries/functions"
    # nvcc prints the folders that it links from as "-L...".
    for folder in $(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ LIBRARIES=//p' | tr -d '"' | sed 's/ *-L/\n/g') \
        "$(dirname "$(cc -print-file-name=libcudart_static.a)")"; do
        runtime=$folder/libcudart_static.a
        if [ -f "$runtime" ]; then
            ln -s "$(realpath "$runtime")" "$libraries/libcudart.a"
            return
        fi
    done
    fail "libcudart_static.a is not among the libraries of $(command -v nvcc); install CUDA's runtime for development (cuda-cudart-dev)"
}

# Fails if anything would prevent the binary from starting on a machine without CUDA.
check_binary() {
    if readelf -d "$binary" | grep -E 'NEEDED.*lib(cuda|cublas|curand|nv)'; then
        fail "$binary needs CUDA libraries to start"
    fi
    # Functions bound at their first call have a slot in the linkage table; other references are resolved at startup.
    local name='(cu[A-Z]|cublas|curand|nvrtc)' references undefined
    references=$(readelf -rW "$binary" | grep -E " 0+ $name" || true)
    grep -q ' cuInit' <<<"$references" || fail "$binary has no slots for CUDA's functions; use another linker"
    if grep -vE 'JU?MP_SL' <<<"$references"; then
        fail "$binary needs these CUDA functions to start"
    fi
    # The linker was told to accept all undefined symbols.
    undefined=$(ldd -r "$binary" 2>&1 | grep 'undefined symbol' || true)
    if grep -vE "symbol: $name" <<<"$undefined" | grep .; then
        fail "$binary lacks these functions"
    fi
    env -u LD_BIND_NOW "$binary" --version || fail "$binary does not start"
}

if ! command -v nvcc >/dev/null; then
    [ -x "$toolkit/bin/nvcc" ] || fetch_toolkit
    export CUDA_HOME=$toolkit PATH=$toolkit/bin:$PATH
fi
lay_out_libraries

if [ -z "${CUDA_COMPUTE_CAP:-}" ]; then
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '.' || true)
    # Without a driver, nvidia-smi says so on stdout.
    # And there is no build for a compute capability below 8.0.
    [[ $capability =~ ^[0-9]+$ ]] && [ "$capability" -ge 80 ] || capability=80
    CUDA_COMPUTE_CAP=$capability
fi
export CUDA_COMPUTE_CAP

nvcc --version | tail -n 2
check_toolkit "$CUDA_COMPUTE_CAP"
command=${1:-build}
if [ "$command" = toolkit ]; then
    exit 0
fi

echo "building for compute capability $CUDA_COMPUTE_CAP; Candle's kernels take about eight minutes of one core"
# Lazy binding needs calls through the linkage table, which rustc only makes with less than full relro.
RUSTFLAGS+=" -L $libraries -C relro-level=partial -C link-arg=-Wl,-z,lazy"
RUSTFLAGS+=" -C link-arg=-Wl,--unresolved-symbols=ignore-all,--dynamic-list=$libraries/functions"
export RUSTFLAGS
cargo "$command" --release --locked --features cuda --target-dir target/cuda "${@:2}"
if [ "$command" = build ]; then
    check_binary
    echo "built $binary"
fi
