//! The kernels of norms and residual sums on their own, for rows of every width: there is one form for rows that fit
//! into registers, in three sizes, and one for others.

use mt::gpu::launch::{Kernels, NormArgument, Side};
use mt::gpu::queue::{Address, Number, Queue};
use mt::ops::dropout::Dropout;
use mt::ops::norm::NormKind;
use mt::rng::Stream;

use super::error_by_norm;
use crate::common::emulator::{get, guarded_queue, put, to_bf16};

/// More than the warps of all blocks on the emulator, so that some take several.
const ROWS: usize = 70;
pub(crate) const EPS: f64 = 1e-5;

pub(crate) fn rounded(x: f64, number: Number) -> f64 {
    match number {
        Number::F32 => f64::from(x as f32),
        Number::Bf16 => f64::from(f32::from_bits(u32::from(to_bf16(x as f32)) << 16)),
    }
}

pub(crate) fn put_numbers(queue: &dyn Queue, values: &[f64], number: Number) -> Address {
    match number {
        Number::F32 => put(queue, &values.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        Number::Bf16 => put(queue, &values.iter().map(|&x| to_bf16(x as f32)).collect::<Vec<_>>()),
    }
}

pub(crate) fn get_numbers(queue: &dyn Queue, at: Address, count: usize, number: Number) -> Vec<f32> {
    match number {
        Number::F32 => get::<f32>(queue, at, count),
        Number::Bf16 => {
            get::<u16>(queue, at, count).into_iter().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect()
        }
    }
}

/// s, y, ds, dh, and the sums of the gradients of γ, β and the bias.
pub(crate) type Found = [Vec<f64>; 7];

/// Partial sums of the gradients of γ, β and the bias, [blocks, 3·D], added up.
pub(crate) fn sums_of(queue: &dyn Queue, partial: Address, blocks: usize, d: usize) -> [Vec<f32>; 3] {
    let partial = get::<f32>(queue, partial, 3 * d * blocks);
    [0, 1, 2].map(|which| (0..d).map(|j| (0..blocks).map(|block| partial[(block * 3 + which) * d + j]).sum()).collect())
}

/// What the kernels compute, from the definition in float64, of x, h, bias, γ, β, dy and the gradient that is added.
pub(crate) fn by_definition(
    [x, h, bias, gamma, beta, dy, addend]: [&[f64]; 7],
    d: usize,
    kind: NormKind,
    dropout: &Dropout,
    number: Number,
) -> Found {
    let mut found: Found = Default::default();
    let [mut d_gamma, mut d_beta, mut d_bias] = [0; 3].map(|_| vec![0.0; d]);
    let width = d as f64;
    for row in 0..x.len() / d {
        let at = row * d..(row + 1) * d;
        let mask: Vec<f64> = at.clone().map(|i| f64::from(dropout.factor(i))).collect();
        let sum = |j: usize| rounded(x[at.start + j] + mask[j] * (h[at.start + j] + bias[j]), number);
        let s: Vec<f64> = (0..d).map(sum).collect();
        let mean_of = |sum: f64| if kind.is_centred() { sum / width } else { 0.0 };
        let mean = mean_of(s.iter().sum());
        let squares: f64 = s.iter().map(|s| (s - mean).powi(2)).sum();
        let (factor, divisor) = match kind {
            NormKind::Layer | NormKind::Rms => (1.0 / (squares / width + EPS).sqrt(), width),
            // σ's own gradient: (s - μ) / ((D - 1) σ), where 1/(σ + ε) is the factor.
            NormKind::Std => {
                let sigma = (squares / (width - 1.0)).sqrt();
                (1.0 / (sigma + EPS), (width - 1.0) * sigma / (sigma + EPS))
            }
        };
        let z: Vec<f64> = s.iter().map(|s| (s - mean) * factor).collect();
        let t: Vec<f64> = (0..d).map(|j| dy[at.start + j] * gamma[j]).collect();
        let mean_t = mean_of(t.iter().sum());
        let mean_tz = t.iter().zip(&z).map(|(t, z)| t * z).sum::<f64>() / divisor;
        for j in 0..d {
            let ds = factor * (t[j] - mean_t - z[j] * mean_tz) + addend[at.start + j];
            d_gamma[j] += dy[at.start + j] * z[j];
            d_beta[j] += dy[at.start + j];
            d_bias[j] += ds * mask[j];
            for (list, value) in found.iter_mut().zip([s[j], z[j] * gamma[j] + beta[j], ds, ds * mask[j]]) {
                list.push(value);
            }
        }
    }
    [found[4], found[5], found[6]] = [d_gamma, d_beta, d_bias];
    found
}

/// A normalisation with these γ and β, if its kind has one.
pub(crate) fn argument(queue: &dyn Queue, [gamma, beta]: [&[f64]; 2], kind: NormKind) -> NormArgument {
    let both =
        put_numbers(queue, &[gamma, &beta[..if kind.is_centred() { gamma.len() } else { 0 }]].concat(), Number::F32);
    let beta = if kind.is_centred() { both.plus(4 * gamma.len()) } else { Address::NONE };
    NormArgument::new(both, beta, EPS, kind)
}

#[test]
fn norms_are_their_definition() {
    let shared = guarded_queue();
    let queue = &*shared;
    for (d, wide) in [
        (8, true),
        (128, true),
        (256, true),
        (264, true),
        (512, true),
        (520, true),
        (1024, true),
        (1032, true),
        (100, false),
    ] {
        let all = NormKind::ALL.iter().map(|kind| (Number::F32, *kind));
        for (number, kind) in all.chain([(Number::Bf16, NormKind::Layer)]) {
            let mut stream = Stream::new(d as u64, "norm");
            let mut draw = |count: usize, scale: f64, shift: f64| -> Vec<f64> {
                (0..count).map(|_| rounded(shift + scale * stream.normal(), Number::Bf16)).collect()
            };
            let [x, h, dy, addend] = [0; 4].map(|_| draw(ROWS * d, 1.0, 0.3));
            let (bias, gamma) = (draw(d, 0.5, 0.0), draw(d, 0.2, 1.0));
            let beta = draw(d, if kind.is_centred() { 0.5 } else { 0.0 }, 0.0);
            let dropout = Dropout::new(0.2, 11);

            let kernels = Kernels::new(shared.clone(), number, wide);
            let of = |values: &[f64]| put_numbers(queue, values, number);
            let floats = |values: &[f64]| put_numbers(queue, values, Number::F32);
            let room = || queue.allocate(number.bytes(ROWS * d)).unwrap();
            let padded: Vec<u32> = (0..ROWS as u32).collect();
            let side = Side { padded: put(queue, &padded), rows: ROWS, sentences: 1, longest: ROWS, ..Side::NONE };
            let norm = argument(queue, [&gamma, &beta], kind);
            let (s, y, ds, dh) = (room(), room(), room(), room());
            let statistics = queue.allocate(8 * ROWS).unwrap();
            kernels.add_norm([y, s, statistics], [of(&x), of(&h), floats(&bias)], norm, dropout, &side, d).unwrap();
            let blocks = kernels.norm_blocks(ROWS, d);
            let partial = queue.allocate(4 * 3 * d * blocks).unwrap();
            let given = [of(&dy), of(&addend), s, statistics];
            kernels.add_norm_backward([ds, dh, partial], given, norm, dropout, &side, d).unwrap();

            let sums = sums_of(queue, partial, blocks, d);
            let rows = [s, y, ds, dh].map(|at| get_numbers(queue, at, ROWS * d, number));
            let want = by_definition([&x, &h, &bias, &gamma, &beta, &dy, &addend], d, kind, &dropout, number);
            // In bf16 only the rows are rounded, once.
            let of_rows = if number == Number::Bf16 { 3e-3 } else { 2e-6 };
            let bounds = ["s", "y", "ds", "dh"].map(|name| (name, of_rows)).into_iter();
            let bounds = bounds.chain(["dγ", "dβ", "dbias"].map(|name| (name, 2e-6)));
            for (((name, bound), got), want) in bounds.zip(rows.iter().chain(&sums)).zip(&want) {
                let want: Vec<f32> = want.iter().map(|&x| x as f32).collect();
                let error = error_by_norm(got, &want);
                assert!(error < bound, "{name} of {d} numbers, {number:?}, {kind:?}: {error}");
            }
        }
    }
}
