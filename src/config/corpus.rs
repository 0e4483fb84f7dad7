//! Which keys of a corpus go together: two files, two columns of one, or a split of a data set of the hub.

use super::check::Report;
use super::document::{Item, Origin, Table, Value, get};
use crate::error::Error;
use crate::hub::{self, Repo};
use crate::key::Key;

/// Reports keys that go together only with `hub`, or not without it, and tags that the vocabulary to be learnt will not
/// have.
pub(super) fn check(merged: &Table, report: &mut Report) {
    let Some(Value::Table(data)) = get(merged, "data").map(|entry| &entry.item.value) else { return };
    // The contents of other vocabularies are known only once they exist.
    let is_learnt = ["tokenizer.path", "train.init"].iter().all(|key| get(merged, key).is_none());
    let is_readable = ["tokenizer.tags", "tokenizer.symbols"].iter().all(|key| !report.is_bad(key));
    let known = (is_learnt && is_readable).then(|| Known::new(merged));
    let known = known.as_ref();
    for (name, entry) in data {
        match &entry.item.value {
            Value::Table(table) => check_one(report, &format!("data.{name}"), table, known, &entry.key),
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    if let Value::Table(table) = &item.value {
                        check_one(report, &format!("data.{name}[{i}]"), table, known, &item.origin);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Asks to write a number as text.
fn as_text(path: &str, side: &str, number: i128, origin: &Origin) -> String {
    match origin.source.text {
        // A shell removes one pair of quotes.
        None if !path.ends_with(']') => format!("--set '{path}.{side}=\"{number}\"'"),
        _ => format!("{side} = \"{number}\""),
    }
}

/// Reports a corpus whose sides are the same column.
fn same_column(report: &mut Report, path: &str, [source, target]: [&Item; 2]) {
    if source.value.to_json() == target.value.to_json() {
        let what = format!("`{path}.source` and `{path}.target` are the same column, {}", target.value.show());
        report.add(&target.origin, Error::usage(what).help("name the column of each language"));
    }
}

/// The tags and symbols that the vocabulary to be learnt will have.
struct Known {
    tags: Vec<String>,
    symbols: Vec<String>,
    /// `tags`, and further ones that corpora have.
    wanted: Vec<String>,
}

impl Known {
    fn new(merged: &Table) -> Self {
        let texts = |key: &str| match get(merged, key).map(|entry| &entry.item.value) {
            Some(Value::List(items)) => items
                .iter()
                .filter_map(|item| match &item.value {
                    Value::Text(text) => Some(text.clone()),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        let (tags, symbols) = (texts("tokenizer.tags"), texts("tokenizer.symbols"));
        let mut known = Self { wanted: tags.clone(), tags, symbols };
        for word in tags_of_corpora(merged).iter().flat_map(|tag| tag.split_whitespace()) {
            if !known.has(word) && !known.wanted.iter().any(|wanted| wanted == word) {
                known.wanted.push(word.to_owned());
            }
        }
        known
    }

    fn has(&self, word: &str) -> bool {
        self.tags.iter().chain(&self.symbols).any(|stated| stated == word)
    }
}

/// The tags of all corpora, in order.
fn tags_of_corpora(merged: &Table) -> Vec<String> {
    let corpora = ["data.train", "data.valid", "data.test", "data.monitor"].iter().filter_map(|key| get(merged, key));
    let tables = corpora.flat_map(|entry| match &entry.item.value {
        Value::List(items) => items.iter().map(|item| &item.value).collect(),
        value => vec![value],
    });
    let tag = |value: &Value| match value {
        Value::Table(table) => match &table.get("tag")?.item.value {
            Value::Text(tag) => Some(tag.clone()),
            _ => None,
        },
        _ => None,
    };
    tables.filter_map(tag).collect()
}

/// Reports a tag that contains a word which the vocabulary will not have as a tag.
fn unknown_tag(report: &mut Report, path: &str, (tag, origin): (&str, &Origin), known: &Known) {
    let Some(word) = tag.split_whitespace().find(|word| !known.has(word)) else { return };
    report.add_described(origin, || {
        let what = format!("`{path}.tag`: {word} is not one of `tokenizer.tags`, so the vocabulary would not have it");
        let all: Vec<_> = known.wanted.iter().map(|tag| format!("\"{tag}\"")).collect();
        Error::usage(what).help(format!("list all tags in [tokenizer]: tags = [{}]", all.join(", ")))
    });
}

/// How to write a corpus of the hub.
fn stated_as(repo: &Repo) -> String {
    let columns = "split = \"train\", source = \"COLUMN\", target = \"COLUMN\"";
    format!("a data set of the hub is {{ hub = \"{}\", {columns} }}", repo.name)
}

/// Adds help to the error for a corpus that is given as text: how to write it as a data set of the hub, if the text is
/// the name of one.
pub(super) fn with_hub_help(error: Error, keys: &[Key], value: &Value) -> Error {
    let Value::Text(text) = value else { return error };
    match Repo::named(text).or_else(|| Repo::perhaps(text)) {
        Some(repo) if keys.iter().any(|key| key.name == "hub") => error.more_help(&stated_as(&repo)),
        _ => error,
    }
}

fn check_one(report: &mut Report, path: &str, table: &Table, known: Option<&Known>, origin: &Origin) {
    let text = |key: &str| match table.get(key).map(|entry| &entry.item) {
        Some(Item { value: Value::Text(text), origin }) => Some((text.as_str(), origin)),
        _ => None,
    };
    if let (Some(tag), Some(known)) = (text("tag"), known) {
        unknown_tag(report, path, tag, known);
    }
    let tsv = table.get("tsv").map(|entry| &entry.item);
    let mut columns = Vec::new();
    for side in ["source", "target"] {
        let Some(item) = table.get(side).map(|entry| &entry.item) else { continue };
        let found = || item.value.describe();
        let (what, help) = match (&item.value, tsv) {
            _ if report.is_bad(&format!("{path}.{side}")) => continue,
            (Value::Text(_), Some(_)) => (
                format!("`{path}.{side}` is the number of a column of `tsv`, and cannot be {}", found()),
                "columns count from 1: source = 1, target = 2".to_owned(),
            ),
            (Value::Integer(number), None)
                if text("hub").is_none()
                    && !["tsv", "hub"].iter().any(|key| report.is_bad(&format!("{path}.{key}"))) =>
            {
                (
                    format!("`{path}.{side}` is the number of a column, but no `tsv` names a file with columns"),
                    format!(
                        "name the file: tsv = \"corpus.tsv\"; or give a path in quotes: {}",
                        as_text(path, side, *number, &item.origin)
                    ),
                )
            }
            _ if tsv.is_some() || text("hub").is_some() => {
                columns.push(item);
                continue;
            }
            _ => continue,
        };
        report.add(&item.origin, Error::usage(what).help(help));
    }
    if let [source, target] = columns[..] {
        same_column(report, path, [source, target]);
    }
    if let (Some((_, origin)), Some(_)) = (text("hub"), tsv) {
        let what = format!("`{path}` names both a data set of the hub and a file (`hub` and `tsv`)");
        report.add(origin, Error::usage(what).help("leave one of them out"));
        return;
    }
    let Some((name, at)) = text("hub") else {
        for key in ["tsv", "source", "target"] {
            if let Some((repo, origin)) = text(key).and_then(|(text, origin)| Some((Repo::named(text)?, origin))) {
                let what = format!("`{path}.{key}` is a repository of the hub, and a file is expected");
                report.add(origin, Error::usage(what).help(stated_as(&repo)));
            }
        }
        for key in ["config", "split", "revision"] {
            // If `hub` is misspelt, that has been reported.
            if let Some((_, origin)) = text(key).filter(|_| !report.is_bad(&format!("{path}.hub"))) {
                let what = format!("`{path}.{key}` is about a data set of the hub, but none is named");
                report.add(origin, Error::usage(what).help("add hub = \"ORG/NAME\", or leave the key out"));
            }
        }
        return;
    };
    if let Some((_, origin)) = text("weights") {
        let what =
            format!("`{path}.weights` is a file beside the files of a corpus, but this is a data set of the hub");
        let help = "leave `weights` out; or fetch the text into files, with its lines in the order of the weights, and \
                    name these";
        report.add(origin, Error::usage(what).help(help));
    }
    if !hub::is_repo_name(name) {
        let what = format!("`{path}.hub` cannot be \"{name}\"");
        let error = Error::usage(what)
            .help("it is the ORG/NAME of a data set, as the address of its page ends, such as \"wmt/wmt14\"");
        let meant = Repo::named(name).or_else(|| Repo::perhaps(name)).filter(|repo| hub::is_repo_name(&repo.name));
        report.add(
            at,
            meant.into_iter().fold(error, |error, Repo { name, revision, .. }| {
                let revision =
                    if revision == hub::MAIN { String::new() } else { format!(", revision = \"{revision}\"") };
                error.more_help(&format!("write hub = \"{name}\"{revision}"))
            }),
        );
    }
    if let Some((revision, origin)) = text("revision").filter(|(revision, _)| !hub::is_revision(revision)) {
        let what = format!("`{path}.revision` cannot be \"{revision}\"");
        report.add(origin, Error::usage(what).help("it is a branch, a tag or a commit"));
    }
    if text("split").is_none() && !report.is_bad(&format!("{path}.split")) {
        let error = Error::usage(format!("`{path}.split` is missing, which a data set of the hub needs"));
        let help = "add split = \"train\", \"validation\" or \"test\", as its page names it";
        report.add(origin, error.help(help));
    }
}
