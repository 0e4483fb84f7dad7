//! The header of a data set's page, in which its author lists the files of each configuration and split.

use yaml_rust2::parser::Parser;
use yaml_rust2::{Event, Yaml, YamlLoader};

use crate::foreign::guarded;
use crate::limits;

/// The page of a data set.
pub(super) const FILE: &str = "README.md";

/// One configuration, as the header states it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CardConfig {
    /// Its name.
    pub name: String,
    /// Whether it is used if none is named.
    pub is_default: bool,
    /// The folder that its files are in.
    pub folder: String,
    /// Patterns of the files of each split.
    pub splits: Vec<(String, Vec<String>)>,
}

/// The configurations that the header of the page states; empty if it states none or cannot be read.
pub(super) fn configs(page: &str) -> Vec<CardConfig> {
    let Some(text) = block(page) else { return Vec::new() };
    // Anchors are refused, so that a small header cannot expand into a huge one.
    if text.len() > limits::CARD_BYTES || text.contains('&') {
        return Vec::new();
    }
    let load = || if is_shallow(&text) { YamlLoader::load_from_str(&text).unwrap_or_default() } else { Vec::new() };
    let documents = guarded(load).unwrap_or_default();
    let Some(list) = documents.first().and_then(|document| document["configs"].as_vec()) else { return Vec::new() };
    list.iter().filter_map(config).collect()
}

/// Whether this is YAML that does not nest deeply. Reading the library's events does not recurse.
fn is_shallow(text: &str) -> bool {
    let mut parser = Parser::new_from_str(text);
    let mut depth = 0;
    while let Ok((event, _)) = parser.next_token() {
        match event {
            Event::StreamEnd => return true,
            Event::SequenceStart(..) | Event::MappingStart(..) if depth == limits::CARD_DEPTH => return false,
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth -= 1,
            _ => {}
        }
    }
    false
}

/// The `configs:` section of the header.
fn block(page: &str) -> Option<String> {
    let page = page.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let header = page.strip_prefix("---\n")?.split("\n---").next()?;
    let mut lines = header.lines().skip_while(|line| !line.starts_with("configs:"));
    let first = lines.next()?;
    let belongs = |line: &&str| line.is_empty() || line.starts_with([' ', '-', '#', '\t', ']', '}']);
    Some(std::iter::once(first).chain(lines.take_while(belongs)).fold(String::new(), |text, line| text + line + "\n"))
}

fn config(yaml: &Yaml) -> Option<CardConfig> {
    let name = text(&yaml["config_name"])?;
    let folder = yaml["data_dir"].as_str().unwrap_or_default().trim_matches('/').to_owned();
    let files = &yaml["data_files"];
    let splits = match files.as_vec() {
        // A list of tables, one a split.
        Some(list) if list.iter().any(|entry| entry.as_hash().is_some()) => {
            list.iter().filter_map(|entry| Some((text(&entry["split"])?, patterns(&entry["path"])))).collect()
        }
        // Bare patterns belong to the training set.
        _ => match patterns(files) {
            patterns if patterns.is_empty() => Vec::new(),
            patterns => vec![("train".to_owned(), patterns)],
        },
    };
    Some(CardConfig { name, is_default: yaml["default"].as_bool().unwrap_or(false), folder, splits })
}

/// A name, which YAML may take for a number (`2016`).
fn text(yaml: &Yaml) -> Option<String> {
    match yaml {
        Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
        Yaml::Integer(number) => Some(number.to_string()),
        Yaml::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

fn patterns(yaml: &Yaml) -> Vec<String> {
    match yaml.as_vec() {
        Some(list) => list.iter().filter_map(text).collect(),
        None => text(yaml).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_that_headers_have() {
        let page = "---\nlanguage:\n- de\n- en\nconfigs:\n- config_name: de-en\n  data_files:\n  - split: train\n    \
                    path: de-en/train-*\n  - split: test\n    path:\n    - a.parquet\n    - b.parquet\n\
                    - config_name: 2016\n  default: true\n  data_dir: old/\n  data_files: '*.csv'\n\
                    - config_name: plain\n  data_dir: x\n\
                    pretty_name: W\n---\n# Text\nconfigs:\n- config_name: no\n";
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let split = |name: &str, patterns: &[&str]| (name.to_owned(), of(patterns));
        assert_eq!(
            configs(page),
            [
                CardConfig {
                    name: "de-en".into(),
                    splits: vec![split("train", &["de-en/train-*"]), split("test", &["a.parquet", "b.parquet"])],
                    ..CardConfig::default()
                },
                CardConfig {
                    name: "2016".into(),
                    is_default: true,
                    folder: "old".into(),
                    splits: vec![split("train", &["*.csv"])]
                },
                CardConfig { name: "plain".into(), folder: "x".into(), ..CardConfig::default() },
            ]
        );
    }

    #[test]
    fn no_header_states_nothing() {
        for page in ["", "# Title", "---\n", "---\nlicense: mit\n---\n", "---\nconfigs: {\n---\n", "configs:\n- a\n"] {
            assert_eq!(configs(page), [], "{page:?}");
        }
        // Anchors that would expand a thousandfold.
        let bomb = "---\nconfigs:\n- &a [x, x]\n- &b [*a, *a]\n- config_name: *b\n---\n";
        assert_eq!(configs(bomb), []);
        // Deeper than the stack.
        for nested in ["- ", "? ", "- ? ", "[", "{a: "] {
            assert_eq!(
                configs(&format!("---\nconfigs:\n{}a\n---\n", nested.repeat(limits::CARD_BYTES / 5))),
                [],
                "{nested}"
            );
        }
    }
}
