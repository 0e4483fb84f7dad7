//! What a repository holds at a revision.

use hf_hub::HFError;

use super::download::{Failure, Web, retrying};
use super::problem::{self, Refusal};
use super::{MAIN, Repo, RepoKind, cache};
use crate::error::{Error, Result};

/// The files of a revision.
pub(super) struct Listing {
    /// The commit that the revision stands for.
    pub commit: String,
    /// The names of its files, sorted.
    pub files: Vec<String>,
}

impl Web {
    /// Asks for the files of a revision.
    pub fn list(&self, repo: &Repo) -> Result<Listing> {
        let (sha, siblings) = retrying(|| {
            let (owner, name) = hf_hub::split_id(&repo.name);
            let revision = repo.revision.clone();
            let asked = match repo.kind {
                RepoKind::Model => {
                    let info = self.hub.model(owner, name).info().revision(revision).send();
                    info.map(|info| (info.sha, info.siblings))
                }
                RepoKind::Dataset => {
                    let info = self.hub.dataset(owner, name).info().revision(revision).send();
                    info.map(|info| (info.sha, info.siblings))
                }
            };
            asked.map_err(|error| self.failure(repo, error))
        })?;
        let commit = sha.filter(|sha| cache::is_key(sha));
        let (Some(commit), Some(siblings)) = (commit, siblings) else {
            return Err(problem::not_the_hub(&self.endpoint));
        };
        let mut files: Vec<String> = siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        // Names that cannot be those of files here are left out.
        files.retain(|name| cache::is_safe_path(name));
        files.sort();
        Ok(Listing { commit, files })
    }

    /// What `hf-hub` says, as a sentence, and whether another try may help.
    pub fn failure(&self, repo: &Repo, error: HFError) -> Failure {
        let (context, wait) = match error {
            HFError::Request { source, .. } => return self.unanswered(source),
            HFError::RateLimited { retry_after, context } => (Some(context), retry_after),
            HFError::Http { context }
            | HFError::AuthRequired { context }
            | HFError::Forbidden { context }
            | HFError::Conflict { context } => (Some(context), None),
            HFError::RepoNotFound { context, .. } | HFError::RevisionNotFound { context, .. } => (context, None),
            other => return Failure::Final(Error::failure(format!("cannot list the files of {repo}: {other}"))),
        };
        let status = context.as_ref().map_or(404, |context| context.status.as_u16());
        let code = context.as_ref().and_then(|context| context.error_code.clone());
        let message = context.as_ref().and_then(|context| context.server_message.clone());
        let mut refusal = Refusal { status, code, message, repo, file: None, elsewhere: None };
        if status == 404 && refusal.code.is_none() && repo.revision != MAIN && self.exists(repo) {
            refusal.code = Some("RevisionNotFound".to_owned());
        }
        self.refused(&refusal, wait)
    }

    /// Whether there is such a repository at any revision.
    fn exists(&self, repo: &Repo) -> bool {
        let (owner, name) = hf_hub::split_id(&repo.name);
        let exists = match repo.kind {
            RepoKind::Model => self.hub.model(owner, name).exists().send(),
            RepoKind::Dataset => self.hub.dataset(owner, name).exists().send(),
        };
        exists.unwrap_or(false)
    }
}
