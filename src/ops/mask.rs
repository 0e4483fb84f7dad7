//! Which keys each query sees: padding masks, the causal mask, and both combined.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use crate::choice::choice;

/// Real tokens of every sentence of a batch, shared by the operations of a pass.
pub type Lengths = Arc<Vec<u32>>;

choice! {
    /// What is masked because of padding.
    pub enum PaddingMask {
        /// Padded keys: no query sees them.
        Keys = "keys",
        /// Padded queries too: they see nothing, so attention returns zero for them. Real positions are not affected.
        KeysAndQueries = "keys_and_queries",
    }
}

/// The mask of one attention. A query sees the first keys up to some point: only real ones, and with `causal` none
/// after its own position. A query that sees no key has weights of zero.
#[derive(Clone, Debug)]
pub struct Mask {
    /// Real keys of every sentence, [B].
    pub keys: Lengths,
    /// Real queries of every sentence, [B], if later queries must see nothing.
    pub queries: Option<Lengths>,
    /// Whether query i sees only keys 0..=i.
    pub causal: bool,
}

/// The mask of one sentence.
#[derive(Clone, Copy, Debug)]
pub struct SentenceMask {
    keys: usize,
    queries: usize,
    causal: bool,
}

impl SentenceMask {
    /// How many keys query number `query` sees; they are the first ones.
    #[inline(always)]
    pub fn visible(self, query: usize) -> usize {
        match (query < self.queries, self.causal) {
            (false, _) => 0,
            (true, true) => self.keys.min(query + 1),
            (true, false) => self.keys,
        }
    }
}

impl Mask {
    /// The mask of one sentence of the batch.
    pub fn sentence(&self, sentence: usize) -> SentenceMask {
        SentenceMask {
            keys: self.keys[sentence] as usize,
            queries: self.queries.as_ref().map_or(usize::MAX, |lengths| lengths[sentence] as usize),
            causal: self.causal,
        }
    }

    /// The whole mask as [B, 1, T, S] of `dtype`: 1 where the query sees the key, 0 elsewhere.
    pub fn table(&self, queries: usize, keys: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let batch = self.keys.len();
        let mut table = vec![0f32; batch * queries * keys];
        for (i, row) in table.chunks_exact_mut(keys).enumerate() {
            row[..self.sentence(i / queries).visible(i % queries).min(keys)].fill(1.0);
        }
        Tensor::from_vec(table, (batch, 1, queries, keys), device)?.to_dtype(dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(mask: &Mask, queries: usize, keys: usize) -> Vec<Vec<Vec<u8>>> {
        mask.table(queries, keys, DType::U8, &Device::Cpu).unwrap().squeeze(1).unwrap().to_vec3().unwrap()
    }

    #[test]
    fn padding_masks_keys() {
        let mask = Mask { keys: Arc::new(vec![3, 2]), queries: None, causal: false };
        // For any query: [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]].
        assert_eq!(table(&mask, 1, 5), [[[1, 1, 1, 0, 0]], [[1, 1, 0, 0, 0]]]);
        assert_eq!(table(&mask, 2, 5), [[[1, 1, 1, 0, 0], [1, 1, 1, 0, 0]], [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]]);
    }

    #[test]
    fn the_causal_mask_is_a_triangle() {
        let mask = Mask { keys: Arc::new(vec![5]), queries: None, causal: true };
        assert_eq!(
            table(&mask, 5, 5),
            [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]
        );
    }

    #[test]
    fn both_combined() {
        let keys = Arc::new(vec![4]);
        let mask = Mask { keys: keys.clone(), queries: None, causal: true };
        assert_eq!(
            table(&mask, 5, 5),
            [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0]]]
        );
        let mask = Mask { keys: keys.clone(), queries: Some(keys), causal: true };
        assert_eq!(
            table(&mask, 5, 5),
            [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0]]]
        );
    }

    #[test]
    fn a_padded_query_sees_nothing_where_queries_are_masked() {
        let mask = Mask { keys: Arc::new(vec![3, 1]), queries: Some(Arc::new(vec![1, 2])), causal: false };
        assert_eq!(table(&mask, 2, 3), [[[1, 1, 1], [0, 0, 0]], [[1, 0, 0], [1, 0, 0]]]);
    }
}
