//! Tables as they are found.

use proptest::prelude::*;

use super::*;

/// The pairs of a table, and the error that ends them, if one does.
fn read(table: &[u8], separator: char) -> (Vec<[String; 2]>, Option<Error>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    std::fs::write(&path, table).unwrap();
    let shard = Shard { name: "t.csv".into(), path };
    read_columns(&shard, "en".into(), "de".into(), separator)
}

fn read_columns(shard: &Shard, source: Column, target: Column, separator: char) -> (Vec<[String; 2]>, Option<Error>) {
    let mut block = PairBlock::default();
    let rows = TableRows::open(shard, &Columns { source, target }, separator);
    let read = rows.and_then(|mut rows| {
        while rows.push(&mut block)? {}
        Ok(())
    });
    let pair = |index| <[&str; 2]>::from(block.get(index)).map(str::to_owned);
    ((0..block.len()).map(pair).collect(), read.err())
}

/// The line of the first row that cannot be read.
fn bad_line(table: &[u8]) -> usize {
    read(table, ',').1.unwrap().location().unwrap().line
}

fn pairs(table: &str, separator: char) -> Vec<[String; 2]> {
    let (pairs, error) = read(table.as_bytes(), separator);
    assert!(error.is_none(), "{}", error.unwrap());
    pairs
}

#[test]
fn a_bad_row_is_at_its_line_of_the_file() {
    for end in ["\n", "\r\n"] {
        let line = |rows: &[&str]| bad_line([&["en,de"][..], rows].concat().join(end).as_bytes());
        assert_eq!(line(&["a"]), 2);
        assert_eq!(line(&["a,b", "c,d", "e,f,g", "h,i"]), 4);
        // A line break within a value.
        assert_eq!(line(&["\"a\nb\",c", "d"]), 4);
    }
    assert_eq!(bad_line(b"\"en\",\"de\",\"a\nb\"\na,b,c\nd,e\n"), 4);
    let error = read(b"en,de\na,b\nc,\xE9\n", ',').1.unwrap();
    let location = error.location().unwrap();
    assert_eq!((location.line, location.column), (3, 3));
    let help = error.helps().unwrap();
    assert!(help.starts_with("byte 0xE9 at offset 12; ") && help.ends_with(CORRECT), "{help}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_as_on_the_hub() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blob");
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let shard = Shard { name: "hub:o/set t.csv".into(), path: path.clone() };
        read_columns(&shard, "en".into(), "de".into(), ',').1.unwrap().to_string()
    };
    // A byte order mark is no part of the line, but of the file.
    let error = open(b"\xEF\xBB\xBFen,de,\xE9\n");
    assert!(error.contains("hub:o/set t.csv:1:7\n") && error.contains("offset 9;"), "{error}");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"en,de\nsome text,that is long enough\n").unwrap();
    let error = open(&encoder.finish().unwrap()[..20]);
    assert!(error.contains("hub:o/set t.csv\n") && error.contains("damaged or cut short"), "{error}");
    assert!(!error.contains("blob"), "{error}");
}

#[test]
fn values_are_read_as_they_are_written() {
    let table = "\u{feff}\"id\",en,\"de\"\r\n1,a,b\r\n\n2,\"c, \"\"d\"\"\",e\"f\"\n3,\"\",\"g\r\n\nh\"i\n4,j,\"k\"";
    let expected = [["a", "b"], ["c, \"d\"", "e\"f\""], ["", "g  hi"], ["j", "k"]];
    assert_eq!(pairs(table, ','), expected);
    assert_eq!(pairs("de\ten\n\"a\t\"\"b\n\t\n", '\t'), [["\"\"b", "\"a"], ["", ""]]);
    assert_eq!(pairs("de,en", ','), [[""; 2]; 0]);
}

#[test]
fn quotes_around_values_that_tabs_separate() {
    let quoted = [["Er sagte \"ja\".", "a"], ["\"", "b"], ["c \"d\"", "e"]];
    for table in [
        // Only what needs it.
        "en\tde\n\"Er sagte \"\"ja\"\".\"\ta\n\"\"\"\"\tb\n\"c \"\"d\"\"\"\te\n",
        // Everything.
        "\"en\"\t\"de\"\n\"Er sagte \"\"ja\"\".\"\t\"a\"\n\"\"\"\"\t\"b\"\n\"c \"\"d\"\"\"\t\"e\"\n",
        // Everything but the names.
        "en\tde\n\"Er sagte \"\"ja\"\".\"\t\"a\"\n\"\"\"\"\t\"b\"\n\"c \"\"d\"\"\"\t\"e\"\n",
    ] {
        assert_eq!(pairs(table, '\t'), quoted, "{table}");
    }
    assert_eq!(pairs("en\tde\n\"a\"\t\"b c\"\n\"d\"\t\n", '\t'), [["a", "b c"], ["d", ""]]);
    assert_eq!(pairs("\"en\"\t\"de\"\n\"a\nb\tc\"\t\"d\"\n", '\t'), [["a b\tc", "d"]]);
    // Only values with a tab, the end of a line, or a quote in them.
    let table = "en\tde\nx\ty\n\"a\tb\"\tc\nd\t\"e\nf \"\"g\"\"\n\nh\"\n\"i\"\"\"\tj\nk\tl\n";
    let expected = [["x", "y"], ["a\tb", "c"], ["d", "e f \"g\"  h"], ["i\"", "j"], ["k", "l"]];
    assert_eq!(pairs(table, '\t'), expected);
    for (table, line) in [
        ("en\tde\nx\ty\n\"a\nb\tc\nd \"e\" f\tg\n", 3),
        ("en\tde\nx\ty\n\"a\nb\tc\n", 3),
        ("en\tde\nx\ty\n\"a\tb\tc\"\n", 3),
    ] {
        let (found, error) = read(table.as_bytes(), '\t');
        assert_eq!((found.len(), error.unwrap().location().unwrap().line), (1, line), "{table}");
    }
    // Text that nobody has quoted.
    let plain = "en\tde\n\"Yes\", he said.\t\"Ja.\"\n\"No.\"\t\"Nein.\"\n\"\"a\"\"\t\"\"\n\"b\tc\"\n";
    let expected = [["\"Yes\", he said.", "\"Ja.\""], ["\"No.\"", "\"Nein.\""], ["\"\"a\"\"", "\"\""], ["\"b", "c\""]];
    assert_eq!(pairs(plain, '\t'), expected);
}

#[test]
fn separators_that_the_name_does_not_tell() {
    for table in ["en;de\na, b;c\n", "en\tde\na, b\tc\n", "en|de\na, b|c\n", "id;en;de\n1;a, b;\"c\"\n"] {
        for separator in [',', '\t'] {
            assert_eq!(pairs(table, separator), [["a, b", "c"]], "{table}");
        }
    }
    assert_eq!(pairs("en,de\n\"a; b\",c\n", '\t'), [["a; b", "c"]]);
}

#[test]
fn a_table_without_names_has_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tsv");
    let shard = Shard { name: "hub:o/set t.tsv".into(), path: path.clone() };
    let open = |table: &str, source: Column, target: Column, separator: char| {
        std::fs::write(&path, table).unwrap();
        let (pairs, error) = read_columns(&shard, source, target, separator);
        (pairs, error.map(|error| error.to_string()).unwrap_or_default())
    };
    let number = Column::Number;
    let (pairs, error) = open("Guten Tag\tHello\nJa\tYes\n", number(2), number(1), '\t');
    assert_eq!(
        (pairs, error.as_str()),
        (vec![["Hello", "Guten Tag"], ["Yes", "Ja"]].into_iter().map(|pair| pair.map(str::to_owned)).collect(), "")
    );
    let (pairs, _) = open("1,\"a, b\",c\n2,d,e\n", number(2), number(3), ',');
    assert_eq!(pairs, [["a, b", "c"], ["d", "e"]]);
    let (pairs, _) = open("a, b;c\nd;e\n", number(1), number(2), ';');
    assert_eq!(pairs, [["a, b", "c"], ["d", "e"]]);
    // With a name, the first line is of names.
    let (pairs, _) = open("en\tde\na\tb\n", "en".into(), number(2), '\t');
    assert_eq!(pairs, [["a", "b"]]);
    let (_, error) = open("Guten Tag\tHello\n", "de".into(), "en".into(), '\t');
    let says = ["there are no columns `de` and `en`", "name two of Guten Tag, Hello", "count its columns, source = 1"];
    assert!(says.iter().all(|says| error.contains(says)), "{error}");
    let (_, error) = open("a\tb\n", number(1), number(3), '\t');
    assert!(error.contains("there are no columns 1 and 3, but 2\n") && error.contains("t.tsv:1\n"), "{error}");
    let (_, error) = open("'en','de'\n'a','b'\n", "en".into(), "de".into(), ',');
    assert!(error.contains("values are quoted with '"), "{error}");
}

#[test]
fn a_quote_that_a_backslash_escapes_is_refused() {
    let (pairs, error) = read(b"en,de\na\\,\"b\\\"\n\"c\",\"d\\\",\n\"Er sagte \\\"ja\\\".\",e\n", ',');
    assert_eq!(pairs, [["a\\", "b\\"]]);
    let error = error.unwrap();
    assert_eq!(error.location().unwrap().line, 3);
    let (_, error) = read(b"en,de\n\"Er sagte \\\"ja\\\".\",e\n", ',');
    let error = error.unwrap().to_string();
    assert!(error.contains("escaped by a backslash") && error.contains("t.csv:2\n"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_are_read_as_by_the_csv_crate(rows in "([a,\"]|\"\"|\n|\r\n|\"a\",){0,24}") {
        let table = format!("en,de\n{rows}");
        let (ours, error) = read(table.as_bytes(), ',');
        // That one takes the end of the file for the end of the quote.
        prop_assume!(!error.as_ref().is_some_and(|error| error.what().starts_with("a quote opens")));
        let mut theirs = Vec::new();
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        let is_whole = reader.records().try_for_each(|record| -> csv::Result<()> {
            let record = record?;
            theirs.push([&record[0], &record[1]].map(|value| in_one_line(value).into_owned()));
            Ok(())
        });
        prop_assert_eq!((ours, error.is_none()), (theirs, is_whole.is_ok()), "{:?}", table);
    }
}

#[test]
fn a_carriage_return_within_a_line_ends_no_row() {
    for (separator, table) in [('\t', "en\tde\na\rb\tc\r\nd\te\rf\tg\n"), (',', "en,de\na\rb,c\r\nd,e\rf,g\n")] {
        let (pairs, error) = read(table.as_bytes(), separator);
        assert_eq!((&pairs[..], error.unwrap().location().unwrap().line), (&[["a\rb", "c"].map(str::to_owned)][..], 3));
    }
}

#[test]
fn a_quote_that_is_never_closed_is_refused_where_it_opens() {
    let table = "en,de\na,b\n\"c\nd\",\"e\nf,g\nh,i\n";
    for end in ["", "j,k", "\n"] {
        let (pairs, error) = read(format!("{table}{end}").as_bytes(), ',');
        let error = error.unwrap().to_string();
        assert_eq!(pairs, [["a", "b"]]);
        assert!(
            error.starts_with("a quote opens here and is not closed to the end of the file\n  --> t.csv:4\n"),
            "{error}"
        );
    }
    // Nor is more read than a row may hold.
    let half = vec![b'x'; limits::LINE_BYTES as usize / 2];
    let long = [b"en,de\na,\"".to_vec(), half.clone(), b"\n".to_vec(), half, b"\n\",b\n".to_vec()];
    let error = read(&long.concat(), ',').1.unwrap().to_string();
    assert!(error.starts_with("a quote opens here and is not closed within 64 MiB\n  --> t.csv:2\n"), "{error}");
}
