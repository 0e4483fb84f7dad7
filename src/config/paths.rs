//! Paths relative to the file that states them, made absolute.

use std::path::{Component, Path, PathBuf};

use super::check::Report;
use super::document::{Item, Origin, Table, Value, get};
use super::schema::{self, find};
use crate::error::Error;
use crate::hub::Repo;
use crate::key::{Key, Kind};

/// Makes every path of the document absolute: `data.root` from the file that states it, names of corpora from
/// `data.root`, or from the file that states them where no layer states a root. An unstated root is `directory`.
pub(super) fn absolutise(merged: &mut Table, directory: &Path, report: &mut Report) -> PathBuf {
    let root = match get(merged, "data.root").map(|entry| &entry.item) {
        Some(Item { value: Value::Text(text), origin }) => Some(from(&origin.source.directory, text)),
        _ => None,
    };
    walk(merged, schema::ROOT, root.as_deref(), report);
    root.unwrap_or_else(|| {
        if directory.to_str().is_none() {
            let what = format!("the folder {} has a name that is not UTF-8", directory.display());
            report.add_anywhere(Error::usage(what).help("the run's config.toml could not hold it; rename the folder"));
        }
        directory.to_path_buf()
    })
}

fn walk(table: &mut Table, keys: &[Key], root: Option<&Path>, report: &mut Report) {
    // Its `source` and `target` are columns, not files.
    let is_hub = table.contains_key("hub");
    for (name, entry) in table.iter_mut() {
        let item = &mut entry.item;
        match (find(keys, name).map(|key| &key.kind), &mut item.value) {
            (Some(Kind::Path), Value::Text(text)) => make_absolute(text, &item.origin, None, report),
            (Some(Kind::Model), Value::Text(text)) if Repo::named(text).is_none() => {
                make_absolute(text, &item.origin, None, report);
            }
            (Some(Kind::Corpus), Value::Text(text)) => make_absolute(text, &item.origin, root, report),
            (Some(Kind::Side), Value::Text(text)) if !is_hub => make_absolute(text, &item.origin, root, report),
            (Some(Kind::Table(keys)), Value::Table(inner)) => walk(inner, keys, root, report),
            (Some(Kind::List(keys)), Value::List(items)) => {
                for item in items {
                    if let Value::Table(inner) = &mut item.value {
                        walk(inner, keys, root, report);
                    }
                }
            }
            _ => {}
        }
    }
}

fn make_absolute(text: &mut String, origin: &Origin, root: Option<&Path>, report: &mut Report) {
    match from(root.unwrap_or(&origin.source.directory), text).into_os_string().into_string() {
        Ok(path) => *text = path,
        Err(path) => {
            let what = format!("`{text}` leads to {}, a path that is not UTF-8", path.display());
            report.add(origin, Error::usage(what).help("the run's config.toml could not hold it; rename the folder"));
        }
    }
}

fn from(directory: &Path, path: &str) -> PathBuf {
    normalise(&directory.join(path))
}

/// Removes `.` and `..` from an absolute path. As in the operating system, `..` after a symbolic link is the parent of
/// the link's target.
pub(super) fn normalise(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if normal.is_symlink()
                    && let Ok(real) = normal.canonicalize()
                {
                    normal = real;
                }
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}
