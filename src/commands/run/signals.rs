//! Signals that ask training to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::console::message;
use crate::error::{Error, Result};
use crate::train::End;

/// Signals that come this soon after the first are the same wish: `timeout` sends two, and so do nervous fingers.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Listens for SIGINT, SIGTERM and SIGHUP: the first asks for a clean stop, one that comes later ends the process at once.
pub struct Signals {
    /// The first signal; 0 before it.
    first: Arc<AtomicI32>,
}

impl Signals {
    /// Starts listening; says `first` at the first signal and `second` at one that ends the process. A SIGHUP that is ignored, as
    /// under `nohup`, stays so.
    pub fn register([first_says, second_says]: [&'static str; 2]) -> Result<Self> {
        let failed = |error: std::io::Error| Error::failure(format!("cannot listen for signals: {error}"));
        let mut wanted = vec![SIGINT, SIGTERM];
        if !is_ignored(SIGHUP) {
            wanted.push(SIGHUP);
        }
        let mut signals = signal_hook::iterator::Signals::new(wanted).map_err(failed)?;
        let first = Arc::new(AtomicI32::new(0));
        let shared = first.clone();
        let listen = move || {
            let mut since: Option<Instant> = None;
            for signal in signals.forever() {
                match since {
                    None => {
                        since = Some(Instant::now());
                        shared.store(signal, Ordering::Relaxed);
                        message(first_says);
                    }
                    Some(since) if since.elapsed() < SAME_WISH => {}
                    Some(_) => {
                        message(second_says);
                        signal_hook::low_level::exit(128 + signal);
                    }
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(failed)?;
        Ok(Self { first })
    }

    /// Whether a signal asks to stop, and which.
    pub fn stop(&self) -> Option<End> {
        match self.first.load(Ordering::Relaxed) {
            0 => None,
            SIGINT => Some(End::Interrupted),
            _ => Some(End::Terminated),
        }
    }
}

/// Whether a signal is ignored, as SIGHUP is under `nohup`. Where the system does not say, it is left as it is.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}
