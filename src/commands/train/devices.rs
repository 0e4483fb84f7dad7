//! `mt train --devices`: a process for each of several GPUs of this machine.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGINT;

use crate::cli::Gpus;
use crate::commands::shared::signals::{self, Children};
use crate::console::messages;
use crate::device;
use crate::error::{Error, Result};
use crate::ranks::Ranks;
use crate::ranks::launch::variables_of;

/// How long the other processes have for their own end, once one has failed: they notice it themselves.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How often to look whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The numbers of the GPUs that are asked for.
pub(super) fn numbers(gpus: &Gpus) -> Result<Vec<usize>> {
    if !cfg!(feature = "cuda") {
        let error = Error::usage("--devices needs GPUs, and this mt was built without CUDA");
        return Err(error.help("build one with `make cuda`; on processors, start several ranks with `mpirun`"));
    }
    let there_are = device::gpus()?;
    let these = match gpus {
        Gpus::All => (0..there_are).collect(),
        Gpus::First(count) => (0..*count).collect(),
        Gpus::These(numbers) => numbers.clone(),
    };
    if these.is_empty() || these.iter().any(|number| *number >= there_are) {
        let there = match there_are {
            0 => "no NVIDIA GPU was found".to_owned(),
            1 => "this machine has 1 GPU, number 0".to_owned(),
            _ => format!("this machine has {there_are} GPUs, numbers 0 to {}", there_are - 1),
        };
        let error = Error::usage(format!("--devices: {there}"));
        return Err(error.help("$CUDA_VISIBLE_DEVICES, where it is set, chooses the GPUs that are counted"));
    }
    Ok(these)
}

/// The flag, for another command; empty without it.
pub(super) fn flag(gpus: Option<&Gpus>) -> String {
    match gpus {
        None => String::new(),
        Some(Gpus::All) => " --devices all".to_owned(),
        Some(Gpus::First(count)) => format!(" --devices {count}"),
        Some(Gpus::These(numbers)) => {
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            format!(" --devices {}", numbers.join(","))
        }
    }
}

/// Starts this command once for each GPU, and ends as they do. What went wrong, they say themselves.
pub(super) fn start(gpus: &[usize]) -> Result<Infallible> {
    let failed = |error: std::io::Error| Error::failure(format!("cannot start a process for a GPU: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).map_err(failed)?.port();
    // Keyed anew in each process.
    let name = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let children = Children::default();
    let running = || children.lock().unwrap_or_else(PoisonError::into_inner);
    signals::pass_on(children.clone())?;
    for rank in 0..gpus.len() {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).stdin(Stdio::null());
        command.envs(variables_of(Ranks { rank, count: gpus.len() }, port, &name));
        // Ctrl-C reaches this process alone, which passes it on.
        command.process_group(0);
        end_with_this(&mut command);
        if rank > 0 {
            command.stdout(Stdio::null());
        }
        let started = command.spawn().map_err(failed).inspect_err(|_| end_all(&mut running()))?;
        running().push(Some(started));
    }
    let (mut code, mut since): (i32, Option<Instant>) = (0, None);
    while running().iter().any(Option::is_some) {
        for (rank, slot) in running().iter_mut().enumerate() {
            let Some(status) = slot.as_mut().map(Child::try_wait).transpose().map_err(failed)?.flatten() else {
                continue;
            };
            *slot = None;
            if status.success() {
                continue;
            }
            // If a process has ended in another way, it has said why.
            if let Some(signal) = status.signal().filter(|signal| *signal != SIGINT) {
                messages(format_args!("error: rank {rank}, on GPU {}, was ended by signal {signal}", gpus[rank]));
            }
            // Those that end because another has failed end with 1.
            code = if code <= 1 { code_of(status) } else { code };
            since = since.or_else(|| Some(Instant::now()));
        }
        if since.is_some_and(|since| since.elapsed() > AFTER_FAILURE) {
            end_all(&mut running());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    if code == INTERRUPTED { signals::end_by(SIGINT) } else { signal_hook::low_level::exit(code) }
}

/// The exit code after SIGINT.
const INTERRUPTED: i32 = 128 + SIGINT;

fn code_of(status: ExitStatus) -> i32 {
    if status.signal() == Some(SIGINT) { INTERRUPTED } else { status.code().unwrap_or(1) }
}

/// Lets the end of this process stop the one that is started, as SIGTERM does.
fn end_with_this(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        let this = std::process::id();
        // SAFETY: both calls may be made between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong);
                let is_there = libc::getppid() as u32 == this;
                if is_there { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
            });
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// Ends processes that do not end themselves.
fn end_all(running: &mut [Option<Child>]) {
    for process in running.iter_mut().flatten() {
        // It may have ended meanwhile.
        let _ = process.kill();
        let _ = process.wait();
    }
    running.iter_mut().for_each(|process| *process = None);
}
