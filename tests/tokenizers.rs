//! Given tokenizers, which `mt` has not learnt, on the command line.

mod common;

use common::marian::{WORDS, sentencepiece};
use common::project::{CONFIG, Project, fails, file, sets, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use serde_json::Value;

/// A project whose configuration has this `[tokenizer]`.
fn project(tokenizer: &str) -> Project {
    let project = Project::new();
    project.write("spm.model", sentencepiece(&WORDS));
    configure(&project, tokenizer);
    project
}

fn configure(project: &Project, tokenizer: &str) {
    let learnt = "[tokenizer]\nvocab_size = 320\ndropout = 0.1\n";
    assert!(CONFIG.contains(learnt));
    project.write("small.toml", CONFIG.replace(learnt, &format!("[tokenizer]\n{tokenizer}\n")));
}

#[test]
fn a_sentencepiece_model_is_trained_with() {
    let project = project("path = \"spm.model\"");
    let mut transcript = Transcript::new(&project);
    transcript.messages(&["train", "--config", "small.toml", "--dry-run"]);
    succeeds(&project.train(&[]));
    let stored: Value = serde_json::from_slice(&file(&project, "runs/small", "tokenizer.json")).unwrap();
    assert_eq!((stored["type"].as_str(), stored["appended"][0].as_str()), (Some("sentencepiece"), Some("<pad>")));
    for model in
        [&["--tokenizer", "spm.model"][..], &["--tokenizer", "runs/small/tokenizer.json"], &["--model", "runs/small"]]
    {
        let tokenize = [&["tokenize", "-q"], model].concat();
        assert_eq!(
            stdout(&project.mt_with_input(&tokenize, "the cat eats ☃\n".as_bytes())),
            "▁the ▁cat ▁ e a t s ▁ ☃\n"
        );
        let detokenize = [&["detokenize", "-q"], model].concat();
        let text = project.mt_with_input(&detokenize, "▁the ▁cat ▁ e a t s ▁ ☃\n".as_bytes());
        assert_eq!(stdout(&text), "the cat eats ☃\n");
    }
    succeeds(&project.mt(&["translate", "the cat sleeps", "--model", "runs/small"]));
    let info: Value = serde_json::from_str(&stdout(&project.mt(&["info", "small.toml", "--json"]))).unwrap();
    assert_eq!(info["vocabulary"]["target"], 48);
    succeeds(&project.mt(&["train", "--config", "small.toml", "--dry-run"]));
    succeeds(&project.mt(&["check", "--config", "small.toml"]));
    // A run is resumed with its own copy, wherever the file is, but not with another tokenizer.
    let resume = |more: &[&str]| project.train(&[&["--resume", "--set", "train.max_updates=14"], more].concat());
    project.write("moved.model", sentencepiece(&WORDS));
    std::fs::remove_file(project.path("spm.model")).unwrap();
    succeeds(&resume(&["--set", "tokenizer.path=moved.model"]));
    succeeds(&resume(&["--set", "train.max_updates=15"]));
    project.write("moved.model", sentencepiece(&WORDS[..5]));
    transcript.train(&["--resume", "--set", "train.max_updates=16", "--set", "tokenizer.path=moved.model"]);
    assert_transcript!(transcript);
}

/// No translation can equal a reference that the tokenizer changes.
#[test]
fn what_a_tokenizer_does_to_references_is_said() {
    let given = project("path = \"spm.model\"");
    let references = String::from_utf8(file(&given, ".", "valid.de")).unwrap();
    let mut transcript = Transcript::new(&given);
    // Normalisation composes decomposed text, which changes it too.
    for (ending, set) in [("a", &[][..]), ("é", &[]), ("e\u{301}", &["tokenizer={vocab_size=320}"])] {
        given.write("valid.de", references.replace('\n', &format!(" {ending}\n")));
        transcript.note(&format!("all references end in {ending:?}"));
        transcript.with_keys("check", set);
    }
    assert_transcript!(transcript);
}

#[test]
fn each_side_can_have_its_own() {
    let project = project("path = \"spm.model\"\ntarget_path = \"runs/other/tokenizer.json\"");
    project.write("other.toml", CONFIG);
    succeeds(&project.mt(&[
        "train",
        "-q",
        "--config",
        "other.toml",
        "--run-dir",
        "runs/other",
        "--set",
        "train.max_updates=1",
    ]));
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    assert_eq!(file(&project, "runs/small", "tokenizer.tgt.json"), file(&project, "runs/other", "tokenizer.json"));
    let config = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    assert!(config.contains("joint = false") && config.contains("tie = \"decoder\""), "{config}");
    succeeds(&project.mt(&["translate", "the cat", "--model", "runs/small"]));
}

/// The file that is extended lies below, though it is read later.
#[test]
fn a_file_may_be_named_above_a_configuration_that_learns() {
    let project = project("vocab_size = 500");
    project.write("top.toml", "extends = \"small.toml\"\n[tokenizer]\npath = \"spm.model\"\n");
    succeeds(&project.mt(&["train", "--config", "top.toml", "--dry-run"]));
    configure(&project, "path = \"spm.model\"");
    project.write("top.toml", "extends = \"small.toml\"\n[tokenizer]\nvocab_size = 500\n");
    let mut transcript = Transcript::new(&project);
    transcript.run("train --config top.toml --dry-run");
    assert_transcript!(transcript);
}

#[test]
fn what_a_file_cannot_do_is_refused() {
    let project = project("");
    project.write("empty.model", "");
    project.write("bpe.codes", "#version: 0.2\nt h\nth e</w>\n");
    let mut transcript = Transcript::new(&project);
    for (tokenizer, keys) in [
        ("path = 'spm.model'\nvocab_size = 500\nlowercase = true", &[][..]),
        ("path = 'spm.model'", &["tokenizer.lowercase=true", "tokenizer.tags=['<a>']"]),
        ("target_path = 'spm.model'", &[]),
        ("path = 'spm.model'\ndropout = 0.1", &[]),
        ("path = 'none.model'\ntarget_path = 'none.model'", &["model.tie=all"]),
        ("path = 'none.model'\ntarget_path = 'small.toml'", &[]),
        ("path = 'empty.model'", &[]),
        ("path = 'bpe.codes'", &[]),
        ("kind = 'subword-nmt'\ndropout = 0.1\nlowercase = true", &[]),
    ] {
        configure(&project, tokenizer);
        transcript.note(&format!("[tokenizer] {}", tokenizer.replace('\n', "; ")));
        transcript.train(&sets(keys));
    }
    assert_transcript!(transcript);
    // A later configuration may name a file although an earlier one has settings for learning.
    project.write("small.toml", CONFIG);
    succeeds(&project.train(&sets(&["tokenizer.path=spm.model", "tokenizer.dropout=0", "train.max_updates=1"])));
}

#[test]
fn text_that_a_tokenizer_does_not_know_is_told_of() {
    let foreign = project("path = \"words.json\"");
    foreign.write(
        "words.json",
        mt::data::tokenizer::Tokenizer::from_words(
            ["<pad>", "</s>", "<unk>", "nothing"]
                .iter()
                .zip(0..)
                .map(|(piece, id)| ((*piece).to_owned(), id))
                .collect(),
        )
        .unwrap()
        .json(),
    );
    let mut transcript = Transcript::new(&foreign);
    succeeds(&transcript.warnings(&["train", "--config", "small.toml", "--set", "train.max_updates=1"]));
    // So they are when the model is used.
    transcript.messages(&["embed", "--model", "runs/small", "the cat"]);
    transcript.messages(&["score", "--model", "runs/small", "--src", "valid.en", "--tgt", "valid.de"]);
    assert_transcript!(transcript);
}

#[test]
fn text_that_is_split_already_is_joined_again() {
    let project = project("kind = \"subword-nmt\"\nvocab_size = 300");
    for (name, text) in [("train", 120), ("valid", 6)] {
        for (side, lines) in [("en", common::project::SOURCE), ("de", common::project::TARGET)] {
            let split = |line: &str| {
                line.replace("sleeps", "sle@@ eps").replace("schläft", "schl@@ äft").replace("Katze", "Kat@@ ze")
                    + " and@@ er@@ swo ."
            };
            let lines: Vec<String> = lines.iter().cycle().take(text).map(|line| split(line)).collect();
            project.write(&format!("{name}.{side}"), lines.join("\n") + "\n");
        }
    }
    let steps = [
        "--set",
        "train.max_updates=150",
        "--set",
        "valid.every=150",
        "--set",
        "train.save_every=150",
        "--set",
        "model.dropout=0",
    ];
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &steps[..]].concat()));
    // References may have tokens that no translation has; the perplexity is still that of training and of `mt score`.
    project.write("unknown.de", "die Ж Kat@@ ze\n");
    project.write("unknown.en", "the cat\n");
    let model = ["--model", "runs/small", "-q", "--json"];
    let files = ["--src", "unknown.en", "--ref", "unknown.de"];
    let found = project.mt(&[&["eval", "--ppl"], &model[..], &files].concat());
    succeeds(&found);
    let found: Value = serde_json::from_str(&stdout(&found)).unwrap();
    let scored = project.mt(&[&["score", "--src", "unknown.en", "--tgt", "unknown.de"], &model[..]].concat());
    let scored: Value = serde_json::from_str(&stdout(&scored)).unwrap();
    let (perplexity, tokens) = (found["ppl"]["score"].as_f64().unwrap(), found["ppl"]["tokens"].as_f64().unwrap());
    let log_prob = scored["log_prob"].as_f64().unwrap();
    assert!((perplexity.ln() * tokens + log_prob).abs() < 1e-4, "{found} {scored}");
    assert!(tokens >= 4.0, "{found}");
    let bleu = project.logged("runs/small", "valid").pop().unwrap()["bleu"].as_f64();
    // The model has learnt the text by heart; BLEU can only be so high if the references are joined.
    assert!(bleu.unwrap() > 90.0, "{bleu:?}");
    let output = project.mt(&["translate", "the cat sle@@ eps and@@ er@@ swo .", "--model", "runs/small", "-q"]);
    assert_eq!(stdout(&output), "die Katze schläft anderswo .\n");
    succeeds(&project.mt(&["translate", "the cat", "--model", "runs/small", "-q", "--prefix", "die"]));
    transcript.mt(&["translate", "the cat", "--model", "runs/small", "--prefix", "die Ж"]);
    assert_transcript!(transcript);
    let eval = project.mt(&["eval", "--model", "runs/small", "-q", "--bleu", "--json"]);
    let scores: Value = serde_json::from_str(&stdout(&eval)).unwrap();
    assert!(scores["bleu"]["score"].as_f64().unwrap() > 90.0, "{scores}");
}

/// Merges of subword-nmt that make whole words of up to five letters, and two pieces of longer ones.
fn codes() -> String {
    let words = common::project::SOURCE.iter().chain(common::project::TARGET).flat_map(|line| line.split(' '));
    let mut lines = Vec::new();
    for word in words {
        let letters: Vec<String> = word.chars().map(String::from).collect();
        let (first, last) = letters.split_at(if letters.len() > 5 { 4 } else { 0 });
        let ending = last.iter().rev().skip(1).rev().cloned().chain(last.last().map(|letter| format!("{letter}</w>")));
        for part in [first.to_vec(), ending.collect()] {
            let mut merged = part.first().cloned().unwrap_or_default();
            for letter in part.iter().skip(1) {
                lines.push(format!("{merged} {letter}"));
                merged += letter;
            }
        }
    }
    lines.dedup();
    "#version: 0.2\n".to_owned() + &lines.join("\n") + "\n"
}

/// Settings with which the small model learns its text by heart.
const BY_HEART: [&str; 8] = [
    "--set",
    "train.max_updates=150",
    "--set",
    "valid.every=150",
    "--set",
    "train.save_every=150",
    "--set",
    "model.dropout=0",
];

#[test]
fn codes_split_raw_text_and_translations_are_joined() {
    let project = project("kind = \"subword-nmt\"\ncodes = \"bpe.codes\"\nvocab_size = 300");
    project.write("bpe.codes", codes());
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &BY_HEART[..]].concat()));
    assert_transcript!(transcript);
    // They may move, but not change.
    let resume = |codes: &str| {
        let set = format!("tokenizer.codes=\"{codes}\"");
        let args = ["train", "--config", "small.toml", "--resume", "--set", &set];
        project.mt(&[&args[..], &BY_HEART[..]].concat())
    };
    project.write("moved.codes", codes());
    succeeds(&resume("moved.codes"));
    project.write("other.codes", "#version: 0.2\nt h\n");
    let other = resume("other.codes");
    fails(&other, 2, &["the codes, or their vocabulary, are not those that the run began with"]);
    // The run has its own copy.
    std::fs::remove_file(project.path("bpe.codes")).unwrap();
    let model = ["--model", "runs/small", "-q"];
    let translated = project.mt(&[&["translate", "the cat sleeps"], &model[..]].concat());
    assert_eq!(stdout(&translated), "die Katze schläft\n");
    let pieces = stdout(&project.mt(&[&["tokenize", "the cat  sleeps"], &model[..]].concat()));
    assert_eq!(pieces, "the cat slee@@ ps\n");
    assert_eq!(
        stdout(&project.mt_with_input(&[&["detokenize"], &model[..]].concat(), pieces.as_bytes())),
        "the cat sleeps\n"
    );
    let eval = project.mt(&[&["eval", "--chrf", "--json"], &model[..]].concat());
    let scores: Value = serde_json::from_str(&stdout(&eval)).unwrap();
    assert!(scores["chrf"]["score"].as_f64().unwrap() > 90.0, "{scores}");
    succeeds(&project.train(&[&BY_HEART[..], &["--resume", "--set", "train.max_updates=152"]].concat()));
    // Other programs' tokenizers take what the codes have split.
    succeeds(&project.mt(&["export", "runs/small", "--format", "hf-marian", "--out", "exported", "-q"]));
    let exported: Value = serde_json::from_slice(&file(&project, "exported", "tokenizer.json")).unwrap();
    assert_eq!(exported["model"]["type"], "WordLevel");
    assert_eq!(file(&project, "exported", "bpe.codes"), codes().into_bytes());
    // A model that is fine-tuned keeps its codes, with dropout, too.
    project.write(
        "tuned.toml",
        CONFIG.replace("vocab_size = 320\ndropout = 0.1", "dropout = 0.2") + "\n[decode]\nbeam = 1\n",
    );
    let tuned =
        ["train", "-q", "--config", "tuned.toml", "--set", "train.init=runs/small", "--set", "train.max_updates=2"];
    succeeds(&project.mt(&tuned));
    let again = project.mt(&["tokenize", "--model", "runs/tuned", "-q", "the cat  sleeps"]);
    assert_eq!(stdout(&again), pieces);
}

/// One vocabulary, but each language is split only into pieces that it has: what subword-nmt recommends.
#[test]
fn sides_with_one_vocabulary_may_be_split_differently() {
    let tokenizer = "kind = \"subword-nmt\"\ncodes = \"bpe.codes\"\nvocabulary = \"vocab.en\"\n\
                     target_vocabulary = \"vocab.de\"\n\
                     vocabulary_threshold = 2\nvocab_size = 300\ndropout = 0.1";
    let project = project(tokenizer);
    project.write("bpe.codes", codes());
    project.write("vocab.en", "the 9\ncat 9\nslee@@ 9\nps 9\neats 1\n");
    project.write("vocab.de", "die 9\nKatze 9\nschläft 9\neats 9\n");
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let pieces = |side: &[&str]| {
        let args = [&["tokenize", "--model", "runs/small", "-q", "cat eats Katze"], side].concat();
        stdout(&project.mt(&args))
    };
    assert_eq!(pieces(&[]), "cat e@@ a@@ t@@ s K@@ a@@ t@@ z@@ e\n");
    assert_eq!(pieces(&["--target"]), "c@@ a@@ t eats Katze\n");
    let config = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    assert!(config.contains("joint = true") && config.contains("tie = \"all\""), "{config}");
    succeeds(&project.mt(&["translate", "the cat", "--model", "runs/small", "-q"]));
}

#[test]
fn codes_that_do_not_go_together_are_refused() {
    let project = project("");
    let kind = "kind = 'subword-nmt'; ";
    let codes = "kind = 'subword-nmt'; codes = 'bpe.codes'; ";
    let mut transcript = Transcript::new(&project);
    for tokenizer in [
        "codes = 'bpe.codes'",
        &format!("{kind}target_codes = 'a'"),
        &format!("{kind}vocabulary = 'a'"),
        &format!("{codes}target_vocabulary = 'a'"),
        &format!("{codes}vocabulary_threshold = 5"),
        &format!("{codes}lowercase = true"),
        "path = 'spm.model'; codes = 'bpe.codes'",
        // Files are looked at before text is read.
        &format!("{codes}vocabulary = 'list'; target_vocabulary = 'other'"),
    ] {
        configure(&project, &tokenizer.replace("; ", "\n"));
        transcript.note(&format!("[tokenizer] {tokenizer}"));
        transcript.train(&[]);
    }
    project.write("bpe.codes", "#version: 0.2\na b c d\n");
    transcript.train(&[]);
    assert_transcript!(transcript);
}

/// Of byte-pair encoding that is run by the library.
#[test]
fn a_foreign_tokenizer_with_dropout_trains_reproducibly() {
    let letters: Vec<String> = "abcdefghijklmnoprstuwzHKKäö".chars().map(String::from).collect();
    let mut vocab = serde_json::Map::new();
    for piece in ["<pad>", "<s>", "</s>", "<unk>", "th", "the", "ca", "cat", "di", "die"]
        .iter()
        .map(|it| (*it).to_owned())
        .chain(letters)
    {
        let next = vocab.len();
        vocab.entry(piece).or_insert(next.into());
    }
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": 0.5, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": [["t", "h"], ["th", "e"], ["c", "a"], ["ca", "t"], ["d", "i"], ["di", "e"]],
        },
    });
    let losses = |dropout: &str, run: &str| -> Vec<f64> {
        let project = project("path = \"bpe.json\"");
        project.write("bpe.json", file.to_string());
        succeeds(&project.train(&["--run-dir", run, "--set", dropout]));
        let tokenize = ["tokenize", "--model", run, "-q", "the cat"];
        (0..5).for_each(|_| assert_eq!(stdout(&project.mt(&tokenize)), "the cat\n"));
        project.logged(run, "train").iter().map(|entry| entry["loss"].as_f64().unwrap()).collect()
    };
    let [plain, dropped] = ["tokenizer.dropout=0", "tokenizer.dropout=0.3"].map(|dropout| losses(dropout, "runs/a"));
    assert_eq!(plain, losses("tokenizer.dropout=0", "runs/b"));
    assert_eq!(dropped, losses("tokenizer.dropout=0.3", "runs/b"));
    assert_ne!(plain, dropped);
}
