//! Files of the `tokenizers` library that are made to end the program, or to fill the memory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::*;
use crate::limits;

/// A tokenizer of the pieces `a` and `b`, with some parts replaced.
fn with(parts: Value) -> Value {
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": {
            "type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": { "<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "a": 4, "##a": 5, "b": 6, "##b": 7 },
        },
    });
    for (key, value) in parts.as_object().unwrap() {
        file[key] = value.clone();
    }
    file
}

fn read(parts: Value) -> crate::error::Result<Tokenizer> {
    Tokenizer::from_json(with(parts).to_string())
}

/// A step, many times.
fn sequence(name: &str, steps: &[Value], times: usize) -> Value {
    let steps: Vec<&Value> = std::iter::repeat_n(steps, times).flatten().collect();
    json!({ "type": "Sequence", name: steps })
}

/// A table that replaces `a` by what stands at `offset` of the replacements.
fn charsmap(offset: u32, replacements: &str) -> Value {
    let mut units = [0u32; 1024];
    let (byte, base, value) = (u32::from(b'a'), 256, 512);
    units[0] = base << 10;
    let at = base ^ byte;
    units[at as usize] = byte | 1 << 8 | (value ^ at) << 10;
    units[value as usize] = 1 << 31 | offset;
    table(&units, replacements)
}

fn table(units: &[u32], replacements: &str) -> Value {
    let length = (4 * units.len() as u32).to_le_bytes();
    let trie = units.iter().flat_map(|unit| unit.to_le_bytes());
    let bytes: Vec<u8> = length.into_iter().chain(trie).chain(replacements.bytes()).collect();
    json!({ "type": "Precompiled", "precompiled_charsmap": BASE64.encode(bytes) })
}

fn split(expression: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated", "invert": false })
}

fn added(id: usize, content: &str, rest: &[&str]) -> Value {
    let is = |key: &str| rest.contains(&key);
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": is("lstrip"), "rstrip": is("rstrip"),
        "normalized": is("normalized"), "special": false,
    })
}

#[test]
fn what_the_library_would_fail_on_is_refused() {
    let unigram = |piece: String| json!({ "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], [piece, -1.0]] });
    let bpe = |prefix: &str, vocabulary: &[&str], merge: &str| {
        let vocabulary: serde_json::Map<String, Value> =
            vocabulary.iter().zip(0..).map(|(piece, id)| ((*piece).to_owned(), id.into())).collect();
        json!({ "type": "BPE", "continuing_subword_prefix": prefix, "vocab": vocabulary, "merges": [merge] })
    };
    let pre = |step: Value| json!({ "pre_tokenizer": step });
    let normal = |step: Value| json!({ "normalizer": step });
    let truncated = BASE64.encode([0xFC, 0xFF, 0xFF, 0xFF, 1, 2, 3, 4]);
    for (parts, words) in [
        (normal(json!({ "type": "Precompiled", "precompiled_charsmap": "AAAAAA==" })), "replaced characters"),
        (normal(json!({ "type": "Precompiled", "precompiled_charsmap": truncated })), "replaced characters"),
        (normal(json!({ "type": "Precompiled", "precompiled_charsmap": "!!" })), "replaced characters"),
        (normal(json!({ "type": "Precompiled", "precompiled_charsmap": 7 })), "replaced characters"),
        (normal(table(&[5000 << 10, 0], "x\0")), "replaced characters"),
        (normal(charsmap(1 << 30, "x\0")), "replaced characters"),
        (normal(charsmap(1, "é\0")), "replaced characters"),
        (normal(charsmap(0, &"x".repeat(limits::REPLACEMENT_GROWTH + 1))), "replaced characters"),
        // Without a type the library reads it all the same.
        (normal(json!({ "precompiled_charsmap": "AAAAAA==" })), "replaced characters"),
        (pre(json!({ "type": "FixedLength", "length": 0 })), "`length` is 0"),
        (
            pre(sequence(
                "pretokenizers",
                &[json!({ "type": "Sequence", "pretokenizers": [
            { "type": "FixedLength", "length": 0 } ] })],
                1,
            )),
            "`length` is 0",
        ),
        (pre(sequence("pretokenizers", &[json!({ "type": "Whitespace" })], limits::TOKENIZER_STEPS)), "steps"),
        (pre(split(&"(?=x)\\w{100}".repeat(3))), "regular expressions"),
        (pre(sequence("pretokenizers", &[split(&"(?=x)\\w".repeat(1000))], 4)), "regular expressions"),
        (pre(split("((((")), "Opening parenthesis"),
        (normal(json!({ "type": "Prepend", "prepend": "a".repeat(limits::STEP_BYTES + 1) })), "`prepend`"),
        (
            normal(json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(1 << 20) })),
            "`content`",
        ),
        (json!({ "decoder": 5 }), "tokenizers library"),
        (
            json!({
                "added_tokens": [added(8, " ", &["normalized"])],
                "normalizer": { "type": "Strip", "strip_left": true, "strip_right": true },
            }),
            "nothing of its added token \" \"",
        ),
        (json!({ "model": unigram("a".repeat(limits::PIECE_BYTES + 1)) }), "too long"),
        (json!({ "model": bpe("é", &["a", "b", "ab"], "a b") }), "no `continuing_subword_prefix`"),
        (json!({ "model": bpe("x", &["a", "éb", "ab"], "a éb") }), "no `continuing_subword_prefix`"),
        // The library puts the merged piece where the longest piece has room.
        (json!({ "model": bpe("", &["a", "b"], "a b") }), "its reader failed"),
        (json!({ "model": bpe(&"x".repeat(limits::STEP_BYTES + 1), &["a"], "a a") }), "continuing_subword_prefix"),
    ] {
        let error = read(parts.clone()).unwrap_err().to_string();
        assert!(error.contains(words), "{}: {error}", parts.to_string().chars().take(100).collect::<String>());
    }
    let deep = "[".repeat(100_000);
    assert!(Tokenizer::from_json(deep).unwrap_err().what().contains("recursion limit"));
    let many = format!("{{\"a\": [{}0]}}", "[],".repeat(limits::TOKENIZER_VALUES));
    assert!(Tokenizer::from_json(many).unwrap_err().what().contains("values"));
}

#[test]
fn the_last_of_two_keys_is_the_one_that_is_checked_and_read() {
    let text = with(json!({})).to_string();
    let twice = format!("{{\"normalizer\": {}, {}", charsmap(1 << 30, "x\0"), text.trim_start_matches('{'));
    assert_eq!(Tokenizer::from_json(twice).unwrap().encode("ab a"), [4, 7, 4]);
}

/// The line is unknown, a translation is shown as its pieces.
#[test]
fn what_passes_the_checks_and_fails_is_caught() {
    let strip = read(json!({ "decoder": { "type": "Strip", "content": "a", "start": 0, "stop": 9 } })).unwrap();
    assert_eq!(strip.encode("a b"), [4, 6]);
    assert_eq!((strip.decode(&[4, 6]), strip.decode_pieces("a b")), ("a b".to_owned(), "a b".to_owned()));
    let nothing = json!([{ "type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": true },
        { "type": "BPEDecoder", "suffix": "" }]);
    let nothing = read(json!({ "decoder": sequence("decoders", nothing.as_array().unwrap(), 1) })).unwrap();
    assert_eq!(nothing.decode(&[4, 4]), "");
    // What a token strips on its right has another token in it, which strips on its left.
    let tokens = json!([added(8, "b", &["rstrip"]), added(9, " ", &["lstrip"])]);
    let stripping = read(json!({ "added_tokens": tokens })).unwrap();
    for line in ["a", "b   a", "a b  b   a   ", "b "] {
        let ids = stripping.encode(line);
        assert!(ids.iter().all(|id| (*id as usize) < stripping.vocab_size()), "{line}: {ids:?}");
    }
}

#[test]
fn no_text_grows_without_bound() {
    let doubled = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
    let large = json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "a".repeat(1000) });
    let prepend = json!({ "type": "Prepend", "prepend": "a".repeat(1000) });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let mark =
        |mark: &str| json!({ "type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": false });
    let single = json!({ "type": "FixedLength", "length": 1 });
    let marks = [mark("▁"), single.clone(), mark("▂"), single];
    let nested = sequence("normalizers", std::slice::from_ref(&doubled), 9);
    for parts in [
        json!({ "normalizer": sequence("normalizers", std::slice::from_ref(&doubled), 60) }),
        json!({ "normalizer": sequence("normalizers", &[large], 4) }),
        json!({ "normalizer": sequence("normalizers", &[prepend], 60) }),
        json!({ "normalizer": sequence("normalizers", &[json!({ "type": "ByteLevel" })], 60) }),
        json!({ "normalizer": sequence("normalizers", &[nested], 9) }),
        json!({ "pre_tokenizer": sequence("pretokenizers", &[bytes], 60) }),
        json!({ "pre_tokenizer": sequence("pretokenizers", &marks, 30) }),
    ] {
        match read(parts) {
            Ok(tokenizer) => assert_eq!(tokenizer.encode("éa éa"), [3]),
            // The library's own look at unknown text is enough.
            Err(error) => assert!(error.what().contains("many times as long"), "{error}"),
        }
    }
    // Also when the file is read.
    let token = json!([added(8, "aaaaaaaa", &["normalized"])]);
    let steps = sequence("normalizers", std::slice::from_ref(&doubled), 60);
    let error = read(json!({ "added_tokens": token, "normalizer": steps })).unwrap_err();
    assert!(error.what().contains("many times as long"), "{error}");
    let decoder = read(json!({ "decoder": sequence("decoders", &[doubled], 60) })).unwrap();
    assert_eq!(decoder.decode(&[4, 6]), "a b");
    let template: Vec<Value> = vec![json!({ "Sequence": { "id": "A", "type_id": 0 } }); 40];
    let template = json!({ "type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": {} });
    assert_eq!(read(json!({ "post_processor": template })).unwrap().encode("a"), [4]);
}

#[test]
fn what_tokenizers_in_use_do_is_within_the_bounds() {
    let steps = json!([
        { "type": "Strip", "strip_left": true, "strip_right": true },
        { "type": "Replace", "pattern": { "String": "``" }, "content": "\"" },
        { "type": "NFKD" }, { "type": "StripAccents" }, { "type": "Lowercase" }, charsmap(0, "b\0"),
        { "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " },
    ]);
    let level = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
    let pre = json!([split("[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"), level]);
    // Its longest decomposition: 33 bytes for 3.
    let line = "\u{FDFA}".repeat(500);
    let steps = sequence("normalizers", steps.as_array().unwrap(), 1);
    let pre = sequence("pretokenizers", pre.as_array().unwrap(), 1);
    let tokenizer = read(json!({ "normalizer": steps, "pre_tokenizer": pre })).unwrap();
    assert!(tokenizer.encode(&line).len() > 1);
    assert_eq!(read(json!({ "normalizer": charsmap(0, "b\0") })).unwrap().encode("ab ba"), [6, 7, 6, 7]);
    // A word of more characters than are looked for in all ways is unknown.
    let mut file = with(json!({}));
    file["model"]["max_input_chars_per_word"] = 1_000_000_000.into();
    let tokenizer = Tokenizer::from_json(file.to_string()).unwrap();
    assert_eq!(tokenizer.encode(&"a".repeat(1000)).len(), 1000);
    assert_eq!(tokenizer.encode(&"a".repeat(1001)), [3]);
}

/// Every attempt of the library's expressions ends after a million steps.
#[test]
fn an_expression_that_backtracks_ends() {
    let expression = "(?=(a+)+$)(?:a|aa)+\\1c|(a+)+\\2c";
    let tokenizer = read(json!({ "pre_tokenizer": split(expression) })).unwrap();
    assert!(!tokenizer.encode(&"a".repeat(60)).is_empty());
}
