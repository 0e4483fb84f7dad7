//! Names of keys and values in other toolkits (fairseq, Marian, Sockeye, JoeyNMT, OpenNMT) and in the paper, so that a
//! message about an unknown name can suggest ours. The program accepts none of these names.

mod tables;

use super::document::Value;
use super::schema::{self, join};
use tables::{KEYS, LOCAL, NO_KEY, NOTES, READ, SETTINGS, SMOOTHING, VALUES};

/// Our names for another toolkit's key.
pub(super) struct Alias {
    /// Our keys, dotted, that the user may have meant.
    pub keys: Vec<String>,
    /// What to write.
    pub help: String,
}

/// The comparable form of a name.
pub(super) fn plain(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// The key that other toolkits call `name` in this table, and the tables that have it.
fn local(path: &str, name: &str) -> Option<&'static (&'static [&'static str], &'static str, &'static [&'static str])> {
    let (table, name) = (table_of(path), plain(name));
    LOCAL.iter().find(|(tables, _, names)| tables.contains(&table) && names.contains(&name.as_str()))
}

/// Tables in lists have numbers: `data.train[0]`.
fn table_of(path: &str) -> &str {
    path.split('[').next().unwrap_or(path)
}

/// Whether `name` has a meaning of its own in this table.
pub(super) fn is_of_table(path: &str, name: &str) -> bool {
    local(path, name).is_some()
}

/// A key of ours that a name may mean.
struct Meant<'n> {
    section: String,
    key: &'n str,
    /// Our value, for a switch of another toolkit.
    value: Option<&'static str>,
    /// Whether the name is another toolkit's, not ours.
    is_theirs: bool,
}

/// Our keys for another toolkit's `name`, which stands in the table `path` with this value.
pub(super) fn for_key(path: &str, name: &str, value: &Value) -> Option<Alias> {
    let (table, name) = (table_of(path), plain(name));
    let mut found = match local(path, &name) {
        Some((_, key, _)) => vec![Meant { section: table.to_owned(), key, value: None, is_theirs: true }],
        None => anywhere(&name),
    };
    if !found.iter().any(|meant| meant.is_theirs) {
        return None;
    }
    // In this table, or in one within it.
    let is_near =
        |section: &str| section.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    found.sort_by_key(|meant| (meant.section != table, !is_near(&meant.section)));
    let near: Vec<&str> = found.iter().filter(|meant| is_near(&meant.section)).map(|meant| meant.key).collect();
    if !near.is_empty() {
        found.retain(|meant| is_near(&meant.section) || meant.is_theirs && !near.contains(&meant.key));
    }
    let is_off = matches!(value, Value::Boolean(false));
    let decay = match value {
        Value::Float(rate) if SMOOTHING.contains(&name.as_str()) && (0.0..1.0).contains(rate) => {
            Some(format!("{}", 1.0 - rate))
        }
        _ => None,
    };
    let show = |Meant { section, key, value, .. }: &Meant| {
        let value = decay.as_deref().or(*value).filter(|_| !is_off);
        let setting = value.map(|value| format!(" = {value}")).unwrap_or_default();
        let section_note = if section == table { String::new() } else { format!(" in [{section}]") };
        format!("`{key}{setting}`{section_note}{}{}", with_kind(section, key), note(key, &name))
    };
    let shown = found.iter().map(show).collect::<Vec<_>>().join(" or ");
    let is_here = found.first()?.section == table;
    let help = if is_here { format!("did you mean {shown}?") } else { format!("the key for that is {shown}") };
    let full = |meant: &Meant| join(if meant.section == table { path } else { &meant.section }, meant.key);
    Some(Alias { keys: found.iter().map(full).collect(), help })
}

/// Our keys, dotted, for a name that may be another toolkit's or ours, in whatever section.
pub fn keys_called(name: &str) -> Vec<String> {
    anywhere(&plain(name)).iter().map(|meant| join(&meant.section, meant.key)).collect()
}

/// All names that other toolkits have for our keys.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let rows = KEYS.iter().map(|(_, names)| *names).chain(SETTINGS.iter().map(|(.., names)| *names));
    rows.flatten().copied()
}

/// A note on our key, for users of another toolkit's key.
fn note(key: &str, theirs: &str) -> &'static str {
    let row = NOTES.iter().find(|(ours, names, _)| *ours == key && names.contains(&theirs));
    row.map_or("", |(.., note)| note)
}

/// What to do instead of setting what others call `name`, if it is no key here.
pub fn instead_of(name: &str) -> Option<&'static str> {
    let name = plain(name);
    NO_KEY.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, instead)| *instead)
}

/// What a name means in any section: what it is called in other toolkits, then our own keys of that name.
fn anywhere(name: &str) -> Vec<Meant<'_>> {
    let keys = KEYS.iter().map(|(key, names)| (*key, None, *names));
    let settings = SETTINGS.iter().map(|(key, value, names)| (*key, Some(*value), *names));
    let rows = keys.chain(settings).filter(|(.., names)| names.contains(&name));
    let theirs = rows.filter_map(|(key, value, _)| {
        let (section, key) = key.rsplit_once('.')?;
        Some(Meant { section: section.to_owned(), key, value, is_theirs: true })
    });
    let mut found: Vec<Meant> = theirs.collect();
    let own = |section| Meant { section, key: name, value: None, is_theirs: false };
    for meant in schema::owners(name).into_iter().map(own) {
        if !found.iter().any(|other| other.section == meant.section && other.key == meant.key) {
            found.push(meant);
        }
    }
    found
}

/// Which `kind` the key needs, if the table's default is another.
fn with_kind(section: &str, key: &str) -> String {
    let kinds: Vec<_> = schema::kinds_with(section, key).iter().map(|kind| format!("\"{kind}\"")).collect();
    if kinds.is_empty() { String::new() } else { format!(" (with kind = {})", kinds.join(" or ")) }
}

/// What to write instead of another toolkit's value of a key.
pub(super) fn for_value(path: &str, value: &str) -> Option<String> {
    let value = plain(value);
    let value = value.as_str();
    if path == "tokenizer.kind" {
        return READ.iter().find(|(names, _)| names.contains(&value)).map(|(_, help)| format!("{help}; otherwise"));
    }
    choice(path, value).map(|ours| format!("did you mean \"{ours}\"?"))
}

/// Our `kind` of a table for another toolkit's.
pub(super) fn kind(table: &str, theirs: &str) -> Option<&'static str> {
    choice(&join(table, "kind"), &plain(theirs))
}

/// Our value of a key for another toolkit's.
fn choice(path: &str, theirs: &str) -> Option<&'static str> {
    let row = VALUES.iter().find(|(key, _, names)| *key == path && names.contains(&theirs));
    row.map(|(_, ours, _)| *ours)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_mentions, loaded, problem};
    use super::*;

    /// Whether a table has a key, with any `kind`.
    fn has(table: &str, key: &str) -> bool {
        key == "kind" && ["train.schedule", "train.optimizer"].contains(&table)
            // `data.train` is a list; its tables have the keys of `data.valid`.
            || schema::owners(key).iter().any(|owner| owner == &table.replace("data.train", "data.valid"))
    }

    #[test]
    fn ours_are_keys_and_theirs_are_not() {
        let settings = SETTINGS.iter().map(|(key, _, names)| (*key, *names));
        let elsewhere = KEYS.iter().copied().chain(settings).map(|(key, names)| {
            let (table, key) = key.rsplit_once('.').unwrap();
            (table, key, names)
        });
        let local = LOCAL.iter().flat_map(|(tables, key, names)| tables.iter().map(|table| (*table, *key, *names)));
        for name in NO_KEY.iter().flat_map(|(names, _)| *names) {
            assert!(plain(name) == *name && keys_called(name).is_empty(), "{name}");
        }
        for (table, key, names) in elsewhere.chain(local) {
            assert!(has(table, key), "{table}.{key}");
            for name in names {
                assert_eq!(plain(name), *name);
                assert!(
                    (table, key) == ("train.schedule", *name)
                        || (table, *name) == ("train", "seed")
                        || !has(table, name),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn names_without_a_key_get_a_hint() {
        for (text, help) in [
            (
                "[train]\nmini-batch-fit = true\n",
                "help: there is nothing to set: batches have up to `train.batch_tokens` tokens",
            ),
            ("save_dir = \"a\"\n", "help: the run's directory is given on the command line: `--run-dir DIR`"),
        ] {
            assert_mentions(&problem(text), &["unknown key", help]);
        }
    }

    #[test]
    fn values_and_settings_are_accepted() {
        for (key, value, _) in SETTINGS {
            loaded("", &[&format!("{key}={value}")]);
        }
        for (key, ours, names) in VALUES {
            let (table, key) = key.rsplit_once('.').unwrap();
            for theirs in *names {
                let text = problem(&format!("[{table}]\n{key} = \"{theirs}\"\n"));
                assert_mentions(&text, &[&format!("did you mean \"{ours}\"? one of "), &format!("\"{ours}\"")]);
            }
            let listed = problem(&format!("[{table}]\n{key} = \"~\"\n"));
            assert_mentions(&listed, &[&format!("\"{ours}\"")]);
        }
    }
}
