//! The loss kernels on their own, for vocabularies of every size.

use mt::gpu::launch::{Kernels, NO_LABEL};
use mt::gpu::queue::{Address, Number};
use mt::rng::Stream;

use crate::common::emulator::{device, get, put, to_bf16};

const SMOOTHING: f32 = 0.1;

/// Smoothed loss times weight, negative log-likelihood, and gradient of the former for a row, by definition, over all
/// tokens but one.
fn by_definition(x: &[f64], label: usize, weight: f64, left_out: Option<u32>) -> (f64, f64, Vec<f64>) {
    if let Some(token) = left_out.map(|token| token as usize) {
        let others = [&x[..token], &x[token + 1..]].concat();
        let (smoothed, nll, mut gradient) = by_definition(&others, label - usize::from(label > token), weight, None);
        gradient.insert(token, 0.0);
        return (smoothed, nll, gradient);
    }
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = largest + x.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
    let (smoothing, v) = (f64::from(SMOOTHING), x.len() as f64);
    let nll = log_sum - x[label];
    let uniform: f64 = x.iter().map(|x| log_sum - x).sum::<f64>() / v;
    let target = |j: usize| smoothing / v + if j == label { 1.0 - smoothing } else { 0.0 };
    let gradient = x.iter().enumerate().map(|(j, x)| weight * ((x - log_sum).exp() - target(j))).collect();
    (weight * ((1.0 - smoothing) * nll + smoothing * uniform), nll, gradient)
}

/// Vocabularies that need one access by a few threads, that need several by all, that are no multiple of eight, the
/// largest that half of the warps keep in registers as bf16 and one more, and one that does not fit there. In one row,
/// logits are hundreds away from zero. A token that is left out has the largest logit of all; the last one may be alone
/// in its thread.
#[test]
fn the_smoothed_loss_is_its_definition() {
    let queue = device().1;
    for number in [Number::F32, Number::Bf16] {
        let cases = [
            (5usize, None),
            (61, Some(0)),
            (9001, Some(9000)),
            (16_384, None),
            (16_385, Some(16_384)),
            (16_385, None),
            (33_000, Some(7)),
            (33_000, None),
        ];
        let weights = [None, Some([0.5f32, 3.0, 0.0]), None, Some([2.0, 1.0, 0.25])];
        for ((v, left_out), weights) in cases.into_iter().zip(weights.into_iter().cycle()) {
            let stride = v.next_multiple_of(8);
            let labels = [v as u32 - 2, NO_LABEL, 3];
            let mut stream = Stream::new(v as u64, "logits");
            let mut bits: Vec<u16> = (0..3 * stride)
                .map(|i| to_bf16(3.0 * stream.normal() as f32 + if i < stride { 300.0 } else { 0.0 }))
                .collect();
            if let Some(token) = left_out {
                (0..3).for_each(|row| bits[row * stride + token as usize] = to_bf16(1000.0));
            }
            let exact: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect();
            let logits = match number {
                Number::F32 => put(&*queue, &exact),
                Number::Bf16 => put(&*queue, &bits),
            };
            let losses = queue.allocate(4 * 6).unwrap();
            let kernels = Kernels::new(queue.clone(), number, true);
            let at = [
                logits,
                losses,
                put(&*queue, &labels),
                weights.map_or(Address::NONE, |weights| put(&*queue, &weights)),
            ];
            kernels.smoothed_loss(at, SMOOTHING, [3, v, stride], left_out, false).unwrap();
            let evaluated = get::<f32>(&*queue, losses, 6);
            kernels.smoothed_loss(at, SMOOTHING, [3, v, stride], left_out, true).unwrap();
            let losses = get::<f32>(&*queue, losses, 6);
            assert_eq!(losses, evaluated);
            let gradients: Vec<f32> = match number {
                Number::F32 => get::<f32>(&*queue, logits, 3 * stride),
                Number::Bf16 => {
                    let bits = get::<u16>(&*queue, logits, 3 * stride);
                    bits.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
                }
            };
            for (row, &label) in labels.iter().enumerate() {
                let got = &gradients[row * stride..][..stride];
                assert!(got[v..].iter().all(|&g| g == 0.0), "v {v} without {left_out:?}, row {row}");
                if label == NO_LABEL {
                    assert!(
                        losses[2 * row..][..2].iter().chain(got).all(|&x| x == 0.0),
                        "v {v} without {left_out:?}, row {row}"
                    );
                    continue;
                }
                let x: Vec<f64> = exact[row * stride..][..v].iter().map(|&x| f64::from(x)).collect();
                let weight = weights.map_or(1.0, |weights| f64::from(weights[row]));
                let (smoothed, nll, want) = by_definition(&x, label as usize, weight, left_out);
                let near = |got: f32, want: f64| (f64::from(got) - want).abs() < 1e-5 * want.abs().max(1.0);
                assert!(
                    near(losses[2 * row], smoothed) && near(losses[2 * row + 1], nll),
                    "v {v} without {left_out:?}, row {row}"
                );
                // A gradient stored as bf16 has eight significant bits.
                let most = if number == Number::Bf16 { 4e-3 } else { 1e-5 };
                let scale = want.iter().fold(0.0, |most: f64, g| most.max(g.abs()));
                let off = got.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
                assert!(off <= most * scale, "{number:?}, v {v} without {left_out:?}, row {row}: {off} of {scale}");
            }
        }
    }
}

/// With R-Drop: ½·(CE₁ + CE₂) + α/4·(KL(p‖q) + KL(q‖p)), and its gradients for both rows of logits.
fn pair_by_definition(
    rows: [&[f64]; 2],
    label: usize,
    weight: f64,
    alpha: f64,
    left_out: Option<u32>,
) -> (f64, f64, [Vec<f64>; 2]) {
    let [first, second] = rows.map(|row| by_definition(row, label, 0.5 * weight, left_out));
    let logarithms = rows.map(|row| {
        let is_output = |(token, _): &(usize, &f64)| left_out != Some(*token as u32);
        let outputs = || row.iter().enumerate().filter(is_output).map(|(_, x)| *x);
        let largest = outputs().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = largest + outputs().map(|x| (x - largest).exp()).sum::<f64>().ln();
        row.iter().map(|x| x - log_sum).collect::<Vec<_>>()
    });
    let tokens = || (0..rows[0].len()).filter(|token| left_out != Some(*token as u32));
    let divergence = |p: &[f64], q: &[f64]| tokens().map(|i| p[i].exp() * (p[i] - q[i])).sum::<f64>();
    let [p, q] = [&logarithms[0], &logarithms[1]];
    let (forward, back) = (divergence(p, q), divergence(q, p));
    let mut gradients = [first.2, second.2];
    for i in tokens() {
        let (a, b, d, pull) = (p[i].exp(), q[i].exp(), p[i] - q[i], weight * alpha / 4.0);
        gradients[0][i] += pull * (a * (d - forward) + a - b);
        gradients[1][i] += pull * (b * (-d - back) + b - a);
    }
    let loss = first.0 + second.0 + weight * alpha / 4.0 * (forward + back);
    (loss, 0.5 * (first.1 + second.1), gradients)
}

#[test]
fn the_loss_of_two_passes_is_its_definition() {
    const ALPHA: f32 = 5.0;
    const TOKENS: usize = 3;
    let queue = device().1;
    for number in [Number::F32, Number::Bf16] {
        for (v, left_out) in [(5usize, None), (61, Some(0)), (9001, Some(9000)), (33_000, None)] {
            let (stride, weights) = (v.next_multiple_of(8), [0.5f32, 3.0, 1.0]);
            let labels = [v as u32 - 2, NO_LABEL, 3];
            let mut stream = Stream::new(v as u64, "logits");
            let mut bits: Vec<u16> = (0..2 * TOKENS * stride)
                .map(|i| to_bf16(2.0 * stream.normal() as f32 + if i < stride { 300.0 } else { 0.0 }))
                .collect();
            if let Some(token) = left_out {
                (0..2 * TOKENS).for_each(|row| bits[row * stride + token as usize] = to_bf16(1000.0));
            }
            let float = |bits: &u16| f32::from_bits(u32::from(*bits) << 16);
            let exact: Vec<f32> = bits.iter().map(float).collect();
            let logits = match number {
                Number::F32 => put(&*queue, &exact),
                Number::Bf16 => put(&*queue, &bits),
            };
            let losses = queue.allocate(8 * TOKENS).unwrap();
            let at = [logits, losses, put(&*queue, &labels), put(&*queue, &weights)];
            let kernels = Kernels::new(queue.clone(), number, true);
            let sizes = [TOKENS, v, stride];
            kernels.paired_loss(at, [SMOOTHING, ALPHA], sizes, left_out, false).unwrap();
            let evaluated = get::<f32>(&*queue, losses, 2 * TOKENS);
            kernels.paired_loss(at, [SMOOTHING, ALPHA], sizes, left_out, true).unwrap();
            let losses = get::<f32>(&*queue, losses, 2 * TOKENS);
            assert_eq!(losses, evaluated);
            let gradients: Vec<f32> = match number {
                Number::F32 => get::<f32>(&*queue, logits, 2 * TOKENS * stride),
                Number::Bf16 => get::<u16>(&*queue, logits, 2 * TOKENS * stride).iter().map(float).collect(),
            };
            for (token, &label) in labels.iter().enumerate() {
                let rows = [token, TOKENS + token];
                let got = rows.map(|row| &gradients[row * stride..][..stride]);
                let of_token = &losses[2 * token..][..2];
                if label == NO_LABEL {
                    assert!(got.concat().iter().chain(of_token).all(|&x| x == 0.0), "v {v}");
                    continue;
                }
                let x = rows.map(|row| exact[row * stride..][..v].iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
                let weight = f64::from(weights[token]);
                let (loss, nll, want) =
                    pair_by_definition([&x[0], &x[1]], label as usize, weight, f64::from(ALPHA), left_out);
                let near = |got: f32, want: f64| (f64::from(got) - want).abs() < 2e-5 * want.abs().max(1.0);
                assert!(near(of_token[0], loss) && near(of_token[1], nll), "v {v}: {of_token:?}, not {loss} {nll}");
                let most = if number == Number::Bf16 { 4e-3 } else { 2e-5 };
                for (got, want) in got.iter().zip(&want) {
                    assert!(got[v..].iter().all(|&g| g == 0.0), "v {v}");
                    let scale = want.iter().fold(0.0, |most: f64, g| most.max(g.abs()));
                    let off = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
                    assert!(off <= most * scale, "{number:?}, v {v} without {left_out:?}: {off} of {scale}");
                }
            }
        }
    }
}

#[test]
fn losses_of_any_number_of_rows_add_up() {
    let queue = device().1;
    let kernels = Kernels::new(queue.clone(), Number::F32, true);
    for rows in [1usize, 1023, 5000] {
        let mut stream = Stream::new(rows as u64, "losses");
        let losses: Vec<f32> = (0..2 * rows).map(|_| stream.normal() as f32).collect();
        let sums = put(&*queue, &[10f64, 20.0]);
        kernels.add_losses(sums, put(&*queue, &losses), rows).unwrap();
        let got = get::<f64>(&*queue, sums, 2);
        for (column, before) in [10.0, 20.0].into_iter().enumerate() {
            let sum: f64 = losses.iter().skip(column).step_by(2).map(|&loss| f64::from(loss)).sum();
            assert!((got[column] - before - sum).abs() < 1e-9, "{rows} rows");
        }
    }
}
