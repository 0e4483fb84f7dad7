//! `mt translate`

use std::io::IsTerminal;
use std::path::Path;

use super::model;
use super::output::{Input, Output};
use crate::cli::{Common, TranslateArgs};
use crate::console::{message, prompt};
use crate::decode::translate::{TranslateOptions, Translation, Translator};
use crate::error::{Error, Result};

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
        translate(&translator, &lines, &options, &mut output, common, 1)?;
        return output.flush();
    }
    let interactive = args.input.as_deref().is_none_or(|p| p == Path::new("-")) && std::io::stdin().is_terminal();
    let mut input = Input::open(args.input.as_deref())?;
    refuse_same_file(args.input.as_deref(), args.output.as_deref())?;
    let mut output = Output::open(args.output.as_deref())?;
    let mut first_line = 1;
    loop {
        if interactive {
            prompt("> ");
        }
        let lines = input.lines(if interactive { 1 } else { WINDOW })?;
        if lines.is_empty() || output.is_closed() {
            break;
        }
        translate(&translator, &lines, &options, &mut output, common, first_line)?;
        output.flush()?;
        first_line += lines.len();
    }
    if !common.quiet {
        input.warn();
    }
    output.flush()
}

/// Opening the output empties it: it must not be the input.
fn refuse_same_file(input: Option<&Path>, output: Option<&Path>) -> Result<()> {
    let (Some(input), Some(output)) = (input, output) else { return Ok(()) };
    let same = matches!((input.canonicalize(), output.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if same {
        return Err(Error::usage("--input and --output are the same file").at(output).help("write to another file"));
    }
    Ok(())
}

fn translate(
    translator: &Translator,
    lines: &[String],
    options: &TranslateOptions,
    output: &mut Output,
    common: &Common,
    first_line: usize,
) -> Result<()> {
    let translations = translator.translate(lines, options, |_| {})?;
    for (i, (line, translation)) in lines.iter().zip(&translations).enumerate() {
        if !common.quiet {
            warn(first_line + i, translation);
        }
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

fn warn(line: usize, translation: &Translation) {
    if translation.source_cut {
        message(format_args!(
            "warning: line {line} is longer than model.max_length: only its beginning was translated"
        ));
    }
    if !translation.finished {
        message(format_args!(
            "warning: the translation of line {line} was cut at the maximum length (--max-length, --max-length-extra)"
        ));
    }
}
