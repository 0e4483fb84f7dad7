//! `mt translate`

use std::io::IsTerminal;
use std::path::Path;

use super::model;
use super::output::{Input, Output, refuse_inputs};
use crate::cli::{Common, TranslateArgs};
use crate::console::{message, prompt};
use crate::decode::translate::{TranslateOptions, Translation, Translator};
use crate::error::Result;

/// Lines translated together: enough to batch by length, few enough to answer soon and to bound memory.
const WINDOW: usize = 2000;

/// Translates its arguments, a file or stdin: one line out for each line in, in order.
pub fn run(args: &TranslateArgs, common: &Common) -> Result<()> {
    let loaded = model::load(&args.model, common)?;
    let options = model::translate_options(&args.decode, &loaded.config.decode)?;
    let translator = Translator::new(&loaded.model, &loaded.tokenizers)?;
    if !args.text.is_empty() {
        let mut output = Output::open(args.output.as_deref())?;
        let lines: Vec<String> = args.text.iter().map(|text| text.replace(['\n', '\r'], " ")).collect();
        let mut cut = CutLines::default();
        translate(&translator, &lines, &options, &mut output, common, &mut cut)?;
        if !common.quiet {
            cut.warn();
        }
        return output.flush();
    }
    let stdin = Path::new("-");
    let interactive = args.input.as_deref().is_none_or(|path| path == stdin) && std::io::stdin().is_terminal();
    let mut input = Input::open(args.input.as_deref())?;
    refuse_inputs(args.output.as_deref(), [args.input.as_deref().unwrap_or(stdin)])?;
    let mut output = None;
    let mut cut = CutLines::default();
    loop {
        if interactive {
            prompt("> ");
        }
        let lines = input.lines(if interactive { 1 } else { WINDOW })?;
        // Opening empties a file: not before the input has shown that it can be read.
        let output = match &mut output {
            Some(output) => output,
            None => output.insert(Output::open(args.output.as_deref())?),
        };
        if lines.is_empty() || output.is_closed() {
            break;
        }
        translate(&translator, &lines, &options, output, common, &mut cut)?;
        output.flush()?;
    }
    if !common.quiet {
        input.warn();
        cut.warn();
    }
    output.map_or(Ok(()), |mut output| output.flush())
}

fn translate(
    translator: &Translator,
    lines: &[String],
    options: &TranslateOptions,
    output: &mut Output,
    common: &Common,
    cut: &mut CutLines,
) -> Result<()> {
    let translations = translator.translate(lines, options, |_| {})?;
    for (line, translation) in lines.iter().zip(&translations) {
        cut.count(translation);
        if common.json {
            let Translation { text, log_prob, score, finished, .. } = translation;
            let json = serde_json::json!({
                "source": line, "translation": text, "log_prob": log_prob, "score": score, "finished": finished,
            });
            output.line(&json.to_string())?;
        } else {
            output.line(&translation.text)?;
        }
    }
    Ok(())
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
        if !translation.finished {
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
