//! `mt prepare`

use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::shared::arguments;
use super::shared::output::Output;
use super::shared::signals::Signals;
use crate::cli::{Common, RunArgs};
use crate::console::{info, pairs_bar, tell};
use crate::data::texts::Texts;
use crate::error::Result;
use crate::run::training_data::{self, Preparation};

/// Messages at the first signal, and at a second one.
const ON_SIGNALS: [&str; 2] = ["stopping", "stopped at once"];

/// Prepares the training text in the cache, even if it is small, for training to find it there.
pub(super) fn run(args: &RunArgs, common: &Common) -> Result<()> {
    let request = arguments::run(args, common);
    let config = request.config()?;
    let mut texts = Texts::find(&config.data, request.offline)?;
    request.set_threads(&config, 1)?;
    let run = request.run_directory()?;
    let signals = Signals::register(Some(ON_SIGNALS))?;
    let mut preparation = Preparation::beside(&run, &config.data, &tell).offline(request.offline);
    if config.data.quality.is_some() {
        preparation = preparation.on(request.open_device(&config, 0)?);
    }
    let mut preparation = preparation.watching(&signals).showing(&pairs_bar);
    preparation.always_cache = true;
    let started = Instant::now();
    let data = training_data::prepare(&config, &mut texts, None, &preparation)?;
    let seconds = started.elapsed().as_secs_f64();
    let bytes: u64 = data.directories.iter().map(|directory| size(directory)).sum();
    let pairs = data.corpus.len();
    // A path need not be UTF-8, which JSON is.
    let directories: Vec<String> = data.directories.iter().map(|directory| directory.display().to_string()).collect();
    let mut output = Output::open(None)?;
    if common.json {
        let [source_tokens, target_tokens] = data.corpus.token_counts();
        let json = json!({
            "pairs": pairs, "source_tokens": source_tokens, "target_tokens": target_tokens,
            "dropped": data.report.dropped,
            "directories": directories, "bytes": bytes, "seconds": seconds,
        });
        output.json(&json)?;
    } else {
        for directory in &directories {
            output.path(Path::new(directory))?;
        }
        info(format_args!("{pairs} pairs are ready, {} MiB, after {seconds:.1} s", bytes >> 20));
    }
    output.flush()
}

/// The total size of the files in a directory, in bytes.
fn size(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}
