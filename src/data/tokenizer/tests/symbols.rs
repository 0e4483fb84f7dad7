//! The user's own symbols.

use super::*;

#[test]
fn symbols_are_one_piece_wherever_they_stand() {
    let tokenizer = with_symbols(false, &SYMBOLS);
    assert_eq!(tokenizer.piece(260), Some("<2de>"));
    for (text, expected) in [
        ("<2de> A man", &["<2de>", "▁A", "▁man"][..]),
        ("A <2de>", &["▁A", "▁", "<2de>"]),
        ("(<2de>)", &["(", "<2de>", ")"]),
        ("A<2de>¦<2de<2de>[ENT]", &["▁A", "<2de>", "¦", "<2de", "<2de>", "[ENT]"]),
        (">>fra<<blue", &[">>fra<<"]),
        (r"a.*(\|$a", &["▁a", r".*(\|$", "a"]),
    ] {
        let pieces: Vec<String> = tokenizer.pieces(text).into_iter().skip_while(|piece| piece == "▁").collect();
        assert_eq!(pieces[..expected.len()], *expected, "{text}");
        holds(&tokenizer, &library(&tokenizer), text);
    }
    // What only looks like one is text.
    assert!(!tokenizer.pieces("<2DE> [ent] <2 de>").iter().any(|piece| SYMBOLS.contains(&piece.as_str())));
    LINES.iter().for_each(|line| holds(&tokenizer, &library(&tokenizer), line));
    // Also after it was read back; and other symbols give another file.
    let read = Tokenizer::from_json(tokenizer.json().to_owned()).unwrap();
    assert_eq!(read.encode("(<2de>) A"), tokenizer.encode("(<2de>) A"));
    assert_ne!(with_symbols(false, &SYMBOLS[..7]).json(), tokenizer.json());
    // Nothing was learned from them, and without any the file is as it was.
    let tagged: Vec<String> = LINES.iter().map(|line| format!("<2de> {line}")).collect();
    let trained = |lines: &[String], symbols: &[&str]| {
        let symbols = symbols.iter().map(|&symbol| symbol.to_owned()).collect();
        Tokenizer::train(&[lines], &TrainOptions { symbols, ..options(800, false) }).unwrap()
    };
    let (with, without) = (trained(&tagged, &["<2de>"]), &*CASED);
    let learned = |tokenizer: &Tokenizer, first: u32| {
        let mut pieces: Vec<_> = (first..).map_while(|id| tokenizer.piece(id)).map(str::to_owned).collect();
        pieces.sort_unstable();
        pieces
    };
    assert_eq!(learned(&with, 261), learned(without, 260));
}

#[test]
fn symbols_survive_lower_case_normalising_and_dropout() {
    let tokenizer = with_symbols(true, &["<2DE>", "…"]);
    assert_eq!(tokenizer.pieces("<2DE> man<2de>")[..2], ["▁", "<2de>"]);
    assert!(tokenizer.pieces("…").contains(&"...".to_owned()));
    assert_eq!((tokenizer.piece(260), tokenizer.piece(261)), (Some("<2de>"), Some("...")));
    holds(&tokenizer, &library(&tokenizer), "<2DE> man<2de> …");
    let all = tokenizer.sample("<2de> standing <2de>", RandomSplit::Dropout(1.0), 7);
    assert_eq!(all.iter().filter(|&&id| id == 260).count(), 2);
    // All merges left out: every other piece is one character.
    assert!(all.iter().all(|&id| id == 260 || tokenizer.piece(id).unwrap().chars().count() == 1));
    assert_eq!(tokenizer.decode(&all), "<2de> standing <2de>");
    assert_eq!(tokenizer.sample("<2de> a", RandomSplit::Dropout(0.0), 7), tokenizer.encode("<2de> a"));
}

#[test]
fn symbols_can_be_added_to_what_was_learnt() {
    let owned = |list: &[&str]| -> Vec<String> { list.iter().map(|&symbol| symbol.to_owned()).collect() };
    for before in [&*CASED, &*SYMBOLIC] {
        let more = before.with_symbols(&owned(&["<2it>"]), &owned(&["<bt>", "‰‰"])).unwrap();
        let size = before.vocab_size() as u32;
        assert_eq!(
            (more.piece(size), more.piece(size + 1), more.piece(size + 2)),
            (Some("<2it>"), Some("<bt>"), Some("‰‰"))
        );
        assert!((0..size).all(|id| more.piece(id) == before.piece(id)));
        assert!(more.language_tags().contains(&"<2it>"));
        for line in LINES {
            assert_eq!(more.encode(line), before.encode(line));
            holds(&more, &library(&more), &format!("<2it> {line}<bt>‰‰"));
        }
        assert_eq!(more.encode("<2it> a<bt>")[1], size);
        let error = more.with_symbols(&[], &owned(&["<2it>"])).unwrap_err();
        assert!(error.to_string().contains("twice"), "{error}");
    }
    // A symbol that is a piece already keeps its id.
    let known = CASED.with_symbols(&[], &owned(&["!"])).unwrap();
    assert_eq!(known.vocab_size(), CASED.vocab_size());
    assert_eq!(known.pieces("?!!")[2..], ["!", "!"]);
    let words = Tokenizer::from_words(vec![("<pad>".into(), 0), ("</s>".into(), 1), ("<unk>".into(), 2)]).unwrap();
    assert!(words.with_symbols(&[], &owned(&["<x>"])).unwrap_err().to_string().contains("that mt has learnt"));
}

#[test]
fn what_can_be_no_symbol_is_refused() {
    let train = |symbol: &str, vocab_size| {
        let options = TrainOptions { symbols: vec![symbol.to_owned()], ..options(vocab_size, false) };
        Tokenizer::train(&[&LINES], &options)
    };
    for (symbol, why) in [("", "empty"), ("<a b>", "space"), ("</s>", "special"), ("ENT", "letter"), ("㍻<", "letter")]
    {
        let error = train(symbol, 800).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(why), "{error}");
    }
    for (tags, symbols, why) in [
        (&["<2DE>", "<2de>"][..], &[][..], "twice"),
        (&["…"], &["..."], "twice"),
        (&["<2"], &["<2de>"], "begins with the tag"),
    ] {
        let [tags, symbols] = [tags, symbols].map(|list| list.iter().map(|&symbol| symbol.to_owned()).collect());
        let options = TrainOptions { tags, symbols, ..options(800, true) };
        let error = Tokenizer::train(&[&LINES], &options).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(why), "{error}");
    }
    assert!(train("<ent>", 261).unwrap_err().to_string().contains("at least 262"));
    assert_eq!(train("<ent>", 262).unwrap().vocab_size(), 262);
    // A file whose vocabulary lacks one of its symbols.
    let file = with_symbols(false, &["<2de>", "<2fr>", "<ent>"]).json().replace("\"<ent>\":", "\"<net>\":");
    assert!(Tokenizer::from_json(file).unwrap().pieces("<ent>").len() > 1, "it is the library's to read");
}

/// Models of other programs, such as COMET's, get neither tags nor the joints of text that is split.
#[test]
fn a_reader_sees_neither_tags_at_the_beginning_nor_joints() {
    for (line, readable) in
        [("<2de> A man", "A man"), ("<2de>  [ENT] A <2de>", "A <2de>"), ("A man", "A man"), ("", "")]
    {
        assert_eq!(SYMBOLIC.readable(line), readable, "{line}");
    }
    let mut text = TextCounts::default();
    text.add("l@@ ow@@ er low");
    let split = Tokenizer::from_pieces(&[(&text, None)], 100).unwrap().remove(0);
    assert_eq!(split.readable("l@@ ow@@ er low"), "lower low");
}
