//! Search with a real model: a batch gives what its sentences give alone, a cache what there is without one, and scores
//! are those of forced decoding.

mod common;

use std::sync::Arc;

use candle_core::{Device, Tensor};
use common::{small_model, special, with_every_choice};
use mt::decode::ensemble::Ensemble;
use mt::decode::neural::{Neural, SpecialTokens};
use mt::decode::{Continuation, Hypothesis, LengthPenalty, PenaltyKind, Rows, SearchOptions, StepModel, force, search};
use mt::error::Result;
use mt::infer::{ComputeType, Engine, model_values};
use mt::model::{
    Activation, Memory, ModelConfig, NormKind, NormPlacement, PaddingMask, PositionKind, Sequences, Sinusoid, Tie,
    Transformer, Vocabulary,
};
use mt::ops::Mode;
use mt::rng::Stream;

const VOCABULARY: usize = 71;

/// Models that together cover every option that matters to decoding.
fn models() -> Vec<Transformer> {
    let pre = ModelConfig { norm: NormPlacement::Pre, final_norm: true, ..small_model() };
    let configs = vec![
        small_model(),
        pre.clone(),
        ModelConfig { positions: PositionKind::Rotary, activation: Activation::Swish, ..small_model() },
        ModelConfig {
            positions: PositionKind::Rotary,
            sinusoid: Sinusoid::Halves,
            d_k: 6,
            attention_bias: false,
            encoder_layers: 1,
            decoder_layers: 3,
            ..pre.clone()
        },
        ModelConfig {
            positions: PositionKind::Learned,
            norm_kind: NormKind::Std,
            norm_eps: 1e-9,
            activation: Activation::Gelu,
            ..pre.clone()
        },
        ModelConfig {
            positions: PositionKind::Relative,
            relative_buckets: 7,
            relative_distance: 9,
            norm_kind: NormKind::Rms,
            activation: Activation::GeluTanh,
            gated: true,
            feed_forward_bias: false,
            tie: Tie::Embeddings,
            ..pre
        },
        ModelConfig { gated: true, positions: PositionKind::Relative, heads: 2, ..small_model() },
        ModelConfig {
            padding_mask: PaddingMask::KeysAndQueries,
            final_norm: true,
            tie: Tie::None,
            output_bias: true,
            output_padding: false,
            scale_embedding: false,
            sinusoid: Sinusoid::Halves,
            ..small_model()
        },
        // As narrow as possible.
        ModelConfig { d_model: 2, d_ff: 1, heads: 1, d_k: 1, d_v: 1, ..small_model() },
        // The search sees of these nothing but their numbers.
        ModelConfig { sinusoid: Sinusoid::Tensor2Tensor, tie: Tie::Decoder, ..small_model() },
    ];
    let vocabulary = Vocabulary { source: VOCABULARY, target: VOCABULARY, source_padding: 0, target_padding: 0 };
    let model = |config: &ModelConfig| {
        let model = Transformer::new(config, vocabulary, &Device::Cpu).unwrap();
        model.initialise(8).unwrap();
        model
    };
    with_every_choice(configs).iter().map(model).collect()
}

fn sources() -> Vec<Vec<u32>> {
    let mut stream = Stream::new(2, "sources");
    (0..23)
        .map(|i| (0..1 + i % 9).map(|_| 4 + stream.below(VOCABULARY as u64 - 4) as u32).chain([2]).collect())
        .collect()
}

fn encode(model: &Transformer, sources: &[Vec<u32>]) -> Memory {
    let length = sources.iter().map(Vec::len).max().unwrap();
    let mut ids = vec![model.vocabulary().source_padding; sources.len() * length];
    for (row, source) in ids.chunks_exact_mut(length).zip(sources) {
        row[..source.len()].copy_from_slice(source);
    }
    let lengths = Arc::new(sources.iter().map(|s| s.len() as u32).collect::<Vec<_>>());
    model.encode(&Sequences { ids, lengths, length }, &Mode::INFERENCE).unwrap()
}

fn options(sources: &[Vec<u32>], beam: usize) -> SearchOptions {
    let penalty = LengthPenalty { kind: PenaltyKind::Gnmt, alpha: 0.6 };
    SearchOptions::beam(beam, penalty, sources.iter().map(|s| s.len() + 12))
}

fn translate_with(
    model: &Transformer,
    special: &SpecialTokens,
    sources: &[Vec<u32>],
    beam: usize,
) -> Vec<Vec<Hypothesis>> {
    translate_by(&Neural::new(model, special.clone()).unwrap(), sources, beam)
}

fn translate_by(neural: &Neural, sources: &[Vec<u32>], beam: usize) -> Vec<Vec<Hypothesis>> {
    let mut step = neural.begin(&sources.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    search(&mut step, &options(sources, beam)).unwrap()
}

fn translate(model: &Transformer, sources: &[Vec<u32>], beam: usize) -> Vec<Vec<Hypothesis>> {
    translate_with(model, &special(), sources, beam)
}

#[test]
fn a_batch_equals_its_sentences_alone() {
    for model in models() {
        for precision in [ComputeType::F32, ComputeType::Bf16, ComputeType::Int8] {
            let engine = || Engine::new(model.config(), &model_values(&model), precision).unwrap();
            let neural = Neural::from_engine(engine(), special());
            for beam in [1, 4] {
                let together = translate_by(&neural, &sources(), beam);
                for (source, expected) in sources().into_iter().zip(&together) {
                    // Bit for bit: tokens and scores.
                    assert_eq!(&translate_by(&neural, &[source], beam)[0], expected, "{precision}");
                }
            }
        }
    }
}

#[test]
fn what_a_search_found_scores_the_same_when_it_is_forced() {
    for model in models() {
        let neural = Neural::new(&model, special()).unwrap();
        let sources = sources();
        let found = translate_by(&neural, &sources, 4);
        let targets: Vec<&[u32]> = found.iter().map(|n_best| n_best[0].tokens.as_slice()).collect();
        let mut step = neural.begin(&sources.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        for (n_best, forced) in found.iter().zip(force(&mut step, &targets).unwrap()) {
            let searched = &n_best[0].token_log_probs;
            assert_eq!(&forced[..searched.len()], &searched[..]);
        }
    }
}

/// Compares with the mean of the members' probabilities, computed by hand.
#[test]
fn an_ensemble_gives_the_mean_of_its_members() {
    let models = &models()[..3];
    let neural = |model| Neural::new(model, special()).unwrap();
    let sources = sources();
    let sources: Vec<&[u32]> = sources.iter().map(Vec::as_slice).collect();
    let rows = Rows {
        tokens: &vec![1; sources.len()],
        parents: &(0..sources.len()).collect::<Vec<_>>(),
        sentences: &(0..sources.len()).collect::<Vec<_>>(),
        constraints: &[],
        position: 0,
    };
    let distributions = |step: &mut dyn StepModel| {
        let mut log_probs = Vec::new();
        step.distributions(&rows, &mut log_probs).unwrap();
        log_probs
    };
    let alone: Vec<Vec<f32>> =
        models.iter().map(|model| distributions(&mut neural(model).begin(&sources).unwrap())).collect();
    let ensemble = Ensemble::new(models.iter().map(neural).collect());
    let begin = || ensemble.begin(&vec![sources.clone(); models.len()]).unwrap();
    let together = distributions(&mut begin());
    for (i, log_prob) in together.iter().enumerate() {
        let mean = alone.iter().map(|alone| f64::from(alone[i]).exp()).sum::<f64>() / models.len() as f64;
        assert!((f64::from(*log_prob) - mean.ln()).abs() < 1e-5 || mean == 0.0 && *log_prob == f32::NEG_INFINITY);
    }
    let mut best = vec![Continuation::IMPOSSIBLE; 3 * sources.len()];
    begin().step(&rows, 3, &mut best).unwrap();
    for (best, log_probs) in best.chunks_exact(3).zip(together.chunks_exact(VOCABULARY)) {
        let mut order: Vec<usize> = (0..VOCABULARY).collect();
        order.sort_by(|&a, &b| log_probs[b].total_cmp(&log_probs[a]).then(a.cmp(&b)));
        for (continuation, &token) in best.iter().zip(&order) {
            assert_eq!((continuation.token as usize, continuation.log_prob), (token, log_probs[token]));
        }
    }
}

/// A model without a cache: every step runs all decoder inputs again.
struct Uncached<'a> {
    model: &'a Transformer,
    special: &'a SpecialTokens,
    memory: Memory,
    inputs: Vec<Vec<u32>>,
}

impl<'a> Uncached<'a> {
    fn new(model: &'a Transformer, special: &'a SpecialTokens, sources: &[Vec<u32>]) -> Self {
        Self { model, special, memory: encode(model, sources), inputs: Vec::new() }
    }

    /// Log-probabilities of the token after each of `inputs`, -∞ for forbidden tokens.
    fn last_rows(&self, inputs: &[Vec<u32>], sentences: &[usize]) -> Vec<Vec<f32>> {
        let length = inputs[0].len();
        let (s, d) = (self.memory.length, self.model.config().d_model);
        let states = self.memory.states.reshape((self.memory.lengths.len(), s, d)).unwrap();
        let rows = Tensor::new(sentences.iter().map(|&i| i as u32).collect::<Vec<_>>(), &Device::Cpu).unwrap();
        let memory = Memory {
            states: states.index_select(&rows, 0).unwrap().reshape((sentences.len() * s, d)).unwrap(),
            lengths: Arc::new(sentences.iter().map(|&i| self.memory.lengths[i]).collect()),
            length: s,
        };
        let lengths = Arc::new(vec![length as u32; inputs.len()]);
        let target = Sequences { ids: inputs.concat(), lengths, length };
        let states = self.model.decode(&memory, &target, &Mode::INFERENCE).unwrap();
        let logits: Vec<Vec<f32>> = self.model.logits(&states, &Mode::INFERENCE).unwrap().to_vec2().unwrap();
        let last = logits.into_iter().skip(length - 1).step_by(length);
        last.map(|mut row| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|x| ((x - largest) as f64).exp()).sum();
            row.iter_mut().for_each(|x| *x -= largest + sum.ln() as f32);
            for &token in &self.special.forbidden {
                row[token as usize] = f32::NEG_INFINITY;
            }
            row
        })
        .collect()
    }
}

impl StepModel for Uncached<'_> {
    fn sentences(&self) -> usize {
        self.memory.lengths.len()
    }
    fn start_token(&self) -> u32 {
        self.special.start
    }
    fn end_token(&self) -> u32 {
        self.special.end
    }
    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()> {
        let mut log_probs = Vec::new();
        self.log_probs(rows, &mut log_probs)?;
        let width = log_probs.len() / rows.len();
        for (r, (row, best)) in log_probs.chunks_exact(width).zip(best.chunks_exact_mut(k)).enumerate() {
            let mut order: Vec<usize> = (0..width).filter(|&token| rows.constraint(r).allows(token as u32)).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            for (place, &token) in best.iter_mut().zip(&order) {
                *place = Continuation { token: token as u32, log_prob: row[token] };
            }
        }
        Ok(())
    }
    fn forbidden(&self) -> &[u32] {
        &[]
    }
    fn log_probs(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()> {
        let continued = |(&parent, &token): (&usize, &u32)| {
            let mut input = if rows.position == 0 { Vec::new() } else { self.inputs[parent].clone() };
            input.push(token);
            input
        };
        self.inputs = rows.parents.iter().zip(rows.tokens).map(continued).collect();
        *log_probs = self.last_rows(&self.inputs, rows.sentences).concat();
        Ok(())
    }
}

#[test]
fn cached_equals_uncached_and_scores_equal_forced_scores() {
    for model in models() {
        let sources = sources();
        for beam in [1, 4] {
            let cached = translate(&model, &sources, beam);
            let special = special();
            let mut uncached = Uncached::new(&model, &special, &sources);
            let plain = search(&mut uncached, &options(&sources, beam)).unwrap();
            for (sentence, (a, b)) in cached.iter().zip(&plain).enumerate() {
                assert_eq!(a[0].tokens, b[0].tokens);
                assert!((a[0].log_prob - b[0].log_prob).abs() < 1e-3);
                let forced = forced_score(&uncached, sentence, &a[0]);
                assert!((a[0].log_prob - forced).abs() < 1e-3, "{} {forced}", a[0].log_prob);
            }
        }
    }
}

/// Log-probability of a hypothesis, token by token, without search.
fn forced_score(model: &Uncached, sentence: usize, hypothesis: &Hypothesis) -> f64 {
    let mut labels = hypothesis.tokens.clone();
    if hypothesis.finished() {
        labels.push(2);
    }
    let mut input = vec![1];
    let mut total = 0.0;
    for label in labels {
        total += model.last_rows(&[input.clone()], &[sentence])[0][label as usize] as f64;
        input.push(label);
    }
    total
}

/// A trained model gives the same tokens on its whole test set, sentence by sentence, 64 at a time and without a cache.
/// `$MT_TEST_MODEL` is a run or model directory whose configuration names a test set.
#[test]
fn a_trained_model_decodes_alike_in_every_way() {
    let Some(directory) = std::env::var_os("MT_TEST_MODEL").map(std::path::PathBuf::from) else {
        return common::skipped("a_trained_model_decodes_alike_in_every_way", "MT_TEST_MODEL is unset");
    };
    let config = mt::config::load_resolved(directory.join("config.toml")).unwrap();
    let tokenizers = mt::data::tokenizers::Tokenizers::load(&directory).unwrap();
    let model = Transformer::new(&config.model, mt::model_dir::vocabulary(&tokenizers), &Device::Cpu).unwrap();
    mt::model_dir::load_parameters(&directory.join("model.safetensors"), &model).unwrap();
    let special = SpecialTokens::new(&tokenizers);
    let text = std::fs::read_to_string(&config.data.test.unwrap().location.sides()[0]).unwrap();
    let end = tokenizers.source.eos_id();
    let mut sources: Vec<_> = text.lines().map(|line| tokenizers.source.encode(line)).collect();
    sources.iter_mut().for_each(|ids| ids.push(end));
    for beam in [1, 4] {
        let mut tokens = 0;
        for batch in sources.chunks(64) {
            let together = translate_with(&model, &special, batch, beam);
            let mut uncached = Uncached::new(&model, &special, batch);
            let plain = search(&mut uncached, &options(batch, beam)).unwrap();
            for (i, source) in batch.iter().enumerate() {
                let alone = translate_with(&model, &special, std::slice::from_ref(source), beam);
                assert_eq!(alone[0], together[i], "alone and together: {source:?}");
                assert_eq!(plain[i][0].tokens, together[i][0].tokens, "uncached and cached: {source:?}");
                tokens += together[i][0].tokens.len();
            }
        }
        eprintln!("beam {beam}: {} sentences, {tokens} tokens, all alike", sources.len());
        assert!(tokens > 0);
    }
}
