//! Vocabulary shortlists: the target tokens that a translation of a sentence may use, so the output layer computes no
//! others.
//!
//! A list is made once from the training text ([`crate::data::lexicon`]): for each source token the target tokens that
//! translate it, and some that are always allowed. The file is safetensors: `starts` [V + 1], `tokens` (source token s
//! has those from `starts[s]` to `starts[s + 1]`) and `always`, all u32; its metadata names the tokenizers it is for.
//! (Devlin 2017, "Sharp Models on Dull Hardware"; Kim et al. 2019, "From Research to Production and Back".)

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::file;
use crate::limits::WHOLE_FILE_BYTES;

/// Key of the metadata; its value is a JSON object.
const ABOUT: &str = "mt";

/// Key in that object for the digest of the tokenizers that the list is for.
const TOKENIZERS: &str = "tokenizers";

/// Key in that object for the checksum of the list.
const DIGEST: &str = "sha256";

/// A shortlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortlist {
    /// Source token s has `tokens[starts[s]..starts[s + 1]]`.
    starts: Vec<u32>,
    tokens: Vec<u32>,
    always: Vec<u32>,
}

impl Shortlist {
    /// From the target tokens of each source token, and the always allowed ones.
    pub fn new(of: impl IntoIterator<Item = Vec<u32>>, always: Vec<u32>) -> Self {
        let (mut starts, mut tokens) = (vec![0], Vec::new());
        for list in of {
            tokens.extend(list);
            starts.push(tokens.len() as u32);
        }
        Self { starts, tokens, always }
    }

    /// For each source token, whether it was seen with target tokens. With one vocabulary, all may be copied: that
    /// alone does not count.
    pub fn listed(&self) -> Vec<bool> {
        let ends = self.starts.windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
        (0..).zip(ends).map(|(source, of)| self.tokens[of].iter().any(|token| *token != source)).collect()
    }

    /// The average number of target tokens per source token.
    pub fn average(&self) -> f64 {
        self.tokens.len() as f64 / (self.starts.len() - 1).max(1) as f64
    }

    /// The target tokens allowed for a sentence, ascending. They include those `needed` for it, but none that is
    /// `forbidden`.
    pub fn tokens_for(&self, source: &[u32], needed: &[u32], forbidden: &[u32]) -> Vec<u32> {
        let list = |&token: &u32| {
            let [start, end] = [token as usize, token as usize + 1].map(|i| self.starts[i] as usize);
            &self.tokens[start..end]
        };
        let mut tokens: Vec<u32> = source.iter().flat_map(list).chain(&self.always).chain(needed).copied().collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens.retain(|token| !forbidden.contains(token));
        tokens
    }

    /// As a file for a model with these tokenizers.
    ///
    /// # Errors
    /// The numbers do not fit into a file.
    pub fn to_bytes(&self, tokenizers: &Tokenizers) -> Result<Vec<u8>> {
        let bytes = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let parts = [("starts", bytes(&self.starts)), ("tokens", bytes(&self.tokens)), ("always", bytes(&self.always))];
        let failed = |error| Error::failure("the shortlist cannot be written").caused_by(error);
        let view = |bytes| TensorView::new(Dtype::U32, vec![bytes_len(bytes)], bytes).map_err(failed);
        let views = parts.iter().map(|(name, bytes)| Ok((*name, view(bytes)?))).collect::<Result<Vec<_>>>()?;
        // A single entry: several would be written in random order, so equal lists would give different files.
        let about = json!({ TOKENIZERS: tokenizers.digest(), DIGEST: self.digest() });
        let metadata = HashMap::from([(ABOUT.to_owned(), about.to_string())]);
        safetensors::serialize(views, Some(metadata)).map_err(failed)
    }

    /// SHA-256 of the numbers.
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for values in [&self.starts, &self.tokens, &self.always] {
            hash.update((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| hash.update(value.to_le_bytes()));
        }
        format!("{:x}", hash.finalize())
    }

    /// Reads the file of a model with these tokenizers.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or was made for another model.
    pub fn load(path: &Path, tokenizers: &Tokenizers) -> Result<Self> {
        let bytes =
            file::read_at_most(path, WHOLE_FILE_BYTES).map_err(|error| Error::io("read the shortlist", path, error))?;
        let help = "make it again with `mt shortlist`";
        let damaged =
            |why: &str| Error::failure(format!("this is not a shortlist, or it is damaged: {why}")).at(path).help(help);
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| damaged(&error.to_string()))?;
        let about = header.metadata().as_ref().and_then(|metadata| serde_json::from_str(metadata.get(ABOUT)?).ok());
        let about: serde_json::Value = about.unwrap_or_default();
        let of = about[TOKENIZERS].as_str();
        let of = of.ok_or_else(|| damaged("it does not say which tokenizers it is for"))?;
        if of != tokenizers.digest() {
            return Err(Error::failure("this shortlist was made for another tokenizer").at(path).help(help));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(&error.to_string()))?;
        let numbers = |name: &str| -> Result<Vec<u32>> {
            let tensor = file.tensor(name).map_err(|error| damaged(&error.to_string()))?;
            if tensor.dtype() != Dtype::U32 {
                return Err(damaged(&format!("`{name}` is not u32")));
            }
            Ok(tensor.data().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
        };
        let this = Self { starts: numbers("starts")?, tokens: numbers("tokens")?, always: numbers("always")? };
        let [sources, targets] = [&tokenizers.source, &tokenizers.target].map(|tokenizer| tokenizer.vocab_size());
        let ends = [this.starts.first().copied(), this.starts.last().copied()];
        let fits = this.starts.len() == sources + 1
            && this.starts.is_sorted()
            && ends == [Some(0), Some(this.tokens.len() as u32)]
            && this.tokens.iter().chain(&this.always).all(|token| (*token as usize) < targets);
        if about[DIGEST] != this.digest() {
            return Err(damaged("its checksum differs"));
        }
        if !fits {
            return Err(damaged("its numbers do not fit the vocabularies"));
        }
        // Without it, no translation could end, and a sentence might have no token at all.
        if !this.always.contains(&tokenizers.target.eos_id()) {
            return Err(damaged("it does not always allow the end of the sentence"));
        }
        Ok(this)
    }
}

fn bytes_len(bytes: &[u8]) -> usize {
    bytes.len() / size_of::<u32>()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::tokenizer::Tokenizer;

    #[test]
    fn a_sentence_may_use_the_tokens_of_its_tokens() {
        let list = Shortlist::new([vec![], vec![7, 3], vec![3, 9, 4]], vec![2]);
        assert_eq!(list.tokens_for(&[1, 1], &[], &[]), [2, 3, 7]);
        assert_eq!(list.tokens_for(&[1, 2], &[], &[4]), [2, 3, 7, 9]);
        assert_eq!(list.tokens_for(&[1, 2], &[5, 3, 4], &[4]), [2, 3, 5, 7, 9]);
        assert_eq!(list.tokens_for(&[], &[], &[]), [2]);
        assert_eq!(
            Shortlist::new([vec![], vec![1], vec![2, 3], vec![4]], vec![2]).listed(),
            [false, false, true, true]
        );
    }

    #[test]
    fn a_list_always_allows_the_end() {
        let pieces = ["<pad>", "</s>", "<unk>", "a", "b"];
        let pieces = pieces.iter().zip(0..).map(|(piece, id)| ((*piece).to_owned(), id)).collect();
        let tokenizer = Arc::new(Tokenizer::from_words(pieces).unwrap());
        let end = tokenizer.eos_id();
        let tokenizers = Tokenizers { source: tokenizer.clone(), target: tokenizer };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        // The end as a translation of some tokens is not enough.
        let list = |always| Shortlist::new([vec![], vec![end], vec![], vec![3], vec![4]], always);
        std::fs::write(&path, list(vec![3]).to_bytes(&tokenizers).unwrap()).unwrap();
        let error = Shortlist::load(&path, &tokenizers).unwrap_err().to_string();
        assert!(error.contains("does not always allow the end"), "{error}");
        let list = list(vec![3, end]);
        std::fs::write(&path, list.to_bytes(&tokenizers).unwrap()).unwrap();
        assert_eq!(Shortlist::load(&path, &tokenizers).unwrap(), list);
    }
}
