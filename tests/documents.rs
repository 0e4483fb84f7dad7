//! Files, links, targets of make, commands, keys, functions and types that the documents name exist, and flags that
//! help names. Examples of configurations are valid. Files of the project that have to agree do. No line of code is
//! too wide.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use clap::error::ErrorKind;
use mt::cli::Cli;
use mt::config;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages of a folder.
fn pages(folder: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
}

/// README.md, CONTRIBUTING.md, `docs/` and the guide.
fn documents() -> Vec<PathBuf> {
    let own = ["README.md", "CONTRIBUTING.md"].map(|name| root().join(name));
    [pages("docs"), pages("docs/guide"), own.to_vec()].concat()
}

/// The parts of a line between backticks.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The folders at the top whose files documents name.
const FOLDERS: [&str; 9] = ["src/", "tests/", "configs/", "scripts/", "docs/", "benches/", "data/", "fuzz/", ".ci/"];

#[test]
fn paths_that_documents_name_exist() {
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            let is_path = |code: &&str| {
                let begins = FOLDERS.iter().any(|top| code.starts_with(top));
                begins && !code.contains([' ', '*', '{', '…', '<', '$'])
            };
            for path in code(line).filter(is_path) {
                named += 1;
                if !root().join(path).exists() {
                    missing.push(format!("{}:{number}: {path}", document.display()));
                }
            }
        }
    }
    assert!(named > 100, "only {named} paths found");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Where a document's links lead to.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// What follows `#` in a link to a heading of this text.
fn anchors(text: &str) -> BTreeSet<String> {
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    let anchor = |title: &str| title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-");
    text.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')).map(anchor).collect()
}

/// Links to other files of the project, and to their headings.
#[test]
fn links_of_documents_lead_somewhere() {
    let (mut checked, mut broken) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text).filter(|link| !link.contains("://")) {
            checked += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let there = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            let has_anchor = || anchors(&fs::read_to_string(&there).unwrap()).contains(anchor);
            if !there.exists() || !anchor.is_empty() && !has_anchor() {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(checked > 100, "only {checked} links found");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_book_has_all_pages() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> = links(&summary).map(|link| root().join("docs").join(link)).collect();
    let pages = [pages("docs"), pages("docs/guide")].concat().into_iter();
    let pages: BTreeSet<PathBuf> = pages.filter(|page| !page.ends_with("SUMMARY.md")).collect();
    assert_eq!(listed, pages);
}

/// Lines of code blocks, and code between backticks, that begin with `make`.
#[test]
fn targets_of_make_that_documents_name_exist() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> =
        makefile.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let mut is_block = false;
        for line in text.lines() {
            is_block ^= line.starts_with("```");
            let whole = is_block.then_some(line);
            for command in whole.into_iter().chain(code(line)).filter_map(|code| code.strip_prefix("make ")) {
                let target = command.split_whitespace().next().unwrap_or_default();
                named += 1;
                if !targets.contains(target) {
                    missing.push(format!("{}: make {target}", document.display()));
                }
            }
        }
    }
    assert!(named > 50, "only {named} targets found");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The commands of a line for a shell, word by word, without comments and redirections.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut quote) = (None::<String>, None);
    // A space ends the last word.
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | ';' | '|' | '&') => {
                let word = word.take().filter(|word| !word.starts_with(['<', '>']));
                commands.last_mut().unwrap().extend(word);
                if c != ' ' {
                    commands.push(Vec::new());
                }
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    commands
}

/// The commands of a line that call `mt`.
fn calls(line: &str) -> impl Iterator<Item = Vec<OsString>> {
    let words = commands(line).into_iter().map(|words| words.into_iter().skip_while(|word| word == "do"));
    let calls = words.map(|words| words.map(OsString::from).collect::<Vec<_>>());
    calls.filter(|call| call.first().is_some_and(|word| word == "mt" || Path::new(word).ends_with("release/mt")))
}

/// Command lines in code blocks: their commands, flags and the values of these. Command lines in the text may be parts
/// of such lines, and stand for any (`mt COMMAND --help`): their commands and flags.
#[test]
fn commands_that_documents_show_are_understood() {
    let (mut shown, mut named, mut wrong) = (0, 0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let mut understand = |line: &str, accepted: fn(&clap::Error) -> bool| {
            let mut count = 0;
            for call in calls(line) {
                count += 1;
                if let Err(error) = Cli::from_arguments(&call)
                    && !accepted(&error)
                {
                    wrong.push(format!("{}: {line}\n{error}", document.display()));
                }
            }
            count
        };
        let (mut lines, mut blocks) = (String::new(), String::new());
        for (number, part) in text.split("```").enumerate() {
            if number % 2 == 0 { lines.push_str(part) } else { blocks.push_str(&part.replace("\\\n", " ")) }
        }
        shown += blocks.lines().map(|line| understand(line, |_| false)).sum::<i32>();
        let in_text = lines.lines().flat_map(code).filter(|code| !code.starts_with("mt COMMAND"));
        let is_part =
            |error: &clap::Error| ![ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand].contains(&error.kind());
        named += in_text.map(|code| understand(&code.replace(" …", ""), is_part)).sum::<i32>();
    }
    assert!(shown > 80, "only {shown} commands found");
    assert!(named > 80, "only {named} commands found in the text");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Examples with a table's header. The models that they begin with are not there.
#[test]
fn configurations_that_documents_show_are_valid() {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let (mut shown, mut wrong) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        for block in blocks.filter(|block| block.lines().any(|line| line.starts_with('['))) {
            shown += 1;
            let is_kept = |line: &&str| !line.starts_with("init = ");
            let lines: Vec<&str> = block.lines().filter(is_kept).collect();
            fs::write(&file, lines.join("\n")).unwrap();
            if let Err(error) = config::load(&[file.path().to_path_buf()], &[]) {
                wrong.push(format!("{}:\n{block}{error}", document.display()));
            }
        }
    }
    assert!(shown > 8, "only {shown} configurations found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Such as `train.batch_tokens`, between backticks and in tables.
#[test]
fn keys_that_documents_name_exist() {
    const SECTIONS: [&str; 7] = ["data", "tokenizer", "model", "train", "valid", "decode", "runtime"];
    // Names of files begin with a section's name, too. Endings of two letters are languages and the like.
    const ENDINGS: [&str; 3] = ["json", "npz", "safetensors"];
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let (mut named, mut unknown) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for name in text.lines().flat_map(code) {
            let path = name.split([' ', '=']).next().unwrap_or_default();
            let Some((table, key)) = path.rsplit_once('.') else { continue };
            let section = table.split('.').next().unwrap_or_default();
            let is_file = key.len() < 3 || ENDINGS.contains(&key);
            if is_file || !SECTIONS.contains(&section) || !path.split('.').all(is_name) {
                continue;
            }
            named += 1;
            if !config::keys_called(key).iter().any(|ours| ours == path) {
                unknown.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(named > 100, "only {named} keys found");
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Otherwise `make fuzz` would change a file of the repository, and test other versions than those that are built.
#[test]
fn the_versions_that_are_fuzzed_are_those_that_are_built() {
    let toml = |path: &str| fs::read_to_string(root().join(path)).unwrap().parse::<toml::Table>().unwrap();
    let packages = |path: &str| toml(path)["package"].as_array().unwrap().clone();
    let (built, fuzzed) = (packages("Cargo.lock"), packages("fuzz/Cargo.lock"));
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &built {
        versions.entry(package["name"].as_str().unwrap()).or_default().insert(package["version"].as_str().unwrap());
    }
    for package in &fuzzed {
        let (name, version) = (package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
        let is_built = versions.get(name).is_none_or(|versions| versions.contains(version));
        assert!(is_built, "fuzz/Cargo.lock has {name} {version}, Cargo.lock {:?}", versions[name]);
    }
    // That crate has no tests of ours and the default features alone, so only their dependencies.
    let ours = fuzzed.iter().find(|package| package["name"].as_str() == Some("mt")).unwrap();
    let names = ours["dependencies"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let names: BTreeSet<&str> = names.filter_map(|name| name.split(' ').next()).collect();
    let manifest = toml("Cargo.toml");
    let features = manifest["features"].as_table().unwrap();
    let parts = |name: &str| features[name].as_array().unwrap().iter().map(|part| part.as_str().unwrap());
    let by_default: BTreeSet<&str> = parts("default").flat_map(parts).collect();
    let is_needed = |name: &str, value: &toml::Value| {
        let is_optional = value.get("optional").and_then(toml::Value::as_bool) == Some(true);
        !is_optional || by_default.contains(format!("dep:{name}").as_str())
    };
    let needed = manifest["dependencies"].as_table().unwrap().iter().filter(|(name, value)| is_needed(name, value));
    assert_eq!(names, needed.map(|(name, _)| name.as_str()).collect(), "fuzz/Cargo.lock: cargo update --workspace");
}

/// Otherwise `make test` compiles that crate, and all that use it, a second time after `make build`.
#[test]
fn tests_turn_on_no_features_of_what_the_program_is_built_from() {
    let tree = |edges: &str| -> BTreeSet<String> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--offline", "--locked", "--prefix", "none", "--format", "{p} {f}", "--edges", edges]);
        let output = cargo.current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    };
    let (built, tested) = (tree("normal,build"), tree("normal,build,dev"));
    assert!(built.len() > 100, "only {} crates found", built.len());
    let differ: Vec<&String> = built.difference(&tested).collect();
    assert!(differ.is_empty(), "with other features in tests: {differ:#?}");
}

/// `cargo about` collects the licences for a release, `cargo deny` checks them at each change.
#[test]
fn releases_accept_the_licences_that_are_checked() {
    let toml = |path: &str| fs::read_to_string(root().join(path)).unwrap().parse::<toml::Table>().unwrap();
    let names = |list: &toml::Value| -> BTreeSet<String> {
        list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let checked = toml("deny.toml")["licenses"].as_table().unwrap().clone();
    let released = toml("scripts/licences/about.toml");
    assert_eq!(names(&checked["allow"]), names(&released["accepted"]));
    let exceptions = checked["exceptions"].as_array().unwrap().iter();
    let exceptions = exceptions.map(|one| (one["crate"].as_str().unwrap(), names(&one["allow"])));
    let of_crates = released.iter().filter_map(|(name, of)| Some((name.as_str(), names(of.get("accepted")?))));
    assert_eq!(exceptions.collect::<BTreeMap<_, _>>(), of_crates.collect::<BTreeMap<_, _>>());
}

/// In the tables of docs/architecture.md, each row ends with functions or types and their files: each file has one of
/// them.
#[test]
fn the_hops_of_the_architecture_are_in_their_files() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut rows = 0;
    for line in text.lines().filter(|line| line.ends_with(".rs` |") && line.contains("` | `src/")) {
        let cells: Vec<&str> = line.trim_end_matches('|').split(" | ").collect();
        let [.., items, files] = &cells[..] else { panic!("not a row: {line}") };
        let (items, files): (Vec<&str>, Vec<&str>) = (code(items).collect(), code(files).collect());
        let sources = files.iter().map(|path| (path, fs::read_to_string(root().join(path)).unwrap()));
        let sources: Vec<_> = sources.collect();
        let declares = |source: &str, item: &str| {
            ["fn", "struct", "trait", "enum"].iter().any(|kind| {
                let declared = format!("{kind} {item}");
                let ends =
                    |at: usize| !source[at + declared.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
                source.match_indices(&declared).any(|(at, _)| ends(at))
            })
        };
        for item in &items {
            assert!(sources.iter().any(|(_, source)| declares(source, item)), "{files:?} have no {item}");
        }
        for (path, source) in &sources {
            assert!(items.iter().any(|item| declares(source, item)), "{path} has none of {items:?}");
        }
        rows += 1;
    }
    assert!(rows > 60, "only {rows} rows found");
}

/// In docs/security.md, each promise names its test and the file that has it.
#[test]
fn the_tests_of_the_promises_exist() {
    let text = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let mut rows = 0;
    for line in text.lines().filter(|line| line.starts_with("| ") && line.ends_with(".rs` |")) {
        let found: Vec<&str> = code(line).collect();
        let [.., test, path] = &found[..] else { panic!("no test in: {line}") };
        let source = fs::read_to_string(root().join(path)).unwrap();
        assert!(source.contains(&format!("fn {test}()")), "{path} has no test {test}");
        rows += 1;
    }
    assert!(rows > 10, "only {rows} rows found");
}

#[test]
fn help_names_flags_that_the_command_has() {
    let cli = Cli::command();
    for command in cli.get_subcommands() {
        let flags: Vec<_> =
            command.get_arguments().chain(cli.get_arguments()).filter_map(|arg| arg.get_long()).collect();
        let helps = command.get_arguments().filter_map(|arg| arg.get_long_help().or(arg.get_help()));
        for help in helps.map(ToString::to_string) {
            let words = help.split(|c: char| c != '-' && !c.is_alphanumeric());
            for flag in words.filter_map(|word| word.strip_prefix("--")) {
                assert!(flags.contains(&flag), "mt {} has no --{flag}: {help}", command.get_name());
            }
        }
    }
}

#[test]
fn the_page_on_other_programs_names_all_formats() {
    let page = fs::read_to_string(root().join("docs/interop.md")).unwrap();
    let imported = mt::interop::import::Format::all().map(|format| format.name.to_owned());
    let exported = mt::interop::export::Format::NAMES.iter().map(|name| format!("--format {name}"));
    for name in imported.chain(exported) {
        assert!(page.contains(&name), "{name}");
    }
}

/// It is a door, not a manual: that is docs/guide.
#[test]
fn the_readme_is_read_in_three_minutes() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(lines <= 150 && words <= 1400, "{lines} lines, {words} words");
}

/// rustfmt leaves strings, comments and the arguments of macros as they are.
#[test]
fn lines_of_code_have_at_most_120_columns() {
    const COLUMNS: usize = 120;
    let mut folders: Vec<PathBuf> = ["src", "tests", "benches", "fuzz/fuzz_targets"].map(|top| root().join(top)).into();
    let (mut files, mut long) = (0, Vec::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                files += 1;
                let text = fs::read_to_string(&path).unwrap();
                let lines = (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > COLUMNS);
                let name = path.strip_prefix(root()).unwrap().display();
                long.extend(lines.map(|(number, _)| format!("{name}:{number}")));
            }
        }
    }
    assert!(files > 300, "only {files} files found");
    assert!(long.is_empty(), "over {COLUMNS} columns: {long:#?}");
}
