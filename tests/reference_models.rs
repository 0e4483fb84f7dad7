//! Well-known hand-written Transformers, and every option of `[model]`, against PyTorch: logits, loss, the gradient of
//! every parameter and, if the original returns them, attention weights. `tests/golden/README.md` describes the cases.
//!
//! Prints one row of docs/parity.md per case. If `MT_GOLDEN` names a folder written by
//! `tests/golden/reference_models.py --full`, compares whole tensors instead of samples.

mod common;

use std::path::Path;

use candle_core::Device;
use common::parity::{self, TOLERANCE, flat, real};
use common::{Golden, relative_error, torch};
use mt::model::{AttentionWeights, Transformer};
use mt::ops::memory::with_slice_mut;
use mt::ops::{Implementation, Mode};

fn check(case: &str, implementation: Implementation) {
    let golden = Golden::reference_model(case);
    parity::check(case, &golden, &golden.model(), implementation);
}

macro_rules! cases {
    ($($name:ident: [$($file:literal),+];)+) => {$(
        #[test]
        fn $name() {
            for case in [$($file),+] {
                check(case, Implementation::Fused);
                check(case, Implementation::Reference);
            }
        }
    )+};
}

cases! {
    a_masks_of_minus_1e9: ["a_minus_1e9.small", "a_minus_1e9.large"];
    b_masks_of_minus_infinity: ["b_minus_inf.small", "b_minus_inf.large"];
    c_annotated_post: ["c_post.small", "c_post.large"];
    c_annotated_pre: ["c_pre.small", "c_pre.large"];
    c_annotated_post_shared: ["c_post_shared.small", "c_post_shared.large"];
    c_annotated_pre_shared: ["c_pre_shared.small", "c_pre_shared.large"];
    d_masked_queries: ["d_query_masks.small", "d_query_masks.large"];
    e_torch_post: ["e_torch_post.small", "e_torch_post.large"];
    e_torch_pre: ["e_torch_pre.small", "e_torch_pre.large"];
    f_tensor2tensor: ["f_tensor2tensor.small", "f_tensor2tensor.large"];
    g_rotary: ["g_rotary.small", "g_rotary_halves.small"];
    g_learned: ["g_learned.small"];
    g_activations: ["g_gelu.small", "g_swish.small"];
    g_halves: ["g_halves.small"];
    g_tied_decoder: ["g_tie_decoder.small"];
    g_asymmetric: ["g_asymmetric.small"];
}

/// A `torch.nn.Transformer` state dict, read under its own names, gives the same model.
#[test]
fn e_torch_state_dict_is_imported() {
    let names = torch::Names {
        transformer: "transformer",
        source_embedding: "source_embedding",
        target_embedding: "target_embedding",
        output: "generator",
    };
    for case in ["e_torch_post", "e_torch_pre"] {
        let golden = Golden::reference_model(&format!("{case}.small"));
        let expected = golden.model();
        let model = Transformer::new(expected.config(), expected.vocabulary(), &Device::Cpu).unwrap();
        let parameters = model.parameters();
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/golden/reference_models/{case}.state_dict.safetensors"));
        let load = |names: &torch::Names| {
            let slots = mt::model_dir::slots(parameters.entries());
            with_slice_mut(parameters.values(), |flat| torch::load_transformer(&file, &slots, names, flat)).unwrap()
        };
        load(&names).unwrap();
        assert_eq!(parameters.values().to_vec1::<f32>().unwrap(), flat(expected.parameters().values()));
        parity::check(&format!("{case}.small"), &golden, &model, Implementation::Fused);

        let error = load(&torch::Names { output: "head", ..names }).unwrap_err().to_string();
        assert!(error.contains("head.weight") && error.contains("generator.weight"), "{error}");
    }
}

/// Compares each layer's weights [B, H, Lq, Lk] with the original's. Rows sum to one if the query sees a key, else to
/// zero.
fn check_weights(golden: &Golden, kind: &str, got: &AttentionWeights) {
    for (layer, weights) in got.iter().enumerate() {
        let name = format!("attention.{kind}.{layer}");
        assert_eq!(golden.shape(&name), weights.dims(), "{name}");
        let (got, want) = (flat(weights), golden.floats(&name));
        let error = relative_error(&got, &want);
        assert!(error < TOLERANCE, "{name}: {error:.1e}");
        let keys = weights.dims()[3];
        for (got, want) in got.chunks_exact(keys).zip(want.chunks_exact(keys)) {
            let sum: f32 = got.iter().sum();
            let expected = if want.iter().all(|w| *w == 0.0) { 0.0 } else { 1.0 };
            assert!((sum - expected).abs() < 1e-5, "{name}: {sum}");
        }
    }
    assert_eq!(golden.count(&format!("attention.{kind}.")), got.len());
}

#[test]
fn attention_weights_are_those_of_the_texts() {
    for case in ["b_minus_inf.small", "d_query_masks.small"] {
        let golden = Golden::reference_model(case);
        let model = golden.model();
        let (source, target) = (golden.sequences("source"), golden.sequences("target_input"));
        for implementation in [Implementation::Fused, Implementation::Reference] {
            let mode = Mode { training: None, implementation };
            let (memory, encoder) = model.encode_with_attention(&source, &mode).unwrap();
            let (states, decoder) = model.decode_with_attention(&memory, &target, &mode).unwrap();
            check_weights(&golden, "encoder", &encoder);
            check_weights(&golden, "decoder_self", &decoder.masked);
            check_weights(&golden, "cross", &decoder.cross);
            // Returning weights changes nothing else.
            let plain = model.encode(&source, &mode).unwrap();
            assert_eq!(flat(&plain.states), flat(&memory.states));
            assert_eq!(flat(&model.decode(&plain, &target, &mode).unwrap()), flat(&states));
        }
    }
}

/// With masked queries, the attention of a padded row gives only zeros, and no real position changes.
#[test]
fn masking_queries_changes_no_real_position() {
    let golden = Golden::reference_model("d_query_masks.small");
    let model = golden.model();
    let mut config = model.config().clone();
    config.padding_mask = mt::model::PaddingMask::Keys;
    let plain = Transformer::new(&config, model.vocabulary(), model.parameters().device()).unwrap();
    plain.parameters().values().slice_set(model.parameters().values(), 0, 0).unwrap();
    let (source, target) = (golden.sequences("source"), golden.sequences("target_input"));
    let run = |model: &Transformer| {
        let memory = model.encode(&source, &Mode::INFERENCE).unwrap();
        (flat(&memory.states), flat(&model.decode(&memory, &target, &Mode::INFERENCE).unwrap()))
    };
    let (masked, unmasked) = (run(&model), run(&plain));
    let d = config.d_model;
    for (a, b, tokens) in [(&masked.0, &unmasked.0, &source), (&masked.1, &unmasked.1, &target)] {
        let is_real = real(tokens, d);
        assert!(a.iter().all(|v| v.is_finite()));
        assert!((0..a.len()).all(|i| !is_real(i) || a[i] == b[i]));
        assert!((0..a.len()).any(|i| !is_real(i) && a[i] != b[i]), "padded rows should differ");
    }
}
