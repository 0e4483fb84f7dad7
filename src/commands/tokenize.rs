//! `mt tokenize` and `mt detokenize`

use std::sync::Arc;

use rayon::prelude::*;

use super::input::Input;
use super::model;
use super::output::{Output, refuse_inputs};
use crate::cli::{Common, TokenizeArgs};
use crate::console::info;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;

/// Lines processed together.
const WINDOW: usize = 10_000;

/// Lines to pieces, separated by spaces.
pub fn tokenize(args: &TokenizeArgs, common: &Common) -> Result<()> {
    let json = common.json;
    each_line(args, common, |tokenizer, line| {
        let pieces = tokenizer.pieces(line);
        if json { serde_json::Value::from(pieces).to_string() } else { pieces.join(" ") }
    })
}

/// Pieces, separated by spaces, to lines.
pub fn detokenize(args: &TokenizeArgs, common: &Common) -> Result<()> {
    // Pieces can contain a line break, but each input line must give one output line.
    let json = common.json;
    each_line(args, common, |tokenizer, line| {
        let text = tokenizer.decode_pieces(line).replace('\n', " ");
        if json { serde_json::Value::from(text).to_string() } else { text }
    })
}

fn each_line(args: &TokenizeArgs, common: &Common, f: impl Fn(&Tokenizer, &str) -> String + Sync) -> Result<()> {
    crate::device::set_threads(common.threads.unwrap_or(0))?;
    let tokenizer = tokenizer(args, common)?;
    refuse_inputs(args.output.as_deref(), [args.input.as_path()])?;
    let mut input = Input::open(Some(&args.input))?;
    let mut output = Output::open(args.output.as_deref())?;
    loop {
        let lines = input.lines(WINDOW)?;
        if lines.is_empty() || output.is_closed() {
            break;
        }
        let results: Vec<String> = lines.par_iter().map(|line| f(&tokenizer, line)).collect();
        results.iter().try_for_each(|line| output.line(line))?;
        output.flush()?;
    }
    input.warn();
    output.flush()
}

fn tokenizer(args: &TokenizeArgs, common: &Common) -> Result<Arc<Tokenizer>> {
    if let Some(file) = &args.tokenizer {
        return Ok(Arc::new(Tokenizer::load(file)?));
    }
    let directory = model::directory(args.model.as_deref(), common)?;
    if args.model.is_none() {
        info(format_args!("tokenizer: of {}", directory.display()));
    }
    let both = Tokenizers::load(&directory)?;
    Ok(if args.target { both.target } else { both.source })
}
