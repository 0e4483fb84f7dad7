//! A tokenizer.json of any steps and any model of the `tokenizers` library, and any line through it.
#![no_main]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use mt::data::tokenizer::{RandomSplit, Tokenizer};
use serde_json::{Value, json};

#[derive(Arbitrary, Debug)]
enum Pattern<'a> {
    Text(&'a str),
    Expression(&'a str),
    /// One that is in use, or backtracks.
    Usual(u8),
}

impl Pattern<'_> {
    fn json(&self) -> Value {
        const USUAL: [&str; 8] =
            ["", " ", ".", "\\s+(?!\\S)|\\s+", "(a+)+$", "\\p{N}{1,3}| ?\\p{L}+", "(?=(a+)+\\1)a", "(?<!a)b"];
        match self {
            Self::Text(text) => json!({ "String": text }),
            Self::Expression(text) => json!({ "Regex": text }),
            Self::Usual(index) => json!({ "Regex": USUAL[usize::from(*index) % USUAL.len()] }),
        }
    }
}

/// A table of replaced characters: units of a trie, those that matter at places where text leads.
#[derive(Arbitrary, Debug)]
struct Charsmap<'a> {
    length: Option<u32>,
    units: Vec<(u8, u32)>,
    replacements: &'a str,
}

impl Charsmap<'_> {
    fn json(&self) -> Value {
        let mut units = [0u32; 256];
        self.units.iter().for_each(|(at, unit)| units[usize::from(*at)] = *unit);
        let length = self.length.unwrap_or(4 * units.len() as u32).to_le_bytes();
        let trie = units.iter().flat_map(|unit| unit.to_le_bytes());
        let bytes: Vec<u8> = length.into_iter().chain(trie).chain(self.replacements.bytes()).collect();
        json!({ "type": "Precompiled", "precompiled_charsmap": BASE64.encode(bytes) })
    }
}

#[derive(Arbitrary, Debug)]
enum Normal<'a> {
    Named(u8),
    Bert([bool; 4]),
    Strip(bool, bool),
    Precompiled(Charsmap<'a>),
    Replace(Pattern<'a>, &'a str),
    Prepend(&'a str),
    Sequence(Vec<Normal<'a>>),
}

impl Normal<'_> {
    fn json(&self) -> Value {
        const NAMES: [&str; 8] = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "StripAccents", "ByteLevel"];
        match self {
            Self::Named(index) => json!({ "type": NAMES[usize::from(*index) % NAMES.len()] }),
            Self::Bert([clean, chinese, strip, lower]) => json!({
                "type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": strip,
                "lowercase": lower,
            }),
            Self::Strip(left, right) => json!({ "type": "Strip", "strip_left": left, "strip_right": right }),
            Self::Precompiled(table) => table.json(),
            Self::Replace(pattern, content) => {
                json!({ "type": "Replace", "pattern": pattern.json(), "content": content })
            }
            Self::Prepend(text) => json!({ "type": "Prepend", "prepend": text }),
            Self::Sequence(steps) => {
                json!({ "type": "Sequence", "normalizers": steps.iter().map(Self::json).collect::<Vec<_>>() })
            }
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Pre<'a> {
    Named(u8),
    ByteLevel(bool, bool),
    Metaspace(char, u8, bool),
    Split(Pattern<'a>, u8, bool),
    Delimiter(char),
    Digits(bool),
    FixedLength(u64),
    Sequence(Vec<Pre<'a>>),
}

impl Pre<'_> {
    fn json(&self) -> Value {
        const NAMES: [&str; 5] = ["BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "UnicodeScripts"];
        const SCHEMES: [&str; 3] = ["first", "never", "always"];
        const BEHAVIORS: [&str; 5] = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
        match self {
            Self::Named(index) => json!({ "type": NAMES[usize::from(*index) % NAMES.len()] }),
            Self::ByteLevel(prefix, regex) => {
                json!({ "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex })
            }
            Self::Metaspace(mark, scheme, split) => json!({
                "type": "Metaspace", "replacement": mark, "prepend_scheme": SCHEMES[usize::from(*scheme) % 3],
                "split": split,
            }),
            Self::Split(pattern, behavior, invert) => json!({
                "type": "Split", "pattern": pattern.json(), "behavior": BEHAVIORS[usize::from(*behavior) % 5],
                "invert": invert,
            }),
            Self::Delimiter(delimiter) => json!({ "type": "CharDelimiterSplit", "delimiter": delimiter }),
            Self::Digits(single) => json!({ "type": "Digits", "individual_digits": single }),
            Self::FixedLength(length) => json!({ "type": "FixedLength", "length": length }),
            Self::Sequence(steps) => {
                json!({ "type": "Sequence", "pretokenizers": steps.iter().map(Self::json).collect::<Vec<_>>() })
            }
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Decoder<'a> {
    Named(u8),
    Bpe(&'a str),
    WordPiece(&'a str, bool),
    Ctc(&'a str, &'a str, bool),
    Strip(char, u64, u64),
    Replace(Pattern<'a>, &'a str),
    Pre(Pre<'a>),
    Sequence(Vec<Decoder<'a>>),
}

impl Decoder<'_> {
    fn json(&self) -> Value {
        const NAMES: [&str; 2] = ["Fuse", "ByteFallback"];
        match self {
            Self::Named(index) => json!({ "type": NAMES[usize::from(*index) % 2] }),
            Self::Bpe(suffix) => json!({ "type": "BPEDecoder", "suffix": suffix }),
            Self::WordPiece(prefix, cleanup) => json!({ "type": "WordPiece", "prefix": prefix, "cleanup": cleanup }),
            Self::Ctc(pad, word, cleanup) => {
                json!({ "type": "CTC", "pad_token": pad, "word_delimiter_token": word, "cleanup": cleanup })
            }
            Self::Strip(content, start, stop) => {
                json!({ "type": "Strip", "content": content, "start": start, "stop": stop })
            }
            Self::Replace(pattern, content) => {
                json!({ "type": "Replace", "pattern": pattern.json(), "content": content })
            }
            Self::Pre(step) => step.json(),
            Self::Sequence(steps) => {
                json!({ "type": "Sequence", "decoders": steps.iter().map(Self::json).collect::<Vec<_>>() })
            }
        }
    }
}

/// A model of some pieces, whose options need not fit them.
#[derive(Arbitrary, Debug)]
struct Model<'a> {
    kind: u8,
    pieces: Vec<(&'a str, f32)>,
    merges: Vec<(u8, u8)>,
    unknown: Option<u8>,
    prefix: Option<&'a str>,
    suffix: Option<&'a str>,
    flags: [bool; 3],
    longest: u64,
}

impl Model<'_> {
    fn json(&self) -> Value {
        let usual = [("<pad>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("a", -1.0), ("ab", -2.0)];
        let pieces: Vec<(&str, f32)> = usual.into_iter().chain(self.pieces.iter().copied()).collect();
        let vocabulary: serde_json::Map<String, Value> =
            pieces.iter().zip(0..).map(|((piece, _), id)| ((*piece).to_owned(), Value::from(id))).collect();
        let piece = |index: u8| pieces[usize::from(index) % pieces.len()].0;
        let merges: Vec<Value> = self.merges.iter().map(|(a, b)| json!([piece(*a), piece(*b)])).collect();
        let [fuse, fallback, ignore] = self.flags;
        match self.kind % 4 {
            0 => json!({
                "type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": self.unknown.map(piece),
                "continuing_subword_prefix": self.prefix, "end_of_word_suffix": self.suffix, "fuse_unk": fuse,
                "byte_fallback": fallback, "ignore_merges": ignore,
            }),
            1 => json!({
                "type": "WordPiece", "vocab": vocabulary, "unk_token": self.unknown.map_or("<unk>", piece),
                "continuing_subword_prefix": self.prefix.unwrap_or("##"), "max_input_chars_per_word": self.longest,
            }),
            2 => json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": self.unknown.map_or("<unk>", piece) }),
            _ => json!({ "type": "Unigram", "vocab": pieces, "unk_id": self.unknown, "byte_fallback": fallback }),
        }
    }
}

#[derive(Arbitrary, Debug)]
struct File<'a> {
    normalizer: Option<Normal<'a>>,
    pre_tokenizer: Option<Pre<'a>>,
    decoder: Option<Decoder<'a>>,
    model: Model<'a>,
    added: Vec<(&'a str, [bool; 5])>,
}

fuzz_target!(|input: (File, Vec<&str>)| {
    let (file, lines) = input;
    let added = file.added.iter().zip(6u32..).map(|((content, [single, left, right, normalized, special]), id)| {
        json!({
            "id": id, "content": content, "single_word": single, "lstrip": left, "rstrip": right,
            "normalized": normalized, "special": special,
        })
    });
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": file.normalizer.as_ref().map(Normal::json),
        "pre_tokenizer": file.pre_tokenizer.as_ref().map(Pre::json), "post_processor": null,
        "decoder": file.decoder.as_ref().map(Decoder::json), "model": file.model.json(),
    });
    let Ok(tokenizer) = Tokenizer::from_json(json.to_string()) else { return };
    for line in lines.into_iter().chain(["", " ", "aaaaaaaa ab\u{FDFA}é"]) {
        for ids in [tokenizer.encode(line), tokenizer.sample(line, RandomSplit::Dropout(0.5), 1)] {
            assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
            // Normalised and split, each time sixteenfold.
            assert!(ids.len() <= 300 * (line.len() + 300), "{} of {}", ids.len(), line.len());
            let text = tokenizer.decode(&ids);
            assert!(text.len() <= 1 << 26);
            tokenizer.marked(&ids);
        }
        tokenizer.decode_pieces(&tokenizer.pieces(line).join(" "));
    }
    tokenizer.decode(&(0..tokenizer.vocab_size() as u32).collect::<Vec<_>>());
});
