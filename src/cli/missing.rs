//! Options without the flag that they belong to, such as `--chrf-word-order` without `--chrf`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// clap's error, or one that names the option if its name begins with the flag that is missing: clap names only the flag.
pub fn explained(error: Error, command: &Command, arguments: &[OsString]) -> Error {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return error;
    }
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return error };
    let [flag] = &missing[..] else { return error };
    let names = arguments.iter().filter_map(|argument| argument.to_str()?.split('=').next());
    let mut options = names.filter(|name| name.strip_prefix(flag.as_str()).is_some_and(|rest| rest.starts_with('-')));
    let Some(option) = options.next() else { return error };
    let message = format!("{option} is an option of {flag}\n  help: add {flag}\n");
    Error::raw(ErrorKind::MissingRequiredArgument, message).with_cmd(command)
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;

    /// What is said about a wrong command line.
    fn said(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        Cli::of(&words).unwrap_err().to_string()
    }

    #[test]
    fn an_option_without_its_flag_is_named() {
        for (option, flag) in
            [("--chrf-word-order", "--chrf"), ("--ter-no-punct", "--ter"), ("--paired-bs-n", "--paired-bs")]
        {
            let value = if flag == "--ter" { "" } else { "=2" };
            let said = said(&format!("mt eval --hyp a --ref b {option}{value}"));
            assert_eq!(said, format!("error: {option} is an option of {flag}\n  help: add {flag}\n"));
        }
        assert!(said("mt average runs/a --last 3").contains("--out <DIR>"));
    }
}
