//! Stands for `web` in a build without the feature `hub`: there is no way to the network.

use std::path::PathBuf;

use super::Repo;
use super::cache::{Cache, Listing};
use crate::error::{Error, Result};

/// Never made.
pub(super) enum Web {}

impl Web {
    pub(super) fn from_environment() -> Result<Self> {
        let error = Error::usage("this build of mt cannot reach the hub: it lacks the feature `hub`");
        Err(error.help("give --offline if the files are in the hub's cache, or build with cargo's default features"))
    }

    pub(super) fn list(&self, _: &Repo) -> Result<Listing> {
        match *self {}
    }

    pub(super) fn fetch(&self, _: &Cache, _: &Repo, _: &str, _: &str, _: Option<PathBuf>) -> Result<PathBuf> {
        match *self {}
    }

    pub(super) fn conversion(&self, _: &Repo, _: &str) -> Result<Option<String>> {
        match *self {}
    }
}
