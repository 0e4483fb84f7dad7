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

const N: usize = 7;
const D_MODEL: usize = 8;
const V: usize = 11;

fn draw(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 1.7).sin()).collect()
}

/// A projection, with the parameters it consists of.
fn projection() -> (std::sync::Arc<crate::ops::params::Parameters>, Projection) {
    let mut layout = crate::ops::params::ParameterLayout::default();
    layout.add("weight", &[V, D_MODEL], crate::ops::params::Kind::Weight);
    layout.add("bias", &[V], crate::ops::params::Kind::Vector);
    let parameters = layout.allocate(&Device::Cpu, DType::F32).unwrap();
    let count = V * D_MODEL + V;
    parameters.values().slice_set(&Tensor::from_vec(draw(count), count, &Device::Cpu).unwrap(), 0, 0).unwrap();
    let [weight, bias] = ["weight", "bias"].map(|name| parameters.param(name).unwrap());
    (parameters, Projection { weight, bias: Some(bias) })
}

/// The sums, and the gradients of states and parameters, of random states under [`projection`].
fn pass(targets: &Targets, left_out: Option<u32>, implementation: Implementation) -> (Sums, Vec<f32>, Vec<f32>) {
    let (n, (parameters, projection)) = (targets.labels.len(), projection());
    let x = Tensor::from_vec(draw(n * D_MODEL), (n, D_MODEL), &Device::Cpu).unwrap();
    let x = candle_core::Var::from_tensor(&x).unwrap();
    parameters.clear_gradients().unwrap();
    let (loss, sums) = run(&x, &projection, targets, left_out, &Mode { training: Some(1), implementation }).unwrap();
    let dx = loss.backward().unwrap().get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    (sums, dx, parameters.gradients().to_vec1::<f32>().unwrap())
}

/// The fused loss is that of plain operations, and so are its gradients, which are returned.
fn compare(targets: &Targets, left_out: Option<u32>) -> Vec<f32> {
    let (fused, plain) =
        (pass(targets, left_out, Implementation::Fused), pass(targets, left_out, Implementation::Reference));
    assert!((fused.0.smoothed - plain.0.smoothed).abs() < 1e-5, "{:?}, not {:?}", fused.0, plain.0);
    assert!((fused.0.nll - plain.0.nll).abs() < 1e-5);
    near(&fused.1, &plain.1);
    near(&fused.2, &plain.2);
    fused.2
}

/// The fused loss and its gradients, with padded rows among the others, at the end, everywhere; and with R-Drop.
#[test]
fn padded_rows_cost_nothing_and_change_nothing() {
    let labels = [(vec![3, 0, 5, 1, 0, 10, 0], 0), (vec![1, 2, 3, 4, 5, 6, 7], 0), (vec![0; N], 0)];
    // Padding may be the last token, or one between others.
    let labels = labels.into_iter().chain([(vec![3, 10, 5, 1, 10, 9, 0], 10), (vec![3, 4, 5, 1, 4, 10, 0], 4)]);
    let weights = [vec![], vec![0.5, 0.7, 0.0, 1.0, 0.1, 0.3, 0.9]];
    for (labels, padding) in labels {
        for (weights, r_drop) in weights.iter().flat_map(|weights| [(weights, 0.0), (weights, 5.0)]) {
            let times = if r_drop > 0.0 { 2 } else { 1 };
            let (labels, weights) = (labels.repeat(times), weights.repeat(times));
            let targets = Targets { labels, padding, smoothing: 0.1, r_drop, weights };
            for has_padding in [true, false] {
                let gradients = compare(&targets, (!has_padding).then_some(padding));
                let (token, d) = (padding as usize, D_MODEL);
                let of_token = gradients[token * d..][..d].iter().chain([&gradients[V * d + token]]);
                assert!(has_padding || of_token.clone().all(|g| *g == 0.0));
            }
        }
    }
}

/// ½·(CE₁ + CE₂) + α/4·(KL(p‖q) + KL(q‖p)), in float64.
#[test]
fn r_drop_is_its_definition() {
    let (p, q, label) = ([1.0f32, 2.0, -3.0, 0.5], [0.2f32, 2.5, -4.0, 1.5], 1);
    let softmax = |logits: [f32; 4]| {
        let exponentials = logits.map(|x| f64::from(x).exp());
        exponentials.map(|e| e / exponentials.iter().sum::<f64>())
    };
    let cross_entropy = |p: [f64; 4]| -0.8 * p[label].ln() - 0.2 / 4.0 * p.iter().map(|p| p.ln()).sum::<f64>();
    let divergence = |p: [f64; 4], q: [f64; 4]| p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
    let (p_of, q_of) = (softmax(p), softmax(q));
    let between = divergence(p_of, q_of) + divergence(q_of, p_of);
    let want = 0.5 * (cross_entropy(p_of) + cross_entropy(q_of)) + 5.0 / 4.0 * between;
    let targets =
        Targets { labels: vec![label as u32; 2], padding: 9, smoothing: 0.2, r_drop: 5.0, weights: vec![0.5; 2] };
    let (mut first, mut second, mut scratch) = (p, q, [0.0; 4]);
    let (loss, nll) = pair_loss(&mut first, &mut second, &mut scratch, &targets, 0, None, true);
    near(&[loss, nll], &[(0.5 * want) as f32, (-0.5 * (p_of[label] * q_of[label]).ln()) as f32]);
    // However far from zero the logits are.
    let far = |logits: [f32; 4]| logits.map(|x| x + 1024.0);
    let (mut again, mut other) = (far(p), far(q));
    let (far, _) = pair_loss(&mut again, &mut other, &mut scratch, &targets, 0, None, true);
    assert!((far - loss).abs() < 1e-3 && again.iter().zip(&first).all(|(a, b)| (a - b).abs() < 1e-3));
    // Two equal passes are one.
    let (mut first, mut second) = (p, p);
    let (loss, _) = pair_loss(&mut first, &mut second, &mut scratch, &targets, 0, None, true);
    let (one, _, gradient) = row(&p, label, 0.2);
    near(&[loss], &[0.5 * one]);
    let quarter: Vec<f32> = gradient.iter().map(|g| 0.25 * g).collect();
    near(&first, &quarter);
    assert_eq!(first, second);
}

#[test]
fn passes_of_r_drop_have_the_same_targets() {
    let (_, projection) = projection();
    let x = Tensor::zeros((4, D_MODEL), DType::F32, &Device::Cpu).unwrap();
    for (labels, weights) in [(vec![1, 2, 1, 3], vec![]), (vec![1, 2, 1, 2], vec![1.0, 0.5, 1.0, 0.4])] {
        let targets = Targets { labels, weights, r_drop: 1.0, ..Targets::default() };
        let error = run(&x, &projection, &targets, None, &Mode::training(1)).unwrap_err();
        assert!(error.to_string().contains("R-Drop"), "{error}");
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
