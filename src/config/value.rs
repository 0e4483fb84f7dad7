//! Checks single values against the kinds that their keys have.

use super::aliases;
use super::document::Value;
use super::schema;
use crate::device::DeviceName;
use crate::error::Error;
use crate::key::{Key, Kind, Variant};
use crate::train::Interval;

/// The highest column number that a configuration may use.
const MOST_COLUMNS: i128 = 1000;

/// Checks a plain value.
pub(super) fn check_value(path: &str, value: &Value, kind: &Kind) -> Result<(), Error> {
    let wrong = |needed: &str| Err(Error::usage(format!("`{path}` must be {needed}, found {}", value.describe())));
    match (kind, value) {
        (Kind::Boolean, Value::Boolean(_)) => Ok(()),
        (Kind::Boolean, _) => wrong("true or false"),
        (Kind::Integer { least, most }, Value::Integer(i)) => {
            let bound = if i < least { format!("at least {least}") } else { format!("at most {most}") };
            if (least..=most).contains(&i) { Ok(()) } else { Err(outside(path, value, &bound)) }
        }
        (Kind::Even { most }, Value::Integer(i)) if *i < 2 || i % 2 != 0 || i > most => {
            Err(outside(path, value, &format!("even, at least 2 and at most {most}")))
        }
        (Kind::Even { .. }, Value::Integer(_)) => Ok(()),
        (Kind::Integer { .. } | Kind::Even { .. }, _) => wrong("a whole number"),
        (Kind::Interval { least }, Value::Integer(_)) => {
            check_value(path, value, &Kind::Integer { least: i128::from(*least), most: i128::from(i64::MAX) })
        }
        (Kind::Interval { .. }, Value::Text(text)) if text.parse::<Interval>().is_ok() => Ok(()),
        (Kind::Interval { .. }, _) => wrong("a number of updates, or of epochs in quotes, such as \"1 epoch\""),
        (Kind::Number(range), value) => match number(value) {
            Some(x) if x.is_finite() && range.holds(x) => Ok(()),
            Some(x) if !x.is_finite() => Err(outside(path, value, "a finite number")),
            Some(_) => Err(outside(path, value, &range.describe())),
            None => wrong("a number"),
        },
        (Kind::Pair(range), Value::List(items)) if items.len() == 2 => {
            for (i, item) in items.iter().enumerate() {
                check_value(&format!("{path}[{i}]"), &item.value, &Kind::Number(*range))?;
            }
            Ok(())
        }
        (Kind::Pair(_), _) => wrong("a list of two numbers"),
        (Kind::Choice(names), value) => check_choice(path, value, names),
        (Kind::Device, Value::Text(text)) => match text.parse::<DeviceName>() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.context(format_args!("`{path}`"))),
        },
        (Kind::Device, _) => wrong("the name of a device"),
        (Kind::Text, Value::Text(text)) if !text.trim().is_empty() => Ok(()),
        (Kind::Text, _) => wrong("text in quotes, not empty"),
        (Kind::Texts, _) => wrong("a list of texts in quotes"),
        (Kind::Integers { most }, Value::List(items)) if items.len() as i128 > *most => {
            wrong(&format!("a list of at most {most} whole numbers"))
        }
        (Kind::Integers { most }, Value::List(items)) => items.iter().enumerate().try_for_each(|(i, item)| {
            check_value(&format!("{path}[{i}]"), &item.value, &Kind::Integer { least: 0, most: *most })
        }),
        (Kind::Integers { .. }, _) => wrong("a list of whole numbers"),
        (Kind::Path | Kind::Model | Kind::Corpus | Kind::Side, Value::Text(text)) if text.is_empty() => wrong("a path"),
        (Kind::Path | Kind::Model | Kind::Corpus | Kind::Side, Value::Text(_)) => Ok(()),
        (Kind::Side, Value::Integer(1..=MOST_COLUMNS)) => Ok(()),
        (Kind::Side, Value::Integer(_)) => {
            wrong(&format!("the number of a column, from 1 to {MOST_COLUMNS}, or a path in quotes"))
        }
        (Kind::Side, _) => wrong("a path in quotes"),
        (Kind::Path | Kind::Model | Kind::Corpus, _) => wrong("a path in quotes"),
        (Kind::Table(keys), _) => match wrong("a table") {
            Err(error) => Err(error.help(keys_help(keys))),
            ok => ok,
        },
        (Kind::Tagged { variants, .. }, _) => match (wrong("a table with a `kind`"), value) {
            (Err(error), Value::Text(kind)) => Err(error.help(as_table(path, kind, variants))),
            (result, _) => result,
        },
        (Kind::List(keys), _) => match wrong("a list of tables") {
            Err(error) if matches!(value, Value::Table(_)) => {
                let name = path.rsplit('.').next().unwrap_or(path);
                Err(error.help(format!("put brackets around it: {name} = [{{ … }}]")))
            }
            Err(error) => Err(error.help(keys_help(keys))),
            ok => ok,
        },
    }
}

/// How to write a tagged table whose `kind` was given as its value.
fn as_table(path: &str, kind: &str, variants: &[Variant]) -> String {
    let name = path.rsplit('.').next().unwrap_or(path);
    let kinds: Vec<_> = variants.iter().map(|variant| variant.kind).collect();
    let ours = aliases::kind(path, kind).or_else(|| nearest(kind, &kinds).map(|(best, _)| best));
    let Some(variant) = ours.and_then(|kind| schema::variant(variants, kind)) else {
        let kinds: Vec<_> = kinds.iter().map(|kind| format!("\"{kind}\"")).collect();
        return format!("write `{name} = {{ kind = KIND }}`, where KIND is {}", kinds.join(" or "));
    };
    let needed = variant.keys.iter().filter(|key| key.required);
    let needed: String = needed.map(|key| format!(", {} = NUMBER", key.name)).collect();
    format!("write `{name} = {{ kind = \"{}\"{needed} }}`", variant.kind)
}

pub(super) fn check_choice(path: &str, value: &Value, names: &[&str]) -> Result<(), Error> {
    match value {
        Value::Text(text) if names.contains(&text.as_str()) => Ok(()),
        _ => Err(not_one_of(path, value, names)),
    }
}

fn not_one_of(path: &str, value: &Value, names: &[&str]) -> Error {
    let quoted: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let mut help = match quoted.as_slice() {
        [only] => format!("the only value is {only}"),
        _ => format!("one of {}", quoted.join(", ")),
    };
    if let Value::Text(text) = value {
        let near = || nearest(text, names).map(|(best, _)| format!("did you mean \"{best}\"?"));
        if let Some(hint) = aliases::for_value(path, text).or_else(near) {
            help = format!("{hint} {help}");
        }
    }
    Error::usage(format!("invalid value {} for `{path}`", value.show())).help(help)
}

fn outside(path: &str, value: &Value, needed: &str) -> Error {
    Error::usage(format!("`{path}` must be {needed}, found {}", value.show()))
}

/// The value as a number; a whole number is one too.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Float(x) => Some(*x),
        Value::Integer(i) => Some(*i as f64),
        _ => None,
    }
}

pub(super) fn keys_help(keys: &[Key]) -> String {
    format!("the keys are {}", list(keys))
}

/// The keys' names, separated by commas.
pub(super) fn list(keys: &[Key]) -> String {
    keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

/// The most similar of `names`, and by how many slips of the pen it differs if by no more; `None` if none is similar.
pub(super) fn nearest<'n>(name: &str, names: &[&'n str]) -> Option<(&'n str, Option<usize>)> {
    let plain = aliases::plain;
    let name = plain(name);
    let slips = |other: &str| strsim::damerau_levenshtein(&name, &plain(other));
    let close = names.iter().map(|other| (slips(other), *other)).min_by_key(|(slips, _)| *slips);
    if let Some((slips, other)) = close
        && slips <= 2.min(name.chars().count() / 3)
    {
        return Some((other, Some(slips)));
    }
    // Names of one or two letters resemble too many others.
    if name.chars().count() < 3 {
        return None;
    }
    // Jaro-Winkler weighs a common beginning: `warmup_updates` is near `warmup`. Unrelated keys stay below 0.75.
    let similar = names.iter().map(|other| (strsim::jaro_winkler(&name, &plain(other)), *other));
    let (similarity, other) = similar.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (similarity >= 0.75).then_some((other, None))
}
