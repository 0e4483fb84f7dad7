//! `[train] init`: the configuration of the model that training begins with supplies defaults for keys that are not
//! stated.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::check::Report;
use super::document::{self, Origin, Source, Table, Value, get};
use super::schema;
use crate::checkpoint::{CONFIG_FILE, directory_and_step};
use crate::error::Error;
use crate::file;
use crate::limits::CONFIGURATION_BYTES;
use crate::model::ModelConfig;

/// The sections that are taken over: the model's shape, which must be the same, and its search options.
const SECTIONS: &[&str] = &["model", "decode"];

/// The order of the source that the model's configuration is: after all others, and no other's.
const ORDER: usize = usize::MAX;

/// Keys with a default that is derived from another key. If that one is stated, they do not take their values from the
/// model.
const FOLLOWING: &[(&str, &[&str])] =
    &[("model.preset", ModelConfig::OF_PRESET), ("model.dropout", &["embedding_dropout"])];

/// The error for a key of `[tokenizer]` that would have no effect: it is `here`, but `there` in the model that training
/// begins with.
pub fn idle_key(key: &str, here: &str, there: &str) -> Error {
    let what = format!("`{key}` is {here}, but the vocabulary comes from `train.init`, where it is {there}");
    Error::usage(what).help("leave it out: the model's own tokenizers are used; tags and symbols can be added to them")
}

/// The configuration of the model that a document with absolute paths names in `train.init`, if it does.
fn file_of(merged: &Table) -> Option<PathBuf> {
    match &get(merged, "train.init")?.item.value {
        Value::Text(init) => Some(directory_and_step(Path::new(init)).0.join(CONFIG_FILE)),
        _ => None,
    }
}

/// Lays a document with absolute paths over the `[model]` and `[decode]` of its `train.init`, if it has one. A model
/// that cannot be read is ignored here; opening it later reports the error.
pub(super) fn lay_below(merged: Table) -> Table {
    let Some(mut below) = file_of(&merged).and_then(sections) else { return merged };
    for (key, following) in FOLLOWING.iter().filter(|(key, _)| get(&merged, key).is_some()) {
        let section = key.split('.').next().and_then(|section| below.get_mut(section));
        if let Some(Value::Table(table)) = section.map(|entry| &mut entry.item.value) {
            table.retain(|name, _| !following.contains(&name.as_str()));
        }
    }
    for stack in ["encoder", "decoder"] {
        let layers = get(&merged, &format!("train.init_layers.{stack}")).map(|entry| &entry.item.value);
        let model = below.get_mut("model").map(|entry| &mut entry.item.value);
        if let (Some(Value::List(layers)), Some(Value::Table(model))) = (layers, model)
            && let (false, Some(count)) = (layers.is_empty(), model.get_mut(&format!("{stack}_layers")[..]))
        {
            count.item.value = Value::Integer(layers.len() as i128);
        }
    }
    document::merge(&mut below, merged, schema::ROOT);
    below
}

/// Whether a value comes from the model that training begins with.
pub(super) fn is_origin(origin: &Origin) -> bool {
    origin.source.order == ORDER
}

fn sections(file: PathBuf) -> Option<Table> {
    let text = String::from_utf8(file::read_at_most(&file, CONFIGURATION_BYTES).ok()?).ok()?;
    let directory = file.parent()?.to_path_buf();
    let source = Rc::new(Source { order: ORDER, layer: (ORDER, Reverse(0)), name: file, text: Some(text), directory });
    let mut table = document::parse(&source).ok()?;
    table.retain(|section, _| SECTIONS.contains(&section.as_str()));
    let mut report = Report::default();
    report.check_layer(&mut table, Some(&Table::new()));
    report.is_empty().then_some(table)
}
