//! `mt info`

mod machine;
mod tree;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::shared::output::Output;
use crate::checkpoint::{self, TensorFile, Which};
use crate::cli::{Common, InfoArgs};
use crate::config::{self, Config};
use crate::console::{message, tell};
use crate::data::tokenizers::Tokenizers;
use crate::data::{SamplingConfig, TokenizerConfig};
use crate::error::{Error, Result, check_path};
use crate::escape::{in_one_line, shell_word, shown_path};
use crate::model::{NormKind, Vocabulary, layout};
use crate::model_dir::{config_of, hub, slots, vocabulary, whole_path};
use crate::notice::grouped;
use crate::ops::params::{Entry, ParameterLayout};
use crate::run::init::Start;
use crate::train::ValidMetric;
use crate::train::log::{self, LOG_FILE};

/// The training history in a run's newest checkpoint, by key.
type History = Vec<(String, Value)>;

/// The described model or configuration.
struct Described {
    config: Config,
    vocabulary: Vocabulary,
    /// Whether it is one for both sides.
    is_joint: bool,
    /// Whether it is yet to be learnt, and may turn out smaller.
    is_wanted: bool,
    history: History,
}

impl Described {
    fn new(config: Config, tokenizers: &Tokenizers, history: History) -> Self {
        let (vocabulary, is_joint) = (vocabulary(tokenizers), tokenizers.is_one_vocabulary());
        Self { config, vocabulary, is_joint, is_wanted: false, history }
    }
}

/// Describes a model directory, a configuration or this machine.
pub(super) fn run(args: &InfoArgs, common: &Common) -> Result<()> {
    let Some(named) = &args.path else { return machine::run(common) };
    let path = match hub::repository(named) {
        Some(repo) => hub::directory(&repo, common.offline, &tell)?,
        None => named.clone(),
    };
    let described = match &args.checkpoint {
        Some(which) if path.is_dir() => {
            let look = || describe_model(&checkpoint_of(&path, which)?, args);
            checkpoint::look_again(&path, |_| true, look)?
        }
        None if path.is_dir() => describe_model(&whole_path(path), args)?,
        Some(_) => {
            let error = Error::usage("--checkpoint is for runs, but this is no directory").at(&path);
            return Err(error.help("name the run, or leave --checkpoint out"));
        }
        None => describe_config(named, args)?,
    };
    let model = &described.config.model;
    let parameters = layout::layout(model, described.vocabulary);
    let mut output = Output::open(None)?;
    if common.json {
        output.json(&as_json(&described, &parameters))?;
    } else {
        let mut lines = as_text(&described, &parameters);
        lines.push(String::new());
        lines.extend(tree::lines(model, described.vocabulary));
        if common.verbose {
            lines.push("\ntensors:".to_owned());
            lines.extend(parameters.entries().iter().map(|e| format!("  {:<52}{:?}", e.name, e.shape)));
        }
        for line in lines {
            output.description(&line)?;
        }
    }
    output.flush()
}

/// The directory of a checkpoint of the run, or of its final model.
fn checkpoint_of(run: &Path, which: &str) -> Result<PathBuf> {
    let which = which.parse()?;
    if let (directory, Some(_)) = checkpoint::directory_and_step(run) {
        let error = Error::usage("this is a checkpoint already, and --checkpoint names another").at(run);
        return Err(error.help(format!("leave --checkpoint out, or name the run: {}", directory.display())));
    }
    let located = checkpoint::locate(run, Some(which))?;
    located.warnings.iter().for_each(|warning| message(format_args!("warning: {warning}")));
    Ok(located.directory)
}

fn describe_model(path: &Path, args: &InfoArgs) -> Result<Described> {
    if !args.set.is_empty() {
        return Err(Error::usage("--set changes configurations, not models"));
    }
    // One of a run's checkpoints, or the directory of a model.
    let (directory, which) = checkpoint::directory_and_step(path);
    let config = config_of(directory)?;
    let tokenizers = Tokenizers::load(directory)?;
    let mut history = History::new();
    if let Some(init) = &config.train.init {
        history.push(("began_with".to_owned(), Value::from(init.display().to_string())));
    }
    let (tags, languages) = (tokenizers.source.language_tags(), tokenizers.source.languages());
    if !languages.is_empty() {
        let codes: Vec<&str> = languages.iter().map(|(code, _)| *code).collect();
        history.push(("languages".to_owned(), Value::from(codes.join(" "))));
    } else if !tags.is_empty() {
        history.push(("target_languages".to_owned(), Value::from(tags.join(" "))));
    }
    // Whether it is whole, and its origin, if that is not training.
    let state = |directory: &Path| match checkpoint::verify(directory) {
        Ok(manifest) => Ok(("whole".to_owned(), manifest.made_from)),
        Err(error) if checkpoint::is_gone(&error) => Err(error),
        Err(error) => {
            let damage = error.all().map(Error::what).collect::<Vec<_>>().join("; ");
            message(format_args!("warning: {damage}: what follows may not be true of the model as it was trained"));
            Ok((damage, None))
        }
    };
    if let Some(which) = which {
        history.push(("run".to_owned(), Value::from(directory.display().to_string())));
        history.push(("checkpoint".to_owned(), Value::from(state(path)?.0)));
        if let Which::Step(step) = which {
            history.extend(training_history(step, path)?);
        }
        return Ok(Described::new(config, &tokenizers, history));
    }
    if path.join(checkpoint::MODEL_FILE).exists() {
        let (state, made_from) = state(path)?;
        history.push(("final_model".to_owned(), Value::from(state)));
        history.extend(made_from.map(|text| ("made_from".to_owned(), Value::from(text))));
        let parameters = layout::layout(&config.model, vocabulary(&tokenizers));
        let file = path.join(checkpoint::MODEL_FILE);
        if TensorFile::open(&file, &slots(parameters.entries())).is_ok_and(|file| file.is_quantised()) {
            let megabytes = std::fs::metadata(&file).map_or(0.0, |metadata| metadata.len() as f64 / 1e6);
            history.push(("stored_as".to_owned(), Value::from(format!("8-bit integers, {megabytes:.1} MB"))));
        }
        if let Some(event) = final_event(path) {
            history.push(("final_model_is".to_owned(), event));
        }
    }
    let look = || {
        // An unreadable part must not hide the rest.
        let (newest, warnings) = checkpoint::newest_valid(path).unwrap_or_else(|error| (None, vec![error.to_string()]));
        let training = newest.map(|(step, directory)| training_history(step, &directory)).transpose()?;
        Ok((training, warnings))
    };
    let (training, warnings) = checkpoint::look_again(path, |(_, warnings)| warnings.is_empty(), look)?;
    warnings.iter().for_each(|warning| message(format_args!("warning: {warning}")));
    history.extend(training.unwrap_or_default());
    Ok(Described::new(config, &tokenizers, history))
}

/// The training history that a checkpoint records.
fn training_history(step: u64, directory: &Path) -> Result<History> {
    let mut state = checkpoint::read_state(directory)?;
    // The scores of each line, for comparing validations, are long.
    if let Some(best) = state.get_mut("best").and_then(Value::as_object_mut) {
        best.remove("lines");
    }
    let entry = |key: &str| (key.to_owned(), state[key].clone());
    let mut history = vec![("updates".to_owned(), Value::from(step))];
    history.extend(["target_tokens", "seconds", "best"].map(entry));
    let next: Vec<Value> =
        state["next_best"].as_array().into_iter().flatten().map(|next| next["step"].clone()).collect();
    if !next.is_empty() {
        history.push(("next_best".to_owned(), Value::from(next)));
    }
    Ok(history)
}

/// The entry on the final model in the log of a finished run: which it is, and its validation.
fn final_event(run: &Path) -> Option<Value> {
    let file = run.join(LOG_FILE);
    let entries = match log::entries(&file) {
        Ok(entries) => entries,
        // A model that was imported or averaged has none.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            message(format_args!("warning: the log is left out: cannot read {}: {error}", shown_path(&file)));
            return None;
        }
    };
    entries.into_iter().rfind(|event| event["event"] == "final")
}

fn describe_config(file: &Path, args: &InfoArgs) -> Result<Described> {
    if !file.exists() {
        let error = Error::failure("there is no such model directory or configuration").at(file);
        return Err(hub::advised(error.help(check_path(file)), file));
    }
    let is_toml = file.extension().is_some_and(|extension| extension == "toml");
    if let (Some(parent), false) = (file.parent(), is_toml) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        if parent.join(checkpoint::CONFIG_FILE).exists() || checkpoint::run_and_step(parent).is_some() {
            let error = Error::usage("this is a file of a model, which is named by its directory").at(file);
            return Err(error.help(format!("name the directory: `mt info {}`", shell_word(parent))));
        }
    }
    let config = config::load(&[file.to_path_buf()], &args.set)?;
    let of_run = file.parent().filter(|run| config::is_resolved(file) && Tokenizers::exist(run));
    if let Some(run) = of_run
        && (args.set.is_empty() || is_vocabulary_of(&config::load_resolved(file)?, &config))
    {
        return Ok(Described::new(config, &Tokenizers::load(run)?, History::new()));
    }
    let tokenizers = match (Start::open(&config)?, Tokenizers::named(&config.tokenizer)?) {
        (Some(start), _) => Some(start.tokenizers),
        (None, named) => named,
    };
    if let Some(tokenizers) = tokenizers {
        return Ok(Described::new(config, &tokenizers, History::new()));
    }
    let (size, is_joint) = (config.tokenizer.vocab_size, config.tokenizer.joint);
    let vocabulary = Vocabulary { source: size, target: size, source_padding: 0, target_padding: 0 };
    Ok(Described { config, vocabulary, is_joint, is_wanted: true, history: History::new() })
}

/// Whether a run with this configuration would have the vocabulary of the run whose configuration is `saved`.
fn is_vocabulary_of(saved: &Config, config: &Config) -> bool {
    // Sampling affects training only.
    let named = |config: &Config| TokenizerConfig {
        dropout: 0.0,
        sampling: SamplingConfig::default(),
        ..config.tokenizer.clone()
    };
    named(saved) == named(config) && saved.train.init == config.train.init
}

/// The part a parameter belongs to: the first component of its name.
fn part(entry: &Entry) -> &str {
    entry.name.split('.').next().unwrap_or(&entry.name)
}

/// Parameters of every part, in order.
pub(super) fn by_part(parameters: &ParameterLayout) -> Vec<(&str, usize)> {
    let mut parts: Vec<(&str, usize)> = Vec::new();
    for entry in parameters.entries() {
        match parts.iter_mut().find(|(name, _)| *name == part(entry)) {
            Some((_, count)) => *count = count.saturating_add(entry.len()),
            None => parts.push((part(entry), entry.len())),
        }
    }
    parts
}

/// The number of parameters, in all and in every part.
pub(super) fn counts(parameters: &ParameterLayout) -> Map<String, Value> {
    let total = [("total", parameters.total())].into_iter();
    total.chain(by_part(parameters)).map(|(name, count)| (name.to_owned(), Value::from(count))).collect()
}

fn as_json(described: &Described, parameters: &ParameterLayout) -> Value {
    let Described { config, vocabulary, is_joint, history, .. } = described;
    let tensors: Map<String, Value> =
        parameters.entries().iter().map(|e| (e.name.clone(), Value::from(e.shape.clone()))).collect();
    let tied: Map<String, Value> =
        layout::ties(config.model.tie).into_iter().map(|(name, owner)| (name.to_owned(), Value::from(owner))).collect();
    json!({
        "parameters": counts(parameters),
        "tied": tied,
        "config": config,
        "vocabulary": { "source": vocabulary.source, "target": vocabulary.target, "joint": is_joint },
        "memory": { "model_bytes": bytes(parameters, 4), "training_bytes": bytes(parameters, 16) },
        "tensors": tensors,
        "history": history.iter().cloned().collect::<Map<String, Value>>(),
    })
}

fn as_text(described: &Described, parameters: &ParameterLayout) -> Vec<String> {
    let Described { config, vocabulary, is_joint, is_wanted, history } = described;
    let (m, joint) = (&config.model, if *is_joint { " (joint)" } else { "" });
    let (heads, wanted) = (
        if m.heads == 1 { "head" } else { "heads" },
        if *is_wanted {
            ", to be learnt: little text gives fewer, and so fewer parameters (mt check counts them)"
        } else {
            ""
        },
    );
    let norm_kind = if m.norm_kind == NormKind::Layer { String::new() } else { format!(" ({})", m.norm_kind) };
    let mut lines = vec![
        format!(
            "Transformer {}+{} layers, d_model {}, d_ff {}, {} {heads} (d_k {}, d_v {}), {}-norm{norm_kind}, {} \
             positions, tie {}",
            m.encoder_layers, m.decoder_layers, m.d_model, m.d_ff, m.heads, m.d_k, m.d_v, m.norm, m.positions, m.tie
        ),
        format!("vocabulary: {} source, {} target{joint}{wanted}", vocabulary.source, vocabulary.target),
        "parameters:".to_owned(),
    ];
    for (name, count) in by_part(parameters) {
        let line = format!("  {name:<24}{:>14}  {}", grouped(count), remark(config, parameters, name));
        lines.push(line.trim_end().to_owned());
    }
    lines.push(format!("  {:<24}{:>14}", "total", grouped(parameters.total())));
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    lines.push(format!(
        "memory: {:.1} MB of weights in float32; {:.1} MB with gradients and optimizer in training",
        megabytes(bytes(parameters, 4)),
        megabytes(bytes(parameters, 16))
    ));
    lines.extend(history.iter().map(|(key, value)| history_line(key, value, config.valid.metric)));
    lines
}

/// Bytes of all parameters, with so many for each.
fn bytes(parameters: &ParameterLayout, each: usize) -> usize {
    parameters.total().saturating_mul(each)
}

/// A description of a part, unless its name is enough.
fn remark(config: &Config, parameters: &ParameterLayout, part: &str) -> String {
    let ties = layout::ties(config.model.tie);
    let users: Vec<_> = ties.iter().filter(|(_, owner)| *owner == part).map(|(name, _)| *name).collect();
    match part {
        "encoder" => stack(parameters, part, config.model.encoder_layers),
        "decoder" => stack(parameters, part, config.model.decoder_layers),
        _ if !users.is_empty() => format!("also {}: one matrix, counted once", users.join(" and ")),
        _ if ties.iter().any(|(name, _)| *name == part) => "the bias alone".to_owned(),
        _ => String::new(),
    }
}

/// What a stack consists of.
fn stack(parameters: &ParameterLayout, part: &str, layers: usize) -> String {
    let count = |inner: &str| -> usize {
        let prefix = format!("{part}.{inner}.");
        let lengths = parameters.entries().iter().filter(|e| e.name.starts_with(&prefix)).map(Entry::len);
        lengths.fold(0, usize::saturating_add)
    };
    let others = ["positions", "relative_positions", "embedding_norm", "norm"].map(|inner| (inner, count(inner)));
    let others = others.iter().filter(|(_, count)| *count > 0);
    let others: String = others.map(|(inner, count)| format!(", {inner} {}", grouped(*count))).collect();
    let plural = if layers == 1 { "" } else { "s" };
    format!("{layers} layer{plural} of {}{others}", grouped(count("layers") / layers))
}

/// A line of the training history.
fn history_line(key: &str, value: &Value, metric: ValidMetric) -> String {
    match (key, value) {
        ("best", Value::Object(best)) => best_line(best, metric),
        ("final_model_is", event) => {
            let number = |key: &str| event[key].as_f64();
            let scores = [
                number("loss").map(|loss| format!("validation loss {loss:.4}")),
                number("perplexity").map(|perplexity| format!("perplexity {perplexity:.2}")),
                number("bleu").map(|bleu| format!("BLEU {bleu:.2}")),
                number("chrf").map(|chrf| format!("chrF2 {chrf:.2}")),
                number("comet").map(|comet| format!("COMET {comet:.4}")),
            ];
            let scores: Vec<String> = scores.into_iter().flatten().collect();
            let model = in_one_line(event["model"].as_str().unwrap_or_default());
            format!("final model is: {model}; {}", scores.join(", "))
        }
        ("best", _) => "best validation: none".to_owned(),
        ("next_best", Value::Array(steps)) => {
            let steps: Vec<String> = steps.iter().map(Value::to_string).collect();
            format!("next best, kept too: updates {}", steps.join(", "))
        }
        ("seconds", value) => format!("time in training: {:.0} s", value.as_f64().unwrap_or_default()),
        (key, value) => match value.as_str() {
            Some(text) => format!("{}: {}", key.replace('_', " "), in_one_line(text)),
            None => format!("{}: {value}", key.replace('_', " ")),
        },
    }
}

/// The line on the best validation, as far as the checkpoint has it.
fn best_line(best: &Map<String, Value>, metric: ValidMetric) -> String {
    let score =
        best.get("value").and_then(Value::as_f64).map_or_else(|| "unknown".to_owned(), |value| metric.with(value));
    let step = best.get("step").map_or_else(String::new, |step| format!(" at update {step}"));
    format!("best validation: {score}{step}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_checkpoint_does_not_tell_of_its_best_is_left_out() {
        let line = |best: Value, metric| history_line("best", &best, metric);
        let whole = json!({ "value": 31.25, "step": 7, "loss": 2.0 });
        assert_eq!(line(whole.clone(), ValidMetric::Bleu), "best validation: BLEU 31.25 at update 7");
        assert_eq!(line(whole.clone(), ValidMetric::Chrf), "best validation: chrF2 31.25 at update 7");
        assert_eq!(line(whole, ValidMetric::Loss), "best validation: loss 31.2500 at update 7");
        assert_eq!(line(json!({ "step": 7 }), ValidMetric::Bleu), "best validation: unknown at update 7");
        assert_eq!(line(json!({ "value": 1.0 }), ValidMetric::Loss), "best validation: loss 1.0000");
        assert_eq!(line(json!({}), ValidMetric::Bleu), "best validation: unknown");
        assert_eq!(line(Value::Null, ValidMetric::Bleu), "best validation: none");
    }
}
