//! TensorBoard's event files, written from the entries of `log.jsonl`.
//!
//! A file is a sequence of records, each a length, its checksum, an `Event` in Protocol Buffers, and its checksum
//! (TensorFlow's TFRecord; checksums are CRC-32C, "masked"). Only the fields used here are declared; their numbers are
//! those of `event.proto`, `summary.proto` and `tensor.proto`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::picture;
use super::records::{record, records};
use crate::checkpoint::RunPath;
use crate::error::{Error, Result};
use crate::explanation::Explanation;
use crate::file::{Folder, Links};
use crate::train::log::{Samples, Watcher, is_of_final_model};

/// The directory in a run directory.
pub const DIRECTORY: &str = "tensorboard";
/// Prefix of the tags of attention images; the number of the sample translation follows.
const ATTENTION: &str = "attention/";
/// What the names of its files begin with, as TensorBoard requires, and end with.
const NAME: (&str, &str) = ("events.out.tfevents.", ".mt");
/// An incomplete file: TensorBoard ignores such names.
const NEW: &str = ".events.new";

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

/// Status 1 is the start of a session: TensorBoard then discards data of this step and later ones.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Tagged>,
}

#[derive(Clone, PartialEq, Message)]
struct Tagged {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
struct Image {
    #[prost(int32, tag = "1")]
    height: i32,
    #[prost(int32, tag = "2")]
    width: i32,
    /// 4: red, green, blue and opacity.
    #[prost(int32, tag = "3")]
    colorspace: i32,
    /// PNG.
    #[prost(bytes = "vec", tag = "4")]
    encoded_image_string: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    /// 7: strings.
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    string_val: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "2")]
    dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(int64, tag = "1")]
    size: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
}

impl Event {
    /// Whether it has the images of a validation.
    fn has_images(&self) -> bool {
        let mut values = self.summary.iter().flat_map(|summary| &summary.value);
        values.any(|value| value.image.is_some() && value.tag.starts_with(ATTENTION))
    }
}

impl Tagged {
    fn number(tag: &str, value: f64) -> Self {
        Self { tag: tag.to_owned(), simple_value: Some(value as f32), ..Self::default() }
    }

    fn image(tag: &str, png: Vec<u8>) -> Self {
        // The first chunk of a PNG begins with its width and height.
        let side =
            |at: usize| png.get(at..at + 4).map_or(0, |side| side.iter().fold(0, |n, byte| n << 8 | i32::from(*byte)));
        let image = Image { height: side(20), width: side(16), colorspace: 4, encoded_image_string: png };
        Self { tag: tag.to_owned(), image: Some(image), ..Self::default() }
    }

    /// Text in Markdown.
    fn text(tag: &str, texts: Vec<String>) -> Self {
        let shape = Shape { dim: vec![Dimension { size: texts.len() as i64 }] };
        let string_val = texts.into_iter().map(String::into_bytes).collect();
        Self {
            tag: tag.to_owned(),
            tensor: Some(Tensor { dtype: 7, shape: Some(shape), string_val }),
            metadata: Some(Metadata { plugin_data: Some(PluginData { plugin_name: "text".to_owned() }) }),
            ..Self::default()
        }
    }
}

/// The event file of a run. It is rewritten whenever the run is resumed, so that it agrees with the log.
pub struct Events {
    run: PathBuf,
    links: Links,
    file: Option<Open>,
    /// When the run would have begun, had it not been interrupted: seconds since 1970.
    began: f64,
}

/// The file, while it is written to.
struct Open {
    writer: BufWriter<File>,
    folder: Folder,
    name: OsString,
}

impl Open {
    fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::io("write TensorBoard's events", path, error)
}

impl Events {
    /// The event file of a run directory.
    pub fn new<'a>(run: impl Into<RunPath<'a>>) -> Self {
        let RunPath { path, links } = run.into();
        Self { run: path.to_path_buf(), links, file: None, began: 0.0 }
    }

    /// Begins a new file beside those of earlier starts. Returns these files, and their events with images, which are
    /// not in the log.
    fn create(&mut self) -> Result<(Vec<OsString>, Vec<Event>)> {
        self.file = None;
        let (mut earlier, mut images, mut seen) = (Vec::new(), Vec::<Event>::new(), HashSet::new());
        let directory = self.run.join(DIRECTORY);
        let failed = |error| failed(&directory, error);
        let folder = Folder::open(&self.run).and_then(|run| run.made_folder(DIRECTORY, self.links)).map_err(failed)?;
        for name in folder.names().map_err(failed)? {
            if name.to_str().is_some_and(|name| name.starts_with(NAME.0) && name.ends_with(NAME.1)) {
                let mut bytes = Vec::new();
                folder.read(&name).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(failed)?;
                let of_images = records(&bytes).filter_map(|data| Some((data, Event::decode(data).ok()?)));
                for (data, event) in of_images.filter(|(_, event)| event.has_images()) {
                    // A killed start may have left two files with the same events.
                    if seen.insert(Sha256::digest(data)) {
                        images.push(event);
                    }
                }
                earlier.push(name);
            }
        }
        let file = folder.create(NEW).map_err(failed)?;
        self.file = Some(Open { writer: BufWriter::new(file), folder, name: NEW.into() });
        Ok((earlier, images))
    }

    /// Writes the entries of the log, and the images of the validations that are in the log.
    fn fill(&mut self, entries: &[Value], images: &[Event]) -> Result<()> {
        let validations = entries.iter().filter(|entry| entry["event"] == "valid");
        let updates: HashSet<i64> = validations.filter_map(|entry| entry["update"].as_i64()).collect();
        let is_kept = |image: &&Event| updates.contains(&image.step);
        let wall_time = self.began;
        let version = Some("brain.Event:2".to_owned());
        self.write(&Event { wall_time, file_version: version, ..Event::default() })?;
        self.write(&Event { wall_time, session_log: Some(SessionLog { status: 1 }), ..Event::default() })?;
        entries.iter().try_for_each(|entry| self.add(entry))?;
        images.iter().filter(is_kept).try_for_each(|event| self.write(event))
    }

    /// Gives the new, complete file its name, and then removes the files of earlier starts; in between, readers see
    /// both.
    fn replace(&mut self, earlier: &[OsString]) -> Result<()> {
        self.flush()?;
        let Some(Open { writer, folder, name }) = &mut self.file else { return Ok(()) };
        let named = OsString::from(format!("{}{}{}", NAME.0, now() as u64, NAME.1));
        let moved = writer.get_ref().sync_all().and_then(|()| folder.rename(&*name, &named));
        moved.map_err(|error| failed(&folder.path().join(&named), error))?;
        // An earlier start within the same second had the same name, and is already replaced.
        for old in earlier.iter().filter(|old| **old != named) {
            folder.remove_file(old).map_err(|error| failed(&folder.path().join(old), error))?;
        }
        *name = named;
        Ok(())
    }

    /// Fails if the file was removed: new entries would be lost.
    fn refuse_removed(&self) -> Result<()> {
        // If the system cannot list the folder, the file counts as present.
        let is_removed = |open: &&Open| {
            let is_there = open.folder.is_in_place() && open.folder.holds(open.writer.get_ref(), &open.name);
            !is_there && open.path().try_exists().is_ok()
        };
        match self.file.as_ref().filter(is_removed) {
            Some(open) => {
                Err(Error::failure("TensorBoard's events were removed while training was under way").at(open.path()))
            }
            None => Ok(()),
        }
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        let Some(open) = &mut self.file else { return Ok(()) };
        let written = record(&mut open.writer, &event.encode_to_vec());
        written.map_err(|error| failed(&open.path(), error))
    }

    fn flush(&mut self) -> Result<()> {
        let Some(open) = &mut self.file else { return Ok(()) };
        open.writer.flush().map_err(|error| failed(&open.path(), error))
    }

    fn add(&mut self, entry: &Value) -> Result<()> {
        let value = summary(entry);
        if value.is_empty() {
            return Ok(());
        }
        let wall_time = entry["seconds"].as_f64().map_or_else(now, |seconds| self.began + seconds);
        let step = entry["update"].as_i64().unwrap_or(0);
        self.write(&Event { wall_time, step, summary: Some(Summary { value }), ..Event::default() })
    }
}

impl Watcher for Events {
    fn begin(&mut self, entries: &[Value]) -> Result<()> {
        let seconds = entries.iter().filter_map(|entry| entry["seconds"].as_f64()).fold(0.0, f64::max);
        self.began = now() - seconds;
        let (earlier, images) = self.create()?;
        let written = self.fill(entries, &images).and_then(|()| self.replace(&earlier));
        // An incomplete file would only take space.
        written.inspect_err(|_| {
            if let Some(open) = &self.file {
                let _ = open.folder.remove_file(NEW);
            }
        })
    }

    fn samples(&mut self, Samples { update, is_final, explained }: Samples) -> Result<()> {
        self.refuse_removed()?;
        if cfg!(not(feature = "pictures")) {
            return Ok(());
        }
        let image = |(i, explanation): (usize, &Explanation)| -> Result<Tagged> {
            let tag = format!("{}{ATTENTION}{}", if is_final { "final/" } else { "" }, i + 1);
            Ok(Tagged::image(&tag, picture::png(&picture::sentence::maps(explanation)?)?.0))
        };
        let value = explained.iter().enumerate().map(image).collect::<Result<_>>()?;
        self.write(&Event {
            wall_time: now(),
            step: update as i64,
            summary: Some(Summary { value }),
            ..Event::default()
        })?;
        self.flush()
    }

    fn entry(&mut self, entry: &Value) -> Result<()> {
        self.refuse_removed()?;
        self.add(entry)?;
        self.flush()
    }
}

/// The values that TensorBoard shows for an entry of the log.
fn summary(entry: &Value) -> Vec<Tagged> {
    let numbers = |tags: &[(&str, &str, f64)]| -> Vec<Tagged> {
        let number = |(tag, key, factor): &(&str, &str, f64)| Some(Tagged::number(tag, entry[*key].as_f64()? * factor));
        tags.iter().filter_map(number).collect()
    };
    let of_set = |key: &str| format!("monitor/{}/{key}", entry["set"].as_str().unwrap_or_default());
    let likelihood = |tag: &str| entry["perplexity"].as_f64().map(|perplexity| Tagged::number(tag, perplexity.ln()));
    match entry["event"].as_str() {
        Some("train") => {
            let mut values = numbers(&[
                ("train/label_smoothed_loss", "loss", 1.0),
                ("train/perplexity", "perplexity", 1.0),
                ("train/learning_rate", "learning_rate", 1.0),
                ("train/gradient_norm", "gradient_norm", 1.0),
                ("train/skipped", "skipped", 1.0),
                ("speed/tokens_per_second", "tokens_per_second", 1.0),
                ("speed/saving_seconds", "saving_seconds", 1.0),
                ("memory/MiB", "memory", 1.0 / f64::from(1 << 20)),
            ]);
            values.extend(likelihood("train/cross_entropy"));
            values
        }
        Some("valid") => {
            let mut values = numbers(&[
                ("valid/label_smoothed_loss", "loss", 1.0),
                ("valid/perplexity", "perplexity", 1.0),
                ("valid/bleu", "bleu", 1.0),
                ("valid/chrf", "chrf", 1.0),
                ("valid/comet", "comet", 1.0),
                ("speed/validation_seconds", "validation_seconds", 1.0),
            ]);
            values.extend(likelihood("valid/cross_entropy"));
            let samples: Vec<String> = entry["samples"].as_array().into_iter().flatten().filter_map(markdown).collect();
            if !samples.is_empty() {
                values.push(Tagged::text("valid/samples", samples));
            }
            values
        }
        Some("final") => numbers(&[
            ("final/label_smoothed_loss", "loss", 1.0),
            ("final/perplexity", "perplexity", 1.0),
            ("final/bleu", "bleu", 1.0),
            ("final/chrf", "chrf", 1.0),
            ("final/comet", "comet", 1.0),
        ]),
        // The final model's belong to no point of the curves.
        Some("monitor") if !is_of_final_model(entry) => {
            let keys = ["perplexity", "bleu", "chrf", "comet"].map(|key| (key, key));
            let keys = [("loss", "label_smoothed_loss")].into_iter().chain(keys);
            keys.flat_map(|(key, tag)| numbers(&[(&of_set(tag), key, 1.0)])).collect()
        }
        Some("spike") => numbers(&[("train/spike", "loss", 1.0)]),
        _ => Vec::new(),
    }
}

/// A sample translation as Markdown; indented, so that its lines are shown verbatim.
fn markdown(sample: &Value) -> Option<String> {
    Some(sample.as_str()?.lines().map(|line| format!("    {}\n", line.trim_start())).collect())
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests;
