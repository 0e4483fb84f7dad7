//! The YAML of models' settings (Marian's, COMET's): one table of single values and lists of them.
//!
//! Built from the library's events, not its tree: its tree builder recurses as deep as the text nests, and aliases can
//! expand a few lines to gigabytes.

use yaml_rust2::Event;
use yaml_rust2::parser::Parser;
use yaml_rust2::scanner::TScalarStyle;

use crate::error::{Error, Result};

/// A value of the table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `~`, or nothing.
    Null,
    /// Text, a number or a boolean, as it is written.
    Scalar(String),
    /// A list of these.
    List(Vec<String>),
    /// A table, or a list of other things.
    Nested,
}

/// Whether a value says yes, as Marian's YAML library reads it.
pub(crate) fn is_yes(text: &str) -> bool {
    ["true", "yes", "on", "y", "1"].iter().any(|yes| text.eq_ignore_ascii_case(yes))
}

/// The keys and values, in their order.
///
/// # Errors
/// It is not YAML, or not a table of values; the error says where.
pub(crate) fn table(text: &str) -> Result<Vec<(String, Value)>> {
    let mut parser = Parser::new_from_str(text);
    let mut reader = Reader::default();
    loop {
        let (event, mark) =
            parser.next_token().map_err(|error| Error::failure(format!("it is not YAML: {error}")).caused_by(error))?;
        match event {
            Event::DocumentEnd | Event::StreamEnd => break,
            event => reader
                .take(event)
                .map_err(|what| Error::failure(format!("line {}, column {}: {what}", mark.line(), mark.col() + 1)))?,
        }
    }
    Ok(reader.entries)
}

#[derive(Default)]
struct Reader {
    entries: Vec<(String, Value)>,
    key: Option<String>,
    /// The list that is being read, at depth 2.
    list: Option<Value>,
    depth: usize,
}

impl Reader {
    fn take(&mut self, event: Event) -> std::result::Result<(), String> {
        match event {
            Event::MappingStart(..) if self.depth == 0 => self.depth = 1,
            Event::MappingStart(..) | Event::SequenceStart(..) => {
                if self.depth == 0 || (self.depth == 1 && self.key.is_none()) {
                    return Err("a table of keys and values was expected".to_owned());
                }
                let is_list = self.depth == 1 && matches!(event, Event::SequenceStart(..));
                self.list = Some(if is_list { Value::List(Vec::new()) } else { Value::Nested });
                self.depth += 1;
            }
            Event::MappingEnd | Event::SequenceEnd => {
                self.depth -= 1;
                if self.depth == 1 {
                    let list = self.list.take().unwrap_or(Value::Nested);
                    self.value(list);
                }
            }
            Event::Scalar(text, style, ..) => match self.depth {
                0 => return Err("a table of keys and values was expected".to_owned()),
                1 if self.key.is_none() => self.key = Some(text),
                1 => {
                    let is_null = style == TScalarStyle::Plain && matches!(text.as_str(), "" | "~" | "null");
                    self.value(if is_null { Value::Null } else { Value::Scalar(text) });
                }
                _ => {
                    if let Some(Value::List(list)) = &mut self.list {
                        list.push(text);
                    }
                }
            },
            Event::Alias(_) => return Err("references (`*name`) are not read".to_owned()),
            _ => {}
        }
        Ok(())
    }

    fn value(&mut self, value: Value) {
        if let Some(key) = self.key.take() {
            self.entries.push((key, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_marian_writes() {
        let text = "dim-vocabs:\n  - 20\n  - 30\nempty:\n  []\ntype: transformer\n\"▁a\": 1\n\"'\": 2\n\"~\": 3\n\
                    none: ~\nnested:\n  a:\n    - 1\n  b: 2\nlists:\n  - [1, 2]\n  - 3\nlast: \"\"\n";
        let scalar = |text: &str| Value::Scalar(text.into());
        let expected = [
            ("dim-vocabs", Value::List(vec!["20".into(), "30".into()])),
            ("empty", Value::List(Vec::new())),
            ("type", scalar("transformer")),
            ("▁a", scalar("1")),
            ("'", scalar("2")),
            ("~", scalar("3")),
            ("none", Value::Null),
            ("nested", Value::Nested),
            ("lists", Value::Nested),
            ("last", scalar("")),
        ];
        assert_eq!(table(text).unwrap(), expected.map(|(key, value)| (key.to_owned(), value)));
        assert_eq!(table("").unwrap(), []);
    }

    #[test]
    fn what_is_no_table_says_where() {
        for text in
            ["- a\n", "text\n", "a: *b\n", "a: &b 1\nc: *b\n", "a: [1\n", "? [1]\n: 2\n", "a: \"x\n", "a: b: c\n"]
        {
            let error = table(text).unwrap_err().to_string();
            assert!(error.contains("line") || error.contains("column"), "{text}: {error}");
        }
        let deep = format!("a: {}", "[".repeat(100_000));
        assert!(table(&deep).is_err());
        let deep: String = (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert_eq!(table(&deep).unwrap(), [("a".to_owned(), Value::Nested)]);
    }
}
