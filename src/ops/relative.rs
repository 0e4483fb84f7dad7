//! Relative positions (Raffel et al. 2020, "T5"): to the score of a query and a key, a parameter is added that depends
//! on the head and on how far the key is from the query. Distances that are close to each other share one: a bucket has
//! more of them the farther they are.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::memory::with_slice;
use super::params::Param;
use super::simd::vectorised;

/// The bucket of each distance.
#[derive(Clone, Debug)]
pub struct Buckets {
    /// From the distance of the last position to the first one to the reverse.
    of: Arc<Vec<u32>>,
    positions: usize,
}

impl Buckets {
    /// For positions below `positions`. Distances of `far` and more share one bucket. With `both`, keys behind the
    /// query have half of the `buckets`; otherwise all are for those before it.
    pub fn new(positions: usize, buckets: usize, far: usize, both: bool) -> Self {
        let longest = positions.saturating_sub(1) as i64;
        Self { of: Arc::new((-longest..=longest).map(|to| bucket(to, buckets, far, both)).collect()), positions }
    }

    /// The rows of a table [buckets, H] by distance: [2·positions − 1, H].
    pub fn rows_of(&self, table: &[f32], heads: usize) -> Vec<f32> {
        self.of.iter().flat_map(|&row| &table[row as usize * heads..][..heads]).copied().collect()
    }

    /// That of each distance, from that of the last position to the first one to the reverse.
    pub fn all(&self) -> &[u32] {
        &self.of
    }

    /// The bucket of a key and a query.
    fn of(&self, query: usize, key: usize) -> u32 {
        self.of[key + self.positions - 1 - query]
    }

    /// Those of the distances between `length` positions, in ascending order: 2·length − 1.
    fn between(&self, length: usize) -> &[u32] {
        &self.of[self.positions - length..][..2 * length - 1]
    }
}

/// The bucket of a key that is `to` positions behind the query, computed in float32 as in `transformers`.
fn bucket(to: i64, buckets: usize, far: usize, both: bool) -> u32 {
    let (first, buckets) = match both {
        true if to > 0 => (buckets / 2, buckets / 2),
        true => (0, buckets / 2),
        false => (0, buckets),
    };
    let distance = if both { to.unsigned_abs() as usize } else { (-to).max(0) as usize };
    let exact = buckets / 2;
    let inner = if distance < exact {
        distance
    } else {
        let share = (distance as f32 / exact as f32).ln() / (far as f64 / exact as f64).ln() as f32;
        (exact + (share * (buckets - exact) as f32) as usize).min(buckets - 1)
    };
    (first + inner) as u32
}

/// What a stack's self-attention adds to its scores.
#[derive(Clone, Debug)]
pub struct Relative {
    /// [buckets, H].
    pub table: Param,
    /// Which row is for which distance.
    pub buckets: Buckets,
}

impl Relative {
    fn heads(&self) -> usize {
        self.table.dims()[1]
    }

    /// What is added, divided by `scale`, for each head and each distance between `length` positions:
    /// [H, 2·length − 1] (CPU).
    pub fn by_distance(&self, length: usize, scale: f32) -> Result<Vec<f32>> {
        let heads = self.heads();
        with_slice(self.table.value(), |table| {
            let of_head =
                |head| self.buckets.between(length).iter().map(move |&row| table[row as usize * heads + head]);
            Ok((0..heads).flat_map(of_head).map(|x| x / scale).collect())
        })
    }

    /// Adds the gradient of [`Relative::by_distance`] to that of the table.
    pub fn add_gradient(&self, by_distance: &[f32], length: usize, scale: f32) -> Result<()> {
        let (heads, buckets) = (self.heads(), self.buckets.between(length));
        let mut gradient = vec![0f32; self.table.dims().iter().product()];
        for (head, sums) in by_distance.chunks_exact(buckets.len()).enumerate() {
            for (&row, sum) in buckets.iter().zip(sums) {
                gradient[row as usize * heads + head] += sum / scale;
            }
        }
        self.table.add_gradient_slice(&gradient)
    }

    /// What is added to the scores of `queries` queries from position `first` on, in plain Candle operations:
    /// [1, H, queries, keys].
    pub fn reference(&self, first: usize, queries: usize, keys: usize, training: bool) -> Result<Tensor> {
        let table = self.table.reference(training)?;
        let row = |query| (0..keys).map(move |key| self.buckets.of(query, key));
        let rows: Vec<u32> = (first..first + queries).flat_map(row).collect();
        let rows = Tensor::from_vec(rows, queries * keys, table.device())?;
        let of_pairs = table.index_select(&rows, 0)?.reshape((queries, keys, self.heads()))?;
        of_pairs.permute((2, 0, 1))?.unsqueeze(0)?.contiguous()
    }
}

vectorised! {
    /// Adds to scores [length, width], of which `length` columns are real, what one head adds for each distance.
    pub fn add_by_distance(scores: &mut [f32], width: usize, length: usize, by_distance: &[f32]) {
        for (query, row) in scores.chunks_exact_mut(width).enumerate() {
            for (score, x) in row.iter_mut().zip(&by_distance[length - 1 - query..][..length]) {
                *score += x;
            }
        }
    }

    /// Backward of [`add_by_distance`]: adds the gradients of the scores of each distance to `sums`.
    pub fn sum_by_distance(gradient: &[f32], width: usize, length: usize, sums: &mut [f32]) {
        for (query, row) in gradient.chunks_exact(width).enumerate() {
            for (sum, g) in sums[length - 1 - query..][..length].iter_mut().zip(row) {
                *sum += g;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `T5Attention._relative_position_bucket` of transformers gives.
    #[test]
    fn distances_have_the_buckets_of_t5() {
        let of = |both: bool, distances: &[i64]| -> Vec<u32> {
            distances.iter().map(|&to| bucket(to, 32, 128, both)).collect()
        };
        assert_eq!(
            of(true, &[-1000, -128, -64, -33, -32, -16, -15, -9, -8, -7, -1, 0, 1, 7, 8, 15, 16, 32, 127, 128]),
            [15, 15, 14, 12, 12, 10, 9, 8, 8, 7, 1, 0, 17, 23, 24, 25, 26, 28, 31, 31]
        );
        assert_eq!(of(false, &[5, 0, -1, -15, -16, -20, -31, -64, -127, -128]), [0, 0, 1, 15, 16, 17, 21, 26, 31, 31]);
    }

    #[test]
    fn distances_between_few_positions_are_the_middle_of_all() {
        let all = Buckets::new(50, 8, 20, true);
        for length in [1, 2, 7, 50] {
            let between = all.between(length);
            assert_eq!(between.len(), 2 * length - 1);
            for query in 0..length {
                for key in 0..length {
                    assert_eq!(between[key + length - 1 - query], all.of(query, key));
                }
            }
        }
    }
}
