//! `mt eval`: metrics of files and of models, in every output format.

mod common;

use common::project::{Project, fails, file, sets, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use serde_json::Value;

#[test]
fn scores_without_a_model() {
    let project = Project::new();
    project.write("short.de", "eins\n");
    let mut transcript = Transcript::new(&project);
    for line in [
        // As in sacrebleu: lines of three words have no 4-gram, so BLEU is 0 even for a perfect translation.
        "eval --hyp valid.de --ref valid.de --bleu",
        "eval --hyp valid.de valid.en --ref valid.de --json",
        "eval --hyp short.de --ref valid.de",
        "eval --hyp valid.de --ref valid.de --tokenize 13b",
    ] {
        transcript.run(line);
    }
    assert_transcript!(transcript);
}

/// As in sacrebleu, a byte order mark is part of the first word: 7 of 8 words match, 6 of 7 pairs, and so on, so the
/// product of the precisions is 4/8.
#[test]
fn a_byte_order_mark_counts_in_what_is_scored() {
    let project = Project::new();
    let text = "eins zwei drei vier acht neun zehn elf\n";
    project.write("plain", text);
    project.write("marked", format!("\u{FEFF}{text}"));
    let score = |hyp: &str, reference: &str| {
        let output = project.mt(&["eval", "--hyp", hyp, "--ref", reference, "--json"]);
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        json["bleu"]["score"].as_f64().unwrap()
    };
    let expected = 100.0 * 0.5f64.powf(0.25);
    for (hyp, reference, expected) in
        [("marked", "plain", expected), ("plain", "marked", expected), ("marked", "marked", 100.0)]
    {
        let score = score(hyp, reference);
        assert!((score - expected).abs() < 1e-9, "{hyp} {reference}: {score}");
    }
    let mut transcript = Transcript::new(&project);
    transcript.run("eval --hyp marked --ref plain");
    assert_transcript!(transcript);
}

/// As in validation, a byte order mark is no part of a model's test set.
#[test]
fn a_byte_order_mark_is_no_part_of_a_test_set() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let text = std::fs::read_to_string(project.path("valid.de")).unwrap();
    project.write("marked.de", format!("\u{FEFF}{text}"));
    let score = |reference: &str| -> Value {
        let args =
            ["eval", "--model", "runs/small", "--src", "valid.en", "--ref", reference, "--chrf", "--bleu", "--json"];
        let output = project.mt(&args);
        succeeds(&output);
        assert!(!stderr(&output).contains("byte order mark"), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let plain = score("valid.de");
    assert!(plain["chrf"]["score"].as_f64().unwrap() > 0.0, "{plain}");
    assert_eq!(score("marked.de"), plain);
}

/// Of five words the last is wrong in one reference: 4 of 5 words match, 3 of 4 pairs, 2 of 3 and 1 of 2.
#[test]
fn a_translation_may_be_like_any_reference() {
    let project = Project::new();
    for (name, text) in [("hyp", "a b c d e\n"), ("other", "a b c d x\n"), ("same", "a b c d e\n")] {
        project.write(name, text);
    }
    let alone = 100.0 * (4.0 / 5.0 * 3.0 / 4.0 * 2.0 / 3.0 / 2.0f64).powf(0.25);
    for (references, count, expected) in
        [(&["other"][..], 1, alone), (&["other", "same"], 2, 100.0), (&["same", "other"], 2, 100.0)]
    {
        let output = project.mt(&[&["eval", "--hyp", "hyp", "--json", "--ref"], references].concat());
        succeeds(&output);
        let bleu = serde_json::from_str::<Value>(&stdout(&output)).unwrap()["bleu"].clone();
        assert!((bleu["score"].as_f64().unwrap() - expected).abs() < 1e-9, "{references:?}: {bleu}");
        assert!(bleu["signature"].as_str().unwrap().starts_with(&format!("nrefs:{count}|")), "{bleu}");
    }
}

/// Two systems and a reference, of forty lines.
fn systems() -> Project {
    let project = Project::new();
    let line =
        |i: usize, change: &str| format!("the cat number {i} sat {change} on the mat , and it was {} .\n", i % 7);
    let text = |of: &dyn Fn(usize) -> String| (0..40).map(of).collect::<String>();
    project.write("ref", text(&|i| line(i, "quietly")));
    project.write("good", text(&|i| line(i, if i % 10 == 0 { "down" } else { "quietly" })));
    project.write("bad_1", text(&|i| line(i, "right there").replace("mat", if i % 3 > 0 { "rug" } else { "mat" })));
    project
}

fn json(project: &Project, more: &[&str]) -> Value {
    let output = project.mt(&[&["eval", "--ref", "ref", "--json", "-q", "--hyp"], more].concat());
    succeeds(&output);
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn lines_and_tables() {
    let project = systems();
    let mut transcript = Transcript::new(&project);
    for line in [
        // Four of forty lines have one wrong word of 15.
        "good --bleu --chrf --chrf-word-order 2 --ter",
        "good --ter --score-only --width 4",
        "good --ter --sentence-level --score-only",
        "good --bleu --chrf --ter --json",
        "good --ter --format json --confidence",
        "good bad_1 --bleu --ter",
        "good bad_1 --ter --format json",
        "good bad_1 --ter --format json --confidence",
        // A star marks a difference that chance hardly explains; none is marked between a system and itself.
        "ref bad_1 ref --ter --paired-bs",
        "good bad_1 --ter --paired-bs --format json",
        "good bad_1 --ter --paired-bs --format latex",
    ] {
        transcript.run(&format!("eval --ref ref --hyp {line}"));
    }
    let odd = r"a\b~c^d_e%f&g#h$i{j}";
    std::fs::copy(project.path("good"), project.path(odd)).unwrap();
    transcript.run(&format!("eval --ref ref --format latex --ter --hyp {odd}"));
    assert_transcript!(transcript);
    // At the beginning of a row, LaTeX would take these for an argument of the command before it.
    for name in ["[a]", "*b"] {
        std::fs::copy(project.path("good"), project.path(name)).unwrap();
        let output = project.mt(&["eval", "--ref", "ref", "--format", "latex", "--ter", "--hyp", name]);
        assert!(stdout(&output).contains(&format!("\\midrule\n{{}}{name} & ")), "{}", stdout(&output));
    }
}

#[test]
fn differences_are_tested_against_the_first_system() {
    let project = systems();
    for (flag, samples) in [("--paired-bs", "bs:1000"), ("--paired-ar", "ar:10000")] {
        let results = json(&project, &["good", "bad_1", "good", flag, "--bleu", "--chrf", "--ter"]);
        for metric in ["bleu", "chrf", "ter"] {
            let p_value = |system: usize| results[system][metric]["p_value"].as_f64();
            assert_eq!(p_value(0), None);
            assert!(p_value(1).unwrap() < 0.01, "{results}");
            assert_eq!(p_value(2), Some(1.0), "a system is not another than itself");
            let signature = results[1][metric]["signature"].as_str().unwrap();
            assert!(signature.starts_with(&format!("nrefs:1|{samples}|seed:12345|case:")), "{signature}");
        }
    }
    // Another seed gives other samples; more samples give nearly the same answer.
    let mean = |more: &[&str]| {
        let results = json(&project, &[&["bad_1", "--confidence"], more].concat());
        (results["bleu"]["mean"].as_f64().unwrap(), results["bleu"]["confidence"].as_f64().unwrap())
    };
    let (few, other, many) = (mean(&[]), mean(&["--seed", "7"]), mean(&["--confidence-n", "20000"]));
    assert_eq!(few, mean(&["--threads", "1"]), "threads change samples");
    assert_ne!(few, other);
    for found in [few, other] {
        assert!((found.0 - many.0).abs() < 0.5 && (found.1 - many.1).abs() < 0.5, "{found:?} {many:?}");
    }
}

/// What a model that writes lower case writes is scored the same, first or second.
#[test]
fn the_order_of_models_does_not_change_their_scores() {
    let project = Project::new();
    succeeds(&project.train(&["--run-dir", "runs/a", "--set", "train.max_updates=60"]));
    succeeds(&project.train(&["--run-dir", "runs/b", "--set", "tokenizer.lowercase=true"]));
    let scores = |models: [&str; 2]| {
        let models = ["--model", models[0], "--model", models[1]];
        let output = project.mt(&[&["eval", "-q", "--json", "--chrf", "--paired-bs"], &models[..]].concat());
        succeeds(&output);
        let results: Vec<Value> = serde_json::from_str(&stdout(&output)).unwrap();
        results.into_iter().map(|result| result["chrf"]["score"].clone()).collect::<Vec<_>>()
    };
    let forward = scores(["runs/a", "runs/b"]);
    let backward = scores(["runs/b", "runs/a"]);
    assert_eq!(forward, backward.into_iter().rev().collect::<Vec<_>>());
    assert!(forward[0] != forward[1], "{forward:?}");
}

/// What a model is given before each source is no part of the test set.
#[test]
fn models_with_and_without_tags_are_compared() {
    let project = Project::new();
    succeeds(&project.train(&["--run-dir", "runs/a", "--set", "valid.tokenize=char"]));
    let tagged = |text: &str| format!("data.{text}={{source=\"{text}.en\", target=\"{text}.de\", tag=\"<2de>\"}}");
    let tagged_sets = [tagged("valid"), tagged("valid").replace("data.valid", "data.test")];
    let train = r#"data.train=[{source="train.en", target="train.de", tag="<2de>"}]"#;
    let keys = [train, "tokenizer.tags=['<2de>']", &tagged_sets[0], &tagged_sets[1]];
    succeeds(&project.train(&[&["--run-dir", "runs/b"], &sets(&keys)[..]].concat()));
    let output = project.mt(&["eval", "--model", "runs/a", "--model", "runs/b", "--paired-bs", "--bleu"]);
    succeeds(&output);
    assert!(stderr(&output).contains("runs/b counts 13a words (`valid.tokenize`): here BLEU is of char words"));
    let report = |model: &str| -> Value {
        let output = project.mt(&["eval", "--model", model, "--report", "--json", "-q", "--tokenize", "13a"]);
        succeeds(&output);
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()["report"]["systems"][0].clone()
    };
    let [a, b] = ["runs/a", "runs/b"].map(report);
    let ranges = |system: &Value| -> Vec<(Value, Value)> {
        let of = |range: &Value| (range["from"].clone(), range["lines"].clone());
        system["lengths"].as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(ranges(&a), ranges(&b));
    assert!(!b.to_string().contains("<2de>"), "{b}");
}

/// Several models form an ensemble, but a paired test compares them one by one.
#[test]
fn models_are_compared_as_their_translations_are() {
    let project = Project::new();
    succeeds(&project.train(&["--run-dir", "runs/a"]));
    succeeds(&project.train(&["--run-dir", "runs/b", "--set", "train.seed=2", "--set", "train.max_updates=4"]));
    for (model, file) in [("runs/a", "a.de"), ("runs/b", "b.de")] {
        succeeds(&project.mt(&["translate", "-q", "--model", model, "--input", "valid.en", "--output", file]));
    }
    assert_ne!(file(&project, ".", "a.de"), file(&project, ".", "b.de"));
    let compared = |what: &[&str], of: &[&str]| -> Value {
        let common = ["eval", "-q", "--json", "--chrf", "--bleu", "--paired-bs", "--ref", "valid.de"];
        let output = project.mt(&[&common, what, of].concat());
        succeeds(&output);
        serde_json::from_str(&stdout(&output).replace("runs/a", "a.de").replace("runs/b", "b.de")).unwrap()
    };
    let with_references = |of: &[&str]| -> Value {
        let output = project.mt(&[&["eval", "-q", "--json", "--chrf", "--bleu"], of].concat());
        succeeds(&output);
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let of_model = with_references(&["--model", "runs/a", "--src", "valid.en", "--ref", "valid.de", "b.de"]);
    assert_eq!(of_model, with_references(&["--hyp", "a.de", "--ref", "valid.de", "b.de"]));
    assert!(of_model["bleu"]["signature"].as_str().unwrap().starts_with("nrefs:2|"), "{of_model}");

    let models = ["--model", "runs/a", "--model", "runs/b"];
    let apart = compared(&["--src", "valid.en"], &models);
    assert_eq!(apart, compared(&[], &["--hyp", "a.de", "b.de"]));
    assert!(apart[1]["chrf"]["p_value"].is_number(), "{apart}");

    let mut transcript = Transcript::new(&project);
    let mut eval = |more: &[&str]| transcript.mt(&[&["eval", "--paired-bs"][..], &models, more].concat());
    for more in [&["--output", "both.de"][..], &["--ppl"], &["--src", "-", "--ref", "valid.de"]] {
        eval(more);
    }
    let other = ["--run-dir", "runs/b", "--overwrite", "--set", "train.max_updates=4", "--set"];
    succeeds(&project.train(&[&other[..], &["data.test={ source = \"train.en\", target = \"train.de\" }"]].concat()));
    eval(&[]);
    assert_transcript!(transcript);
}

#[test]
fn sentences_are_scored_alone() {
    let project = systems();
    let output =
        project.mt(&["eval", "--ref", "ref", "--hyp", "good", "--sentence-level", "--json", "--bleu", "--ter", "-q"]);
    succeeds(&output);
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 40);
    for (i, line) in lines.iter().enumerate() {
        let is_right = i % 10 > 0;
        assert_eq!(line["ter"]["score"].as_f64().unwrap() == 0.0, is_right, "{line}");
        assert_eq!(line["bleu"]["score"].as_f64().unwrap() > 99.9, is_right, "{line}");
        assert!(line["bleu"]["signature"].as_str().unwrap().contains("|eff:yes|"));
    }
}

/// As in sacrebleu, white space at the end of a line is dropped.
#[test]
fn white_space_at_the_end_does_not_count() {
    let project = systems();
    let reference = std::fs::read_to_string(project.path("ref")).unwrap();
    project.write("spaced", reference.replace('\n', " \u{3000}\t\n"));
    let results = json(&project, &["spaced", "--chrf", "--chrf-whitespace"]);
    assert!((results["chrf"]["score"].as_f64().unwrap() - 100.0).abs() < 1e-9, "{results}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let project = systems();
    let mut transcript = Transcript::new(&project);
    for line in [
        "--paired-bs",
        "--chrf-word-order 2",
        "--ter --paired-bs-n 9",
        "--ppl",
        "--chrf --chrf-char-order 0",
        "--confidence --confidence-n 0",
        "--tokenize ja-mecab",
        "--format latex --json",
        "--sentence-level --bleu --ter",
    ] {
        transcript.run(&format!("eval --ref ref --hyp good {line}"));
    }
    transcript.run("eval --model none --json --output -");
    assert_transcript!(transcript);
}

/// As in sacrebleu, they have no effect without BLEU, but here a message says so.
#[test]
fn flags_of_bleu_are_told_without_it() {
    let project = systems();
    let mut transcript = Transcript::new(&project);
    for line in [
        "--tokenize char --chrf",
        "--lowercase --chrf",
        "--lowercase --ter",
        "--smooth floor --ter",
        "--force --chrf --ter",
        "--force --lowercase --chrf --bleu",
        "--lowercase --chrf -q",
        "--score-only --json",
        "--score-only --format text",
    ] {
        transcript.run(&format!("eval --ref ref --hyp good {line}"));
    }
    // In a report, --tokenize also defines words, with or without BLEU.
    transcript.messages(&["eval", "--ref", "ref", "--hyp", "good", "--chrf", "--report", "--tokenize", "char"]);
    assert_transcript!(transcript);
}

/// As sacrebleu says, and of the system that it is true of.
#[test]
fn text_that_bleu_does_not_fit_is_told() {
    let project = Project::new();
    project.write("plain", "It is late.\n".repeat(100));
    project.write("tokenized", "It is late .\n".repeat(100));
    project.write("chinese", "我今天在家里看书，明天再去学校。\n".repeat(100));
    let mut transcript = Transcript::new(&project);
    for more in [&[][..], &["--bleu", "--chrf"], &["--sentence-level", "--json"], &["--force"], &["--chrf"], &["-q"]] {
        for reference in ["plain", "chinese"] {
            let args = ["eval", "--ref", reference, "--hyp", "plain", "tokenized"];
            transcript.messages(&[&args[..], more].concat());
        }
    }
    assert_transcript!(transcript);
}

#[test]
fn what_is_no_text_is_not_scored() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for (name, text) in [
        ("bzip2", &b"BZh91AY&SY and more\n"[..]),
        ("empty", b""),
        ("utf16", b"\xFF\xFEa\0\n\0"),
        ("pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"),
        ("html", b"<!DOCTYPE html>\n<html>\n</html>\n"),
        ("tmx", b"<?xml version=\"1.0\"?>\n<tmx version=\"1.4\">\n"),
        ("pdf", b"%PDF-1.7\n"),
        // Lines that end as on old Macs are none; a carriage return within is told of.
        ("old", b"a\rb\rc\rd\re\rf\r"),
        ("mixed", b"a\nb\nc\rc\nd\ne\nf\n"),
        // Text in such a language is text.
        ("tags", b"<b>\n<b>\n<b>\n<b>\n<b>\n<b>\n"),
    ] {
        project.write(name, text);
        transcript.run(&format!("eval --ref valid.de --hyp {name}"));
        let piped = project.mt_with_input(&["eval", "--hyp", "-", "--ref", "valid.de"], text);
        transcript.record(&format!("mt eval --ref valid.de --hyp - < {name}"), &piped);
    }
    for files in ["--ref pdf --hyp valid.de", "--ref pdf --hyp pdf"] {
        transcript.run(&format!("eval {files}"));
    }
    assert_transcript!(transcript);
}

#[test]
fn perplexity_is_that_of_training() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let expected = project.logged("runs/small", "final")[0]["perplexity"].as_f64().unwrap();
    let output = project.mt(&["eval", "--model", "runs/small", "--ppl", "--json", "-q"]);
    succeeds(&output);
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(found.get("bleu").is_none(), "{found}");
    let (perplexity, accuracy) = (found["ppl"]["score"].as_f64().unwrap(), found["ppl"]["accuracy"].as_f64().unwrap());
    assert!((perplexity / expected - 1.0).abs() < 1e-4, "{perplexity} {expected}");
    assert!((0.0..=1.0).contains(&accuracy));
    project.write("none", "");
    let of = |more: &[&str]| project.mt(&[&["eval", "--model", "runs/small", "--ppl", "-q"], more].concat());
    let mut transcript = Transcript::new(&project);
    let mut refused = |more: &str| {
        transcript.run(&format!("eval --model runs/small --ppl -q {more}"));
    };
    refused("--src none --ref none");
    refused("--shortlist list");
    refused("--output translated");
    // Flags that would have no effect are refused, but not those that have one, or if there are translations.
    for flags in [&["--beam", "2"][..], &["--sample"], &["--long", "error"], &["--max-length", "9"], &["--confidence"]]
    {
        refused(&flags.join(" "));
        if flags[0] != "--sample" {
            succeeds(&of(&[flags, &["--bleu"]].concat()));
        }
    }
    refused("--patience 1 --min-length 1");
    assert_transcript!(transcript);
    succeeds(&of(&["--batch-tokens", "50", "--precision", "int8"]));
    let both = project.mt(&["eval", "--model", "runs/small", "--ppl", "--bleu", "-q"]);
    assert!(stdout(&both).contains("BLEU|") && stdout(&both).contains("perplexity = "), "{}", stdout(&both));
}

/// Validation, `mt eval --ppl` and `mt score` agree on text with a byte order mark, empty lines, lines of nothing but
/// white space, white space at the ends of lines, and lines that are too long.
#[test]
fn perplexity_is_of_the_pairs_that_validation_counts() {
    let project = Project::new();
    let long = "the cat ".repeat(60);
    project.write(
        "valid.en",
        format!("\u{FEFF}the cat sleeps\na dog\n\n{long}\nthe dog eats  \na cat\n \u{3000}\na cat\n"),
    );
    project.write(
        "valid.de",
        format!("\u{FEFF}die Katze schläft\n\nein Hund\nkurz\nder Hund frisst \t\n{long}\nHund\n \u{200A}\n"),
    );
    succeeds(&project.train(&["--set", "model.max_length=80", "--set", "data.max_length=60"]));
    let expected = project.logged("runs/small", "final")[0]["perplexity"].as_f64().unwrap();
    let near = |found: f64| assert!((found / expected - 1.0).abs() < 1e-4, "{found} {expected}");
    let eval = |more: &[&str]| {
        let output = project.mt(&[&["eval", "--model", "runs/small", "--ppl"], more].concat());
        succeeds(&output);
        output
    };
    let files = ["--src", "valid.en", "--ref", "valid.de"];
    let mut transcript = Transcript::new(&project);
    let output = transcript.messages(&[&["eval", "--model", "runs/small", "--ppl", "--json"], &files[..]].concat());
    let ppl = serde_json::from_str::<Value>(&stdout(&output)).unwrap()["ppl"].clone();
    near(ppl["score"].as_f64().unwrap());
    assert_eq!((&ppl["pairs"], &ppl["left_out"]), (&8.into(), &6.into()));
    assert!(stdout(&eval(&["-q"])).contains(" tokens (6 of 8 pairs left out)"));
    // Through stdin, a byte order mark is no text either.
    for (side, other) in [(["--src", "-"], ["--ref", "valid.de"]), (["--ref", "-"], ["--src", "valid.en"])] {
        let input = std::fs::read(project.path(if side[0] == "--src" { "valid.en" } else { "valid.de" })).unwrap();
        let args = [&["eval", "--model", "runs/small", "--ppl", "--json", "-q"], &side[..], &other].concat();
        let found: Value = serde_json::from_str(&stdout(&project.mt_with_input(&args, &input))).unwrap();
        assert_eq!(found["ppl"], ppl, "{side:?}");
    }

    let scored =
        transcript.messages(&["score", "--model", "runs/small", "--json", "--src", "valid.en", "--tgt", "valid.de"]);
    let (mut sum, mut tokens) = (0.0, 0);
    for line in stdout(&scored).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let is_blank = |side: &str| line[side].as_str().unwrap().trim().is_empty();
        if !is_blank("source") && !is_blank("target") && !line["log_prob"].is_null() {
            sum += line["log_prob"].as_f64().unwrap();
            tokens += line["token_log_probs"].as_array().unwrap().len();
        }
    }
    assert_eq!(ppl["tokens"], tokens);
    near((-sum / tokens as f64).exp());
    project.write("empty", "\n\n");
    transcript.run("eval --model runs/small --ppl --src empty --ref empty");
    assert_transcript!(transcript);
}

#[test]
fn a_report_tells_where_translations_fail() {
    let project = systems();
    let source = std::fs::read_to_string(project.path("ref")).unwrap().replace("cat", "gato");
    project.write("src", source);
    let hypotheses = std::fs::read_to_string(project.path("bad_1")).unwrap();
    let mut lines: Vec<String> = hypotheses.lines().map(str::to_owned).collect();
    lines[4].clear();
    lines[7] = "the cat ".repeat(8);
    lines[9] = "the gato number 9 sat quietly on the mat , and it was 2 .".to_owned();
    project.write("bad_1", lines.join("\n") + "\n");
    let report = ["--report", "--src", "src", "--chrf", "--ter"];
    let json = json(&project, &[&["good", "bad_1"], &report[..]].concat());
    let of = |system: usize| &json["report"]["systems"][system];
    for (oddity, line) in [("empty", 5), ("looping", 8), ("copied", 10)] {
        assert_eq!(of(1)["oddities"][oddity]["lines"], Value::from(vec![line]), "{oddity}");
        assert_eq!(of(0)["oddities"][oddity]["count"], 0, "{oddity}");
    }
    assert_eq!((&of(0)["lengths"][0]["from"], &of(0)["lengths"][0]["lines"]), (&11.into(), &40.into()));
    assert!((of(0)["lengths"][0]["ter"].as_f64().unwrap() - 400.0 / 600.0).abs() < 1e-9, "{}", of(0)["lengths"]);
    assert_eq!((&of(1)["worst"][0]["line"], &of(1)["worst"][0]["chrf"]), (&5.into(), &0.0.into()));
    assert_eq!(json["report"]["differences"][0]["line"], 5);
    assert_eq!(json["scores"].as_array().unwrap().len(), 2);

    let mut transcript = Transcript::new(&project);
    for line in
        ["eval --ref ref --hyp good bad_1 --report --src src --chrf --ter", "eval --ref ref --hyp good --src src"]
    {
        transcript.run(line);
    }
    assert_transcript!(transcript);
    let same = project.mt(&["eval", "--ref", "ref", "-q", "--report", "--hyp", "good", "good"]);
    assert!(stdout(&same).ends_with("\n  no line differs\n"), "{}", stdout(&same));
}

/// Sources and training text come from the model's configuration.
#[test]
fn a_report_on_a_model() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let output = project.mt(&["eval", "--model", "runs/small", "--report", "-q"]);
    succeeds(&output);
    let text = stdout(&output);
    for words in ["words of the source", "10-99", "source       the cat sleeps"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    // A text to count words in is read before anything is translated; the model's own may be gone, or be none any more.
    let of = |args: &[&str]| project.mt(&[&["eval", "--model", "runs/small", "--report"], args].concat());
    let mut transcript = Transcript::new(&project);
    transcript.run("eval --model runs/small --report --train-text nothing.de");
    project.write("other.de", "die Katze\n".repeat(1000));
    let named = of(&["--train-text", "other.de", "-q"]);
    succeeds(&named);
    assert!(stdout(&named).contains("other.de") && stdout(&named).contains("1000"), "{}", stdout(&named));
    for file in ["train.de", "other.de"] {
        transcript.run(&format!("eval --model runs/small --report --train-text other.de --output {file}"));
    }
    let train = file(&project, "", "train.de");
    project.write("train.de", b"die Katze\nna\xEFve\n");
    assert_transcript!(transcript);
    let unreadable = of(&[]);
    succeeds(&unreadable);
    assert!(stderr(&unreadable).contains("the training text's words cannot be counted: the text is not UTF-8"));
    assert!(stdout(&unreadable).contains("the references"), "{}", stdout(&unreadable));
    project.write("train.de", train);
    // The scores stay where they are without a report.
    let json = |more: &[&str]| -> Value {
        let output = project.mt(&[&["eval", "--model", "runs/small", "--bleu", "--json", "-q"], more].concat());
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let reported = json(&["--report"]);
    assert_eq!(reported["bleu"], json(&[])["bleu"]);
    assert!(reported["report"]["systems"].is_array(), "{reported}");
}

/// The scores of `mt tune` are those that `mt eval` gives with these flags, and afterwards without flags.
#[test]
fn the_best_beam_and_length_penalty_become_those_of_the_model() {
    let project = Project::new();
    // With this penalty, short translations win.
    succeeds(&project.train(&sets(&["train.max_updates=60", "decode.length_penalty=-3"])));
    succeeds(&project.mt(&["average", "runs/small", "--last", "1", "--out", "model"]));
    let json = |args: &[&str]| -> Value {
        let output = project.mt(args);
        succeeds(&output);
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let score = |model: &str, flags: &[&str]| -> f64 {
        let args = ["eval", "--model", model, "--src", "valid.en", "--ref", "valid.de", "--chrf", "--json"];
        json(&[&args[..], flags].concat())["chrf"]["score"].as_f64().unwrap()
    };
    for model in ["runs/small", "model"] {
        let tune = ["tune", model, "--metric", "chrf", "--beam", "1,3", "--length-penalty", "0,1.5", "--json"];
        let config = || String::from_utf8(file(&project, model, "config.toml")).unwrap();
        let untouched = config();
        let found = json(&[&tune[..], &["--dry-run"]].concat());
        assert!(config() == untouched && found["written"].is_null());
        // Its own values are among them.
        let trials = found["trials"].as_array().unwrap();
        assert_eq!(trials.len(), 3 * 3);
        for trial in trials {
            let [beam, penalty] = ["beam", "length_penalty"].map(|key| trial[key].to_string());
            let flags = ["--beam", &beam, "--length-penalty", &penalty, "--length-penalty-kind", "gnmt"];
            assert_eq!(trial["score"].as_f64().unwrap(), score(model, &flags), "{trial}");
        }
        let number = |value: &Value| value["score"].as_f64().unwrap();
        // With the same width, the next penalties count, too.
        let smoothed = |index: usize| {
            let row = &trials[index / 3 * 3..][..3];
            // An end has itself beyond it.
            let around = [(index % 3).saturating_sub(1), index % 3, (index % 3 + 1).min(2)];
            around.iter().map(|place| number(&row[*place])).sum::<f64>() / 3.0
        };
        // What is worse than before is not chosen.
        let as_good = (0..9).filter(|index| number(&trials[*index]) >= number(&found["before"]));
        let most = as_good.map(smoothed).fold(0.0, f64::max);
        for (index, trial) in trials.iter().enumerate() {
            assert!((trial["smoothed"].as_f64().unwrap() - smoothed(index)).abs() < 1e-9, "{trial}");
        }
        assert!((found["best"]["smoothed"].as_f64().unwrap() - most).abs() < 1e-9, "{found}");
        let best = number(&found["best"]);
        assert_eq!(number(&found["before"]), score(model, &[]));
        assert!(number(&found["before"]) < best, "{found}");

        let again = json(&tune);
        assert_eq!((&again["trials"], &again["best"]), (&found["trials"], &found["best"]));
        assert_eq!(again["written"], format!("{model}/config.toml"));
        assert_eq!(score(model, &[]), best);
        let changed: Vec<&str> = untouched.lines().filter(|line| !config().contains(line)).collect();
        assert!(
            changed.iter().all(|line| line.starts_with("beam") || line.starts_with("length_penalty")),
            "{changed:?}"
        );
        // Now they are its own.
        assert_eq!(json(&tune)["before"], again["best"]);
    }
    // A run that has ended keeps its model and what was chosen.
    let output = project.mt(&["train", "--config", "runs/small/config.toml", "--resume"]);
    succeeds(&output);
    assert!(stderr(&output).contains("its final model stays as it is"), "{}", stderr(&output));
    let tuned = file(&project, "runs/small", "config.toml");
    succeeds(
        &project.train(&[&sets(&["train.max_updates=60", "decode.length_penalty=-3"])[..], &["--resume"]].concat()),
    );
    assert!(tuned == file(&project, "runs/small", "config.toml"));
    // Of two penalties, the better one wins by itself.
    let two = ["tune", "model", "--metric", "chrf", "--beam", "3", "--length-penalty", "0.3", "--dry-run", "--json"];
    let found = json(&two);
    let scores = found["trials"].as_array().unwrap().iter().map(|trial| trial["score"].as_f64().unwrap());
    assert_eq!(found["best"]["score"].as_f64(), scores.reduce(f64::max));
    // Whole numbers are written as such.
    let output =
        project.mt(&["tune", "model", "--beam", "2", "--length-penalty", "1", "--length-penalty-kind", "power"]);
    succeeds(&output);
    assert!(stdout(&output).contains("BLEU by beam"), "{}", stdout(&output));
    for (flags, code, words) in [
        (&["--beam", "0"][..], 2, "between 1 and 1000"),
        (&["--length-penalty", "nan"], 2, "not a number"),
        (&["--length-penalty", "99"], 2, "between -50 and 50"),
        (&["--src", "valid.en"], 2, "--src without --ref"),
        (&["--metric", "loss"], 2, "chrf"),
    ] {
        fails(&project.mt(&[&["tune", "runs/small"], flags].concat()), code, &[words]);
    }
}
