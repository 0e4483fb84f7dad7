//! `--set a.b.c=VALUE`.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::document::{Entry, Item, Origin, Source, Table, Value, get, parse_value, why_no_value};
use super::schema::{FORMS, find, lookup};
use crate::error::{Error, Result};
use crate::escape::brief;
use crate::key::Kind;

const HELP: &str = "write --set section.key=VALUE";
const MOST_PARTS: usize = 8;

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
    pub(super) fn parse(text: &'s str) -> Result<Self> {
        let wrong = |what: &str| Error::usage(format!("`{}` {what}", brief(text))).at(location(text)).help(HELP);
        let (path, value) = text.split_once('=').ok_or_else(|| wrong("has no `=`"))?;
        // `data.train[0].weight` is the same as `data.train.0.weight`.
        let index = |part: &'s str| match part.trim().strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((list, index)) => vec![list, index],
            None => vec![part.trim()],
        };
        let path: Vec<_> = path.split('.').flat_map(index).collect();
        if path.iter().any(|part| part.is_empty()) {
            return Err(wrong("does not name a key before the `=`"));
        }
        // No key is nearly so deep, and documents are walked recursively.
        if path.len() > MOST_PARTS {
            let what = format!("a key has at most {MOST_PARTS} parts, found {}", path.len());
            return Err(Error::usage(what).at(location(text)).help(HELP));
        }
        if let Some((index, list)) = path.split_last()
            && index.bytes().all(|byte| byte.is_ascii_digit())
            && let Some(Kind::List(_)) = lookup(list.iter().copied())
        {
            let (list, what) = (list.join("."), format!("--set names one of a list of tables: number {index}"));
            let help = format!("name one of its keys, {list}.{index}.weight=2 for example, or state all of {list}");
            return Err(Error::usage(what).at(location(text)).help(help));
        }
        let set = Self { text, path, value: value.trim() };
        // Anything else may be text without its quotes.
        if set.value.starts_with(['[', '{'])
            && !set.holds_text()
            && let Some(why) = why_no_value(set.value)
        {
            let error = Error::usage(format!("the value is not TOML: {why}")).at(location(text));
            return Err(error.help("a list is written [1, 2], a table { key = 1 }, and text within them in quotes"));
        }
        Ok(set)
    }

    /// What the key may hold, if it is known.
    fn kind(&self) -> Option<&'static Kind> {
        let Some((list, _, name)) = self.list_key() else { return lookup(self.path.iter().copied()) };
        match lookup(list.iter().copied()) {
            Some(Kind::List(keys)) => find(keys, name).map(|key| &key.kind),
            _ => None,
        }
    }

    /// Whether the key's value is text.
    fn holds_text(&self) -> bool {
        self.path.last() == Some(&"kind") || self.kind().is_some_and(Kind::is_text)
    }

    /// For a key of a table in a list: the list, the index of the table, and the key within it.
    fn list_key(&self) -> Option<(&[&'s str], usize, &'s str)> {
        let (list, [index, name]) = self.path.split_last_chunk()?;
        let is_list = matches!(lookup(list.iter().copied()), Some(Kind::List(_)));
        if is_list { Some((list, index.parse().ok()?, name)) } else { None }
    }

    /// Adds the override as a layer over earlier ones. The first that states the `kind` of a table comes before keys of
    /// that table, so that `--set` may name the kind and its keys in any order; likewise for the form of a corpus.
    ///
    /// For a key of a table in a list, the new layer states the whole list, as it is in the layers so far. `below` are
    /// the first of these.
    ///
    /// # Errors
    /// There is no such table.
    pub(super) fn add_to(
        &self,
        layers: &mut Vec<Table>,
        below: &[Option<Table>],
        order: usize,
        directory: &Path,
    ) -> Result<()> {
        if let Some((list, index, name)) = self.list_key() {
            let path = list.join(".");
            let stated = below.iter().flatten().chain(&*layers).rev().find_map(|layer| get(layer, &path));
            // A file that cannot be read is reported, and may have it.
            if stated.is_none() && below.iter().any(Option::is_none) {
                return Ok(());
            }
            let mut stated = match stated.map(|entry| &entry.item.value) {
                Some(Value::List(items)) => items.clone(),
                _ => Vec::new(),
            };
            let (count, origin) = (stated.len(), self.origin(order, directory.to_path_buf()));
            let Some(Value::Table(table)) = stated.get_mut(index).map(|item| &mut item.value) else {
                let has =
                    if count == 1 { "has one, number 0".to_owned() } else { format!("has {count}, from number 0") };
                let error =
                    Error::usage(format!("there is no `{path}[{index}]`: `{path}` {has}")).at(location(self.text));
                return Err(error.help("name one of those that the configuration states"));
            };
            table.insert(name.to_owned(), entry(self.value(&origin.source), &origin));
            layers.push(nested(list, Value::List(stated), &origin));
            return Ok(());
        }
        let before = |table: String| match layers.iter().any(|layer| has_form(layer, &table)) {
            true => None,
            false => layers.iter().position(|layer| get(layer, &table).is_some()),
        };
        let index = self.table_of_form().and_then(before).unwrap_or(layers.len());
        let origin = self.origin(order, directory.to_path_buf());
        layers.insert(index, nested(&self.path, self.value(&origin.source), &origin));
        Ok(())
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

    /// Where it comes from.
    fn origin(&self, order: usize, directory: PathBuf) -> Origin {
        let source = Source { order, layer: (order, Reverse(0)), name: location(self.text), text: None, directory };
        Origin { source: Rc::new(source), offset: 0 }
    }

    /// The value as TOML, or as bare text if it is not TOML or the key holds text.
    fn value(&self, source: &Rc<Source>) -> Value {
        let bare = || Value::Text(self.value.to_owned());
        let kind = self.kind();
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

fn entry(value: Value, origin: &Origin) -> Entry {
    Entry { key: origin.clone(), item: Item { value, origin: origin.clone() } }
}

/// A document that states one key.
fn nested(path: &[&str], value: Value, origin: &Origin) -> Table {
    let mut parts = path.iter().rev();
    let mut table = Table::new();
    if let Some(key) = parts.next() {
        table.insert((*key).to_owned(), entry(value, origin));
    }
    for section in parts {
        let inner = std::mem::take(&mut table);
        table.insert((*section).to_owned(), entry(Value::Table(inner), origin));
    }
    table
}

/// Whether a layer states the form of a table: its `kind`, or a whole corpus.
fn has_form(layer: &Table, table: &str) -> bool {
    let Some(Value::Table(stated)) = get(layer, table).map(|entry| &entry.item.value) else { return false };
    let has = |key: &str| stated.contains_key(key);
    has("kind") || FORMS.iter().any(|form| has(form)) || (has("source") && has("target"))
}

/// The location of an override in messages.
fn location(text: &str) -> PathBuf {
    PathBuf::from(format!("--set {}", brief(text)))
}
