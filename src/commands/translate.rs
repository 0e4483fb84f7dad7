//! `mt translate`

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::shared::answered::AnsweredLines;
use super::shared::attention::AttentionFile;
use super::shared::decimals::decimals;
use super::shared::input::Lines;
use super::shared::languages;
use super::shared::line_summary::LineSummary;
use super::shared::output::{Output, is_same_file, is_stdout, refuse_inputs};
use super::shared::pairs::FIELD;
use super::shared::requests::{Requests, Window};
use super::shared::suspicious::SuspiciousLines;
use super::shared::tags::{self, Tags};
use super::shared::{decoding, model};
use crate::cli::{Common, TranslateArgs};
use crate::console::{Counted, is_watched, note, progress_bar, warning};
use crate::data::tokenizer::Tokenizer;
use crate::decode::alignment::{Alignment, align};
use crate::decode::explain::explain;
use crate::decode::source::{Long, Reader, Source};
use crate::decode::translate::{Candidate, Translation, Translator};
use crate::error::{Error, Result};
use crate::explanation::Explanation;
use crate::model::Transformer;
use crate::model_dir::ModelFiles;

/// Translates its arguments, a file or stdin: one line out for each line in, in order.
pub(super) fn run(args: &TranslateArgs, common: &Common) -> Result<()> {
    check(args)?;
    let (mut first, mut others) = model::load_all(&args.models, common)?;
    let models = std::iter::once(&mut first).chain(&mut others);
    let tag = languages::choose(&args.languages, args.tag.as_deref(), models)?;
    let tag = tag.as_deref();
    let mut options = decoding::translate_options(&args.decode, args.n_best, (&first, &others), common)?;
    options.tag = tag.map(str::to_owned);
    if args.attention.is_some() && options.long == Long::Split {
        // Attention weights belong to a single sequence.
        options.long = Long::Truncate;
    }
    let translator = decoding::translator_with_flags(&first, &others, &args.models.weights, &args.decode, common)?;
    tags::check_flag(tag, &first.tokenizers.source)?;
    let mut requests = Requests::open(args, tag)?;
    requests.check(&translator, &options)?;
    if let Some(file) = &args.attention {
        AttentionFile::refuse_several(file, || requests.lines().count())?;
    }
    let of_models = crate::model_dir::files_of(&first, &others);
    let of_judge = decoding::files_of_judge(&args.decode, common)?;
    let inputs = || {
        let texts = requests.paths().chain(args.decode.shortlist.as_deref());
        texts.chain(of_models.iter().chain(&of_judge).map(PathBuf::as_path))
    };
    refuse_inputs(args.output.as_deref(), inputs())?;
    if let Some(file) = &args.attention {
        refuse_inputs(Some(file), inputs())?;
    }
    let progress = progress(requests.lines(), args.output.as_deref());
    // A user at a prompt sees the answers anyway.
    let written = match requests.lines().is_interactive() {
        true => AnsweredLines::default(),
        false => AnsweredLines::watch(args.output.as_deref(), progress.clone())?,
    };
    let (mut writer, mut refused) = (None, None);
    while refused.is_none() {
        let Window { lines, constraints, refused: after } = match requests.next(&translator, &options) {
            Ok(Window { lines, refused: Some(error), .. }) if writer.is_none() && lines.is_empty() => {
                return Err(error);
            }
            Ok(window) => window,
            // First report on the lines before.
            Err(error) if writer.is_some() => Window { refused: Some(error), ..Window::default() },
            Err(error) => return Err(error),
        };
        refused = after;
        // Opening empties the output file, so first make sure that the input can be read.
        let writer = match &mut writer {
            Some(writer) => writer,
            None => writer.insert(Writer::open((args, tag), common, &first, &translator)?),
        };
        if lines.is_empty() || writer.output.is_closed() {
            break;
        }
        options.lines_before = writer.suspicious.lines();
        let progressed = |done| progress.set_position((options.lines_before + done) as u64);
        let translations = translator.translate(&lines, &constraints, &options, progressed)?;
        let alignments = writer.alignments(&lines, &translations)?;
        let result = written.write(lines.len(), || {
            for ((line, translation), alignments) in lines.iter().zip(&translations).zip(&alignments) {
                writer.write(line, translation, alignments)?;
            }
            written.note([requests.warnings(), writer.warnings()].concat());
            writer.output.flush()
        });
        result.map_err(|error| written.how_far(error, writer.output.cut_back()))?;
    }
    progress.finish_and_clear();
    requests.warnings().into_iter().for_each(warning);
    writer.map_or(Ok(()), Writer::finish)?;
    refused.map_or(Ok(()), Err)
}

/// Writes translations in the form that the flags ask for, and counts what to warn of.
struct Writer<'a> {
    args: &'a TranslateArgs,
    /// What is put in front of each line.
    tag: Option<&'a str>,
    common: &'a Common,
    model: &'a ModelFiles,
    /// For explanations and alignments, if wanted.
    explainer: Option<(Transformer, Reader)>,
    output: Output,
    /// The file of `--attention`.
    attention: Option<AttentionFile>,
    suspicious: SuspiciousLines,
    tags: Tags<'a>,
    /// Lines for which the search found fewer translations than `--n-best` asks for.
    fewer: LineSummary,
    /// Lines with a translation that contains the separator.
    separated: LineSummary,
}

impl<'a> Writer<'a> {
    fn open(
        (args, tag): (&'a TranslateArgs, Option<&'a str>),
        common: &'a Common,
        model: &'a ModelFiles,
        translator: &Translator,
    ) -> Result<Self> {
        let explains = args.attention.is_some() || args.alignment;
        Ok(Self {
            args,
            tag,
            common,
            model,
            explainer: if explains { Some((model.transformer_on_processor()?, model.reader())) } else { None },
            output: Output::open(args.output.as_deref())?,
            attention: args.attention.as_deref().map(AttentionFile::open).transpose()?,
            suspicious: SuspiciousLines::new(translator),
            tags: Tags::new(model, tag),
            fewer: LineSummary::default(),
            separated: LineSummary::default(),
        })
    }

    /// The alignments of the printed translations of each line, if wanted.
    fn alignments(&self, lines: &[String], translations: &[Translation]) -> Result<Vec<Vec<Alignment>>> {
        let Some((model, reader)) = self.explainer.as_ref().filter(|_| self.args.alignment) else {
            return Ok(vec![Vec::new(); lines.len()]);
        };
        let all = align(model, reader, lines, translations, self.args.n_best.unwrap_or(1))?;
        // Word numbers refer to the user's line, without the tag.
        let of_tag = self.words_of_tag();
        Ok(all.into_iter().map(|line| line.into_iter().map(|alignment| alignment.after(of_tag)).collect()).collect())
    }

    /// How many words the tag of `--tag` is.
    fn words_of_tag(&self) -> usize {
        let tokenizer = &self.model.tokenizers.source;
        self.tag.map_or(0, |tag| tokenizer.plain(tag).split_whitespace().count())
    }

    /// Writes the translation of the next line, as it was given to the model.
    fn write(&mut self, line: &str, translation: &Translation, alignments: &[Alignment]) -> Result<()> {
        let (number, n_best) = (self.suspicious.lines(), self.args.n_best.is_some());
        let tag = self.tag.map_or(String::new(), |tag| format!("{tag} "));
        let own = line.strip_prefix(&tag).unwrap_or(line);
        let of_tag = if self.attention.is_some() { self.words_of_tag() } else { 0 };
        if let (Some((model, reader)), Some(file)) = (&self.explainer, &mut self.attention) {
            match file.is_full() {
                true => file.leave_out(),
                false => {
                    let of_line = explain(model, reader, line, translation)?;
                    let text = self.model.tokenizers.source.plain(own).into_owned();
                    let alignment = Alignment(of_line.alignment).after(of_tag).0;
                    file.add(Explanation { text, alignment, ..of_line })?;
                }
            }
        }
        let output = &mut self.output;
        if self.common.json {
            output.json(&json(&self.model.tokenizers.target, own, translation, alignments, n_best))?;
        } else if n_best {
            let mut alignments = alignments.iter();
            for Candidate { text, log_prob, score, .. } in &translation.n_best {
                let alignment = alignments.next().map(|alignment| format!("{FIELD}{alignment}")).unwrap_or_default();
                let (log_prob, score) = (decimals(*log_prob), decimals(*score));
                output.line(&format!("{number}{FIELD}{text}{alignment}{FIELD}LogProb= {log_prob}{FIELD}{score}"))?;
            }
        } else if let Some(alignment) = alignments.first() {
            output.line(&format!("{}{FIELD}{alignment}", translation.best().text))?;
        } else {
            output.line(&translation.best().text)?;
        }
        self.suspicious.count(translation);
        self.tags.count(line);
        let has_separator = |candidate: &Candidate| candidate.text.contains(FIELD.trim());
        let is_separated = match self.common.json {
            true => false,
            false if n_best => translation.n_best.iter().any(has_separator),
            false => self.args.alignment && has_separator(translation.best()),
        };
        if is_separated {
            self.separated.add(self.suspicious.lines());
        }
        // An empty line has one translation.
        let is_translated = !translation.parts.is_empty();
        if is_translated && self.args.n_best.is_some_and(|wanted| translation.n_best.len() < wanted) {
            self.fewer.add(self.suspicious.lines());
        }
        let trained = self.model.config.data.max_length;
        let is_long = |part: &Source| trained > 0 && part.ids.len() > trained;
        if self.args.attention.is_some() && translation.parts.iter().any(is_long) {
            self.suspicious.count_whole();
        }
        Ok(())
    }

    /// Warnings about the lines so far.
    fn warnings(&self) -> Vec<String> {
        let separated = self.separated.subject(self.suspicious.lines(), "line", ["has", "have"]).map(|lines_have| {
            let separator = FIELD.trim();
            format!("{lines_have} a translation with {separator} in it: its end cannot be told for sure (--json can)")
        });
        self.suspicious.warnings().into_iter().chain(self.tags.warnings()).chain(separated).collect()
    }

    /// Closes the files, and warns.
    fn finish(mut self) -> Result<()> {
        if let Some(file) = self.attention.take() {
            file.finish()?;
        }
        self.warnings().into_iter().for_each(warning);
        if self.suspicious.lines() == 0 {
            note("there is no line to translate");
        }
        if let (Some(lines_have), Some(wanted)) =
            (self.fewer.subject(self.suspicious.lines(), "line", ["has", "have"]), self.args.n_best)
        {
            let strategy = &self.args.decode.strategy;
            note(match strategy.draws_to_choose() {
                true => format!("{lines_have} fewer than {wanted} translations that differ: --samples draws more"),
                false => format!(
                    "{lines_have} fewer than {wanted} translations: the search found no more that differ \
                     (--beam-groups), or stopped before (--patience)"
                ),
            });
        }
        self.output.flush()
    }
}

/// Refuses flags that do not go together.
fn check(args: &TranslateArgs) -> Result<()> {
    if let Some(file) = &args.attention {
        let help = "give --attention a file of its own";
        if is_stdout(file) {
            return Err(Error::usage("--attention cannot go to stdout").help(help));
        }
        if is_same_file(args.output.as_deref(), Some(file)) {
            return Err(Error::usage("--attention and --output cannot go to the same place").help(help));
        }
    }
    if args.attention.is_some() && args.decode.long.as_deref() == Some(Long::Split.name()) {
        let error =
            Error::usage("--attention and --long split do not go together: attention weights belong to one sequence");
        return Err(error.help("give --long truncate or --long error"));
    }
    Ok(())
}

/// A line and its translation as JSON. It has the log-probabilities of the tokens and, if reached, of the end; for a
/// line in parts, of the tokens and end of each part. `joints` are the indices of the first tokens of later parts.
fn json(tokenizer: &Tokenizer, line: &str, translation: &Translation, alignments: &[Alignment], n_best: bool) -> Value {
    let candidate = |(candidate, alignment): (&Candidate, Option<&Alignment>)| {
        let Candidate { text, tokens, token_log_probs, log_prob, score, ending, joints, lacks_phrases } = candidate;
        let pieces: Vec<&str> = tokens.iter().map(|&token| tokenizer.piece(token).unwrap_or_default()).collect();
        let mut json = json!({
            "translation": text, "log_prob": log_prob, "score": score, "finished": candidate.finished(),
            "ending": ending.name(), "tokens": pieces, "token_log_probs": token_log_probs,
            "joints": joints, "lacks_phrases": lacks_phrases,
        });
        if let Some(alignment) = alignment {
            json["alignment"] = alignment.to_string().into();
        }
        json
    };
    let all_alignments = alignments.iter().map(Some).chain(std::iter::repeat(None));
    let mut json = candidate((translation.best(), alignments.first()));
    json["source"] = line.into();
    json["source_cut"] = translation.source_cut.into();
    if n_best {
        json["n_best"] = translation.n_best.iter().zip(all_alignments).map(candidate).collect();
    }
    json
}

/// A progress bar of sentences, hidden where a terminal shows translations or prompts.
fn progress(lines: &Lines, output: Option<&Path>) -> ProgressBar {
    let to_terminal = output.is_none_or(|path| path == Path::new("-")) && std::io::stdout().is_terminal();
    if to_terminal || lines.is_interactive() {
        return ProgressBar::hidden();
    }
    // Counting reads the whole input.
    let count = if is_watched() { lines.count() } else { None };
    progress_bar(Counted::Sentences, count.map(|count| count as u64))
}
