//! Merges of subword-nmt and fastBPE.

use std::path::PathBuf;

use super::*;

/// Files of this name and content in a folder.
fn files(folder: &tempfile::TempDir, files: &[(&str, &str)]) -> Vec<PathBuf> {
    let write = |(name, text): &(&str, &str)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    files.iter().map(write).collect()
}

fn learnt(lines: &[&str], codes: &Codes, vocab_size: usize) -> Tokenizer {
    let mut text = TextCounts::default();
    lines.iter().for_each(|line| text.add(line));
    Tokenizer::from_pieces(&[(&text, Some(codes))], vocab_size).unwrap().remove(0)
}

/// Against the output of the real programs (tests/golden/codes.py).
#[test]
fn text_is_split_as_subword_nmt_and_fastbpe_split_it() {
    let cases: serde_json::Value = serde_json::from_str(include_str!("../../../../tests/golden/codes.json")).unwrap();
    let texts = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    for case in cases.as_array().unwrap() {
        let name = &case["name"];
        let folder = tempfile::tempdir().unwrap();
        let vocabulary = case["vocabulary"].as_str();
        let paths =
            files(&folder, &[("codes", case["codes"].as_str().unwrap()), ("list", vocabulary.unwrap_or("x 1"))]);
        let list = vocabulary.map(|_| paths[1].as_path());
        let codes = Codes::load(&paths[0], list, case["threshold"].as_u64().unwrap()).unwrap();
        let lines = texts(&case["lines"]);
        let tokenizer = learnt(&lines.iter().map(String::as_str).collect::<Vec<_>>(), &codes, 10_000);
        let again = Tokenizer::from_json(tokenizer.json().to_owned()).unwrap();
        for (line, split) in lines.iter().zip(texts(&case["split"])) {
            // Where it undoes the merge of a word's end, version 0.1 writes a joiner with nothing after it.
            let split = split.replace("@@  ", " ");
            let split = split.strip_suffix("@@ ").unwrap_or(&split);
            assert_eq!(tokenizer.pieces(line).join(" "), split, "{name}: {line:?}");
            assert_eq!(again.pieces(line), tokenizer.pieces(line), "{name}: {line:?}");
            // Twice: the second time words are remembered.
            for _ in 0..2 {
                let ids = again.encode(line);
                assert!(!ids.contains(&again.unk_id()), "{name}: {line:?}");
                let pieces: Vec<&str> = ids.iter().filter_map(|id| again.piece(*id)).collect();
                assert_eq!(pieces, tokenizer.pieces(line), "{name}: {line:?}");
            }
            // But for what looks like a joiner in the text, text comes back, without extra spaces.
            if !line.contains("@@") {
                let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
                assert_eq!(tokenizer.decode(&tokenizer.encode(line)), words.join(" "), "{name}");
                assert_eq!(tokenizer.decode_pieces(split), words.join(" "), "{name}");
            }
        }
    }
}

#[test]
fn codes_have_seeded_dropout_and_a_vocabulary_of_the_most_frequent_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let paths = files(&folder, &[("codes", "#version: 0.2\nl o\nlo w</w>\nt h\nth e</w>\n")]);
    let codes = Codes::load(&paths[0], None, 0).unwrap();
    let tokenizer = learnt(&["the low the", "low lo"], &codes, 8);
    assert_eq!(tokenizer.kind(), Some(TokenizerKind::SubwordNmt));
    let pieces: Vec<_> = (0..8).filter_map(|id| tokenizer.piece(id)).collect();
    assert_eq!(pieces, ["<pad>", "<s>", "</s>", "<unk>", "low", "the", "l@@", "o"]);
    assert_eq!(tokenizer.encode("the lot </s>"), [5, 3, 3, 3, 3, 3, 3]);
    assert_eq!(tokenizer.plain("a reference@@ x"), "a reference@@ x", "text is not joined: it was not split");
    assert!(tokenizer.has_dropout());
    let of = |dropout, key| tokenizer.sample("the low the low", RandomSplit::Dropout(dropout), key);
    assert_eq!(of(0.0, 1), tokenizer.encode("the low the low"));
    assert_eq!(of(1.0, 1), [3, 3, 3, 6, 3, 3, 3, 3, 3, 6, 3, 3], "only `l@@` is a piece among characters");
    let drawn: Vec<_> = (0..50).map(|key| of(0.5, key)).collect();
    assert_eq!(drawn, (0..50).map(|key| of(0.5, key)).collect::<Vec<_>>());
    assert!(drawn.iter().any(|ids| *ids != drawn[0]));
    // The first merge of "the" is dropped with the requested probability.
    let whole = (0..4000).filter(|key| of(0.25, *key).first() == Some(&5)).count();
    // Both of its merges have to be drawn: 0.75², within five standard deviations.
    assert!((whole as f64 - 4000.0 * 0.5625).abs() < 5.0 * (4000.0_f64 * 0.5625 * 0.4375).sqrt(), "{whole}");
}

/// Without a threshold, counts may be missing; what is no list of pieces is refused nevertheless.
#[test]
fn vocabularies_of_other_forms_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let codes = ("codes", "#version: 0.2\nl o\nlo w</w>\n");
    let others = [("tabs", "low\t3\nlo@@\t2\n"), ("page", "<html>\n<head>\n<title>404</title>\n</html>\n")];
    let paths = files(&folder, &[codes, ("plain", "low\nlo@@\n"), others[0], others[1]]);
    Codes::load(&paths[0], Some(&paths[1]), 0).unwrap();
    for (path, words) in [(&paths[2], "with one space between"), (&paths[3], "page in HTML")] {
        let error = Codes::load(&paths[0], Some(path), 0).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_file_of_codes_alone_splits_and_joins() {
    let folder = tempfile::tempdir().unwrap();
    let names = [("codes", "l o\nlo w\nlow </w>\n"), ("fast", "l o 9\nlo w</w> 5\n"), ("text", "the 3461\nand 99\n")];
    let paths = files(&folder, &names);
    for path in &paths[..2] {
        let tokenizer = Tokenizer::load_or_codes(path).unwrap();
        assert_eq!(tokenizer.pieces("low lox"), ["low", "lo@@", "x"]);
        let ids = tokenizer.encode("low lol wow");
        assert_eq!(
            ids.iter().filter_map(|id| tokenizer.piece(*id)).collect::<Vec<_>>(),
            tokenizer.pieces("low lol wow")
        );
        assert!(!ids.contains(&tokenizer.unk_id()));
        let error = Tokenizer::load(path).unwrap_err();
        assert!(error.helps().unwrap().contains("tokenizer.codes"), "{error}");
    }
    assert!(
        Tokenizer::load_or_codes(&paths[2]).unwrap_err().to_string().contains("this is text, but not a tokenizer.json")
    );
}

#[test]
fn invalid_codes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (codes, list, says) in [
        ("", "", &["codes", "no merges"][..]),
        ("#version: 0.2\n", "", &["no merges"]),
        ("the 3461\nof 99\n", "", &["words and their counts", "`tokenizer.vocabulary`"]),
        ("#version: 0.3\na b\n", "", &["codes:1", "version 0.3"]),
        ("#version: 0.2\na b\na b c\n", "", &["codes:3", "two symbols (subword-nmt)"]),
        ("#version: 0.2\na b 3\n", "", &["codes:2", "two symbols (subword-nmt)"]),
        ("a b 3\na b\n", "", &["codes:2", "(fastBPE)"]),
        ("a b\n\nb c\n", "", &["codes:2"]),
        ("#version: 0.2\n\u{120} t\nh e\n", "", &["merges of bytes", "tokenizer.json"]),
        ("a b\n", "a x\n", &["list:1", "a piece and its count"]),
        ("a b\n", "a 1\nb\n", &["list:2", "a piece and its count"]),
        ("a b\n", "a 1\n", &["list", "no piece occurs 2 times", "vocabulary_threshold"]),
    ] {
        let paths = files(&folder, &[("codes", codes), ("list", list)]);
        let list = (!list.is_empty()).then_some(paths[1].as_path());
        let error = Codes::load(&paths[0], list, 2).unwrap_err().to_string();
        assert!(says.iter().all(|part| error.contains(part)), "{codes:?} {list:?}: {error}");
    }
    // A list needs no counts if there is no threshold; lines may end as on Windows.
    let paths = files(&folder, &[("codes", "#version: 0.2\r\na b\r\nab c</w>\r\n"), ("list", "ab@@\r\nc\r\n")]);
    let codes = Codes::load(&paths[0], Some(&paths[1]), 0).unwrap();
    assert_eq!(learnt(&["abc"], &codes, 300).pieces("abc"), ["ab@@", "c"]);
}

/// Merges may be arbitrarily deep, and words arbitrarily long.
#[test]
fn deep_merges_and_long_words_are_split() {
    let folder = tempfile::tempdir().unwrap();
    let deep: String = (1..3000).map(|length| format!("{} a\n", "a".repeat(length))).collect();
    let paths = files(&folder, &[("codes", &format!("#version: 0.2\n{deep}")), ("list", "a@@ 1\na 1\n")]);
    let codes = Codes::load(&paths[0], Some(&paths[1]), 0).unwrap();
    let tokenizer = learnt(&["a aa"], &codes, 300);
    assert_eq!(tokenizer.encode(&"a".repeat(200_000)).len(), 200_000);
}
