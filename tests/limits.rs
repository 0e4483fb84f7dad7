//! Small files that stand for much memory or time, given to the binary where the system allows it little of either.
//! What is shown: what each says, and what it took (`--nocapture`).
#![cfg(target_os = "linux")]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use common::datasets::{Bench, TRAIN};
use common::hostile_parquet::Thrift::Struct;
use common::hostile_parquet::{column, columns, file, number, of_pages, page, plain, structs};
use common::npz;
use common::project::{Project, sets, succeeds};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Address space of each command in KiB, and its seconds of a processor.
const ADDRESSES: u64 = 3 << 20;
const SECONDS: u64 = 60;
/// Memory in KiB that a command may really have taken when it refuses.
const MEMORY: i64 = 400 << 10;

/// Runs a command within the limits; it must end with this status and say these words.
#[expect(clippy::zombie_processes, reason = "it is waited for by wait4, which also says what it took")]
fn refuses(what: &str, command: &Command, code: i32, words: &str) {
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(format!("ulimit -v {ADDRESSES}; ulimit -t {SECONDS}; exec \"$0\" \"$@\""));
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let folder = tempfile::tempdir().unwrap();
    let [out, said] = ["out", "said"].map(|name| folder.path().join(name));
    limited.stdout(File::create(out).unwrap()).stderr(File::create(&said).unwrap());
    limited.current_dir(command.get_current_dir().unwrap());
    let start = Instant::now();
    let child = limited.spawn().unwrap();
    // SAFETY: both are places for what the call writes; the child is ours, and nobody else waits for it.
    let (status, usage) = unsafe {
        let (mut status, mut usage) = (0, std::mem::zeroed::<libc::rusage>());
        assert_eq!(
            libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage),
            child.id() as libc::pid_t
        );
        (ExitStatus::from_raw(status), usage)
    };
    let said = std::fs::read_to_string(said).unwrap();
    println!("{what}: {status}, {:.1} s, {} MiB", start.elapsed().as_secs_f64(), usage.ru_maxrss >> 10);
    assert_eq!(status.code(), Some(code), "{what}: {said}");
    assert!(said.contains(words) && !said.contains("panicked"), "{what}: `{words}` is missing in:\n{said}");
    assert!(said.len() < 1 << 16, "{what}: {} bytes of messages", said.len());
    assert!(usage.ru_maxrss < MEMORY, "{what}: {} KiB", usage.ru_maxrss);
}

fn with_model() -> Project {
    let project = Project::new();
    succeeds(&project.train(&[]));
    succeeds(&project.mt(&["average", "runs/small", "--last", "2", "--out", "model", "-q"]));
    project
}

/// Makes the manifest fit the model's files, as whoever changes them would. Of large ones the checksum is wrong: what
/// would be found there is found before.
fn seal(project: &Project) {
    let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let files = ["config.toml", "tokenizer.json", "model.safetensors"].map(|name| {
        let path = project.path("model").join(name);
        let size = std::fs::metadata(&path).unwrap().len();
        let sha256 = if size < 1 << 26 { hex(&std::fs::read(path).unwrap()) } else { "0".repeat(64) };
        json!({ "name": name, "size": size, "sha256": sha256 })
    });
    let text = serde_json::to_string_pretty(&json!({ "format": 1, "written_by": "mt", "files": files })).unwrap();
    let text = text.trim_end_matches("\n}").to_owned() + ",\n  \"digest\": \"";
    project.write("model/manifest.json", format!("{text}{}\"\n}}\n", hex(text.as_bytes())));
}

/// A table of replaced characters that replaces `a`.
fn charsmap(replacement: &str) -> Vec<u8> {
    let mut units = [0u32; 1024];
    let (byte, base, value) = (u32::from(b'a'), 256, 512);
    units[0] = base << 10;
    let at = base ^ byte;
    units[at as usize] = byte | 1 << 8 | (value ^ at) << 10;
    units[value as usize] = 1 << 31;
    let trie = units.iter().flat_map(|unit| unit.to_le_bytes());
    (4 * units.len() as u32).to_le_bytes().into_iter().chain(trie).chain(replacement.bytes()).chain([0]).collect()
}

#[test]
fn tokenizers() {
    let project = with_model();
    let name = project.path("model/tokenizer.json");
    let whole: Value = serde_json::from_slice(&std::fs::read(&name).unwrap()).unwrap();
    let many = |key: &str, step: Value| json!({ "type": "Sequence", key: vec![step; 60] });
    let replace = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
    let large = json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "a".repeat(1000) });
    let prepend = json!({ "type": "Prepend", "prepend": "a".repeat(1000) });
    let precompiled = |table: &str| json!({ "type": "Precompiled", "precompiled_charsmap": table });
    let expression = json!({
        "type": "Split", "pattern": { "Regex": "(?=(a+)+$)(a|aa)+b" }, "behavior": "Isolated", "invert": false,
    });
    let grows = "many times as long";
    let text = "a ".repeat(1000) + &"a".repeat(5000);
    for (what, key, step, words) in [
        ("an empty table of characters", "normalizer", precompiled("AAAAAA=="), "replaced characters"),
        (
            "a table of characters, cut",
            "normalizer",
            precompiled(&BASE64.encode([0xFC, 0xFF, 0xFF, 0xFF, 1])),
            "replaced characters",
        ),
        (
            "a replacement of 1,020 bytes",
            "normalizer",
            precompiled(&BASE64.encode(charsmap(&"x".repeat(1020)))),
            "replaced characters",
        ),
        ("pieces of no length", "pre_tokenizer", json!({ "type": "FixedLength", "length": 0 }), "`length` is 0"),
        ("2^60 replacements", "normalizer", many("normalizers", replace.clone()), grows),
        ("1,000^60 replacements", "normalizer", many("normalizers", large), grows),
        ("prefixes of 1,000 bytes", "normalizer", many("normalizers", prepend), grows),
        ("an expression that goes back", "pre_tokenizer", expression, ""),
        ("2^60 replacements of what is decoded", "decoder", many("decoders", replace), ""),
    ] {
        let mut file = whole.clone();
        file[key] = step;
        std::fs::write(&name, file.to_string()).unwrap();
        seal(&project);
        let code = i32::from(!words.is_empty());
        let args = ["translate", "--model", "model", "--max-length", "5", "-q", &text];
        refuses(what, &project.command(&args), code, words);
    }
    // A SentencePiece model, written as Protocol Buffers: a piece that is unknown, three others, and the table.
    let bytes = |tag: u8, value: &[u8]| {
        let length = [value.len() as u8 & 0x7F | 0x80, (value.len() >> 7) as u8];
        [&[tag << 3 | 2], &length[..], value].concat()
    };
    let pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("▁", 1), ("x", 1)];
    let pieces = pieces.map(|(text, kind)| bytes(1, &[bytes(1, text.as_bytes()), vec![3 << 3, kind]].concat()));
    let file = [pieces.concat(), bytes(3, &bytes(2, &charsmap(&"x".repeat(1020))))].concat();
    project.write("x.model", file);
    let args = sets(&["tokenizer.path=\"x.model\"", "tokenizer.dropout=0"]);
    let command =
        project.command(&[&["train", "--config", "small.toml", "--run-dir", "new", "-q"], &args[..]].concat());
    refuses("a SentencePiece model with such a table", &command, 1, "makes 1020 bytes of 1");
}

#[test]
fn data_sets() {
    let bench = Bench::new();
    let deep = std::iter::once(column("", Some(1))).chain((0..20_000).map(|_| column("a", Some(1))));
    let deep = file(b"", structs(deep.chain([column("b", None)]).collect()), 0, Vec::new(), Vec::new());
    let wide = file(
        b"",
        columns(),
        0,
        Vec::new(),
        vec![(20, (0..500).fold(Struct(Vec::new()), |inner, _| Struct(vec![(1, inner)])))],
    );
    let claims = of_pages(&page(2, 5, i64::from(i32::MAX), 0, &plain(b"a")), 0, 1);
    let rows = i64::from(i32::MAX);
    // A run of the dictionary's only text, for every row.
    let run = [vec![1], number(2 * rows as u64), vec![0]].concat();
    let dictionary = page(2, 1004, 1, 0, &plain(&[b'a'; 1000]));
    let endless = of_pages(&[dictionary, page(0, run.len() as i64, rows, 8, &run)].concat(), 0, rows);
    let large = zstd::encode_all(std::io::repeat(0).take(200 << 20), 1).unwrap();
    let packed = of_pages(&page(0, 1000, 1, 0, &large), 6, 1);
    for (what, bytes, words) in [
        ("columns 20,000 deep", deep, "20002 columns"),
        ("values 500 deep", wide, "nests too deeply"),
        ("a dictionary of 2^31 values", claims, "claims 2147483647 values"),
        ("2 TB of text", endless, "1000 times as much text"),
        ("a page of 200 MB that claims 1,000 bytes", packed, "t.parquet"),
    ] {
        let set = format!("o/{}", what.replace([' ', ',', '^'], "-"));
        bench.hub.dataset(&set, &[("train.parquet", &bytes)]);
        let args = bench.training(&format!("hub = \"{set}\", {TRAIN}"), &[]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        println!("{what}: {} bytes", bytes.len());
        refuses(what, &bench.command(&args), 1, words.replace("t.parquet", "train.parquet").as_str());
    }
    for (what, pattern) in [("alternatives 240 deep", "{a,".repeat(240)), ("a pattern of 100 kB", "*a".repeat(50_000))]
    {
        let card = format!(
            "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: \"{pattern}\"\n---\n"
        );
        let set = format!("o/{}", what.replace(' ', "-"));
        bench.hub.dataset(&set, &[("README.md", card.as_bytes()), ("train.jsonl", b"{}")]);
        let args = bench.training(&format!("hub = \"{set}\", {TRAIN}"), &[]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refuses(what, &bench.command(&args), 1, "pattern");
    }
}

#[test]
fn models() {
    let project = with_model();
    let translate = project.command(&["translate", "--model", "model", "-q", "a"]);
    let config = std::fs::read_to_string(project.path("model/config.toml")).unwrap();
    let weights = std::fs::read(project.path("model/model.safetensors")).unwrap();
    for (what, keys, code, words) in [
        ("65,536 positions", &[("max_length", 65_536)][..], 0, ""),
        ("16 million positions", &[("max_length", 16_000_000)], 2, "at most 65536"),
        ("a model of 7 GB", &[("d_ff", 1_000_000), ("encoder_layers", 28)], 1, "model.safetensors"),
        ("a million layers", &[("encoder_layers", 1_000_000)], 2, "encoder_layers"),
    ] {
        let mut changed: toml::Table = config.parse().unwrap();
        let model = changed["model"].as_table_mut().unwrap();
        for (key, value) in keys {
            assert!(model.insert((*key).to_owned(), (*value).into()).is_some(), "{key}");
        }
        project.write("model/config.toml", changed.to_string());
        seal(&project);
        refuses(what, &translate, code, words);
    }
    project.write("model/config.toml", &config);
    // One TB of which nothing was written but the header, and then a header of 100 MB.
    let sparse = |header: &str, length: u64| {
        let mut file = File::create(project.path("model/model.safetensors")).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.set_len(length).unwrap();
        seal(&project);
    };
    let header =
        |bytes: u64| format!(r#"{{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{bytes}]}}}}"#, bytes / 4);
    let tera = header(1 << 40);
    sparse(&tera, 8 + tera.len() as u64 + (1 << 40));
    refuses("weights of 1 TB, of holes", &translate, 1, "were never written");
    for command in ["quantize", "export"] {
        let more: &[&str] = if command == "export" { &["--format", "hf-marian"] } else { &[] };
        let args = [&[command, "model", "--out", "new", "-q"], more].concat();
        refuses(&format!("… to {command}"), &project.command(&args), 1, "were never written");
    }
    std::fs::write(project.path("model/model.safetensors"), (100_u64 << 20).to_le_bytes()).unwrap();
    File::options().write(true).open(project.path("model/model.safetensors")).unwrap().set_len(101 << 20).unwrap();
    seal(&project);
    refuses("a header of 100 MB", &translate, 1, "model.safetensors");
    npz::write(&project.path("forged"), |_, _| ());
    let mut forged = zip::ZipWriter::new(File::create(project.path("forged/model.npz")).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    forged.start_file("Wemb.npy", stored).unwrap();
    forged.write_all(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").unwrap();
    forged.finish().unwrap();
    let import = project.command(&["import", "forged", "--out", "new"]);
    refuses("an array whose header has 4 GB", &import, 1, "more than 65536 bytes");
    project.write("model/model.safetensors", weights);
    seal(&project);
    succeeds(&project.mt(&["translate", "--model", "model", "-q", "a"]));
}

#[test]
fn text() {
    let project = with_model();
    // A line of 4 GB: of holes, and packed as small as it becomes.
    File::create(project.path("holes")).unwrap().set_len(4 << 30).unwrap();
    let eval = |name: &str| project.command(&["eval", "--bleu", "--hyp", name, "--ref", name]);
    refuses("a line of 4 GB", &eval("holes"), 1, "holes");
    // Without having it in memory: what a process has taken begins with what the one had that started it.
    let letters = |count: u64| std::io::repeat(b'a').take(count << 20);
    project.write("line.zst", zstd::encode_all(letters(4096), 1).unwrap());
    let mut packed = Vec::new();
    liblzma::read::XzEncoder::new(letters(256), 0).read_to_end(&mut packed).unwrap();
    project.write("line.xz", packed);
    let mut packed = Vec::new();
    flate2::read::GzEncoder::new(letters(256), flate2::Compression::fast()).read_to_end(&mut packed).unwrap();
    project.write("line.gz", packed);
    for name in ["line.zst", "line.xz", "line.gz"] {
        let length = std::fs::metadata(project.path(name)).unwrap().len();
        println!("{name}: {length} bytes");
        let corpus = format!("data.train=[{{ source = \"{name}\", target = \"{name}\" }}]");
        let args = ["train", "--config", "small.toml", "--overwrite", "-q", "--set", &corpus];
        refuses(&format!("a line of 256 MB and more in {name}, to train on"), &project.command(&args), 1, name);
        let args = ["translate", "--model", "model", "-q", "--input", name];
        refuses("… to translate", &project.command(&args), 1, name);
    }
    // A name of 1 MB that each of 100,000 segments has.
    let (name, segments) = ("a".repeat(1 << 20), "<seg/>".repeat(100_000));
    project.write("set.xml", format!("<dataset><doc id=\"{name}\"><ref>{segments}</ref></doc></dataset>"));
    refuses("a test set with a long name", &eval("set.xml"), 1, "more than 4096");
}

#[test]
fn configurations_and_logs() {
    let project = with_model();
    let keys: String = (0..300_000).map(|index| format!("u{index} = 1\n")).collect();
    let sets = "{source=\"valid.en\",target=\"valid.de\"},".repeat(60_000);
    let sets = common::project::CONFIG.replace("\ntest = ", &format!("\nmonitor = [{sets}]\ntest = "));
    let unknown = common::project::CONFIG.replace(common::project::PRECISION, &format!("[runtime]\n{keys}"));
    let nested = format!("a = {}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    for (what, text, words) in [
        ("300,000 unknown keys", unknown, "u0"),
        ("60,000 monitored sets", sets, "`data.monitor` has 60000 sets"),
        ("lists 100,000 deep", nested, "bad.toml"),
        ("a configuration of 8 MB", format!("a = \"{}\"\n", "a".repeat(8 << 20)), "bad.toml"),
    ] {
        project.write("bad.toml", text);
        let command = project.command(&["train", "--config", "bad.toml", "-q", "--dry-run"]);
        refuses(what, &command, 2, words);
    }
    let run = project.path("runs/small");
    let log = std::fs::read_to_string(run.join("log.jsonl")).unwrap();
    let lines = log.lines().map(|line| {
        let mut entry: Value = serde_json::from_str(line).unwrap();
        for (index, (_, value)) in entry.as_object_mut().unwrap().iter_mut().enumerate() {
            if value.is_f64() {
                *value = json!(if index % 2 == 0 { 1e308 } else { -1e308 });
            }
        }
        entry.to_string() + "\n"
    });
    std::fs::write(run.join("log.jsonl"), lines.collect::<String>()).unwrap();
    refuses("losses of 1e308", &project.command(&["report", "runs/small", "-q"]), 0, "");
    assert!(Path::new(&run.join("report.html")).is_file());
}
