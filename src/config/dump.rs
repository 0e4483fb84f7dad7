//! A configuration as text: the dump that a run directory keeps, and the differences between two.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value as Json};

use super::schema::join;
use super::sections::Config;
use crate::file;

/// First line of a resolved configuration; a run directory is recognised by it.
pub(super) const HEADER: &str = "# Resolved: every key has its value, every path is absolute.";

/// Whether `file` is a configuration that `mt` wrote, not one that a user did.
pub fn is_resolved(file: &Path) -> bool {
    let mut start = [0; HEADER.len()];
    file::open_regular(file).and_then(|mut file| file.read_exact(&mut start)).is_ok_and(|()| start == HEADER.as_bytes())
}

/// The configuration with every value filled in, as TOML that loads again as the same configuration.
///
/// # Panics
///
/// If a path is not UTF-8, which [`super::load`] refuses.
pub fn to_toml(config: &Config) -> String {
    let mut text = format!("{HEADER}\n");
    write_table(&mut text, "", &to_map(config));
    text
}

/// The keys whose values differ, each with its value in `a` and in `b` as TOML (`not set` where it does not exist).
///
/// Names are dotted, such as `train.schedule.warmup`; `data.train` is compared as a whole.
pub fn differences(a: &Config, b: &Config) -> Vec<(String, String, String)> {
    differences_of(&values(a), &values(b))
}

/// Like [`differences`], for results of [`values`].
pub fn differences_of(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<(String, String, String)> {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let text = |value: Option<&String>| value.map_or("not set", String::as_str).to_owned();
    let differing = keys.into_iter().filter(|key| a.get(*key) != b.get(*key));
    differing.map(|key| (key.clone(), text(a.get(key)), text(b.get(key)))).collect()
}

/// The values of all keys as TOML, by dotted name.
pub fn values(config: &Config) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    flatten("", &to_map(config), &mut |key, value| {
        values.insert(key, value);
    });
    values
}

fn to_map(config: &Config) -> Map<String, Json> {
    match serde_json::to_value(config) {
        Ok(Json::Object(map)) => map,
        other => panic!("a configuration's paths are UTF-8: {other:?}"),
    }
}

fn flatten(path: &str, table: &Map<String, Json>, emit: &mut impl FnMut(String, String)) {
    for (name, value) in table {
        let key = join(path, name);
        match value {
            Json::Object(inner) => flatten(&key, inner, emit),
            value => emit(key, toml_text(value)),
        }
    }
}

/// Writes a table's values, then its inner tables under headers of their own, as TOML demands.
fn write_table(text: &mut String, path: &str, table: &Map<String, Json>) {
    for (name, value) in table.iter().filter(|(_, value)| !value.is_object()) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name} = {}", toml_text(value));
    }
    for (name, value) in table {
        if let Json::Object(inner) = value {
            let path = join(path, name);
            let _ = writeln!(text, "\n[{path}]");
            write_table(text, &path, inner);
        }
    }
}

/// A value as TOML on one line.
pub(super) fn toml_text(value: &Json) -> String {
    match value {
        Json::String(text) => toml::Value::from(text.as_str()).to_string(),
        Json::Array(items) => format!("[{}]", items.iter().map(toml_text).collect::<Vec<_>>().join(", ")),
        Json::Object(table) => {
            let pairs: Vec<_> = table.iter().map(|(name, value)| format!("{name} = {}", toml_text(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        // Booleans and numbers look alike in JSON and TOML.
        other => other.to_string(),
    }
}
