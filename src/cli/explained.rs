//! Options without the flag that they belong to, such as `--chrf-word-order` without `--chrf`, values that an option
//! cannot have, keys of the configuration given as options, such as `--lr`, and commands as other toolkits call them.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Error};

use crate::config::{instead_of, keys_called};

/// clap's error, or a more helpful one.
pub(super) fn explained(error: Error, command: &Command, arguments: &[OsString]) -> Error {
    match error.kind() {
        ErrorKind::UnknownArgument => key_as_option(error, command, arguments),
        ErrorKind::InvalidSubcommand => command_called(error, command),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => invalid_value(error, command),
        _ => error,
    }
}

/// What other toolkits call our commands.
const COMMANDS: &[(&str, &[&str])] = &[
    ("translate", &["generate", "decode", "decoder", "interactive", "infer", "predict"]),
    ("eval", &["evaluate", "test", "sacrebleu", "bleu", "validate"]),
    ("prepare", &["preprocess", "prepare-data", "build-vocab", "binarize", "vocab"]),
    ("score", &["scorer", "rescore"]),
    ("export", &["convert"]),
    ("average", &["avg", "avg_checkpoints", "average_checkpoints"]),
];

/// Names our command for another toolkit's.
fn command_called(error: Error, command: &Command) -> Error {
    let Some(ContextValue::String(theirs)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let Some((ours, _)) = COMMANDS.iter().find(|(_, names)| names.contains(&theirs.as_str())) else { return error };
    let message = format!("unrecognized subcommand {theirs}\n  help: the command for that is `mt {ours}`\n");
    Error::raw(ErrorKind::InvalidSubcommand, message).with_cmd(command)
}

/// A value that an option cannot have, in the form of our own messages.
fn invalid_value(error: Error, command: &Command) -> Error {
    let context = [ContextKind::InvalidArg, ContextKind::InvalidValue].map(|kind| error.get(kind));
    let [Some(ContextValue::String(option)), Some(ContextValue::String(value))] = context else { return error };
    let help = match (error.get(ContextKind::ValidValue), error.source()) {
        (Some(ContextValue::Strings(names)), _) if !names.is_empty() => format!("one of {}", names.join(", ")),
        (_, Some(cause)) => expected(cause),
        // There is no value.
        _ => return error,
    };
    // Without the name of its value.
    let option = option.split(' ').next().unwrap_or(option);
    let message = format!("invalid value `{value}` for {option}\n  help: {help}\n");
    Error::raw(error.kind(), message).with_cmd(command)
}

/// What a value must be, given why this one cannot be read.
fn expected(cause: &(dyn std::error::Error + 'static)) -> String {
    let text = cause.to_string();
    if let Some(error) = cause.downcast_ref::<ParseIntError>() {
        let is_large = matches!(error.kind(), IntErrorKind::PosOverflow);
        return if is_large { "it is too large" } else { "give a whole number that is not negative" }.to_owned();
    }
    if cause.is::<ParseFloatError>() {
        return "give a number".to_owned();
    }
    let range = text.split_once(" is not in ").and_then(|(_, range)| range.split_once("..="));
    let words = range.map(|(first, last)| format!("give a whole number from {first} to {last}"));
    words.unwrap_or(text)
}

/// Names the keys of the configuration, ours or another toolkit's, that an unknown option may mean, where `--set` takes
/// them; or what there is instead.
fn key_as_option(error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let takes_keys = |command: &&Command| command.get_arguments().any(|argument| argument.get_long() == Some("set"));
    let mut subcommands = arguments.iter().skip(1).filter_map(|argument| command.find_subcommand(argument));
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let Some(name) = option.strip_prefix("--") else { return file_alone(error, command, arguments) };
    if !subcommands.next().as_ref().is_some_and(takes_keys) {
        return error;
    }
    let sets: Vec<String> = keys_called(name).iter().map(|key| format!("`--set {key}=VALUE`")).collect();
    // What other commands call a file that this one takes by itself.
    let by_itself = (name == "config").then_some("name the file without --config: `mt info FILE`");
    let help = match by_itself.or_else(|| instead_of(name)) {
        Some(instead) => instead.to_owned(),
        None if sets.is_empty() => return error,
        None => format!("for a key of the configuration, give {}", sets.join(" or ")),
    };
    Error::raw(ErrorKind::UnknownArgument, format!("unexpected argument {option}\n  help: {help}\n")).with_cmd(command)
}

/// A configuration without `--config` before it.
fn file_alone(error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let of = arguments.iter().skip(1).find_map(|argument| command.find_subcommand(argument));
    let takes_one = |command: &Command| command.get_arguments().any(|argument| argument.get_long() == Some("config"));
    match (error.get(ContextKind::InvalidArg), of) {
        (Some(ContextValue::String(file)), Some(of)) if file.ends_with(".toml") && takes_one(of) => {
            let help = format!("name a configuration with --config: `mt {} --config {file}`", of.get_name());
            let message = format!("unexpected argument {file}\n  help: {help}\n");
            Error::raw(ErrorKind::UnknownArgument, message).with_cmd(command)
        }
        _ => error,
    }
}

/// An option, by its id, and the flags to which it belongs: it means nothing without one of them. `VALUE` in
/// `flag=VALUE` is the only value of the flag to which it belongs. (clap's own `requires` would not be checked where
/// another argument excludes the flag.)
const BELONGS: &[(&str, &[&str])] = &[
    ("diversity", &["beam_groups"]),
    ("mbr_model", &["mbr=comet"]),
    ("rerank_model", &["rerank"]),
    ("samples", &["mbr", "rerank"]),
    ("temperature", &["sample"]),
    ("top_k", &["sample"]),
    ("top_p", &["sample"]),
    ("tokenize_model", &["tokenize"]),
    ("chrf_char_order", &["chrf"]),
    ("chrf_word_order", &["chrf"]),
    ("chrf_beta", &["chrf"]),
    ("chrf_whitespace", &["chrf"]),
    ("chrf_lowercase", &["chrf"]),
    ("chrf_eps_smoothing", &["chrf"]),
    ("ter_normalized", &["ter"]),
    ("ter_no_punct", &["ter"]),
    ("ter_asian_support", &["ter"]),
    ("ter_case_sensitive", &["ter"]),
    ("comet_precision", &["comet", "qe"]),
    ("confidence_n", &["confidence"]),
    ("paired_bs_n", &["paired_bs"]),
    ("paired_ar_n", &["paired_ar"]),
    ("train_text", &["report"]),
    ("feature", &["n_best"]),
];

/// The same for options that other commands have, too, with another meaning: the command first.
const BELONGS_IN: &[(&str, &str, &[&str])] = &[
    ("translate", "weights", &["model"]),
    ("eval", "weights", &["model"]),
    ("score", "weights", &["model"]),
    ("augment", "weights", &["model"]),
    ("eval", "tag", &["src"]),
    ("shortlist", "src", &["tgt"]),
    ("shortlist", "tgt", &["src"]),
    ("train", "force", &["resume"]),
];

/// Fails if an option is given without the flag that it belongs to.
pub(super) fn refuse_idle_options(matches: &ArgMatches, command: &Command) -> Result<(), Error> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let is_given = |id: &str| {
        let source = matches.try_contains_id(id).is_ok().then(|| matches.value_source(id)).flatten();
        source == Some(ValueSource::CommandLine)
    };
    let is_so = |flag: &&str| match flag.split_once('=') {
        Some((flag, value)) => {
            let given = matches.try_get_one::<String>(flag).ok().flatten();
            is_given(flag) && given.is_some_and(|given| given == value)
        }
        None => is_given(flag),
    };
    let of_command = BELONGS_IN.iter().filter(|(of, ..)| *of == name).map(|(_, option, flags)| (option, flags));
    let mut all = BELONGS.iter().map(|(option, flags)| (option, flags)).chain(of_command);
    let Some((option, flags)) = all.find(|(option, flags)| is_given(option) && !flags.iter().any(&is_so)) else {
        return Ok(());
    };
    let named = |id: &str| format!("--{}", id.replace('_', "-").replace('=', " "));
    let flags: Vec<String> = flags.iter().map(|flag| named(flag)).collect();
    let (option, flags) = (named(option), flags.join(" or "));
    let message = format!("{option} is an option of {flags}\n  help: add {flags}\n");
    Err(Error::raw(ErrorKind::MissingRequiredArgument, message).with_cmd(command))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    /// The message about a wrong command line.
    fn message(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        Cli::from_arguments(&words).unwrap_err().to_string()
    }

    #[test]
    fn a_key_as_an_option_is_named() {
        for (option, help) in [
            ("--lr", "`--set train.schedule.learning_rate=VALUE`"),
            ("--warmup_updates=100", "`--set train.schedule.warmup=VALUE`"),
            ("--max-updates", "`--set train.max_updates=VALUE`"),
            ("--beam-size", "`--set decode.beam=VALUE` or `--set valid.beam=VALUE`"),
        ] {
            let text = message(&format!("mt -q train --config a.toml {option} 3"));
            let option = option.split('=').next().unwrap();
            let help = format!("for a key of the configuration, give {help}");
            assert_eq!(text, format!("error: unexpected argument {option}\n  help: {help}\n"));
        }
        assert!(message("mt info --config a.toml").ends_with("help: name the file without --config: `mt info FILE`\n"));
        assert!(
            message("mt train -q a.toml")
                .ends_with("help: name a configuration with --config: `mt train --config a.toml`\n")
        );
        assert!(!message("mt train text").contains("help: name"));
        assert!(message("mt train --save-dir x").ends_with("on the command line: `--run-dir DIR`\n"));
        // Commands without `--set`, and names that are no keys.
        for line in ["mt translate --lr 3", "mt train --config a.toml --nothing"] {
            assert!(!message(line).contains("--set"), "{line}");
        }
    }

    #[test]
    fn a_command_of_others_is_named() {
        let message_of = |word: &str| message(&format!("mt {word} --config a.toml"));
        for (ours, names) in COMMANDS {
            assert!(Cli::command().find_subcommand(ours).is_some(), "{ours}");
            for theirs in *names {
                assert!(Cli::command().find_subcommand(theirs).is_none(), "{theirs}");
                let help = format!("help: the command for that is `mt {ours}`");
                assert_eq!(message_of(theirs), format!("error: unrecognized subcommand {theirs}\n  {help}\n"));
            }
        }
        assert!(message_of("trian").contains("'train'"));
    }

    #[test]
    fn an_option_without_its_flag_is_named() {
        for (option, flag) in
            [("--chrf-word-order", "--chrf"), ("--ter-no-punct", "--ter"), ("--paired-bs-n", "--paired-bs")]
        {
            let value = if flag == "--ter" { "" } else { "=2" };
            let text = message(&format!("mt eval --hyp a --ref b {option}{value}"));
            assert_eq!(text, format!("error: {option} is an option of {flag}\n  help: add {flag}\n"));
        }
        assert!(message("mt average runs/a --last 3").contains("--out <DIR>"));
        // Also where another argument excludes the flag.
        for line in [
            "translate --beam-groups 2 --temperature 3",
            "translate --patience 2 --mbr-model a",
            "translate --mbr chrf --mbr-model a",
            "eval --paired-bs --confidence-n 5",
            "eval --sentence-level --train-text a",
            "eval --hyp a --ref b --comet-precision int8",
            "score --src a --tgt a --feature b",
            "shortlist a --out b --trust-model-data --tgt c",
            "train --config a --overwrite --force",
        ] {
            let option = line.split(' ').rfind(|word| word.starts_with("--")).unwrap();
            assert!(
                message(&format!("mt {line}")).starts_with(&format!("error: {option} is an option of --")),
                "{line}"
            );
        }
    }

    /// The lists name arguments that there are.
    #[test]
    fn options_and_their_flags_are_arguments() {
        let command = Cli::command();
        let has = |command: &Command, id: &str| {
            command.get_arguments().any(|argument| argument.get_id() == id.split('=').next().unwrap())
        };
        for (option, flags) in BELONGS {
            let mut of: Vec<&Command> = command.get_subcommands().filter(|command| has(command, option)).collect();
            assert!(!of.is_empty(), "{option}");
            of.retain(|command| !flags.iter().any(|flag| has(command, flag)));
            assert!(of.is_empty(), "{option}: {:?}", of[0].get_name());
        }
        for (name, option, flags) in BELONGS_IN {
            let command = command.find_subcommand(name).unwrap();
            assert!(has(command, option) && flags.iter().all(|flag| has(command, flag)), "{name} --{option}");
        }
    }
}
