//! The order of the modules: each uses only those below it. So there is no circle, and whoever reads a module need not
//! know those above.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// All modules of `src/`, from the bottom to the top. Each may use those before it.
const ORDER: &[&str] = &[
    "limits",
    "rng",
    "key",
    "signature",
    "explanation",
    "escape",
    "notice",
    "console",
    "file",
    "error",
    "foreign",
    "choice",
    "allocator",
    "metrics",
    "device",
    "hub",
    "ranks",
    "ops",
    "model",
    "data",
    "checkpoint",
    "infer",
    "gpu",
    "decode",
    "train",
    "config",
    "interop",
    "comet",
    "report",
    "model_dir",
    "synthetic",
    "run",
    "starter",
    "cli",
    "commands",
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// A source file without comments and what stands in quotes; lines stay where they are.
fn code(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    // How long the comment or text is that stands at the beginning.
    let hidden = |rest: &str| -> usize {
        let until = |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
        if rest.starts_with("//") {
            return until(0, "\n") - 1;
        }
        let hashes = rest.trim_start_matches('r').chars().take_while(|c| *c == '#').count();
        if rest.starts_with("r\"") || rest.starts_with("r#") && rest[1 + hashes..].starts_with('"') {
            return until(2 + hashes, &format!("\"{}", "#".repeat(hashes)));
        }
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut escaped = false;
            let end = quoted.find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            return end.map_or(rest.len(), |at| at + 2);
        }
        // Not a lifetime.
        let quoted = ["'\"'", "'\\''", "'\\\\'", "'/'"].into_iter().find(|quoted| rest.starts_with(quoted));
        quoted.map_or(0, str::len)
    };
    while let Some(first) = rest.chars().next() {
        let length = hidden(rest);
        let (part, after) = rest.split_at(if length == 0 { first.len_utf8() } else { length });
        if length == 0 {
            out.push_str(part);
        } else {
            out.extend(part.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        rest = after;
    }
    out
}

/// Takes out what is compiled for tests alone; adds the names of test modules in files of their own to `files`.
fn without_tests(text: &str, files: &mut Vec<String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..at]);
        let mut depth = 0;
        let end = rest[at..].char_indices().find(|(_, c)| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 0 && (*c == ';' || *c == '}')
        });
        let end = end.map_or(rest.len(), |(index, c)| at + index + c.len_utf8());
        let item = &rest[at..end];
        if let Some(name) = item.rsplit_once("mod ").and_then(|(_, name)| name.strip_suffix(';')) {
            files.push(name.trim().to_owned());
        }
        out.extend(item.chars().filter(|c| *c == '\n'));
        rest = &rest[end..];
    }
    out + rest
}

/// Calls `used` with the line and the name of each module of the crate that a file names, by `crate::` or by so many
/// `super::` that they leave its own.
fn used(code: &str, depth: usize, mut used: impl FnMut(usize, &str)) {
    let up = "super::".repeat(depth);
    for root in ["crate::", &up] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_') || code[..at].ends_with("super::") {
                continue;
            }
            let line = 1 + code[..at].matches('\n').count();
            let rest = &code[at + root.len()..];
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let Some(list) = rest.strip_prefix('{') else {
                let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
                used(line, name);
                continue;
            };
            let mut depth = 0;
            let end = list.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth < 0
            });
            let mut depth = 0;
            let parts = list[..end.unwrap()].split(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth == 0 && c == ','
            });
            for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
                used(line, part.split(|c| !is_name(c)).next().unwrap());
            }
        }
    }
}

/// All files of a module, with how deep in the crate each of them is.
fn files_of(module: &str) -> Vec<(PathBuf, usize)> {
    let mut found = vec![(src().join(format!("{module}.rs")), 1)];
    let mut open = vec![(src().join(module), 1)];
    let mut tests = BTreeSet::new();
    while let Some((folder, depth)) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push((path, depth + 1));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let is_folder = path.ends_with("mod.rs");
                found.push((path, if is_folder { depth } else { depth + 1 }));
            }
        }
    }
    found.retain(|(path, _)| path.is_file());
    for (path, _) in &found {
        let mut names = Vec::new();
        without_tests(&code(&fs::read_to_string(path).unwrap()), &mut names);
        let folder = if path.ends_with("mod.rs") { path.parent().unwrap().to_owned() } else { path.with_extension("") };
        tests.extend(names.into_iter().flat_map(|name| [folder.join(format!("{name}.rs")), folder.join(name)]));
    }
    found.retain(|(path, _)| !path.ancestors().any(|above| tests.contains(above)));
    found
}

#[test]
fn each_module_uses_only_those_below_it() {
    let (mut wrong, mut edges) = (Vec::new(), 0);
    for (height, module) in ORDER.iter().enumerate() {
        let files = files_of(module);
        assert!(!files.is_empty(), "{module} is not in src/");
        for (path, depth) in files {
            let text = without_tests(&code(&fs::read_to_string(&path).unwrap()), &mut Vec::new());
            used(&text, depth, |line, name| {
                let Some(other) = ORDER.iter().position(|other| *other == name) else { return };
                edges += usize::from(other != height);
                if other > height {
                    let path = path.strip_prefix(src()).unwrap().display();
                    wrong.push(format!(
                        "src/{path}:{line}: `{module}` uses `{name}`, which is above it: {name} may use {module}"
                    ));
                }
            });
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(edges > 300, "only {edges} uses were found");
}

/// Whoever uses them as a library decides what is shown, and where.
#[test]
fn runs_and_models_know_neither_the_command_line_nor_the_console() {
    for module in ["model_dir", "run"] {
        for (path, depth) in files_of(module) {
            let text = without_tests(&code(&fs::read_to_string(&path).unwrap()), &mut Vec::new());
            used(&text, depth, |line, name| {
                assert!(!["cli", "console"].contains(&name), "{}:{line}: `{module}` uses `{name}`", path.display());
            });
            for foreign in ["clap", "indicatif", "println", "eprint", "stdout", "stderr"] {
                assert!(!text.contains(foreign), "{}: `{module}` uses `{foreign}`", path.display());
            }
        }
    }
}

#[test]
fn all_modules_are_in_the_order_and_the_documentation_has_the_same() {
    let library = fs::read_to_string(src().join("lib.rs")).unwrap();
    let declared = library.lines().filter_map(|line| {
        line.strip_prefix("pub mod ").or(line.strip_prefix("mod ")).and_then(|name| name.strip_suffix(';'))
    });
    assert_eq!(declared.collect::<BTreeSet<_>>(), ORDER.iter().copied().collect());
    let (_, list) = library.split_once("from the bottom to the top:\n//!\n").expect("the order in lib.rs");
    let list = list.lines().take_while(|line| *line != "//!").collect::<String>();
    let names: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert_eq!(names, ORDER, "the order of src/lib.rs is another one");
}

#[test]
fn comments_texts_and_tests_are_left_out() {
    let text = "// crate::a\nuse crate::{b::{c, d}, e};\nlet x = \"crate::f\"; r#\"crate::g\"#;\n\
                super::super::h::i();\n\
                let y: &'static str = '\"'; crate::j\n#[cfg(test)]\nmod tests { use crate::k; }\ncrate::l::M; super::n";
    let mut found = Vec::new();
    used(&without_tests(&code(text), &mut Vec::new()), 2, |line, name| found.push((line, name.to_owned())));
    let expected = [(2, "b"), (2, "e"), (5, "j"), (8, "l"), (4, "h")];
    assert_eq!(found, expected.map(|(line, name)| (line, name.to_owned())));
}
