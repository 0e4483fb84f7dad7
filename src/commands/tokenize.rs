//! `mt tokenize` and `mt detokenize`

use std::path::PathBuf;
use std::sync::Arc;

use indicatif::ProgressBar;
use rayon::prelude::*;

use super::shared::answered::AnsweredLines;
use super::shared::input::Lines;
use super::shared::output::{Output, refuse_inputs};
use crate::checkpoint;
use crate::cli::{Common, TokenizeArgs};
use crate::console::{info, tell, warning};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::escape::{harmless_json, shown_path};

/// Lines to pieces, separated by spaces.
pub(super) fn tokenize(args: &TokenizeArgs, common: &Common) -> Result<()> {
    let json = common.json;
    each_line(args, common, |tokenizer, line| {
        let pieces = tokenizer.pieces(line);
        if json { json_of(pieces.into()) } else { pieces.join(" ") }
    })
}

/// Pieces, separated by spaces, to lines.
pub(super) fn detokenize(args: &TokenizeArgs, common: &Common) -> Result<()> {
    // Pieces can contain a line break, but each input line must give one output line.
    let json = common.json;
    each_line(args, common, |tokenizer, line| {
        let text = tokenizer.decode_pieces(line).replace('\n', " ");
        if json { json_of(text.into()) } else { text }
    })
}

fn json_of(value: serde_json::Value) -> String {
    harmless_json(&value.to_string()).into_owned()
}

fn each_line(args: &TokenizeArgs, common: &Common, f: impl Fn(&Tokenizer, &str) -> String + Sync) -> Result<()> {
    crate::device::set_threads(common.threads.unwrap_or(0))?;
    let (tokenizer, files) = tokenizer(args, common)?;
    let mut input = Lines::open(&args.text, args.input.as_deref(), None)?;
    refuse_inputs(args.output.as_deref(), files.iter().map(PathBuf::as_path).chain(input.path()))?;
    // Opening empties the output file, so first make sure that the input can be read.
    let mut lines = input.next()?;
    let mut output = Output::open(args.output.as_deref())?;
    let written = match input.is_interactive() {
        true => AnsweredLines::default(),
        false => AnsweredLines::watch(args.output.as_deref(), ProgressBar::hidden())?,
    };
    let mut refused = None;
    while !lines.is_empty() && !output.is_closed() {
        let results: Vec<String> = lines.par_iter().map(|line| f(&tokenizer, line)).collect();
        let result = written.write(results.len(), || {
            results.iter().try_for_each(|line| output.line(line))?;
            written.note(input.warnings());
            output.flush()
        });
        result.map_err(|error| written.how_far(error, output.cut_back()))?;
        lines = input.next().unwrap_or_else(|error| {
            refused = Some(error);
            Vec::new()
        });
    }
    input.warnings().into_iter().for_each(warning);
    refused.map_or(Ok(()), Err)
}

/// The tokenizer that the flags choose, and the files that no output may replace: that of the tokenizer, or those of
/// its model.
fn tokenizer(args: &TokenizeArgs, common: &Common) -> Result<(Arc<Tokenizer>, Vec<PathBuf>)> {
    if let Some(file) = &args.tokenizer {
        return Ok((Arc::new(Tokenizer::load_or_codes(file)?), vec![file.clone()]));
    }
    let directory = crate::model_dir::directory(args.model.as_deref(), common.offline, &tell)?;
    let (directory, _) = checkpoint::directory_and_step(&directory);
    if args.model.is_none() {
        info(format_args!("tokenizer: of {}", shown_path(directory)));
    }
    crate::model_dir::verify_tokenizers(directory)?;
    let both = Tokenizers::load(directory)?;
    let model = directory.join(checkpoint::MODEL_FILE);
    let files = crate::model_dir::text_files(directory).into_iter().chain([model]).collect();
    Ok((if args.target { both.target } else { both.source }, files))
}
