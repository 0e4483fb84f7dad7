//! With the feature `cuda`, compiles the kernels of `src/gpu/kernels` into PTX, which the binary carries.

use std::path::PathBuf;
use std::process::Command;

/// The kernels use products of bfloat16, which came with this compute capability.
const OLDEST: u32 = 80;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed=src/gpu/kernels");
    println!("cargo::rerun-if-env-changed=CUDA_COMPUTE_CAP");
    let target = std::env::var("CUDA_COMPUTE_CAP").ok().and_then(|text| text.parse().ok()).unwrap_or(OLDEST);
    assert!(
        target >= OLDEST,
        "CUDA_COMPUTE_CAP={target}: the kernels of mt need a GPU of compute capability 8.0 or newer"
    );
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("kernels.ptx");
    let mut nvcc = Command::new("nvcc");
    nvcc.args(["--ptx", "-O3", "-std=c++17", "-Werror", "all-warnings"]).arg(format!("-arch=sm_{target}"));
    nvcc.arg("src/gpu/kernels/all.cu").arg("-o").arg(out);
    match nvcc.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("nvcc could not compile src/gpu/kernels: {status}"),
        Err(error) => panic!("nvcc could not be run ({error}); use `make cuda`, which finds or fetches one"),
    }
}
