//! Training from text prepared on disk is the same as from text in memory.

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use common::datasets::gzip;
use common::project::{Project, file, send, sets, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};

/// From two files of text to a model in two commands.
#[test]
fn a_starting_configuration_trains() {
    let project = Project::new();
    for (name, word) in [("all.en", "line"), ("all.de", "Zeile")] {
        let text: String = (0..400).map(|number| format!("{word} {number} {}\n", number * number)).collect();
        project.write(&format!("{name}.gz"), gzip(text.as_bytes()));
    }
    let mut transcript = Transcript::new(&project);
    transcript.run("init all.en.gz all.de.gz --output sub/first.toml --device cpu");
    std::fs::create_dir(project.path("sub")).unwrap();
    transcript.run("init all.en.gz all.de.gz --output sub/first.toml --device cpu");
    transcript.run("init all.en.gz all.de.gz --output sub/first.toml --device cpu");
    transcript.run("init all.en.gz train.de --output other.toml --device cpu");
    transcript.run("init train.en train.de --output other.toml --device cpu");
    transcript.run("init train.en train.de --output other.txt --device cpu");
    assert!(!project.path("other.toml").exists() && !project.path("other-data").exists());
    assert_transcript!(transcript);
    insta::assert_snapshot!("starting_configuration", std::fs::read_to_string(project.path("sub/first.toml")).unwrap());
    let small = ["train.max_updates=2", "train.batch_tokens=64", "valid.max_sentences=2", "model.d_model=16"];
    let args = [&["train", "--config", "sub/first.toml", "--run-dir", "run"], &sets(&small)[..]].concat();
    succeeds(&project.mt(&args));
    assert!(project.path("run/model.safetensors").exists());
}

/// The directories of prepared text in a cache.
fn texts(cache: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("text-")).collect()
}

#[test]
fn training_is_the_same_from_disk_and_from_memory() {
    for (run, dropout) in [("ids", "tokenizer.dropout=0"), ("text", "tokenizer.dropout=0.2")] {
        let project = Project::new();
        let train = |run: &str, more: &[&str]| {
            let output = project.train(&[&["--run-dir", run, "--set", dropout], more].concat());
            succeeds(&output);
            output
        };
        train("in/memory", &[]);
        assert!(!project.path("in/data-cache").exists(), "little text needs no cache");
        train("on/disk", &["--set", "data.cache_above=0"]);
        assert_eq!(texts(&project.path("on/data-cache")).len(), 1);

        // Text from `mt prepare` is found, also when the run is resumed.
        let prepare = ["prepare", "--config", "small.toml", "--run-dir", "prepared/run", "--set", dropout, "--json"];
        let prepared = project.mt(&prepare);
        succeeds(&prepared);
        let json: serde_json::Value = serde_json::from_str(&stdout(&prepared)).unwrap();
        assert_eq!(json["pairs"], 120);
        let directory = project.path(json["directories"][0].as_str().unwrap());
        assert!(json["bytes"].as_u64().unwrap() > 1000 && directory.join("00000.bin").is_file());
        let args = ["train", "--config", "small.toml", "--run-dir", "prepared/run", "--set", dropout];
        let first = project.mt(&[&args[..], &["--set", "train.max_updates=5"]].concat());
        succeeds(&first);
        assert!(stderr(&first).contains("learned when the text was prepared"), "{}", stderr(&first));
        succeeds(&project.mt(&[&args[..], &["--resume"]].concat()));
        let expected = file(&project, "in/memory", "model.safetensors");
        for other in ["on/disk", "prepared/run"] {
            assert_eq!(file(&project, other, "model.safetensors"), expected, "{run}: {other}");
        }
    }
}

#[test]
fn several_corpora_are_prepared_apart_and_named() {
    let project = Project::new();
    project.write("more.en", "a cat\n\na dog\n");
    project.write("more.de", "eine Katze\nnichts\nein Hund\n");
    let mut transcript = Transcript::new(&project);
    let mut prepare = |weight: &str| {
        let corpora = format!(
            "data.train=[{{source='train.en',target='train.de'}},{{source='more.en',target='more.de',weight={weight}}}]"
        );
        transcript.mt(&["prepare", "--config", "small.toml", "--set", &corpora]);
        succeeds(&project.train(&["--overwrite", "--set", "data.cache_above=0", "--set", &corpora]));
        texts(&project.path("runs/data-cache")).len()
    };
    assert_eq!(prepare("1.0"), 2);
    // Another weight changes the sampling, but not the text.
    assert_eq!(prepare("2.0"), 2);
    assert_transcript!(transcript);
}

/// Text that is named twice is prepared, and counted, once.
#[test]
fn a_directory_of_prepared_text_counts_once() {
    let project = Project::new();
    let prepare = |corpora: &str| {
        let output =
            project.mt(&["prepare", "--config", "small.toml", "--json", "--set", &format!("data.train=[{corpora}]")]);
        succeeds(&output);
        serde_json::from_str::<serde_json::Value>(&stdout(&output)).unwrap()
    };
    let corpus = "{ source = 'train.en', target = 'train.de' }";
    let (once, twice) = (prepare(corpus), prepare(&format!("{corpus}, {corpus}")));
    assert_eq!((&once["pairs"], &twice["pairs"]), (&120.into(), &240.into()));
    // The vocabulary is learnt from twice the text, but the same.
    let directories = |report: &serde_json::Value| report["directories"].as_array().unwrap().len();
    assert_eq!((directories(&once), directories(&twice)), (1, 1));
    assert_eq!(once["bytes"], twice["bytes"]);
}

/// Writes enough pairs for three shards.
fn large(project: &Project) {
    let side = |word: &str| (0..600_000).map(|i| format!("{word} {} {}\n", i % 89, i % 7)).collect::<String>();
    project.write("train.en", side("a cat eats"));
    project.write("train.de", side("eine Katze frisst"));
}

#[test]
fn a_kill_while_preparing_loses_little() {
    let project = Project::new();
    large(&project);
    let args = ["prepare", "--config", "small.toml", "--set", "tokenizer.sample_lines=1000", "--set"];
    let prepare = |cache: &str| project.mt(&[&args[..], &[&format!("data.cache_dir={cache}")]].concat());
    // On a busy machine it may be over before it is killed.
    let killed = |signal: &str, code: Option<i32>| {
        let is_cut = |cache: &String| {
            let mut command = project.command(&[&args[..], &[&format!("data.cache_dir={cache}")]].concat());
            let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
            let first = || texts(&project.path(cache)).first().map(|text| text.join("00000.json"));
            while !(project.path(cache).exists() && first().is_some_and(|file| file.exists())) {
                if child.try_wait().unwrap().is_some() {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            send(signal, &child);
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success() || output.status.code() == code, "{}", stderr(&output));
            !output.status.success()
        };
        (1..=5).map(|attempt| format!("cache{signal}-{attempt}")).find(is_cut).expect("a run that was cut short")
    };
    let caches = [("-KILL", None), ("-TERM", Some(143))].map(|(signal, code)| killed(signal, code));
    for cache in &caches {
        let again = prepare(cache);
        succeeds(&again);
        assert!(stderr(&again).contains(" of 600000 pairs were prepared before, in "), "{}", stderr(&again));
        let found = prepare(cache);
        succeeds(&found);
        assert!(!stderr(&found).contains("prepared 600000 pairs in"), "{}", stderr(&found));
    }
    succeeds(&prepare("whole"));
    let [whole, other] = ["whole", &caches[0]].map(|cache| texts(&project.path(cache)).remove(0));
    assert_eq!(whole.file_name(), other.file_name());
    for name in ["00000.bin", "00000.json", "00001.bin", "00001.json", "00002.bin", "00002.json"] {
        assert!(std::fs::read(whole.join(name)).unwrap() == std::fs::read(other.join(name)).unwrap(), "{name}");
    }
    assert!(!whole.join("00003.bin").exists());
}

#[test]
fn damage_is_mended_and_a_bad_place_is_named() {
    let project = Project::new();
    let prepare = |more: &[&str]| project.mt(&[&["prepare", "--config", "small.toml"], more].concat());
    succeeds(&prepare(&[]));
    let bytes = texts(&project.path("runs/data-cache"))[0].join("00000.bin");
    let whole = std::fs::read(&bytes).unwrap();
    let mut damaged = whole.clone();
    damaged[77] ^= 1;
    std::fs::write(&bytes, &damaged).unwrap();
    succeeds(&prepare(&[]));
    assert!(std::fs::read(&bytes).unwrap() == whole);
    // Damage does not matter if nothing asks for a cache: the text is prepared in memory.
    std::fs::write(&bytes, &damaged).unwrap();
    succeeds(&project.train(&[]));
    project.write("file", "");
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("prepare", &["data.cache_dir=file"]);
    assert_transcript!(transcript);
}

/// Two files and two columns of one file give the same corpus.
#[test]
fn columns_of_a_file_are_a_corpus() {
    let project = Project::new();
    for set in ["train", "valid"] {
        let [source, target] =
            ["en", "de"].map(|side| std::fs::read_to_string(project.path(&format!("{set}.{side}"))).unwrap());
        let lines = source.lines().zip(target.lines()).map(|(source, target)| format!("{target}\t0.5\t{source}\r\n"));
        project.write(&format!("{set}.tsv"), lines.collect::<String>());
    }
    let columns = |set: &str| format!("{{ tsv = \"{set}.tsv\", source = 3, target = 1 }}");
    let (train, valid) = (format!("data.train=[{}]", columns("train")), format!("data.valid={}", columns("valid")));
    let sets = ["--set", &train, "--set", &valid, "--set", &format!("data.test={}", columns("valid"))];
    succeeds(&project.train(&[]));
    succeeds(&project.train(&[&["--run-dir", "tsv"], &sets[..]].concat()));
    succeeds(&project.train(&[&["--run-dir", "disk/tsv", "--set", "data.cache_above=0"], &sets[..]].concat()));
    let model = file(&project, "runs/small", "model.safetensors");
    assert_eq!(file(&project, "tsv", "model.safetensors"), model);
    assert_eq!(file(&project, "disk/tsv", "model.safetensors"), model);
    let scores =
        ["runs/small", "tsv"].map(|run| stdout(&project.mt(&["eval", "--model", run, "--bleu", "--ppl", "--json"])));
    assert!(scores[0] == scores[1] && scores[0].contains("bleu"), "{scores:?}");
    succeeds(&project.mt(&[&["check", "--config", "small.toml", "--run-dir", "new"], &sets[..]].concat()));

    // Wrong lines are reported, but only once.
    let tab = std::fs::read_to_string(project.path("train.tsv")).unwrap().replacen("\t0.5", "\t0.5\t", 3);
    project.write("uneven.tsv", format!("a\tb\tc\n{tab}"));
    let uneven = "data.train=[{ tsv = \"uneven.tsv\", source = 3, target = 1 }]";
    let mut transcript = Transcript::new(&project);
    transcript.mt(&["check", "--config", "small.toml", "--run-dir", "new", "--set", uneven]);
    project.write("valid.tsv", "eins\t1\tone\nzwei\ttwo\n");
    transcript.train(&[&["--run-dir", "again"], &sets[..]].concat());
    std::fs::remove_file(project.path("train.tsv")).unwrap();
    transcript.train(&[&["--run-dir", "again"], &sets[..]].concat());
    assert_transcript!(transcript);
}

/// The two sides may be pipes that one program fills by turns, even where there is a single thread.
#[test]
fn pipes_that_are_written_by_turns_are_a_corpus() {
    let project = Project::new();
    let lines = ["the cat sleeps\n", "die Katze schläft\n"].map(|line| line.repeat(10_000));
    let pipes = ["train.en", "train.de"].map(|name| project.mkfifo(name));
    let mut child = project.command(&["prepare", "--config", "small.toml", "--threads", "1", "-q"]).spawn().unwrap();
    let writer = std::thread::spawn(move || {
        let mut pipes = pipes.map(|pipe| std::fs::File::create(pipe).unwrap());
        // Each time more than a pipe holds.
        for _ in 0..3 {
            pipes.iter_mut().zip(&lines).try_for_each(|(pipe, lines)| pipe.write_all(lines.as_bytes())).unwrap();
        }
    });
    for _ in 0..1200 {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            return writer.join().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    child.kill().unwrap();
    panic!("the program and the one that writes wait for each other");
}
