//! The pull request by which the hub's own converter adds weights in safetensors to a repository that has them as a pickle.

use serde::Deserialize;

use super::download::{Failure, Web, retrying};
use super::{Hub, MAIN, Repo, RepoKind, problem};
use crate::error::{Error, Result};

/// The account of the converter, and the title of its pull requests. Anyone may open one, with any weights: so both must match.
const AUTHOR: &str = "SFconvertbot";
const TITLE: &str = "Adding `safetensors` variant of this model";
/// Pages of a repository's pull requests that are looked at.
const PAGES: usize = 20;
/// Commits of a pull request that are looked at.
const COMMITS: usize = 10;

#[derive(Deserialize)]
struct Page {
    discussions: Vec<Discussion>,
    count: usize,
    start: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Discussion {
    num: u64,
    title: String,
    status: String,
    is_pull_request: bool,
    author: Option<Author>,
}

#[derive(Deserialize)]
struct Author {
    name: String,
}

impl Discussion {
    fn is_conversion(&self) -> bool {
        let author = self.author.as_ref().map(|author| author.name.as_str());
        self.is_pull_request && self.title == TITLE && self.status == "open" && author == Some(AUTHOR)
    }
}

impl Hub {
    /// The revision with which the hub's converter added safetensors to what `main` has now, if there is one. Offline nothing is
    /// known of it.
    ///
    /// # Errors
    /// As [`Hub::files`].
    pub fn conversion(&self, repo: &Repo) -> Result<Option<String>> {
        let Some(web) = self.web.as_ref().filter(|_| repo.kind == RepoKind::Model && repo.revision == MAIN) else {
            return Ok(None);
        };
        let head = self.commit(repo)?;
        for revision in web.conversions(repo)? {
            if web.follows(repo, &revision, &head)? {
                return Ok(Some(revision));
            }
        }
        Ok(None)
    }
}

impl Web {
    /// The revisions of the converter's pull requests.
    fn conversions(&self, repo: &Repo) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for number in 0..PAGES {
            let address = format!("{}/api/models/{}/discussions", self.endpoint, repo.name);
            let query = [("author", AUTHOR), ("type", "pull_request"), ("p", &number.to_string())];
            let page: Page = retrying(|| {
                let text = self.text(&address, &query, repo)?;
                serde_json::from_str(&text)
                    .map_err(|error| Failure::Final(problem::not_the_hub(&self.endpoint).caused_by(error)))
            })?;
            let conversions = page.discussions.iter().filter(|discussion| discussion.is_conversion());
            found.extend(conversions.map(|discussion| format!("refs/pr/{}", discussion.num)));
            if page.discussions.is_empty() || page.start + page.discussions.len() >= page.count {
                break;
            }
        }
        Ok(found)
    }

    /// Whether a revision was made from that commit: weights of an older one would be of another model.
    fn follows(&self, repo: &Repo, revision: &str, commit: &str) -> Result<bool> {
        let (owner, name) = hf_hub::split_id(&repo.name);
        let commits = retrying(|| {
            let asked = self.hub.model(owner, name).list_commits().revision(revision).limit(COMMITS).send();
            asked.map_err(|error| self.failure(repo, error))
        });
        let commits = commits.map_err(|error: Error| error.context(format_args!("{revision} of {repo}")))?;
        Ok(commits.iter().any(|other| other.id == commit))
    }
}
