use super::*;

#[test]
fn every_truncation_is_found_and_named() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1);
    for name in FILES {
        let path = directory.join(name);
        let whole = fs::read(&path).unwrap();
        for i in 0..20 {
            fs::write(&path, &whole[..whole.len() * i / 20]).unwrap();
            assert_says(&verify(&directory).unwrap_err(), &[name]);
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert_says(&verify(&directory).unwrap_err(), &[name]);
        fs::remove_file(&path).unwrap();
        assert_says(&verify(&directory).unwrap_err(), &[name]);
        fs::write(&path, whole).unwrap();
        verify(&directory).unwrap();
    }
}

#[test]
fn every_flipped_bit_is_found_and_named() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1);
    for name in FILES {
        let path = directory.join(name);
        let size = fs::metadata(&path).unwrap().len() as usize;
        // Every byte of the small files; of the larger, about 300 bytes, both ends among them.
        let stride = (size / 300).max(1);
        for at in (0..size).step_by(stride).chain([size - 1]) {
            let bit = (at * 5 % 8) as u8;
            flip(&path, at, bit);
            assert_says(&verify(&directory).unwrap_err(), &[name]);
            flip(&path, at, bit);
        }
        verify(&directory).unwrap();
    }
}

#[test]
fn all_damaged_files_are_named_at_once() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1);
    flip(&directory.join(MODEL_FILE), 300, 0);
    fs::remove_file(directory.join(STATE_FILE)).unwrap();
    let error = verify(&directory).unwrap_err();
    assert_eq!(error.all().count(), 2);
    assert_says(&error, &["model.safetensors is damaged: its SHA-256", "state.json is missing"]);
}

/// A checkpoint means nothing without the subwords that it was trained on, even if others can be read as well.
#[test]
fn other_tokenizers_than_those_of_a_checkpoint_are_found() {
    let run = tempfile::tempdir().unwrap();
    let tokenizer = run.path().join("tokenizer.json");
    fs::write(&tokenizer, "{}").unwrap();
    fs::write(run.path().join(CONFIG_FILE), "").unwrap();
    let directory = save_step(run.path(), 1);
    // A run's configuration may change.
    fs::write(run.path().join(CONFIG_FILE), "[train]").unwrap();
    verify(&directory).unwrap();
    fs::write(&tokenizer, "[]").unwrap();
    assert_says(&verify(&directory).unwrap_err(), &["tokenizer.json is damaged: its SHA-256"]);
    fs::remove_file(&tokenizer).unwrap();
    assert_says(&verify(&directory).unwrap_err(), &["tokenizer.json is missing"]);
}

#[test]
fn a_directory_without_a_manifest_is_not_complete() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1);
    fs::remove_file(directory.join(MANIFEST_FILE)).unwrap();
    assert_says(&verify(&directory).unwrap_err(), &["not complete", "manifest.json", "step-00000001"]);
    assert!(steps(run.path()).is_empty());
    assert_says(&verify(&run.path().join("nowhere")).unwrap_err(), &["no such directory", "nowhere"]);
}

/// Replaces text in a manifest and renews its digest.
fn forge(directory: &Path, from: &str, to: &str) {
    use sha2::{Digest, Sha256};
    let path = directory.join(MANIFEST_FILE);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from));
    let text = text.replace(from, to);
    let covered = text.split_inclusive("\"digest\": \"").next().unwrap();
    fs::write(&path, format!("{covered}{:x}\"\n}}\n", Sha256::digest(covered))).unwrap();
}

/// As in a sparse copy, or where the file system compresses: the moments of an optimizer that has made no update.
#[test]
fn zeros_may_be_holes() {
    let run = tempfile::tempdir().unwrap();
    let zeros = vec![0.0; 1 << 20];
    let tensors = [NamedTensor { name: "adam.first_moment", shape: &[1 << 20], data: Elements::F32(&zeros) }];
    let directory = save(run.path(), 1, &tensors, &tensors, &json!({ "step": 1 })).unwrap();
    let path = directory.join(OPTIMIZER_FILE);
    let whole = fs::read(&path).unwrap();
    let header = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    fs::write(&path, &whole[..header]).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(whole.len() as u64).unwrap();
    verify(&directory).unwrap();
    let slots = [Slot { name: "adam.first_moment", shape: &[1 << 20], offset: 0 }];
    let mut flat = vec![1.0; 1 << 20];
    load_into(&path, &slots, &mut flat).unwrap();
    assert_eq!(flat, zeros);
}

/// Hashing a terabyte of nothing takes as long as hashing a terabyte.
#[test]
fn a_file_of_holes_that_a_manifest_lists_is_not_hashed() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1);
    let path = directory.join(MODEL_FILE);
    let length = fs::metadata(&path).unwrap().len();
    forge(&directory, &format!("\"size\": {length}"), &format!("\"size\": {}", 1u64 << 40));
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert_says(&verify(&directory).unwrap_err(), &["most of its bytes were never written", MODEL_FILE]);
}

#[test]
fn another_format_version_says_what_to_do() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1);
    let path = directory.join(MANIFEST_FILE);
    forge(&directory, "\"format\": 1", "\"format\": 2");
    let text = verify(&directory).unwrap_err().to_string();
    assert_eq!(text, format!("written in format 2, but this mt reads format 1; update mt\n  --> {}", path.display()));
    // A newer format may not even have our digest, or our fields.
    fs::write(&path, "{\"format\": 3}").unwrap();
    assert_says(
        &verify(&directory).unwrap_err(),
        &["written in format 3, but this mt reads format 1; update mt", "damaged"],
    );
    fs::write(&path, "{\"format\": 0}").unwrap();
    assert_says(
        &verify(&directory).unwrap_err(),
        &["written in format 0, but this mt reads format 1; use the mt that wrote it"],
    );
}

#[test]
fn a_forged_manifest_reaches_no_other_directory() {
    for name in ["../secret", "/etc/passwd", "..", "", "a/b", ".", "a\\\\b", "./state.json"] {
        let run = tempfile::tempdir().unwrap();
        let directory = save_step(run.path(), 1);
        fs::write(run.path().join("checkpoints/secret"), "x").unwrap();
        forge(&directory, "state.json", name);
        assert_says(&verify(&directory).unwrap_err(), &["is not a file beside it"]);
    }
}

#[test]
fn a_checkpoint_whose_manifest_omits_a_file_does_not_count() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1);
    fs::rename(directory.join(OPTIMIZER_FILE), directory.join("other")).unwrap();
    forge(&directory, OPTIMIZER_FILE, "other");
    verify(&directory).unwrap();
    let (newest, warnings) = newest_valid(run.path()).unwrap();
    assert_eq!(newest, None);
    assert!(warnings[0].contains("does not list optimizer.safetensors"), "{warnings:?}");
}

#[test]
fn an_oversized_or_strange_manifest_is_refused() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1);
    let path = directory.join(MANIFEST_FILE);
    fs::write(&path, " ".repeat(2 << 20)).unwrap();
    assert_says(&verify(&directory).unwrap_err(), &["larger than"]);
    for text in ["", "null", "[]", "{\"format\": \"1\"}", "{\"format\": -1}", "{\"format\": 1}", "\u{fffd}"] {
        fs::write(&path, text).unwrap();
        assert_says(&verify(&directory).unwrap_err(), &["the manifest is damaged", "manifest.json"]);
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_says(&verify(&directory).unwrap_err(), &["manifest.json"]);
}

#[test]
fn a_damaged_state_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(STATE_FILE), "{\n  \"step\": x\n}").unwrap();
    assert_says(&read_state(dir.path()).unwrap_err(), &["state.json:2:11", "damaged", "help:"]);
    fs::write(dir.path().join(STATE_FILE), "[".repeat(100_000)).unwrap();
    assert_says(&read_state(dir.path()).unwrap_err(), &["state.json"]);
    fs::remove_file(dir.path().join(STATE_FILE)).unwrap();
    assert_says(&read_state(dir.path()).unwrap_err(), &["state.json"]);
}
