//! `mt translate`

use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::{Value, json};

use super::attention::AttentionFile;
use super::decoding;
use super::input::Lines;
use super::model;
use super::output::{Output, is_same_place, refuse_inputs};
use super::tags::Tags;
use crate::cli::{Common, TranslateArgs};
use crate::console::message;
use crate::data::tokenizer::Tokenizer;
use crate::decode::Ending;
use crate::decode::alignment::{Alignment, align};
use crate::decode::explain::explain;
use crate::decode::source::Long;
use crate::decode::translate::{Candidate, Translation};
use crate::error::{Error, Result};

/// Translates its arguments, a file or stdin: one line out for each line in, in order.
pub fn run(args: &TranslateArgs, common: &Common) -> Result<()> {
    check(args, common)?;
    let (first, others) = model::load_all(&args.models, common)?;
    let n_best = args.n_best;
    let mut options = decoding::translate_options(&args.decode, n_best, &first.config, common)?;
    options.prefix = args.prefix.clone().unwrap_or_default();
    if args.attention.is_some() && options.long == Long::Split {
        // Weights are those of one sequence.
        options.long = Long::Truncate;
    }
    let translator = decoding::translator_with_flags(&first, &others, &args.decode, &options.prefix, common)?;
    translator.check_prefix(&options)?;
    let explains = args.attention.is_some() || args.alignment;
    let explainer = if explains { Some((first.transformer_on_processor()?, first.reader())) } else { None };
    let mut lines = Lines::open(&args.text, args.input.as_deref())?;
    if let (Some(file), Some(count)) = (&args.attention, lines.count()) {
        AttentionFile::refuse_several(file, count)?;
    }
    let of_models = model::files_of(&first, &others);
    for file in [args.output.as_deref(), args.attention.as_deref()] {
        let inputs = lines.path().into_iter().chain(args.decode.shortlist.as_deref());
        refuse_inputs(file, inputs.chain(of_models.iter().map(PathBuf::as_path)))?;
    }
    let progress = Progress::new(&lines, args.output.as_deref(), common);
    let (mut output, mut weights) = (None, None);
    let mut cut = CutLines::default();
    let mut tags = Tags::new(&first.tokenizers.source);
    let trained = first.config.data.max_length;
    let mut refused = None;
    while refused.is_none() {
        let window = lines.next()?;
        // Opening empties a file: not before the input has shown that it can be read.
        let output = match &mut output {
            Some(output) => output,
            None => output.insert(Output::open(args.output.as_deref())?),
        };
        if let (Some(path), None) = (args.attention.as_deref(), &weights) {
            weights = Some(AttentionFile::open(path)?);
        }
        if window.is_empty() || output.is_closed() {
            break;
        }
        let beyond = if options.long == Long::Error { translator.beyond_positions(&window) } else { None };
        let (window, error) = lines.split_at_refused(&window, beyond);
        refused = error;
        let translations = translator.translate(window, &options, |done| progress.show(cut.lines + done))?;
        for (line, translation) in window.iter().zip(&translations) {
            let mut alignment = None;
            if let Some((model, reader)) = &explainer {
                if let Some(file) = &mut weights {
                    file.add(explain(model, reader, line, translation)?)?;
                }
                if args.alignment {
                    alignment = Some(align(model, reader, translation)?);
                }
            }
            if common.json {
                let json = json(translator.target(), line, translation, alignment, n_best.is_some());
                output.line(&json.to_string())?;
            } else if n_best.is_some() {
                for Candidate { text, log_prob, score, .. } in &translation.n_best {
                    output.line(&format!("{} ||| {text} ||| LogProb= {log_prob:.6} ||| {score:.6}", cut.lines))?;
                }
            } else if let Some(alignment) = alignment {
                output.line(&format!("{} ||| {alignment}", translation.best().text))?;
            } else {
                output.line(&translation.best().text)?;
            }
            cut.count(translation);
            tags.count(line);
            if args.attention.is_some() && translation.parts.iter().any(|part| trained > 0 && part.ids.len() > trained)
            {
                cut.count_whole();
            }
        }
        options.lines_before = cut.lines;
        output.flush()?;
    }
    progress.finish();
    if let Some(file) = weights {
        file.finish()?;
    }
    if !common.quiet {
        lines.warn();
        cut.warn();
        tags.warn();
    }
    if let Some(mut output) = output {
        output.flush()?;
    }
    refused.map_or(Ok(()), Err)
}

/// Refuses flags that do not go together.
fn check(args: &TranslateArgs, common: &Common) -> Result<()> {
    if let Some(file) = &args.attention {
        let help = "give --attention a file of its own";
        if file == Path::new("-") {
            return Err(Error::usage("--attention cannot go to stdout").help(help));
        }
        if is_same_place(args.output.as_deref(), Some(file)) {
            return Err(Error::usage("--attention and --output cannot go to the same place").help(help));
        }
    }
    if args.attention.is_some() && args.decode.long.as_deref() == Some(Long::Split.name()) {
        let error = Error::usage("--attention and --long split do not go together: weights are those of one sequence");
        return Err(error.help("give --long truncate or --long error"));
    }
    if args.alignment && args.n_best.is_some() && !common.json {
        return Err(Error::usage("--alignment and --n-best go together only with --json").help("give --json as well"));
    }
    Ok(())
}

/// A line and its translation, for programs. Log-probabilities are those of the tokens and of the end, where it came to one; of
/// a line in parts, of each part's tokens and its end, and `joints` are the tokens that parts but the first begin with.
fn json(
    tokenizer: &Tokenizer,
    line: &str,
    translation: &Translation,
    alignment: Option<Alignment>,
    n_best: bool,
) -> Value {
    let candidate = |candidate: &Candidate| {
        let Candidate { text, tokens, token_log_probs, log_prob, score, ending, joints } = candidate;
        let pieces: Vec<&str> = tokens.iter().map(|&token| tokenizer.piece(token).unwrap_or_default()).collect();
        json!({
            "translation": text, "log_prob": log_prob, "score": score, "finished": candidate.finished(),
            "ending": ending.name(), "tokens": pieces, "token_log_probs": token_log_probs,
            "joints": joints,
        })
    };
    let mut json = candidate(translation.best());
    json["source"] = line.into();
    if let Some(alignment) = alignment {
        json["alignment"] = alignment.to_string().into();
    }
    if n_best {
        json["n_best"] = translation.n_best.iter().map(candidate).collect();
    }
    json
}

/// Lines that were cut, with the first of them.
#[derive(Default)]
pub struct CutLines {
    lines: usize,
    sources: Option<(usize, usize)>,
    split: Option<(usize, usize)>,
    whole: Option<(usize, usize)>,
    stuck: Option<(usize, usize)>,
    translations: Option<(usize, usize)>,
}

impl CutLines {
    /// Takes note of the translation of the next line.
    pub fn count(&mut self, translation: &Translation) {
        self.lines += 1;
        let line = self.lines;
        let note = |slot: &mut Option<(usize, usize)>| slot.get_or_insert((line, 0)).1 += 1;
        if translation.source_cut {
            note(&mut self.sources);
        }
        if translation.parts.len() > 1 {
            note(&mut self.split);
        }
        match translation.best().ending {
            Ending::End => {}
            Ending::MaxLength => note(&mut self.translations),
            Ending::Stuck => note(&mut self.stuck),
        }
    }

    /// Takes note that the line counted last was longer than those the model was trained on, and yet translated in one part.
    fn count_whole(&mut self) {
        self.whole.get_or_insert((self.lines, 0)).1 += 1;
    }

    /// Tells of them.
    pub fn warn(&self) {
        let all = self.lines;
        if let Some((first, count)) = self.sources {
            message(format_args!(
                "warning: {count} of {all} lines (the first is line {first}) are longer than model.max_length: only their \
                 beginning was translated"
            ));
        }
        if let Some((first, count)) = self.split {
            message(format_args!(
                "warning: {count} of {all} lines (the first is line {first}) are longer than data.max_length, which the model \
                 was trained on, or model.max_length: they were translated in parts (--long)"
            ));
        }
        if let Some((first, count)) = self.whole {
            message(format_args!(
                "warning: {count} of {all} lines (the first is line {first}) are longer than data.max_length, which the model \
                 was trained on: --attention wants them in one part, and without it they are translated in several, better"
            ));
        }
        if let Some((first, count)) = self.stuck {
            message(format_args!(
                "warning: {count} of {all} translations (the first is line {first}) end where nothing more was allowed \
                 (--no-repeat-ngram, --min-length, --prefix, --shortlist)"
            ));
        }
        if let Some((first, count)) = self.translations {
            message(format_args!(
                "warning: {count} of {all} translations (the first is line {first}) were cut at the maximum length \
                 (--max-length, --max-length-extra)"
            ));
        }
    }
}

/// Sentences done, how many a second, and where the input's size is known how long it will take; on a terminal that shows
/// nothing else.
struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(lines: &Lines, output: Option<&Path>, common: &Common) -> Self {
        let to_terminal = output.is_none_or(|path| path == Path::new("-")) && std::io::stdout().is_terminal();
        if common.quiet || to_terminal {
            return Self { bar: None };
        }
        if !std::io::stderr().is_terminal() {
            return Self { bar: None };
        }
        let (bar, template) = match lines.count() {
            Some(count) => (ProgressBar::new(count as u64), "{wide_bar} {pos}/{len} sentences, {speed}, {eta} left"),
            None => (ProgressBar::new_spinner(), "{spinner} {pos} sentences, {speed}"),
        };
        // The template is a constant that a test shows to be right.
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let speed = |state: &ProgressState, text: &mut dyn fmt::Write| {
            // A formatter that fails has nowhere to say so.
            let _ = write!(text, "{:.0}/s", state.per_sec());
        };
        let style = style.with_key("speed", speed);
        Self { bar: Some(bar.with_style(style)) }
    }

    fn show(&self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }

    fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
