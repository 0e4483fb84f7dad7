//! `mt train`

mod devices;
mod dry_run;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::checkpoint::CONFIG_FILE;
use crate::cli::{Common, Gpus, TrainArgs};
use crate::commands::shared::arguments;
use crate::commands::shared::output::{print, print_json};
use crate::commands::shared::signals::Signals;
use crate::config::Config;
use crate::console::{message, messages, note, pairs_bar, tell};
use crate::error::{Error, Result};
use crate::escape::shell_word;
use crate::gpu::nccl::Library;
use crate::notice::Notice;
use crate::ranks::Ranks;
use crate::ranks::group::Group;
use crate::ranks::launch::Launch;
use crate::ranks::watch::Failure;
use crate::run::ended::Ended;
use crate::run::request::RunRequest;
use crate::run::stages::{Outcome, Resolved, Step, Surroundings, UPDATES_REACHED};
use crate::run::{backend, directory, follower, plan};
use crate::train::{StopReason, Validation};

/// How long a rank with an error leaves rank 0 to report the same one.
const FOR_THE_LOG: Duration = Duration::from_secs(1);

/// Messages at the first signal, and at a second one.
const ON_SIGNALS: [&str; 2] = [
    "stopping and saving; a second signal stops at once",
    "stopped at once; --resume continues from the last checkpoint, or starts again where there is none",
];

/// Trains a model.
pub(super) fn run(args: &TrainArgs, common: &Common) -> Result<()> {
    let of_system = |error: Error| match (error.is_of_disk() || error.is_of_open_files()) && !args.dry_run {
        true => error.more_help("training goes on with --resume"),
        false => error,
    };
    work(args, common).map_err(of_system)
}

fn work(args: &TrainArgs, common: &Common) -> Result<()> {
    let mut request = RunRequest {
        resume: args.resume,
        overwrite: args.overwrite,
        force: args.force,
        profile: args.profile,
        ..arguments::run(&args.run, common)
    };
    let launch = Launch::find()?;
    if let Some(gpus) = &args.devices {
        let gpus = devices::numbers(gpus)?;
        let of_this = launch.as_ref().map_or(0, |launch| launch.ranks.rank);
        request.device = gpus.get(of_this).map(|number| format!("cuda:{number}"));
        match &launch {
            None if args.dry_run => return dry_run(request, gpus.len(), args, common),
            None if gpus.len() > 1 => {
                if let Some(pipe) = args.run.config.iter().find(|path| !path.is_file() && path.exists()) {
                    let error = Error::usage("with --devices, each process reads the configuration").at(pipe);
                    return Err(error.help("write it to a file"));
                }
                // What all of them would say is said once.
                plan::refuse_idle_ranks(&request.config()?.train, gpus.len())?;
                Library::load()?;
                match devices::start(&gpus)? {}
            }
            Some(launch) if !launch.is_own() => {
                let what = format!("--devices starts ranks, but {} has started this one", launch.launcher.name());
                return Err(Error::usage(what).help("use one of the two"));
            }
            Some(_) | None => {}
        }
    }
    if args.dry_run && args.profile {
        let error = Error::usage("--profile shows how updates spent their time, and --dry-run makes none");
        return Err(error.help("leave one of them out"));
    }
    if args.dry_run {
        let Ranks { rank, count } = launch.map_or(Ranks::ALONE, |launch| launch.ranks);
        return if rank > 0 { Ok(()) } else { dry_run(request, count, args, common) };
    }
    let Some(launch) = launch else { return train(request, None, args, common) };
    let (rank, is_own) = (launch.ranks.rank, launch.is_own());
    let other_ranks = rank > 0;
    // Whatever the main thread waits for, the other ranks are not kept waiting.
    let end = move |failure: &Failure| -> ! {
        let error = failure.error();
        // Of the processes of `--devices`, which end together, one says it.
        if !is_own || rank == usize::from(failure.rank == 0) {
            messages(format_args!("error: {error}"));
        }
        // At once: at an orderly exit, MPI's library might wait for others.
        signal_hook::low_level::exit(error.exit_code().into())
    };
    let group = Group::join(&launch, backend::GIFT, Box::new(tell), Box::new(move |failure| end(failure)))?;
    let group = Rc::new(group);
    let done = if other_ranks { follow(request, &group) } else { train(request, Some(&group), args, common) };
    match done {
        Err(error) if !group.is_done() => {
            // Before the others hear of it: when one of them ends, the launcher ends this process.
            let rank = if other_ranks { format!("rank {rank}: ") } else { String::new() };
            messages(format_args!("error: {rank}{error}"));
            // What fails on all ranks, such as a training that diverges, rank 0 writes into its log.
            let since = Instant::now();
            while other_ranks && group.watch().failure().is_none() && since.elapsed() < FOR_THE_LOG {
                thread::sleep(Duration::from_millis(20));
            }
            group.watch().fail(&error);
            signal_hook::low_level::exit(error.exit_code().into())
        }
        done => done,
    }
}

/// Trains as a rank beside rank 0, which alone reports.
fn follow(request: RunRequest, group: &Rc<Group>) -> Result<()> {
    let rank = group.ranks().rank;
    let tell = move |notice: Notice| match notice {
        // Rank 0 has said the rest, too.
        Notice::Damage(text) => message(format_args!("rank {rank}: warning: {text}")),
        Notice::Info(_) | Notice::Note(_) | Notice::Warning(_) => {}
    };
    let resolved = Resolved::new(request, Some(group), &tell)?;
    let signals = Signals::register(None)?;
    let surroundings =
        Surroundings { tell: Arc::new(tell), stop: &signals, meter: &|_| Box::new(|_| ()), group: Some(group.clone()) };
    let end = follower::follow(resolved, &surroundings, group)?;
    group.finish()?;
    match end {
        Some(end @ (StopReason::Interrupted | StopReason::Terminated)) => {
            // Rank 0 reports it.
            let error = Error::stopped(end == StopReason::Terminated, "stopped by a signal");
            signal_hook::low_level::exit(error.exit_code().into())
        }
        _ => Ok(()),
    }
}

fn train(request: RunRequest, group: Option<&Rc<Group>>, args: &TrainArgs, common: &Common) -> Result<()> {
    let resolved = Resolved::new(request, group.map(|group| &**group), &tell)?;
    let signals = Signals::register(Some(ON_SIGNALS))?;
    let surroundings = Surroundings { tell: Arc::new(tell), stop: &signals, meter: &pairs_bar, group: group.cloned() };
    let finish = || group.map_or(Ok(()), |group| group.finish());
    match resolved.open(surroundings)?.prepare()? {
        Step::Over { ended, run, config } => {
            finish()?;
            report_over(ended, &run, &config, args, common)
        }
        Step::Trains(prepared) => {
            let outcome = prepared.ready()?.begin()?.train()?;
            finish()?;
            report(outcome, args, common)
        }
    }
}

/// Prints the plan of a run of so many ranks.
fn dry_run(request: RunRequest, ranks: usize, args: &TrainArgs, common: &Common) -> Result<()> {
    let resolved = Resolved::new(request, None, &tell)?;
    let of_ranks = match ranks {
        1 => Vec::new(),
        _ => {
            let warning = plan::refuse_idle_ranks(&resolved.config.train, ranks)?;
            let warning = warning.map(|warning| format!("warning: {warning}"));
            std::iter::once(plan::of_ranks(&resolved.config, ranks, None)).chain(warning).collect()
        }
    };
    let Resolved { request, config, mut texts, device, run, .. } = resolved;
    let old = directory::continued(&run, &request, &config, &tell)?.map(|continued| continued.config);
    let saved = old.map(|old| directory::tokenizers(&run).map(|tokenizers| (old, tokenizers))).transpose()?;
    dry_run::print(&run, &config, (&mut texts, &of_ranks), saved, args, &device, common)
}

/// The command that goes on with a run, on the same device.
fn resuming(run: &Path, gpus: Option<&Gpus>, common: &Common) -> String {
    let device = common.device.as_ref().map(|device| format!(" --device {device}")).unwrap_or_default();
    let threads = common.threads.map(|threads| format!(" --threads {threads}")).unwrap_or_default();
    let device = device + &devices::flag(gpus);
    let offline = if common.offline { " --offline" } else { "" };
    format!("`mt train --config {} --resume{device}{threads}{offline}`", shell_word(&run.join(CONFIG_FILE)))
}

/// Reports a run that had ended already.
fn report_over(ended: Ended, run: &Path, config: &Config, args: &TrainArgs, common: &Common) -> Result<()> {
    let Ended { update, made, monitored, candidates } = ended;
    if args.profile {
        note("nothing to profile: there were no updates");
    }
    if !common.json {
        return Ok(());
    }
    // The log does not record other reasons for the end of a run.
    let is_reached = update.is_some_and(|update| (1..=update).contains(&config.train.max_updates));
    let why = if is_reached { UPDATES_REACHED } else { "the run had ended before" };
    let mut result = json!({ "run_dir": run.to_string_lossy(), "update": update, "ended": why });
    result["model"] = made.as_ref().map_or(Value::Null, |entry| entry["model"].clone());
    let numbers = |entry: &Value| -> Value {
        let is_number = |key: &str| !["event", "update", "model", "set", "seconds"].contains(&key);
        let numbers = entry.as_object().into_iter().flatten().filter(|(key, _)| is_number(key));
        numbers.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    result["valid"] = made.as_ref().map_or(Value::Null, numbers);
    let set = |entry: &Value| (entry["set"].as_str().unwrap_or_default().to_owned(), numbers(entry));
    result["monitor"] = made.map_or(Value::Null, |_| monitored.iter().map(set).collect());
    result["candidates"] = candidates.into();
    print_json(&result)
}

/// Reports how training has ended, as an error if a signal has stopped it.
fn report(outcome: Outcome, args: &TrainArgs, common: &Common) -> Result<()> {
    let Outcome { run, update, stopped, why, model, validation, candidates, profile } = outcome;
    if let (Some(profile), true, false) = (&profile, args.profile, common.json) {
        print(profile)?;
    }
    let (what, verb) = match &model {
        Some(_) if stopped.is_some() => (
            "stopped by a signal after training: the final model is saved, and not evaluated".to_owned(),
            "evaluate it",
        ),
        _ => (why, "continue"),
    };
    if common.json {
        let mut result =
            json!({ "run_dir": run.display().to_string(), "update": update, "ended": what, "model": model });
        let of = |numbers: fn(&Validation) -> Map<String, Value>| validation.as_ref().map(numbers).into();
        result["valid"] = of(Validation::numbers);
        result["monitor"] = of(Validation::monitored_numbers);
        result["candidates"] = if stopped.is_some() { Vec::new() } else { candidates }.into();
        if let (Some(profile), None) = (profile, stopped) {
            result["profile"] = profile.json();
        }
        print_json(&result)?;
    }
    match stopped {
        Some(signal) => {
            let help = format!("{verb} with {}", resuming(&run, args.devices.as_ref(), common));
            Err(Error::stopped(signal == StopReason::Terminated, what).help(help))
        }
        None => Ok(()),
    }
}
