use super::*;

#[test]
fn what_may_pass_is_tried_again() {
    let tried = |errors: &[i32]| {
        let count = std::cell::Cell::new(0);
        let result = patiently(|| {
            let number = count.replace(count.get() + 1);
            errors.get(number).map_or(Ok(number), |code| Err(io::Error::from_raw_os_error(*code)))
        });
        (result.ok(), count.get())
    };
    assert_eq!(tried(&[]), (Some(0), 1));
    assert_eq!(tried(&[libc::ESTALE, libc::EIO]), (Some(2), 3));
    assert_eq!(tried(&[libc::EIO; 4]), (None, 4));
    assert_eq!(tried(&[libc::ENOENT]), (None, 1));
}

#[test]
fn what_stands_in_the_place_of_a_file_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.json");
    for (contents, help) in [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "git lfs pull"),
        ("<!DOCTYPE html>\n<html>", "fetch the file again"),
    ] {
        fs::write(&path, contents).unwrap();
        for error in [
            read(&path).unwrap_err(),
            read_text(&path).unwrap_err(),
            read_at_most(&path, 1000).unwrap_err(),
            refuse_placeholder(&open_regular(&path).unwrap()).unwrap_err(),
        ] {
            let error = crate::error::Error::io("read the model", &path, error).to_string();
            assert!(error.starts_with("cannot read the model: the file is a p"), "{error}");
            assert!(error.contains("model.json") && error.contains(help), "{error}");
        }
    }
    fs::write(&path, "{}").unwrap();
    refuse_placeholder(&open_regular(&path).unwrap()).unwrap();
}

/// A directory, and where things are in it.
fn opened() -> (tempfile::TempDir, Folder) {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    (directory, folder)
}

#[test]
fn nothing_is_left_of_what_fails() {
    let (directory, folder) = opened();
    let at = |name: &str| directory.path().join(name);
    folder.replace("a", ".a.new", b"one").unwrap();
    folder.replace("a", ".a.new", b"two").unwrap();
    assert_eq!(fs::read(at("a")).unwrap(), b"two");
    fs::create_dir_all(at("folder/x")).unwrap();
    folder.replace("folder", ".a.new", b"three").unwrap_err();
    drop(folder.stage("a", ".a.new").unwrap().filled(b"four").unwrap());
    assert!(!at(".a.new").exists() && at("folder/x").exists());
    assert_eq!(fs::read(at("a")).unwrap(), b"two");
}

#[test]
fn what_killed_processes_left_is_removed_and_what_others_write_stays() {
    let (directory, folder) = opened();
    let at = |name: &str| directory.path().join(name);
    let others = [".a.1.new", ".a.2.new", ".b.1.new", ".a.x.new"].map(at);
    others.iter().for_each(|path| fs::write(path, "partial").unwrap());
    let running = File::options().write(true).open(&others[1]).unwrap();
    running.lock().unwrap();
    let own = at(&format!(".a.{}.new", std::process::id()));
    // A killed process may have had the same id.
    fs::write(&own, "longer than what follows").unwrap();
    folder.replace_shared("a", b"one").unwrap();
    assert_eq!(fs::read(at("a")).unwrap(), b"one");
    assert_eq!(others.each_ref().map(|path| path.exists()), [false, true, true, true]);
    assert!(!own.exists());
    drop(running);
    // Its own file is locked during writing.
    let staged = folder.stage_shared("a").unwrap();
    assert!(own.exists() && !others[1].exists());
    folder.remove_left_by_kills(".a.");
    assert!(own.exists());
    // One of the same id elsewhere has another name.
    folder.replace_shared("a", b"two").unwrap();
    assert!(own.exists());
    drop(staged);
    assert!(!own.exists());
    assert_eq!(fs::read(at("a")).unwrap(), b"two");
}

/// Links and other entries planted under the names to write, make, lock or remove.
#[test]
fn nothing_is_changed_through_a_link() {
    let (directory, folder) = opened();
    let elsewhere = tempfile::tempdir().unwrap();
    let (victim, inside) = (elsewhere.path().join("victim"), elsewhere.path().join("folder/inside"));
    fs::write(&victim, "precious").unwrap();
    fs::create_dir(elsewhere.path().join("folder")).unwrap();
    fs::write(&inside, "precious").unwrap();
    let plant = |to: &Path, name: &str| {
        let _ = fs::remove_file(directory.path().join(name));
        std::os::unix::fs::symlink(to, directory.path().join(name)).unwrap();
    };
    let shared = format!(".a.{}.new", std::process::id());
    for target in [&victim, &elsewhere.path().join("new"), &elsewhere.path().join("folder")] {
        [".a.new", "a", &shared, ".lock", "log", "folder"].iter().for_each(|name| plant(target, name));
        folder.replace("a", ".a.new", b"x").unwrap();
        plant(target, "a");
        folder.replace_shared("a", b"x").unwrap();
        plant(target, "a");
        folder.create("a").unwrap();
        for refused in [
            folder.lockable(".lock").unwrap_err(),
            folder.append("log").unwrap_err(),
            folder.append_or_make("log").unwrap_err(),
            folder.read("log").unwrap_err(),
            folder.folder("folder", Links::Refused).err().unwrap(),
            folder.made_folder("folder", Links::Refused).err().unwrap(),
        ] {
            assert!(refused.to_string().ends_with("is a link, which is not followed here"), "{refused}");
        }
        folder.remove("folder").unwrap();
        assert!(folder.is_link(".lock") && !folder.has("folder"));
    }
    // Nor is a file that has another name elsewhere.
    folder.remove("log").unwrap();
    fs::hard_link(&victim, directory.path().join("log")).unwrap();
    for refused in [folder.append("log").unwrap_err(), folder.append_or_make("log").unwrap_err()] {
        assert!(refused.to_string().contains("another name"), "{refused}");
    }
    folder.replace("log", ".log.new", b"x").unwrap();
    assert_eq!(fs::read(folder.path().join("log")).unwrap(), b"x");
    // Also inside a removed directory.
    fs::create_dir_all(directory.path().join("old/deep")).unwrap();
    plant(elsewhere.path(), "old/deep/link");
    folder.remove("old").unwrap();
    assert!(!folder.has("old"));
    plant(&elsewhere.path().join("folder"), "folder");
    assert!(folder.folder("folder", Links::Followed).unwrap().has("inside"));
    assert_eq!([&victim, &inside].map(|path| fs::read_to_string(path).unwrap()), ["precious"; 2]);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 2);
}

/// Another directory replaces one after it was opened.
#[test]
fn a_link_that_is_swapped_in_later_changes_nothing() {
    let (directory, run) = opened();
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = run.made_folder("checkpoints", Links::Refused).unwrap();
    fs::rename(directory.path().join("checkpoints"), directory.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), directory.path().join("checkpoints")).unwrap();
    folder.replace("a", ".a.new", b"x").unwrap();
    folder.make_folder("b").unwrap();
    assert!(!folder.is_in_place());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    assert!(directory.path().join("moved/a").exists() && directory.path().join("moved/b").exists());
}

#[test]
fn a_file_that_is_replaced_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;

    let (directory, folder) = opened();
    let path = directory.path().join("a");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    for wanted in [0o600, 0o640, 0o666, 0o444] {
        let _ = fs::remove_file(&path);
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(wanted)).unwrap();
        folder.replace("a", ".a.new", b"x").unwrap();
        assert_eq!(mode(), wanted);
        folder.replace_shared("a", b"x").unwrap();
        assert_eq!(mode(), wanted);
        folder.create("a").unwrap();
        assert_eq!(mode(), wanted);
    }
    // The permissions of a link are not taken over; nor are the bits that change the user of a program.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    folder.create("a").unwrap();
    assert_eq!(mode(), 0o755);
    fs::remove_file(&path).unwrap();
    folder.create("a").unwrap();
    let of_any_new_file = mode();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    folder.create("a").unwrap();
    assert_eq!(mode(), of_any_new_file);
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let (directory, folder) = opened();
    let at = |name: &str| directory.path().join(name);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("device")).unwrap();
    std::os::unix::fs::symlink("pipe", at("link")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    for name in ["pipe", "socket", "device", "link", "folder"] {
        assert!(is_not_regular(&open_regular(&at(name)).unwrap_err()), "{name}");
        folder.read(name).unwrap_err();
        folder.append(name).unwrap_err();
        folder.lockable(name).unwrap_err();
    }
    // Nor when it is no pipe at first sight.
    assert!(is_not_regular(&folder.read("pipe").unwrap_err()));
    folder.replace("pipe", ".pipe.new", b"x").unwrap();
    assert_eq!(fs::read(at("pipe")).unwrap(), b"x");
}

#[test]
fn directories_are_removed_to_a_depth_that_fits() {
    let (directory, folder) = opened();
    let nested = |depth: usize| directory.path().join("a").join("b/".repeat(depth));
    fs::create_dir_all(nested(crate::limits::NESTED_FOLDERS - 1)).unwrap();
    folder.remove("a").unwrap();
    assert!(!folder.has("a"));
    fs::create_dir_all(nested(crate::limits::NESTED_FOLDERS + 1)).unwrap();
    assert!(folder.remove("a").unwrap_err().to_string().contains("too deep"));
    folder.remove("a").unwrap_err();
    folder.remove("missing").unwrap();
}

#[test]
fn a_file_system_without_inodes_is_not_one_without_bytes() {
    assert!(has_only_bytes(100, 0, 5));
    for (files, free_files, free_blocks) in [(100, 1, 5), (100, 0, 0), (0, 0, 5), (100, 1, 0)] {
        assert!(!has_only_bytes(files, free_files, free_blocks));
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(file_system(&folder.path().join("not/yet/there")).is_some_and(|it| it.f_blocks > 0));
}

#[test]
fn reads_no_more_than_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    fs::write(&path, b"four").unwrap();
    assert_eq!(read_at_most(&path, 4).unwrap(), b"four");
    assert!(read_at_most(&path, 3).unwrap_err().to_string().contains("larger than 3 bytes"));
    assert!(read_at_most(folder.path(), 3).unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn a_lock_is_waited_for() {
    let (directory, folder) = opened();
    let (told, heard) = std::sync::mpsc::channel();
    let first = lock_or_wait(&folder, ".lock", || panic!("nobody has it")).unwrap().expect("a file system with locks");
    let waiting = std::thread::spawn({
        let folder = Folder::open(directory.path()).unwrap();
        move || lock_or_wait(&folder, ".lock", || told.send(()).unwrap()).unwrap().is_some()
    });
    heard.recv().unwrap();
    drop(first);
    assert!(waiting.join().unwrap());
}

/// Other ways to write, rename or remove a file follow links, or do not keep its permissions.
#[test]
fn files_are_written_here_alone() {
    /// Where the user has named the file; and one that is removed by its name.
    const ALLOWED: &[(&str, &str)] =
        &[("commands/shared/output.rs", "File::create("), ("hub/web/download.rs", "fs::remove_file(")];
    const WAYS: &[&str] = &[
        " File::create(",
        "(File::create(",
        "OpenOptions",
        "File::options(",
        "fs::write(",
        "fs::copy(",
        "fs::rename(",
        "fs::remove_file(",
        "fs::remove_dir_all(",
        "fs::set_permissions(",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut found, mut files) = (vec![root.clone()], Vec::new(), 0);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if ["tests", "tests.rs", "hostile.rs"].iter().any(|name| path.ends_with(name)) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let text = fs::read_to_string(&path).unwrap_or_default();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
            for way in WAYS.iter().filter(|way| code.contains(**way)) {
                if !ALLOWED.iter().any(|(file, allowed)| *file == name && way.ends_with(allowed)) {
                    found.push(format!("{name}: {way}"));
                }
            }
        }
    }
    assert!(files > 200, "{files}");
    assert!(found.is_empty(), "{found:?}");
}
