//! Small models whose results can be worked out by hand; `tests/interop/tokenization.py` holds large ones to the
//! program.

use prost::Message;

use super::proto::{ModelKind, ModelProto, NormalizerProto, PieceKind, PieceProto, TrainerProto};
use super::*;
use crate::data::tokenizer::Tokenizer;

/// A model with `<unk>`, `<s>`, `</s>` and these pieces.
fn model(kind: ModelKind, pieces: &[(&str, f32, PieceKind)]) -> ModelProto {
    let special = [("<unk>", PieceKind::Unknown), ("<s>", PieceKind::Control), ("</s>", PieceKind::Control)];
    let special = special.iter().map(|&(piece, kind)| (piece, 0.0, kind));
    let piece = |(piece, score, kind): (&str, f32, PieceKind)| PieceProto {
        piece: piece.into(),
        score,
        kind: Some(kind as i32),
    };
    ModelProto {
        pieces: special.chain(pieces.iter().copied()).map(piece).collect(),
        trainer: Some(TrainerProto { model_kind: Some(kind as i32), ..TrainerProto::default() }),
        normalizer: Some(NormalizerProto::default()),
        denormalizer: None,
    }
}

fn tokenizer(model: &ModelProto) -> Tokenizer {
    Tokenizer::from_bytes(model.encode_to_vec()).unwrap()
}

fn refused(model: &ModelProto) -> String {
    Tokenizer::from_bytes(model.encode_to_vec()).unwrap_err().to_string()
}

use PieceKind::{Normal, Unused, UserDefined};

const UNIGRAM: [(&str, f32, PieceKind); 8] = [
    ("▁", -2.0, Normal),
    ("a", -3.0, Normal),
    ("b", -3.0, Normal),
    ("ab", -4.0, Normal),
    ("▁ab", -5.5, Normal),
    ("▁abc", -1.0, Unused),
    ("<x>", 0.0, UserDefined),
    ("d", -9.0, Normal),
];

#[test]
fn the_likeliest_segmentation_is_found() {
    let tokenizer = tokenizer(&model(ModelKind::Unigram, &UNIGRAM));
    for (line, pieces) in [
        ("ab", &["▁ab"][..]),
        ("aab b", &["▁", "a", "ab", "▁", "b"]),
        // An unused piece is never chosen; adjacent unknown text is one piece.
        ("abc", &["▁ab", "c"]),
        ("a語語<x>a", &["▁", "a", "語語", "<x>", "a"]),
        ("  a   b ", &["▁", "a", "▁", "b"]),
        ("<s>", &["▁", "<s>"]),
        ("", &[]),
        ("   ", &[]),
    ] {
        assert_eq!(tokenizer.pieces(line), pieces, "{line}");
    }
    assert_eq!(tokenizer.encode("abc"), [7, 0]);
    assert_eq!(tokenizer.decode(&[1, 7, 0, 3, 4, 2, 99]), "ab \u{2047}  a");
    assert_eq!(tokenizer.decode_pieces("▁ab c ▁ a </s>"), "abc a");
    assert!(!tokenizer.has_dropout());
}

#[test]
fn merges_go_by_score_over_the_whole_line() {
    let pieces = [
        ("▁", -9.0, Normal),
        ("a", -9.0, Normal),
        ("b", -9.0, Normal),
        ("ab", -1.0, Normal),
        ("ba", 0.0, Normal),
        ("▁a", -0.0, Normal),
        ("aba", -2.0, Unused),
        ("b▁", -3.0, Normal),
    ];
    let tokenizer = tokenizer(&model(ModelKind::Bpe, &pieces));
    for (line, pieces) in [
        // `▁a` and `ba` score alike, 0 and -0: the leftmost is first.
        ("aba", &["▁a", "ba"][..]),
        // Merges go over spaces, as SentencePiece's do where training allowed it.
        ("bb ab", &["▁", "b", "b", "▁a", "b"]),
        // Unused pieces are split into the pieces they were merged from.
        ("baab", &["▁", "ba", "ab"]),
        ("babab", &["▁", "ba", "ba", "b"]),
        ("acca", &["▁a", "cc", "a"]),
    ] {
        assert_eq!(tokenizer.pieces(line), pieces, "{line}");
    }
    let mut model = model(ModelKind::Bpe, &pieces[..4]);
    model.pieces.push(PieceProto { piece: "▁ab".into(), score: 0.0, kind: Some(Unused as i32) });
    assert_eq!(self::tokenizer(&model).pieces("ab"), ["▁", "ab"]);
}

#[test]
fn unknown_text_can_be_written_in_bytes() {
    let mut model = model(ModelKind::Unigram, &UNIGRAM[..3]);
    let byte = |byte| PieceProto {
        piece: super::super::vocabulary::byte_piece(byte),
        score: 0.0,
        kind: Some(PieceKind::Byte as i32),
    };
    model.pieces.extend((0..=u8::MAX).map(byte));
    model.trainer.as_mut().unwrap().byte_fallback = true;
    let tokenizer = tokenizer(&model);
    assert_eq!(tokenizer.pieces("aé"), ["▁", "a", "<0xC3>", "<0xA9>"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("aé語")), "aé語");
    // Each byte that is not valid UTF-8 becomes one character.
    assert_eq!(tokenizer.decode_pieces("▁ a <0xE8> <0xAA> b <0xC3> <0xA9>"), "a\u{FFFD}\u{FFFD}bé");
    model.pieces.pop();
    assert!(refused(&model).contains("byte piece <0xFF> is missing"));
}

#[test]
fn white_space_follows_the_model() {
    let mut model = model(ModelKind::Unigram, &UNIGRAM[..3]);
    let spec = model.normalizer.as_mut().unwrap();
    (spec.add_dummy_prefix, spec.remove_extra_whitespaces) = (Some(false), Some(false));
    let kept = tokenizer(&model);
    assert_eq!(kept.pieces(" a  b "), ["▁", "a", "▁", "▁", "b", "▁"]);
    assert_eq!(kept.decode(&kept.encode(" a  b ")), " a  b ");
    let spec = model.normalizer.as_mut().unwrap();
    (spec.add_dummy_prefix, spec.remove_extra_whitespaces) = (Some(true), Some(true));
    model.trainer.as_mut().unwrap().treat_whitespace_as_suffix = true;
    assert_eq!(tokenizer(&model).pieces(" a  b "), ["a", "▁", "b", "▁"]);
}

/// A table that replaces `ﬁ` by `fi`, and `A` by nothing: a trie of their bytes, written out.
fn table() -> Vec<u8> {
    let mut units = vec![0u32; 1024];
    let unit = |label: u8, offset: u32, has_leaf: bool| (offset << 10) | (u32::from(has_leaf) << 8) | u32::from(label);
    // Each node's children lie in a block of 256 of their own, and a value at its beginning.
    units[0] = unit(0, 256, false);
    units[256 ^ 0xEF] = unit(0xEF, 0xEF ^ 512 ^ 256, false);
    units[512 ^ 0xAC] = unit(0xAC, 0xAC ^ 512 ^ 768, false);
    units[768 ^ 0x81] = unit(0x81, (768 ^ 0x81) ^ 16, true);
    units[16] = 1 << 31;
    units[256 ^ 0x41] = unit(0x41, (256 ^ 0x41) ^ 32, true);
    units[32] = 1 << 31 | 3;
    let trie: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    [&(trie.len() as u32).to_le_bytes()[..], &trie, b"fi\0\0"].concat()
}

#[test]
fn characters_are_replaced_by_the_table() {
    let mut model = model(ModelKind::Unigram, &[("▁", -1.0, Normal), ("fi", -1.0, Normal), ("Ａ", -1.0, Normal)]);
    model.normalizer.as_mut().unwrap().precompiled_charsmap = table();
    let tokenizer = tokenizer(&model);
    assert_eq!(tokenizer.pieces("Aﬁ A Ａ"), ["▁", "fi", "▁", "Ａ"]);
    assert_eq!(tokenizer.normalise("ﬁ"), "fi");
}

/// Text that is split anew in each epoch keeps what the vocabulary does not know.
#[test]
fn the_encoded_form_has_the_same_ids() {
    let tokenizer = tokenizer(&model(ModelKind::Unigram, &UNIGRAM));
    for line in ["abc", "a語語<x>a", "  a   b ", "", "語"] {
        assert_eq!(tokenizer.encode(&tokenizer.encoded_form(line)), tokenizer.encode(line), "{line}");
    }
}

#[test]
fn it_is_stored_whole_and_read_again() {
    let bytes = model(ModelKind::Unigram, &UNIGRAM).encode_to_vec();
    let tokenizer = Tokenizer::from_bytes(bytes.clone()).unwrap();
    assert_eq!(tokenizer.appended(), ["<pad>"]);
    assert_eq!([tokenizer.pad_id(), tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.unk_id()], [11, 1, 2, 0]);
    assert_eq!(tokenizer.forbidden(), [11, 1, 0]);
    let json = tokenizer.json();
    let again = Tokenizer::from_json(json.to_owned()).unwrap();
    assert_eq!(again.json(), json);
    assert_eq!((again.vocab_size(), again.pad_id(), again.encode("ab d")), (12, 11, tokenizer.encode("ab d")));
    assert_eq!(BASE64.decode(serde_json::from_str::<Value>(json).unwrap()["model"].as_str().unwrap()).unwrap(), bytes);
}

/// Each gets its own id after all pieces, however many there are.
#[test]
fn special_tokens_that_a_model_lacks_are_added() {
    let specials =
        |tokenizer: &Tokenizer| [tokenizer.pad_id(), tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.unk_id()];
    let whole = model(ModelKind::Unigram, &[&UNIGRAM[..], &[("<pad>", 0.0, PieceKind::Control)]].concat());
    for (lacks, appended, ids) in [
        (&["<pad>", "<s>", "</s>"][..], &["<pad>", "<s>", "</s>"][..], [9, 10, 11, 0]),
        (&["<s>", "</s>"], &["<s>", "</s>"], [9, 10, 11, 0]),
        (&["<s>"], &["<s>"], [10, 11, 1, 0]),
        (&["</s>", "<pad>"], &["<pad>", "</s>"], [10, 1, 11, 0]),
        (&[], &[], [11, 1, 2, 0]),
    ] {
        let appended: Vec<String> = appended.iter().map(|name| (*name).to_owned()).collect();
        let mut model = whole.clone();
        model.pieces.retain(|piece| !lacks.contains(&piece.piece.as_str()));
        let tokenizer = tokenizer(&model);
        assert_eq!((tokenizer.appended(), specials(&tokenizer)), (&appended[..], ids), "{lacks:?}");
        let again = Tokenizer::from_json(tokenizer.json().to_owned()).unwrap();
        assert_eq!((again.appended(), specials(&again)), (&appended[..], ids), "{lacks:?}");
        let mut stored: Value = serde_json::from_str(tokenizer.json()).unwrap();
        stored.as_object_mut().unwrap().retain(|key, _| key != "appended" && key != "special");
        let error = Tokenizer::from_json(stored.to_string()).err().map(|error| error.to_string());
        assert_eq!(error.is_some_and(|error| error.contains("must have pad, bos")), !lacks.is_empty(), "{lacks:?}");
    }
}

/// As Marian's models have it: ids of their own, and pieces that only the other side's model has.
#[test]
fn a_vocabulary_of_its_own_gives_the_ids() {
    let json = |special: Value| {
        serde_json::json!({
            "version": "1.0", "type": "sentencepiece",
            "model": BASE64.encode(model(ModelKind::Unigram, &UNIGRAM).encode_to_vec()),
            "vocabulary": { "</s>": 0, "<unk>": 1, "▁ab": 2, "a": 3, "語": 4, ">>fra<<": 5, "▁le": 6, "<pad>": 7 },
            "special": special, "forbidden": [7], "language_tags": true,
        })
    };
    let special = serde_json::json!({ "pad": 7, "bos": 7, "eos": 0, "unk": 1 });
    let tokenizer = Tokenizer::from_json(json(special.clone()).to_string()).unwrap();
    assert_eq!([tokenizer.pad_id(), tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.unk_id()], [7, 7, 0, 1]);
    assert_eq!(tokenizer.forbidden(), [7]);
    // `b` has no id; `語`, unknown to the model, has one.
    assert_eq!(tokenizer.encode("ab語 b"), [2, 4, 1, 1]);
    assert_eq!(tokenizer.encode(">>fra<< ab"), [5, 2]);
    assert_eq!(tokenizer.encode(">>deu<<ab"), [1, 2]);
    assert_eq!(tokenizer.encode("ab >>fra<<")[0], 2);
    assert_eq!(tokenizer.decode(&[7, 6, 3, 2, 0]), "lea ab");
    for (special, message) in [
        (serde_json::json!({ "pad": 8, "bos": 7, "eos": 0, "unk": 1 }), "special id 8 is beyond"),
        (serde_json::json!({ "eos": 0 , "unk": 1 , "first": 0 }), "unknown field `first`"),
    ] {
        let error = Tokenizer::from_json(json(special).to_string()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let mut wrong = json(special);
    wrong["vocabulary"]["a"] = 9.into();
    assert!(Tokenizer::from_json(wrong.to_string()).unwrap_err().what().contains("all ids from 0 upwards"));
}

#[test]
fn broken_models_are_refused() {
    assert!(refused(&model(ModelKind::Word, &UNIGRAM)).contains("one of words"));
    assert!(refused(&model(ModelKind::Char, &UNIGRAM)).contains("one of characters"));
    assert!(refused(&model(ModelKind::Bpe, &[("a", f32::NAN, Normal)])).contains("no text, kind or score"));
    assert!(refused(&model(ModelKind::Bpe, &[("", 0.0, Normal)])).contains("no text, kind or score"));
    assert!(refused(&model(ModelKind::Bpe, &[UNIGRAM[0], UNIGRAM[0]])).contains("occurs twice"));
    assert!(refused(&model(ModelKind::Bpe, &[("?", 0.0, PieceKind::Unknown)])).contains("two pieces for unknown"));
    for bad in [&table()[..3], &table()[..100], &[&table()[..], b"\xff"].concat(), &[0; 8]] {
        let mut model = model(ModelKind::Unigram, &UNIGRAM);
        model.normalizer.as_mut().unwrap().precompiled_charsmap = bad.to_vec();
        assert!(refused(&model).contains("table of replaced characters is damaged"));
    }
    // Links to anywhere.
    let mut model = model(ModelKind::Unigram, &UNIGRAM);
    let mut wild = table();
    wild[4..4100].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 37 % 251) as u8);
    model.normalizer.as_mut().unwrap().precompiled_charsmap = wild;
    assert!(refused(&model).contains("table of replaced characters is damaged"));
}

/// Thousands of models with a few bytes changed: each is refused, or works.
#[test]
fn damaged_models_do_no_harm() {
    let mut small = model(ModelKind::Unigram, &UNIGRAM);
    small.normalizer.as_mut().unwrap().precompiled_charsmap = table();
    let mut merges = small.clone();
    merges.trainer.as_mut().unwrap().model_kind = Some(ModelKind::Bpe as i32);
    let mut random = crate::rng::Stream::new(1, "damage");
    let mut accepted = 0;
    for bytes in [small.encode_to_vec(), merges.encode_to_vec()] {
        for _ in 0..1500 {
            let mut bytes = bytes.clone();
            for _ in 0..1 + random.below(4) {
                let index = random.below(bytes.len() as u64) as usize;
                bytes[index] = random.below(256) as u8;
            }
            let Ok(tokenizer) = Tokenizer::from_bytes(bytes) else { continue };
            accepted += 1;
            let ids = tokenizer.encode("ab <x> ﬁ A 語 aab");
            assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
            tokenizer.decode(&ids);
        }
    }
    assert!(accepted > 1000, "{accepted}");
}

/// A table that replaces `a`; its trie leads from `a` to `a` where it goes in a circle.
fn charsmap(replacement: &str, is_circle: bool) -> Vec<u8> {
    let mut units = [0u32; 1024];
    let (byte, base, value) = (u32::from(b'a'), 256, 512);
    units[0] = base << 10;
    let at = base ^ byte;
    units[at as usize] = if is_circle { byte | (base ^ at) << 10 } else { byte | 1 << 8 | (value ^ at) << 10 };
    units[value as usize] = 1 << 31;
    let trie = units.iter().flat_map(|unit| unit.to_le_bytes());
    4096u32.to_le_bytes().into_iter().chain(trie).chain(replacement.bytes()).chain([0]).collect()
}

#[test]
fn no_line_grows_without_bound() {
    let with = |replacement: &str, is_circle| {
        let mut model = model(ModelKind::Unigram, &UNIGRAM);
        model.normalizer = Some(NormalizerProto {
            precompiled_charsmap: charsmap(replacement, is_circle),
            ..NormalizerProto::default()
        });
        model
    };
    assert!(refused(&with(&"b".repeat(17), false)).contains("makes 17 bytes of 1, more than 16 times as many"));
    let long = tokenizer(&with(&"b".repeat(16), false));
    assert_eq!(long.encode(&"a".repeat(400_000)), [0]);
    assert_eq!(long.encode("b"), [3, 5]);
    // A whole text that stays as it is.
    let mut model = with("b", false);
    model.denormalizer = with(&"b".repeat(16), false).normalizer;
    let tokenizer = tokenizer(&model);
    assert_eq!(tokenizer.decode(&[4; 400_000]), "a".repeat(400_000));
    // In a circle no beginning of the line is too long to be looked at again.
    let circle = Tokenizer::from_bytes(with("b", true).encode_to_vec()).unwrap();
    assert_eq!(circle.encode(&"a".repeat(300_000)).len(), 300_001);
}

#[test]
fn a_piece_is_not_as_long_as_a_text() {
    let long = "a".repeat(crate::limits::PIECE_BYTES + 1);
    let error = refused(&model(ModelKind::Unigram, &[("a", -1.0, Normal), (&long, -2.0, Normal)]));
    assert!(error.contains("its piece 4 has 1025 bytes"), "{error}");
}
