//! A model on disk: loading it for training or translation, and writing one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use candle_core::{DType, Device};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::find::{config_of, directory};
use super::names::own_files;
use super::record::refuse_other_model;
use super::{ModelRequest, Tell};
use crate::checkpoint::{self, Elements, Located, NamedTensor, Slot, TensorFile, Which};
use crate::choice::not_among;
use crate::config::{self, Config};
use crate::data::tags::LanguageTags;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::{self, Tokenizers};
use crate::decode::neural::{Neural, SpecialTokens};
use crate::decode::source::Reader;
use crate::error::{Error, Result};
use crate::escape::{hex, shown_path};
use crate::infer::{self, Engine};
use crate::interop::import::Imported;
use crate::model::{ModelConfig, Transformer, Vocabulary, layout};
use crate::notice::Notice;
use crate::ops::matmul::Precision;
use crate::ops::memory::change_on_host;
use crate::ops::params::{Entry, ParameterLayout};
use crate::train::WantedPrecision;
use crate::{device, file};

/// A model that was found, with everything needed to use it. Its weights have not been read.
pub struct ModelFiles {
    /// Its resolved configuration.
    pub config: Config,
    /// Its tokenizers.
    pub tokenizers: Tokenizers,
    /// What sources and targets begin with, unless a line has its own: the tags of the languages between which a
    /// multilingual model translates; of a model with tags, that of the target language, on sources.
    pub languages: [Option<String>; 2],
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
        self.stored()?.1.check()?;
        let model = Transformer::for_inference(&self.config.model, vocabulary(&self.tokenizers), device, compute)?;
        let parameters = model.parameters();
        change_on_host(parameters.values(), |flat| self.located.load_into(&slots(parameters.entries()), flat))??;
        Ok(model)
    }

    /// The model prepared for search, in the precision that `--precision` asks for.
    pub fn neural(&self, precision: Option<&str>, tell: Tell<'_>) -> Result<Neural> {
        let special = SpecialTokens::new(&self.tokenizers);
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
        file.check()?;
        let precision = match wanted {
            None if file.is_quantised() => infer::ComputeType::Int8,
            None => infer::ComputeType::F32,
            Some(Wanted::Auto) => infer::ComputeType::fastest(),
            Some(Wanted::This(infer::ComputeType::Bf16)) if !Precision::Bf16.is_native() => {
                let text = "this processor has no instructions for bfloat16 products: computing in f32";
                tell(Notice::Note(text.to_owned()));
                infer::ComputeType::F32
            }
            Some(Wanted::This(precision)) => precision,
        };
        Ok(Neural::from_engine(engine(&self.config.model, &layout, file, precision)?, special))
    }

    /// Where it was found.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether it runs on the processor.
    pub fn is_on_processor(&self) -> bool {
        self.device.is_cpu()
    }

    /// The reader of its sources.
    pub fn reader(&self) -> Reader {
        let reader = Reader::new(&self.config.model, &self.tokenizers);
        reader.with_trained_length(self.config.data.max_length).with_language(self.languages[0].clone())
    }

    /// What tells its weights and subwords from all others: a checksum of what their manifest lists, but for the
    /// configuration, which `mt tune` changes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn identity(&self) -> Result<String> {
        let path = self.located.directory.join(checkpoint::MANIFEST_FILE);
        let text = file::read_own_text(&path).map_err(|error| Error::io("read", &path, error))?;
        let manifest: Value = serde_json::from_str(&text)
            .map_err(|error| Error::failure(format!("not a manifest: {error}")).at(&path).caused_by(error))?;
        let files = ["files", "run_files"].into_iter().flat_map(|key| manifest[key].as_array().into_iter().flatten());
        let listed: Vec<&Value> = files.filter(|file| file["name"] != checkpoint::CONFIG_FILE).collect();
        Ok(hex(&Sha256::digest(json!(listed).to_string())))
    }

    /// The files that it is made of, which no output may replace.
    pub fn files(&self) -> Vec<PathBuf> {
        let of_run = own_files().into_iter().map(|name| self.directory.join(name));
        let of_checkpoint = [checkpoint::MODEL_FILE, checkpoint::OPTIMIZER_FILE, checkpoint::STATE_FILE];
        of_run.chain(of_checkpoint.map(|name| self.located.directory.join(name))).collect()
    }

    /// The weights as stored, by name, and the layout of all parameters.
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
pub enum Wanted {
    /// The fastest here.
    Auto,
    /// One of the names.
    This(infer::ComputeType),
}

impl Wanted {
    /// Every name.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        [infer::ComputeType::NAMES, &["auto"]].concat()
    }
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if name == "auto" {
            return Ok(Self::Auto);
        }
        infer::ComputeType::named(name).map(Self::This).ok_or_else(|| not_among("--precision", name, &Self::names()))
    }
}

/// The files of a model's directory beside its weights.
pub fn text_files(directory: &Path) -> Vec<PathBuf> {
    let names = [checkpoint::CONFIG_FILE, checkpoint::MANIFEST_FILE].iter().chain(tokenizers::FILES);
    names.map(|name| directory.join(name)).collect()
}

/// Checks that a model's directory holds the tokenizers of its training, if a manifest lists them: its own or, in a run
/// without a final model, that of the newest checkpoint.
pub fn verify_tokenizers(directory: &Path) -> Result<()> {
    let own = directory.join(checkpoint::MANIFEST_FILE).exists().then(|| directory.to_path_buf());
    let newest = || Some(checkpoint::list(directory).ok()?.pop()?.1);
    let Some(verified) = own.or_else(newest) else { return Ok(()) };
    // A manifest that cannot be read, or is gone with its checkpoint, gives no information about the tokenizers.
    let damaged = checkpoint::damaged_among(&verified, tokenizers::FILES).unwrap_or_default();
    if damaged.is_empty() { Ok(()) } else { Err(Error::many(damaged)) }
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

/// The slots of all parameters, for a checkpoint.
pub fn slots(entries: &[Entry]) -> Vec<Slot<'_>> {
    entries.iter().map(|e| Slot { name: &e.name, shape: &e.shape, offset: e.offset }).collect()
}

/// Fills a model's parameters from a `model.safetensors`.
pub fn load_parameters(file: &Path, model: &Transformer) -> Result<()> {
    let parameters = model.parameters();
    change_on_host(parameters.values(), |flat| checkpoint::load_into(file, &slots(parameters.entries()), flat))?
}

/// The number type of matrix products in inference: always float32 on the processor.
fn inference_type(precision: WantedPrecision, device: &Device) -> DType {
    match precision {
        WantedPrecision::Bf16 if !device.is_cpu() => DType::BF16,
        _ => DType::F32,
    }
}

/// Finds the wanted model.
///
/// # Errors
/// There is none, it is damaged, or it cannot be used on the device.
pub fn load(request: &ModelRequest, tell: Tell<'_>) -> Result<ModelFiles> {
    let asked = request.checkpoint.as_deref().map(str::parse::<Which>).transpose()?;
    let named = directory(request.model.as_deref(), request.offline, tell)?;
    let (directory, of_path) = checkpoint::directory_and_step(&named);
    if of_path.is_some() && asked.is_some() {
        let error = Error::usage("this is a checkpoint already, and --checkpoint names another").at(&named);
        return Err(error.help(format!("leave --checkpoint out, or name the run: {}", directory.display())));
    }
    let (directory, which) = (directory.to_path_buf(), of_path.or(asked));
    let config = config_of(&directory)?;
    device::set_threads(request.threads.unwrap_or(config.runtime.threads))?;
    let device = device::open(request.device.as_deref().unwrap_or(&config.runtime.device))?;
    let located = checkpoint::locate(&directory, which)?;
    for warning in &located.warnings {
        tell(Notice::Damage(warning.clone()));
    }
    tell(Notice::Info(format!("model: {} ({})", shown_path(&directory), located.what)));
    refuse_other_model(&config, &directory, &located.directory)?;
    let tokenizers = Tokenizers::load(&directory)?;
    let (decode, Tokenizers { source, target }) = (&config.decode, &tokenizers);
    let tag = |key: &str, code: &Option<String>, tokenizer: &Tokenizer| {
        let code = code.as_deref().filter(|_| !tokenizer.language_tags().is_empty());
        code.map(|code| LanguageTags::of(tokenizer).tag(key, code)).transpose().map_err(|error| error.at(&directory))
    };
    let target_tag = |tokenizer| tag("decode.target_language", &decode.target_language, tokenizer);
    let languages = match source.languages().is_empty() {
        // The tags of sources say into which language to translate.
        true => [target_tag(source)?, None],
        false => [tag("decode.source_language", &decode.source_language, source)?, target_tag(target)?],
    };
    Ok(ModelFiles { config, tokenizers, languages, device, located, directory })
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
        let written = file::create(&file).and_then(|mut file| file.write_all(config::to_toml(config).as_bytes()));
        written.map_err(|e| Error::io("write the configuration", &file, e))?;
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

/// Writes a model imported from there as a new model directory.
pub fn write_imported(imported: &Imported, out: &Path, source: &Path) -> Result<()> {
    let Imported { config, tokenizers, layout, values, .. } = imported;
    let made_from = format!("{} (import)", source.display());
    write_model(out, config, tokenizers, &named(layout.entries(), values), &made_from)
}
