//! The pull request by which the hub's own converter adds weights in safetensors to a repository that has them as a
//! pickle.

use hf_hub::repository::GitCommitInfo;
use serde::Deserialize;

use super::super::Repo;
use super::Web;
use super::retry::retrying;
use crate::error::{Error, Result};
use crate::limits::{HUB_COMMITS, HUB_PAGES};

/// The account of the converter, and the title of its pull requests. Anyone may open one, with any weights: so both
/// must match.
const AUTHOR: &str = "SFconvertbot";
const TITLE: &str = "Adding `safetensors` variant of this model";

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

impl Web {
    /// The revision with which the hub's converter added safetensors to `main`, whose commit is `head`.
    pub(in crate::hub) fn conversion(&self, repo: &Repo, head: &str) -> Result<Option<String>> {
        for revision in self.conversions(repo)? {
            if self.follows(repo, &revision, head)? {
                return Ok(Some(revision));
            }
        }
        Ok(None)
    }

    /// The revisions of the converter's pull requests.
    fn conversions(&self, repo: &Repo) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for number in 0..HUB_PAGES {
            let mut url = self.url_about(repo, &["discussions"]);
            url.query_pairs_mut().append_pair("author", AUTHOR).append_pair("type", "pull_request");
            url.query_pairs_mut().append_pair("p", &number.to_string());
            let page: Page = retrying(|| self.answer(&url, repo))?;
            let conversions = page.discussions.iter().filter(|discussion| discussion.is_conversion());
            found.extend(conversions.map(|discussion| format!("refs/pr/{}", discussion.num)));
            if page.discussions.is_empty() || page.start.saturating_add(page.discussions.len()) >= page.count {
                break;
            }
        }
        Ok(found)
    }

    /// Whether a revision was made from that commit: weights of an older one would be of another model.
    fn follows(&self, repo: &Repo, revision: &str, commit: &str) -> Result<bool> {
        let mut url = self.url_about(repo, &["commits", revision]);
        url.query_pairs_mut().append_pair("limit", &HUB_COMMITS.to_string());
        let commits: Result<Vec<GitCommitInfo>> = retrying(|| self.answer(&url, repo));
        let commits = commits.map_err(|error: Error| error.context(format_args!("{revision} of {repo}")))?;
        Ok(commits.iter().take(HUB_COMMITS).any(|other| other.id == commit))
    }
}
