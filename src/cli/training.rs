//! Flags of the commands that come before a model: `mt init`, `mt check`, `mt prepare`, `mt train`.

use std::path::PathBuf;

use clap::Args;

/// `mt init`
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Source text, one sentence a line; may be compressed (.gz, .xz, .zst)
    pub source: PathBuf,
    /// Its translation, line by line
    pub target: PathBuf,
    /// Validate on these files; without them, pairs are held out of the training text
    #[arg(long, num_args = 2, value_names = ["SOURCE", "TARGET"])]
    pub valid: Option<Vec<PathBuf>>,
    /// The configuration to write; held-out text goes into a folder beside it
    #[arg(long, value_name = "FILE", default_value = "mt.toml")]
    pub output: PathBuf,
    /// Replace files that exist
    #[arg(long)]
    pub overwrite: bool,
}

/// `mt train`
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct TrainArgs {
    /// The configuration and the run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Continue a run from its newest checkpoint; without one, begin it
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Replace an existing run
    #[arg(long)]
    pub overwrite: bool,
    /// With --resume: go on even if the configuration has changed what is trained
    #[arg(long, requires = "resume")]
    pub force: bool,
    /// Print the plan (configuration, parameters, corpus, memory) without training; `mt check` also looks for faults
    /// in the text
    #[arg(long)]
    pub dry_run: bool,
    /// At the end, print how the updates spent their time: parts of the loop, operations, kernels
    #[arg(long)]
    pub profile: bool,
}

/// `mt train`, `mt check`, `mt prepare`: a configuration and the run that it is for.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Configuration files; later ones override earlier ones
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Override one key, for example --set train.max_updates=1000
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Run directory; it need not exist [default: runs/<name of the configuration, of several the last>; with a run's
    /// own config.toml, that run]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}
