//! Devices and threads.

use candle_core::Device;

use crate::error::{Error, Result};

/// The device named by `--device` or `runtime.device`: `auto`, `cpu`, `cuda`, `cuda:N` or `metal`.
pub fn open(name: &str) -> Result<Device> {
    match name {
        "cpu" => Ok(Device::Cpu),
        "auto" => Ok(Device::Cpu),
        _ if name != "metal" && !name.starts_with("cuda") => {
            let error = Error::usage(format!("there is no device `{name}`"));
            Err(error.help("use auto, cpu, cuda, cuda:N or metal"))
        }
        _ => {
            Err(Error::usage(format!("device `{name}` cannot be used: this version of mt runs on the processor only"))
                .help("use --device cpu"))
        }
    }
}

/// Sets the number of threads of all parallel work; 0 takes one per core. Must come before any parallel work.
pub fn set_threads(threads: usize) {
    // Fails only when the pool exists already, in tests that run several commands in one process.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
}

/// Settings of libraries that read them from the environment. Must be called before any thread is started.
pub fn configure_libraries() {
    // Candle's own pool spins after each large elementwise operation, against our threads: measured at 17 % of the time of
    // an update of transformer-tiny on two cores. Users may still set it.
    const SPIN: &str = "CANDLE_BARRIER_POOL_SPIN_LIMIT";
    if std::env::var_os(SPIN).is_none() {
        // SAFETY: the process has one thread.
        unsafe { std::env::set_var(SPIN, "1") };
    }
}

/// Bytes of memory this process holds now; `None` where the system does not say.
pub fn resident_memory() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}
