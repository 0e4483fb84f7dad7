//! Corpora of the Hugging Face hub, through the whole program, from a server with its paths.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use common::datasets::{Bench, EN_DE, Pairs, TRAIN, flat, gzip, json_lines, lines, nested, pairs, parquet, text};
use common::hub::{Fault, HubServer, Request};
use common::project::{Project, SOURCE, TARGET, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use sha2::{Digest, Sha256};

#[test]
fn every_form_trains_as_local_files_do_and_nothing_else_is_fetched() {
    let bench = Bench::new();
    succeeds(&bench.train("source = \"train.en\", target = \"train.de\"", &[]));
    let expected = bench.checksum();
    assert!(bench.hub.log().is_empty());
    let all = pairs();
    let wmt = "hub = \"wmt/wmt14\", config = \"de-en\"";
    let header = b"---\nconfigs:\n- config_name: odd\n  data_files:\n  - split: train\n    path: raw/*.jsonl\n---\n";
    let [first, second] = [&nested(&all[..77]), &nested(&all[77..])];
    let (rows, other) = (json_lines(&all, false), b"not to be fetched".as_slice());
    let [en, de] = [lines(SOURCE), lines(TARGET)];
    bench.hub.dataset(
        "wmt/wmt14",
        &[
            ("README.md", b"---\nlicense: unknown\n---\n"),
            ("cs-en/train-00000-of-00001.parquet", other),
            ("de-en/test-00000-of-00001.parquet", other),
            ("de-en/train-00000-of-00002.parquet", first),
            ("de-en/train-00001-of-00002.parquet", second),
            ("de-en/validation-00000-of-00001.parquet", other),
        ],
    );
    bench.hub.dataset("o/flat", &[("data/train-00000-of-00001.parquet", &flat(&all)), ("data/test.parquet", other)]);
    bench.hub.dataset("o/json", &[("train.jsonl", &rows), ("val.jsonl", other), ("test.jsonl", other)]);
    let list = String::from_utf8(rows.clone()).unwrap();
    let list = format!("[{}]", list.trim_end().replace('\n', ", "));
    bench.hub.dataset("o/json-list", &[("train.json", list.as_bytes())]);
    bench.hub.dataset("o/json-nested", &[("de-en/train.json", &json_lines(&all, true)), ("fr-en/train.json", other)]);
    bench
        .hub
        .dataset("o/text", &[("train.en.gz", &gzip(&en)), ("train.de", &de), ("train.fr", other), ("dev.en", other)]);
    bench.hub.dataset("o/tsv", &[("train.tsv", &[b"en\tde\n", &*text(&all, "\t")].concat()), ("test.tsv", other)]);
    bench.hub.dataset("o/csv", &[("de-en/train.csv", &[b"en,de\n", &*text(&all, ",")].concat()), ("x.csv", other)]);
    // The header of the data set's page names files that cannot be told by their names.
    bench.hub.dataset("o/header", &[("README.md", header), ("raw/z.jsonl", &rows), ("train.jsonl", other)]);
    // Older data sets are programs; the hub stores their output as parquet.
    let program = [("README.md", b"# No header".as_slice()), ("old.py", b"import datasets"), ("train.jsonl", other)];
    bench.hub.dataset("o/old", &program);
    let converted = [
        ("de-en/test/0000.parquet", other),
        ("de-en/partial-train/0000.parquet", first),
        ("de-en/partial-train/0001.parquet", second),
        ("fr-en/train/0000.parquet", other),
    ];
    bench.hub.revision("o/old", "refs/convert/parquet", &converted);
    let mut transcript = Transcript::new(&bench.project);
    for (corpus, files) in [
        (wmt, &["README.md", "de-en/train-00000-of-00002.parquet", "de-en/train-00001-of-00002.parquet"][..]),
        ("hub = \"o/flat\"", &["data/train-00000-of-00001.parquet"]),
        ("hub = \"o/json\"", &["train.jsonl"]),
        ("hub = \"o/json-list\"", &["train.json"]),
        ("hub = \"o/json-nested\", config = \"de-en\"", &["de-en/train.json"]),
        ("hub = \"o/text\"", &["train.de", "train.en.gz"]),
        ("hub = \"o/tsv\"", &["train.tsv"]),
        ("hub = \"o/csv\", config = \"de-en\"", &["de-en/train.csv"]),
        ("hub = \"o/header\"", &["README.md", "raw/z.jsonl"]),
        (
            "hub = \"o/old\", config = \"de-en\"",
            &["README.md", "de-en/partial-train/0000.parquet", "de-en/partial-train/0001.parquet"],
        ),
    ] {
        let output = bench.train(&format!("{corpus}, {TRAIN}"), &[]);
        succeeds(&output);
        assert_eq!(bench.hub.fetched(), files, "{corpus}\n{}", stderr(&output));
        assert_eq!(bench.checksum(), expected, "{corpus}");
        // Cached files are checked but not fetched again; with --offline there is no request at all.
        succeeds(&bench.train(&format!("{corpus}, {TRAIN}"), &[]));
        assert_eq!(bench.hub.fetched(), [""; 0], "{corpus}");
        succeeds(&bench.train(&format!("{corpus}, {TRAIN}"), &["--offline"]));
        // Of what the hub has converted, a part is missing.
        let corpus = format!("data.train=[{{ {corpus}, {TRAIN} }}]");
        let prepare = ["prepare", "--config", "small.toml", "--offline", "--set", &corpus];
        transcript.command(&mut bench.command(&prepare), &[]);
        assert!(bench.hub.log().is_empty(), "{corpus}");
    }
    assert_transcript!(transcript);
    assert!(bench.cache("o/old").join("refs/refs/convert/parquet").is_file());
    // With the same text from files, the run can be resumed.
    succeeds(&bench.mt(&["train", "--config", "small.toml", "--resume", "--set", "train.max_updates=3", "-q"]));
}

#[test]
fn tables_are_read_however_they_are_written() {
    let bench = Bench::new();
    succeeds(&bench.train("source = \"train.en\", target = \"train.de\"", &[]));
    let expected = bench.checksum();
    let all = text(&pairs(), "\t");
    let quoted = String::from_utf8(all.clone()).unwrap().replace('\t', "\"\t\"").replace('\n', "\"\n\"");
    let quoted = format!("en\tde\n\"{}", quoted.strip_suffix('"').unwrap());
    let semicolons =
        [b"de;en\n".as_slice(), &text(&pairs().into_iter().map(|(en, de)| (de, en)).collect::<Vec<_>>(), ";")].concat();
    let numbers = "source = 1, target = 2";
    for (name, file, contents, columns) in [
        ("o/bare", "train.tsv", all.as_slice(), numbers),
        ("o/bare-csv", "train.csv", &text(&pairs(), ","), numbers),
        ("o/quoted", "train.tsv", quoted.as_bytes(), EN_DE),
        ("o/semicolons", "train.csv", &semicolons, EN_DE),
    ] {
        bench.hub.dataset(name, &[(file, contents)]);
        let output = bench.train(&format!("hub = \"{name}\", split = \"train\", {columns}"), &[]);
        succeeds(&output);
        assert_eq!(bench.checksum(), expected, "{name}");
    }
    bench.hub.dataset("o/parquet", &[("train.parquet", &flat(&pairs()))]);
    let mut transcript = Transcript::new(&bench.project);
    for (name, columns) in [("o/bare", EN_DE), ("o/parquet", numbers)] {
        let corpus = format!("hub = \"{name}\", split = \"train\", {columns}");
        transcript.command(&mut bench.trainer(&corpus, &[]), &[]);
    }
    assert_transcript!(transcript);
}

#[test]
fn nulls_line_breaks_and_empty_rows_are_lines() {
    let bench = Bench::new();
    let some = |text: &str| Some(text.to_owned());
    let mut rows = pairs();
    rows[1] = (None, some("ein Hund"));
    rows[3] = (some("a\nb\r\nc"), some("d e f\n"));
    rows[5] = (some("x"), None);
    let mut expected = rows.clone();
    (expected[1].0, expected[5].1, expected[3]) = (some(""), some(""), (some("a b c"), some("d e f")));
    let [en, de] = [0, 1].map(|side| {
        let of = |(en, de): &(Option<String>, Option<String>)| [en, de][side].clone().unwrap() + "\n";
        expected.iter().map(of).collect::<String>()
    });
    bench.project.write("x.en", en);
    bench.project.write("x.de", de);
    let output = bench.train("source = \"x.en\", target = \"x.de\"", &[]);
    succeeds(&output);
    let checksum = bench.checksum();
    let mut transcript = Transcript::new(&bench.project);
    for (name, file, contents) in [
        ("o/nested", "train.parquet", nested(&rows)),
        ("o/flat", "train.parquet", flat(&rows)),
        ("o/json", "train.jsonl", json_lines(&rows, false)),
    ] {
        bench.hub.dataset(name, &[(file, &contents)]);
        succeeds(&bench.train(&format!("hub = \"{name}\", {TRAIN}"), &[]));
        assert_eq!(bench.checksum(), checksum, "{name}");
        let corpus = format!("data.train=[{{ hub = \"{name}\", {TRAIN} }}]");
        transcript.command(&mut bench.command(&["prepare", "--config", "small.toml", "--set", &corpus]), &[]);
    }
    assert_transcript!(transcript);
}

#[test]
fn whatever_takes_a_corpus_takes_one_of_the_hub() {
    let bench = Bench::new();
    let all = pairs();
    let held_out: Pairs = all[..6].to_vec();
    let mut dirty = all.clone();
    dirty[100].0 = Some("a\u{FFFD}b".to_owned());
    let shards = [nested(&dirty[..90]), nested(&dirty[90..])];
    bench.hub.dataset(
        "o/set",
        &[
            ("train-00000-of-00002.parquet", &shards[0]),
            ("train-00001-of-00002.parquet", &shards[1]),
            ("val.jsonl", &json_lines(&held_out, true)),
            ("test.en", &lines(SOURCE)),
            ("test.de", &lines(TARGET)),
        ],
    );
    let set = |split: &str| format!("{{ hub = \"o/set\", split = \"{split}\", {EN_DE} }}");
    let config = format!(
        "extends = \"small.toml\"\n[data]\ntrain = [{}]\nvalid = {}\ntest = {}\n[valid]\nevery = 2\n[train]\n\
         max_updates = 2\n",
        set("train"),
        set("validation"),
        set("test")
    );
    bench.project.write("hub.toml", config);
    let mut transcript = Transcript::new(&bench.project);
    transcript.command(&mut bench.command(&["check", "--config", "hub.toml"]), &[]);
    // The first row is on line 2, after the column names; one has two lines, and another is after a blank one.
    let rows = ["the cat sleeps,die Katze schläft\n", "\"the cat\nsleeps\",die Katze schläft\n\n"].concat();
    let table = format!("en,de\n{}a\u{FFFD}b,ein Wort\n", rows.repeat(5));
    bench.hub.dataset("o/table", &[("train.csv", table.as_bytes())]);
    let of_table = format!("[data]\ntrain = [{{ hub = \"o/table\", split = \"train\", {EN_DE} }}]\n");
    bench.project.write("table.toml", format!("extends = \"small.toml\"\n{of_table}"));
    transcript.command(&mut bench.command(&["check", "--config", "table.toml"]), &[]);
    assert_transcript!(transcript);
    let dry = bench.mt(&["train", "--config", "hub.toml", "--dry-run"]);
    succeeds(&dry);
    assert!(stdout(&dry).contains("hub = \"o/set\"") && stdout(&dry).contains("# data: 120 pairs"), "{}", stdout(&dry));
    succeeds(&bench.mt(&["train", "--config", "hub.toml", "-q"]));
    let log = std::fs::read_to_string(bench.project.path("runs/hub/log.jsonl")).unwrap();
    assert!(log.contains("bleu"), "{log}");
    let report = std::fs::read_to_string(bench.project.path("runs/hub/corpus.json")).unwrap();
    assert!(report.contains("hub:o/set train (en)"), "{report}");
    let run = bench.project.path("runs/hub");
    let run = run.to_str().unwrap();
    bench.hub.log();
    let eval = format!("eval --model {run} --bleu --offline --trust-model-data --beam 1 --max-length 4 -q");
    let eval = |more: &str| bench.mt(&[&eval.split(' ').collect::<Vec<_>>()[..], &[more]].concat());
    let scores = eval("--json");
    succeeds(&scores);
    assert!(stdout(&scores).starts_with("{\"bleu\":{\"score\":"), "{}", stdout(&scores));
    let report = eval("--report");
    succeeds(&report);
    assert!(stdout(&report).contains("the training text"), "{}", stdout(&report));
    assert!(bench.hub.log().is_empty());
    succeeds(&bench.mt(&["shortlist", run, "--out", "list", "--offline", "--trust-model-data", "-q"]));
}

/// The parts of a file that the storage was asked for; the whole file is "".
fn ranges(log: &[Request], name: &str) -> Vec<String> {
    let of = log.iter().filter(|request| request.storage && request.method == "GET" && request.path.ends_with(name));
    of.map(|request| request.headers.get("range").cloned().unwrap_or_default()).collect()
}

/// A data set of two shards that are large enough for the storage.
fn sharded(bench: &Bench) -> [String; 2] {
    let all = pairs();
    let names = ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"].map(str::to_owned);
    let shards = [json_lines(&all[..60], false), json_lines(&all[60..], true)];
    bench.hub.dataset("o/set", &[(&names[0], &shards[0]), (&names[1], &shards[1])]);
    names
}

const SET: &str = "hub = \"o/set\", split = \"train\", source = \"en\", target = \"de\"";

#[test]
fn a_cut_download_goes_on_and_is_never_taken_for_whole() {
    let bench = Bench::new();
    let [first, second] = sharded(&bench);
    // It breaks off once: the next try goes on within the same command.
    bench.hub.fault(&first, Fault::Cut(500), 1);
    // It always breaks off at the same byte.
    bench.hub.fault(&second, Fault::Cut(1000), usize::MAX);
    let mut transcript = Transcript::new(&bench.project);
    transcript.command(&mut bench.trainer(SET, &[]), &[]);
    let log = bench.hub.log();
    assert_eq!(ranges(&log, &first), ["", "bytes=500-"]);
    assert_eq!(ranges(&log, &second)[..2], ["", "bytes=1000-"]);
    let blobs = bench.names("o/set", "blobs");
    assert_eq!(blobs.iter().filter(|name| name.ends_with(".incomplete")).count(), 1, "{blobs:?}");
    assert_eq!(blobs.len(), 2);
    // An incomplete file does not count as cached.
    transcript.command(&mut bench.trainer(SET, &["--offline"]), &[]);
    assert_transcript!(transcript);
    bench.hub.mend();
    succeeds(&bench.train(SET, &[]));
    let log = bench.hub.log();
    assert_eq!(ranges(&log, &first), [""; 0], "a finished file is fetched again");
    assert_eq!(ranges(&log, &second), ["bytes=1000-"]);
    assert!(bench.names("o/set", "blobs").iter().all(|name| !name.ends_with(".incomplete")));
    succeeds(&bench.train(SET, &["--offline"]));
}

#[test]
fn tries_that_bring_something_do_not_count() {
    let bench = Bench::new();
    let [first, _] = sharded(&bench);
    bench.hub.fault(&first, Fault::Drip(300), usize::MAX);
    succeeds(&bench.train(SET, &[]));
    let ranges = ranges(&bench.hub.log(), &first);
    assert!(ranges.len() > 6, "{ranges:?}");
    assert_eq!(ranges[..3], ["", "bytes=300-", "bytes=600-"]);
}

#[test]
fn a_download_goes_on_only_with_the_part_that_was_asked_for() {
    let whole = {
        let bench = Bench::new();
        sharded(&bench);
        succeeds(&bench.train(SET, &[]));
        bench.checksum()
    };
    for (fault, expected) in [
        // What comes is the file, as it is.
        (Fault::All, &["", "bytes=500-"][..]),
        // What was kept is of no use.
        (Fault::OtherPart, &["", "bytes=500-", ""]),
        (Fault::NoPart, &["", "bytes=500-", ""]),
    ] {
        let bench = Bench::new();
        let [first, _] = sharded(&bench);
        bench.hub.fault(&first, Fault::Cut(500), 1);
        bench.hub.fault(&first, fault, 1);
        succeeds(&bench.train(SET, &[]));
        assert_eq!(ranges(&bench.hub.log(), &first), expected);
        assert_eq!(bench.checksum(), whole);
    }
}

#[test]
fn a_renamed_data_set_is_found_where_it_is_now() {
    let bench = Bench::new();
    sharded(&bench);
    bench.hub.gate("o/set", "hf_secret");
    let host = bench.hub.address.strip_prefix("http:").unwrap();
    let forms =
        [(307, String::new()), (308, format!("http:{host}")), (301, host.to_owned()), (302, format!("HTTP:{host}"))];
    for (index, (status, host)) in forms.into_iter().enumerate() {
        let old = format!("o/old-{index}");
        bench.hub.rename(&old, status, &host, "o/set");
        bench.hub.log();
        let mut command = bench.trainer(&SET.replace("o/set", &old), &[]);
        succeeds(&command.env("HF_TOKEN", "hf_secret").output().unwrap());
        assert_eq!(bench.names(&old, "blobs").len(), 2);
        // The token goes along within the host.
        let log = bench.hub.log();
        assert!(
            log.iter().filter(|request| !request.storage).all(|request| request.headers.contains_key("authorization"))
        );
    }
}

/// Answers requests to a proxy with an error, and tells what they ask for.
fn refusing_proxy() -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let line = BufReader::new(&stream).lines().next();
            let _ = stream.write_all(b"HTTP/1.1 502 -\r\nContent-Length: 0\r\n\r\n");
            let _ = line.map(|line| sender.send(line.unwrap_or_default()));
        }
    });
    (address, asked)
}

#[test]
fn a_mirror_may_send_a_request_on_to_the_hub_but_to_nobody_else() {
    let (proxy, asked) = refusing_proxy();
    let mut away = Vec::new();
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for (location, host, is_followed) in [
        (&[("Location", "https://huggingface.co/datasets/o/set/resolve/main/x")], "https://huggingface.co", true),
        (&[("Location", "https://hf.co/datasets/o/set/resolve/main/x")], "https://hf.co", true),
        (&[("Location", "https://huggingface.co.example/x")], "https://huggingface.co.example", false),
        (&[("Location", "http://huggingface.co/x")], "http://huggingface.co", false),
    ] {
        let bench = Bench::new();
        let [first, _] = sharded(&bench);
        bench.hub.fault(&first, Fault::Status(308, location), usize::MAX);
        let mut command = bench.trainer(SET, &[]);
        for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
            command.env(name, &proxy);
        }
        transcript.note(&format!("sent on to {}", location[0].1));
        transcript.command(command.env("NO_PROXY", "127.0.0.1").env("HF_TOKEN", "hf_secret"), &[]);
        let connects: Vec<String> = asked.try_iter().collect();
        let to = format!("CONNECT {}:443 HTTP/1.1", host.trim_start_matches("https://"));
        assert_eq!(connects.contains(&to), is_followed, "{connects:?}");
        away.extend(connects.into_iter().filter(|_| !is_followed));
    }
    assert!(away.is_empty(), "{away:?}");
    // Another host is asked for nothing, not even for the list of files.
    let (bench, other) = (Bench::new(), HubServer::start());
    other.dataset("o/set", &[("train.jsonl", &json_lines(&pairs(), false))]);
    bench.hub.rename("o/set", 308, &other.address, "o/set");
    transcript.note("another host");
    transcript.command(&mut bench.trainer(SET, &[]), &[]);
    let log = other.log();
    assert!(log.is_empty(), "{log:?}");
    // Nor does it go round for ever.
    let bench = Bench::new();
    let [first, _] = sharded(&bench);
    bench.hub.fault(&first, Fault::Status(307, &[("Location", "?again")]), usize::MAX);
    bench.hub.fault("?again", Fault::Status(307, &[("Location", "?again")]), usize::MAX);
    transcript.note("again and again");
    transcript.command(&mut bench.trainer(SET, &[]), &[]);
    assert_transcript!(transcript);
}

#[test]
fn a_file_that_another_process_fetches_is_waited_for() {
    let bench = Bench::new();
    let [first, second] = sharded(&bench);
    let contents = json_lines(&pairs()[..60], false);
    let etag = format!("{:x}", Sha256::digest(&contents));
    let locks = bench.project.path("hf/hub/.locks/datasets--o--set");
    std::fs::create_dir_all(&locks).unwrap();
    let lock = std::fs::File::create(locks.join(format!("{etag}.lock"))).unwrap();
    lock.lock().unwrap();
    let mut command = bench.trainer(SET, &[]);
    let mut running = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut messages = BufReader::new(running.stderr.take().unwrap()).lines().map_while(Result::ok);
    let says = "hub: another process is fetching the same file of o/set: waiting for it";
    assert!(messages.any(|line| line.contains(says)), "it does not wait");
    assert!(ranges(&bench.hub.log(), &first).is_empty());
    // What the other process has fetched is taken.
    let blobs = bench.cache("o/set").join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(etag), contents).unwrap();
    drop(lock);
    let rest: Vec<String> = messages.collect();
    assert!(running.wait().unwrap().success(), "{rest:?}");
    let log = bench.hub.log();
    assert_eq!((ranges(&log, &first).len(), ranges(&log, &second).len()), (0, 1));
}

#[test]
fn what_is_short_or_wrong_is_thrown_away() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for (what, fault) in [
        ("other bytes", Fault::Wrong),
        ("300 bytes of it", Fault::Short(300)),
        ("a refusal", Fault::Status(403, &[])),
        ("a checksum that is a path", Fault::Etag("../../../evil")),
        ("a web page", Fault::Page),
    ] {
        let bench = Bench::new();
        let [first, _] = sharded(&bench);
        bench.hub.fault(&first, fault, usize::MAX);
        transcript.note(&format!("the hub sends {what}"));
        transcript.command(&mut bench.trainer(SET, &[]), &[]);
        let whole = |name: &String| !name.ends_with(".incomplete");
        assert!(!bench.names("o/set", "blobs").iter().any(whole), "{what}");
        assert!(!bench.project.path("hf/evil").exists());
        bench.hub.mend();
        succeeds(&bench.train(SET, &["-q"]));
    }
    assert_transcript!(transcript);
    // Another program has truncated a cached file: its size differs from the hub's.
    let bench = Bench::new();
    sharded(&bench);
    succeeds(&bench.train(SET, &[]));
    let whole = bench.checksum();
    let blobs = bench.cache("o/set").join("blobs");
    let blob = blobs.join(bench.names("o/set", "blobs").pop_first().unwrap());
    let bytes = std::fs::read(&blob).unwrap();
    std::fs::write(&blob, &bytes[..bytes.len() / 2]).unwrap();
    succeeds(&bench.train(SET, &[]));
    assert_eq!(bench.checksum(), whole);
}

#[test]
fn a_busy_or_failing_hub_is_asked_again() {
    let bench = Bench::new();
    let [first, second] = sharded(&bench);
    bench.hub.fault("/revision/main", Fault::Status(429, &[("Retry-After", "5")]), 1);
    bench.hub.fault(&first, Fault::Status(500, &[]), 2);
    bench.hub.fault(&second, Fault::Status(503, &[("Retry-After", "0")]), 1);
    let began = std::time::Instant::now();
    let output = bench.train(SET, &[]);
    succeeds(&output);
    // The hub asked to wait for five seconds, once so far.
    assert!(began.elapsed().as_secs_f64() > 5.0);
    let waits = "the hub asks for fewer requests (HTTP 429); try 2 of 5 is in 5 s\n";
    assert!(stderr(&output).contains(waits) && !stderr(&output).contains("tries"), "{}", stderr(&output));
    let bench = Bench::new();
    let [first, _] = sharded(&bench);
    bench.hub.fault(&first, Fault::Status(429, &[("Retry-After", "0")]), usize::MAX);
    let mut transcript = Transcript::new(&bench.project);
    transcript.command(&mut bench.trainer(SET, &[]), &[]);
    let asked = bench.hub.log().iter().filter(|request| request.path.ends_with(&first)).count();
    assert_eq!(asked, 5);
    bench.hub.mend();
    bench.hub.fault("/revision/main", Fault::Status(500, &[("X-Error-Message", "on fire")]), usize::MAX);
    transcript.command(&mut bench.trainer(SET, &[]), &[]);
    // A request that can never succeed is not repeated.
    bench.hub.mend();
    bench.hub.log();
    bench.hub.fault(&first, Fault::Status(404, &[("X-Error-Code", "EntryNotFound")]), usize::MAX);
    transcript.command(&mut bench.trainer(SET, &[]), &[]);
    assert_transcript!(transcript);
    assert_eq!(bench.hub.log().iter().filter(|request| request.path.ends_with(&first)).count(), 1);
}

#[test]
fn a_gated_data_set_needs_a_token_which_only_the_hub_gets() {
    let bench = Bench::new();
    sharded(&bench);
    bench.hub.gate("o/set", "hf_secret");
    let mut transcript = Transcript::new(&bench.project);
    transcript.command(&mut bench.trainer(SET, &[]), &[]);
    // No message shows the token.
    transcript.command(&mut bench.trainer(SET, &[]), &[("HF_TOKEN", "hf_other")]);
    let wrong = bench.trainer(SET, &[]).env("HF_TOKEN", "hf\u{1}").output().unwrap();
    transcript.record(r"HF_TOKEN=$'hf\x01' mt train", &wrong);
    assert_transcript!(transcript);
    bench.hub.log();
    succeeds(&bench.trainer(SET, &[]).env("HF_TOKEN", "hf_secret").output().unwrap());
    let log = bench.hub.log();
    assert!(log.iter().any(|request| request.storage));
    for request in log {
        assert_eq!(request.headers.contains_key("authorization"), !request.storage, "{request:?}");
    }
    // The token can come from the file that logging in leaves.
    std::fs::remove_dir_all(bench.project.path("hf/hub")).unwrap();
    bench.project.write("hf/token", "hf_secret\n");
    succeeds(&bench.train(SET, &[]));
    bench.hub.log();
    std::fs::create_dir(bench.project.path("home")).unwrap();
    bench.project.write("home/logged-in", "hf_secret\n");
    // Listing and fetching send the same: white space is no part of it, and a file that is named and missing is not
    // replaced by another.
    for (name, value, sent) in [
        ("HF_TOKEN", "hf_secret\r\n", Some("Bearer hf_secret")),
        ("HF_TOKEN", " \n", Some("Bearer hf_secret")),
        ("HF_TOKEN_PATH", "missing", None),
        ("HF_TOKEN_PATH", "~/logged-in", Some("Bearer hf_secret")),
        ("HF_TOKEN_PATH", "${HOME}/$NAME", Some("Bearer hf_secret")),
        ("HUGGING_FACE_HUB_TOKEN", "hf_secret", Some("Bearer hf_secret")),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", None),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "Yes", None),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "true", None),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "on", None),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0", Some("Bearer hf_secret")),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "False", Some("Bearer hf_secret")),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "", Some("Bearer hf_secret")),
    ] {
        // One that is not to be sent where the variable names another.
        let names_one = name.contains("TOKEN_PATH") || name.starts_with("HUGGING");
        bench.project.write("hf/token", if names_one { "hf_wrong\n" } else { "hf_secret\n" });
        let mut command = bench.trainer(SET, &[]);
        command.envs([("HOME", bench.project.path("home")), ("NAME", "logged-in".into())]);
        let output = command.env(name, value).output().unwrap();
        assert_eq!(output.status.success(), sent.is_some(), "{name}={value:?} {}", stderr(&output));
        let log = bench.hub.log();
        assert!(log.iter().any(|request| request.path.starts_with("/api/")), "{name}={value:?}");
        for request in log.iter().filter(|request| !request.storage) {
            let token = request.headers.get("authorization").map(String::as_str);
            assert_eq!(token, sent, "{name}={value:?} {request:?}");
        }
    }
}

#[test]
fn a_revision_stays_what_it_is() {
    let bench = Bench::new();
    let all = pairs();
    let old = bench.hub.revision("o/set", "v1", &[("train.jsonl", &json_lines(&all[..60], false))]);
    bench.hub.revision("o/set", "main", &[("train.jsonl", &json_lines(&all, false))]);
    let finds = |corpus: &str, more: &[&str], pairs: &str| {
        let output = bench.train(corpus, &[&["--dry-run"], more].concat());
        succeeds(&output);
        assert!(stdout(&output).contains(pairs), "{corpus}: {}", stdout(&output));
    };
    let mut sums = Vec::new();
    for revision in ["", ", revision = \"v1\"", &format!(", revision = \"{old}\"")] {
        let pairs = if revision.is_empty() { "# data: 120 pairs" } else { "# data: 60 pairs" };
        finds(&format!("{SET}{revision}"), &[], pairs);
        succeeds(&bench.train(&format!("{SET}{revision}"), &[]));
        sums.push(bench.checksum());
    }
    assert!(sums[0] != sums[1] && sums[1] == sums[2]);
    // When `main` moves on, the new state is fetched, but --offline still uses the previous one.
    bench.hub.revision("o/set", "main", &[("train.jsonl", &json_lines(&all[..30], false))]);
    finds(SET, &["--offline"], "# data: 120 pairs");
    finds(SET, &[], "# data: 30 pairs");
    let mut transcript = Transcript::new(&bench.project);
    transcript.command(&mut bench.trainer(&format!("{SET}, revision = \"v2\""), &[]), &[]);
    assert_transcript!(transcript);
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let bench = Bench::new();
    let all = pairs();
    bench.hub.dataset(
        "o/set",
        &[
            ("de-en/train-00000-of-00001.parquet", &nested(&all)),
            ("de-en/test-00000-of-00001.parquet", &flat(&all)),
            ("fr-en/train-00000-of-00001.parquet", b"PAR1 not so"),
        ],
    );
    // A number is not text, whether in a parquet column or in JSON.
    let numbers: ArrayRef = Arc::new((0..3).collect::<Int64Array>());
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let numbers = parquet(vec![("en", numbers), ("de", words)]);
    let rows = [&*json_lines(&all[..2], false), b"{\"en\": \"x\", \"de\": 17}\n"].concat();
    for (name, files) in [
        ("o/numbers", &[("train.parquet", numbers.as_slice())][..]),
        ("o/row", &[("train.jsonl", &rows)]),
        ("o/list", &[("train.json", b"[\n{\"en\": \"x\"}\n]\n")]),
        ("o/uneven", &[("train.en", b"a\nb\nc\n"), ("train.de", b"a\nb\n")]),
        ("o/latin", &[("train.en", b"a\n\xE9\n"), ("train.de", b"a\nb\n")]),
        ("o/zip", &[("train.zip", b"PK"), ("loader.py", b"")]),
        ("o/gone", &[("train-00000-of-00002.parquet", &nested(&all))]),
        ("o/evil", &[("../../../evil.jsonl", b"{}"), ("/etc/train.jsonl", b"{}"), ("train.txt", b"")]),
    ] {
        bench.hub.dataset(name, files);
    }
    let mut transcript = Transcript::new(&bench.project);
    for corpus in [
        "hub = \"o/set\", config = \"de-en\", split = \"tran\", source = \"en\", target = \"de\"",
        "hub = \"o/set\", config = \"en-de\", split = \"train\", source = \"en\", target = \"de\"",
        SET,
        "hub = \"o/set\", config = \"de-en\", split = \"train\", source = \"fr\", target = \"de\"",
        "hub = \"o/set\", config = \"de-en\", split = \"train\", source = \"id\", target = \"de\"",
        "hub = \"o/set\", config = \"fr-en\", split = \"train\", source = \"en\", target = \"de\"",
    ] {
        transcript.command(&mut bench.trainer(corpus, &[]), &[]);
    }
    for name in ["none", "numbers", "row", "list", "uneven", "latin", "zip", "gone", "evil"] {
        transcript.command(&mut bench.trainer(&format!("hub = \"o/{name}\", {TRAIN}"), &[]), &[]);
    }
    assert!(!bench.project.path("evil.jsonl").exists());
    // All problems are reported at once.
    bench.project.write(
        "two.toml",
        format!(
            "extends = \"small.toml\"\n[data]\ntrain = [{{ hub = \"o/none\", {TRAIN} }}, {{ hub = \"o/list\", \
             {TRAIN} }}]\ntest = {{ hub = \"o/row\", split = \"test\", {EN_DE} }}\n"
        ),
    );
    transcript.command(&mut bench.command(&["check", "--config", "two.toml"]), &[]);
    assert_transcript!(transcript);
}

#[test]
fn without_a_network() {
    let bench = Bench::new();
    sharded(&bench);
    let mut transcript = Transcript::new(&bench.project);
    transcript.command(&mut bench.trainer(SET, &["--offline"]), &[]);
    assert!(bench.hub.log().is_empty());
    succeeds(&bench.train(SET, &["-q"]));
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for endpoint in [&closed, "no address", "ftp://x"] {
        transcript.command(&mut bench.trainer(SET, &[]), &[("HF_ENDPOINT", endpoint)]);
    }
    succeeds(&bench.trainer(SET, &["--offline"]).env("HF_ENDPOINT", &closed).output().unwrap());
    bench.hub.log();
    for (variable, value, asks) in [
        ("HF_HUB_OFFLINE", "1", false),
        ("HF_HUB_OFFLINE", "True", false),
        ("HF_HUB_OFFLINE", "0", true),
        ("HF_HUB_OFFLINE", "no", true),
        ("TRANSFORMERS_OFFLINE", "YES", false),
    ] {
        succeeds(&bench.trainer(SET, &[]).env(variable, value).output().unwrap());
        assert_eq!(!bench.hub.log().is_empty(), asks, "{variable}={value}");
    }
    bench.hub.fault("/revision/main", Fault::Page, 1);
    transcript.command(&mut bench.trainer(SET, &[]), &[]);
    assert_transcript!(transcript);
}

#[test]
fn without_a_home_the_cache_is_in_no_folder_that_others_may_write() {
    let bench = Bench::new();
    let homeless = || {
        let mut command = bench.command(&["translate", "--offline", "--model", "hf:a/b", "x"]);
        ["HF_HOME", "XDG_CACHE_HOME", "HOME"].iter().for_each(|name| _ = command.env_remove(name));
        command
    };
    let home = "/absent/home";
    let mut transcript = Transcript::new(&bench.project);
    for variables in [
        // A relative one is ignored.
        &[("HOME", home), ("XDG_CACHE_HOME", "cache")][..],
        &[("XDG_CACHE_HOME", home)],
        // What a shell has not expanded, because of quotes or because there was none, is expanded here.
        &[("HOME", home), ("HF_HOME", "~/x")],
        &[("HOME", home), ("HF_HOME", "$HOME/x")],
        &[("HOME", home), ("HF_HUB_CACHE", "~/x")],
        &[("HOME", home), ("HF_HUB_CACHE", "${HOME}/x")],
        &[("HOME", home), ("HUGGINGFACE_HUB_CACHE", "~/x")],
        &[("HOME", home), ("XDG_CACHE_HOME", "~/x")],
        &[("HOME", home), ("XDG_CACHE_HOME", "$HOME/x")],
        &[("HOME", "home")],
    ] {
        transcript.command(&mut homeless(), variables);
    }
    assert_transcript!(transcript);
    // The password database has one, or else it is said that there is none.
    for unset in [&[][..], &[("HOME", "")]] {
        let output = homeless().envs(unset.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(!stderr(&output).contains("/tmp/.cache"), "{}", stderr(&output));
    }
}

#[test]
fn the_cache_is_the_one_that_other_programs_have() {
    let bench = Bench::new();
    let [first, second] = sharded(&bench);
    let mut transcript = Transcript::new(&bench.project);
    // Without a terminal there is a line per file instead of a progress bar.
    let corpus = format!("data.train=[{{ {SET} }}]");
    transcript.command(&mut bench.command(&["prepare", "--config", "small.toml", "--set", &corpus]), &[]);
    let commit = std::fs::read_to_string(bench.cache("o/set").join("refs/main")).unwrap();
    let snapshot = bench.cache("o/set").join("snapshots").join(&commit);
    for name in [&first, &second] {
        let link = std::fs::read_link(snapshot.join(name)).unwrap();
        assert!(link.starts_with("../../blobs") && snapshot.join(&link).is_file(), "{link:?}");
    }
    // The cache as another program leaves it, without our listing; and in another place.
    std::fs::remove_dir_all(bench.cache("o/set").join(".listings")).unwrap();
    std::fs::rename(bench.project.path("hf/hub"), bench.project.path("elsewhere")).unwrap();
    let moved = |more: &[&str]| {
        let mut command = bench.trainer(SET, more);
        command.env("HF_HUB_CACHE", bench.project.path("elsewhere"));
        command
    };
    transcript.command(&mut moved(&["--offline", "-q"]), &[]);
    // A shard that is not cached is missing, by name.
    let elsewhere = bench.project.path("elsewhere/datasets--o--set/snapshots").join(&commit);
    std::fs::remove_file(elsewhere.join(&first)).unwrap();
    transcript.command(&mut moved(&["--offline"]), &[]);
    assert_transcript!(transcript);
    bench.hub.log();
    succeeds(&moved(&[]).output().unwrap());
    assert_eq!(bench.hub.fetched(), [""; 0], "the contents are there under their checksum");
}

#[test]
fn a_full_disk_is_named_and_nothing_is_lost() {
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        return common::skipped("a_full_disk_is_named_and_nothing_is_lost", "no namespaces here (unshare -rm)");
    }
    let bench = Bench::new();
    // Many times the size of the disk below.
    let row = |i: usize| format!("{{\"en\": \"w{i}\", \"de\": \"v{}\"}}\n", i * 7919 % 99_991);
    let contents = (0..40_000).map(row).collect::<String>().into_bytes();
    bench.hub.dataset("o/set", &[("train.jsonl", &contents)]);
    std::fs::create_dir(bench.project.path("hf")).unwrap();
    let train = format!(
        "'{}' train --config small.toml --dry-run -q --set 'data.train=[{{ {SET} }}]'",
        env!("CARGO_BIN_EXE_mt")
    );
    // A private mount, with a part that a download left; the cache is copied out before it disappears.
    let etag = format!("{:x}", Sha256::digest(&contents));
    std::fs::write(bench.project.path("part"), &contents[..20_000]).unwrap();
    let blobs = "hf/hub/datasets--o--set/blobs";
    let line = format!(
        "mount -t tmpfs -o size=64k tmpfs hf && mkdir -p {blobs} && cp part {blobs}/{etag}.incomplete && {train}; \
         code=$?; cp -r hf/hub kept; exit $code"
    );
    bench.project.write("full.sh", line);
    let run = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(bench.project.folder.path()).env("NO_COLOR", "1");
        bench.connect(&mut command);
        command.output().unwrap()
    };
    let mut transcript = Transcript::new(&bench.project);
    transcript.record("sh full.sh", &run(&["unshare", "-rm", "sh", "full.sh"]));
    assert_transcript!(transcript);
    // On a larger disk, the download goes on where it stopped.
    std::fs::rename(bench.project.path("kept"), bench.project.path("hf/hub")).unwrap();
    bench.hub.log();
    succeeds(&run(&["sh", "-c", &train]));
    let ranges: Vec<_> = bench
        .hub
        .log()
        .into_iter()
        .filter(|request| request.storage)
        .filter_map(|request| request.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, ["bytes=20000-"]);
}

/// Links in the cache are relative, so that it can be moved.
#[test]
fn the_cache_holds_no_absolute_link() {
    let bench = Bench::new();
    sharded(&bench);
    succeeds(&bench.train(SET, &["-q"]));
    fn walk(folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if let Ok(link) = std::fs::read_link(&path) {
                assert!(link.is_relative(), "{path:?} → {link:?}");
            } else if path.is_dir() {
                walk(&path);
            }
        }
    }
    walk(&bench.project.path("hf"));
}
