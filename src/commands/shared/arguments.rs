//! Flags as requests.

use crate::cli::{Common, RunArgs};
use crate::run::request::RunRequest;

/// The run that a command line describes. `--seed` is one more override.
pub(crate) fn run(args: &RunArgs, common: &Common) -> RunRequest {
    let mut sets = args.set.clone();
    sets.extend(common.seed.iter().map(|seed| format!("train.seed={seed}")));
    RunRequest {
        files: args.config.clone(),
        sets,
        directory: args.run_dir.clone(),
        device: common.device.clone(),
        threads: common.threads,
        offline: common.offline,
        ..RunRequest::default()
    }
}
