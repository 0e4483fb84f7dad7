//! A project in a temporary directory, and the binary run in it.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub const SOURCE: &[&str] =
    &["the cat sleeps", "the dog eats", "a cat eats", "the dog sleeps", "a dog runs", "the cat runs"];
pub const TARGET: &[&str] = &[
    "die Katze schläft",
    "der Hund frisst",
    "eine Katze frisst",
    "der Hund schläft",
    "ein Hund rennt",
    "die Katze rennt",
];

/// A directory with a small corpus and a configuration.
pub struct Project {
    pub folder: TempDir,
}

impl Project {
    pub fn new() -> Self {
        let project = Self { folder: tempfile::tempdir().unwrap() };
        let repeat =
            |lines: &[&str]| lines.iter().cycle().take(120).fold(String::new(), |text, line| text + line + "\n");
        project.write("train.en", repeat(SOURCE));
        project.write("train.de", repeat(TARGET));
        project.write("valid.en", SOURCE.join("\n") + "\n");
        project.write("valid.de", TARGET.join("\n") + "\n");
        project.write("small.toml", CONFIG);
        project
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mt"));
        command.current_dir(self.folder.path()).args(args).env_remove("MT_MODEL").env("NO_COLOR", "1");
        // What the caller's shell exports changes neither colours nor the width of help nor what errors say.
        command.env_remove("CLICOLOR_FORCE").env("COLUMNS", "100").env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::null());
        command
    }

    pub fn mt(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub fn mt_with_input(&self, args: &[&str], input: &[u8]) -> Output {
        self.write("stdin", input);
        self.command(args).stdin(std::fs::File::open(self.path("stdin")).unwrap()).output().unwrap()
    }

    /// The names that a file of the project's directory has or had while it is written.
    pub fn temporaries(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|other| other.starts_with(&format!(".{name}."))).collect()
    }

    /// Makes a named pipe, in place of a file of that name if there is one.
    pub fn mkfifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    /// The lines of JSON that a command prints.
    pub fn answers(&self, args: &[&str]) -> Vec<Value> {
        let output = self.mt(args);
        succeeds(&output);
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The entries of a run's log.
    pub fn log(&self, run: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(run).join("log.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The entries of an event in a run's log.
    pub fn logged(&self, run: &str, event: &str) -> Vec<Value> {
        self.log(run).into_iter().filter(|entry| entry["event"] == event).collect()
    }

    /// Trains a few updates into runs/small.
    pub fn train(&self, more: &[&str]) -> Output {
        self.mt(&[&["train", "--config", "small.toml", "-q"], more].concat())
    }
}

/// The project's configuration, small.toml. It has the same number type on every processor.
pub const CONFIG: &str = r#"runtime.precision = "f32"
[data]
train = [{ source = "train.en", target = "train.de" }]
valid = { source = "valid.en", target = "valid.de" }
test = { source = "valid.en", target = "valid.de" }
[tokenizer]
vocab_size = 320
dropout = 0.1
[model]
d_model = 32
d_ff = 64
heads = 2
encoder_layers = 1
decoder_layers = 1
dropout = 0.1
[train]
batch_tokens = 200
max_updates = 12
save_every = 4
log_every = 1
average_last = 2
[train.schedule]
kind = "constant"
learning_rate = 0.003
[valid]
every = 6
"#;

/// The line of [`CONFIG`] with the number type.
pub const PRECISION: &str = "runtime.precision = \"f32\"\n";

/// Flags that set these keys.
pub fn sets<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().flat_map(|key| ["--set", key]).collect()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that the command failed with this exit code and that its messages contain all of `says`.
pub fn fails(output: &Output, code: i32, says: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for words in says {
        assert!(text.contains(words), "`{words}` is missing in:\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

pub fn succeeds(output: &Output) {
    assert!(output.status.success(), "{:?}\n{}", output.status, stderr(output));
}

/// A process that does not outlive the test, even if that fails.
pub struct Running(Option<Child>);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// As [`Child::wait_with_output`].
    pub fn output(mut self) -> Output {
        self.0.take().expect("it is there until now").wait_with_output().unwrap()
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect("it is there until its output is taken")
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is there until its output is taken")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended, which is not a failure.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal, such as `-INT`.
pub fn send(signal: &str, child: &Child) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Waits until a run that is under way has logged updates, however busy the machine is.
pub fn wait_for_log(child: &mut Child, path: &Path) {
    for _ in 0..12_000 {
        if std::fs::read_to_string(path).is_ok_and(|text| text.lines().count() > 3) {
            return;
        }
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "it has ended before four lines of {}: {ended:?}", path.display());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it does not log updates in {}", path.display());
}

/// All numbers of a safetensors file, tensor after tensor in the order of their names.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    let tensors = safetensors::SafeTensors::deserialize(bytes).unwrap();
    let mut named = tensors.tensors();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let bytes = named.iter().flat_map(|(_, view)| view.data().as_chunks::<4>().0);
    bytes.map(|four| f32::from_le_bytes(*four)).collect()
}

/// A file of a run.
pub fn file(project: &Project, run: &str, name: &str) -> Vec<u8> {
    std::fs::read(project.path(run).join(name)).unwrap()
}
