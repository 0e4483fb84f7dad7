//! What the log holds after interruptions, and where it cannot be written.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use serde_json::json;

/// The events and updates of a run's log.
fn told(folder: &Path) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(folder.join(LOG_FILE)).unwrap();
    let entries = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries.map(|entry| (entry["event"].as_str().unwrap().to_owned(), entry["update"].as_u64().unwrap())).collect()
}

#[test]
fn what_is_left_follows_from_what_is_done() {
    let elapsed = Duration::from_secs(100);
    assert_eq!(times(elapsed, 60, 10, Some(110)), "00:01:40, about 00:01:40 left");
    assert_eq!(times(elapsed, 60, 10, None), "00:01:40");
    assert_eq!(times(Duration::MAX, 11, 10, Some(u64::MAX)).split(',').count(), 1);
    for (step, first) in [(110, 10), (120, 10), (10, 10), (5, 10)] {
        assert_eq!(times(elapsed, step, first, Some(110)), "00:01:40", "{step} {first}");
    }
}

#[test]
fn resume_drops_what_will_be_done_again() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let at = |step| Progress { step, skipped: 1, returns: 0 };
    let mut log = Log::open(folder.path(), None, None, Vec::new())?;
    for (event, update, skipped) in
        [("train", 10, 0), ("train", 20, 0), ("skip", 21, 1), ("skip", 21, 2), ("train", 21, 2)]
    {
        log.entry(&json!({"event": event, "update": update, "skipped": skipped}));
    }
    drop(log);
    let path = folder.path().join(LOG_FILE);
    let end = "{\"event\": \"final\", \"update\": 20}\n{\"event\": \"tra";
    let whole = std::fs::read_to_string(&path).unwrap();
    // What is damaged takes nothing else with it.
    std::fs::write(&path, [b"\xff\n{\n", whole.as_bytes(), end.as_bytes()].concat()).unwrap();
    let mut log = Log::open(folder.path(), Some(at(20)), None, Vec::new())?;
    log.entry(&json!({"event": "train", "update": 30}));
    let updates: Vec<u64> = told(folder.path()).into_iter().map(|(_, update)| update).collect();
    assert_eq!(updates, [10, 20, 21, 30]);
    Ok(())
}

#[test]
fn a_log_that_was_removed_or_replaced_while_it_was_written_is_whole() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LOG_FILE);
    let updates = || told(folder.path()).into_iter().map(|(_, update)| update).collect::<Vec<_>>();
    let mut log = Log::open(folder.path(), None, None, Vec::new())?;
    let mut entry = |update: u64| log.entry(&json!({"event": "train", "update": update}));
    entry(1);
    std::fs::remove_file(&path).unwrap();
    entry(2);
    assert_eq!(updates(), [1, 2]);
    // Somebody has edited it.
    let edited = folder.path().join("edited");
    std::fs::write(&edited, "{\"event\": \"train\", \"update\": 9}").unwrap();
    std::fs::rename(&edited, &path).unwrap();
    entry(3);
    entry(4);
    assert_eq!(updates(), [9, 3, 4]);
    // A run that was moved takes its log along, and leaves that of a run in its place alone.
    let moved = tempfile::tempdir().unwrap();
    let place = moved.path().join("run");
    std::fs::rename(folder.path(), &place).unwrap();
    std::fs::create_dir(folder.path()).unwrap();
    entry(5);
    assert!(!path.exists());
    std::fs::write(&path, "another's").unwrap();
    entry(6);
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
    assert!(std::fs::read_to_string(place.join(LOG_FILE)).unwrap().ends_with("\"update\":6}\n"));
    Ok(())
}

#[test]
fn what_cannot_be_written_is_written_later() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (path, aside) = (folder.path().join(LOG_FILE), folder.path().join("aside"));
    let mut log = Log::open(folder.path(), None, None, Vec::new())?;
    log.entry(&json!({"event": "train", "update": 1}));
    std::fs::rename(&path, &aside).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    log.entry(&json!({"event": "train", "update": 2}));
    log.entry(&json!({"event": "train", "update": 3}));
    let error = log.complete().unwrap_err().to_string();
    assert!(error.contains("cannot write the log") && error.contains(LOG_FILE), "{error}");
    // A device is not read for what it might have.
    std::fs::remove_file(&path).unwrap();
    log.entry(&json!({"event": "train", "update": 4}));
    assert_eq!(told(folder.path()).len(), 4);
    std::fs::rename(&aside, &path).unwrap();
    assert_eq!(told(folder.path()), [("train".to_owned(), 1)]);
    log.entry(&json!({"event": "train", "update": 5}));
    let updates: Vec<u64> = told(folder.path()).into_iter().map(|(_, update)| update).collect();
    assert_eq!(updates, [1, 5]);
    log.complete()
}

/// Says which updates it has been told of; fails while it is `broken`.
struct Told {
    updates: Rc<RefCell<Vec<u64>>>,
    broken: Rc<Cell<bool>>,
}

impl Watcher for Told {
    fn begin(&mut self, entries: &[Value]) -> Result<()> {
        self.updates.borrow_mut().clear();
        entries.iter().try_for_each(|entry| self.entry(entry))
    }

    fn entry(&mut self, entry: &Value) -> Result<()> {
        if self.broken.get() {
            return Err(Error::failure("no space left"));
        }
        self.updates.borrow_mut().push(entry["update"].as_u64().unwrap());
        Ok(())
    }
}

#[test]
fn a_watcher_that_failed_is_told_everything_at_the_next_validation() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (updates, broken) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
    let watcher = Told { updates: updates.clone(), broken: broken.clone() };
    let mut log = Log::open(folder.path(), None, None, vec![Box::new(watcher)])?;
    let mut entry = |event: &str, update: u64| log.entry(&json!({"event": event, "update": update}));
    entry("train", 1);
    broken.set(true);
    entry("train", 2);
    entry("valid", 2);
    broken.set(false);
    entry("train", 3);
    assert!(updates.borrow().is_empty());
    entry("valid", 4);
    entry("train", 5);
    assert_eq!(*updates.borrow(), [1, 2, 2, 3, 4, 5]);
    Ok(())
}

/// Also where the process ended between the line of the log and the checkpoint that knows of it.
#[test]
fn what_was_skipped_before_going_back_stays_and_going_back_is_told_once() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let entries = [
        json!({"event": "train", "update": 10}),
        json!({"event": "skip", "update": 15, "skipped": 1}),
        json!({"event": "train", "update": 20}),
    ];
    let back = json!({"event": "back", "update": 10, "returns": 1});
    let mut log = Log::open(folder.path(), None, None, Vec::new())?;
    entries.iter().for_each(|entry| log.entry(entry));
    log.rewind(Progress { step: 10, skipped: 1, returns: 0 })?;
    log.entry(&back);
    let kept = [("train", 10), ("skip", 15), ("back", 10)].map(|(event, update)| (event.to_owned(), update));
    assert_eq!(told(folder.path()), kept);
    Log::open(folder.path(), Some(Progress { step: 10, skipped: 1, returns: 1 }), None, Vec::new())?;
    assert_eq!(told(folder.path()), kept);
    Log::open(folder.path(), Some(Progress { step: 10, skipped: 0, returns: 0 }), None, Vec::new())?;
    assert_eq!(told(folder.path()), kept[..1]);
    Ok(())
}
