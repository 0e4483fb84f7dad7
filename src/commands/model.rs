//! Finding and loading the model that a command works with, and writing one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use candle_core::{DType, Device};

use super::hub_model;
use super::record::refuse_other_model;
use crate::checkpoint::{self, Elements, Located, NamedTensor, Slot, TensorFile, Which};
use crate::choice::not_among;
use crate::cli::{Common, ModelArgs, ModelsArgs};
use crate::config::{self, Config, ModelConfig, Precision};
use crate::console::{info, message, note, shell_word};
use crate::data::tokenizers::{self, Tokenizers};
use crate::decode::neural::{Neural, SpecialTokens};
use crate::decode::source::Reader;
use crate::device;
use crate::error::{Error, Result};
use crate::infer::{self, Engine};
use crate::interop::import::marian;
use crate::model::{Transformer, Vocabulary, layout};
use crate::ops::memory::change_on_host;
use crate::ops::params::{Entry, ParameterLayout};
use crate::train::backend::{Backend, Tape};

/// A model that was found, with everything needed to use it. Its weights have not been read.
pub struct ModelFiles {
    /// Its resolved configuration.
    pub config: Config,
    /// Its tokenizers.
    pub tokenizers: Tokenizers,
    device: Device,
    located: Located,
    directory: PathBuf,
}

impl ModelFiles {
    /// The model in plain and fused operations, on its device.
    pub fn transformer(&self) -> Result<Transformer> {
        self.transformer_in(inference_type(self.config.runtime.precision, &self.device))
    }

    /// The model on the processor, whatever its device: for explaining single sentences.
    pub fn transformer_on_processor(&self) -> Result<Transformer> {
        self.transformer_on(&Device::Cpu, DType::F32)
    }

    fn transformer_in(&self, compute: DType) -> Result<Transformer> {
        self.transformer_on(&self.device, compute)
    }

    fn transformer_on(&self, device: &Device, compute: DType) -> Result<Transformer> {
        let model = Transformer::with_precision(&self.config.model, vocabulary(&self.tokenizers), device, compute)?;
        let parameters = model.parameters();
        change_on_host(parameters.values(), |flat| self.located.load_into(&slots(parameters.entries()), flat))??;
        Ok(model)
    }

    /// The model prepared for search, in the precision that `--precision` asks for.
    pub fn neural(&self, precision: Option<&str>) -> Result<Neural> {
        let special = SpecialTokens::of(&self.tokenizers);
        let wanted = precision.map(str::parse::<Wanted>).transpose()?;
        if !self.device.is_cpu() {
            let compute = match wanted {
                None => inference_type(self.config.runtime.precision, &self.device),
                Some(Wanted::Auto | Wanted::This(infer::ComputeType::Bf16)) => DType::BF16,
                Some(Wanted::This(infer::ComputeType::F32)) => DType::F32,
                Some(Wanted::This(infer::ComputeType::Int8)) => {
                    let error = Error::usage("--precision int8 works only on the CPU");
                    return Err(error.help("give --device cpu as well, or --precision bf16"));
                }
            };
            return Neural::new(&self.transformer_in(compute)?, special);
        }
        let (layout, file) = self.stored()?;
        let precision = match wanted {
            None if file.is_quantised() => infer::ComputeType::Int8,
            None => infer::ComputeType::F32,
            Some(Wanted::Auto) => infer::ComputeType::fastest(),
            Some(Wanted::This(infer::ComputeType::Bf16)) if !Precision::Bf16.is_native() => {
                note("this processor has no instructions for bfloat16 products: computing in f32");
                infer::ComputeType::F32
            }
            Some(Wanted::This(precision)) => precision,
        };
        Ok(Neural::of_engine(engine(&self.config.model, &layout, file, precision)?, special))
    }

    /// Where it was found.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether it is to run on the processor.
    pub fn is_on_processor(&self) -> bool {
        self.device.is_cpu()
    }

    /// The reader of its sources.
    pub fn reader(&self) -> Reader {
        Reader::new(&self.config.model, &self.tokenizers).with_trained_length(self.config.data.max_length)
    }

    /// The files that it is made of, which no output may replace.
    pub fn files(&self) -> Vec<PathBuf> {
        let names = [checkpoint::CONFIG_FILE, checkpoint::MANIFEST_FILE].iter().chain(tokenizers::FILES);
        names.map(|name| self.directory.join(name)).chain([self.located.model.clone()]).collect()
    }

    /// The weights as they are stored, by name, and the places of all of them.
    pub fn stored(&self) -> Result<(ParameterLayout, TensorFile)> {
        let layout = layout::layout(&self.config.model, vocabulary(&self.tokenizers));
        let file = self.located.tensors(&slots(layout.entries()))?;
        Ok((layout, file))
    }
}

/// The processor's engine, loaded from a file one tensor at a time.
pub fn engine(
    config: &ModelConfig,
    layout: &ParameterLayout,
    file: TensorFile,
    precision: infer::ComputeType,
) -> Result<Engine> {
    let names = layout.entries().iter().enumerate().map(|(i, entry)| (entry.name.as_str(), i));
    let numbers: HashMap<&str, usize> = names.collect();
    let file = RefCell::new(file);
    let parameter = |name: &str| {
        let number = numbers.get(name).ok_or_else(|| Error::failure(format!("the model has no {name}")))?;
        file.borrow_mut().parameter(*number, name)
    };
    let engine = Engine::new(config, &parameter, precision)?;
    file.into_inner().finish()?;
    Ok(engine)
}

/// The value of `--precision`.
enum Wanted {
    Auto,
    This(infer::ComputeType),
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if name == "auto" {
            return Ok(Self::Auto);
        }
        let all = || [infer::ComputeType::NAMES, &["auto"]].concat();
        infer::ComputeType::named(name).map(Self::This).ok_or_else(|| not_among("--precision", name, &all()))
    }
}

/// The files of models, which no output may replace.
pub fn files_of(first: &ModelFiles, others: &[ModelFiles]) -> Vec<PathBuf> {
    std::iter::once(first).chain(others).flat_map(ModelFiles::files).collect()
}

/// Sizes of the vocabularies and their padding.
pub fn vocabulary(tokenizers: &Tokenizers) -> Vocabulary {
    Vocabulary {
        source: tokenizers.source.vocab_size(),
        target: tokenizers.target.vocab_size(),
        source_padding: tokenizers.source.pad_id(),
        target_padding: tokenizers.target.pad_id(),
    }
}

/// The places of all parameters, as checkpoints need them.
pub fn slots(entries: &[Entry]) -> Vec<Slot<'_>> {
    entries.iter().map(|e| Slot { name: &e.name, shape: &e.shape, offset: e.offset }).collect()
}

/// Fills a model's parameters from a `model.safetensors`.
pub fn load_parameters(file: &Path, model: &Transformer) -> Result<()> {
    let parameters = model.parameters();
    change_on_host(parameters.values(), |flat| checkpoint::load_into(file, &slots(parameters.entries()), flat))?
}

/// The number type of matrix products in training on this device; says so if it is not the one asked for.
pub fn training_type(precision: Precision, device: &Device) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 if !device.is_cpu() || Precision::Bf16.is_native() => DType::BF16,
        Precision::Bf16 => {
            note(
                "runtime.precision = \"bf16\", but this processor has no instructions for bfloat16 products: \
                     computing in f32",
            );
            DType::F32
        }
    }
}

/// The backend that trains a model on its device, in the model's number type: the engine for GPUs if there is one.
pub fn training_backend(model: &Transformer) -> Result<Box<dyn Backend>> {
    #[cfg(feature = "cuda")]
    if model.parameters().device().is_cuda() {
        let (queue, compute) = (crate::gpu::cuda::Cuda::of(model.parameters().device())?, model.parameters().compute());
        return Ok(Box::new(crate::gpu::Engine::new(model, queue, compute)?));
    }
    Ok(Box::new(Tape::new(model)))
}

/// The number type of matrix products in inference: always float32 on the processor.
fn inference_type(precision: Precision, device: &Device) -> DType {
    match precision {
        Precision::Bf16 if !device.is_cpu() => DType::BF16,
        _ => DType::F32,
    }
}

/// Finds the model that the flags name.
pub fn load(args: &ModelArgs, common: &Common) -> Result<ModelFiles> {
    load_from(args.model.as_deref(), args.checkpoint.as_deref(), common)
}

/// Finds the models that the flags name, at least one.
pub fn load_all(args: &ModelsArgs, common: &Common) -> Result<(ModelFiles, Vec<ModelFiles>)> {
    let load = |model: Option<&Path>| load_from(model, args.checkpoint.as_deref(), common);
    let first = load(args.model.first().map(PathBuf::as_path))?;
    let others = args.model.iter().skip(1).map(|model| load(Some(model))).collect::<Result<_>>()?;
    Ok((first, others))
}

/// Finds the model in a directory, or the default one if none is named.
pub fn load_from(named: Option<&Path>, checkpoint: Option<&str>, common: &Common) -> Result<ModelFiles> {
    let asked = checkpoint.map(str::parse::<Which>).transpose()?;
    let named = directory(named, common)?;
    let (directory, of_path) = checkpoint::directory_and_step(&named);
    if of_path.is_some() && asked.is_some() {
        let error = Error::usage("this is a checkpoint already, and --checkpoint names another").at(&named);
        return Err(error.help(format!("leave --checkpoint out, or name the run: {}", directory.display())));
    }
    let (directory, which) = (directory.to_path_buf(), of_path.or(asked));
    let config = config_of(&directory)?;
    device::set_threads(common.threads.unwrap_or(config.runtime.threads));
    let device = device::open(common.device.as_deref().unwrap_or(&config.runtime.device))?;
    let located = checkpoint::locate(&directory, which)?;
    for warning in &located.warnings {
        message(format_args!("warning: {warning}"));
    }
    info(format_args!("model: {} ({})", directory.display(), located.what));
    refuse_other_model(&config, &directory, &located.directory)?;
    let tokenizers = Tokenizers::load(&directory)?;
    Ok(ModelFiles { config, tokenizers, device, located, directory })
}

/// The resolved configuration of a run or model directory.
pub fn config_of(directory: &Path) -> Result<Config> {
    let file = directory.join(checkpoint::CONFIG_FILE);
    let is_hub = directory.iter().any(|part| part.to_string_lossy().starts_with(hub_model::PREFIX));
    if !is_hub && !directory.exists() {
        let error = Error::failure("there is no such directory").at(directory);
        return Err(error.help("name a run directory (runs/<name>) or a model directory"));
    }
    let is_there = file.try_exists().map_err(|error| Error::io("read the configuration", &file, error))?;
    if let (false, Some((run, step))) = (is_there, checkpoint::run_and_step(directory)) {
        let error = Error::failure("this is a checkpoint of a run, not a model directory").at(directory);
        return Err(
            error.help(format!("name the run, {}; the checkpoint of update {step} is part of it", run.display()))
        );
    }
    if !is_there {
        let error = Error::failure("this is neither a run nor a model directory: it has no config.toml").at(directory);
        let is_there = |name: &str| directory.join(name).exists();
        let is_marian = marian::is_model(directory);
        let is_ct2 = !is_marian && is_there("model.bin") && !is_there(checkpoint::MODEL_FILE);
        return Err(error.help(match (is_hub, is_ct2, is_marian || is_there("config.json")) {
            (true, ..) => "import a model of the hub first: mt import hf:ORG/NAME --out DIR",
            (_, true, _) => {
                "it looks like a model of CTranslate2, which is not read: use or import the model that it was made from"
            }
            (.., true) => "it looks like another program's model; import it first: mt import DIR --out MODEL_DIR",
            _ => "name a run directory (runs/<name>) or a model directory",
        }));
    }
    config::load_resolved(&file).map_err(|error| match checkpoint::verify(directory) {
        // The file is damaged, not badly written by a user.
        Err(damage) if damage.all().any(|one| one.place().is_some_and(|place| place.path == file)) => {
            damage.help("restore the file as training wrote it, from a copy")
        }
        _ => error,
    })
}

/// The error for a file where a model's directory should be named.
pub fn is_a_file(file: &Path) -> Error {
    let error = Error::failure("this is a file: a model is named by its directory").at(file);
    let is_model =
        |parent: &&Path| parent.join(checkpoint::CONFIG_FILE).exists() || checkpoint::run_and_step(parent).is_some();
    match file.parent().filter(is_model) {
        Some(parent) => error.help(format!("name it: {}", shell_word(parent))),
        None => error.help("name a run directory (runs/<name>) or a model directory"),
    }
}

/// `--model`, else `$MT_MODEL`, else the newest run under `./runs`. A model of the hub (`hf:ORG/NAME`) is fetched and imported.
pub fn directory(named: Option<&Path>, common: &Common) -> Result<PathBuf> {
    let variable = || std::env::var_os("MT_MODEL").filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(directory) = named.map(Path::to_path_buf).or_else(variable) {
        if let Some(repo) = hub_model::repository(&directory) {
            return hub_model::directory(&repo, common);
        }
        if directory.is_file() {
            return Err(is_a_file(&directory));
        }
        if !directory.is_dir() {
            let name = if named.is_some() { "the model's" } else { "$MT_MODEL's" };
            let error = Error::failure(format!("{name} directory does not exist")).at(&directory);
            return Err(error.help("check the path; `mt train` writes models into runs/<name>"));
        }
        return Ok(whole_path(directory));
    }
    let newest = newest_run(Path::new("runs"))?.ok_or_else(|| {
        Error::failure("no --model given, $MT_MODEL is not set, and there is no run with a checkpoint under ./runs")
            .help("train a model first: mt train --config FILE")
    })?;
    info("no --model given: taking the newest run");
    Ok(newest)
}

/// The path of a directory, from the root if only that says that it is a checkpoint, and of which run.
pub fn whole_path(directory: PathBuf) -> PathBuf {
    let is_checkpoint = |path: &Path| checkpoint::run_and_step(path).is_some();
    if is_checkpoint(&directory) {
        return directory;
    }
    std::fs::canonicalize(&directory).ok().filter(|whole| is_checkpoint(whole)).unwrap_or(directory)
}

/// The run under `root` whose model or newest checkpoint is the most recent.
fn newest_run(root: &Path) -> Result<Option<PathBuf>> {
    let changed = |run: &Path| {
        let newest = |path: PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        // List the checkpoints, because a run can have lost the pointers to them.
        let last = checkpoint::list(run).ok().and_then(|mut all| all.pop());
        let last = last.and_then(|(_, checkpoint)| newest(checkpoint.join(checkpoint::MANIFEST_FILE)));
        newest(run.join(checkpoint::MODEL_FILE)).max(last)
    };
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Error::io("look for the newest run", root, error));
        }
        Err(_) => return Ok(None),
    };
    let runs = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let dated = runs.filter_map(|run| changed(&run).map(|when| (when, run)));
    Ok(dated.max().map(|(_, run)| run))
}

/// Parameters by name, from flat values.
pub fn named<'a>(entries: &'a [Entry], values: &'a [f32]) -> Vec<NamedTensor<'a>> {
    let tensor = |e: &'a Entry| NamedTensor { name: &e.name, shape: &e.shape, data: Elements::F32(&values[e.range()]) };
    entries.iter().map(tensor).collect()
}

/// Writes a new model directory atomically. `made_from` completes "made from".
pub fn write_model(
    out: &Path,
    config: &Config,
    tokenizers: &Tokenizers,
    tensors: &[NamedTensor],
    made_from: &str,
) -> Result<()> {
    checkpoint::whole_directory(out, |directory| {
        let file = directory.join(checkpoint::CONFIG_FILE);
        std::fs::write(&file, config::to_toml(config)).map_err(|e| Error::io("write the configuration", &file, e))?;
        tokenizers.save(directory)?;
        checkpoint::save_model(directory, tensors, Some(made_from))?;
        // Fail now rather than when the model is used.
        let refused = |error: Error| {
            // Omit the path: the file is temporary.
            let what = format!("mt does not support the settings of this model: {}", error.what());
            Error::failure(what).help("change them in its files")
        };
        config::load_resolved(file).map(drop).map_err(refused)
    })
}
