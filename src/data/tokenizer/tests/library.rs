//! Files of the `tokenizers` library that it encodes itself.

use super::*;

/// A tokenizer.json of the library that ours does not read.
fn foreign() -> serde_json::Value {
    serde_json::json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 },
        "padding": null, "added_tokens": [], "normalizer": { "type": "Lowercase" },
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null,
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": false },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": { "[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "dog": 4, "##s": 5, "[": 6, "]": 7, "cls": 8 },
        },
    })
}

#[test]
fn the_library_s_tokenizers_are_used_as_they_are() {
    let tokenizer = Tokenizer::from_json(foreign().to_string()).unwrap();
    // Never cut off, and what looks like a special token is text.
    let ids = tokenizer.encode("The dogs the [CLS]");
    assert_eq!(ids, [3, 4, 5, 3, 6, 8, 7]);
    assert_eq!(tokenizer.pieces("The dogs"), ["the", "dog", "##s"]);
    assert_eq!(tokenizer.decode(&[1, 3, 4, 5, 2, 9, 99]), "the dogs");
    assert_eq!(tokenizer.decode_pieces("the dog ##s [SEP]"), "the dogs");
    assert_eq!(tokenizer.decode(&[]), "");
    assert_eq!(tokenizer.marked(&ids[..3]), ["▁the", "▁dog", "s"]);
    assert!(!tokenizer.has_dropout() && tokenizer.lowers_case());
    // A vocabulary of mostly caseless script does not count as lower-casing.
    let mut caseless = foreign();
    caseless["model"]["vocab"] =
        serde_json::json!({ "[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "บ้าน": 3, "แดง": 4, "ok": 5, ".": 6 });
    assert!(!Tokenizer::from_json(caseless.to_string()).unwrap().lowers_case());
    // A model does not write text between brackets.
    for (word, is_lower) in [("⟨NUM⟩", true), ("Hund", false), ("▁A", false)] {
        let pieces = ["<pad>", "</s>", "<unk>", "katze", "hund", word].map(str::to_owned);
        assert_eq!(Tokenizer::from_words(pieces.into_iter().zip(0..).collect()).unwrap().lowers_case(), is_lower);
    }
    assert_eq!(tokenizer.sample("the dogs", RandomSplit::Dropout(0.9), 1), [3, 4, 5]);
    // The file lacked padding; it has it from now on.
    assert_eq!(tokenizer.appended(), ["<pad>"]);
    assert_eq!([tokenizer.pad_id(), tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.unk_id()], [9, 1, 2, 0]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.piece(9)), (10, Some("<pad>")));
    let again = Tokenizer::from_json(tokenizer.json().to_owned()).unwrap();
    assert!(again.appended().is_empty() && again.pad_id() == 9 && again.encode("dogs") == [4, 5]);
}

/// The library's Unigram finds its special tokens in text, even with `encode_special_tokens`. As some editors leave the
/// file.
#[test]
fn a_byte_order_mark_is_no_part_of_the_tokenizer() {
    for json in [foreign().to_string(), CASED.json().to_owned()] {
        let tokenizer = Tokenizer::from_bytes(format!("\u{feff}{json}").into_bytes()).unwrap();
        assert_eq!(tokenizer.json(), Tokenizer::from_bytes(json.into_bytes()).unwrap().json());
    }
}

#[test]
fn a_special_token_in_text_is_spelled() {
    let pieces = ["<pad>", "<s>", "</s>", "<unk>", "▁", "a", "<", "/", "s", "▁a"];
    let vocab: Vec<_> = (0..).zip(pieces).map(|(i, piece)| serde_json::json!([piece, -f64::from(i)])).collect();
    let special = |id: usize| {
        serde_json::json!({
            "id": id, "content": pieces[id], "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    };
    let added = [0, 1, 2, 3].map(special);
    let metaspace = serde_json::json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" });
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": metaspace, "post_processor": null, "decoder": metaspace,
        "model": { "type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": false },
    });
    let tokenizer = Tokenizer::from_json(file.to_string()).unwrap();
    let special = [tokenizer.pad_id(), tokenizer.bos_id(), tokenizer.eos_id()];
    assert_eq!(special, [0, 1, 2]);
    for text in ["a</s>", "<s>a</s>", "a <pad> a", "<pad>"] {
        let ids = tokenizer.encode(text);
        assert!(ids.iter().all(|id| !special.contains(id)), "{text}: {ids:?}");
    }
    // `>` is not in the vocabulary.
    assert_eq!(tokenizer.encode("a</s>"), [9, 6, 7, 8, 3]);
}

/// Words, among them `</s>`.
fn words(model: serde_json::Value) -> Tokenizer {
    let added = serde_json::json!({
        "id": 1, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false,
    });
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null, "model": model,
    });
    Tokenizer::from_json(file.to_string()).unwrap()
}

/// A byte-level BPE of the library, with a piece for each byte and one that ends inside a character.
fn byte_level() -> Tokenizer {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0;
    let characters: Vec<char> = (0..=u8::MAX)
        .map(|byte| match printable(byte) {
            true => char::from(byte),
            false => {
                others += 1;
                char::from_u32(0xFF + others).unwrap()
            }
        })
        .collect();
    let [space, lead, next] = [b' ', 0xE4, 0xB8].map(|byte| characters[usize::from(byte)]);
    let merged = [format!("{space}{lead}"), format!("{space}a"), format!("{lead}{next}")];
    let pieces = ["<pad>", "<s>", "</s>", "<unk>"].map(str::to_owned).into_iter();
    let pieces = pieces.chain(characters.iter().map(char::to_string)).chain(merged);
    let vocab: serde_json::Map<String, serde_json::Value> = pieces.zip(0..).map(|(p, id)| (p, id.into())).collect();
    let level =
        serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": [
                [space.to_string(), lead.to_string()], [space.to_string(), "a"], [lead.to_string(), next.to_string()],
            ],
        },
    });
    Tokenizer::from_json(file.to_string()).unwrap()
}

/// As with SentencePiece, the space in front of a text is none of the text's.
#[test]
fn a_space_that_was_put_in_front_is_taken_away() {
    let level = |adds: bool| {
        let step = serde_json::json!({
            "type": "ByteLevel", "add_prefix_space": adds, "trim_offsets": true, "use_regex": true,
        });
        let file = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [step] }, "post_processor": null, "decoder": step,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "vocab": { "a": 0, "b": 1, "Ġ": 2, "Ġa": 3 }, "merges": [["Ġ", "a"]],
            },
        });
        Tokenizer::from_json(file.to_string()).unwrap()
    };
    let tokenizer = level(true);
    assert_eq!(tokenizer.pieces("a a"), ["Ġa", "Ġa"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("a a")), "a a");
    assert_eq!(tokenizer.decode_pieces("Ġa Ġ b"), "a b");
    let tokenizer = level(false);
    assert_eq!(tokenizer.decode(&tokenizer.encode(" a a")), " a a");
}

/// The library leaves out what byte-pair encoding has no piece for, if the file names no token for it.
#[test]
fn what_has_no_piece_is_unknown() {
    for added in [false, true] {
        let mut vocab = serde_json::json!({ "a": 0, "b": 1, "ab": 2 });
        if added {
            vocab["<unk>"] = 3.into();
        }
        let file = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                "merges": [["a", "b"]],
            },
        });
        let tokenizer = Tokenizer::from_json(file.to_string()).unwrap();
        let unknown = tokenizer.unk_id();
        assert_eq!(tokenizer.encode("ab xb"), [2, unknown, 1], "{added}");
        assert_eq!(tokenizer.encode("日"), [unknown], "{added}");
        assert_eq!(tokenizer.sample("xab", RandomSplit::Dropout(1.0), 1), [unknown, 0, 1], "{added}");
    }
}

/// In text it is a word that the vocabulary lacks, whatever the model does with these.
#[test]
fn a_special_token_in_text_is_no_word() {
    let vocab =
        serde_json::json!({ "<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "<": 4, "/": 5, "s": 6, ">": 7, "<s>": 8 });
    let level = words(serde_json::json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" }));
    assert_eq!(level.encode("a </s> a <pad> <unk> <s> s"), [3, 2, 3, 2, 2, 2, 6]);
    assert_eq!(level.decode(&[3, 1, 6, 0]), "a s");
    assert_eq!((level.piece(1), level.eos_id(), level.decode_pieces("a </s> s")), (Some("</s>"), 1, "a s".to_owned()));
    let vocab = serde_json::json!({
        "<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "<": 4, "##/": 5, "##s>": 6, "##>": 7, "<s>": 8, "##s": 9,
    });
    let pieces = words(serde_json::json!({
        "type": "WordPiece", "vocab": vocab, "unk_token": "<unk>", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }));
    assert_eq!(pieces.encode("a </s> <s> <pad>"), [3, 4, 5, 6, 4, 6, 2], "the longest pieces, as of any word");
    let vocab = serde_json::json!({
        "<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "<": 4, "/": 5, "s": 6, ">": 7, "<s>": 8, "s>": 9, "</": 10,
    });
    let merges = serde_json::json!([["s", ">"], ["<", "/"], ["</", "s>"], ["<", "s>"]]);
    for ignore_merges in [true, false] {
        let bpe = words(serde_json::json!({
            "type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "ignore_merges": ignore_merges,
        }));
        assert_eq!(bpe.encode("a </s> <s>"), [3, 10, 9, 4, 9]);
    }
    // The token for unknown text may have another name.
    let vocab = serde_json::json!({ "<pad>": 0, "</s>": 1, "UNK": 2, "a": 3 });
    let level = words(serde_json::json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "UNK" }));
    assert_eq!(level.encode("a b </s>"), [3, 2, 2]);
}

/// A file may ask for dropout; only `tokenizer.dropout` does.
#[test]
fn dropout_in_a_file_is_left_out_and_dropout_that_is_asked_for_follows_its_key() {
    let byte_level =
        serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let letters = ["l", "o", "w", "e", "r", "\u{120}"];
    let merged = [["l", "o"], ["lo", "w"], ["e", "r"], ["\u{120}", "low"], ["\u{120}low", "er"]];
    let all = ["<pad>", "<s>", "</s>", "<unk>"].map(str::to_owned).into_iter().chain(letters.map(str::to_owned));
    let all = all.chain(merged.iter().map(|pair| pair.concat()));
    let vocab: serde_json::Map<String, serde_json::Value> =
        all.zip(0..).map(|(piece, id)| (piece, id.into())).collect();
    let file = |dropout: serde_json::Value, kind: Option<&str>, merges: serde_json::Value| {
        let mut model = serde_json::json!({
            "dropout": dropout, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges,
        });
        if let Some(kind) = kind {
            model["type"] = kind.into();
        }
        serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level, "model": model,
        })
    };
    let pairs = serde_json::json!(merged);
    let old = serde_json::json!(merged.map(|pair| pair.join(" ")));
    let line = "low lower low lower lower";
    let expected = [11, 14, 13, 14, 14];
    let plain = Tokenizer::from_json(file(serde_json::Value::Null, Some("BPE"), pairs.clone()).to_string()).unwrap();
    assert_eq!(plain.encode(line), expected);
    let drawn = |tokenizer: &Tokenizer| -> Vec<_> {
        (0..40).map(|key| tokenizer.sample(line, RandomSplit::Dropout(0.4), key)).collect()
    };
    // With and without the type, as old files are; the merges in both forms.
    for (kind, merges) in [(Some("BPE"), pairs.clone()), (None, pairs), (Some("BPE"), old)] {
        let tokenizer = Tokenizer::from_json(file(0.3.into(), kind, merges).to_string()).unwrap();
        for _ in 0..20 {
            assert_eq!(tokenizer.encode(line), expected);
        }
        // Nor is it in the copy that a run gets.
        let copy: serde_json::Value = serde_json::from_str(tokenizer.json()).unwrap();
        assert!(copy["model"]["dropout"].is_null());
        assert!(tokenizer.has_dropout());
        let pieces = drawn(&tokenizer);
        assert_eq!((&pieces, &drawn(&tokenizer)), (&drawn(&plain), &pieces));
        assert!(pieces.iter().any(|ids| *ids != pieces[0]));
        assert!(pieces.iter().all(|ids| tokenizer.decode(ids) == line));
        assert_eq!(tokenizer.sample(line, RandomSplit::Dropout(0.0), 1), expected);
        let letters: Vec<u32> =
            line.chars().map(|c| tokenizer.ids_of(&[&c.to_string().replace(' ', "\u{120}")])[0]).collect();
        assert_eq!(tokenizer.sample(line, RandomSplit::Dropout(1.0), 1), letters);
    }
}

/// Our own pipeline with dropout in its file is still ours.
#[test]
fn dropout_in_a_file_of_our_own_is_left_out() {
    let mut file: serde_json::Value = serde_json::from_str(CASED.json()).unwrap();
    file["model"]["dropout"] = 0.5.into();
    let tokenizer = Tokenizer::from_json(file.to_string()).unwrap();
    assert_eq!((tokenizer.form(), tokenizer.encode("the newest")), (CASED.form(), CASED.encode("the newest")));
    assert_eq!(
        tokenizer.sample("the newest", RandomSplit::Dropout(0.5), 3),
        CASED.sample("the newest", RandomSplit::Dropout(0.5), 3)
    );
}

/// Pieces may hold other white space than U+0020.
#[test]
fn pieces_are_separated_by_spaces_alone() {
    let vocab = serde_json::json!({ "<pad>": 0, "</s>": 1, "<unk>": 2, "10": 3, "\u{A0}": 4, "000": 5 });
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Split", "pattern": { "Regex": "\\d+|." }, "behavior": "Isolated", "invert": false },
        "post_processor": null, "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
    });
    let tokenizer = Tokenizer::from_json(file.to_string()).unwrap();
    let pieces = tokenizer.pieces("10\u{A0}000").join(" ");
    assert_eq!((pieces.as_str(), tokenizer.decode_pieces(&pieces).as_str()), ("10 \u{A0} 000", "10\u{A0}000"));
}

/// What tokens write, put together, is the text that they stand for.
#[test]
fn what_tokens_write_is_what_is_decoded() {
    let lines = ["the dogs [CLS] dog", "一 and 一 or 丁", " a\u{301} ▁ 猫😀", "the l@@ ow@@ er dog"];
    let options = TrainOptions { vocab_size: 300, ..TrainOptions::default() };
    let mut text = TextCounts::default();
    lines.iter().for_each(|line| text.add(line));
    let tokenizers = [
        Tokenizer::train(&[&lines[..]], &options).unwrap(),
        Tokenizer::from_pieces(&[(&text, None)], 100).unwrap().remove(0),
        Tokenizer::from_json(foreign().to_string()).unwrap(),
        byte_level(),
    ];
    for (number, tokenizer) in tokenizers.iter().enumerate() {
        for line in lines {
            // An escaped `▁` is written as it is stored.
            let ids = tokenizer.encode(&if number == 0 { line.replace('▁', "") } else { line.to_owned() });
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.written(*id)).collect();
            let written = String::from_utf8(bytes).unwrap();
            assert_eq!(written.trim(), tokenizer.decode(&ids).trim(), "{number}: {ids:?}");
        }
        assert!(tokenizer.written(tokenizer.eos_id()).is_empty());
    }
    let bytes = &tokenizers[3];
    let ids = bytes.encode("a 一 一");
    let lengths: Vec<usize> = ids.iter().map(|id| bytes.written(*id).len()).collect();
    assert_eq!(lengths, [1, 2, 1, 1, 2, 1, 1], "the first piece of a character holds the space, too");
}
