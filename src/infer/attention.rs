//! The attention kernel: one query row against keys and values that need not be contiguous.
//!
//! Short dot products would take longer to add up across the lanes of a vector than to multiply. So the lanes of eight
//! of them are added together; and scores lie in the order in which they are computed, [positions, H], where the
//! softmax of all heads works on whole vectors.

use std::hint::black_box;

use crate::ops::simd::{self, vectorised};

/// Numbers of a vector of AVX2. With sixteen, the compiler gathers and scatters single numbers for AVX-512.
const LANES: usize = 8;
type Lanes = [f32; LANES];

/// The number of heads and their widths: H, K and d_v.
type Shape = [usize; 3];

/// Partial sums of a dot product.
#[inline(always)]
fn lanes_of_dot(a: &[f32], b: &[f32]) -> Lanes {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let ((a, a_last), (b, b_last)) = (a.as_chunks::<2>(), b.as_chunks::<2>());
    // Two vectors at a time, since each addition has to wait for the one before.
    let mut sums = [[0f32; LANES]; 2];
    for (a, b) in a.iter().zip(b) {
        for half in 0..2 {
            for i in 0..LANES {
                sums[half][i] = a[half][i].mul_add(b[half][i], sums[half][i]);
            }
        }
    }
    for (a, b) in a_last.iter().zip(b_last) {
        for i in 0..LANES {
            sums[0][i] = a[i].mul_add(b[i], sums[0][i]);
        }
    }
    if !a_rest.is_empty() {
        let mut padded = [[0f32; LANES]; 2];
        padded[0][..a_rest.len()].copy_from_slice(a_rest);
        padded[1][..b_rest.len()].copy_from_slice(b_rest);
        for i in 0..LANES {
            sums[1][i] = padded[0][i].mul_add(padded[1][i], sums[1][i]);
        }
    }
    std::array::from_fn(|i| sums[0][i] + sums[1][i])
}

/// The sum of the lanes of each vector.
#[inline(always)]
fn sum_each(vectors: &[Lanes; LANES]) -> Lanes {
    let mut turned = [[0f32; LANES]; LANES];
    for (i, vector) in vectors.iter().enumerate() {
        for (lane, x) in vector.iter().enumerate() {
            turned[lane][i] = *x;
        }
    }
    // Through memory, so that what follows is done with whole vectors.
    let of = black_box(turned);
    std::array::from_fn(|i| {
        ((of[0][i] + of[1][i]) + (of[2][i] + of[3][i])) + ((of[4][i] + of[5][i]) + (of[6][i] + of[7][i]))
    })
}

/// Joins the lanes of each head, where lane l belongs to head l mod `heads`, a divisor of the number of lanes. All
/// lanes of a head get the result.
#[inline(always)]
fn join_heads(mut lanes: Lanes, heads: usize, f: impl Fn(f32, f32) -> f32) -> Lanes {
    let join = |lanes: Lanes, distance: usize| std::array::from_fn(|i| f(lanes[i], lanes[(i + distance) % LANES]));
    if heads <= 4 {
        lanes = join(lanes, 4);
    }
    if heads <= 2 {
        lanes = join(lanes, 2);
    }
    if heads <= 1 {
        lanes = join(lanes, 1);
    }
    lanes
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Scaled dot products of the query with every key, and what is added to them: [positions, H], and -∞ up to a whole
/// vector.
#[inline(always)]
fn score(q: &[f32], seen: &[&[f32]], added: &[f32], [heads, d_k, _]: Shape, scores: &mut Vec<f32>) {
    let scale = 1.0 / (d_k as f32).sqrt();
    scores.clear();
    scores.resize((heads * seen.len()).next_multiple_of(LANES), f32::NEG_INFINITY);
    let (blocks, _) = scores.as_chunks_mut::<LANES>();
    let (mut dots, mut count) = ([[0f32; LANES]; LANES], 0);
    for row in seen {
        for (q, key) in q.chunks_exact(d_k).zip(row.chunks_exact(d_k)) {
            dots[count % LANES] = lanes_of_dot(q, key);
            count += 1;
            if count % LANES == 0 {
                let sums = sum_each(&dots);
                blocks[count / LANES - 1] = sums.map(|sum| scale * sum);
            }
        }
    }
    let sums = sum_each(&dots);
    for i in 0..count % LANES {
        blocks[count / LANES][i] = scale * sums[i];
    }
    for (score, x) in scores.iter_mut().zip(added) {
        *score += x;
    }
}

/// The softmax of every head's scores.
#[inline(always)]
fn normalise(scores: &mut [f32], positions: usize, heads: usize) {
    if LANES.is_multiple_of(heads) {
        let (blocks, _) = scores.as_chunks_mut::<LANES>();
        let mut largest = [f32::NEG_INFINITY; LANES];
        for block in blocks.iter() {
            for i in 0..LANES {
                largest[i] = larger(block[i], largest[i]);
            }
        }
        let largest = join_heads(largest, heads, larger);
        let mut total = [0f32; LANES];
        for block in blocks.iter_mut() {
            for i in 0..LANES {
                block[i] = simd::exp(block[i] - largest[i]);
                total[i] += block[i];
            }
        }
        let inverse = join_heads(total, heads, |a, b| a + b).map(|total| 1.0 / total);
        for block in blocks {
            for i in 0..LANES {
                block[i] *= inverse[i];
            }
        }
        return;
    }
    let scores = &mut scores[..positions * heads];
    let mut of_head = vec![f32::NEG_INFINITY; heads];
    for row in scores.chunks_exact(heads) {
        of_head.iter_mut().zip(row).for_each(|(largest, score)| *largest = larger(*score, *largest));
    }
    for row in scores.chunks_exact_mut(heads) {
        row.iter_mut().zip(&of_head).for_each(|(score, largest)| *score = simd::exp(*score - largest));
    }
    of_head.fill(0.0);
    for row in scores.chunks_exact(heads) {
        of_head.iter_mut().zip(row).for_each(|(total, score)| *total += score);
    }
    of_head.iter_mut().for_each(|total| *total = 1.0 / *total);
    for row in scores.chunks_exact_mut(heads) {
        row.iter_mut().zip(&of_head).for_each(|(score, inverse)| *score *= inverse);
    }
}

/// The sums of `V` vectors of values from `column` on, weighted. d_v is a multiple of the lanes.
#[inline(always)]
fn weighted<const V: usize>(
    weights: &[f32],
    seen: &[&[f32]],
    [heads, d_k, d_v]: Shape,
    column: usize,
    out: &mut [f32],
) {
    let heads_of: [usize; V] = std::array::from_fn(|i| (column + i * LANES) / d_v);
    let mut sums = [[0f32; LANES]; V];
    for (row, weights) in seen.iter().zip(weights.chunks_exact(heads)) {
        let (values, _) = row[heads * d_k + column..][..V * LANES].as_chunks::<LANES>();
        for i in 0..V {
            let weight = weights[heads_of[i]];
            for lane in 0..LANES {
                sums[i][lane] = weight.mul_add(values[i][lane], sums[i][lane]);
            }
        }
    }
    out.copy_from_slice(sums.as_flattened());
}

vectorised! {
    /// One query row against the keys and values of the positions it sees, at least one: each a row of H·K keys, then
    /// H·d_v values. `added` is added to the scores, [positions, H], or empty. `scores` is scratch.
    pub(super) fn attend_row(
        q: &[f32], seen: &[&[f32]], added: &[f32], shape: Shape, scores: &mut Vec<f32>, out: &mut [f32],
    ) {
        /// Vectors that registers hold at once.
        const MOST: usize = 8;
        let [heads, d_k, d_v] = shape;
        score(q, seen, added, shape, scores);
        normalise(scores, seen.len(), heads);
        if d_v.is_multiple_of(LANES) {
            let many = out.len() / (MOST * LANES) * MOST * LANES;
            for column in (0..many).step_by(MOST * LANES) {
                weighted::<MOST>(scores, seen, shape, column, &mut out[column..][..MOST * LANES]);
            }
            for column in (many..out.len()).step_by(LANES) {
                weighted::<1>(scores, seen, shape, column, &mut out[column..][..LANES]);
            }
            return;
        }
        out.fill(0.0);
        for (row, weights) in seen.iter().zip(scores.chunks_exact(heads)) {
            let values = row[heads * d_k..].chunks_exact(d_v);
            for ((out, weight), values) in out.chunks_exact_mut(d_v).zip(weights).zip(values) {
                for (out, value) in out.iter_mut().zip(values) {
                    *out = weight.mul_add(*value, *out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    /// From -1 to 1.
    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut stream = Stream::new(seed, "test");
        (0..count).map(|_| stream.uniform(-1.0, 1.0) as f32).collect()
    }

    /// Attention by its definition, in float64.
    fn definition(q: &[f32], seen: &[&[f32]], added: &[f32], [heads, d_k, d_v]: Shape) -> Vec<f64> {
        let mut out = Vec::new();
        for head in 0..heads {
            let dot = |row: &&[f32]| -> f64 {
                (0..d_k).map(|i| f64::from(q[head * d_k + i]) * f64::from(row[head * d_k + i])).sum()
            };
            let of_distance = |position: usize| added.get(position * heads + head).map_or(0.0, |x| f64::from(*x));
            let dots = seen.iter().map(|row| dot(row) / (d_k as f64).sqrt());
            let scores: Vec<f64> = dots.enumerate().map(|(position, dot)| dot + of_distance(position)).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for j in 0..d_v {
                let value = |row: &&[f32]| f64::from(row[heads * d_k + head * d_v + j]);
                out.push(weights.iter().zip(seen).map(|(weight, row)| weight / total * value(row)).sum());
            }
        }
        out
    }

    #[test]
    fn rows_are_those_of_the_definition() {
        let heads_and_widths = [
            [1, 64, 64],
            [2, 12, 20],
            [3, 5, 7],
            [4, 32, 32],
            [4, 8, 24],
            [6, 64, 16],
            [8, 64, 64],
            [12, 9, 8],
            [16, 64, 64],
        ];
        for shape in heads_and_widths {
            let [heads, d_k, d_v] = shape;
            for positions in [1, 2, 3, 7, 8, 17, 40] {
                let width = heads * (d_k + d_v);
                let (q, rows) = (numbers(heads * d_k, 1), numbers(positions * width, 2));
                let q: Vec<f32> = q.iter().map(|x| 4.0 * x).collect();
                let seen: Vec<&[f32]> = rows.chunks_exact(width).collect();
                for added in [Vec::new(), numbers(positions * heads, 3)] {
                    let (mut scores, mut out) = (vec![f32::NAN; 3], vec![f32::NAN; heads * d_v]);
                    attend_row(&q, &seen, &added, shape, &mut scores, &mut out);
                    for (got, want) in out.iter().zip(definition(&q, &seen, &added, shape)) {
                        let is_near = (f64::from(*got) - want).abs() < 2e-6;
                        assert!(is_near, "{shape:?}, {positions} positions: {got} {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn nan_stays_in_its_head() {
        for heads in [2, 3] {
            let (q, mut row) = (numbers(heads * 8, 1), numbers(heads * 16, 2));
            let other = numbers(heads * 16, 3);
            row[8] = f32::NAN;
            let mut out = vec![0f32; heads * 8];
            attend_row(&q, &[&other, &row], &[], [heads, 8, 8], &mut Vec::new(), &mut out);
            for (head, out) in out.chunks_exact(8).enumerate() {
                assert!(out.iter().all(|x| x.is_nan() == (head == 1)), "{out:?}");
            }
        }
    }
}
