//! `[train] init`: the configuration of the model that training begins with supplies defaults for keys that are not stated.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use super::check::Report;
use super::document::{self, Source, Table, Value, get};
use super::schema;
use crate::checkpoint::{CONFIG_FILE, directory_and_step};

/// The sections that are taken over: the model's shape, which must be the same, and its search options.
const SECTIONS: &[&str] = &["model", "decode"];

/// Keys that default to values derived from another key: if that one is stated, they are not taken from the model.
const FOLLOWING: &[(&str, &[&str])] = &[
    ("model.preset", &["d_model", "d_ff", "heads", "encoder_layers", "decoder_layers", "d_k", "d_v"]),
    ("model.dropout", &["embedding_dropout"]),
];

/// Lays a document with absolute paths over the `[model]` and `[decode]` of its `train.init`, if it has one. A model that
/// cannot be read is ignored here; opening it later reports the error.
pub(super) fn lay_over_init(merged: Table, order: usize) -> Table {
    let init = match get(&merged, "train.init").map(|entry| &entry.item.value) {
        Some(Value::Text(init)) => init,
        _ => return merged,
    };
    let Some(mut below) = sections(Path::new(init), order) else { return merged };
    for (key, following) in FOLLOWING.iter().filter(|(key, _)| get(&merged, key).is_some()) {
        let section = key.split('.').next().and_then(|section| below.get_mut(section));
        if let Some(Value::Table(table)) = section.map(|entry| &mut entry.item.value) {
            table.retain(|name, _| !following.contains(&name.as_str()));
        }
    }
    document::merge(&mut below, merged, schema::ROOT);
    below
}

fn sections(init: &Path, order: usize) -> Option<Table> {
    let (directory, _) = directory_and_step(init);
    let name = directory.join(CONFIG_FILE);
    let text = fs::read_to_string(&name).ok()?;
    let source = Rc::new(Source { order, name, text: Some(text), directory: directory.to_path_buf() });
    let mut table = document::parse(&source).ok()?;
    table.retain(|section, _| SECTIONS.contains(&section.as_str()));
    let mut report = Report::default();
    report.check_layer(&mut table, Some(&Table::new()));
    report.is_empty().then_some(table)
}
