//! NVIDIA's libraries, which are loaded when they are needed: without a GPU, nothing needs them.

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};

/// The folders where an installed CUDA has its libraries.
pub fn of_cuda() -> Vec<PathBuf> {
    folders(|name| std::env::var_os(name).map(PathBuf::from))
}

fn folders(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let roots = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).chain(["/usr/local/cuda".into()]);
    roots.map(|root| root.join("lib64")).collect()
}

/// Opens a library, so that calls to its functions bind to it: the one that the dynamic loader finds, else one in the
/// folders.
///
/// # Errors
/// It is not there, or cannot be used.
pub fn open(name: &str, folders: &[PathBuf]) -> Result<Library, libloading::Error> {
    let files = folders.iter().map(|folder| folder.join(name)).filter(|file| file.exists());
    let mut opened = open_file(Path::new(name));
    for file in files {
        if opened.is_ok() {
            break;
        }
        opened = open_file(&file);
    }
    opened
}

/// Opens a library for the rest of the process.
#[cfg(feature = "cuda")]
pub(super) fn load(name: &str, folders: &[PathBuf]) -> Result<(), libloading::Error> {
    // Never unloaded.
    open(name, folders).map(std::mem::forget)
}

fn open_file(file: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: NVIDIA's libraries do nothing harmful when they are loaded.
    unsafe { Library::open(Some(file.as_os_str()), RTLD_LAZY | RTLD_GLOBAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_looked_for_in_installed_toolkits() {
        let folders = folders(|name| (name == "CUDA_PATH").then(|| "/opt/cuda".into()));
        assert_eq!(folders, [Path::new("/opt/cuda/lib64"), Path::new("/usr/local/cuda/lib64")]);
        let error = open("libnothing.so.1", &folders).unwrap_err();
        assert!(format!("{error:?}").contains("libnothing.so.1"));
        // Of the C library, under the name that it has everywhere.
        let name = if cfg!(target_os = "macos") { "libSystem.dylib" } else { "libc.so.6" };
        open(name, &folders).unwrap();
    }
}
