//! The configuration that a command line describes.

use candle_core::Device;

use crate::cli::{Common, RunArgs};
use crate::config::{self, Config};
use crate::device;
use crate::error::{Error, Result};

/// The configuration of files, `--set` and flags, for training or what comes before it.
///
/// # Errors
/// It has mistakes, or does not name what training needs; all are named.
pub fn load(args: &RunArgs, common: &Common) -> Result<Config> {
    config::load_for_training(&args.config, &overrides(args, common))
}

/// Adds to an error about a key where the command line or a file states it.
pub fn locate(error: Error, key: &str, args: &RunArgs, common: &Common) -> Error {
    config::locate(error, key, &args.config, &overrides(args, common))
}

/// What `--set` and `--seed` state. `--device` and `--threads` are of this process, and not recorded: the model may be used on
/// another machine.
fn overrides(args: &RunArgs, common: &Common) -> Vec<String> {
    let mut sets = args.set.clone();
    sets.extend(common.seed.iter().map(|seed| format!("train.seed={seed}")));
    sets
}

/// The device that `--device` names, or else the configuration.
///
/// # Errors
/// It cannot be used here; the key is named.
pub fn device(config: &Config, common: &Common) -> Result<Device> {
    let name = &config.runtime.device;
    match &common.device {
        Some(device) => device::open(device),
        None => device::open(name).map_err(|error| error.context(format_args!("`runtime.device` = \"{name}\""))),
    }
}

/// Sets the number of threads to that of `--threads`, or else that of the configuration.
///
/// # Errors
/// As [`device::set_threads`].
pub fn set_threads(config: &Config, common: &Common) -> Result<()> {
    device::set_threads(common.threads.unwrap_or(config.runtime.threads))
}
