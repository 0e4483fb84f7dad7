//! Tags at the beginning of lines and other symbols (`tokenizer.tags`, `tokenizer.symbols`), from training to
//! translation.

mod common;

use common::project::{CONFIG, Project, SOURCE, TARGET, file, sets, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use serde_json::Value;

const TAGS: &str = r#"tokenizer.tags=["<2de>", "<2en>"]"#;
const SYMBOLS: &str = r#"tokenizer.symbols=["<x>"]"#;

/// A project whose source lines begin with the wanted language, `<2en>` for a copy; only the last line does not.
fn project() -> Project {
    let project = Project::new();
    let (mut source, mut target) = (String::new(), String::new());
    for (a, b) in SOURCE.iter().zip(TARGET).cycle().take(120) {
        source += &format!("<2de> {a}\n<2en> {a}\n");
        target += &format!("{b}\n{a}\n");
    }
    project.write("train.en", source + "the cat\n");
    project.write("train.de", target + "die Katze\n");
    project.write("valid.en", SOURCE.iter().map(|line| format!("<2de> {line}\n")).collect::<String>());
    project
}

/// The settings of `trained`: enough updates to produce words.
const SETTINGS: [&str; 12] = [
    "--set",
    TAGS,
    "--set",
    SYMBOLS,
    "--set",
    "data.max_length=24",
    "--set",
    "tokenizer.vocab_size=400",
    "--set",
    "train.max_updates=150",
    "--set",
    "valid.every=75",
];

fn trained() -> Project {
    let project = project();
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &SETTINGS[..]].concat()));
    assert_transcript!(transcript, "training_with_a_line_without_a_tag");
    project
}

/// A corpus's tag makes the same model, and the same scores, as the same tag in its lines.
#[test]
fn the_tag_of_a_corpus_is_put_in_front_of_its_lines() {
    let project = project();
    let lines = |tag: &str| SOURCE.iter().map(|line| format!("{tag}{line}\n")).collect::<String>();
    let targets: String = TARGET.iter().map(|line| format!("{line}\n")).collect();
    for (name, text) in [
        ("plain.en", lines("")),
        ("with.en", lines("<2de> ")),
        ("copy.en", lines("<2en> ")),
        ("plain.de", targets),
        ("valid.en", lines("<2de> ")),
    ] {
        project.write(name, text);
    }
    let mut transcript = Transcript::new(&project);
    let mut train = |run: &str, corpora: [&str; 3]| {
        let [german, english, valid] = corpora;
        let keys = [
            format!("data.train=[{{ {german}, target = \"plain.de\" }}, {{ {english}, target = \"plain.en\" }}]"),
            format!("data.valid={{ {valid}, target = \"valid.de\" }}"),
            format!("data.test={{ {valid}, target = \"valid.de\" }}"),
            TAGS.to_owned(),
        ];
        let keys = keys.each_ref().map(String::as_str);
        transcript.warnings(&[&["train", "--config", "small.toml", "--run-dir", run], &sets(&keys)[..]].concat())
    };
    let inline = ["source = \"with.en\"", "source = \"copy.en\"", "source = \"valid.en\""];
    let stated = [
        "tag = \"<2de>\", source = \"plain.en\"",
        "tag = \"<2en>\", source = \"plain.en\"",
        "tag = \"<2de>\", source = \"plain.en\"",
    ];
    for (run, corpora) in [("inline", inline), ("stated", stated)] {
        succeeds(&train(run, corpora));
    }
    let of = |run: &str, name: &str| file(&project, run, name);
    for name in ["model.safetensors", "validation/best.txt", "tokenizer.json"] {
        assert!(of("inline", name) == of("stated", name), "{name}");
    }
    let mut eval = |run: &str, more: &[&str]| {
        // So every translation is cut.
        let length = ["--min-length", "6", "--max-length", "6"];
        let eval = ["eval", "--model", run, "--ppl", "--chrf", "--json"];
        let output = transcript.messages(&[&eval[..], &length, more].concat());
        succeeds(&output);
        stdout(&output)
    };
    let scores = eval("stated", &[]);
    assert_eq!(scores, eval("inline", &[]));
    assert_eq!(scores, eval("inline", &["--src", "plain.en", "--ref", "valid.de", "--tag", "<2de>"]));
    // Continued with another tag, or by a model that does not know it.
    let other = ["tag = \"<2en>\", source = \"plain.en\"", stated[1], stated[2]];
    let mut again = |run: &str, corpora: [&str; 3], set: &str| {
        let train = format!(
            "data.train=[{{ {}, target = \"plain.de\" }}, {{ {}, target = \"plain.en\" }}]",
            corpora[0], corpora[1]
        );
        let args = ["train", "--config", "small.toml", "--run-dir", run, "--set", &train, "--set", set, "--set", TAGS];
        transcript.warnings(&[&args[..], &["--set", "train.max_updates=13", "--resume"]].concat())
    };
    let valid = format!("data.valid={{ {}, target = \"valid.de\" }}", stated[2]);
    again("stated", other, &valid);
    succeeds(&again("stated", stated, &valid));
    let unknown = "data.train=[{ tag = \"<2fr>\", source = \"plain.en\", target = \"plain.de\" }]";
    let tuned = ["--run-dir", "tuned", "--set", unknown, "--set", "train.init=inline"];
    transcript.train(&tuned);
    assert_transcript!(transcript);

    let lines = |args: &[&str], input: &str| {
        let output = project.mt_with_input(&[args, &["--model", "stated"]].concat(), input.as_bytes());
        succeeds(&output);
        (stdout(&output), stderr(&output).contains("begin with a tag"))
    };
    let plain = "the cat sleeps\n \na dog\n";
    let tagged = "<2en> the cat sleeps\n \n<2en> a dog\n";
    project.write("hyp", "the cat\n\na dog\n");
    for args in [&["translate"][..], &["embed"], &["score", "--src", "-", "--tgt", "hyp"]] {
        let with_flag = lines(&[args, &["--tag", "<2en>"]].concat(), plain);
        assert_eq!(with_flag, lines(args, tagged), "{args:?}");
        // Such a small model may translate all alike.
        assert!(args == ["translate"] || with_flag.0 != lines(args, plain).0, "{args:?}");
        assert!(!with_flag.1);
    }
}

/// The model has never seen two.
#[test]
fn a_second_tag_is_told() {
    let project = trained();
    project.write("hyp", "Katze\nHund\n");
    project.write("two.en", "<2en> the cat\nthe dog\n");
    project.write("none.en", "the <2en> cat\n<x> dog\n");
    let mut transcript = Transcript::new(&project);
    for command in [
        // So every translation is cut.
        "translate --min-length 3 --max-length 3 --input",
        "translate --min-length 3 --max-length 3 --json --input",
        "embed --input",
        "score --tgt hyp --src",
        "eval --ref hyp --min-length 3 --max-length 3 --src",
        "eval --ref hyp --ppl --src",
    ] {
        for input in ["two.en --tag <2de>", "none.en --tag <2de>", "two.en"] {
            let line = format!("{command} {input} --model runs/small");
            succeeds(&transcript.messages(&line.split(' ').collect::<Vec<_>>()));
        }
    }
    let tagged = "data.train=[{ source = \"none.en\", target = \"hyp\", tag = \"<2de>\" }, { source = \"two.en\", \
                  target = \"hyp\", tag = \"<2de>\" }]";
    transcript.with_keys("check", &[tagged, TAGS, "tokenizer.vocab_size=300"]);
    assert_transcript!(transcript);
}

/// A model without tags reads one as text, which spoils the translation.
#[test]
fn a_tag_for_a_model_that_has_none_is_told() {
    let project = Project::new();
    let train = ["train", "--config", "small.toml", "--run-dir", "plain", "--set", "train.max_updates=2"];
    succeeds(&project.mt(&[&train[..], &["--set", SYMBOLS]].concat()));
    let mut transcript = Transcript::new(&project);
    for args in [
        // So every translation is cut.
        &["translate", "the cat", "--min-length", "3", "--max-length", "3"][..],
        &["embed", "the cat"],
        &["score", "--src", "valid.en", "--tgt", "valid.de"],
        &["eval", "--src", "valid.en", "--ref", "valid.de", "--min-length", "3", "--max-length", "3"],
    ] {
        for tag in ["<x> <2de>", "<x>"] {
            succeeds(&transcript.messages(&[args, &["--model", "plain", "--tag", tag]].concat()));
        }
    }
    // Compared with a model that knows it, the other is not spoilt by it.
    let tagged =
        ["train", "-q", "--config", "small.toml", "--run-dir", "tagged", "--set", "train.max_updates=2", "--set", TAGS];
    succeeds(&project.mt(&tagged));
    let mut scores = |models: &[&str], more: &[&str]| {
        let models: Vec<&str> = models.iter().flat_map(|model| ["--model", model]).collect();
        let files = ["--src", "valid.en", "--ref", "valid.de", "--min-length", "3", "--max-length", "3"];
        let args = [&["eval", "--chrf", "--json"], &files[..]].concat();
        let output = transcript.messages(&[&args[..], &models, more].concat());
        succeeds(&output);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let both = scores(&["plain", "tagged"], &["--tag", "<2de>", "--paired-bs"]);
    let alone = [scores(&["plain"], &[]), scores(&["tagged"], &["--tag", "<2de>"])];
    assert_eq!([&both[0]["chrf"]["score"], &both[1]["chrf"]["score"]], alone.each_ref().map(|of| &of["chrf"]["score"]));
    // With none that knows it, it is text for all, as for one.
    scores(&["plain", "plain"], &["--tag", "<2de>", "--paired-bs"]);
    // What a model writes may be a source again.
    let forced = ["--tag", "<2de>", "--prefix", "<2de>", "--min-length", "3", "--max-length", "3", "the cat"];
    transcript.messages(&[&["translate", "--model", "tagged"], &forced[..]].concat());
    assert_transcript!(transcript);
}

/// Scores on lines without a tag are those of translations into whatever language the model makes of them.
#[test]
fn a_validation_or_test_set_without_tags_is_told() {
    let project = project();
    let tagged = String::from_utf8(file(&project, "", "valid.en")).unwrap();
    project.write("test.en", tagged.replacen("<2de> ", "", 1));
    let mut transcript = Transcript::new(&project);
    for (command, valid) in
        [("check", tagged.as_str()), ("train", tagged.as_str()), ("check", &tagged.replace("<2de> ", ""))]
    {
        project.write("valid.en", valid);
        let set = [&SETTINGS[..], &["--set", "data.test.source=test.en", "--set", "train.max_updates=1"]].concat();
        let args = [&[command, "--config", "small.toml"], &set[..]].concat();
        if command == "check" {
            transcript.mt(&args)
        } else {
            transcript.warnings(&args)
        };
    }
    assert_transcript!(transcript);
}

#[test]
fn every_part_of_a_line_begins_with_its_tag() {
    let project = trained();
    let tokens = project.mt_with_input(&["tokenize", "-q", "--model", "runs/small"], b"<2de> cat<x>\n");
    let tokens = stdout(&tokens);
    assert!(tokens.starts_with("▁ <2de> ▁") && tokens.ends_with(" <x>\n"), "{tokens}");
    let translate = |more: &[&str]| {
        let output = project.mt(&[&["translate", "--model", "runs/small", "--max-length", "6"], more].concat());
        succeeds(&output);
        stdout(&output)
    };
    let mut transcript = Transcript::new(&project);
    let sentences = ["The cat sleeps.", "The dog eats.", "A cat eats.", "A dog runs.", "The cat runs."];
    for tag in ["<2de>", "<2en>"] {
        let long = format!("{tag} {}", sentences.join(" "));
        let output = project.mt(&["translate", "--model", "runs/small", "--max-length", "6", &long]);
        let (whole, said) = (stdout(&output), stderr(&output));
        assert!(said.contains("translated in parts") && !said.contains("begin"), "{said}");
        let alone: Vec<String> =
            sentences.iter().map(|text| translate(&[&format!("{tag} {text}")]).trim_end().to_owned()).collect();
        assert_eq!(whole.trim_end(), alone.join(" "));
    }
    // The words of each part are aligned with words of that part, though the tag is read before each.
    let json = translate(&["--json", "--alignment", &format!("<2de> {}", sentences.join(" "))]);
    let found: Value = serde_json::from_str(&json).unwrap();
    let words = |text: &str| text.split_whitespace().count();
    let (mut source, mut target, mut linked) = (1, 0, 0);
    for text in sentences {
        let made = words(&translate(&[&format!("<2de> {text}")]));
        for link in found["alignment"].as_str().unwrap().split(' ') {
            let [from, to] = [0, 1].map(|i| link.split('-').nth(i).unwrap().parse::<usize>().unwrap());
            if (target..target + made).contains(&to) {
                linked += 1;
                let is_tag_of_line = from == 0 && target == 0;
                assert!(is_tag_of_line || (source..source + words(text)).contains(&from), "{link}: {json}");
            }
        }
        (source, target) = (source + words(text), target + made);
    }
    assert!(linked > 5 && linked == words(found["translation"].as_str().unwrap()), "{json}");
    // If a line's only space follows its tag, it is halved again and again; no part is the tag alone.
    let word = "cat".repeat(32);
    let json = translate(&["--json", &format!("<2de> {word}")]);
    let found: Value = serde_json::from_str(&json).unwrap();
    let parts = found["joints"].as_array().unwrap().len() + 1;
    assert!(parts > 1 && parts.is_power_of_two(), "{json}");
    let part = translate(&[&format!("<2de> {}", &word[..word.len() / parts])]);
    assert_eq!(found["translation"], vec![part.trim_end(); parts].join(" "));
    // A forced tag is forced on every part, but is in the translation only once.
    let long = format!("<2de> {}", sentences.join(" "));
    let json = translate(&["--json", "--prefix", "<x>", &long]);
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["translation"].as_str().unwrap().matches("<x>").count(), 1, "{json}");
    assert!(found["translation"].as_str().unwrap().starts_with("<x>"));
    let first = translate(&["--prefix", "<x>", &format!("<2de> {}", sentences[0])]);
    assert!(found["translation"].as_str().unwrap().starts_with(first.trim_end()));
    let second = translate(&["--prefix", "<x>", &format!("<2de> {}", sentences[1])]);
    let second = second.trim_end().strip_prefix("<x>").unwrap().trim_start().to_owned();
    assert!(
        found["translation"].as_str().unwrap()[first.trim_end().len()..].trim_start().starts_with(&second),
        "{json}"
    );

    // Nor does it count in the score: without a length penalty that is the log-probability.
    let json = translate(&["--json", "--prefix", "<x>", "--length-penalty", "0", &long]);
    let found: Value = serde_json::from_str(&json).unwrap();
    let [score, log_prob] = ["score", "log_prob"].map(|key| found[key].as_f64().unwrap());
    let steps: f64 = found["token_log_probs"].as_array().unwrap().iter().map(|step| step.as_f64().unwrap()).sum();
    // Log-probabilities of about a hundred tokens, in f32.
    assert!((score - log_prob).abs() < 1e-9 && (score - steps).abs() < 1e-4, "{json}");
    // Nor in the order of several.
    let json = translate(&["--json", "--prefix", "<x>", "--beam", "6", "--n-best", "6", &long]);
    let found: Value = serde_json::from_str(&json).unwrap();
    let scores: Vec<f64> =
        found["n_best"].as_array().unwrap().iter().map(|one| one["score"].as_f64().unwrap()).collect();
    assert!(scores.len() > 1 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");

    let lines = ["the cat", "<2fr> the dog", "<2de> a cat", "--min-length", "3", "--max-length", "3"];
    transcript.messages(&[&["translate", "--model", "runs/small"], &lines[..]].concat());
    assert_transcript!(transcript);
    let info: Value = serde_json::from_str(&stdout(&project.mt(&["info", "runs/small", "--json"]))).unwrap();
    assert_eq!(info["history"]["target_languages"], "<2de> <2en>");
}

/// A tag that is given by flag is the model's: no other is taken, it is not counted among the words of the line, and
/// every command tells of lines without one.
#[test]
fn a_tag_by_flag_is_known_and_no_word_of_the_line() {
    let project = trained();
    let model = ["--model", "runs/small"];
    project.write("plain.en", "the cat\nthe dog\n");
    project.write("plain.de", "die Katze\nder Hund\n");
    let files = ["--src", "plain.en", "--ref", "plain.de"];
    let mut transcript = Transcript::new(&project);
    for args in [
        // So every translation is cut.
        &["translate", "the cat", "--min-length", "3", "--max-length", "3"][..],
        &["embed", "--input", "plain.en"],
        &["score", "--src", "plain.en", "--tgt", "plain.de"],
        &[&["eval", "--ppl"], &files[..]].concat(),
        &[&["eval", "--min-length", "3", "--max-length", "3"], &files[..]].concat(),
    ] {
        transcript.mt(&[args, &model, &["--tag", "<2fr>"]].concat());
        succeeds(&transcript.messages(&[args, &model].concat()));
    }
    assert_transcript!(transcript);
    let output =
        project.mt(&["augment", "--model", "runs/small", "--input", "plain.en", "--out", "made", "--beam", "1"]);
    assert!(stderr(&output).contains("do not begin with a tag"), "{}", stderr(&output));
    // A tag alone is a blank line.
    let output = project.mt_with_input(&[&["translate", "-q"], &model[..]].concat(), b"<2de>\n<2de> \n<2de> the cat\n");
    let translations: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert!(
        translations.len() == 3 && translations[..2] == ["", ""] && !translations[2].is_empty(),
        "{translations:?}"
    );
    let json = |args: &[&str]| -> Value {
        let output = project.mt(&[&["translate", "--json", "--alignment"], &model[..], args].concat());
        succeeds(&output);
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let (by_flag, in_line) = (json(&["--tag", "<2de>", "the big cat"]), json(&["<2de> the big cat"]));
    assert_eq!([&by_flag["source"], &in_line["source"]], ["the big cat", "<2de> the big cat"]);
    assert_eq!(by_flag["translation"], in_line["translation"]);
    let pairs = |json: &Value| -> Vec<(usize, usize)> {
        let pair = |pair: &str| pair.split_once('-').map(|(s, t)| (s.parse().unwrap(), t.parse().unwrap())).unwrap();
        json["alignment"].as_str().unwrap().split_whitespace().map(pair).collect()
    };
    let after_tag: Vec<_> = pairs(&in_line).into_iter().filter(|pair| pair.0 > 0).map(|(s, t)| (s - 1, t)).collect();
    assert_eq!(pairs(&by_flag), after_tag);
    assert!(!after_tag.is_empty());
    // An explanation says the same.
    succeeds(
        &project.mt(&[&["translate", "--tag", "<2de>", "--attention", "a.json", "the big cat"], &model[..]].concat()),
    );
    let explained: Value = serde_json::from_slice(&file(&project, "", "a.json")).unwrap();
    let explained_pairs: Vec<(usize, usize)> = serde_json::from_value(explained[0]["alignment"].clone()).unwrap();
    assert_eq!((explained[0]["text"].as_str(), explained_pairs), (Some("the big cat"), after_tag));
}

#[test]
fn check_tells_of_lines_without_a_tag_and_of_tags_without_a_line() {
    let project = project();
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &[r#"tokenizer.tags=["<2de>", "<2en>", "<2fr>"]"#, SYMBOLS]);
    transcript.with_keys("check", &[TAGS]);
    transcript.with_keys("check", &[r#"tokenizer.tags=["<a>", "ab"]"#]);
    assert_transcript!(transcript);
}

/// A run keeps its tokenizer, whatever the configuration says later.
#[test]
fn a_run_keeps_its_tokenizer() {
    let project = trained();
    let resume =
        |more: &[&str]| project.mt(&[&["train", "--config", "small.toml", "--resume"], &SETTINGS[..], more].concat());
    let before = file(&project, "runs/small", "config.toml");
    let mut transcript = Transcript::new(&project);
    for change in ["tokenizer.tags=[\"<2de>\"]", "tokenizer.lowercase=true", "tokenizer.vocab_size=500"] {
        for force in [&[][..], &["--force"], &["--dry-run"]] {
            let args = ["train", "--config", "small.toml", "--resume", "--set", change];
            transcript.mt(&[&args, force, &SETTINGS].concat());
        }
    }
    assert_transcript!(transcript);
    assert_eq!(file(&project, "runs/small", "config.toml"), before);
    succeeds(&resume(&["--dry-run"]));
    succeeds(&resume(&["--force", "--set", "tokenizer.dropout=0"]));
}

/// Fine-tuning can add a language; what the model knew before stays the same.
#[test]
fn tags_can_be_added_when_a_model_is_tuned() {
    let project = trained();
    let mut transcript = Transcript::new(&project);
    for joint in [true, false] {
        let separate = ["--set", "tokenizer.joint=false", "--run-dir", "runs/apart"];
        let begin = if joint { "runs/small" } else { "runs/apart" };
        if !joint {
            succeeds(&project.mt(&[&["train", "--config", "small.toml", "-q"], &SETTINGS[..], &separate].concat()));
        }
        let tuned = format!("{begin}-tuned");
        let tune = |tags: &str, more: &[&str]| {
            let (init, tags) = (format!("train.init={begin}"), format!("tokenizer.tags={tags}"));
            let joint = format!("tokenizer.joint={joint}");
            // The learning rate is too low to change anything.
            let set = [
                "--set",
                &init,
                "--set",
                &tags,
                "--set",
                &joint,
                "--set",
                SYMBOLS,
                "--set",
                "train.max_updates=1",
                "--set",
                "train.schedule.learning_rate=1e-30",
                "--set",
                "tokenizer.vocab_size=400",
            ];
            project.mt(&[&["train", "--config", "small.toml", "-q", "--run-dir", &tuned], &set[..], more].concat())
        };
        succeeds(&tune(r#"["<2de>", "<2en>", "<2it>"]"#, &[]));
        let translate = |model: &str| {
            let input = b"<2de> the cat sleeps\n<2en> a dog runs\n";
            stdout(&project.mt_with_input(&["translate", "-q", "--model", model, "--max-length", "6"], input))
        };
        assert_eq!(translate(&tuned), translate(begin));
        let info =
            |model: &str| -> Value { serde_json::from_str(&stdout(&project.mt(&["info", model, "--json"]))).unwrap() };
        assert_eq!(info(&tuned)["history"]["target_languages"], "<2de> <2en> <2it>");
        let total = |model: &str| info(model)["parameters"]["total"].as_u64().unwrap();
        // One more row of 32, in the one table or in both.
        assert_eq!(total(&tuned) - total(begin), if joint { 32 } else { 64 });
        // The run's config.toml has all tags, stated or not, so a resumed run need not state them.
        let config = String::from_utf8(file(&project, &tuned, "config.toml")).unwrap();
        assert!(
            config.contains(r#"tags = ["<2de>", "<2en>", "<2it>"]"#) && config.contains(r#"symbols = ["<x>"]"#),
            "{config}"
        );
        succeeds(&tune(r#"["<2it>"]"#, &["--resume", "--set", "train.max_updates=2"]));
        // Neither can a vocabulary grow later, nor can new rows be trained in a table that is frozen.
        transcript.note(&format!("with tokenizer.joint={joint}, <2it> and <2fr>"));
        let resumed = tune(r#"["<2it>", "<2fr>"]"#, &["--resume", "--set", "train.max_updates=3"]);
        transcript.record("mt train --resume", &resumed);
        let frozen = ["--overwrite", "--set", "train.freeze=[\"encoder\", \"source_embedding\"]"];
        transcript.note("with <2it>, where source_embedding is frozen");
        transcript.record("mt train --overwrite", &tune(r#"["<2it>"]"#, &frozen));
        assert_eq!(info(&tuned)["config"]["tokenizer"]["tags"].as_array().unwrap().len(), 3);
    }
    assert_transcript!(transcript);
}

/// What the tokenizers of a model are is recorded by a run that begins with it, whatever is left out of its
/// configuration.
#[test]
fn a_tuned_model_records_the_tokenizers_that_it_has() {
    let project = Project::new();
    let separate = ["tokenizer.joint=false", "tokenizer.lowercase=true", "tokenizer.normalization=nfc"];
    succeeds(&project.train(&sets(&separate)));
    project.write("tune.toml", CONFIG.replace("vocab_size = 320\n", ""));
    let train = |config: &str, run: &str, more: &[&str]| {
        let start = ["train", "-q", "--config", config, "--run-dir", run, "--set", "train.init=runs/small"];
        project.mt(&[&start, more].concat())
    };
    let info =
        |model: &str| -> Value { serde_json::from_str(&stdout(&project.mt(&["info", model, "--json"]))).unwrap() };
    let states = |text: &str, keys: &[&str]| {
        let all = ["joint = false", "lowercase = true", "normalization = \"nfc\""];
        for key in all.iter().chain(keys) {
            assert!(text.contains(&format!("\n{key}\n")), "{key}: {text}");
        }
    };
    let dry = stdout(&train("tune.toml", "tuned", &["--dry-run"]));
    states(&dry, &["vocab_size = 320"]);
    succeeds(&train("tune.toml", "tuned", &[]));
    let config = || String::from_utf8(file(&project, "tuned", "config.toml")).unwrap();
    states(&config(), &["vocab_size = 320"]);
    // It can be continued and begun again, with either configuration.
    let more = |updates: &'static str| ["--resume", "--set", updates];
    succeeds(&train("tune.toml", "tuned", &more("train.max_updates=13")));
    succeeds(&train("small.toml", "tuned", &more("train.max_updates=14")));
    succeeds(&train("tuned/config.toml", "tuned", &more("train.max_updates=15")));
    states(&config(), &["vocab_size = 320"]);
    let other = ["--set", "tokenizer.vocab_size=500", "--set", "tokenizer.lowercase=false"];
    let mut transcript = Transcript::new(&project);
    let resumed = train("tune.toml", "tuned", &[&more("train.max_updates=16"), &other[..]].concat());
    transcript.record(&format!("mt train --config tune.toml --resume {}", other.join(" ")), &resumed);
    assert_transcript!(transcript);
    succeeds(&train("tuned/config.toml", "again", &[]));

    // With another symbol, there are more pieces.
    let symbol = ["--set", r#"tokenizer.symbols=["<x>"]"#];
    succeeds(&train("tune.toml", "symbol", &symbol));
    let pieces = info("symbol")["vocabulary"]["source"].as_u64().unwrap();
    assert_eq!(pieces, info("tuned")["vocabulary"]["source"].as_u64().unwrap() + 1);
    let text = String::from_utf8(file(&project, "symbol", "config.toml")).unwrap();
    states(&text, &[&format!("vocab_size = {}", pieces.max(320))]);
    succeeds(&train("tune.toml", "symbol", &[&symbol[..], &more("train.max_updates=13")].concat()));
    succeeds(&train("symbol/config.toml", "symbol-again", &[]));

    // Earlier versions recorded what was left out as one vocabulary.
    project.write("tuned/config.toml", config().replace("joint = false", "joint = true"));
    assert_eq!(info("tuned")["vocabulary"]["joint"], false);
    assert!(!stdout(&project.mt(&["info", "tuned"])).contains("(joint)"));
}

#[test]
fn a_file_is_no_model_to_begin_with() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let mut transcript = Transcript::new(&project);
    for init in ["runs/small/model.safetensors", "runs/small/checkpoints/step-00000012/model.safetensors", "train.en"] {
        let set = format!("train.init={init}");
        for command in ["train", "check"] {
            transcript.messages(&[command, "--config", "small.toml", "--run-dir", "other", "--set", &set]);
        }
    }
    assert_transcript!(transcript);
}
