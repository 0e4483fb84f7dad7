//! NVIDIA's GPUs.
//!
//! `make cuda` links no CUDA library: the binary starts without them. The functions are bound when they are first
//! called, to the libraries that are loaded here; a call before that would end the process. So nothing of Candle's CUDA
//! part may be used before [`open`].

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::cuda_backend::kernels;

use super::libraries;
use crate::error::{Error, Result};

/// NVIDIA's GPU number `index`, from 0.
pub(super) fn open(index: usize) -> Result<Device> {
    load_driver()?;
    check_index(index, count()?)?;
    check_driver(driver_version()?, sys::CUDA_VERSION)?;
    if let Some(target) = target(kernels::UNARY.ptx()) {
        check_capability(index, capability(index)?, target)?;
    }
    load_libraries()?;
    device(index).map_err(|error| {
        let error = Error::failure(format!("the GPU cuda:{index} could not be opened")).caused_by(error);
        error.help("check with `nvidia-smi` whether it works and is free, or use --device cpu; -v shows CUDA's message")
    })
}

/// Candle's device, with a stream of its own: Candle's default stream is a different one in every thread.
fn device(index: usize) -> candle_core::Result<Device> {
    let device = Device::new_cuda_with_stream(index)?;
    // SAFETY: there is no other stream that events would have to order its memory with.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    Ok(device)
}

/// How many GPUs this machine has; 0 without a driver. An error means that there may be some, but the driver fails.
pub(super) fn there_are() -> Result<usize> {
    if load_driver().is_err() { Ok(0) } else { count() }
}

/// How many GPUs the driver has.
fn count() -> Result<usize> {
    match result::init().and_then(|()| result::device::get_count()) {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(driver_failed(error)),
    }
}

/// The newest CUDA that the driver supports, as CUDA numbers it: 13000 for 13.0.
fn driver_version() -> Result<u32> {
    let mut version = 0;
    // SAFETY: the driver is loaded, and writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(driver_failed)?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// The compute capability of a GPU: 90 for 9.0.
fn capability(index: usize) -> Result<usize> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let device = result::device::get(index as i32).map_err(driver_failed)?;
    // SAFETY: the device comes from the driver.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.map_err(driver_failed);
    Ok((attribute(MAJOR)? * 10 + attribute(MINOR)?) as usize)
}

fn driver_failed(error: result::DriverError) -> Error {
    let what = format!("NVIDIA's driver does not work: {:?}", error.0);
    Error::failure(what)
        .help("see what `nvidia-smi` says, or use --device cpu; after an update of the driver, restart the machine")
}

fn check_index(index: usize, count: usize) -> Result<()> {
    if count == 0 {
        let error = Error::failure("no NVIDIA GPU was found");
        return Err(error.help(
            "see whether `nvidia-smi` lists one that $CUDA_VISIBLE_DEVICES leaves visible, or use --device cpu",
        ));
    }
    if index >= count {
        let there =
            if count == 1 { "1 GPU, cuda:0".into() } else { format!("{count} GPUs, cuda:0 to cuda:{}", count - 1) };
        let error = Error::usage(format!("there is no device `cuda:{index}`: this machine has {there}"));
        return Err(error.help("$CUDA_VISIBLE_DEVICES, where it is set, chooses the GPUs that are counted"));
    }
    Ok(())
}

/// The oldest compute capability that the kernels are for, as in build.rs.
const OLDEST: usize = 80;

/// A driver runs kernels of its own CUDA version and of older ones.
fn check_driver(driver: u32, built: u32) -> Result<()> {
    if driver >= built {
        return Ok(());
    }
    let show = |version: u32| format!("{}.{}", version / 1000, version % 1000 / 10);
    let what = format!("NVIDIA's driver supports CUDA up to {}; this mt was built for {}", show(driver), show(built));
    Err(Error::failure(what).help("update the driver, build mt with an older CUDA toolkit, or use --device cpu"))
}

/// The `.target` of compiled kernels, without `sm_`: `80` or `90a`.
fn target(ptx: &str) -> Option<&str> {
    let rest = ptx.split_once(".target sm_")?.1;
    rest.split(|c: char| !c.is_ascii_alphanumeric()).next()
}

/// Kernels run on their generation of GPUs and on newer ones; kernels with a letter run only on their own.
fn check_capability(index: usize, gpu: usize, target: &str) -> Result<()> {
    let digits = target.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let Ok(built) = digits.parse::<usize>() else { return Ok(()) };
    let exact = digits.len() < target.len();
    if gpu == built || (gpu > built && !exact) {
        return Ok(());
    }
    let show = |capability: usize| format!("{}.{}", capability / 10, capability % 10);
    let newer = if exact { "" } else { " and newer" };
    let what = format!(
        "the GPU cuda:{index} has compute capability {}; this mt was built for {}{newer}",
        show(gpu),
        show(built)
    );
    Err(Error::failure(what).help(if gpu < OLDEST {
        "use --device cpu; the kernels need compute capability 8.0".to_owned()
    } else {
        format!("build one with `CUDA_COMPUTE_CAP={gpu} make cuda`, or use --device cpu")
    }))
}

fn load_driver() -> Result<()> {
    libraries::load("libcuda.so.1", &[]).map_err(|error| {
        let what = "NVIDIA's driver is missing: its library libcuda.so.1 could not be loaded";
        Error::failure(what).help("install the driver, or use --device cpu").caused_by(error)
    })
}

fn load_libraries() -> Result<()> {
    let folders = libraries::of_cuda();
    let major = sys::CUDA_VERSION / 1000;
    for library in names(major) {
        libraries::load(&library, &folders).map_err(|error| {
            let what = format!("{library} of CUDA {major} could not be loaded");
            let help = format!(
                "install CUDA {major} and put the folder of its libraries on LD_LIBRARY_PATH, or use --device cpu"
            );
            Error::failure(what).help(help).caused_by(error)
        })?;
    }
    Ok(())
}

/// The libraries that Candle calls besides the driver's, each before those that depend on it. Names as in CUDA 12 and
/// 13.
fn names(major: u32) -> [String; 4] {
    // cuRAND has version numbers of its own.
    [("cublasLt", major), ("cublas", major), ("curand", 10), ("nvrtc", major)]
        .map(|(name, version)| format!("lib{name}.so.{version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_held_to_the_number_of_gpus() {
        check_index(0, 1).unwrap();
        check_index(3, 4).unwrap();
        let none = check_index(0, 0).unwrap_err();
        assert_eq!((none.exit_code(), none.what()), (1, "no NVIDIA GPU was found"));
        let one = check_index(7, 1).unwrap_err();
        assert_eq!((one.exit_code(), one.what()), (2, "there is no device `cuda:7`: this machine has 1 GPU, cuda:0"));
        assert!(check_index(4, 4).unwrap_err().what().ends_with("4 GPUs, cuda:0 to cuda:3"));
    }

    #[test]
    fn a_driver_must_support_the_cuda_of_the_build() {
        check_driver(13000, 13000).unwrap();
        check_driver(13020, 12090).unwrap();
        let error = check_driver(12080, 13000).unwrap_err();
        assert_eq!(error.what(), "NVIDIA's driver supports CUDA up to 12.8; this mt was built for 13.0");
    }

    #[test]
    fn kernels_must_suit_the_gpu() {
        let target = |text| target(text).unwrap();
        assert_eq!(target("//\n.version 9.0\n.target sm_80\n.address_size 64\n"), "80");
        assert_eq!(target(".target sm_90a, debug\n"), "90a");
        for (gpu, target, fits) in
            [(80, "80", true), (120, "80", true), (75, "80", false), (90, "90a", true), (100, "90a", false)]
        {
            assert_eq!(check_capability(0, gpu, target).is_ok(), fits, "{gpu} {target}");
        }
        let error = check_capability(0, 75, "80").unwrap_err().to_string();
        assert!(error.contains("7.5") && error.contains("8.0 and newer") && error.contains("help: use --device cpu"));
        let error = check_capability(0, 100, "90a").unwrap_err().to_string();
        assert!(error.contains("CUDA_COMPUTE_CAP=100"));
        // The kernels of this build name their target.
        assert!(super::target(kernels::UNARY.ptx()).is_some());
    }

    #[test]
    fn libraries_have_the_version_of_the_build() {
        assert_eq!(names(13), ["libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libnvrtc.so.13"]);
    }
}
