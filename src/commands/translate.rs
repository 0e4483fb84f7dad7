//! `mt translate`

use std::path::Path;

use serde_json::{Value, json};

use super::input::Lines;
use super::model;
use super::output::{Output, refuse_inputs};
use crate::cli::{Common, TranslateArgs};
use crate::console::message;
use crate::data::tokenizer::Tokenizer;
use crate::decode::attention::{SentenceAttention, attention};
use crate::decode::translate::{Candidate, Translation, Translator};
use crate::error::{Error, Result};

/// Translates its arguments, a file or stdin: one line out for each line in, in order.
pub fn run(args: &TranslateArgs, common: &Common) -> Result<()> {
    let loaded = model::load(&args.model, common)?;
    let (config, n_best) = (&loaded.config, args.n_best);
    let mut options = model::translate_options(&args.decode, n_best, &config.decode, common, config.train.seed)?;
    options.prefix = args.prefix.clone().unwrap_or_default();
    let translator = Translator::new(&loaded.model, &loaded.tokenizers)?;
    if let Some(file) = &args.attention {
        let help = "give --attention a file of its own";
        if file == Path::new("-") {
            return Err(Error::usage("--attention cannot go to stdout").help(help));
        }
        if args.output.as_ref() == Some(file) {
            return Err(Error::usage("--attention and --output cannot go to the same place").help(help));
        }
    }
    let mut lines = Lines::open(&args.text, args.input.as_deref())?;
    for file in [args.output.as_deref(), args.attention.as_deref()] {
        refuse_inputs(file, lines.path())?;
    }
    let (mut output, mut weights) = (None, None);
    let mut cut = CutLines::default();
    loop {
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
        let (window, refused) = lines.split_at_refused(&window, &translator.reader());
        let translations = translator.translate(window, &options, |_| {})?;
        for (line, translation) in window.iter().zip(&translations) {
            let number = cut.lines;
            cut.count(translation);
            if common.json {
                output.line(&json(&loaded.tokenizers.target, line, translation, n_best.is_some()).to_string())?;
            } else if n_best.is_some() {
                for Candidate { text, log_prob, score, .. } in &translation.n_best {
                    output.line(&format!("{number} ||| {text} ||| LogProb= {log_prob:.6} ||| {score:.6}"))?;
                }
            } else {
                output.line(&translation.best().text)?;
            }
        }
        options.lines_before = cut.lines;
        output.flush()?;
        if let Some(file) = &mut weights {
            for (source, translation) in translator.reader().read(window).iter().zip(&translations) {
                file.add(&attention(&loaded.model, &loaded.tokenizers, source, translation.best())?)?;
            }
        }
        if let Some(error) = refused {
            if let Some(file) = weights {
                file.finish()?;
            }
            return Err(error);
        }
    }
    if let Some(file) = weights {
        file.finish()?;
    }
    if !common.quiet {
        lines.warn();
        cut.warn();
    }
    output.map_or(Ok(()), |mut output| output.flush())
}

/// A line and its translation, for programs.
fn json(tokenizer: &Tokenizer, line: &str, translation: &Translation, n_best: bool) -> Value {
    let candidate = |candidate: &Candidate| {
        let Candidate { text, tokens, token_log_probs, log_prob, score, ending } = candidate;
        let pieces: Vec<&str> = tokens.iter().map(|&token| tokenizer.piece(token).unwrap_or_default()).collect();
        json!({
            "translation": text, "log_prob": log_prob, "score": score, "finished": candidate.finished(),
            "ending": ending.name(), "tokens": pieces, "token_log_probs": token_log_probs,
        })
    };
    let mut json = candidate(translation.best());
    json["source"] = line.into();
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
        if !translation.best().finished() {
            note(&mut self.translations);
        }
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
        if let Some((first, count)) = self.translations {
            message(format_args!(
                "warning: {count} of {all} translations (the first is line {first}) were cut at the maximum length \
                 (--max-length, --max-length-extra)"
            ));
        }
    }
}

/// A JSON list with one entry for each line, written as they come.
struct AttentionFile {
    output: Output,
    first: bool,
}

impl AttentionFile {
    fn open(path: &Path) -> Result<Self> {
        let mut output = Output::open(Some(path))?;
        output.text("[")?;
        Ok(Self { output, first: true })
    }

    fn add(&mut self, sentence: &SentenceAttention) -> Result<()> {
        self.output.text(if std::mem::replace(&mut self.first, false) { "\n" } else { ",\n" })?;
        let json = serde_json::to_string(sentence)
            .map_err(|e| Error::failure("attention weights cannot be written as JSON").caused_by(e))?;
        self.output.text(&json)
    }

    fn finish(mut self) -> Result<()> {
        self.output.text("\n]\n")?;
        self.output.flush()
    }
}
