//! The page of a data set, made of what such pages have, and any patterns of file names in it.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use mt::data::hub::{HubSplit, files_by_page};

#[derive(Arbitrary, Debug)]
enum Part {
    Open,
    Close,
    Comma,
    Star,
    Stars,
    Any,
    Class,
    Not,
    End,
    Escape,
    Folder,
    Here,
    Name,
    Letter(char),
    /// The parts before, once more.
    Twice,
}

fn pattern(parts: &[Part]) -> String {
    let mut pattern = String::new();
    for part in parts {
        match part {
            Part::Open => pattern.push('{'),
            Part::Close => pattern.push('}'),
            Part::Comma => pattern.push(','),
            Part::Star => pattern.push('*'),
            Part::Stars => pattern.push_str("**"),
            Part::Any => pattern.push('?'),
            Part::Class => pattern.push('['),
            Part::Not => pattern.push('!'),
            Part::End => pattern.push(']'),
            Part::Escape => pattern.push('\\'),
            Part::Folder => pattern.push('/'),
            Part::Here => pattern.push_str("./"),
            Part::Name => pattern.push_str("train"),
            Part::Letter(letter) => pattern.push(*letter),
            Part::Twice if pattern.len() < 1 << 12 => pattern.push_str(&pattern.clone()),
            Part::Twice => {}
        }
    }
    pattern
}

#[derive(Arbitrary, Debug)]
struct Split<'a> {
    name: Option<&'a str>,
    paths: Vec<Vec<Part>>,
}

#[derive(Arbitrary, Debug)]
struct Config<'a> {
    name: Option<&'a str>,
    folder: Option<Vec<Part>>,
    is_default: bool,
    splits: Vec<Split<'a>>,
    /// Written as it is.
    raw: Option<&'a str>,
}

fuzz_target!(|input: (Vec<Config>, Vec<Vec<Part>>, Option<&str>)| {
    let (configs, files, config) = input;
    let text = |text: &str| format!("{text:?}");
    let mut page = "---\nconfigs:\n".to_owned();
    for config in &configs {
        page +=
            &format!("- config_name: {}\n  default: {}\n", text(config.name.unwrap_or("default")), config.is_default);
        config.folder.iter().for_each(|folder| page += &format!("  data_dir: {}\n", text(&pattern(folder))));
        page += "  data_files:\n";
        for split in &config.splits {
            page += &format!("  - split: {}\n    path:\n", text(split.name.unwrap_or("train")));
            split.paths.iter().for_each(|path| page += &format!("    - {}\n", text(&pattern(path))));
        }
        config.raw.iter().for_each(|raw| page += raw);
    }
    page += "\n---\n";
    let files: Vec<String> =
        files.iter().map(|file| pattern(file)).chain(["train.csv", "a/train.parquet"].map(str::to_owned)).collect();
    let split = HubSplit {
        name: "o/d".to_owned(),
        config: config.map(str::to_owned),
        split: "train".to_owned(),
        revision: None,
        source: "en".into(),
        target: "de".into(),
    };
    let found = files_by_page(&page, &files, &split).unwrap_or_default();
    assert!(found.iter().all(|name| files.contains(name)));
});
