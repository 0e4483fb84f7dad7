//! Checks a document against the schema and collects every problem, so that a user can fix them in one go.

use std::collections::BTreeSet;

use super::aliases::{self, Alias};
use super::corpus;
use super::document::{Entry, Item, Origin, Table, Value, stated_kind};
use super::schema::{self, find, join};
use super::value::{check_choice, check_value, keys_help, list, nearest};
use crate::error::Error;
use crate::escape::brief;
use crate::key::{Key, Kind, Variant};
use crate::limits;

/// The problems found, and which keys they concern.
#[derive(Default)]
pub(super) struct Report {
    problems: Vec<(Option<Origin>, Error)>,
    /// Number of further problems, which are only counted.
    more: usize,
    /// Dotted names of keys with a problem: checks that depend on them are left out.
    bad: BTreeSet<String>,
}

impl Report {
    /// Adds a problem at a position.
    pub(super) fn add(&mut self, origin: &Origin, error: Error) {
        if self.is_full() {
            self.more += 1;
        } else {
            self.problems.push((Some(origin.clone()), origin.locate(error)));
        }
    }

    /// As [`Self::add`], for a problem whose description takes long.
    pub(super) fn add_described(&mut self, origin: &Origin, describe: impl FnOnce() -> Error) {
        if self.is_full() {
            self.more += 1;
        } else {
            self.add(origin, describe());
        }
    }

    /// Whether further problems are only counted. Describing 300,000 takes a minute, and nobody reads that.
    fn is_full(&self) -> bool {
        self.problems.len() >= limits::MOST_ERRORS
    }

    /// Adds a problem without a position.
    pub(super) fn add_anywhere(&mut self, error: Error) {
        self.problems.push((None, error));
    }

    /// Whether a problem with this key, or with a table around it, has been reported.
    pub(super) fn is_bad(&self, path: &str) -> bool {
        let tables = path.match_indices('.').map(|(end, _)| &path[..end]);
        tables.chain([path]).any(|path| self.bad.contains(path))
    }

    /// Whether nothing was found.
    pub(super) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// All problems as one error, by the order in which files were opened, then by line.
    pub(super) fn into_error(mut self) -> Error {
        self.problems.sort_by_key(|(origin, _)| match origin {
            Some(origin) => (origin.source.order, origin.offset),
            None => (usize::MAX, 0),
        });
        let mut seen = BTreeSet::new();
        let errors = self.problems.into_iter().map(|(_, error)| error);
        let mut errors: Vec<Error> = errors.filter(|error| seen.insert(error.to_string())).collect();
        if self.more > 0 {
            // It replaces one error, so that it is shown.
            errors.truncate(limits::MOST_ERRORS - 1);
            errors.push(Error::usage(format!("the configuration has {} more problems", self.more + 1)));
        }
        Error::many(errors)
    }

    /// Checks one layer and removes from it what cannot be used.
    ///
    /// `earlier` holds the layers below: a tagged table without `kind` has the kind of the table below it.
    /// If a file below could not be read (`earlier` is `None`), such a table is not checked.
    pub(super) fn check_layer(&mut self, layer: &mut Table, earlier: Option<&Table>) {
        self.check_table("", layer, schema::ROOT, earlier);
    }

    fn check_table(&mut self, path: &str, table: &mut Table, keys: &[Key], earlier: Option<&Table>) {
        table.retain(|name, entry| {
            let Some(key) = find(keys, name) else {
                let near: Vec<_> = keys.iter().map(|key| key.name).collect();
                let all = if path.is_empty() { format!("the sections are {}", list(keys)) } else { keys_help(keys) };
                self.unknown_key(path, name, entry, &near, &all);
                return false;
            };
            let below = earlier.and_then(|table| table.get(name));
            let path = join(path, name);
            let usable = self.check_item(&path, &mut entry.item, &key.kind, earlier.is_some(), below);
            if !usable {
                self.bad.insert(path);
            }
            usable
        });
    }

    /// Whether the item can be used; `below` is the same key in the layers below, if these are `known`.
    fn check_item(&mut self, path: &str, item: &mut Item, kind: &Kind, known: bool, below: Option<&Entry>) -> bool {
        let empty = Table::new();
        let earlier = match below.map(|entry| &entry.item.value) {
            Some(Value::Table(table)) => Some(table),
            _ => known.then_some(&empty),
        };
        match (kind, &mut item.value) {
            (Kind::Table(keys), Value::Table(table)) => {
                if table.is_empty() && below.is_some() && keys.iter().any(|key| key.required) {
                    self.add(&item.origin, without_effect(path, keys));
                    return false;
                }
                self.check_table(path, table, keys, earlier);
                true
            }
            (Kind::Tagged { default, variants }, Value::Table(table)) => {
                self.check_tagged(path, table, (default, variants), earlier)
            }
            (Kind::List(keys), Value::List(items)) => {
                let mut usable = true;
                for (i, inner) in items.iter_mut().enumerate() {
                    let path = format!("{path}[{i}]");
                    usable &= match &mut inner.value {
                        Value::Table(table) => {
                            self.check_table(&path, table, keys, Some(&empty));
                            true
                        }
                        other => {
                            let what = format!("`{path}` must be a table, found {}", other.describe());
                            self.add(
                                &inner.origin,
                                corpus::with_hub_help(Error::usage(what).help(keys_help(keys)), keys, other),
                            );
                            false
                        }
                    };
                }
                usable
            }
            (Kind::Texts, Value::List(items)) => {
                for (i, inner) in items.iter_mut().enumerate() {
                    if let Err(error) = check_value(&format!("{path}[{i}]"), &inner.value, &Kind::Text) {
                        self.add(&inner.origin, error);
                        self.bad.insert(path.to_owned());
                        // The others can still be checked.
                        inner.value = Value::Text(String::new());
                    }
                }
                true
            }
            (kind, value) => match check_value(path, value, kind) {
                Ok(()) => true,
                Err(error) => {
                    let error = match kind {
                        Kind::Table(keys) | Kind::List(keys) => corpus::with_hub_help(error, keys, value),
                        _ => error,
                    };
                    self.add(&item.origin, error);
                    false
                }
            },
        }
    }

    fn check_tagged(
        &mut self,
        path: &str,
        table: &mut Table,
        (default, variants): (&str, &'static [Variant]),
        earlier: Option<&Table>,
    ) -> bool {
        let names: Vec<_> = variants.iter().map(|variant| variant.kind).collect();
        let kind = match (table.get("kind").map(|entry| &entry.item), earlier) {
            (Some(item), _) => match check_choice(&format!("{path}.kind"), &item.value, &names) {
                Ok(()) => stated_kind(table).unwrap_or(default).to_owned(),
                Err(error) => {
                    let origin = item.origin.clone();
                    self.add(&origin, error);
                    // Without a valid kind it is unknown which keys are right.
                    return false;
                }
            },
            (None, Some(earlier)) => stated_kind(earlier).unwrap_or(default).to_owned(),
            (None, None) => return true,
        };
        let keys = schema::variant(variants, &kind).map_or(&[] as &[Key], |variant| variant.keys);
        let is_own = |name: &str| name == "kind" || find(keys, name).is_some();
        let (mut own, foreign): (Table, Table) = std::mem::take(table).into_iter().partition(|(name, _)| is_own(name));
        let of_any_kind = || variants.iter().flat_map(|variant| variant.keys);
        let (other_kinds, unknown): (Table, Table) =
            foreign.into_iter().partition(|(name, _)| of_any_kind().any(|key| key.name == name));
        for (name, entry) in &unknown {
            let near: Vec<_> = std::iter::once("kind").chain(of_any_kind().map(|key| key.name)).collect();
            self.unknown_key(path, name, entry, &near, &format!("the keys are kind, {}", list(keys)));
        }
        // If the key `kind` is misspelt, it is unknown which keys are right.
        if !self.is_bad(&join(path, "kind")) {
            for (name, entry) in &other_kinds {
                self.key_of_another_kind(path, name, entry, &kind, variants);
            }
        }
        let stated = own.remove_entry("kind");
        self.check_table(path, &mut own, keys, earlier);
        own.extend(stated);
        *table = own;
        true
    }

    /// A key that exists, but not with this `kind`.
    fn key_of_another_kind(&mut self, path: &str, name: &str, entry: &Entry, kind: &str, variants: &[Variant]) {
        let with: Vec<_> = variants
            .iter()
            .filter(|variant| find(variant.keys, name).is_some())
            .map(|variant| format!("\"{}\"", variant.kind))
            .collect();
        let own = schema::variant(variants, kind).map_or(&[] as &[Key], |variant| variant.keys);
        let what =
            format!("unknown key `{name}` in [{path}] with kind = \"{kind}\" (value {})", entry.item.value.show());
        let help = format!("it belongs to kind = {}; \"{kind}\" has {}", with.join(" or "), list(own));
        self.add(&entry.key, Error::usage(what).help(help));
        self.bad.insert(join(path, name));
    }

    /// Reports a key that does not exist. The user may have meant one of `names`; `all` is the list to show.
    fn unknown_key(&mut self, path: &str, name: &str, entry: &Entry, names: &[&str], all: &str) {
        if self.is_full() {
            self.more += 1;
            self.bad.insert(join(path, name));
            return;
        }
        let (shown, value) = (brief(name), entry.item.value.show());
        let is_table = matches!(entry.item.value, Value::Table(_));
        let what = match path {
            "" if is_table => format!("unknown section [{shown}]"),
            "" => format!("unknown key `{shown}` outside any section (value {value})"),
            _ if is_table => format!("unknown section [{path}.{shown}]"),
            _ => format!("unknown key `{shown}` in [{path}] (value {value})"),
        };
        let (help, meant) = key_meant(path, name, &entry.item.value, names, all);
        self.add(&entry.key, Error::usage(what).help(help));
        self.bad.insert(join(path, name));
        // The user most likely meant those keys, so do not report them as missing, too.
        self.bad.extend(meant);
    }

    /// Reports required keys that no layer states and removes the tables that lack them, so that the rest can still be
    /// checked.
    pub(super) fn require(&mut self, merged: &mut Table) {
        self.require_in("", merged, schema::ROOT);
    }

    fn require_in(&mut self, path: &str, table: &mut Table, keys: &[Key]) {
        table.retain(|name, entry| {
            let Some(key) = find(keys, name) else {
                return false;
            };
            let path = join(path, name);
            match (&key.kind, &mut entry.item.value) {
                (Kind::Table(keys), Value::Table(inner)) => {
                    self.require_in(&path, inner, keys);
                    self.complete(&path, inner, keys, &entry.key)
                }
                (Kind::Tagged { default, variants }, Value::Table(inner)) => {
                    let kind = stated_kind(inner).unwrap_or(default).to_owned();
                    let keys = schema::variant(variants, &kind).map_or(&[] as &[Key], |variant| variant.keys);
                    let complete = self.complete(&path, inner, keys, &entry.key);
                    let value = Value::Text(kind);
                    let item = Item { value, origin: entry.key.clone() };
                    inner.entry("kind".to_owned()).or_insert(Entry { key: entry.key.clone(), item });
                    complete
                }
                (Kind::List(keys), Value::List(items)) => {
                    for (i, item) in items.iter_mut().enumerate() {
                        if let Value::Table(inner) = &mut item.value
                            && !self.complete(&format!("{path}[{i}]"), inner, keys, &item.origin)
                        {
                            // An empty entry is dropped below.
                            inner.clear();
                            self.bad.insert(path.clone());
                        }
                    }
                    items.retain(|item| !matches!(&item.value, Value::Table(inner) if inner.is_empty()));
                    true
                }
                _ => true,
            }
        });
    }

    /// Whether the table has all its required keys; reports those that are missing.
    fn complete(&mut self, path: &str, table: &Table, keys: &[Key], origin: &Origin) -> bool {
        let mut complete = true;
        for key in keys.iter().filter(|key| key.required && !table.contains_key(key.name)) {
            complete = false;
            let full = join(path, key.name);
            if !self.is_bad(&full) {
                let what = match stated_kind(table) {
                    Some(kind) => format!("`{full}` is missing, which kind = \"{kind}\" needs"),
                    None => format!("`{full}` is missing"),
                };
                self.add(origin, Error::usage(what).help(keys_help(keys)));
            }
        }
        if !complete {
            self.bad.insert(path.to_owned());
        }
        complete
    }
}

/// Reports an empty table over another one, which stays as it is. The user most likely meant to replace it.
fn without_effect(path: &str, keys: &[Key]) -> Error {
    let needed: Vec<_> = keys.iter().filter(|key| key.required).map(|key| format!("`{}`", key.name)).collect();
    let needed = needed.join(" and ");
    let without = if path == "data.valid" { "; `valid.every = 0` trains without validation" } else { "" };
    let error = Error::usage(format!("`{path}` is empty, which leaves what was stated before as it is"));
    error.help(format!("give it {needed}, or leave it out{without}"))
}

/// Help for a key that does not exist, and the keys (dotted) that the user may have meant: one of `names`, which the
/// table has, or another one. `all` is the list to show.
fn key_meant(path: &str, name: &str, value: &Value, names: &[&str], all: &str) -> (String, Vec<String>) {
    if name == "extends" {
        return ("`extends` belongs in a file, before the first section".to_owned(), Vec::new());
    }
    if let Some(instead) = aliases::instead_of(name) {
        return (instead.to_owned(), Vec::new());
    }
    let near = nearest(name, names);
    // `trg` is no slip of `tag`.
    let is_one_slip = matches!(near, Some((_, Some(0 | 1)))) && !aliases::is_of_table(path, name);
    // Of our tables, others have names only for the sets of text.
    let is_section = matches!(value, Value::Table(_)) && path != "data";
    let alias = if is_one_slip || is_section { None } else { aliases::for_key(path, name, value) };
    if let Some(alias) = alias {
        return (alias.help, alias.keys);
    }
    let owners = schema::owners(name);
    let help = match near {
        Some((best, Some(_))) => format!("did you mean `{best}`?"),
        _ if !owners.is_empty() => {
            let owners: Vec<_> = owners.iter().map(|owner| format!("[{owner}]")).collect();
            format!("`{name}` belongs to {}", owners.join(" or "))
        }
        _ if let Some(alias) = elsewhere(path, name, value) => return (alias.help, alias.keys),
        Some((best, None)) => format!("did you mean `{best}`? If not: {all}"),
        None => all.to_owned(),
    };
    (help, near.map(|(best, _)| join(path, best)).into_iter().collect())
}

/// The key of another table, or of another toolkit, that `name` is a slip for.
fn elsewhere(path: &str, name: &str, value: &Value) -> Option<Alias> {
    let names: Vec<&str> = schema::names().into_iter().chain(aliases::names()).collect();
    let (best, _) = nearest(name, &names).filter(|(_, slips)| slips.is_some())?;
    let owners = schema::owners(best);
    if owners.is_empty() {
        return aliases::for_key(path, best, value);
    }
    let keys = owners.iter().map(|owner| join(owner, best)).collect();
    let owners: Vec<_> = owners.iter().map(|owner| format!("[{owner}]")).collect();
    Some(Alias { keys, help: format!("did you mean `{best}` in {}?", owners.join(" or ")) })
}
