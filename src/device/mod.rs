//! Devices and threads.

#[cfg(feature = "cuda")]
mod cuda;
pub mod libraries;
pub mod processor;

use std::path::Path;
use std::str::FromStr;

use candle_core::Device;

use crate::console::note;
use crate::error::{Error, Result};

/// What `--device` or `runtime.device` may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// `auto`: the first GPU that this build can use, else the processor.
    Auto,
    /// `cpu`: the processor.
    Cpu,
    /// `cuda`: NVIDIA's first GPU; for the ranks of a run, a GPU for each.
    AnyCuda,
    /// `cuda:N`: NVIDIA's GPU of this number, from 0.
    Cuda(usize),
    /// `metal`: Apple's GPU.
    Metal,
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => return Ok(Self::Auto),
            "cpu" => return Ok(Self::Cpu),
            "cuda" => return Ok(Self::AnyCuda),
            "metal" => return Ok(Self::Metal),
            _ => {}
        }
        let Some(index) = name.strip_prefix("cuda:") else {
            let error = Error::usage(format!("unknown device `{name}`"));
            return Err(error.help("use auto, cpu, cuda, cuda:N or metal"));
        };
        // `parse` would also accept a sign.
        let digits = index.bytes().all(|byte| byte.is_ascii_digit());
        match index.parse() {
            Ok(index) if digits => Ok(Self::Cuda(index)),
            _ => {
                let error = Error::usage(format!("unknown device `{name}`: `cuda:` needs the number of a GPU"));
                Err(error.help("the first GPU is cuda:0"))
            }
        }
    }
}

/// Opens the device that `--device` or `runtime.device` names.
///
/// # Errors
/// There is no such device, or it cannot be used.
pub fn open(name: &str) -> Result<Device> {
    open_for(name, 0)
}

/// Opens the device that is named. Of several processes of this machine that train together, this is number `process`,
/// from 0: where no GPU is chosen, each takes one of its own, as long as there are enough.
///
/// # Errors
/// As [`open`].
pub fn open_for(name: &str, process: usize) -> Result<Device> {
    match name.parse()? {
        DeviceName::Auto => Ok(automatic(process)),
        DeviceName::Cpu => Ok(Device::Cpu),
        DeviceName::AnyCuda => open_cuda(process % gpus()?.max(1)),
        DeviceName::Cuda(index) => open_cuda(index),
        DeviceName::Metal => open_metal(),
    }
}

/// How many of NVIDIA's GPUs this build can use on this machine.
///
/// # Errors
/// The driver fails.
pub fn gpus() -> Result<usize> {
    #[cfg(feature = "cuda")]
    return cuda::there_are();
    #[cfg(not(feature = "cuda"))]
    Ok(0)
}

/// A GPU that this build can use, else the processor. Says so when there is a GPU that cannot be used.
fn automatic(process: usize) -> Device {
    let cuda = gpus().and_then(|count| if count == 0 { Ok(None) } else { open_cuda(process % count).map(Some) });
    match cuda {
        Ok(None) => {}
        Ok(Some(device)) => return device,
        Err(error) => crate::console::message(format_args!("warning: working on the CPU: {error}")),
    }
    if cfg!(feature = "metal")
        && let Ok(device) = open_metal()
    {
        return device;
    }
    Device::Cpu
}

#[cfg(feature = "cuda")]
use cuda::open as open_cuda;

#[cfg(not(feature = "cuda"))]
fn open_cuda(_: usize) -> Result<Device> {
    Err(Error::usage("this mt was built without CUDA").help("build one with `make cuda`, or use --device cpu"))
}

fn open_metal() -> Result<Device> {
    if !cfg!(feature = "metal") {
        let error = Error::usage("this mt was built without Metal");
        return Err(
            error.help("on a Mac, build one with `cargo build --release --features metal`; or use --device cpu")
        );
    }
    Device::new_metal(0).map_err(|error| {
        Error::failure("the GPU could not be opened with Metal").help("use --device cpu").caused_by(error)
    })
}

/// Sets the number of threads of all parallel work; 0 takes one per core. Must come before any parallel work. There are
/// at most four per core, since more would spend most of their time waiting for each other.
///
/// # Errors
/// The system does not allow as many.
pub fn set_threads(threads: usize) -> Result<()> {
    const A_CORE: usize = 4;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = A_CORE * cores;
    if threads > most {
        note(format_args!("{threads} threads were asked for; with {cores} cores, {most} are used"));
    }
    // Not rayon's default, which an environment variable changes.
    let threads = if threads == 0 { cores } else { threads.min(most) };
    match rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() {
        // The pool exists already, in tests that run several commands in one process.
        Err(error) if std::error::Error::source(&error).is_none() => Ok(()),
        Err(error) => {
            let help = "the system allows no further threads: give fewer with --threads, or raise the limit (`ulimit \
                        -u`, or that of the container)";
            Err(Error::failure(format!("cannot start the threads that compute: {error}")).caused_by(error).help(help))
        }
        Ok(()) => Ok(()),
    }
}

/// The cores for each of several processes that share this machine: all that this one may use, if each has its own, as
/// `mpirun` binds them; else its share.
pub fn cores_of_one(processes: usize) -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (usable / processes).max(1);
    #[cfg(target_os = "linux")]
    {
        // SAFETY: it only asks for a number.
        let all = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let bound_to = rustix::thread::sched_getaffinity(None).map_or(0, |cores| cores.count() as usize);
        if bound_to > 0 && bound_to * processes <= usize::try_from(all).unwrap_or(0) {
            return usable;
        }
    }
    share
}

/// Sets options of libraries, unless the environment does. Must be called before any thread is started.
pub fn configure_libraries() {
    // Candle's own pool spins after each large elementwise operation, against our threads: measured at 17 % of the time
    // of an update of transformer-tiny on two cores. Users may still set it.
    const SPIN: (&str, &str) = ("CANDLE_BARRIER_POOL_SPIN_LIMIT", "1");
    // For up to three ranks, Open MPI's non-blocking sums by default send everything to one rank and back, which takes
    // twice as long on a slow network as its ring does (docs/benchmarks.md).
    const RING: (&str, &str) = ("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "1");
    for (name, value) in [SPIN, RING] {
        if std::env::var_os(name).is_none() {
            // SAFETY: the process has one thread.
            unsafe { std::env::set_var(name, value) };
        }
    }
    // Without it, the allocator gives the buffers of an update back to the system before the next one takes them, and
    // clearing the pages again took 15 % of an update of transformer-base. Users may still set
    // MIMALLOC_PURGE_DELAY.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    const MILLISECONDS: std::ffi::c_long = 60_000;
    // SAFETY: sets a number.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, MILLISECONDS) };
}

/// Bytes of memory of this machine; `None` if the system does not report it.
pub fn machine_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes: u64 =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?.parse().ok()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = memory_limits(&groups, Path::new("/sys/fs/cgroup"));
    Some(limits.into_iter().fold(kilobytes * 1024, u64::min))
}

/// Bytes that a container, a batch system or a service manager allows this process: the limits of its control groups,
/// named as in `/proc/self/cgroup` (version 1 or 2), and of the groups around them. A container sees only its own
/// groups, at the `root`.
fn memory_limits(groups: &str, root: &Path) -> Vec<u64> {
    let files = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next()?, fields.next()?) {
            ("", group) => Some((root.to_path_buf(), group, "memory.max")),
            (controllers, group) if controllers.split(',').any(|controller| controller == "memory") => {
                Some((root.join("memory"), group, "memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    let limits = files.flat_map(|(root, group, file)| {
        let around = Path::new(group.trim_start_matches('/')).ancestors();
        // Without a limit the file says "max", or a number beyond any memory.
        around
            .filter_map(|group| std::fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse().ok())
            .collect::<Vec<_>>()
    });
    limits.collect()
}

/// Bytes of memory this process holds now, without mapped files, since the system takes those back when it needs room;
/// `None` if the system does not report it.
pub fn resident_memory() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_whitespace().skip(1).map_while(|number| number.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * page_size())
}

/// Bytes of a page of memory: 4096 on most machines, 16 or 64 KiB on some.
fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for (name, device) in [
            ("auto", DeviceName::Auto),
            ("cpu", DeviceName::Cpu),
            ("cuda", DeviceName::AnyCuda),
            ("cuda:0", DeviceName::Cuda(0)),
            ("cuda:12", DeviceName::Cuda(12)),
            ("metal", DeviceName::Metal),
        ] {
            assert_eq!(name.parse::<DeviceName>().unwrap(), device, "{name}");
        }
        for name in
            ["", "gpu", "CPU", "cuda0", "cuda:", "cuda:x", "cuda:+1", "cuda:-1", "cuda:1 ", "cuda:0x1", "metal:0"]
        {
            let error = name.parse::<DeviceName>().unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.what().contains(&format!("unknown device `{name}`")), "{error}");
        }
    }

    #[test]
    fn the_tightest_limit_on_memory_is_found_in_either_version_of_control_groups() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("memory.max", "4000\n");
        write("slurm/job/memory.max", "1000\n");
        write("slurm/job/step/memory.max", "max\n");
        write("other/memory.max", "1\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/user/memory.limit_in_bytes", "2000\n");
        for (groups, limits) in [
            ("0::/slurm/job/step\n", &[1000, 4000][..]),
            ("0::/\n", &[4000]),
            ("0::/unseen/../..\n", &[4000]),
            ("5:cpu,cpuacct:/user\n4:memory:/user\n1:name=systemd:/other\n", &[2000, 9_223_372_036_854_771_712]),
            ("", &[]),
            ("nonsense", &[]),
        ] {
            assert_eq!(memory_limits(groups, root.path()), limits, "{groups}");
        }
    }

    #[test]
    fn the_processor_is_always_there() {
        assert!(open("cpu").unwrap().is_cpu());
        open_for("auto", 1).unwrap();
    }
}
