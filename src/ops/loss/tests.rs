use candle_core::Device;

use super::*;

/// Losses of one row and, beside them, the gradient of the smoothed one.
fn row(logits: &[f32], label: usize, smoothing: f32) -> (f32, f32, Vec<f32>) {
    let mut gradient = logits.to_vec();
    let (smoothed, nll) = row_loss(&mut gradient, label, smoothing, 1.0, None, true);
    (smoothed, nll, gradient)
}

fn near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}, not {want:?}");
}

const SOFTMAX: [f32; 3] = [0.090_030_57, 0.244_728_47, 0.665_240_96];
const CROSS_ENTROPY: [f32; 3] = [2.407_606, 1.407_606, 0.407_605_96];

#[test]
fn cross_entropy_of_one_two_three() {
    for label in 0..3 {
        let (smoothed, nll, gradient) = row(&[1.0, 2.0, 3.0], label, 0.0);
        near(&[smoothed, nll], &[CROSS_ENTROPY[label]; 2]);
        let mut want = SOFTMAX;
        want[label] -= 1.0;
        near(&gradient, &want);
    }
    // Far beyond the range of e^x, and with all logits equal.
    near(&row(&[1000.0, 0.0], 1, 0.0).2, &[1.0, -1.0]);
    near(&[row(&[-5e4; 4], 2, 0.3).0], &[4f32.ln()]);
}

/// The gradient is softmax − targets: so the targets can be read from it.
#[test]
fn smoothed_targets() {
    for (smoothing, label, want) in [
        (0.0, 2, [0.0, 0.0, 1.0, 0.0, 0.0]),
        (0.1, 2, [0.02, 0.02, 0.92, 0.02, 0.02]),
        (0.1, 0, [0.92, 0.02, 0.02, 0.02, 0.02]),
        (0.4, 4, [0.08, 0.08, 0.08, 0.08, 0.68]),
    ] {
        let (_, _, gradient) = row(&[0.7; 5], label, smoothing);
        let targets: Vec<f32> = gradient.iter().map(|g| 0.2 - g).collect();
        near(&targets, &want);
    }
    // (1 − ε)·CE(label) + ε·mean of CE over all labels.
    let mean = CROSS_ENTROPY.iter().sum::<f32>() / 3.0;
    near(&[row(&[1.0, 2.0, 3.0], 0, 0.1).0], &[0.9 * CROSS_ENTROPY[0] + 0.1 * mean]);
}

/// The fused loss and its gradients, with padded rows among the others, at the end, everywhere.
#[test]
fn padded_rows_cost_nothing_and_change_nothing() {
    let (n, d, v) = (7, 8, 11);
    let mut layout = crate::ops::params::ParameterLayout::default();
    layout.add("weight", &[v, d], crate::ops::params::Kind::Weight);
    layout.add("bias", &[v], crate::ops::params::Kind::Vector);
    let parameters = layout.allocate(&Device::Cpu, DType::F32).unwrap();
    let draw = |count: usize| -> Vec<f32> { (0..count).map(|i| (i as f32 * 1.7).sin()).collect() };
    let values = Tensor::from_vec(draw(v * d + v), v * d + v, &Device::Cpu).unwrap();
    parameters.values().slice_set(&values, 0, 0).unwrap();
    let projection =
        Projection { weight: parameters.param("weight").unwrap(), bias: Some(parameters.param("bias").unwrap()) };
    let (weight_rows, biases) = (|token: usize| token * d..(token + 1) * d, |token: usize| v * d + token);
    let x = candle_core::Var::from_tensor(&Tensor::from_vec(draw(n * d), (n, d), &Device::Cpu).unwrap()).unwrap();
    let labels = [(vec![3, 0, 5, 1, 0, 10, 0], 0), (vec![1, 2, 3, 4, 5, 6, 7], 0), (vec![0; 7], 0)];
    // Padding may be the last token, or one between others.
    let labels = labels.into_iter().chain([(vec![3, 10, 5, 1, 10, 9, 0], 10), (vec![3, 4, 5, 1, 4, 10, 0], 4)]);
    let weights = [vec![], vec![0.5, 0.7, 0.0, 1.0, 0.1, 0.3, 0.9]];
    let cases = labels.flat_map(|(labels, padding)| {
        let with =
            |weights: &Vec<f32>| Targets { labels: labels.clone(), padding, smoothing: 0.1, weights: weights.clone() };
        weights.each_ref().map(with)
    });
    for (targets, has_padding) in cases.flat_map(|targets| [(targets.clone(), true), (targets, false)]) {
        let padding = targets.padding;
        let left_out = (!has_padding).then_some(padding);
        let run = |implementation| {
            parameters.clear_gradients().unwrap();
            let (loss, sums) =
                run(&x, &projection, &targets, left_out, &Mode { training: Some(1), implementation }).unwrap();
            let dx = loss.backward().unwrap().get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            (sums, dx, parameters.gradients().to_vec1::<f32>().unwrap())
        };
        let (fused, plain) = (run(Implementation::Fused), run(Implementation::Reference));
        assert!((fused.0.smoothed - plain.0.smoothed).abs() < 1e-5);
        assert!((fused.0.nll - plain.0.nll).abs() < 1e-5);
        near(&fused.1, &plain.1);
        near(&fused.2, &plain.2);
        let token = padding as usize;
        let unchanged = fused.2[weight_rows(token)].iter().chain([&fused.2[biases(token)]]).all(|g| *g == 0.0);
        assert!(has_padding || unchanged);
    }
}

/// As if its column were not there, however large its logit.
#[test]
fn a_token_left_out_has_no_share() {
    for token in 0..4 {
        let mut with = vec![1.0, 2.0, 3.0];
        let without = row(&with, 1, 0.1);
        with.insert(token, 1e4);
        let mut gradient = with.clone();
        let label = if token <= 1 { 2 } else { 1 };
        let (smoothed, nll) = row_loss(&mut gradient, label, 0.1, 1.0, Some(token), true);
        near(&[smoothed, nll], &[without.0, without.1]);
        assert_eq!(gradient.remove(token), 0.0);
        near(&gradient, &without.2);
    }
}

#[test]
fn padding_counts_for_nothing() {
    let logits = Tensor::new(&[[1f32, 2.0, 3.0], [9.0, 0.0, -9.0], [1.0, 2.0, 3.0]], &Device::Cpu).unwrap();
    let logits = candle_core::Var::from_tensor(&logits).unwrap();
    let targets = Targets { labels: vec![2, 0, 1], padding: 0, smoothing: 0.0, ..Targets::default() };
    let (loss, sums) = reference(&logits, &targets, None).unwrap();
    near(&[sums.nll as f32, sums.smoothed as f32], &[CROSS_ENTROPY[2] + CROSS_ENTROPY[1]; 2]);
    let gradient = loss.backward().unwrap().get(&logits).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(gradient[1], [0.0; 3]);
    near(&gradient[0], &[SOFTMAX[0], SOFTMAX[1], SOFTMAX[2] - 1.0]);
}
