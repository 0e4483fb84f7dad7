//! Any bytes as a tokenizer.json, a SentencePiece model or our JSON of one, and any line through each that was
//! accepted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mt::data::tokenizer::{OwnIds, RandomSplit, Tokenizer};

fuzz_target!(|input: (&[u8], &str)| {
    let (bytes, line) = input;
    let with_ids = |bytes: &[u8]| {
        let vocabulary = serde_json::json!(["</s>", "<unk>", "▁a", "a", ">>b<<", "<pad>"]);
        let ids =
            OwnIds { vocabulary, special: [5, 5, 0, 1], forbidden: vec![5], language_tags: true, tags_in_text: false };
        Tokenizer::from_sentencepiece(bytes, ids)
    };
    for tokenizer in [Tokenizer::from_bytes(bytes.to_vec()), with_ids(bytes)].into_iter().flatten() {
        let drawn = |nbest| tokenizer.sample(line, RandomSplit::Unigram { alpha: 0.1, nbest }, 1);
        let dropped = tokenizer.sample(line, RandomSplit::Dropout(0.5), 1);
        for ids in [tokenizer.encode(line), dropped, drawn(0), drawn(8)] {
            assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
            tokenizer.decode(&ids);
            tokenizer.marked(&ids);
        }
        tokenizer.decode_pieces(&tokenizer.pieces(line).join(" "));
        let again = Tokenizer::from_json(tokenizer.json().to_owned()).unwrap();
        assert_eq!(again.encode(line), tokenizer.encode(line));
    }
});
