//! Names of the hub's repositories: here, in addresses, and in other programs.

use std::path::Path;

use super::{MAIN, Repo, RepoKind};

/// Hosts of the hub, as addresses of its pages have them.
const HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];

impl Repo {
    /// The repository that a text names as no path of a file would: `hf:ORG/NAME`, `hf://datasets/ORG/NAME`, each
    /// perhaps with `@REVISION`, or the address of a page such as `https://huggingface.co/ORG/NAME/tree/REVISION`,
    /// there or on a mirror. Whether its parts can be names is not looked at.
    pub fn named(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("hf://") {
            return Some(Self::from_path(path, Self::leading_revision));
        }
        if let Some(path) = text.strip_prefix("hf:") {
            return Some(Self::from_path(path, |revision| revision));
        }
        let endpoint = super::variable(&["HF_ENDPOINT"]);
        let below = |endpoint: &str| text.strip_prefix(endpoint.trim_end_matches('/'))?.strip_prefix('/');
        // Pages have addresses without a password.
        let path = match endpoint.and_then(|endpoint| below(&endpoint).or_else(|| below(&without_user(&endpoint)?))) {
            Some(path) => path,
            None => {
                let bare = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
                let (host, path) = bare.split_once('/')?;
                HOSTS.iter().any(|known| known.eq_ignore_ascii_case(host)).then_some(path)?
            }
        };
        let path = path.split(['?', '#']).next().unwrap_or_default().replace("%2F", "/");
        let (kind, path) = kind_in(&path);
        // ORG/NAME, or NAME alone; the rest is the page.
        let pages = ["tree", "blob", "resolve", "raw", "commit", "commits"];
        let pages = pages.into_iter().filter_map(|page| path.split_once(&format!("/{page}/")));
        let page = pages.min_by_key(|(name, _)| name.len());
        let (name, revision) = page.map_or((path, MAIN), |(name, rest)| (name, Self::leading_revision(rest)));
        let name = name.split('/').take(2).collect::<Vec<_>>().join("/");
        let name = name.trim_end_matches('/').trim_end_matches(".git");
        Some(Self { kind, name: name.to_owned(), revision: revision.to_owned() })
    }

    /// The repository that a path of a file which is not there may have meant: `ORG/NAME`, or `datasets/ORG/NAME`. The
    /// path may have been made absolute, below a folder that is there.
    pub fn perhaps(text: &str) -> Option<Self> {
        let path = Path::new(text);
        let is_below = |folder: &&Path| path.is_absolute() && folder.parent().is_some_and(Path::is_dir);
        let folder = path.parent().filter(|organisation| !organisation.exists()).filter(is_below);
        let given = folder.and_then(Path::parent).and_then(|folder| path.strip_prefix(folder).ok()?.to_str());
        let (kind, name) = kind_in(given.unwrap_or(text));
        let is_name = name.contains('/') && super::is_repo_name(name);
        is_name.then(|| Self { kind, name: name.to_owned(), revision: MAIN.to_owned() })
    }

    /// `ORG/NAME`, `datasets/ORG/NAME`, perhaps with `@REVISION`, which ends where `end` says.
    fn from_path(path: &str, end: fn(&str) -> &str) -> Self {
        let (kind, path) = kind_in(path);
        let (name, revision) = path.split_once('@').map_or((path, MAIN), |(name, rest)| (name, end(rest)));
        Self { kind, name: name.trim_end_matches('/').to_owned(), revision: revision.to_owned() }
    }

    /// The revision at the beginning of a path: one part, but for `refs/pr/N` and `refs/convert/NAME`.
    fn leading_revision(path: &str) -> &str {
        let parts = if path.starts_with("refs/") { 3 } else { 1 };
        path.match_indices('/').nth(parts - 1).map_or(path, |(end, _)| path.split_at(end).0)
    }
}

/// An address without the name and password in it; `None` if there are none.
fn without_user(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let (_, rest) = rest.rsplit_once('@')?;
    Some(format!("{scheme}://{rest}"))
}

/// The kind of the repository, and the rest of a path that may begin with it.
fn kind_in(path: &str) -> (RepoKind, &str) {
    let rest = |kind: RepoKind| path.strip_prefix(kind.plural())?.strip_prefix('/');
    if let Some(path) = rest(RepoKind::Dataset) {
        return (RepoKind::Dataset, path);
    }
    (RepoKind::Model, rest(RepoKind::Model).unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_programs_and_addresses_of_pages() {
        let model = |name: &str, revision: &str| Some(Repo::model(name).at(revision));
        let dataset = |name: &str, revision: &str| Some(Repo::dataset(name).at(revision));
        for (text, expected) in [
            ("hf:Helsinki-NLP/opus-mt-en-de", model("Helsinki-NLP/opus-mt-en-de", "main")),
            ("hf:a/b@refs/pr/3", model("a/b", "refs/pr/3")),
            ("hf:a/b@feature/x", model("a/b", "feature/x")),
            ("hf:datasets/a/b", dataset("a/b", "main")),
            ("hf://a/b", model("a/b", "main")),
            ("hf://models/a/b@v1", model("a/b", "v1")),
            ("hf://datasets/a/b@refs/convert/parquet/de-en/x.parquet", dataset("a/b", "refs/convert/parquet")),
            ("https://huggingface.co/a/b", model("a/b", "main")),
            ("https://huggingface.co/a/b/", model("a/b", "main")),
            ("https://huggingface.co/gpt2", model("gpt2", "main")),
            ("https://huggingface.co/gpt2/tree/main", model("gpt2", "main")),
            ("https://huggingface.co/a/b.git", model("a/b", "main")),
            ("https://huggingface.co/a/b/tree/refs%2Fpr%2F3", model("a/b", "refs/pr/3")),
            ("https://huggingface.co/a/b/blob/0a1b/config.json", model("a/b", "0a1b")),
            ("http://www.HuggingFace.co/a/b?library=transformers#x", model("a/b", "main")),
            ("hf.co/a/b", model("a/b", "main")),
            ("https://huggingface.co/datasets/wmt/wmt14/viewer/de-en", dataset("wmt/wmt14", "main")),
            ("https://huggingface.co/datasets/a/b/resolve/v2/x/y.tsv?download=true", dataset("a/b", "v2")),
            ("https://example.com/a/b", None),
            ("https://huggingface.co.example/a/b", None),
            ("a/b", None),
            ("runs/hf:a", None),
            ("/huggingface.co/a/b", None),
        ] {
            assert_eq!(Repo::named(text), expected, "{text}");
        }
        assert_eq!(without_user("https://me:p@w@hub.example/x").as_deref(), Some("https://hub.example/x"));
        assert_eq!(without_user("https://hub.example/x"), None);
        for (text, expected) in [
            ("Helsinki-NLP/opus-mt-en-de", model("Helsinki-NLP/opus-mt-en-de", "main")),
            ("datasets/wmt/wmt14", dataset("wmt/wmt14", "main")),
            ("model", None),
            ("runs/a/b", None),
            ("./a/b", None),
            ("/a/b", model("a/b", "main")),
            ("/usr/b", None),
            ("/no/such/b", None),
            ("../b", None),
        ] {
            assert_eq!(Repo::perhaps(text), expected, "{text}");
        }
    }
}
