//! Signals: during training they make it save and stop; any other command ends, and reports how far it has come.

use std::io::{IsTerminal, Write};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXCPU};

use crate::console::message;
use crate::error::{Error, ErrorKind, Result};
use crate::run::Stop;
use crate::train::StopReason;

/// Signals this soon after the first count as the same request: `timeout` sends two, and so do nervous fingers.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Set if this is the first process of a container: whether signals end it, as long as nothing listens for them.
static ENDS: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Set by the signal handler when a signal for [`at_the_end`] arrives.
static ARRIVED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// How long to wait at the end for the message about a signal; more than enough.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Makes signals end the first process of a container, which they do not do by default.
pub(crate) fn end_the_first_process() {
    if std::process::id() != 1 {
        return;
    }
    let ends = ENDS.get_or_init(|| Arc::new(AtomicBool::new(true)));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // If this fails, the signal stays without effect.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, exit_code(signal), ends.clone());
    }
}

/// Listens for SIGINT, SIGTERM, SIGHUP, and for SIGUSR1 and SIGXCPU, which batch systems and limits send some time
/// before the end. The first signal asks for a clean stop, a later one ends the process at once.
pub(crate) struct Signals {
    /// The first signal; 0 before it.
    first: Arc<AtomicI32>,
    /// Whether the first signal ends the process at once too.
    at_once: Arc<AtomicBool>,
}

impl Signals {
    /// Starts listening. Prints the first text at the first signal, and the second at one that ends the process. A
    /// SIGHUP that is ignored, as under `nohup`, stays ignored. A SIGINT that is ignored, as in the background of a
    /// script, is handled: nobody sends it by accident.
    pub(crate) fn register(texts: Option<[&'static str; 2]>) -> Result<Self> {
        let say = move |number: usize| texts.iter().for_each(|texts| message(texts[number]));
        let mut signals = listen_for(of_training())?;
        let first = Arc::new(AtomicI32::new(0));
        let at_once = Arc::new(AtomicBool::new(false));
        let (shared, ends) = (first.clone(), at_once.clone());
        let listen = move || {
            let mut since: Option<(i32, Instant)> = None;
            for signal in signals.forever() {
                match since {
                    None if ends.load(Ordering::Relaxed) => {
                        say(1);
                        end_by(signal);
                    }
                    None => {
                        since = Some((signal, Instant::now()));
                        shared.store(signal, Ordering::Relaxed);
                        say(0);
                    }
                    Some((_, since)) if is_announcement(signal) || since.elapsed() < SAME_WISH => {}
                    // The signal that was announced: a clean stop is already under way.
                    Some((before, _)) if is_announcement(before) => {
                        since = Some((signal, Instant::now()));
                        shared.store(signal, Ordering::Relaxed);
                    }
                    Some(_) => {
                        say(1);
                        end_by(signal);
                    }
                }
            }
        };
        start(listen)?;
        Ok(Self { first, at_once })
    }
}

fn not_listening(error: std::io::Error) -> Error {
    Error::failure(format!("cannot listen for signals: {error}"))
}

/// Listens for signals; none of them ends the first process of a container any more.
fn listen_for(wanted: Vec<i32>) -> Result<signal_hook::iterator::Signals> {
    if let Some(ends) = ENDS.get() {
        ends.store(false, Ordering::Relaxed);
    }
    signal_hook::iterator::Signals::new(wanted).map_err(not_listening)
}

/// The signals that training listens for.
fn of_training() -> Vec<i32> {
    let mut wanted = vec![SIGINT, SIGTERM, SIGUSR1, SIGXCPU];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    wanted
}

/// Processes that this one has started; none in place of one that has ended.
pub(crate) type Children = Arc<Mutex<Vec<Option<Child>>>>;

/// Passes the signals that training listens for on to processes that this one has started.
pub(crate) fn pass_on(to: Children) -> Result<()> {
    let mut signals = listen_for(of_training())?;
    start(move || {
        for signal in signals.forever() {
            for process in to.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
                // SAFETY: nobody has asked for the end of this process, so its number is no other's.
                unsafe { libc::kill(process.id() as libc::pid_t, signal) };
            }
        }
    })
}

impl Stop for Signals {
    fn allow_immediate_end(&self, at_once: bool) {
        self.at_once.store(at_once, Ordering::Relaxed);
    }

    fn stop(&self) -> Option<StopReason> {
        match self.first.load(Ordering::Relaxed) {
            0 => None,
            SIGINT => Some(StopReason::Interrupted),
            _ => Some(StopReason::Terminated),
        }
    }
}

/// On SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU, calls `tell` on a thread of its own, and then ends the process. The
/// argument of `tell` is false for SIGINT, true for the others. A signal that is ignored, as SIGINT in the background
/// of a script, stays ignored.
///
/// The command may be over at the same time, as when Ctrl-C also ends who writes its input: see [`await_the_end`].
pub(crate) fn at_the_end(tell: impl FnOnce(bool) + Send + 'static) -> Result<()> {
    let wanted: Vec<i32> =
        [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU].into_iter().filter(|signal| !is_ignored(*signal)).collect();
    let arrived = ARRIVED.get_or_init(Arc::default);
    for signal in &wanted {
        signal_hook::flag::register(*signal, arrived.clone()).map_err(not_listening)?;
    }
    let mut signals = listen_for(wanted)?;
    let listen = move || {
        if let Some(signal) = signals.forever().next() {
            tell(signal != SIGINT);
            end_by(signal);
        }
    };
    start(listen)
}

/// Starts the thread that listens.
fn start(listen: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(listen);
    thread.map(drop).map_err(|error| Error::thread("listens for signals", error))
}

/// If a signal for [`at_the_end`] has arrived, waits until that ends the process. Call it after a command, before
/// reporting its result.
pub(crate) fn await_the_end() {
    let since = Instant::now();
    while ARRIVED.get().is_some_and(|arrived| arrived.load(Ordering::Relaxed)) && since.elapsed() < LAST_WORDS {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends the process at once, as this signal asks. On a terminal, Ctrl-C ends it by the signal itself, so that a shell
/// also ends a loop around the command; after an exit code the loop would go on. Elsewhere, the parent process gets the
/// exit code.
pub(crate) fn end_by(signal: i32) -> ! {
    if signal == SIGINT && is_on_a_terminal() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    signal_hook::low_level::exit(exit_code(signal))
}

/// Whether Ctrl-C should end the process by the signal. Signals do not end the first process of a container.
fn is_on_a_terminal() -> bool {
    std::io::stderr().is_terminal() && std::process::id() != 1
}

/// Ends the process as [`end_by`] where this is the error of a command that Ctrl-C has stopped on a terminal.
pub fn end_if_interrupted(error: &Error) {
    if error.kind() == ErrorKind::Interrupted && is_on_a_terminal() {
        let _ = std::io::stdout().flush();
        end_by(SIGINT);
    }
}

/// 130 for SIGINT, 143 for any other, which all ask to terminate.
fn exit_code(signal: i32) -> i32 {
    128 + if signal == SIGINT { SIGINT } else { SIGTERM }
}

/// Whether a signal only announces the end. SIGXCPU comes every second.
fn is_announcement(signal: i32) -> bool {
    [SIGUSR1, SIGXCPU].contains(&signal)
}

/// Whether a signal is ignored, as SIGHUP is under `nohup`.
fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action, this only fills the present one; all zeros is a valid value of it too.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
