//! A SentencePiece model of any pieces, options and table of replaced characters, and any line through it.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use mt::data::tokenizer::Tokenizer;

#[derive(Arbitrary, Debug)]
struct Normal<'a> {
    length: Option<u32>,
    /// Units of a trie, at places where text leads.
    units: Vec<(u8, u32)>,
    replacements: &'a str,
    options: [Option<bool>; 3],
}

#[derive(Arbitrary, Debug)]
struct Model<'a> {
    pieces: Vec<(&'a str, f32, u8)>,
    is_bpe: bool,
    has_bytes: bool,
    is_suffix: bool,
    names: [Option<&'a str>; 4],
    normal: Option<Normal<'a>>,
    denormal: Option<Normal<'a>>,
}

fn number(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7F {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn int(tag: u64, value: u64, out: &mut Vec<u8>) {
    number(tag << 3, out);
    number(value, out);
}

fn bytes(tag: u64, value: &[u8], out: &mut Vec<u8>) {
    number(tag << 3 | 2, out);
    number(value.len() as u64, out);
    out.extend(value);
}

fn piece(text: &str, score: f32, kind: u8, out: &mut Vec<u8>) {
    let mut inner = Vec::new();
    bytes(1, text.as_bytes(), &mut inner);
    number(2 << 3 | 5, &mut inner);
    inner.extend(score.to_le_bytes());
    int(3, kind.into(), &mut inner);
    bytes(1, &inner, out);
}

impl Normal<'_> {
    fn write(&self) -> Vec<u8> {
        let mut units = [0u32; 256];
        self.units.iter().for_each(|(at, unit)| units[usize::from(*at)] = *unit);
        let length = self.length.unwrap_or(4 * units.len() as u32).to_le_bytes();
        let trie = units.iter().flat_map(|unit| unit.to_le_bytes());
        let table: Vec<u8> = length.into_iter().chain(trie).chain(self.replacements.bytes()).collect();
        let mut out = Vec::new();
        if !self.units.is_empty() {
            bytes(2, &table, &mut out);
        }
        for (option, tag) in self.options.iter().zip(3..) {
            option.iter().for_each(|option| int(tag, (*option).into(), &mut out));
        }
        out
    }
}

impl Model<'_> {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let usual =
            [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("▁", -1.0, 1), ("a", -2.0, 1), ("aa", -3.0, 1)];
        for (text, score, kind) in usual.into_iter().chain(self.pieces.iter().copied()) {
            piece(text, score, kind % 7, &mut out);
        }
        if self.has_bytes {
            (0..=u8::MAX).for_each(|byte| piece(&format!("<0x{byte:02X}>"), 0.0, 6, &mut out));
        }
        let mut trainer = Vec::new();
        int(3, if self.is_bpe { 2 } else { 1 }, &mut trainer);
        int(24, self.is_suffix.into(), &mut trainer);
        int(35, self.has_bytes.into(), &mut trainer);
        for (name, tag) in self.names.iter().zip([44, 46, 47, 48]) {
            name.iter().for_each(|name| bytes(tag, name.as_bytes(), &mut trainer));
        }
        bytes(2, &trainer, &mut out);
        self.normal.iter().for_each(|normal| bytes(3, &normal.write(), &mut out));
        self.denormal.iter().for_each(|normal| bytes(5, &normal.write(), &mut out));
        out
    }
}

fuzz_target!(|input: (Model, Vec<&str>)| {
    let (model, lines) = input;
    let Ok(tokenizer) = Tokenizer::from_bytes(model.write()) else { return };
    for line in lines.into_iter().chain(["", " ", "aaaaaaa b é\u{FDFA}"]) {
        let ids = tokenizer.encode(line);
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        // Normalised, and each byte of it a piece.
        assert!(ids.len() <= 17 * line.len() + (1 << 13), "{} of {}", ids.len(), line.len());
        tokenizer.decode(&ids);
        tokenizer.decode_pieces(&tokenizer.pieces(line).join(" "));
    }
    let again = Tokenizer::from_json(tokenizer.json().to_owned()).unwrap();
    assert_eq!(again.vocab_size(), tokenizer.vocab_size());
});
