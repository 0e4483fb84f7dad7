//! With the feature `cuda`, compiles the kernels of `src/gpu/kernels` into the binary: as machine code for the most
//! common generations of training GPUs, which starts at once, and as PTX, which the driver compiles for any other newer
//! GPU.

use std::path::PathBuf;
use std::process::Command;

/// The kernels use bfloat16 matrix products, which need this compute capability.
const OLDEST: u32 = 80;

/// The compute capability to build for: `CUDA_COMPUTE_CAP`, or the oldest if that is unset or empty.
fn compute_capability() -> u32 {
    let Some(text) = std::env::var_os("CUDA_COMPUTE_CAP").filter(|text| !text.is_empty()) else { return OLDEST };
    let text = text.to_string_lossy();
    match text.parse::<u32>() {
        Ok(target) => target,
        Err(_) => panic!(
            "CUDA_COMPUTE_CAP={text}: write the compute capability as a whole number without a point or letters, for \
             example 90 for 9.0, or do not set it"
        ),
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed=src/gpu/kernels");
    println!("cargo::rerun-if-env-changed=CUDA_COMPUTE_CAP");
    // Another toolkit: scripts/cuda-build.sh sets CUDA_HOME for the one that it has fetched.
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(nvcc) = std::env::split_paths(&path).map(|folder| folder.join("nvcc")).find(|file| file.is_file()) {
        println!("cargo::rerun-if-changed={}", nvcc.display());
    }
    let target = compute_capability();
    assert!(
        target >= OLDEST,
        "CUDA_COMPUTE_CAP={target}: the kernels of mt need a GPU of compute capability 8.0 or newer"
    );
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("kernels.fatbin");
    let mut nvcc = Command::new("nvcc");
    nvcc.args(["-fatbin", "-O3", "-std=c++17", "-Werror", "all-warnings"]);
    let finished = if target == OLDEST { &[OLDEST, 90][..] } else { &[target] };
    let kinds = finished.iter().map(|generation| format!("arch=compute_{generation},code=sm_{generation}"));
    for kind in kinds.chain([format!("arch=compute_{target},code=compute_{target}")]) {
        nvcc.arg("-gencode").arg(kind);
    }
    nvcc.arg("src/gpu/kernels/all.cu").arg("-o").arg(out);
    match nvcc.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("nvcc could not compile src/gpu/kernels: {status}"),
        Err(error) => panic!("nvcc could not be run ({error}); use `make cuda`, which finds or fetches one"),
    }
}
