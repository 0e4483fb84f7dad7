//! Data sets in every format, and a project with a hub that serves them.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int64Array, LargeStringArray, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::hub::HubServer;
use super::project::{Project, SOURCE, TARGET};

/// A project and a hub, with a cache of its own.
pub struct Bench {
    pub project: Project,
    pub hub: HubServer,
}

impl Bench {
    pub fn new() -> Self {
        Self { project: Project::new(), hub: HubServer::start() }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.project.command(args);
        self.connect(&mut command);
        command
    }

    /// Lets a command know this hub and this cache, and nothing of the user's.
    pub fn connect(&self, command: &mut Command) {
        for variable in [
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN",
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "http_proxy",
        ] {
            command.env_remove(variable);
        }
        command.env("HF_ENDPOINT", &self.hub.address).env("HF_HOME", self.project.path("hf")).env("NO_PROXY", "*");
    }

    pub fn mt(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Trains two updates on this corpus, with validation on the project's files.
    pub fn train(&self, corpus: &str, more: &[&str]) -> Output {
        self.trainer(corpus, more).output().unwrap()
    }

    /// The command that [`Self::train`] runs.
    pub fn trainer(&self, corpus: &str, more: &[&str]) -> Command {
        self.command(&self.training(corpus, more).iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn training(&self, corpus: &str, more: &[&str]) -> Vec<String> {
        let corpus = format!("data.train=[{{ {corpus} }}]");
        let args = ["train", "--config", "small.toml", "--overwrite", "--set", &corpus, "--set", "train.max_updates=2"];
        args.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
    }

    /// The checksum of the training text in the run's state.
    pub fn checksum(&self) -> String {
        let state = std::fs::read_dir(self.project.path("runs/small/checkpoints")).unwrap().flatten().next().unwrap();
        let state: serde_json::Value =
            serde_json::from_slice(&std::fs::read(state.path().join("state.json")).unwrap()).unwrap();
        state["text"]["train"].as_str().unwrap().to_owned()
    }

    /// The folder of a data set in the cache.
    pub fn cache(&self, name: &str) -> PathBuf {
        self.project.path("hf/hub").join(format!("datasets--{}", name.replace('/', "--")))
    }

    /// The names in a folder of it.
    pub fn names(&self, name: &str, folder: &str) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.cache(name).join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }
}

pub type Pairs = Vec<(Option<String>, Option<String>)>;

/// The project's training text.
pub fn pairs() -> Pairs {
    let pair = |(source, target): (&&str, &&str)| (Some((*source).to_owned()), Some((*target).to_owned()));
    SOURCE.iter().zip(TARGET).cycle().take(120).map(pair).collect()
}

pub fn parquet(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)));
    let batch = batch.unwrap();
    let mut bytes = Vec::new();
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
    let properties = properties.set_max_row_group_row_count(Some(50)).build();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

/// `translation: struct<de, en>`, next to an unused column.
pub fn nested(pairs: &[(Option<String>, Option<String>)]) -> Vec<u8> {
    let [en, de]: [ArrayRef; 2] = [
        Arc::new(pairs.iter().map(|(source, _)| source.as_deref()).collect::<StringArray>()),
        Arc::new(pairs.iter().map(|(_, target)| target.as_deref()).collect::<StringArray>()),
    ];
    let field = |name: &str| Field::new(name, DataType::Utf8, true);
    let translation = StructArray::new(Fields::from(vec![field("de"), field("en")]), vec![de, en], None);
    let ids: ArrayRef = Arc::new((0..pairs.len() as i64).collect::<Int64Array>());
    parquet(vec![("id", ids), ("translation", Arc::new(translation))])
}

/// Columns `en`, dictionary-encoded, and `de`, with 64-bit offsets.
pub fn flat(pairs: &[(Option<String>, Option<String>)]) -> Vec<u8> {
    let en: DictionaryArray<Int32Type> = pairs.iter().map(|(source, _)| source.as_deref()).collect();
    let de: LargeStringArray = pairs.iter().map(|(_, target)| target.as_deref()).collect();
    parquet(vec![("en", Arc::new(en)), ("de", Arc::new(de))])
}

pub fn json_lines(pairs: &[(Option<String>, Option<String>)], nested: bool) -> Vec<u8> {
    let line = |(en, de): &(Option<String>, Option<String>)| {
        let row = serde_json::json!({ "en": en, "de": de });
        if nested { serde_json::json!({ "id": 1, "translation": row }) } else { row }.to_string() + "\n"
    };
    pairs.iter().map(line).collect::<String>().into_bytes()
}

pub fn text(pairs: &[(Option<String>, Option<String>)], separator: &str) -> Vec<u8> {
    let line = |(en, de): &(Option<String>, Option<String>)| {
        format!("{}{separator}{}\n", en.as_deref().unwrap_or(""), de.as_deref().unwrap_or(""))
    };
    pairs.iter().map(line).collect::<String>().into_bytes()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub const EN_DE: &str = "source = \"en\", target = \"de\"";
/// Everything but the name, for a data set with a single configuration.
pub const TRAIN: &str = "split = \"train\", source = \"en\", target = \"de\"";

pub fn lines(words: &[&str]) -> Vec<u8> {
    words.iter().cycle().take(120).fold(String::new(), |text, line| text + line + "\n").into_bytes()
}
