//! A hub, a mirror, or a storage behind it that means harm: what it sends is bounded, and what it must not know it is
//! not sent.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::datasets::{Bench, json_lines, pairs};
use common::hostile::{Asked, COMMIT, Hostile, answer, endless, head, listing};
use common::project::{Project, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use sha1::Sha1;
use sha2::{Digest, Sha256};

const SET: &str = "hub = \"o/set\", split = \"train\", source = \"en\", target = \"de\"";
const FILE: &str = "train.jsonl";
const TOKEN: &str = "hf_secret";

fn rows() -> Vec<u8> {
    json_lines(&pairs(), false)
}

fn sha256(contents: &[u8]) -> String {
    format!("\"{:x}\"", Sha256::digest(contents))
}

fn git_sha1(contents: &[u8]) -> String {
    format!("\"{:x}\"", Sha1::new_with_prefix(format!("blob {}\0", contents.len())).chain_update(contents).finalize())
}

/// `mt train --dry-run` with the data set of this hub, which gets the token.
fn command(bench: &Bench, endpoint: &str, more: &[&str]) -> Command {
    let args = bench.training(SET, &[&["--dry-run", "-v"], more].concat());
    let mut command = bench.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    command.envs([("HF_ENDPOINT", endpoint), ("HF_TOKEN", TOKEN)]);
    command
}

fn run(bench: &Bench, endpoint: &str) -> Output {
    command(bench, endpoint, &[]).output().unwrap()
}

/// The names in the cache's folder of contents.
fn blobs(bench: &Bench) -> Vec<String> {
    bench.names("o/set", "blobs").into_iter().collect()
}

/// A hub with one file, and what it says of that.
fn serving(contents: &[u8], etag: &str) -> Hostile {
    let (contents, etag) = (contents.to_vec(), etag.to_owned());
    Hostile::start(move |asked, stream| match asked.method.as_str() {
        "GET" if asked.is_about() => answer(stream, 200, &[], &listing(&[FILE])),
        "HEAD" => head(stream, 200, &[("ETag", &etag), ("Content-Length", &contents.len().to_string())]),
        _ => answer(stream, 200, &[], &contents),
    })
}

/// A hub that answers well, but for requests for contents.
fn sending(
    headers: &'static [(&'static str, &'static str)],
    send: impl Fn(&Asked, &mut std::net::TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> Hostile {
    let etag = sha256(&rows());
    Hostile::start(move |asked, stream| match asked.method.as_str() {
        "GET" if asked.is_about() => answer(stream, 200, &[], &listing(&[FILE])),
        "HEAD" => head(stream, 200, &[headers, &[("ETag", &etag)]].concat()),
        _ => send(asked, stream),
    })
}

#[test]
fn a_download_ends_where_it_was_announced_to_end() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for (announced, sent, is_asked) in [
        (&[("Content-Length", "4000")][..], &[][..], true),
        (&[("Content-Length", "4000")], &[("Content-Length", "4001")], true),
        (&[], &[("Content-Length", "2000000000")], true),
        (&[("X-Linked-Size", "-1")], &[("Content-Length", "2000000000")], true),
        (&[("Content-Length", "1000000000000000")], &[], false),
    ] {
        let bench = Bench::new();
        let hub = sending(announced, move |_, stream| {
            head(stream, 200, sent)?;
            endless(stream, b"x")
        });
        transcript.note(&format!("announced with {announced:?}, sent without end with {sent:?}"));
        transcript.command(&mut command(&bench, &hub.address, &[]), &[]);
        // Another try would bring as much.
        let tries = hub.log().iter().filter(|asked| asked.method == "GET" && !asked.is_about()).count();
        assert_eq!(tries, usize::from(is_asked), "{announced:?}");
        assert_eq!(blobs(&bench), [""; 0], "{announced:?}");
    }
    assert_transcript!(transcript);
}

#[test]
fn a_hub_that_sends_a_byte_at_a_time_is_given_up() {
    let bench = Bench::new();
    let hub = sending(&[("Content-Length", "1000000")], |_, stream| {
        head(stream, 206, &[("Content-Range", "bytes 0-999999/1000000"), ("Content-Length", "1000000")])?;
        std::io::Write::write_all(stream, b"x")
    });
    let mut transcript = Transcript::new(&bench.project);
    transcript.command(&mut command(&bench, &hub.address, &[]), &[]);
    assert_transcript!(transcript);
    assert!(hub.log().len() < 12);
}

/// Runs `mt` in the project with a disk of that size mounted at `folder`; the output ends with how many KiB of it are
/// used, and the names in it. `None` where that is not possible.
fn on_small_disk(
    bench: &Bench,
    test: &str,
    folder: &str,
    size: &str,
    args: &[String],
    endpoint: &str,
) -> Option<Output> {
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        common::skipped(test, "no namespaces here (unshare -rm)");
        return None;
    }
    std::fs::create_dir(bench.project.path(folder)).unwrap();
    let (mt, args) = (env!("CARGO_BIN_EXE_mt"), args.join("' '"));
    let mount = format!("mount -t tmpfs -o size={size} tmpfs {folder}");
    let line = format!("{mount} && '{mt}' '{args}'; code=$?; df --output=used {folder}; ls -R {folder}; exit $code");
    bench.project.write("small-disk.sh", line);
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "small-disk.sh"]).current_dir(bench.project.folder.path()).env("NO_COLOR", "1");
    bench.connect(&mut command);
    command.env("XDG_CACHE_HOME", bench.project.path("cache")).env("HF_ENDPOINT", endpoint);
    Some(command.output().unwrap())
}

#[test]
fn a_disk_is_left_room_for_others() {
    // With a size, nothing is written; without one, as much as there is room for, which is removed.
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for (announced, is_asked) in [(&[("Content-Length", "5000000")][..], false), (&[], true)] {
        let bench = Bench::new();
        let hub = sending(announced, |_, stream| {
            head(stream, 200, &[])?;
            endless(stream, b"x")
        });
        let args = bench.training(SET, &["--dry-run"]);
        let output = on_small_disk(&bench, "a_disk_is_left_room_for_others", "hf", "2m", &args, &hub.address);
        let Some(output) = output else { return };
        if is_asked {
            // How many bytes were too many depends on how they arrive.
            assert!(stderr(&output).contains("/hf is too full for train.jsonl of o/set: "), "{}", stderr(&output));
        } else {
            transcript.stderr_of(&bench.project, "sh small-disk.sh > listing", &output);
        }
        let printed = stdout(&output);
        assert!(!printed.contains(".incomplete"), "{printed}");
        let used = printed.lines().nth(1).and_then(|used| used.trim().parse::<u64>().ok());
        assert!(used.is_some_and(|used| used < 100), "{printed}");
        let asked = hub.log().iter().any(|asked| asked.method == "GET" && !asked.is_about());
        assert_eq!(asked, is_asked);
    }
    assert_transcript!(transcript);
}

#[test]
fn what_is_made_of_the_hub_s_files_leaves_the_disk_room() {
    const TEST: &str = "what_is_made_of_the_hub_s_files_leaves_the_disk_room";
    let bench = Bench::new();
    common::marian::write(&bench.project.path("opus"), |_, _| ());
    let files = std::fs::read_dir(bench.project.path("opus")).unwrap().flatten();
    let files = files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap()));
    let files: Vec<(String, Vec<u8>)> = files.collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    bench.hub.model("o/en-xx", "main", &files);
    let args = ["translate", "--model", "hf:o/en-xx", "x"].map(str::to_owned);
    let output = on_small_disk(&bench, TEST, "cache", "16k", &args, &bench.hub.address);
    let Some(output) = output else { return };
    let mut transcript = Transcript::new(&bench.project);
    transcript.stderr_of(&bench.project, "sh small-disk.sh > listing", &output);
    assert!(!stdout(&output).contains("model.safetensors"), "{}", stdout(&output));
    // Prepared text is larger than this disk; tokenizers are smaller.
    let row = |i: usize| format!("{{\"en\": \"w{i} of {i}\", \"de\": \"v{} of {i}\"}}\n", i * 7919 % 99_991);
    bench.hub.dataset("o/set", &[(FILE, (0..60_000).map(row).collect::<String>().as_bytes())]);
    let corpus = format!("data.train=[{{ {SET} }}]");
    let args =
        ["prepare", "--config", "small.toml", "--set", &corpus, "--set", "data.cache_dir=prepared"].map(str::to_owned);
    let Some(output) = on_small_disk(&bench, TEST, "prepared", "800k", &args, &bench.hub.address) else { return };
    transcript.stderr_of(&bench.project, "sh small-disk.sh > listing", &output);
    assert_transcript!(transcript);
    assert!(!stdout(&output).contains(".bin"), "{}", stdout(&output));
}

/// What leads to another host, as browsers read it.
const LOCATIONS: [&str; 10] = [
    "/\\OTHER/x",
    "//OTHER/x",
    "\\\\OTHER/x",
    "\\/OTHER/x",
    "http://OTHER/x",
    "http:\\\\OTHER/x",
    "HTTP:/\t/OTHER/x",
    "http://HUB@OTHER/x",
    "http://me:pw@OTHER/x",
    "http://localhost:PORT/x",
];

#[test]
fn the_token_reaches_no_other_host_however_it_is_named() {
    let contents = rows();
    let etag = sha256(&contents);
    let other = Hostile::start({
        let contents = contents.clone();
        move |_, stream| answer(stream, 200, &[], &contents)
    });
    let host = other.address.trim_start_matches("http://").to_owned();
    for location in LOCATIONS {
        for redirected in ["about", "contents", "head"] {
            let bench = Bench::new();
            let (etag, contents, host) = (etag.clone(), contents.clone(), host.clone());
            let hub = Hostile::start(move |asked, stream| {
                let kind = match asked.method.as_str() {
                    "HEAD" => "head",
                    _ if asked.is_about() => "about",
                    _ => "contents",
                };
                let own = stream.local_addr()?.to_string();
                let (_, port) = host.split_once(':').unwrap_or_default();
                let location = location.replace("OTHER", &host).replace("HUB", &own).replace("PORT", port);
                match kind {
                    _ if kind == redirected => answer(stream, 302, &[("Location", &format!("{location}?{kind}"))], b""),
                    "head" => head(stream, 200, &[("ETag", &etag), ("Content-Length", &contents.len().to_string())]),
                    "about" => answer(stream, 200, &[], &listing(&[FILE])),
                    _ => answer(stream, 200, &[], &contents),
                }
            });
            let output = run(&bench, &hub.address);
            let log = other.log();
            assert!(log.iter().all(|asked| asked.authorization.is_none()), "{location} {redirected}: {log:?}");
            // It is followed where it may be, so it did lead there: contents are compared with their checksum.
            let follows = redirected == "contents";
            assert_eq!(log.len(), usize::from(follows), "{location} {redirected}: {}", stderr(&output));
            assert_eq!(output.status.success(), follows, "{location} {redirected}: {}", stderr(&output));
            let own = hub.log();
            let sent = own.iter().all(|asked| asked.authorization.as_deref() == Some("Bearer hf_secret"));
            assert!(sent, "{own:?}");
        }
    }
}

#[test]
fn the_next_page_that_a_hub_names_is_not_asked_for() {
    let bench = Bench::new();
    let other = Hostile::start(|_, stream| answer(stream, 200, &[], b"[]"));
    let link = format!("<{}/x>; rel=\"next\"", other.address);
    let hub = Hostile::start(move |asked, stream| {
        let body = if asked.path.contains("/discussions") {
            serde_json::json!({ "discussions": [{ "num": 1, "title": "Adding `safetensors` variant of this model",
                "status": "open", "isPullRequest": true, "author": { "name": "SFconvertbot" } }], "count": 1,
                "start": 0 })
            .to_string()
            .into_bytes()
        } else if asked.path.contains("/commits/") {
            br#"[{"id": "0000", "title": "", "message": "", "authors": []}]"#.to_vec()
        } else {
            listing(&["pytorch_model.bin"])
        };
        answer(stream, 200, &[("Link", &link)], &body)
    });
    let mut command = bench.command(&["translate", "--model", "hf:o/model", "x"]);
    command.envs([("HF_ENDPOINT", hub.address.as_str()), ("HF_TOKEN", TOKEN)]);
    let mut transcript = Transcript::new(&bench.project);
    transcript.command(command.env("XDG_CACHE_HOME", bench.project.path("cache")), &[]);
    assert_transcript!(transcript);
    let log = hub.log();
    assert!(log.iter().any(|asked| asked.path.contains("/commits/refs%2Fpr%2F1?limit=")), "{log:?}");
    assert!(other.log().is_empty());
}

#[test]
fn a_token_is_sent_unencrypted_to_this_machine_alone() {
    let bench = Bench::new();
    // Another machine as far as its name says; nobody answers there.
    let elsewhere = "http://0.0.0.0:9";
    let mut transcript = Transcript::new(&bench.project);
    for variables in [
        &[("HF_ENDPOINT", elsewhere)][..],
        &[("HF_ENDPOINT", "http://me:pw@0.0.0.0:9")],
        &[("HF_ENDPOINT", elsewhere), ("MT_INSECURE_TOKEN", "1")],
        &[("HF_ENDPOINT", elsewhere), ("HF_TOKEN", "")],
    ] {
        transcript.command(&mut command(&bench, elsewhere, &[]), variables);
    }
    assert_transcript!(transcript);
    // A proxy would be another machine.
    let proxy = Hostile::start(|_, stream| answer(stream, 502, &[], b""));
    let contents = rows();
    let hub = sending(&[], move |_, stream| answer(stream, 200, &[], &contents));
    let mut command = command(&bench, &hub.address, &[]);
    for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env(variable, &proxy.address);
    }
    succeeds(&command.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap());
    assert!(proxy.log().is_empty());
}

#[test]
fn no_message_shows_a_secret() {
    const BASIC: &str = "bWU6c2VzYW1l";
    let bench = Bench::new();
    let hides = |output: &Output| {
        let text = stderr(output) + &stdout(output);
        for secret in [TOKEN, "sesame", BASIC, "signed"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    };
    let mut transcript = Transcript::new(&bench.project);
    // What they sent is repeated by the server, in a header or in the body.
    for in_header in [true, false] {
        let hub = Hostile::start(move |asked, stream| {
            let sent = asked.authorization.clone().unwrap_or_default();
            let decoded = if sent.starts_with("Basic") { "me:sesame" } else { "" };
            let said = format!("no {sent} {decoded} https://me:sesame@hub/x");
            let body = serde_json::json!({ "error": said }).to_string();
            let header = [("X-Error-Message", said.as_str())];
            answer(stream, 403, if in_header { &header } else { &[] }, body.as_bytes())
        });
        let with_password = hub.address.replace("http://", "http://me:sesame@");
        for (endpoint, sent) in [(&hub.address, "Bearer hf_secret"), (&with_password, &format!("Basic {BASIC}"))] {
            hides(&transcript.command(&mut command(&bench, &hub.address, &[]), &[("HF_ENDPOINT", endpoint)]));
            let log = hub.log();
            assert!(log.iter().all(|asked| asked.authorization.as_deref() == Some(sent)), "{log:?}");
        }
    }
    for endpoint in ["http://me:sesame@127.0.0.1:9", "http://me:sesame@127.0.0.1:x", "http://me:se/sesame@127.0.0.1:x"]
    {
        hides(&transcript.command(&mut command(&bench, endpoint, &[]), &[("HF_ENDPOINT", endpoint)]));
    }
    // The address of a storage is signed; it refuses, or breaks off.
    for refuses in [true, false] {
        let bench = Bench::new();
        let hub = sending(&[("Content-Length", "4000")], move |asked, stream| {
            if !asked.path.contains("Signature") {
                return answer(stream, 302, &[("Location", "/x?X-Amz-Signature=signed")], b"");
            }
            if refuses {
                return answer(stream, 403, &[("X-Error-Message", "bad X-Amz-Signature=signed at /x?a=signed")], b"");
            }
            head(stream, 200, &[("Content-Length", "4000")])
        });
        transcript.note(if refuses { "the storage refuses" } else { "the storage breaks off" });
        hides(&transcript.command(&mut command(&bench, &hub.address, &[]), &[]));
    }
    assert_transcript!(transcript);
}

#[test]
fn answers_have_an_end() {
    let bench = Bench::new();
    let big = listing(&(0..200_001).map(|number| number.to_string()).collect::<Vec<_>>());
    let mut transcript = Transcript::new(&bench.project);
    for (what, most, hub) in [
        (
            "spaces without end",
            11,
            Hostile::start(|_, stream| {
                head(stream, 200, &[])?;
                endless(stream, b" ")
            }),
        ),
        (
            "a length of a terabyte",
            11,
            Hostile::start(|_, stream| head(stream, 200, &[("Content-Length", "1000000000000")])),
        ),
        (
            "an error without end",
            11,
            Hostile::start(|_, stream| {
                head(stream, 404, &[])?;
                endless(stream, b"x")
            }),
        ),
        (
            "headers without end",
            5,
            Hostile::start(|_, stream| {
                std::io::Write::write_all(stream, b"HTTP/1.1 200 -\r\n")?;
                endless(stream, b"X: y\r\n")
            }),
        ),
        ("too many names", 11, Hostile::start(move |_, stream| answer(stream, 200, &[], &big))),
        (
            "redirects without end",
            11,
            Hostile::start(|asked, stream| answer(stream, 302, &[("Location", &format!("{}x", asked.path))], b"")),
        ),
        (
            "the address of a file",
            11,
            Hostile::start(|_, stream| answer(stream, 302, &[("Location", "file:///etc/passwd")], b"")),
        ),
        ("deep brackets", 11, Hostile::start(|_, stream| answer(stream, 200, &[], &[b'['; 1 << 20]))),
    ] {
        transcript.note(&format!("the hub answers with {what}"));
        transcript.command(&mut command(&bench, &hub.address, &[]), &[]);
        let asked = hub.log().len();
        // A hub that cannot be understood may be asked again.
        assert!(asked <= most, "{what}: {asked} requests");
    }
    assert_transcript!(transcript);
}

/// Changes a file without its length.
fn spoil(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, text.replace("cat", "dog")).unwrap();
}

#[test]
fn a_cached_file_is_what_the_hub_says_or_is_fetched_again() {
    let contents = rows();
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for etag in [git_sha1(&contents), sha256(&contents)] {
        let bench = Bench::new();
        let hub = serving(&contents, &etag);
        succeeds(&run(&bench, &hub.address));
        let cached = bench.cache("o/set").join("snapshots").join(COMMIT).join(FILE);
        spoil(&cached);
        let offline = || command(&bench, &hub.address, &["--offline"]);
        transcript.command(&mut offline(), &[]);
        transcript.stderr_of(&bench.project, "mt train --dry-run > plan", &run(&bench, &hub.address));
        assert_eq!(std::fs::read(&cached).unwrap(), contents);
        succeeds(&offline().output().unwrap());
        // The same commit with other contents: those of the hub count.
        let changed: Vec<u8> = contents.iter().map(|byte| if *byte == b'c' { b'k' } else { *byte }).collect();
        let etag = if etag.len() == 42 { git_sha1(&changed) } else { sha256(&changed) };
        let hub = serving(&changed, &etag);
        transcript.stderr_of(&bench.project, "mt train --dry-run > plan", &run(&bench, &hub.address));
        assert_eq!(std::fs::read(&cached).unwrap(), changed);
    }
    // Fresh ones, too.
    for etag in [40, 64].map(|digits| format!("\"{}\"", "0".repeat(digits))) {
        let bench = Bench::new();
        let hub = serving(&contents, &etag);
        transcript.command(&mut command(&bench, &hub.address, &[]), &[]);
        assert_eq!(blobs(&bench), [""; 0]);
    }
    assert_transcript!(transcript);
}

#[test]
fn a_link_in_the_place_of_a_part_leads_nowhere() {
    let bench = Bench::new();
    let contents = rows();
    let folder = bench.cache("o/set").join("blobs");
    std::fs::create_dir_all(&folder).unwrap();
    bench.project.write("precious", "precious");
    let part = folder.join(format!("{}.incomplete", sha256(&contents).trim_matches('"')));
    std::os::unix::fs::symlink(bench.project.path("precious"), &part).unwrap();
    let hub = sending(&[], move |_, stream| answer(stream, 200, &[], &contents));
    succeeds(&run(&bench, &hub.address));
    assert_eq!(std::fs::read_to_string(bench.project.path("precious")).unwrap(), "precious");
}
