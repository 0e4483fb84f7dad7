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

/// What `--set` and flags state.
fn overrides(args: &RunArgs, common: &Common) -> Vec<String> {
    let mut sets = args.set.clone();
    sets.extend(common.device.iter().map(|device| format!("runtime.device={device}")));
    sets.extend(common.threads.iter().map(|threads| format!("runtime.threads={threads}")));
    sets.extend(common.seed.iter().map(|seed| format!("train.seed={seed}")));
    sets
}

/// The device that a configuration names.
///
/// # Errors
/// It cannot be used here; the key is named.
pub fn device(config: &Config) -> Result<Device> {
    let name = &config.runtime.device;
    device::open(name).map_err(|error| error.context(format_args!("`runtime.device` = \"{name}\"")))
}
