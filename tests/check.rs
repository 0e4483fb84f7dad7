//! `mt check`: problems of a corpus are found, counted and named with file and line; and training reports the same.

mod common;

use std::path::{Path, PathBuf};

use common::datasets::gzip;
use common::project::{CONFIG, Project, SOURCE, TARGET, sets, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use mt::data::check::words::Sample;
use mt::data::check::{Findings, Kind, PairCheck, Seen};
use mt::data::text::raw::windows_of_files;
use serde_json::Value;

fn found(project: &Project) -> (Option<i32>, Value) {
    let output = project.mt(&["check", "--config", "small.toml", "--json", "-q"]);
    let text = stdout(&output);
    (output.status.code(), serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", stderr(&output))))
}

/// The severity, count and first lines of one kind of finding.
fn finding(report: &Value, kind: &str) -> (String, u64, Vec<String>) {
    let findings = report["findings"].as_array().unwrap();
    let Some(finding) = findings.iter().find(|finding| finding["kind"] == kind) else { return Default::default() };
    let place = |place: &Value| {
        let file = place["file"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        format!("{file}:{}", place["line"])
    };
    let places = finding["places"].as_array().unwrap().iter().map(place).collect();
    (finding["severity"].as_str().unwrap().to_owned(), finding["count"].as_u64().unwrap(), places)
}

/// Replaces lines of the corpus; they are numbered from 1.
fn with(project: &Project, changes: &[(usize, &[u8], &[u8])]) {
    for (side, name) in ["train.en", "train.de"].into_iter().enumerate() {
        let text = std::fs::read(project.path(name)).unwrap();
        let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        for (line, source, target) in changes {
            lines[line - 1] = [source, target][side].to_vec();
        }
        project.write(name, lines.join(&b'\n'));
    }
}

const TEST: &str = r#"test = { source = "test.en", target = "test.de" }"#;

/// Gives the project text of which no pair comes twice.
fn without_repetition(project: &Project) {
    let mut stream = mt::rng::Stream::new(1, "sentences");
    let mut sentence = |_| (0..2 + stream.below(9)).map(|_| stream.below(6) as usize).collect::<Vec<_>>();
    let sentences: std::collections::BTreeSet<Vec<usize>> = (0..1200).map(&mut sentence).collect();
    let sentences: Vec<Vec<usize>> = sentences.into_iter().collect();
    let sides = [
        ("en", ["one", "two", "three", "four", "five", "six"]),
        ("de", ["eins", "zwei", "drei", "vier", "fünf", "sechs"]),
    ];
    for (side, words) in sides {
        let text = |from: usize, step: usize| -> String {
            let line = |numbers: &Vec<usize>| numbers.iter().map(|n| words[*n]).collect::<Vec<_>>().join(" ") + "\n";
            sentences.iter().skip(from).step_by(step).map(line).collect()
        };
        project.write(&format!("train.{side}"), text(0, 2));
        project.write(&format!("valid.{side}"), text(1, 50));
        project.write(&format!("test.{side}"), text(3, 50));
    }
    let test = CONFIG.replace(r#"test = { source = "valid.en", target = "valid.de" }"#, TEST);
    project.write("small.toml", test.replace("vocab_size = 320", "vocab_size = 300"));
}

/// As training refuses it, and nothing that follows from it is told.
#[test]
fn line_ends_and_encodings_that_training_refuses() {
    let project = Project::new();
    let [english, german] = ["train.en", "train.de"].map(|name| std::fs::read_to_string(project.path(name)).unwrap());
    let rows: String = english.lines().zip(german.lines()).map(|(en, de)| format!("{en}\t{de}\n")).collect();
    let old = |text: &str| text.replace('\n', "\r").into_bytes();
    let wide = |text: &str| format!("\u{FEFF}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let table = "data.train=[{ tsv = \"t.tsv\", source = 1, target = 2 }]";
    let mixed = [rows.as_bytes(), &old(&rows)].concat();
    let mut transcript = Transcript::new(&project);
    for (files, set) in [
        (&[("t.tsv", old(&rows))][..], &[table][..]),
        (&[("t.tsv", mixed)], &[table]),
        (&[("train.en", old(&english)), ("train.de", old(&german))], &[]),
        (&[("train.en", wide(&english)), ("train.de", wide(&german))], &[]),
    ] {
        files.iter().for_each(|(name, bytes)| project.write(name, bytes));
        for command in ["check", "train", "prepare"] {
            transcript.with_keys(command, set);
        }
    }
    assert_transcript!(transcript);
}

/// All of them, not only the first, which is where training stops.
#[test]
fn rows_of_too_few_columns_are_counted_and_named() {
    let project = Project::new();
    let row = |i: usize| {
        format!("\u{FEFF}the cat number {i}\t0.5\tKatze Nummer {i}\r\n").split_off(if i > 1 { 3 } else { 0 })
    };
    let mut rows: Vec<Vec<u8>> = (1..=20).map(|i| row(i).into_bytes()).collect();
    for i in [3, 4, 9] {
        rows[i - 1] = b"no tab\n".to_vec();
    }
    rows[9] = b"one\t0.5\n".to_vec();
    rows[14] = b"caf\xE9\t0.5\tx\n".to_vec();
    rows[16] = b"one\t0.5\t\n".to_vec();
    project.write("train.tsv", rows.concat());
    let check = |more: &[&str]| {
        let set = "data.train=[{ tsv = \"train.tsv\", source = 1, target = 3 }]";
        let output = project.mt(&[&["check", "--config", "small.toml", "--json", "-q", "--set", set], more].concat());
        (output.status.code(), serde_json::from_str::<Value>(&stdout(&output)).unwrap())
    };
    let (code, report) = check(&[]);
    let of = |kind: &str| finding(&report, kind);
    let places = |rows: &[usize]| rows.iter().map(|row| format!("train.tsv:{row}")).collect::<Vec<_>>();
    assert_eq!(code, Some(1));
    assert_eq!(of("columns"), ("error".to_owned(), 4, places(&[3, 4, 9, 10])));
    assert_eq!(of("not_utf8"), ("error".to_owned(), 1, places(&[15])));
    assert_eq!(of("empty_line"), ("warning".to_owned(), 1, places(&[17])));
    assert_eq!(of("byte_order_mark"), ("note".to_owned(), 1, places(&[1])));
    assert_eq!((of("carriage_return").1, of("carriage_return").2), (14, places(&[1, 2, 5, 6, 7])));
    assert_eq!((of("empty_file").1, of("shifted").1), (0, 0));
    project.write("train.tsv", rows[2].repeat(3));
    let (code, report) = check(&[]);
    assert_eq!((code, finding(&report, "columns").1, finding(&report, "empty_file").1), (Some(1), 3, 0));
    project.write("train.tsv", "");
    let (code, report) = check(&[]);
    assert_eq!((code, finding(&report, "empty_file").2), (Some(1), places(&[0])));
}

/// Also in text that is not trained on, and in the words of training.
#[test]
fn rows_of_another_number_of_columns_are_told() {
    let project = Project::new();
    let rows = |count: usize, odd: usize| {
        let row = |i| format!("the cat {i}\tKatze {i}{}\n", if i == odd { "\tmore" } else { "" });
        (1..=count).map(row).collect::<String>()
    };
    for (name, count, odd) in [("train.tsv", 40, 7), ("valid.tsv", 4, 3), ("test.tsv", 4, 2)] {
        project.write(name, rows(count, odd));
    }
    let mut sets = vec!["--set".to_owned(), "data.train=[{ tsv = 'train.tsv', source = 1, target = 2 }]".to_owned()];
    for name in ["valid", "test"] {
        sets.extend(["--set".to_owned(), format!("data.{name}={{ tsv = '{name}.tsv', source = 1, target = 2 }}")]);
    }
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let mut transcript = Transcript::new(&project);
    transcript.mt(&[&["check", "--config", "small.toml"], &sets[..]].concat());
    // It does not read the test set.
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &sets[..]].concat()));
    transcript.messages(&["eval", "--model", "runs/small", "--ppl"]);
    assert_transcript!(transcript);
    let dry = project.train(&[&["--dry-run", "--run-dir", "other"], &sets[..]].concat());
    assert_eq!(stdout(&dry).matches("a different number of columns").count(), 3, "{}", stdout(&dry));
}

#[test]
fn updates_of_more_than_an_epoch_are_warned_of() {
    let project = Project::new();
    let keys = ["train.accumulate=200", "train.max_updates=1", "valid.every=0"];
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &sets(&keys)[..]].concat()));
    assert_transcript!(transcript);
}

#[test]
fn what_would_happen_only_after_the_end_is_warned_of() {
    let project = Project::new();
    without_repetition(&project);
    let mut transcript = Transcript::new(&project);
    for keys in [
        &["train.max_updates=12", "train.schedule.warmup=12", "valid.every=13"][..],
        &["train.max_updates=12", "valid.patience=2", "valid.patience_after=13"],
        // As it should be.
        &["train.max_updates=12", "valid.patience=0", "valid.patience_after=13"],
        &["train.max_updates=12", "train.schedule.warmup=11", "valid.every=12"],
        // Training has no end, or one.
        &["train.max_updates=0", "train.max_epochs=0", "valid.every=5", "valid.patience=0"],
        &["train.max_updates=0", "train.max_epochs=0", "valid.every=0", "valid.patience=3"],
        &["train.max_updates=0", "train.max_epochs=0", "valid.every=5", "valid.patience=3"],
        &["train.max_updates=0", "train.max_epochs=1"],
        // What seldom does well.
        &["train.schedule.learning_rate=0.2", "train.schedule.warmup=8", "valid.every=12"],
        &["train.accumulate=5000"],
        &["model.norm=pre"],
        &["model.norm=pre", "model.final_norm=false"],
    ] {
        transcript.with_keys("check", keys);
    }
    assert_transcript!(transcript);
}

#[test]
fn what_training_survives_is_warned_of_with_its_lines() {
    let project = Project::new();
    // The validation set has no sentence of the training text.
    project.write("valid.en", "every cat sleeps\n");
    project.write("valid.de", "jede Katze schläft\n");
    let (code, report) = found(&project);
    let kinds = |report: &Value| -> Vec<String> {
        report["findings"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap().to_owned()).collect()
    };
    // The training text repeats six sentences.
    assert_eq!((code, kinds(&report)), (Some(0), vec!["duplicate".to_owned(), "held_out_twice".to_owned()]));
    assert_eq!(
        finding(&report, "duplicate"),
        ("note".to_owned(), 114, (7..12).map(|l| format!("train.en:{l}")).collect())
    );

    let long = "so ".repeat(4000);
    with(
        &project,
        &[
            (1, b"\xEF\xBB\xBFthe cat sleeps", "die Katze schläft".as_bytes()),
            (2, b"", b"der Hund frisst"),
            (3, b"a cat\r", b"eine Katze"),
            (4, "a dog\u{2028}runs".as_bytes(), b"ein\x0CHund rennt"),
            (5, b"a dog\0runs", b"ein Hund rennt"),
            (6, b"a dog \x1B[1mruns", b"ein Hund rennt"),
            (7, b" \t", b"ein Hund rennt"),
            (8, long.as_bytes(), b"so"),
            (9, b"the dog", b"the dog"),
            (10, "every cat sleeps".as_bytes(), "jede Katze schläft".as_bytes()),
            (11, "die Katze schläft und der Hund frisst".as_bytes(), b"the cat sleeps and the dog eats"),
            (12, "собака бежит".as_bytes(), b"ein Hund rennt"),
            (13, b"the dog eats", b"the dog sleeps and a cat runs"),
            (14, b"the dog eats", b"14\tder Hund frisst"),
        ],
    );
    let (code, report) = found(&project);
    assert_eq!(code, Some(0), "{report}");
    for (kind, severity, places) in [
        ("byte_order_mark", "note", &["train.en:1"][..]),
        ("empty_line", "warning", &["train.en:2"]),
        ("carriage_return", "note", &["train.en:3"]),
        ("line_break", "warning", &["train.en:4", "train.de:4"]),
        ("nul", "warning", &["train.en:5"]),
        ("control", "warning", &["train.en:6"]),
        ("tab", "warning", &["train.de:14"]),
        ("white_space", "warning", &["train.en:7"]),
        ("long_line", "warning", &["train.en:8"]),
        ("ratio", "warning", &["train.en:8"]),
        ("identical", "warning", &["train.en:9"]),
        ("overlap", "warning", &["train.en:10"]),
        ("swapped", "warning", &["train.en:11"]),
        ("script", "warning", &["train.en:12"]),
        ("language", "warning", &["train.de:13"]),
    ] {
        assert_eq!(
            finding(&report, kind),
            (severity.to_owned(), places.len() as u64, places.iter().map(|p| (*p).to_owned()).collect()),
            "{kind}"
        );
    }
    assert!(report["plan"]["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(report["plan"]["memory_bytes"].as_u64().unwrap() > 0);
    let mut transcript = Transcript::new(&project);
    let text = stdout(&transcript.with_keys("check", &[]));
    // In so little text most pieces are rare; --json has the same warnings as the text.
    let warnings = report["plan"]["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning.as_str().unwrap().contains("fewer than 10 times")), "{warnings:?}");
    assert!(warnings.iter().all(|warning| text.contains(&format!("warning: {}", warning.as_str().unwrap()))), "{text}");
    // And training works in spite of all this.
    succeeds(&transcript.warnings(&["train", "--config", "small.toml"]));
    assert_transcript!(transcript);
}

#[test]
fn what_training_refuses_is_an_error_in_the_same_words() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for changed in [&b"the cat\n"[..], b"", &[b"caf\xE9 noir\n", &b"the cat\n".repeat(119)[..]].concat()] {
        project.write("train.en", changed);
        transcript.with_keys("check", &[]);
        transcript.train(&[]);
    }
    assert_transcript!(transcript);
}

/// Runs `mt check` for people and, with the same exit code and messages, for programs.
fn checked(transcript: &mut Transcript<'_>, keys: &[&str]) {
    let words = transcript.with_keys("check", keys);
    let json = transcript.mt(&[&["check", "--config", "small.toml", "--json"], &sets(keys)[..]].concat());
    assert_eq!((json.status, stderr(&json)), (words.status, stderr(&words)));
}

/// A project with corpora that training refuses: `short` has fewer target lines, `latin` is not UTF-8, `empty` is
/// empty.
fn with_wrong_corpora() -> Project {
    let project = Project::new();
    project.write("short.de", "die Katze schläft\n");
    project.write("latin.en", b"caf\xE9 noir\n");
    project.write("empty.en", "");
    project.write("empty.de", "");
    project
}

/// The training text, of which one side is shorter.
const UNEVEN: &str = r#"data.train=[{ source = "train.en", target = "short.de" }]"#;

#[test]
fn nothing_is_wrong_with_good_text() {
    let project = Project::new();
    without_repetition(&project);
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &[]);
    assert_transcript!(transcript);
}

#[test]
fn missing_text_hides_nothing() {
    let project = with_wrong_corpora();
    let train =
        r#"data.train=[{ source = "train.en", target = "short.de" }, { source = "latin.en", target = "nope.de" }]"#;
    // Two corpora name nope.de.
    let test = r#"data.test={ source = "nope.en", target = "nope.de" }"#;
    let mut transcript = Transcript::new(&project);
    checked(&mut transcript, &[train, test]);
    assert_transcript!(transcript);
}

#[test]
fn damaged_text_hides_nothing() {
    let project = with_wrong_corpora();
    let whole = gzip(&std::fs::read(project.path("train.de")).unwrap());
    project.write("cut.de.gz", &whole[..whole.len() / 2]);
    let train =
        r#"data.train=[{ source = "train.en", target = "short.de" }, { source = "latin.en", target = "cut.de.gz" }]"#;
    let valid = r#"data.valid={ source = "empty.en", target = "empty.de" }"#;
    let test = r#"data.test={ source = "valid.en", target = "cut.de.gz" }"#;
    let mut transcript = Transcript::new(&project);
    checked(&mut transcript, &[train, valid, test]);
    assert_transcript!(transcript);
}

/// What to do about bytes that are not UTF-8 depends on what surrounds them.
#[test]
fn the_advice_on_encodings_fits_the_file() {
    let project = Project::new();
    project.write("damaged.en", b"na\xC3\xAFve caf\xC3\xA9\ncaf\xE9\n");
    project.write("western.en", b"caf\xE9\n\x93caf\xE9\x94\n");
    project.write("latin.de", b"Gr\xFC\xDFe\nwei\xDF\n");
    let train = "data.train=[{ source = \"damaged.en\", target = \"latin.de\" }, \
                 { source = \"western.en\", target = \"latin.de\" }]";
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &[train]);
    assert_transcript!(transcript);
}

/// A file that stands in the place of another is no text.
#[test]
fn a_corpus_that_was_not_fetched_is_told() {
    let project = Project::new();
    project.write("train.en", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n");
    project.write("train.de", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7b\nsize 13\n");
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &[]);
    transcript.train(&[]);
    assert_transcript!(transcript);
}

/// A blank line is dropped and counted, as an empty pair of two files is.
#[test]
fn blank_lines_of_a_table_are_empty_pairs() {
    let project = Project::new();
    let rows: Vec<String> = SOURCE.iter().zip(TARGET).map(|(source, target)| format!("{source}\t{target}\n")).collect();
    project.write("train.tsv", rows.concat().repeat(20) + "\n \r\n" + &rows.concat() + "\n");
    let train = "data.train=[{ tsv = \"train.tsv\", source = 1, target = 2 }]";
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &[train]);
    transcript.with_keys("prepare", &[train]);
    assert_transcript!(transcript);
}

/// A vocabulary or a model to begin with that is not there is told once, whatever the text.
#[test]
fn wrong_text_hides_no_missing_file() {
    let project = with_wrong_corpora();
    let mut transcript = Transcript::new(&project);
    for set in ["tokenizer.path=nope.json", "train.init=nope"] {
        transcript.with_keys("check", &[UNEVEN, set]);
        transcript.messages(&["check", "--config", "small.toml", "--set", set]);
        transcript.train(&["--set", set]);
    }
    assert_transcript!(transcript);
}

#[cfg(not(feature = "metal"))]
#[test]
fn neither_text_nor_device_hides_what_cannot_be() {
    let project = with_wrong_corpora();
    let device = "runtime.device=metal";
    let huge = ["model.d_model=65536", "model.d_ff=262144", "model.encoder_layers=100"];
    let mut transcript = Transcript::new(&project);
    for keys in [
        // A GPU would not use the machine's memory.
        [&[UNEVEN, device][..], &huge].concat(),
        [&[UNEVEN, "runtime.device=cpu"][..], &huge].concat(),
        [&[device][..], &huge].concat(),
    ] {
        transcript.messages(&[&["check", "--config", "small.toml"], &sets(&keys)[..]].concat());
    }
    // What does not depend on the device is known.
    transcript.with_keys("check", &[device]);
    // Training says the same.
    transcript.train(&["--set", device]);
    assert_transcript!(transcript);
}

/// The exit code is that of the first error.
#[test]
fn an_unusable_run_directory_hides_nothing() {
    let project = with_wrong_corpora();
    std::fs::create_dir_all(project.path("runs/small")).unwrap();
    project.write("runs/small/log.jsonl", "mine");
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &[UNEVEN, "tokenizer.path=nope.json"]);
    assert_transcript!(transcript);
}

/// What `mt check` reports about the run in runs/small: its update, and what `--resume` would refuse.
fn of_the_run(project: &Project) -> (Option<u64>, Vec<Value>) {
    let report = found(project).1;
    (report["run"]["update"].as_u64(), report["run"]["refused"].as_array().unwrap().clone())
}

#[test]
fn a_run_that_is_there_already_is_looked_at() {
    let project = Project::new();
    assert_eq!(found(&project).1["run"], Value::Null);
    succeeds(&project.train(&[]));
    assert_eq!(of_the_run(&project), (Some(12), vec![]));
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &[]);
    transcript.with_keys("check", &["train.max_updates=14"]);
    // Training says the same as the check.
    let mut refused = |keys: &[&str]| {
        transcript.with_keys("check", keys);
        transcript.train(&[&["--resume", "--set", "train.max_updates=14"], &sets(keys)[..]].concat());
    };
    refused(&["model.d_ff=32"]);
    let train = std::fs::read_to_string(project.path("train.en")).unwrap();
    project.write("train.en", train.replacen("cat", "dog", 1));
    refused(&[]);
    project.write("train.en", train);
    assert_eq!(of_the_run(&project), (Some(12), vec![]));

    // The tokenizer of another run: a valid file, but not this model's.
    succeeds(&project.train(&["--run-dir", "other", "--set", "tokenizer.vocab_size=300"]));
    std::fs::copy(project.path("other/tokenizer.json"), project.path("runs/small/tokenizer.json")).unwrap();
    let (update, errors) = of_the_run(&project);
    assert!(update.is_none() && errors.len() == 1, "{errors:?}");
    refused(&[]);
    std::fs::remove_file(project.path("runs/small/tokenizer.json")).unwrap();
    refused(&[]);
    assert_transcript!(transcript);
}

/// What `mt check` finds in a folder's `NAME.en` and `NAME.de`, with their own languages.
fn check(folder: &Path, name: &str, is_training: bool, seen: &mut Seen) -> Findings {
    let sides = ["en", "de"].map(|side| folder.join(format!("{name}.{side}")));
    let paths = sides.each_ref().map(PathBuf::as_path);
    let mut sample = Sample::default();
    let mut sampler = sample.sampler();
    windows_of_files(paths, |sides| sampler.add(&sides)).unwrap();
    let scripts = sampler.scripts();
    let words = sample.learn(false);
    let mut check = PairCheck::new(scripts, &words, is_training, seen);
    windows_of_files(paths, |sides| check.add(&sides)).unwrap();
    check.finish()
}

/// The benchmark corpora have as many duplicates as `sort | uniq -d` counts, and next to nothing that looks
/// untranslated.
#[test]
fn real_corpora_show_little() {
    let Some(data) = std::env::var_os("MT_TEST_DATA") else {
        return common::skipped("real_corpora_show_little", "MT_TEST_DATA is not set");
    };
    for (corpus, pairs, duplicates) in [("multi30k", 29_000, 3), ("tatoeba-en-de", 164_845, 0)] {
        let folder = Path::new(&data).join(corpus);
        let mut seen = Seen::default();
        check(&folder, "valid", false, &mut seen);
        let findings = check(&folder, "train", true, &mut seen);
        assert_eq!(findings.count(Kind::Overlap), 0);
        assert_eq!(findings.count(Kind::Duplicate), duplicates, "{corpus}");
        for kind in [
            Kind::Identical,
            Kind::EmptyLine,
            Kind::NotUtf8,
            Kind::LineCounts,
            Kind::Script,
            Kind::Shifted,
            Kind::Unrelated,
            Kind::Replacement,
            Kind::Mojibake,
        ] {
            assert_eq!(findings.count(kind), 0, "{corpus}: {kind}");
        }
        for kind in [Kind::Language, Kind::Swapped, Kind::Ratio] {
            println!("{corpus}: {} {kind}", findings.count(kind));
            assert!(findings.count(kind) * 1000 < pairs, "{corpus}: {} {kind}", findings.count(kind));
        }
        // If every hundredth pair is swapped, most swaps are found.
        let project = Project::new();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let (source, target) = (read("train.en"), read("train.de"));
        let mut swapped: Vec<(&str, &str)> = source.lines().zip(target.lines()).collect();
        swapped.iter_mut().step_by(100).for_each(|(source, target)| std::mem::swap(source, target));
        let text = |side: fn(&(&str, &str)) -> String| swapped.iter().map(|pair| side(pair) + "\n").collect::<String>();
        project.write("train.en", text(|pair| pair.0.to_owned()));
        project.write("train.de", text(|pair| pair.1.to_owned()));
        let findings = check(project.folder.path(), "train", true, &mut Seen::default());
        let found = findings.count(Kind::Swapped);
        println!("{corpus}: {found} of {} swapped pairs found", pairs / 100);
        assert!(found * 100 > pairs / 100 * 60, "{corpus}: {found}");
        // The same share of many swapped pairs: they do not blur the languages.
        let fifth = |(i, pair): (usize, (&str, &str))| {
            let (source, target) = if i % 5 == 0 { (pair.1, pair.0) } else { pair };
            (source.to_owned() + "\n", target.to_owned() + "\n")
        };
        let (a, b): (String, String) = source.lines().zip(target.lines()).enumerate().map(fifth).unzip();
        project.write("train.en", a);
        project.write("train.de", b);
        let findings = check(project.folder.path(), "train", true, &mut Seen::default());
        let found = findings.count(Kind::Swapped);
        println!("{corpus}: {found} of {} swapped pairs found", pairs / 5);
        assert!(found * 100 > pairs / 5 * 60, "{corpus}: {found}");
        // A line lost on one side is located.
        let lost = pairs / 3;
        let kept = target.lines().enumerate().filter(|(line, _)| *line != lost).map(|(_, text)| text);
        project.write("train.de", kept.collect::<Vec<_>>().join("\n") + "\n");
        project.write("train.en", &source);
        let findings = check(project.folder.path(), "train", true, &mut Seen::default());
        let (_, shifted) = findings.iter().find(|(kind, _)| *kind == Kind::Shifted).unwrap();
        println!(
            "{corpus}: line {} is lost, {} named, {} lines shifted",
            lost + 1,
            shifted.places[0].line,
            shifted.count
        );
        assert!(shifted.places[0].line.abs_diff(lost + 1) <= 20, "{corpus}: {:?}", shifted.places);
        assert!(shifted.count * 100 > (pairs - lost) * 95, "{corpus}: {} shifted", shifted.count);
        // So are fifty; and a side that is shuffled is told.
        let kept: Vec<&str> = target.lines().take(lost).chain(target.lines().skip(lost + 50)).collect();
        project.write("train.de", kept.join("\n") + "\n");
        let findings = check(project.folder.path(), "train", true, &mut Seen::default());
        let (_, shifted) = findings.iter().find(|(kind, _)| *kind == Kind::Shifted).unwrap();
        println!("{corpus}: 50 lines are lost from {} on, {} named", lost + 1, shifted.places[0].line);
        // The lines opposite those lost belong nowhere: it begins before, among or after them.
        assert!(shifted.places[0].line.abs_diff(lost + 26) <= 45, "{corpus}: {:?}", shifted.places);
        let mut shuffled: Vec<&str> = target.lines().collect();
        mt::rng::Stream::new(1, "shuffled").shuffle(&mut shuffled);
        project.write("train.de", shuffled.join("\n") + "\n");
        let findings = check(project.folder.path(), "train", true, &mut Seen::default());
        assert!(findings.count(Kind::Unrelated) * 100 > pairs * 90, "{corpus}: {}", findings.count(Kind::Unrelated));
    }
}

/// A model that can be trained but seldom should be causes a warning, not an error.
#[test]
fn a_stack_that_ends_without_a_norm_is_trained() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "model.norm=pre", "--set", "model.final_norm=false"]));
    let average = ["--length-penalty-kind", "average", "--length-penalty", "2"];
    succeeds(&project.mt(&[&["translate", "--model", "runs/small", "the cat"], &average[..]].concat()));
}

/// Text is read in windows of 65,536 lines, of which findings know nothing.
#[test]
fn findings_are_the_same_across_windows() {
    let folder = tempfile::tempdir().unwrap();
    let lines = 140_000;
    let mut sides = ["en", "de"].map(|side| -> Vec<String> {
        let length = |i: usize| 1 + (i * 7919) % 23;
        (0..lines).map(|i| format!("{side}{i}") + &format!(" word{side}").repeat(length(i))).collect()
    });
    // Empty at the end of a window and at the beginning of the next, …
    for line in [65_535, 65_536, 131_071] {
        sides[0][line] = String::new();
    }
    // … a pair that has come two windows before, and a line lost in the second window.
    sides.iter_mut().for_each(|side| side[139_000] = side[10].clone());
    sides[1].remove(100_000);
    for (side, name) in sides.iter().zip(["train.en", "train.de"]) {
        std::fs::write(folder.path().join(name), side.join("\n") + "\n").unwrap();
    }
    let findings = check(folder.path(), "train", true, &mut Seen::default());
    let places = |wanted: Kind| -> Vec<usize> {
        let found = findings.iter().find(|(kind, _)| *kind == wanted);
        found.map_or(Vec::new(), |(_, finding)| finding.places.iter().map(|place| place.line).collect())
    };
    assert_eq!(places(Kind::EmptyLine), [65_536, 65_537, 131_072]);
    assert_eq!(places(Kind::LineCounts), [140_000]);
    let [shift] = places(Kind::Shifted)[..] else { panic!("{:?}", places(Kind::Shifted)) };
    assert!((99_900..=100_100).contains(&shift), "{shift}");
    assert_eq!(findings.count(Kind::Duplicate), 0, "the pair's target is another since the line was lost");
    sides[1].insert(100_000, "back".to_owned());
    std::fs::write(folder.path().join("train.de"), sides[1].join("\n") + "\n").unwrap();
    let findings = check(folder.path(), "train", true, &mut Seen::default());
    assert_eq!((findings.count(Kind::Shifted), findings.count(Kind::LineCounts)), (0, 0));
    let duplicates = findings.iter().find(|(kind, _)| *kind == Kind::Duplicate).unwrap().1;
    assert_eq!((duplicates.count, duplicates.places[0].line), (1, 139_001));
}

/// Pairs of two languages whose direction alternates.
fn alternating(pairs: usize) -> [Vec<Vec<u8>>; 2] {
    let line = |language: &str, i: usize| -> Vec<u8> {
        let words = (0..6).map(|word| format!("{language}{} ", char::from(b'a' + ((i * 7 + word * 3) % 20) as u8)));
        words.collect::<String>().into_bytes()
    };
    let side = |first: &'static str, second: &'static str| {
        (0..pairs).map(move |i| line(if i % 2 == 0 { first } else { second }, i)).collect()
    };
    [side("in", "out"), side("out", "in")]
}

fn write_sides(folder: &Path, sides: &[Vec<Vec<u8>>; 2]) {
    for (side, name) in sides.iter().zip(["train.en", "train.de"]) {
        std::fs::write(folder.join(name), side.join(&b'\n')).unwrap();
    }
}

/// Both directions are intended then. Words are learnt from a part of large corpora, and not from pairs that cannot be
/// read.
#[test]
fn corpora_of_both_directions_are_not_swapped() {
    let folder = tempfile::tempdir().unwrap();
    let mut sides = alternating(220_000);
    write_sides(folder.path(), &sides);
    let swapped = || check(folder.path(), "train", true, &mut Seen::default()).count(Kind::Swapped);
    assert_eq!(swapped(), 0);
    sides.iter_mut().for_each(|side| side.truncate(20_000));
    // Of the others, half are either way.
    sides[1].chunks_mut(4).for_each(|lines| lines[..2].iter_mut().for_each(|line| line.push(0xFF)));
    write_sides(folder.path(), &sides);
    assert_eq!(swapped(), 0);
}

/// However much of it comes before the damage.
#[test]
fn words_are_not_learnt_from_text_that_is_damaged() {
    let project = Project::new();
    let sides = alternating(150_000);
    let of = |side: usize, kind: usize| sides[side].iter().skip(kind).step_by(2).cloned().collect::<Vec<_>>();
    let good = [of(0, 0), of(1, 0)].map(|side| side[..5_000].join(&b'\n'));
    let bad = [of(0, 1), of(1, 1)].map(|side| side.join(&b'\n'));
    for (name, text) in [("good.en", &good[0]), ("good.de", &good[1]), ("bad.en", &bad[0])] {
        project.write(name, text);
    }
    let packed = gzip(&bad[1]);
    project.write("bad.de.gz", &packed[..packed.len() - 100]);
    let train =
        r#"data.train=[{ source = "good.en", target = "good.de" }, { source = "bad.en", target = "bad.de.gz" }]"#;
    let output = project.mt(&["check", "--config", "small.toml", "--json", "-q", "--set", train]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(report["errors"].to_string().contains("bad.de.gz"), "{report}");
    let kinds: Vec<_> = report["findings"].as_array().unwrap().iter().map(|finding| &finding["kind"]).collect();
    assert!(!kinds.iter().any(|kind| *kind == "swapped" || *kind == "language"), "{kinds:?}");
}

/// It decides nothing: that training has seen it makes no score untrue.
#[test]
fn what_is_monitored_may_be_a_part_of_any_text() {
    let project = Project::new();
    let findings = |more: &[&str]| {
        let output = project.mt(&[&["check", "--config", "small.toml", "--json"], more].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = |finding: &Value| (finding["kind"].clone(), finding["count"].clone());
        report["findings"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let monitor = "data.monitor=[{ name = 'again', source = 'valid.en', target = 'valid.de' }]";
    let without = findings(&[]);
    assert!(!without.is_empty());
    assert_eq!(findings(&["--set", monitor]), without);
    // But what is wrong with its lines is said.
    project.write("bad.en", "a <b>dog</b>\n");
    project.write("bad.de", "ein Hund\n");
    let bad = findings(&["--set", "data.monitor=[{ source = 'bad.en', target = 'bad.de' }]"]);
    assert!(bad.iter().any(|(kind, count)| kind == "markup" && *count == 1), "{bad:?}");
}
