//! A parsed configuration document that remembers the location of each value, and the merging of documents.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::dump::{HEADER, toml_text};
use super::schema::{FORMS, find};
use crate::error::Error;
use crate::key::{Key, Kind};
use crate::signature::Signature;

/// Where configuration text came from.
pub(super) struct Source {
    /// Position among the sources, for reporting problems in the order of reading.
    pub order: usize,
    /// Position among the layers: the index of the source on the command line, and the number of `extends` that lead
    /// from there to this file. A file lies above those that it extends.
    pub layer: (usize, Reverse<usize>),
    /// The file as the user would name it, or `--set key=value`.
    pub name: PathBuf,
    /// The file's text; `None` for a `--set`, which has no lines.
    pub text: Option<String>,
    /// The absolute folder that relative paths start from.
    pub directory: PathBuf,
}

/// A position in a source.
#[derive(Clone)]
pub(super) struct Origin {
    pub source: Rc<Source>,
    /// Offset in the source's text, in bytes.
    pub offset: usize,
}

impl Origin {
    /// Whether this is in a configuration that `mt` wrote.
    pub(super) fn is_resolved(&self) -> bool {
        self.source.text.as_ref().is_some_and(|text| text.starts_with(HEADER))
    }

    /// Adds this position to an error.
    pub(super) fn locate(&self, error: Error) -> Error {
        let Some(text) = &self.source.text else {
            return error.at(&self.source.name);
        };
        let before = text.get(..self.offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").trim_start_matches('\u{feff}').chars().count() + 1;
        error.at_line(&self.source.name, line, column)
    }
}

/// A value and its position.
#[derive(Clone)]
pub(super) struct Item {
    pub value: Value,
    pub origin: Origin,
}

/// A key's position and its value.
#[derive(Clone)]
pub(super) struct Entry {
    pub key: Origin,
    pub item: Item,
}

/// A table by key.
pub(super) type Table = BTreeMap<String, Entry>;

/// A TOML value.
#[derive(Clone)]
pub(super) enum Value {
    Boolean(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    Datetime(String),
    List(Vec<Item>),
    Table(Table),
}

impl Value {
    /// For an error: the type, then the value as TOML, shortened where it is long.
    pub(super) fn describe(&self) -> String {
        let kind = match self {
            Self::Boolean(_) => "the boolean",
            Self::Integer(_) => "the integer",
            Self::Float(_) => "the number",
            Self::Text(_) => "the string",
            Self::Datetime(_) => "the date",
            Self::List(_) => "the list",
            Self::Table(_) => "the table",
        };
        format!("{kind} {}", self.show())
    }

    /// The value as TOML, shortened where it is long.
    pub(super) fn show(&self) -> String {
        const MOST: usize = 60;
        let text = match self {
            // JSON lacks non-finite numbers, larger integers and dates.
            Self::Float(x) if !x.is_finite() => x.to_string().to_lowercase(),
            Self::Integer(i) => i.to_string(),
            Self::Datetime(text) => text.clone(),
            other => toml_text(&other.to_json()),
        };
        if text.chars().count() <= MOST {
            return text;
        }
        text.chars().take(MOST).chain("…".chars()).collect()
    }

    /// The value for `serde`. Numbers that are not finite become null: the schema has refused them before.
    pub(super) fn to_json(&self) -> Json {
        match self {
            Self::Boolean(b) => Json::from(*b),
            Self::Integer(i) => match (i64::try_from(*i), u64::try_from(*i)) {
                (Ok(i), _) => Json::from(i),
                (_, Ok(i)) => Json::from(i),
                // Only where any number may stand.
                _ => Json::from(*i as f64),
            },
            Self::Float(x) => Json::from(*x),
            Self::Text(text) | Self::Datetime(text) => Json::from(text.as_str()),
            Self::List(items) => items.iter().map(|item| item.value.to_json()).collect(),
            Self::Table(table) => to_json(table),
        }
    }
}

/// The table for `serde`.
pub(super) fn to_json(table: &Table) -> Json {
    Json::Object(table.iter().map(|(name, entry)| (name.clone(), entry.item.value.to_json())).collect())
}

/// Parses a file's text. Reports only the first syntax error of each line, since others mostly follow from it.
pub(super) fn parse(source: &Rc<Source>) -> Result<Table, Vec<(Origin, Error)>> {
    let text = source.text.as_deref().unwrap_or_default();
    if let Some(other) = Signature::placeholder(text.as_bytes()) {
        let error = Error::usage(other.to_string()).help(other.help());
        return Err(vec![(Origin { source: source.clone(), offset: 0 }, error)]);
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(convert_table(table.into_inner(), source));
    }
    /// The most errors to report: in a file of another format, every line is wrong.
    const NAMED: usize = 10;
    let described = |error: toml::de::Error| {
        let span = error.span().unwrap_or_default();
        // The parser does not name the key.
        let key = Some(error.message()).filter(|what| *what == "duplicate key").and_then(|_| text.get(span.clone()));
        let what = key.map_or_else(|| error.message().to_owned(), |key| format!("duplicate key `{key}`"));
        (span.start.min(text.len()), Error::usage(format!("not valid TOML: {what}")))
    };
    let mut errors: Vec<(usize, Error)> = errors.into_iter().map(described).collect();
    errors.sort_by_key(|(offset, _)| *offset);
    // Keep the first of each line.
    let mut line_end = None;
    errors.retain(|&(offset, _)| {
        let is_first = line_end.is_none_or(|end| offset > end);
        if is_first {
            let end = text.as_bytes()[offset..].iter().position(|byte| *byte == b'\n');
            line_end = Some(end.map_or(text.len(), |end| offset + end));
        }
        is_first
    });
    let more = errors.get(NAMED).map(|(offset, _)| (*offset, errors.len() - NAMED));
    errors.truncate(NAMED);
    let at = |offset| Origin { source: source.clone(), offset };
    let named = errors.into_iter().map(|(offset, error)| (at(offset), slip(text, offset).unwrap_or(error)));
    let more = more.map(|(offset, count)| {
        let are = if count == 1 { "line is" } else { "lines are" };
        let error = Error::usage(format!("{count} more {are} not valid TOML"));
        (at(offset), error.help("is this file a configuration?"))
    });
    Err(named.chain(more).collect())
}

/// Recognises common slips in the value at an offset. The parser's own message would be about the type that it guesses
/// from the first letter.
fn slip(text: &str, offset: usize) -> Option<Error> {
    let start = text.get(..offset)?.rfind('\n').map_or(0, |newline| newline + 1);
    let equals = start + text[start..offset].rfind('=')?;
    let (before, line) = (&text[start..equals], text[equals + 1..].lines().next()?);
    // Within a table or a list, the value ends before the next one.
    let is_inner = before.contains(['{', '[']);
    let key = before.rsplit(['{', '[', ',']).next().unwrap_or(before);
    let value = if is_inner { line.split([',', '}', ']']).next().unwrap_or(line) } else { line };
    /// Quotation marks that are none in TOML.
    const QUOTES: &str = "“”„‟‘’‚«»";
    let value = value.split(" #").next().unwrap_or_default().trim();
    let first = value.chars().next()?;
    let (key, error) = (key.trim(), |what: &str| Error::usage(format!("not valid TOML: {what}")));
    let groups: Vec<&str> = value.split([',', '\'', '’', ' ']).collect();
    let is_number = |group: &str| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit());
    // Perhaps within a table or a list.
    if QUOTES.contains(first) || text[offset..].starts_with(|letter| QUOTES.contains(letter)) {
        let typographic = error("these are typographic quotation marks");
        let plain = value.trim_matches(|letter| QUOTES.contains(letter));
        // Only of a single text it is sure where it ends.
        let is_single = !plain.contains(|letter| QUOTES.contains(letter) || "\"={}[],".contains(letter));
        return Some(typographic.help(match is_single {
            true => format!("{key} = \"{plain}\""),
            false => "write straight ones: \"…\"".to_owned(),
        }));
    }
    if let [whole, part] = groups[..]
        && value.contains(',')
        && is_number(whole)
        && is_number(part)
        && (whole == "0" || part.len() != 3)
    {
        return Some(error("a number has a decimal point").help(format!("{key} = {whole}.{part}")));
    }
    if groups.len() > 1
        && groups[0].len() <= 3
        && groups.iter().all(|group| is_number(group))
        && groups[1..].iter().all(|group| group.len() == 3)
    {
        return Some(error("a number has no separators").help(format!("{key} = {}", groups.concat())));
    }
    if let "True" | "False" = value {
        return Some(
            error("true and false are written in lower case").help(format!("{key} = {}", value.to_lowercase())),
        );
    }
    if let "yes" | "on" | "no" | "off" = value {
        let switch = matches!(value, "yes" | "on");
        return Some(
            error("a switch is true or false, and text needs quotation marks").help(format!("{key} = {switch}")),
        );
    }
    let is_text = first.is_alphabetic() || "/.~_<".contains(first);
    let is_plain = !value.contains(['"', '\'', '{', '[', ']', '}', ',', '=', '\\']);
    (is_text && is_plain).then(|| error("text needs quotation marks").help(format!("{key} = \"{value}\"")))
}

/// Why a text is no TOML value, if it is none.
pub(super) fn why_no_value(text: &str) -> Option<String> {
    let why = DeValue::parse(text).err()?;
    Some(why.message().replace('\n', ", "))
}

/// Parses one value; `None` where the text is not a TOML value.
pub(super) fn parse_value(text: &str, source: &Rc<Source>) -> Option<Value> {
    DeValue::parse(text).ok().map(|value| convert(value.into_inner(), source))
}

fn convert_table(table: DeTable<'_>, source: &Rc<Source>) -> Table {
    let at = |offset| Origin { source: source.clone(), offset };
    let entry = |(key, value): (Spanned<std::borrow::Cow<'_, str>>, Spanned<DeValue<'_>>)| {
        let item = Item { origin: at(value.span().start), value: convert(value.into_inner(), source) };
        (key.get_ref().clone().into_owned(), Entry { key: at(key.span().start), item })
    };
    table.into_iter().map(entry).collect()
}

fn convert(value: DeValue<'_>, source: &Rc<Source>) -> Value {
    match value {
        DeValue::Boolean(b) => Value::Boolean(b),
        DeValue::Integer(integer) => {
            let beyond = if integer.as_str().starts_with('-') { i128::MIN } else { i128::MAX };
            Value::Integer(i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(beyond))
        }
        DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Datetime(date) => Value::Datetime(date.to_string()),
        DeValue::Array(items) => {
            let item = |item: Spanned<DeValue<'_>>| {
                let origin = Origin { source: source.clone(), offset: item.span().start };
                Item { value: convert(item.into_inner(), source), origin }
            };
            Value::List(items.into_iter().map(item).collect())
        }
        DeValue::Table(table) => Value::Table(convert_table(table, source)),
    }
}

/// The `kind` a tagged table states.
pub(super) fn stated_kind(table: &Table) -> Option<&str> {
    match table.get("kind").map(|entry| &entry.item.value) {
        Some(Value::Text(kind)) => Some(kind),
        _ => None,
    }
}

/// Lays `layer` over `base`: tables key by key, everything else whole. A layer that gives a tagged table another
/// `kind` replaces the table, because the old kind's keys do not apply to it; so does one that names another corpus.
pub(super) fn merge(base: &mut Table, layer: Table, keys: &[Key]) {
    for (name, entry) in layer {
        let kind = find(keys, &name).map(|key| &key.kind);
        let below = base.get_mut(&name).map(|entry| &mut entry.item.value);
        match (below, entry.item.value, kind) {
            (Some(Value::Table(below)), Value::Table(above), Some(Kind::Table(keys)))
                if !is_another_corpus(below, &above) && !is_another_kind(below, &above, keys) =>
            {
                merge(below, above, keys);
            }
            (Some(Value::Table(below)), Value::Table(above), Some(Kind::Tagged { default, .. }))
                if stated_kind(&above).is_none_or(|kind| kind == stated_kind(below).unwrap_or(default)) =>
            {
                merge(below, above, &[]);
            }
            (_, value, _) => {
                base.insert(name, Entry { key: entry.key, item: Item { value, origin: entry.item.origin } });
            }
        }
    }
}

/// Whether `above` states another `kind` than `below` has, in a table with one set of keys for all kinds.
fn is_another_kind(below: &Table, above: &Table, keys: &[Key]) -> bool {
    let Some(Kind::Choice([default, ..])) = find(keys, "kind").map(|key| &key.kind) else { return false };
    stated_kind(above).is_some_and(|kind| kind != stated_kind(below).unwrap_or(default))
}

/// Whether `above` states another corpus than `below`, so that the keys of `below` do not apply to it: in another form
/// (two files, a TSV file or a data set), or both sides anew.
fn is_another_corpus(below: &Table, above: &Table) -> bool {
    let form = |table: &Table| FORMS.iter().find(|key| table.contains_key(**key));
    let is_whole = above.contains_key("source") && above.contains_key("target");
    is_whole || (form(above).is_some() && form(above) != form(below))
}

/// The entry at a dotted path.
pub(super) fn get<'t>(table: &'t Table, path: &str) -> Option<&'t Entry> {
    match path.split_once('.') {
        None => table.get(path),
        Some((name, rest)) => match &table.get(name)?.item.value {
            Value::Table(inner) => get(inner, rest),
            _ => None,
        },
    }
}
