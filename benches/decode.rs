//! Times translation of random sentences to a fixed length, with the same call as `mt translate`.
//!
//!     cargo bench --bench decode -- --shape base --beam 4 --batch 64
//!
//! The counterpart of `benches/ctranslate2_decode.py`, which reads the weights that `--export` writes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use candle_core::Device;
use clap::{Parser, ValueEnum};
use mt::checkpoint::TensorFile;
use mt::decode::ensemble::Ensemble;
use mt::decode::neural::{Neural, SpecialTokens};
use mt::decode::source::Source;
use mt::decode::translate::TranslateOptions;
use mt::decode::{DecodeConfig, Strategy};
use mt::infer::{ComputeType, Engine, model_values};
use mt::model::{ModelConfig, NormPlacement, Preset, Sinusoid, Transformer, Vocabulary, layout};
use mt::model_dir::{engine, slots};
use mt::rng::Stream;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const END: u32 = 2;
/// Smaller ids are special tokens.
const FIRST_WORD: u64 = 4;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    /// 6+6 layers, 512/2048, 8 heads, V 32,000.
    Base,
    /// 4+4 layers, 128/256, 4 heads, V 8,000.
    Tiny,
    /// That of NLLB-200's distilled model with 600 million parameters: 12+12 layers, 1024/4096, 16 heads, V 256,206.
    Nllb,
}

impl Shape {
    /// The model, and the size of its vocabulary.
    fn sizes(self) -> (ModelConfig, usize) {
        let nllb = || ModelConfig {
            encoder_layers: 12,
            decoder_layers: 12,
            norm: NormPlacement::Pre,
            final_norm: true,
            sinusoid: Sinusoid::Tensor2Tensor,
            first_position: 2,
            ..ModelConfig::from_preset(Preset::Big)
        };
        match self {
            Self::Base => (ModelConfig::from_preset(Preset::Base), 32_000),
            Self::Tiny => (ModelConfig::from_preset(Preset::Tiny), 8_000),
            Self::Nllb => (nllb(), 256_206),
        }
    }
}

/// Measures translation speed in target tokens per second.
#[derive(Parser)]
struct Args {
    #[arg(long, value_enum, default_value = "tiny")]
    shape: Shape,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// f32, bf16 or int8.
    #[arg(long, value_parser = precision, default_value = "f32")]
    precision: ComputeType,
    #[arg(long, default_value_t = 1)]
    beam: usize,
    /// Sentences translated together.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Tokens per source sentence.
    #[arg(long, default_value_t = 16)]
    source: usize,
    /// Tokens per translation.
    #[arg(long, default_value_t = 20)]
    target: usize,
    /// Timed passes; the fastest counts.
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Sentences per pass.
    #[arg(long, default_value_t = 64)]
    sentences: usize,
    /// Write the weights to this file, and time nothing.
    #[arg(long)]
    export: Option<PathBuf>,
    /// Read the weights from this file, as `mt translate` does.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Passed by `cargo bench`; no effect.
    #[arg(long, hide = true)]
    bench: bool,
}

fn precision(name: &str) -> Result<ComputeType, String> {
    ComputeType::named(name).ok_or_else(|| format!("one of {}", ComputeType::NAMES.join(", ")))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    mt::device::configure_libraries();
    let args = Args::parse();
    mt::device::set_threads(args.threads)?;
    let (config, v) = args.shape.sizes();
    let vocabulary = Vocabulary { source: v, target: v, source_padding: 0, target_padding: 0 };
    let initialised = || -> candle_core::Result<Transformer> {
        let model = Transformer::new(&config, vocabulary, &Device::Cpu)?;
        model.initialise(1)?;
        Ok(model)
    };
    if let Some(file) = &args.export {
        let model = initialised()?;
        let values = model.parameters().values();
        let mut tensors = HashMap::new();
        for entry in model.parameters().entries() {
            let tensor = values.narrow(0, entry.offset, entry.len())?.reshape(entry.shape.clone())?;
            tensors.insert(entry.name.clone(), tensor);
        }
        candle_core::safetensors::save(&tensors, file)?;
        return Ok(());
    }
    let special = SpecialTokens {
        source_end: END,
        language_last: false,
        start: 1,
        end: END,
        languages: Vec::new(),
        forbidden: vec![0, 1, 3],
        characters: Arc::default(),
    };
    let engine = match &args.weights {
        Some(file) => {
            let layout = layout::layout(&config, vocabulary);
            let stored = TensorFile::open(file, &slots(layout.entries()))?;
            engine(&config, &layout, stored, args.precision)?
        }
        None => Engine::new(&config, &model_values(&initialised()?), args.precision)?,
    };
    let neural = Ensemble::from(Neural::from_engine(engine, special));
    let mut random = Stream::new(1, "sentences");
    let sources: Vec<Source> = (0..args.sentences)
        .map(|line| {
            let word = |_| (FIRST_WORD + random.below(v as u64 - FIRST_WORD)) as u32;
            Source { line, ids: (0..args.source).map(word).collect(), ..Source::default() }
        })
        .collect();
    let options = TranslateOptions {
        strategy: Strategy::Beam { width: args.beam },
        min_length: args.target,
        max_length: Some(args.target),
        ..TranslateOptions::from_config(&DecodeConfig::default())
    };
    let pass = || -> Result<f64, mt::error::Error> {
        let started = Instant::now();
        for batch in sources.chunks(args.batch) {
            let found = neural.translate(&[batch.to_vec()], &[], &options, |_| true)?.unwrap_or_default();
            assert!(found.iter().all(|n_best| n_best[0].tokens.len() == args.target));
        }
        Ok(started.elapsed().as_secs_f64())
    };
    pass()?;
    let mut seconds = (0..args.passes).map(|_| pass()).collect::<Result<Vec<_>, _>>()?;
    seconds.sort_by(f64::total_cmp);
    let tokens = (args.sentences * args.target) as f64;
    println!(
        "mt {}, {:?} {}, beam {}, {} at once, {} threads: {:.0} target tokens/s (best of {}; slowest {:.0})",
        env!("CARGO_PKG_VERSION"),
        args.shape,
        args.precision,
        args.beam,
        args.batch,
        args.threads,
        tokens / seconds[0],
        args.passes,
        tokens / seconds[seconds.len() - 1],
    );
    Ok(())
}
