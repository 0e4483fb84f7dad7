use std::collections::HashSet;

use super::*;
use crate::config;
use crate::model::Preset;
use crate::train::{Interval, WantedPrecision};

const CPU: Machine = Machine { has_gpu: false };
const GPU: Machine = Machine { has_gpu: true };

/// A folder with pairs.
fn project(pairs: impl Iterator<Item = (String, String)>) -> (tempfile::TempDir, StarterRequest) {
    let folder = tempfile::tempdir().unwrap();
    let (sources, targets): (Vec<_>, Vec<_>) = pairs.unzip();
    let train = [("all.en", sources), ("all.de", targets)].map(|(name, lines)| {
        let path = folder.path().join(name);
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        path
    });
    let file = folder.path().join("my.toml");
    (folder, StarterRequest { train, valid: None, file, overwrite: false, machine: CPU, seed: 1 })
}

fn numbered(count: usize) -> impl Iterator<Item = (String, String)> {
    (0..count).map(|number| (format!("The {number}th line."), format!("Die {number}. Zeile.")))
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn held_out_pairs_are_in_the_training_text_no_more() {
    // Every fifth pair occurs again, in other case and with other punctuation; every seventh source has two
    // translations.
    let again = numbered(400).step_by(5).map(|(source, target)| (source.to_uppercase() + "!", target.to_lowercase()));
    let another = numbered(400).step_by(7).map(|(source, target)| (source, format!("{target} Noch einmal.")));
    let (folder, request) = project(numbered(400).chain(again).chain(another));
    let starter = begin(&request).unwrap();
    let all = 400 + 80 + 58;
    assert_eq!((starter.train_pairs, starter.valid_pairs), (all - all / 10, all / 10));
    let data = folder.path().join("my-data");
    for language in ["en", "de"] {
        let [train, valid] = ["train", "valid"].map(|set| lines(&data.join(format!("{set}.{language}"))));
        assert_eq!((train.len(), valid.len()), (all - all / 10, all / 10));
        let keys: HashSet<u64> = train.iter().map(|line| survey::key(line)).collect();
        assert!(valid.iter().all(|line| !keys.contains(&survey::key(line))));
        let mut both: Vec<String> = train.into_iter().chain(valid).collect();
        let mut given = lines(&folder.path().join(format!("all.{language}")));
        both.sort();
        given.sort();
        assert_eq!(both, given);
    }
    // Pairs stay together.
    for (source, target) in lines(&data.join("valid.en")).iter().zip(lines(&data.join("valid.de"))) {
        let number = |line: &str| line.chars().filter(char::is_ascii_digit).collect::<String>();
        assert_eq!(number(source), number(&target));
    }
}

#[test]
fn pairs_that_share_lines_are_held_out_together() {
    // Each source has two translations, and some translations are those of two sources.
    let first = |number: usize| number - usize::from(number % 10 == 1);
    let targets = |number| (format!("Die {}. Zeile.", first(number)), format!("Noch die {number}."));
    let pairs = (0..500).flat_map(|number| {
        let (source, (one, other)) = (format!("The {number}th line."), targets(number));
        [(source.clone(), one), (source, other)]
    });
    let (folder, request) = project(pairs);
    let starter = begin(&request).unwrap();
    assert_eq!(starter.train_pairs + starter.valid_pairs, 1000);
    assert!((100..104).contains(&starter.valid_pairs), "{}", starter.valid_pairs);
    for language in ["en", "de"] {
        let of = |set: &str| lines(&folder.path().join("my-data").join(format!("{set}.{language}")));
        let train: HashSet<String> = of("train").into_iter().collect();
        assert!(of("valid").iter().all(|line| !train.contains(line)));
    }
}

#[test]
fn long_lines_make_room_or_are_refused() {
    let long = |words: usize| {
        (0..300).map(move |number| {
            (format!("{number} {}", "a word ".repeat(words / 2)), format!("{number} {}", "ein Wort ".repeat(words / 2)))
        })
    };
    for (words, max_length, left_out) in [(20, 100, 0), (100, 256, 0), (400, 1000, 0)] {
        let (_folder, request) = project(long(words));
        let recipe = begin(&request).unwrap().recipe;
        assert_eq!((recipe.max_length, recipe.left_out), (max_length, left_out), "{words}");
    }
    let (_folder, request) = project(numbered(300).chain(long(1100)));
    // Half of the 540 that are not held out.
    assert_eq!(begin(&request).unwrap().recipe.left_out, 270);
    let (folder, request) = project(long(1100));
    assert!(begin(&request).unwrap_err().to_string().contains("all pairs are longer than 1,000 subwords"));
    assert!(!folder.path().join("my-data").exists());
}

#[test]
fn other_text_may_serve_for_validation() {
    let (folder, mut request) = project(numbered(300));
    let files = ["dev.en", "dev.de"].map(|name| folder.path().join(name));
    files.iter().for_each(|file| fs::write(file, "A line.\nAnother.\n").unwrap());
    request.valid = Some(files);
    let starter = begin(&request).unwrap();
    assert_eq!((starter.train_pairs, starter.valid_pairs, starter.folder), (300, 2, None));
    let text = fs::read_to_string(&request.file).unwrap();
    assert!(text.contains("train = [{ source = \"all.en\", target = \"all.de\" }]"), "{text}");
    assert!(text.contains("valid = { source = \"dev.en\", target = \"dev.de\" }"), "{text}");
    // A configuration cannot name a pipe.
    let named = seen_from(&request.file, &["/dev/null", "/dev/null"].map(PathBuf::from));
    assert!(named.unwrap_err().to_string().contains("is not a file"));
}

#[test]
fn nothing_is_replaced_unless_that_is_asked_for() {
    let (folder, mut request) = project(numbered(300));
    begin(&request).unwrap();
    for path in [request.file.clone(), folder.path().join("my-data")] {
        let error = begin(&request).unwrap_err().to_string();
        assert!(error.contains("already exists") && error.contains(path.to_str().unwrap()), "{error}");
        // Next, only the folder is there.
        let _ = fs::remove_file(path);
    }
    request.overwrite = true;
    begin(&request).unwrap();
    // Text that it made itself would be cut at each call.
    request.train = ["train.en", "train.de"].map(|name| folder.path().join("my-data").join(name));
    let error = begin(&request).unwrap_err().to_string();
    assert!(error.contains("would be lost, as the folder is replaced"), "{error}");
    assert_eq!(lines(&request.train[0]).len(), 270);
    // Nor is text replaced by a configuration of its name.
    request.train = ["all.en", "all.de"].map(|name| folder.path().join(name));
    fs::rename(&request.train[0], &request.file).unwrap();
    request.train[0] = request.file.clone();
    let error = begin(&request).unwrap_err().to_string();
    assert!(error.contains("would be lost, as the configuration is replaced"), "{error}");
}

#[test]
fn too_little_text_is_refused() {
    let (folder, request) = project(numbered(199));
    assert!(begin(&request).unwrap_err().to_string().contains("199 pairs are too few"));
    let repeated = (0..1000).map(|number| (format!("Line {}.", number % 5), format!("Zeile {}.", number % 5)));
    let (again, request) = project(repeated);
    assert!(begin(&request).unwrap_err().to_string().contains("only 0 of 1000 pairs"));
    let (same, request) = project(numbered(300).map(|(source, _)| (source.clone(), source)));
    assert!(begin(&request).unwrap_err().to_string().contains("both files have the same text"));
    assert!([folder, again, same].iter().all(|folder| !folder.path().join("my.toml").exists()));
}

#[test]
fn what_fails_leaves_nothing() {
    let (folder, mut request) = project(numbered(300));
    // A folder with something in it cannot be replaced by a file.
    fs::create_dir_all(request.file.join("something")).unwrap();
    request.overwrite = true;
    assert!(begin(&request).unwrap_err().to_string().contains("my.toml"));
    assert!(!folder.path().join("my-data").exists());
    fs::write(folder.path().join("my-data"), "a file").unwrap();
    assert!(begin(&request).unwrap_err().to_string().contains("a file has the name of a folder"));
}

/// The commands in it can be given to a shell, and a name ends no comment.
#[test]
fn names_are_quoted() {
    for (name, line) in [("my conf", "#   mt train --config 'my conf.toml'"), ("a\nb", "#   mt train --config 'a")] {
        let (folder, request) = project(numbered(300));
        let request = StarterRequest { file: folder.path().join(format!("{name}.toml")), ..request };
        begin(&request).unwrap();
        assert!(lines(&request.file).iter().any(|it| it.starts_with(line)), "{name}");
        config::load_for_training(std::slice::from_ref(&request.file), &[]).unwrap();
    }
}

/// The configuration that is written for so many pairs.
fn loaded(request: &StarterRequest, pairs: usize) -> (config::Config, Recipe) {
    let corpus = Corpus::open(&request.train[0], &request.train[1], 1.0).unwrap();
    let survey = Survey { pairs, ..Survey::of(&corpus).unwrap() };
    let recipe = Recipe::new(&survey, &request.machine);
    let named = || ["a \"b\".en".to_owned(), "c.de".to_owned()];
    let named = Named { train: named(), valid: named(), held_out: 1000 };
    let text = document::text(&request.train, &named, &survey, &recipe, "my");
    fs::write(&request.file, text).unwrap();
    (config::load_for_training(std::slice::from_ref(&request.file), &[]).unwrap(), recipe)
}

#[test]
fn every_configuration_loads_and_states_its_recipe() {
    let (_folder, request) = project(numbered(300));
    for (machine, precision) in [(CPU, WantedPrecision::Auto), (GPU, WantedPrecision::Bf16)] {
        for (pairs, preset, vocab_size) in [
            (180, Preset::Tiny, 1_000),
            (5_000, Preset::Tiny, 2_000),
            (10_000, Preset::Tiny, 4_000),
            (29_000, Preset::Tiny, 10_000),
            (165_000, if machine.has_gpu { Preset::Small } else { Preset::Tiny }, 12_000),
            (1_000_000, if machine.has_gpu { Preset::Base } else { Preset::Small }, 24_000),
            (4_500_000, if machine.has_gpu { Preset::Base } else { Preset::Small }, 32_000),
        ] {
            let (config, recipe) = loaded(&StarterRequest { machine, ..request.clone() }, pairs);
            assert_eq!((recipe.preset, recipe.vocab_size), (preset, vocab_size));
            // An update takes a pair at most once.
            assert!(recipe.epochs <= recipe.max_updates as f64);
            assert_eq!(config.model.preset, Some(preset));
            assert_eq!(config.runtime.precision, precision);
            assert_eq!(config.train.batch_tokens * config.train.accumulate, recipe.batch_tokens * recipe.accumulate);
            assert_eq!(config.train.max_updates as usize, recipe.max_updates);
            assert_eq!(config.valid.every, Interval::Updates(recipe.every as u64));
            assert!(recipe.joint && recipe.tokenize.is_none());
        }
    }
}

#[test]
fn scripts_decide_on_the_vocabulary_and_on_words() {
    let chinese = |number| (format!("This is line {number}."), format!("这是第{number}行文字，很短。"));
    let (_folder, request) = project((0..300).map(chinese));
    let (config, recipe) = loaded(&request, 29_000);
    assert_eq!((recipe.joint, recipe.tokenize, recipe.keeps_wide_marks), (false, Some("zh"), true));
    assert_eq!(config.valid.tokenize.to_string(), "zh");
    let japanese = |number| (format!("This is line {number}."), format!("これは{number}番目の行です。"));
    let (_folder, request) = project((0..300).map(japanese));
    assert_eq!(loaded(&request, 29_000).1.tokenize, Some("char"));
    let russian = |number| (format!("This is line {number}."), format!("Это строка {number}."));
    let (_folder, request) = project((0..300).map(russian));
    let recipe = loaded(&request, 29_000).1;
    assert_eq!((recipe.joint, recipe.tokenize), (false, None));
}

#[test]
fn languages_are_extensions() {
    for (names, expected) in [
        (["train.en", "train.de"], ["en", "de"]),
        (["a/train.zh-CN.gz", "b/train.pt_BR.xz"], ["zh-CN", "pt_BR"]),
        (["en.txt", "de.txt"], ["source", "target"]),
        (["corpus", "corpus.en"], ["source", "target"]),
        (["train.en", "other.en"], ["source", "target"]),
    ] {
        assert_eq!(languages(&names.map(PathBuf::from)), expected);
    }
}
