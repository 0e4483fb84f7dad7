//! Flags of the commands that come before a model: `mt init`, `mt check`, `mt prepare`, `mt train`.

use std::path::PathBuf;

use clap::Args;

/// `mt init`
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Source text, one sentence a line; may be compressed (.gz, .xz, .zst)
    pub source: PathBuf,
    /// Its translation, line by line
    pub target: PathBuf,
    /// Validate on these files; without them, pairs are held out of the training text
    #[arg(long, num_args = 2, value_names = ["SOURCE", "TARGET"])]
    pub valid: Option<Vec<PathBuf>>,
    /// The configuration to write; held-out text goes into a folder beside it
    #[arg(short, long, value_name = "FILE", default_value = "mt.toml")]
    pub output: PathBuf,
    /// Replace files that exist
    #[arg(long)]
    pub overwrite: bool,
}

/// `mt train`
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct TrainArgs {
    /// The configuration and the run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Continue a run from its newest checkpoint; without one, begin it
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Replace an existing run
    #[arg(long)]
    pub overwrite: bool,
    /// With --resume: go on even if the configuration has changed what is trained
    #[arg(long)]
    pub force: bool,
    /// Print the plan (configuration, parameters, corpus, memory) without training; `mt check` also looks for faults
    /// in the text
    #[arg(long)]
    pub dry_run: bool,
    /// At the end, print how the updates spent their time: parts of the loop, operations, kernels
    #[arg(long)]
    pub profile: bool,
    /// Train on several of this machine's GPUs, with a process for each: how many, a list such as 0,2,3, or all
    #[arg(long, value_name = "N|LIST|all", conflicts_with = "device", value_parser = parse_gpus)]
    pub devices: Option<Gpus>,
}

/// Several GPUs of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// All that there are.
    All,
    /// The first ones.
    First(usize),
    /// These, by their numbers.
    These(Vec<usize>),
}

fn parse_gpus(text: &str) -> Result<Gpus, String> {
    let number = |text: &str| -> Result<usize, String> {
        let text = text.trim();
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let wrong = || "give how many GPUs, a list of their numbers such as 0,2,3, or all".to_owned();
        text.parse().ok().filter(|_| is_number).ok_or_else(wrong)
    };
    if text == "all" {
        return Ok(Gpus::All);
    }
    if !text.contains(',') {
        return match number(text)? {
            0 => Err("there must be one at least; for GPU 0 alone, --device cuda:0".to_owned()),
            count => Ok(Gpus::First(count)),
        };
    }
    let numbers: Vec<usize> = text.split(',').map(number).collect::<Result<_, _>>()?;
    let twice = numbers.iter().enumerate().find(|(index, number)| numbers[..*index].contains(number));
    match twice {
        Some((_, number)) => Err(format!("GPU {number} is named twice")),
        None => Ok(Gpus::These(numbers)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_a_number_a_list_or_all() {
        assert_eq!(parse_gpus("all"), Ok(Gpus::All));
        assert_eq!(parse_gpus("4"), Ok(Gpus::First(4)));
        assert_eq!(parse_gpus("0, 2,3"), Ok(Gpus::These(vec![0, 2, 3])));
        for (wrong, says) in [
            ("0", "cuda:0"),
            ("", "how many"),
            ("-1", "how many"),
            ("+1,2", "how many"),
            ("2,", "how many"),
            ("1,1", "twice"),
            ("ALL", "how many"),
            ("99999999999999999999", "how many"),
        ] {
            let error = parse_gpus(wrong).unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}

/// `mt train`, `mt check`, `mt prepare`: a configuration and the run that it is for.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Configuration files; later ones override earlier ones
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Override one key, for example --set train.max_updates=1000
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Run directory; it need not exist [default: runs/<name of the configuration, of several the last>; with a run's
    /// own config.toml, that run]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}
