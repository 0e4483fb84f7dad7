use super::super::text::raw::windows_of_pairs;
use super::*;

/// The files of a split, which lie in a folder.
fn files(folder: &tempfile::TempDir, format: Format, contents: &[(&str, &str)]) -> HubFiles {
    let shard = |(name, text): &(&str, &str)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Shard { name: name.into(), path }
    };
    let columns = Columns { source: "en".into(), target: "de".into() };
    HubFiles { name: "split".into(), format, shards: contents.iter().map(shard).collect(), columns }
}

/// Also for checked text.
#[test]
fn a_row_is_at_the_line_where_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    let table = "en,de\n\n\na,b\nc,d\n\n\"e\n\nf\",\"g\nh\"\ni,j\n\nk,l\n";
    let at = |name: &str, lines: &[usize]| -> Vec<_> { lines.iter().map(|line| (name.to_owned(), *line)).collect() };
    for (format, contents, expected) in [
        (
            Format::Csv,
            &[("1.csv", table), ("2.csv", "de,en\na,b\nc,d"), ("3.csv", table)][..],
            [at("1.csv", &[4, 5, 7, 11, 13]), at("2.csv", &[2, 3]), at("3.csv", &[4, 5, 7, 11, 13])].concat(),
        ),
        (Format::Tsv, &[("1.tsv", "en\tde\na\tb\n\nc\td\n")], at("1.tsv", &[2, 4])),
        (
            Format::Json,
            &[("1.jsonl", "{\"en\": \"a\", \"de\": \"b\"}\n\n"), ("2.jsonl", "\n{\"en\": \"c\", \"de\": \"d\"}\n")],
            [at("1.jsonl", &[1, 2]), at("2.jsonl", &[1, 2])].concat(),
        ),
        (Format::Text, &[("t.en", "a\nc\n"), ("t.de", "b\nd\n")], at("t.de", &[1, 2])),
    ] {
        let corpus = files(&folder, format, contents).open(1.0).unwrap();
        let mut windows = Vec::new();
        windows_of_pairs(&corpus, |[_, target]| windows.push(target)).unwrap();
        let [lines] = &windows[..] else { panic!("{} windows", windows.len()) };
        assert_eq!((corpus.len(), lines.len()), (expected.len(), expected.len()));
        for (index, (name, line)) in expected.iter().enumerate() {
            assert_eq!(corpus.origin(index, Side::Target), (name.into(), *line), "{index}");
            assert_eq!(lines.location(index), (name.as_ref(), *line), "{index}");
        }
    }
}
