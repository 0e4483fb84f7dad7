//! The table of docs/guide/migrating.md: an option of another toolkit in a configuration leads to our key or flag.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::super::aliases::plain;
use super::super::schema::{self, ROOT, find, join, owners};
use super::Folder;

/// The parts of a cell between backticks.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// A key or a flag of ours.
enum Ours<'t> {
    Key { section: &'t str, name: &'t str },
    Flag(&'t str),
}

impl<'t> Ours<'t> {
    /// What a row begins with. Nothing for a command, such as `mt score`: no option stands for it.
    fn all(cell: &'t str) -> Vec<Self> {
        let names = code(cell).filter_map(|code| code.split(' ').next());
        let ours = names.filter_map(|name| match name.rsplit_once('.') {
            _ if name.starts_with("--") => Some(Self::Flag(name)),
            Some((section, name)) => Some(Self::Key { section, name }),
            None => None,
        });
        ours.collect()
    }

    /// Section and name of the key; many flags of `mt translate` are keys, too.
    fn key(&self) -> (&'t str, String) {
        match self {
            Self::Key { section, name } => (section, (*name).to_owned()),
            Self::Flag(flag) => ("decode", plain(flag.trim_start_matches('-'))),
        }
    }

    /// Whether the help names it to a user who wrote an option into the table `place`.
    fn is_named(&self, help: &str, place: &str) -> bool {
        let (section, key) = self.key();
        let is_key = help.contains(&format!("`{key}`")) || help.contains(&format!("`{key} = "));
        let is_there = place == section || help.contains(&format!("[{section}]"));
        is_key && is_there
            || match self {
                Self::Key { section, name } => help.contains(&join(section, name)),
                Self::Flag(flag) => help.split(|c: char| c != '-' && !c.is_alphanumeric()).any(|word| word == *flag),
            }
    }
}

/// What a refused configuration tells the user to do.
fn help(file: &str, sets: &[&str]) -> String {
    let problems = Folder::new(&[("a.toml", file)]).problems(&["a.toml"], sets);
    assert_eq!(problems.len(), 1, "{file}{sets:?}: {problems:#?}");
    problems[0].split_once("help: ").map(|(_, help)| help.to_owned()).unwrap_or_default()
}

/// How many times an option of this row was written into a configuration, and where that did not lead to our names.
fn try_row(row: &str) -> (usize, Vec<String>) {
    let mut cells = row.trim_matches('|').split('|');
    let ours = Ours::all(cells.next().unwrap_or_default());
    // At the top, and in the sections of our keys.
    let mut places = BTreeSet::from([""]);
    places.extend(ours.iter().filter_map(|ours| match ours {
        Ours::Key { section, .. } => Some(*section),
        Ours::Flag(_) => None,
    }));
    // Values stand in quotation marks, and scripts have an ending.
    let is_option = |code: &&str| code.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let are_flags = ours.iter().all(|ours| matches!(ours, Ours::Flag(_)));
    let (mut tried, mut lost) = (0, Vec::new());
    for option in cells.flat_map(code).filter(is_option).filter(|_| !ours.is_empty()) {
        let is_same = ours.iter().any(|ours| ours.key().1 == plain(option));
        // A message about a name that is a key of ours, or nearly one, is about that key.
        if are_flags && (is_same || schema::names().contains(&plain(option).as_str())) {
            continue;
        }
        for place in &places {
            // There it is our name as it stands.
            let is_valid = if place.is_empty() {
                find(ROOT, option).is_some()
            } else {
                owners(option).iter().any(|owner| owner == place)
            };
            if is_valid {
                continue;
            }
            let header = if place.is_empty() { String::new() } else { format!("[{place}]\n") };
            let set = format!("{}=1", join(place, option));
            for help in [help(&format!("{header}{option} = 1\n"), &[]), help("", &[&set])] {
                tried += 1;
                if !ours.iter().any(|ours| ours.is_named(&help, place)) {
                    lost.push(format!("{set}: {help}"));
                }
            }
        }
    }
    (tried, lost)
}

#[test]
fn options_of_other_toolkits_lead_to_our_names() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/migrating.md");
    let text = fs::read_to_string(page).unwrap();
    let (mut tried, mut lost) = (0, Vec::new());
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let (count, of_row) = try_row(row);
        tried += count;
        lost.extend(of_row);
    }
    assert!(tried > 900, "only {tried} places tried");
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn an_option_that_leads_elsewhere_is_found() {
    for (row, tried, lost) in [
        ("| `model.d_ff` | `zzz` | `ff_size` |", 8, 4),
        ("| `model.d_ff` | `num_heads` | – |", 4, 4),
        ("| `--beam-groups` | `save-dir`, `beam-groups` | `beam` |", 2, 2),
        ("| `mt score` | `zzz` |", 0, 0),
    ] {
        let (count, found) = try_row(row);
        assert_eq!((count, found.len()), (tried, lost), "{row}: {found:#?}");
    }
}
