//! Files of the `tokenizers` library that it encodes itself.

use super::*;

/// A tokenizer.json of the library that ours does not read.
fn foreign() -> serde_json::Value {
    serde_json::json!({
        "version": "1.0", "truncation": { "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 },
        "padding": null, "added_tokens": [], "normalizer": { "type": "Lowercase" },
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null,
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": false },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
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
    // What stands between brackets is not written by a model.
    for (word, is_lower) in [("⟨NUM⟩", true), ("Hund", false), ("▁A", false)] {
        let pieces = ["<pad>", "</s>", "<unk>", "katze", "hund", word].map(str::to_owned);
        assert_eq!(Tokenizer::of_words(pieces.into_iter().zip(0..).collect()).unwrap().lowers_case(), is_lower);
    }
    assert_eq!(tokenizer.encode_with_dropout("the dogs", 0.9, 1), [3, 4, 5]);
    // The file lacked padding; it has it from now on.
    assert_eq!(tokenizer.appended(), ["<pad>"]);
    assert_eq!([tokenizer.pad_id(), tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.unk_id()], [9, 1, 2, 0]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.piece(9)), (10, Some("<pad>")));
    let again = Tokenizer::from_json(tokenizer.json().to_owned()).unwrap();
    assert!(again.appended().is_empty() && again.pad_id() == 9 && again.encode("dogs") == [4, 5]);
}

/// The library's Unigram finds its special tokens in text, even if it is told not to.
/// As some editors leave the file.
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
