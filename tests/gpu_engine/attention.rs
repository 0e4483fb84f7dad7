//! The attention kernels, for heads of every width.

use std::sync::Arc;

use mt::gpu::launch::{AttentionSizes, Heads, Kernels, Side};
use mt::gpu::queue::{Address, Number, Queue};
use mt::ops::dropout::Dropout;
use mt::rng::Stream;

use super::error_by_norm;
use crate::common::emulator::{get, guarded_queue, put, to_bf16};

/// Packed sentences on the device: each begins where the one before ends.
fn side(queue: &dyn Queue, lengths: &[u32]) -> Side {
    let mut starts = vec![0u32];
    lengths.iter().for_each(|length| starts.push(starts[starts.len() - 1] + length));
    let (rows, none) = (starts[lengths.len()] as usize, put(queue, &[0u32]));
    Side {
        ids: none,
        places: none,
        padded: none,
        starts: put(queue, &starts),
        rows,
        sentences: lengths.len(),
        longest: lengths.iter().copied().max().unwrap() as usize,
    }
}

const HEADS: usize = 2;

/// What is compared.
const NAMES: [&str; 5] = ["out", "dq", "dk", "dv", "the gradients by distance"];

/// The longest distance, and what is added to products for each head and distance: with relative
/// positions.
fn by_distance(keys: &[u32], d: usize) -> (usize, Vec<f32>) {
    // Farther than any two tokens are.
    let reach = keys.iter().max().unwrap() + 2;
    let mut stream = Stream::new(d as u64, "distances");
    let count = HEADS * (2 * reach as usize + 1);
    (reach as usize, (0..count).map(|_| (stream.normal() * (d as f64).sqrt()) as f32).collect())
}

/// Output and gradients of attention over packed rows: out, dq, dk, dv, and with relative positions the sums by head
/// and distance.
pub(crate) fn attend(
    queue: &Arc<dyn Queue>,
    number: Number,
    [queries, keys]: [&[u32]; 2],
    d: usize,
    causal: bool,
    p: f64,
    is_relative: bool,
) -> [Vec<f32>; 5] {
    let (reach, added) = by_distance(keys, d);
    let kernels = Kernels::new(queue.clone(), number, d.is_multiple_of(8));
    let (queries, keys) = (side(&**queue, queries), side(&**queue, keys));
    let width = HEADS * d;
    let mut stream = Stream::new(d as u64, "attention");
    let mut draw = |rows: usize| -> Address {
        // Rounded to bf16, so that both types start from the same numbers.
        let values: Vec<u16> = (0..rows * width).map(|_| to_bf16(stream.normal() as f32)).collect();
        match number {
            Number::Bf16 => put(&**queue, &values),
            Number::F32 => {
                let values: Vec<f32> = values.iter().map(|&v| f32::from_bits(u32::from(v) << 16)).collect();
                put(&**queue, &values)
            }
        }
    };
    let heads = Heads { q: draw(queries.rows), k: draw(keys.rows), v: draw(keys.rows) };
    let dout = draw(queries.rows);
    let numbers = |rows: usize| queue.allocate(number.bytes(rows * width)).unwrap();
    let (out, gradients) =
        (numbers(queries.rows), Heads { q: numbers(queries.rows), k: numbers(keys.rows), v: numbers(keys.rows) });
    let [log_sums, deltas] = [0; 2].map(|_| queue.allocate(4 * HEADS * queries.rows).unwrap());
    let sizes = AttentionSizes {
        queries,
        keys,
        q_stride: width,
        k_stride: width,
        heads: HEADS,
        d_k: d,
        d_v: d,
        causal,
        dropout: Dropout::new(p, 7),
        by_distance: if is_relative { put(&**queue, &added) } else { Address::NONE },
        reach,
    };
    kernels.attend([out, log_sums], heads, &sizes).unwrap();
    kernels.attend_backward(gradients, [dout, out, log_sums, deltas], heads, &sizes).unwrap();
    let mut sums = vec![0f32; if is_relative { added.len() } else { 0 }];
    if is_relative {
        let at = put(&**queue, &sums);
        kernels.sum_by_distance(at, [dout, out, log_sums], heads, &sizes).unwrap();
        sums = get::<f32>(&**queue, at, sums.len());
    }
    let all = [(out, queries.rows), (gradients.q, queries.rows), (gradients.k, keys.rows), (gradients.v, keys.rows)]
        .map(|(at, rows)| match number {
            Number::F32 => get::<f32>(&**queue, at, rows * width),
            Number::Bf16 => {
                let values = get::<u16>(&**queue, at, rows * width);
                values.iter().map(|&v| f32::from_bits(u32::from(v) << 16)).collect()
            }
        });
    let [out, dq, dk, dv] = all;
    [out, dq, dk, dv, sums]
}

/// What `attend` computes without dropout, straight from the definition, in float64.
fn attention_by_definition([queries, keys]: [&[u32]; 2], d: usize, causal: bool, is_relative: bool) -> [Vec<f32>; 5] {
    let (reach, added) = by_distance(keys, d);
    let mut sums = vec![0.0; if is_relative { added.len() } else { 0 }];
    let (width, scale) = (HEADS * d, 1.0 / (d as f64).sqrt());
    let mut stream = Stream::new(d as u64, "attention");
    let mut draw = |lengths: &[u32]| -> Vec<f64> {
        let count = lengths.iter().sum::<u32>() as usize * width;
        (0..count).map(|_| f64::from(f32::from_bits(u32::from(to_bf16(stream.normal() as f32)) << 16))).collect()
    };
    let (q, k, v, dout) = (draw(queries), draw(keys), draw(keys), draw(queries));
    let [mut out, mut dq, mut dk, mut dv] = [&q, &q, &k, &v].map(|like| vec![0.0; like.len()]);
    let (mut first_query, mut first_key) = (0, 0);
    for (&queries, &keys) in queries.iter().zip(keys) {
        let (queries, keys) = (queries as usize, keys as usize);
        for (head, t) in (0..HEADS).flat_map(|head| (0..queries).map(move |t| (head, t))) {
            let row = |first: usize, t: usize| (first + t) * width + head * d;
            let dot = |a: &[f64], i: usize, b: &[f64], j: usize| -> f64 { (0..d).map(|c| a[i + c] * b[j + c]).sum() };
            let (at, visible) = (row(first_query, t), if causal { keys.min(t + 1) } else { keys });
            let distance = |s: usize| head * (2 * reach + 1) + reach + s - t;
            let added = |s| if is_relative { f64::from(added[distance(s)]) } else { 0.0 };
            let score = |s: usize| scale * (dot(&q, at, &k, row(first_key, s)) + added(s));
            let weights: Vec<f64> = (0..visible).map(|s| score(s).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for (s, weight) in weights.iter().enumerate() {
                (0..d).for_each(|c| out[at + c] += weight / sum * v[row(first_key, s) + c]);
            }
            let delta = dot(&dout, at, &out, at);
            for (s, weight) in weights.iter().enumerate() {
                let (p, of_key) = (weight / sum, row(first_key, s));
                let dx = p * (dot(&dout, at, &v, of_key) - delta);
                if is_relative {
                    sums[distance(s)] += dx;
                }
                let dx = scale * dx;
                for c in 0..d {
                    dq[at + c] += dx * k[of_key + c];
                    dk[of_key + c] += dx * q[at + c];
                    dv[of_key + c] += p * dout[at + c];
                }
            }
        }
        (first_query, first_key) = (first_query + queries, first_key + keys);
    }
    [out, dq, dk, dv, sums].map(|values| values.into_iter().map(|value| value as f32).collect())
}

/// The general kernels, in each of their forms, against the definition.
#[test]
fn attention_is_its_definition() {
    let absolute = [(6, true), (40, false), (64, true), (100, false), (128, true), (136, true), (512, false)];
    let absolute = absolute.map(|(d, causal)| (d, causal, false));
    let relative = [(6, true, true), (40, false, true), (100, true, true), (136, false, true)];
    for (d, causal, is_relative) in absolute.into_iter().chain(relative) {
        let queries = [1, 37, 4];
        let keys = if causal || is_relative { queries } else { [5, 33, 32] };
        let got = attend(&guarded_queue(), Number::F32, [&queries, &keys], d, causal, 0.0, is_relative);
        let want = attention_by_definition([&queries, &keys], d, causal, is_relative);
        for ((name, got), want) in NAMES.iter().zip(&got).zip(&want).filter(|(_, want)| !want.is_empty()) {
            // Sums of up to 512 products, and of 37 rows, in float32.
            let error = error_by_norm(got, want);
            assert!(error < 1e-6, "{name} of heads of {d}, causal {causal}, relative {is_relative}: {error}");
        }
    }
}

/// The tensor-core kernels against the general ones, which are compared with the processor's elsewhere.
#[test]
fn attention_in_tiles_is_attention() {
    // Sentences that fit into shared memory, and with one that does not.
    let fitting = [(16, true, 0.0), (32, false, 0.2), (64, true, 0.1), (128, false, 0.0), (64, false, 0.0)];
    let [fitting, longer] = [&fitting[..], &[(32, true, 0.1), (64, false, 0.0), (128, true, 0.0)]];
    let absolute = fitting.iter().map(|of| (of, 70, false)).chain(longer.iter().map(|of| (of, 150, false)));
    let relative = fitting[..4].iter().map(|of| (of, 70, true)).chain(longer.iter().map(|of| (of, 150, true)));
    for (&(d, causal, p), longest, is_relative) in absolute.chain(relative) {
        let queries = [1, 16, 17, 33, longest, 2];
        let keys = if causal || is_relative { queries } else { [5, 31, 32, 1, 64, longest + 20] };
        let [want, got] = [Number::F32, Number::Bf16]
            .map(|number| attend(&guarded_queue(), number, [&queries, &keys], d, causal, p, is_relative));
        let what = format!("of heads of {d}, causal {causal}, dropout {p}, {longest} tokens, relative {is_relative}");
        for ((name, got), want) in NAMES.iter().zip(&got).zip(&want).filter(|(_, want)| !want.is_empty()) {
            let error = error_by_norm(got, want);
            assert!(error < 1e-2, "{name} {what}: {error}");
        }
    }
}

/// One head as wide as a base model, as in the paper's table 3 (A): a lane holds 16 of its numbers.
#[test]
fn one_wide_head() {
    let [want, got] = [Number::F32, Number::Bf16]
        .map(|number| attend(&guarded_queue(), number, [&[3, 40], &[33, 7]], 512, false, 0.1, false));
    for (got, want) in got.iter().zip(&want).take(4) {
        assert!(error_by_norm(got, want) < 1e-2);
    }
}
