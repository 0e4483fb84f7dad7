//! What a repository holds at a revision.

use hf_hub::repository::RepoSibling;
use serde::Deserialize;

use super::super::Repo;
use super::super::cache::{self, Listing};
use super::retry::retrying;
use super::{Web, problem};
use crate::error::Result;
use crate::limits::HUB_FILES;

/// A repository as the hub describes it.
///
/// Not `hf-hub`'s type, which also keeps the model card, of any size.
#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    siblings: Option<Vec<RepoSibling>>,
}

impl Web {
    /// Asks for the files of a revision.
    pub(in crate::hub) fn list(&self, repo: &Repo) -> Result<Listing> {
        let url = self.url_about(repo, &["revision", &repo.revision]);
        let info: Info = retrying(|| self.answer(&url, repo))?;
        let commit = info.sha.filter(|sha| cache::is_key(sha));
        let (Some(commit), Some(siblings)) = (commit, info.siblings) else {
            return Err(problem::not_the_hub(&self.endpoint));
        };
        if siblings.len() > HUB_FILES {
            return Err(problem::too_many_files(repo, siblings.len(), HUB_FILES));
        }
        let mut files: Vec<String> = siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        // Names that are not safe as paths are left out.
        files.retain(|name| cache::is_safe_path(name));
        files.sort();
        files.dedup();
        Ok(Listing { commit, files })
    }
}
