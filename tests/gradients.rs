//! Fused operations against the reference, through a whole model: loss and the gradient of every parameter, with
//! dropout, for both norm placements and awkward shapes. Also, every parameter has a gradient and moves.

mod common;

use candle_core::{DType, Device};
use common::{every_option, random_sequences, relative_error, small_model, with_dropouts};
use mt::model::{
    Activation, ModelConfig, NormKind, NormPlacement, PaddingMask, PositionKind, Sequences, Sinusoid, Tie, Transformer,
    Vocabulary,
};
use mt::ops::loss::Targets;
use mt::ops::{Implementation, Mode};
use mt::rng::Stream;
use mt::train::OptimizerConfig;
use mt::train::optimizer::Optimizer;

const SOURCE: usize = 53;
const TARGET: usize = 61;

fn model(config: &ModelConfig) -> Transformer {
    let source = if config.tie.joins_embeddings() { TARGET } else { SOURCE };
    let vocabulary = Vocabulary { source, target: TARGET, source_padding: 0, target_padding: 0 };
    let model = Transformer::new(config, vocabulary, &Device::Cpu).unwrap();
    model.initialise(3).unwrap();
    // Moves biases and norms away from their special initial values, so that errors in them show.
    let mut stream = Stream::new(5, "test");
    let values: Vec<f32> = model.parameters().values().to_vec1().unwrap();
    let values: Vec<f32> = values.iter().map(|v| v + 0.05 * stream.normal() as f32).collect();
    let values = candle_core::Tensor::from_vec(values, model.parameters().values().shape(), &Device::Cpu).unwrap();
    model.parameters().values().slice_set(&values, 0, 0).unwrap();
    model
}

/// Loss and gradients of one pass.
fn pass(model: &Transformer, source: &[u32], target: &[u32], mode: &Mode) -> (f64, Vec<f32>) {
    let source_vocabulary = model.vocabulary().source;
    let (source, target) =
        (random_sequences(source, source_vocabulary, "source"), random_sequences(target, TARGET, "target"));
    let targets = Targets {
        labels: random_sequences(&target.lengths, TARGET, "labels").ids,
        padding: 0,
        smoothing: 0.1,
        ..Targets::default()
    };
    model.parameters().clear_gradients().unwrap();
    let (loss, sums) = model.loss(&source, &target, &targets, mode).unwrap();
    loss.backward().unwrap();
    (sums.smoothed, model.parameters().gradients().to_vec1().unwrap())
}

/// The loss of a batch of weighted pairs is the sum of theirs alone, each times its weight, and so are the gradients.
#[test]
fn weights_multiply_what_each_pair_adds() {
    let model = model(&small_model());
    let lengths = [[7u32, 2], [3, 6], [1, 1], [5, 4]];
    let of = |pairs: &[usize], weights: &[f32], implementation| {
        let side = |side: usize, vocabulary: usize, name: &str| {
            let all = random_sequences(&lengths.map(|lengths| lengths[side]), vocabulary, name);
            let longest = pairs.iter().map(|&pair| lengths[pair][side] as usize).max().unwrap();
            let row = |&pair: &usize| all.ids[pair * all.length..][..longest].to_vec();
            let lengths: Vec<u32> = pairs.iter().map(|&pair| lengths[pair][side]).collect();
            Sequences { ids: pairs.iter().flat_map(row).collect(), lengths: lengths.into(), length: longest }
        };
        let (source, target) = (side(0, model.vocabulary().source, "source"), side(1, TARGET, "target"));
        let weights = weights.iter().flat_map(|weight| vec![*weight; target.length]).collect();
        let labels = side(1, TARGET, "labels").ids;
        let targets = Targets { labels, smoothing: 0.1, weights, ..Targets::default() };
        model.parameters().clear_gradients().unwrap();
        let mode = Mode { training: Some(11), implementation };
        let (loss, sums) = model.loss(&source, &target, &targets, &mode).unwrap();
        loss.backward().unwrap();
        (sums, model.parameters().gradients().to_vec1::<f32>().unwrap())
    };
    let weights = [0.5, 3.0, 1.0, 0.0];
    for implementation in [Implementation::Fused, Implementation::Reference] {
        let (all, gradients) = of(&[0, 1, 2, 3], &weights, implementation);
        let (mut smoothed, mut nll, mut sum) = (0.0, 0.0, vec![0f32; gradients.len()]);
        for (pair, weight) in weights.into_iter().enumerate() {
            let (alone, gradients) = of(&[pair], &[], implementation);
            smoothed += f64::from(weight) * alone.smoothed;
            nll += alone.nll;
            sum.iter_mut().zip(&gradients).for_each(|(sum, gradient)| *sum += weight * gradient);
        }
        // Sums of float32 in another order.
        assert!((all.smoothed - smoothed).abs() < 1e-4 * smoothed && (all.nll - nll).abs() < 1e-4 * nll, "{all:?}");
        assert!(relative_error(&gradients, &sum) < 1e-4);
    }
}

/// Trained in bfloat16, a model is judged in float32.
#[test]
fn evaluation_does_not_depend_on_the_precision_of_training() {
    let config = small_model();
    let vocabulary = Vocabulary { source: SOURCE, target: SOURCE, source_padding: 0, target_padding: 0 };
    let loss = |compute: DType, mode: &Mode| {
        let model = Transformer::with_precision(&config, vocabulary, &Device::Cpu, compute).unwrap();
        model.initialise(3).unwrap();
        let sequences = |lengths: &[u32], name: &str| random_sequences(lengths, SOURCE, name);
        let (source, target) = (sequences(&[7, 3, 1], "source"), sequences(&[2, 6, 1], "target"));
        let targets =
            Targets { labels: sequences(&[2, 6, 1], "labels").ids, padding: 0, smoothing: 0.1, ..Targets::default() };
        model.loss(&source, &target, &targets, mode).unwrap().1.smoothed
    };
    let of = |mode: &Mode| [DType::F32, DType::BF16].map(|compute| loss(compute, mode));
    let [f32, bf16] = of(&Mode::INFERENCE);
    assert_eq!(f32, bf16);
    let [f32, bf16] = of(&Mode::training(1));
    assert!(f32 != bf16 && (f32 - bf16).abs() < 0.05 * f32);
}

fn fused_equals_reference(config: &ModelConfig, source: &[u32], target: &[u32]) {
    let model = model(config);
    let mode = |implementation| Mode { training: Some(11), implementation };
    let (fused_loss, fused) = pass(&model, source, target, &mode(Implementation::Fused));
    let (reference_loss, reference) = pass(&model, source, target, &mode(Implementation::Reference));
    assert!((fused_loss - reference_loss).abs() < 1e-4 * reference_loss, "{fused_loss} {reference_loss}");
    for entry in model.parameters().entries() {
        let (a, b) = (&fused[entry.range()], &reference[entry.range()]);
        if common::is_idle(&entry.name, config) {
            // Zero in theory; computed gradients are rounded sums over about fifty tokens.
            assert!(a.iter().chain(b).all(|v| v.abs() < 5e-5), "{}", entry.name);
            continue;
        }
        let error = relative_error(a, b);
        assert!(error < 1e-4, "{}: {error}", entry.name);
    }
}

#[test]
fn post_norm_with_dropout() {
    fused_equals_reference(&with_dropouts(), &[7, 3, 1, 5], &[2, 6, 1, 4]);
}

#[test]
fn pre_norm_with_dropout() {
    let config = ModelConfig { norm: NormPlacement::Pre, final_norm: true, ..with_dropouts() };
    fused_equals_reference(&config, &[7, 3, 1, 5], &[2, 6, 1, 4]);
}

#[test]
fn without_dropout() {
    fused_equals_reference(&small_model(), &[4, 9], &[8, 3]);
}

#[test]
fn odd_sizes_and_options() {
    let config = ModelConfig {
        d_model: 22,
        d_ff: 37,
        heads: 3,
        d_k: 5,
        d_v: 7,
        encoder_layers: 1,
        decoder_layers: 3,
        activation: Activation::Gelu,
        tie: Tie::None,
        output_bias: true,
        attention_bias: false,
        ..with_dropouts()
    };
    fused_equals_reference(&config, &[1], &[1]);
}

#[test]
fn swish_and_decoder_tie_without_scaling() {
    let config =
        ModelConfig { activation: Activation::Swish, tie: Tie::Decoder, scale_embedding: false, ..with_dropouts() };
    fused_equals_reference(&config, &[17, 2, 16], &[16, 17, 1]);
}

#[test]
fn std_norm_before_and_after() {
    for norm in [NormPlacement::Post, NormPlacement::Pre] {
        let config =
            ModelConfig { norm, norm_kind: NormKind::Std, norm_eps: 1e-9, final_norm: true, ..with_dropouts() };
        fused_equals_reference(&config, &[7, 3, 1, 5], &[2, 6, 1, 4]);
    }
}

#[test]
fn learned_positions() {
    let config = ModelConfig { positions: PositionKind::Learned, max_length: 7, ..with_dropouts() };
    fused_equals_reference(&config, &[7, 3, 1, 5], &[2, 6, 1, 4]);
}

#[test]
fn rotary_positions() {
    for sinusoid in [Sinusoid::Interleaved, Sinusoid::Halves] {
        let config = ModelConfig { positions: PositionKind::Rotary, sinusoid, d_k: 6, ..with_dropouts() };
        fused_equals_reference(&config, &[7, 3, 1, 5], &[2, 6, 1, 4]);
    }
}

#[test]
fn masked_queries() {
    let config = ModelConfig { padding_mask: PaddingMask::KeysAndQueries, ..with_dropouts() };
    fused_equals_reference(&config, &[7, 3, 1, 5], &[2, 6, 1, 4]);
}

#[test]
fn every_option_of_a_model() {
    for config in every_option() {
        fused_equals_reference(&config, &[5, 3, 7], &[4, 6, 2]);
    }
}

/// More rows than one block, so that blocks, chunks and threads come into play.
#[test]
fn many_rows() {
    let lengths: Vec<u32> = (0..150).map(|i| 1 + (i * 7) % 19).collect();
    fused_equals_reference(&with_dropouts(), &lengths, &lengths);
}

#[test]
fn every_parameter_has_a_gradient_and_moves() {
    for norm in [NormPlacement::Post, NormPlacement::Pre] {
        let config = ModelConfig {
            norm,
            final_norm: norm == NormPlacement::Pre,
            tie: Tie::None,
            output_bias: true,
            ..small_model()
        };
        let model = model(&config);
        let before: Vec<f32> = model.parameters().values().to_vec1().unwrap();
        let mut optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.0).unwrap();
        let (_, gradients) = pass(&model, &[5, 3], &[4, 6], &Mode::training(1));
        optimizer.step(1, 0.01, 1.0).unwrap();
        let after: Vec<f32> = model.parameters().values().to_vec1().unwrap();
        for entry in model.parameters().entries().iter().filter(|e| !common::is_idle(&e.name, &config)) {
            let range = entry.range();
            assert!(gradients[range.clone()].iter().any(|g| *g != 0.0), "{} has no gradient", entry.name);
            assert!(before[range.clone()] != after[range.clone()], "{} did not move", entry.name);
        }
    }
}

/// The backward pass uses its incoming gradient: scaling the loss scales every gradient.
#[test]
fn the_loss_honours_its_incoming_gradient() {
    let model = model(&small_model());
    let mode = Mode::training(1);
    let (source, target) = (random_sequences(&[5, 3], TARGET, "source"), random_sequences(&[4, 6], TARGET, "target"));
    let targets = Targets {
        labels: random_sequences(&[4, 6], TARGET, "labels").ids,
        padding: 0,
        smoothing: 0.1,
        ..Targets::default()
    };
    let gradients = |scale: f64| -> Vec<f32> {
        model.parameters().clear_gradients().unwrap();
        let (loss, _) = model.loss(&source, &target, &targets, &mode).unwrap();
        (loss * scale).unwrap().backward().unwrap();
        model.parameters().gradients().to_vec1().unwrap()
    };
    let (once, thrice) = (gradients(1.0), gradients(3.0));
    let expected: Vec<f32> = once.iter().map(|g| 3.0 * g).collect();
    assert!(relative_error(&thrice, &expected) < 1e-5);
}

/// Fused and reference have the same probabilities from the same place: here each acts alone, in one sub-layer after
/// the other. A sub-layer whose output projection is zero adds nothing, whatever is dropped in it.
#[test]
fn each_kind_of_dropout_acts_in_its_sub_layers() {
    type Set = fn(&mut ModelConfig);
    let outputs = ["self_attn.out_proj", "cross_attn.out_proj", "feed_forward.fc2"];
    let kinds: [(Set, &[&str]); 3] = [
        (|config| config.attention_dropout = 0.5, &outputs[..2]),
        (|config| config.activation_dropout = 0.5, &outputs[2..]),
        (|_| (), &[]),
    ];
    for (set, acts_in) in kinds {
        for alone in outputs {
            let mut config = ModelConfig { encoder_layers: 1, decoder_layers: 1, tie: Tie::None, ..small_model() };
            set(&mut config);
            let model = model(&config);
            // Those of the encoder too.
            let silent = |entry: &&mt::ops::params::Entry| {
                entry.name.ends_with(".weight")
                    && outputs.iter().any(|output| {
                        entry.name.contains(output) && !(entry.name.starts_with("decoder.") && *output == alone)
                    })
            };
            for entry in model.parameters().entries().iter().filter(silent) {
                let zeros = candle_core::Tensor::zeros(entry.len(), candle_core::DType::F32, &Device::Cpu).unwrap();
                model.parameters().values().slice_set(&zeros, 0, entry.offset).unwrap();
            }
            let loss = |mode: &Mode| {
                let sequences = |lengths: &[u32], name: &str| random_sequences(lengths, SOURCE, name);
                let (source, target) = (sequences(&[7, 3, 1, 5], "source"), sequences(&[2, 6, 1, 4], "target"));
                let labels = sequences(&[2, 6, 1, 4], "labels").ids;
                let targets = Targets { labels, padding: 0, smoothing: 0.1, ..Targets::default() };
                model.loss(&source, &target, &targets, mode).unwrap().1.smoothed
            };
            let change = (loss(&Mode::training(11)) - loss(&Mode::INFERENCE)).abs();
            // Of the losses of thirteen tokens, summed; without dropout only the order of additions may differ.
            assert_eq!(change > 1e-3, acts_in.contains(&alone), "{alone}: {change}");
        }
    }
}
