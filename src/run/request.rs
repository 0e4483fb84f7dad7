//! The request for a training run.

use std::path::{Path, PathBuf};

use candle_core::Device;

use crate::checkpoint::{CHECKPOINTS, CONFIG_FILE};
use crate::config::{self, Config};
use crate::device;
use crate::error::{Error, Result};
use crate::run::directory::is_run;
use crate::train::log::LOG_FILE;

/// Which run to train, and what to do if it exists.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    /// Configuration files; later ones override earlier ones.
    pub files: Vec<PathBuf>,
    /// Overrides of single keys, each `section.key=VALUE`.
    pub sets: Vec<String>,
    /// Where the run is; none: see [`Self::run_directory`].
    pub directory: Option<PathBuf>,
    /// Whether a run that exists is continued.
    pub resume: bool,
    /// Whether a run that exists is replaced.
    pub overwrite: bool,
    /// Whether it is continued even if the configuration has changed what is trained.
    pub force: bool,
    /// The device, as `--device` names it; none: as the configuration says. It is of this process, and not recorded:
    /// the model may be used on another machine.
    pub device: Option<String>,
    /// Threads on the processor; none: as the configuration says. Not recorded either.
    pub threads: Option<usize>,
    /// Whether the hub may not be accessed, only its cache.
    pub offline: bool,
    /// Whether to note where the time of updates goes.
    pub profile: bool,
}

impl RunRequest {
    /// The configuration that it describes, for training or what comes before it.
    ///
    /// # Errors
    /// It has mistakes, or does not name what training needs; all are named.
    pub fn config(&self) -> Result<Config> {
        config::load_for_training(&self.files, &self.sets)
    }

    /// Adds to an error about a key where a file or an override states it.
    pub fn locate(&self, error: Error, key: &str) -> Error {
        config::locate(error, key, &self.files, &self.sets)
    }

    /// The device that it names, or else the configuration, for one of the processes of the run on this machine.
    ///
    /// # Errors
    /// It cannot be used here; the key is named.
    pub fn open_device(&self, config: &Config, process: usize) -> Result<Device> {
        let name = &config.runtime.device;
        let of_key = |error: Error| error.context(format_args!("`runtime.device` = \"{name}\""));
        match &self.device {
            Some(device) => device::open_for(device, process),
            None => device::open_for(name, process).map_err(of_key),
        }
    }

    /// Sets the number of threads, of which so many processes of the run share this machine.
    ///
    /// # Errors
    /// As [`device::set_threads`].
    pub fn set_threads(&self, config: &Config, processes: usize) -> Result<()> {
        let threads = self.threads.unwrap_or(config.runtime.threads);
        let is_shared = threads == 0 && processes > 1;
        device::set_threads(if is_shared { device::cores_of_one(processes) } else { threads })
    }

    /// `--run-dir`; else, if the last configuration file is that of a run, that run; else `runs/<name of the file>`.
    pub fn run_directory(&self) -> Result<PathBuf> {
        if let Some(directory) = &self.directory {
            return Ok(directory.clone());
        }
        let file = self.files.last();
        if let Some(directory) = file.filter(|file| file.ends_with(CONFIG_FILE)).and_then(|file| file.parent()) {
            let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            if is_run(directory) && [LOG_FILE, CHECKPOINTS].iter().any(|name| directory.join(name).exists()) {
                return Ok(directory.to_path_buf());
            }
        }
        // As the shell writes `<(command)`.
        if let Some(file) = file.filter(|file| ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|it| file.starts_with(it)))
        {
            let error = Error::usage("this configuration has no name to name the run after").at(file);
            return Err(error.help("name a run directory with --run-dir"));
        }
        let name = file.and_then(|file| file.file_stem()).filter(|name| *name != "..");
        let name = name.ok_or_else(|| {
            Error::usage("the configuration file has no name to name the run after")
                .help("name a run directory with --run-dir")
        })?;
        Ok(Path::new("runs").join(name))
    }
}
