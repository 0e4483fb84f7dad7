//! Which files of a data set belong to a split, by its page's header or by their names.
//!
//! ```text
//! {config}/{split}-00000-of-00003.parquet   data/{split}-*.parquet   {config}/{split}/0000.parquet   {split}.jsonl
//! {config}/{split}.{language}   {config}-{split}.tsv   any of these in data/
//! ```

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use globset::GlobBuilder;

use super::card::CardConfig;
use crate::foreign::guarded;
use crate::limits;

/// The wanted split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// The configuration, if one is named.
    pub config: Option<&'a str>,
    /// The split.
    pub split: &'a str,
    /// Languages of text files; empty where there are none.
    pub languages: [&'a str; 2],
}

/// How a file holds its rows, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    /// Apache Parquet.
    Parquet,
    /// JSON objects, on lines or in a list.
    Json,
    /// Comma-separated values.
    Csv,
    /// Tab-separated values.
    Tsv,
    /// Two text files, aligned line by line.
    Text,
}

/// The files of a split, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// How they hold their rows.
    pub format: Format,
    /// The names; for text, source and target files alternate.
    pub files: Vec<String>,
}

/// Why nothing was found, and what there is instead.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// No configuration of that name, or none named although there are several.
    Config(Vec<String>),
    /// No split of that name.
    Split(Vec<String>),
    /// The header names files that are not there.
    Files(Vec<String>),
    /// The header names files by a pattern that cannot be read, or by too many.
    Pattern(String),
    /// The files are of no form that can be read, or not in these languages.
    Form(Vec<String>),
}

/// Names that mean the same split.
const ALIASES: &[&[&str]] =
    &[&["train", "training"], &["validation", "valid", "val", "dev"], &["test", "testing", "eval", "evaluation"]];

/// The names of a split, the one asked for first.
fn names_of(split: &str) -> impl Iterator<Item = &str> {
    let group = ALIASES.iter().find(|group| group.contains(&split)).copied().unwrap_or_default();
    std::iter::once(split).chain(group.iter().copied().filter(move |name| *name != split))
}

/// Finds the files of a split by the header of the data set's page.
pub(super) fn by_card(configs: &[CardConfig], files: &[String], wanted: Wanted) -> Result<Found, Missing> {
    let named = match wanted.config {
        Some(name) => configs.iter().find(|config| config.name == name),
        None => {
            let stated = configs.iter().find(|config| config.is_default);
            let only = || configs.first().filter(|_| configs.len() == 1);
            stated.or_else(|| configs.iter().find(|config| config.name == "default")).or_else(only)
        }
    };
    let Some(config) = named else {
        return Err(Missing::Config(configs.iter().map(|config| config.name.clone()).collect()));
    };
    if config.splits.is_empty() {
        let inner: Vec<String> = if config.folder.is_empty() {
            files.to_vec()
        } else {
            let prefix = format!("{}/", config.folder);
            files.iter().filter(|file| file.starts_with(&prefix)).cloned().collect()
        };
        let scopes = [format!("{}/", config.folder), format!("{}/data/", config.folder)];
        let scopes = if config.folder.is_empty() { [String::new(), "data/".to_owned()] } else { scopes };
        return in_scopes(&inner, &scopes, wanted).unwrap_or_else(|| Err(Missing::Split(splits(&inner, &scopes))));
    }
    let of_split = |name: &str| config.splits.iter().find(|(split, _)| split == name);
    let Some((_, patterns)) = names_of(wanted.split).find_map(of_split) else {
        return Err(Missing::Split(config.splits.iter().map(|(split, _)| split.clone()).collect()));
    };
    let folder = if config.folder.is_empty() { String::new() } else { format!("{}/", config.folder) };
    let patterns: Vec<String> = patterns.iter().map(|pattern| format!("{folder}{pattern}")).collect();
    let matched = matching(&patterns, files)?;
    if matched.is_empty() {
        return Err(Missing::Files(patterns));
    }
    best(&matched, wanted).ok_or_else(|| Missing::Form(matched.iter().map(|name| (*name).to_owned()).collect()))
}

/// Finds the files of a split by their names.
pub(super) fn by_name(files: &[String], wanted: Wanted) -> Result<Found, Missing> {
    let scopes: Vec<String> = match wanted.config {
        Some(config) => scopes_of(config).collect(),
        None => vec![String::new(), "data/".to_owned()],
    };
    if let Some(found) = in_scopes(files, &scopes, wanted) {
        return found;
    }
    let configs = configs(files);
    match (wanted.config, &configs[..]) {
        (Some(config), _) if files.iter().any(|file| scopes.iter().any(|scope| file.starts_with(scope))) => {
            let scopes: Vec<String> = scopes_of(config).collect();
            Err(Missing::Split(splits(files, &scopes)))
        }
        (Some(_), _) => Err(Missing::Config(configs)),
        // No need to name the only one.
        (None, [only]) => by_name(files, Wanted { config: Some(only), ..wanted }),
        (None, []) => Err(Missing::Split(splits(files, &scopes))),
        (None, _) if configs.iter().any(|name| name == "default") => {
            by_name(files, Wanted { config: Some("default"), ..wanted })
        }
        (None, _) => Err(Missing::Config(configs)),
    }
}

/// Where the files of a configuration may be: what their names begin with.
fn scopes_of(config: &str) -> impl Iterator<Item = String> {
    ["", "data/"].into_iter().flat_map(move |folder| ["/", "-", "_", "."].map(|end| format!("{folder}{config}{end}")))
}

/// The split's files in the first scope that has any.
fn in_scopes(files: &[String], scopes: &[String], wanted: Wanted) -> Option<Result<Found, Missing>> {
    let mut unreadable = None;
    for scope in scopes {
        let inner = || files.iter().filter_map(|file| Some((file, file.strip_prefix(scope.as_str())?)));
        let ranked = |rank: fn(&str, &str) -> bool, name: &str| -> Vec<&str> {
            inner().filter(|(_, inner)| rank(inner, name)).map(|(file, _)| file.as_str()).collect()
        };
        for name in names_of(wanted.split) {
            for rank in [is_named, is_part, has_word] {
                let matched = ranked(rank, name);
                if let Some(found) = best(&matched, wanted) {
                    return Some(Ok(found));
                }
                if !matched.is_empty() && unreadable.is_none() {
                    unreadable = Some(Missing::Form(matched.iter().map(|name| (*name).to_owned()).collect()));
                }
            }
        }
    }
    unreadable.map(Err)
}

/// `split.x`, `split-00000-of-00003.x`, `split/x`.
fn is_named(file: &str, split: &str) -> bool {
    match file.rsplit_once('/') {
        Some((folder, _)) => folder == split,
        None => {
            let rest = stem(file).strip_prefix(split).map(|rest| rest.trim_start_matches(['-', '_', '.']));
            stem(file) == split || rest.is_some_and(is_shard)
        }
    }
}

/// `partial-split/x`: the converted part of a large split.
fn is_part(file: &str, split: &str) -> bool {
    file.rsplit_once('/').is_some_and(|(folder, _)| folder.strip_prefix("partial-") == Some(split))
}

/// `news.de-en.split.x`, with the split as one word of the name.
fn has_word(file: &str, split: &str) -> bool {
    !file.contains('/') && stem(file).split(['-', '_', '.']).any(|word| word == split)
}

/// `00000-of-00003`, or a number.
fn is_shard(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once("-of-").map_or_else(|| is_number(text), |(of, all)| is_number(of) && is_number(all))
}

/// The name without an extension of a compression format.
fn unpacked(file: &str) -> &str {
    [".gz", ".xz", ".zst"].iter().find_map(|ending| file.strip_suffix(ending)).unwrap_or(file)
}

/// The name without extensions of compression, format and language.
fn stem(file: &str) -> &str {
    let file = unpacked(file);
    match file.rsplit_once('.') {
        Some((stem, ending)) if format_of_ending(ending).is_some() || is_language(ending) => stem,
        _ => file,
    }
}

fn is_language(ending: &str) -> bool {
    (2..=8).contains(&ending.len()) && ending.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
}

fn format_of_ending(ending: &str) -> Option<Format> {
    match ending {
        "parquet" => Some(Format::Parquet),
        "jsonl" | "json" | "ndjson" => Some(Format::Json),
        "csv" => Some(Format::Csv),
        "tsv" => Some(Format::Tsv),
        _ => None,
    }
}

fn format_of(file: &str) -> Option<Format> {
    let name = unpacked(file);
    let format = format_of_ending(name.rsplit_once('.')?.1)?;
    // Parquet is compressed inside, never as a whole.
    (format != Format::Parquet || name == file).then_some(format)
}

/// Those of the files that have the best format among them.
fn best(files: &[&str], wanted: Wanted) -> Option<Found> {
    let mut by_format: BTreeMap<Format, BTreeSet<&str>> = BTreeMap::new();
    for file in files {
        if let Some(format) = format_of(file) {
            by_format.entry(format).or_default().insert(file);
        }
    }
    match by_format.pop_first() {
        Some((format, files)) => {
            let mut files: Vec<String> = files.into_iter().map(str::to_owned).collect();
            files.sort_by(|a, b| in_order(a, b));
            Some(Found { format, files })
        }
        None => text(files, wanted.languages),
    }
}

/// Pairs of files that differ only in their language.
fn text(files: &[&str], [source, target]: [&str; 2]) -> Option<Found> {
    let of = |language: &str| -> BTreeMap<&str, &str> {
        let named = files.iter().filter(|_| !language.is_empty()).filter_map(|file| {
            let name = unpacked(file).strip_suffix(language)?.strip_suffix('.')?;
            Some((name, *file))
        });
        named.collect()
    };
    let (sources, targets) = (of(source), of(target));
    let mut pairs: Vec<[&str; 2]> =
        sources.into_iter().filter_map(|(name, file)| Some([file, *targets.get(name)?])).collect();
    pairs.sort_by(|[a, _], [b, _]| in_order(a, b));
    let files: Vec<String> = pairs.concat().into_iter().map(str::to_owned).collect();
    (!files.is_empty()).then_some(Found { format: Format::Text, files })
}

/// The names that patterns fit, in their order. `*` stays within a folder, `**` does not.
fn matching<'f>(patterns: &[String], files: &'f [String]) -> Result<Vec<&'f str>, Missing> {
    let names: HashSet<&str> = files.iter().map(String::as_str).collect();
    let (mut found, mut count) = (Vec::new(), 0);
    for pattern in patterns {
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        if let Some(name) = names.get(pattern) {
            found.push(*name);
        }
        if !pattern.contains(['*', '?', '[', '{', '\\']) {
            continue;
        }
        count += 1;
        let build = || GlobBuilder::new(pattern).literal_separator(true).build().map(|glob| glob.compile_matcher());
        let is_simple = count <= limits::PATTERNS && is_simple(pattern);
        let glob = if is_simple { guarded(build).ok().and_then(Result::ok) } else { None };
        match glob {
            Some(glob) => found.extend(files.iter().map(String::as_str).filter(|file| glob.is_match(file))),
            None if is_simple && names.contains(pattern) => {}
            None => return Err(Missing::Pattern(pattern.to_owned())),
        }
    }
    Ok(found)
}

/// Whether a pattern is neither long nor nested deeply: the library recurses.
fn is_simple(pattern: &str) -> bool {
    let mut depth = 0usize;
    let deepest = pattern.chars().map(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth
    });
    pattern.len() <= limits::PATTERN_BYTES && deepest.max().unwrap_or(0) <= limits::PATTERN_DEPTH
}

/// The configurations: top folders with data files below (or such folders in `data/`), unless named like a split.
fn configs(files: &[String]) -> Vec<String> {
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| format_of(file).is_some()) {
        let inner = file.strip_prefix("data/").unwrap_or(file);
        if let Some((folder, _)) = inner.split_once('/') {
            found.insert(folder.to_owned());
        }
    }
    let is_split = |name: &str| ALIASES.iter().any(|group| group.contains(&name));
    found.into_iter().filter(|name| !is_split(name)).collect()
}

/// The splits that the files in these scopes seem to belong to.
fn splits(files: &[String], scopes: &[String]) -> Vec<String> {
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| format_of(file).is_some()) {
        for inner in scopes.iter().filter_map(|scope| file.strip_prefix(scope.as_str())) {
            let name = match inner.rsplit_once('/') {
                Some((folder, _)) => folder.strip_prefix("partial-").unwrap_or(folder),
                None => {
                    let stem = stem(inner);
                    let mut cuts = stem.match_indices("-0").map(|(at, _)| stem.split_at(at));
                    cuts.find(|(_, shard)| is_shard(&shard[1..])).map_or(stem, |(split, _)| split)
                }
            };
            if !name.is_empty() && !name.contains('/') {
                found.insert(name.to_owned());
            }
        }
    }
    found.into_iter().collect()
}

/// By name, numbers by their value: 10 comes after 9.
fn in_order(a: &str, b: &str) -> Ordering {
    let parts = |text: &str| -> Vec<(String, u64)> {
        let mut parts = vec![(String::new(), 0u64)];
        let mut in_number = false;
        for c in text.chars() {
            if in_number && !c.is_ascii_digit() {
                parts.push((String::new(), 0));
            }
            in_number = c.is_ascii_digit();
            if let Some((word, number)) = parts.last_mut() {
                match c.to_digit(10) {
                    Some(digit) => *number = number.saturating_mul(10).saturating_add(u64::from(digit)),
                    None => word.push(c),
                }
            }
        }
        parts
    };
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}

/// Splits `…-00000-of-00003…` into what comes before the number, the number, the count, and what follows.
fn numbered(file: &str) -> Option<[&str; 4]> {
    let (before, after) = file.rsplit_once("-of-")?;
    let prefix = before.trim_end_matches(|c: char| c.is_ascii_digit());
    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    let (number, count) = (before.strip_prefix(prefix)?, after.strip_suffix(rest)?);
    (!number.is_empty()).then_some([prefix, number, count, rest])
}

/// The first shard of `…-00000-of-00003` that is not there. What follows the count may differ from shard to shard:
/// older data sets have a checksum there.
pub(super) fn missing_shard(files: &[String]) -> Option<String> {
    let [prefix, number, count, rest] = numbered(files.last()?)?;
    let (width, all) = (number.len(), count.parse::<usize>().ok()?);
    let of_these = files.iter().filter_map(|file| numbered(file)).filter(|name| name[0] == prefix && name[2] == count);
    let there: BTreeSet<usize> = of_these.filter_map(|[_, number, ..]| number.parse().ok()).collect();
    // Bounded, whatever count the name claims.
    let missing = (0..all.min(1 << 20)).find(|index| !there.contains(index))?;
    let ending = rest.find('.').and_then(|at| rest.get(at..)).unwrap_or_default();
    // The checksum of a shard that is not there is not known.
    let between = if ending == rest { "" } else { "*" };
    Some(format!("{prefix}{missing:0width$}-of-{count}{between}{ending}"))
}

#[cfg(test)]
mod tests;
