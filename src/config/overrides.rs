//! `--set a.b.c=VALUE`.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::document::{Entry, Item, Origin, Source, Table, Value, get, parse_value, why_no_value};
use super::schema::{FORMS, find, lookup};
use crate::error::{Error, Result};
use crate::key::Kind;

const HELP: &str = "write --set section.key=VALUE";
const MOST_PARTS: usize = 8;
/// Most characters of an override that a message shows.
const SHOWN: usize = 80;

/// An override, split at its first `=`.
pub(super) struct Override<'s> {
    text: &'s str,
    path: Vec<&'s str>,
    value: &'s str,
}

impl<'s> Override<'s> {
    /// Splits `a.b.c=VALUE`.
    ///
    /// # Errors
    ///
    /// There is no `=`, or the key or a part of it is empty, or it has too many parts.
    pub fn parse(text: &'s str) -> Result<Self> {
        let wrong = |what: &str| Error::usage(format!("`{}` {what}", shown(text))).at(place(text)).help(HELP);
        let (path, value) = text.split_once('=').ok_or_else(|| wrong("has no `=`"))?;
        let path: Vec<_> = path.split('.').map(str::trim).collect();
        if path.iter().any(|part| part.is_empty()) {
            return Err(wrong("does not name a key before the `=`"));
        }
        // No key is nearly so deep, and documents are walked recursively.
        if path.len() > MOST_PARTS {
            let what = format!("a key has at most {MOST_PARTS} parts, found {}", path.len());
            return Err(Error::usage(what).at(place(text)).help(HELP));
        }
        let set = Self { text, path, value: value.trim() };
        // Anything else may be text without its quotes.
        if set.value.starts_with(['[', '{'])
            && !set.holds_text()
            && let Some(why) = why_no_value(set.value)
        {
            let error = Error::usage(format!("the value is not TOML: {why}")).at(place(text));
            return Err(error.help("a list is written [1, 2], a table { key = 1 }, and text within them in quotes"));
        }
        Ok(set)
    }

    /// Whether the key's value is text.
    fn holds_text(&self) -> bool {
        self.path.last() == Some(&"kind") || lookup(self.path.iter().copied()).is_some_and(Kind::is_text)
    }

    /// Adds the override as a layer over earlier ones. The first that states the `kind` of a table comes before keys of that
    /// table, so that `--set` may name the kind and its keys in any order; likewise for the form of a corpus.
    pub fn add_to(&self, layers: &mut Vec<Table>, order: usize, directory: &Path) {
        let before = |table: String| match layers.iter().any(|layer| has_form(layer, &table)) {
            true => None,
            false => layers.iter().position(|layer| get(layer, &table).is_some()),
        };
        let place = self.table_of_form().and_then(before).unwrap_or(layers.len());
        layers.insert(place, self.layer(order, directory.to_path_buf()));
    }

    /// The table whose other keys depend on this key, if there is one.
    fn table_of_form(&self) -> Option<String> {
        let (name, table) = self.path.split_last()?;
        let decides = match lookup(table.iter().copied())? {
            Kind::Tagged { .. } => *name == "kind",
            Kind::Table(keys) => (FORMS.contains(name) || *name == "kind") && find(keys, name).is_some(),
            _ => false,
        };
        decides.then(|| table.join("."))
    }

    /// The override as a document that states this one key.
    fn layer(&self, order: usize, directory: PathBuf) -> Table {
        let source =
            Rc::new(Source { order, layer: (order, Reverse(0)), name: place(self.text), text: None, directory });
        let origin = Origin { source: source.clone(), offset: 0 };
        let entry = |value| Entry { key: origin.clone(), item: Item { value, origin: origin.clone() } };
        let mut parts = self.path.iter().rev();
        let mut table = Table::new();
        if let Some(key) = parts.next() {
            table.insert((*key).to_owned(), entry(self.value(&source)));
        }
        for section in parts {
            let inner = std::mem::take(&mut table);
            table.insert((*section).to_owned(), entry(Value::Table(inner)));
        }
        table
    }

    /// The value as TOML, or as bare text if it is not TOML or the key holds text.
    fn value(&self, source: &Rc<Source>) -> Value {
        let bare = || Value::Text(self.value.to_owned());
        let kind = lookup(self.path.iter().copied());
        match parse_value(self.value, source) {
            Some(value @ Value::Text(_)) => value,
            // The number of a column.
            Some(value @ Value::Integer(_)) if matches!(kind, Some(Kind::Side)) => value,
            Some(_) if self.holds_text() => bare(),
            Some(value) => value,
            None => bare(),
        }
    }
}

/// Whether a layer states the form of a table: its `kind`, or a whole corpus.
fn has_form(layer: &Table, table: &str) -> bool {
    let Some(Value::Table(stated)) = get(layer, table).map(|entry| &entry.item.value) else { return false };
    let has = |key: &str| stated.contains_key(key);
    has("kind") || FORMS.iter().any(|form| has(form)) || (has("source") && has("target"))
}

/// The place of an override in messages.
fn place(text: &str) -> PathBuf {
    PathBuf::from(format!("--set {}", shown(text)))
}

/// An override as a message shows it: shortened if it is long.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN).and_then(|(end, _)| text.get(..end)) {
        Some(beginning) => format!("{beginning}…"),
        None => text.to_owned(),
    }
}
