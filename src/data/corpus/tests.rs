use super::*;
use crate::data::block::BLOCK_PAIRS;
use crate::data::text::file::Odd;

fn open(source: &str, target: &str, weight: f64) -> (tempfile::TempDir, Result<Corpus>) {
    let directory = tempfile::tempdir().unwrap();
    let paths = [("t.en", source), ("t.de", target)].map(|(name, text)| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let corpus = Corpus::open(&paths[0], &paths[1], weight);
    (directory, corpus)
}

fn pairs(corpus: &Corpus) -> Vec<(String, String)> {
    read_all(corpus).unwrap()
}

fn pair(source: &str, target: &str) -> (String, String) {
    (source.to_owned(), target.to_owned())
}

#[test]
fn pairs_are_aligned_and_know_their_origin() {
    let (_directory, corpus) = open("\u{FEFF}one\ntwo\u{2028}still two\n", "eins\r\nzwei", 2.0);
    let corpus = corpus.unwrap();
    assert_eq!((corpus.len(), corpus.weight()), (2, 2.0));
    assert_eq!(pairs(&corpus), [pair("one", "eins"), pair("two\u{2028}still two", "zwei")]);
    let (path, line) = corpus.origin(1, Side::Target);
    assert!(path.ends_with("t.de"));
    assert_eq!(line, 2);
    assert_eq!((corpus.source().carriage_returns, corpus.target().carriage_returns), (0, 1));
}

#[test]
fn a_tag_is_put_in_front_of_lines_that_are_not_blank() {
    let (_directory, corpus) = open("one\n \ntwo\n", "eins\n\nzwei\n", 2.0);
    let corpus = corpus.unwrap();
    let (digest, bytes) = (corpus.digest(), corpus.text_bytes());
    let of = |tag: &str| Tagged { corpus: Box::new(corpus.clone()), tags: [Some(tag.to_owned()), None] };
    let german = of("<2de>");
    assert_eq!(read_all(&german).unwrap(), [pair("<2de> one", "eins"), pair(" ", ""), pair("<2de> two", "zwei")]);
    assert_eq!((german.len(), german.weight(), german.origin(2, Side::Source).1), (3, 2.0, 3));
    assert!(german.text_bytes() > bytes);
    // Text with another tag is other text.
    assert!(german.digest() != digest && german.digest() != of("<2fr>").digest());
}

#[test]
fn weights_stay_with_their_pairs() {
    let (directory, corpus) = open("one\ntwo\nthree\n", "eins\nzwei\ndrei\n", 1.0);
    let path = directory.path().join("t.weights");
    std::fs::write(&path, "0.5\n0\n2\n").unwrap();
    let plain = corpus.unwrap();
    let weighted = plain.clone().with_weights(&path).unwrap();
    assert!(weighted.is_weighted() && !plain.is_weighted() && weighted.digest() != plain.digest());
    let weights = |corpus: &dyn PairSource| -> Vec<f32> {
        let blocks = corpus.blocks().unwrap().map(|block| block.unwrap());
        blocks.flat_map(|block| (0..block.len()).map(|i| block.weight(i)).collect::<Vec<_>>()).collect()
    };
    assert_eq!(weights(&plain), [1.0; 3]);
    assert_eq!(weights(&weighted), [0.5, 0.0, 2.0]);
    let tagged = Tagged { corpus: Box::new(weighted.clone()), tags: [Some("<2de>".to_owned()), None] };
    assert!(tagged.is_weighted());
    assert_eq!(weights(&tagged), [0.5, 0.0, 2.0]);
    std::fs::write(&path, "0.5\n0\n2.25\n").unwrap();
    let error = read_all(&weighted).unwrap_err().to_string();
    assert!(error.contains("t.weights changed while they were read"), "{error}");
}

/// Even if it has as many lines, and whether it was replaced or rewritten.
#[test]
fn text_that_changes_between_two_readings_is_refused() {
    for side in ["t.en", "t.de"] {
        let (directory, corpus) = open("one\ntwo\n", "eins\nzwei\n", 1.0);
        let corpus = corpus.unwrap();
        assert_eq!(pairs(&corpus).len(), 2);
        std::fs::write(directory.path().join("new"), "zwei\neins, aber laenger\n").unwrap();
        std::fs::rename(directory.path().join("new"), directory.path().join(side)).unwrap();
        let error = read_all(&corpus).unwrap_err().to_string();
        assert!(error.contains("changed while they were read"), "{error}");
    }
}

#[test]
fn columns_are_sides() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.tsv");
    let open = |text: &[u8], columns| {
        std::fs::write(&path, text).unwrap();
        Corpus::open_columns(&path, columns, 1.0)
    };
    let text = "\u{FEFF}one\t0.7\teins\r\n\t\t\n\"two\t0.9\tzwei\u{2028}\tmore";
    let corpus = open(text.as_bytes(), [1, 3]).unwrap();
    assert_eq!(pairs(&corpus), [pair("one", "eins"), pair("", ""), pair("\"two", "zwei\u{2028}")]);
    assert_eq!((corpus.source().carriage_returns, corpus.target().carriage_returns), (0, 1));
    assert_eq!(corpus.source().uneven, Some(Odd { lines: 1, first: 3 }));
    assert_eq!(corpus.origin(2, Side::Target), (path.clone(), 3));
    // The text identifies it, whatever its path.
    let (_other, files) = super::tests::open("\u{FEFF}one\n\n\"two\n", "eins\r\n\nzwei\u{2028}\n", 1.0);
    assert_eq!(pairs(&files.unwrap()), pairs(&corpus));
    assert_eq!(pairs(&open(text.as_bytes(), [3, 1]).unwrap())[0], pair("eins", "one"));

    // A blank line is an empty pair, and has no number of columns that others could differ from.
    let corpus = open("\u{FEFF}\na\tb\r\n\r\n \u{3000} \nc\td\n\n".as_bytes(), [2, 1]).unwrap();
    let empty = || pair("", "");
    assert_eq!(pairs(&corpus), [empty(), pair("b", "a"), empty(), empty(), pair("d", "c"), empty()]);
    assert_eq!((corpus.source().uneven, corpus.origin(4, Side::Source).1), (None, 5));

    let fails = |text: &[u8], columns| open(text, columns).unwrap_err().to_string();
    let error = fails(b"a\tb\tc\na b\tc\n", [1, 3]);
    assert!(
        error.contains("the line has 2 columns, but the text is in column 3") && error.contains("t.tsv:2"),
        "{error}"
    );
    let error = fails(b"a\tb\nno tabs\n", [1, 2]);
    assert!(error.contains("the line has one column") && error.contains("t.tsv:2"), "{error}");
    let error = fails(b"a\tb\ncaf\xE9\tb\n", [1, 2]);
    assert!(
        error.contains("t.tsv:2:4\n  help: byte 0xE9 at offset 7;") && error.matches("0xE9").count() == 1,
        "{error}"
    );
    assert!(fails(b"", [1, 2]).contains("the file is empty"));
}

/// Carriage returns that end lines are refused; others give a notice.
#[test]
fn carriage_returns_in_place_of_newlines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.tsv");
    let table = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Corpus::open_columns(&path, [1, 2], 1.0).map_err(|error| error.to_string())
    };
    for text in ["a\tb\rc\td\re\tf\r", "a\tb\nc\td\re\tf\rg\th\r", "a\tb\rc\td\ne\tf\n"] {
        let error = table(text).unwrap_err();
        assert!(error.starts_with("carriage returns ") && error.contains("`tr '\\r' '\\n'"), "{error}");
    }
    let corpus = table("a\tb\nc\rd\te\nf\tg\r\r\n").unwrap();
    assert_eq!(pairs(&corpus), [pair("a", "b"), pair("c\rd", "e"), pair("f", "g\r")]);
    let odd = |first| Some(Odd { lines: 1, first });
    assert_eq!((corpus.source().returns, corpus.target().returns), (odd(2), odd(3)));
    // Of two files.
    let error = open("a\rb\rc\r", "A\nB\nC\n", 1.0).1.unwrap_err().to_string();
    assert!(error.contains("t.en\n") && error.contains("`tr '\\r' '\\n'"), "{error}");
    let error = open("a\nb\rc\n", "A\nB\nC\n", 1.0).1.unwrap_err().to_string();
    assert!(error.contains("t.en: 1 line has carriage returns within (line 2 is the first)"), "{error}");
    let corpus = open("a\nb\rc\n", "A\nB\n", 1.0).1.unwrap();
    assert_eq!((corpus.source().returns, corpus.target().returns), (odd(2), None));
}

#[test]
fn lines_are_those_of_a_file_read_whole() {
    for text in ["a\n\nb\n", "a\rb\r\n\r\r\nc", "\u{FEFF}\n\u{FEFF}x", "x\u{2028}y\u{85}\u{0C}z", "\n", "ü\nß🙂\r"]
    {
        let (directory, corpus) = open(text, text, 1.0);
        let expected = super::super::text::lines::read_lines(directory.path().join("t.en")).unwrap();
        let corpus = corpus.unwrap();
        let read: Vec<String> = pairs(&corpus).into_iter().map(|(source, _)| source).collect();
        assert_eq!(read, expected.iter().collect::<Vec<_>>(), "{text:?}");
        assert_eq!(corpus.source().carriage_returns, expected.carriage_returns, "{text:?}");
    }
}

/// Long enough for several blocks and chunks.
#[test]
fn blocks_hold_every_pair_once_in_order() {
    let n = 2 * BLOCK_PAIRS + 77;
    let side = |word: &str| (0..n).map(|i| format!("{word} {i} {}\n", "é".repeat(i % 90))).collect::<String>();
    let (_directory, corpus) = open(&side("one"), &side("eins"), 1.0);
    let corpus = corpus.unwrap();
    assert!(corpus.text_bytes() > 4 << 20);
    assert_eq!(corpus.blocks().unwrap().count(), 3);
    for (i, (source, target)) in pairs(&corpus).into_iter().enumerate() {
        let tail = format!("{i} {}", "é".repeat(i % 90));
        assert_eq!((source, target), pair(&format!("one {tail}"), &format!("eins {tail}")));
    }
}

#[test]
fn invalid_utf8_is_located_far_into_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.en");
    let mut text = "über alle Maßen\n".repeat(200_000).into_bytes();
    let offset = text.len() + 5;
    text.extend(b"caf\xC3\xA9\xE9 au lait\n");
    std::fs::write(&path, &text).unwrap();
    let error = TextFile::scan(&path).unwrap_err().to_string();
    assert!(error.contains(&format!("t.en:200001:5\n  help: byte 0xE9 at offset {offset};")), "{error}");
    assert!(error.contains("iconv -c -f UTF-8 -t UTF-8"), "{error}");
}

#[test]
fn a_file_that_changes_is_noticed() {
    for text in ["one\n", "one\ntwo\nthree\n", "one\ntw\u{0}"] {
        let (directory, corpus) = open("one\ntwo\n", "eins\nzwei\n", 1.0);
        let mut text = text.as_bytes().to_vec();
        text.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 0xFF);
        std::fs::write(directory.path().join("t.en"), text).unwrap();
        let error = read_all(&corpus.unwrap()).unwrap_err().to_string();
        assert!(error.contains("changed while they were read"), "{error}");
    }
}

#[test]
fn equal_text_has_an_equal_digest() {
    let digest = |source, target| open(source, target, 1.0).1.unwrap().digest();
    assert_eq!(digest("a\nb\n", "c\nd\n"), digest("a\nb\n", "c\nd\n"));
    assert_ne!(digest("a\nb\n", "c\nd\n"), digest("a\nb\n", "c\ne\n"));
    assert_ne!(digest("a\nb\n", "c\nd\n"), digest("c\nd\n", "a\nb\n"));
}

#[test]
fn unequal_counts_name_both_files_and_counts() {
    let error = open("one\ntwo\nthree\n", "eins\n", 1.0).1.unwrap_err().to_string();
    assert!(error.contains("t.en has 3 lines, but "), "{error}");
    assert!(error.contains("t.de has 1 line\n  help: "), "{error}");
}

#[test]
fn empty_and_missing_files_are_reported_together() {
    let error = open("", "\u{FEFF}", 1.0).1.unwrap_err();
    assert_eq!(error.all().count(), 2);
    let text = error.to_string();
    assert!(text.contains("t.en") && text.contains("t.de") && text.contains("the file is empty"), "{text}");
    assert_eq!(Corpus::open("/absent/a", "/absent/b", 1.0).unwrap_err().all().count(), 2);
    // An empty file beside a full one: "empty" is clearer than the counts.
    assert_eq!(open("one\n", "", 1.0).1.unwrap_err().what(), "the file is empty");
}

#[test]
fn impossible_weights_are_refused() {
    for weight in [-1.0, 0.0, f64::NAN, f64::INFINITY] {
        assert_eq!(open("a\n", "b\n", weight).1.unwrap_err().exit_code(), 2);
    }
}

#[test]
fn a_pipe_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let written = |text: &'static str, open: &dyn Fn() -> Corpus| {
        let to = pipe.clone();
        let writer = std::thread::spawn(move || std::fs::write(to, text));
        let pairs = read_all(&open()).unwrap();
        writer.join().unwrap().unwrap();
        pairs
    };
    let columns = written("a\tb\nc\td\n", &|| Corpus::open_columns(&pipe, [2, 1], 1.0).unwrap());
    assert_eq!(columns, [("b", "a"), ("d", "c")].map(|(s, t)| (s.to_owned(), t.to_owned())));
    let both = written("a\nb\n", &|| Corpus::open(&pipe, &pipe, 1.0).unwrap());
    assert_eq!(both, [("a", "a"), ("b", "b")].map(|(s, t)| (s.to_owned(), t.to_owned())));
}

#[test]
fn blank_lines_get_no_tag() {
    assert_eq!(tagged(Some("<2de>"), "a\u{200B}"), "<2de> a\u{200B}");
    for blank in ["", "  ", "\u{200B}\u{FEFF} \u{AD}"] {
        assert_eq!(tagged(Some("<2de>"), blank), blank);
    }
}
