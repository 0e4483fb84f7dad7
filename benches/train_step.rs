//! Times full training updates on sentences of equal length: forward, smoothed loss, backward, clip, Adam.
//!
//!     cargo bench --bench train_step -- --shape base --threads 2 --updates 7
//!     target/gpu-test/train_step --shape base --device cuda --precision bf16 --sentences 250 --length 100 --profile
//!
//! The counterpart of `benches/pytorch_train.py`: same model, same dropouts, same batch, same tokens counted. An update
//! ends when its losses are known.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use candle_core::DType;
use clap::{Parser, ValueEnum};
use mt::model::{ModelConfig, Preset, Sequences, Transformer, Vocabulary};
use mt::ops::Mode;
use mt::ops::loss::Targets;
use mt::ops::matmul::Precision;
use mt::ops::optimizer::Counts;
use mt::rng::{self, Stream};
use mt::run::backend;
use mt::train::backend::Backend;
use mt::train::optimizer::{Optimizer, OptimizerConfig};
use mt::train::profile::Profiler;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Smaller ids are special tokens.
const FIRST_WORD: u64 = 4;
const CLIP: f64 = 1.0;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    /// 6+6 layers, 512/2048, 8 heads, V 32,000; 32 sentences of 32 tokens.
    Base,
    /// 6+6 layers, 1024/4096, 16 heads, V 32,000; 32 sentences of 32 tokens.
    Big,
    /// 4+4 layers, 128/256, 4 heads, V 10,000; 256 sentences of 16 tokens.
    Tiny,
}

impl Shape {
    /// Preset, vocabulary, sentences, tokens per sentence.
    fn sizes(self) -> (Preset, usize, usize, usize) {
        match self {
            Self::Base => (Preset::Base, 32_000, 32, 32),
            Self::Big => (Preset::Big, 32_000, 32, 32),
            Self::Tiny => (Preset::Tiny, 10_000, 256, 16),
        }
    }
}

/// Measures training speed in target tokens per second: the median over full updates.
#[derive(Parser)]
struct Args {
    #[arg(long, value_enum, default_value = "tiny")]
    shape: Shape,
    /// Sentences per batch; default: the shape's.
    #[arg(long)]
    sentences: Option<usize>,
    /// Tokens per sentence; default: the shape's.
    #[arg(long)]
    length: Option<usize>,
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Afterwards, make the same updates again and print where their time went.
    #[arg(long)]
    profile: bool,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(long, value_parser = precision, default_value = "f32")]
    precision: Precision,
    /// On a GPU: leave small products to cuBLASLt, to compare it with the kernels that otherwise compute them.
    #[arg(long)]
    library: bool,
    /// Timed updates.
    #[arg(long, default_value_t = 7)]
    updates: usize,
    /// Updates before the clock starts.
    #[arg(long, default_value_t = 2)]
    warmup: usize,
    /// Passed by `cargo bench`; no effect.
    #[arg(long, hide = true)]
    bench: bool,
}

fn precision(name: &str) -> Result<Precision, String> {
    Precision::named(name).ok_or_else(|| format!("one of {}", Precision::NAMES.join(", ")))
}

/// A GPU's backend without kernels for small products.
#[cfg(feature = "cuda")]
fn library_backend(model: &Transformer) -> Result<Box<dyn Backend>, Box<dyn Error>> {
    let queue = mt::gpu::cuda::Cuda::on(model.parameters().device())?;
    let mut engine = mt::gpu::Engine::new(model, queue, model.parameters().compute())?;
    engine.use_library();
    Ok(Box::new(mt::train::backend::OnGpu::new(engine)))
}

#[cfg(not(feature = "cuda"))]
fn library_backend(_: &Transformer) -> Result<Box<dyn Backend>, Box<dyn Error>> {
    Err("--library needs a build with CUDA".into())
}

/// The time of an update, in seconds.
struct Time {
    /// Between the losses of the previous update being known and those of this one.
    update: f64,
    /// The part of it spent waiting for the device: next to nothing if the device waits for the host instead.
    waited: f64,
}

type Batch = (Sequences, Sequences, Targets);

struct Timing<'a> {
    backend: &'a mut dyn Backend,
    optimizer: &'a mut Optimizer,
    /// Updates made so far.
    seen: u64,
}

impl Timing<'_> {
    fn run(&mut self, batches: &[Batch], mut profiler: Option<&mut Profiler>) -> Result<Vec<Time>, Box<dyn Error>> {
        let (mut times, mut under_way, mut before) = (Vec::new(), 0, Instant::now());
        for (number, (source, target, targets)) in (1..).zip(batches) {
            self.seen += 1;
            self.backend.begin()?;
            let mode = Mode::training(rng::key(1, "dropout", &[self.seen]));
            self.backend.pass(source, target, targets, &mode)?;
            self.backend.reduce(Counts { tokens: targets.labels.len() as u64, ..Counts::default() })?;
            self.backend.decide(CLIP)?;
            self.optimizer.step_with(self.backend, self.seen, 1e-4)?;
            under_way += 1;
            // As in training, the device gets the next update before the outcome of the last one is asked for.
            let is_last = number == batches.len();
            let waits = is_last || profiler.as_ref().is_some_and(|profiler| profiler.begins_after(under_way));
            let stay = if waits { 0 } else { self.backend.depth() - 1 };
            while under_way > stay {
                let asked = Instant::now();
                let outcome = self.backend.outcome()?;
                under_way -= 1;
                let known = Instant::now();
                times.push(Time { update: (known - before).as_secs_f64(), waited: (known - asked).as_secs_f64() });
                before = known;
                if !outcome.is_made {
                    return Err(format!("loss or gradient of update {} is not finite", times.len()).into());
                }
                if let Some(profiler) = &mut profiler {
                    profiler.updated();
                }
            }
        }
        Ok(times)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    mt::device::configure_libraries();
    let args = Args::parse();
    mt::device::set_threads(args.threads)?;
    let (preset, vocabulary, batch, length) = args.shape.sizes();
    let (batch, length) = (args.sentences.unwrap_or(batch), args.length.unwrap_or(length));
    let device = mt::device::open(&args.device)?;
    let mut config = ModelConfig::from_preset(preset);
    (config.attention_dropout, config.activation_dropout) = (0.1, 0.1);
    let compute = match args.precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
    };
    let vocabulary = Vocabulary { source: vocabulary, target: vocabulary, source_padding: 0, target_padding: 0 };
    let model = Transformer::with_precision(&config, vocabulary, &device, compute)?;
    model.initialise(1)?;
    let mut backend = if args.library { library_backend(&model)? } else { backend::open(&model, None)? };
    let mut optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.0)?;
    let mut stream = Stream::new(1, "batches");
    let mut batch_of = || {
        let mut ids = || -> Vec<u32> {
            (0..batch * length)
                .map(|_| (FIRST_WORD + stream.below(vocabulary.source as u64 - FIRST_WORD)) as u32)
                .collect()
        };
        let lengths = Arc::new(vec![length as u32; batch]);
        let (source, target, labels) = (ids(), ids(), ids());
        let sequences = |ids| Sequences { ids, lengths: lengths.clone(), length };
        (sequences(source), sequences(target), Targets { labels, padding: 0, smoothing: 0.1, ..Targets::default() })
    };
    let batches: Vec<_> = (0..args.warmup + args.updates).map(|_| batch_of()).collect();
    let mut timing = Timing { backend: &mut *backend, optimizer: &mut optimizer, seen: 0 };
    let mut times = timing.run(&batches, None)?.split_off(args.warmup);
    let profile = if args.profile {
        let mut profiler = Profiler::default();
        timing.run(&batches, Some(&mut profiler))?;
        profiler.finish(&mut *backend)?
    } else {
        None
    };
    let waited = median(times.iter().map(|time| time.waited).collect());
    times.sort_by(|a, b| a.update.total_cmp(&b.update));
    let [fastest, typical, slowest] = [0, times.len() / 2, times.len() - 1].map(|place| times[place].update);
    if let Some(profile) = profile {
        println!("{profile}");
        if let Some(floor) = profile.floor() {
            println!("without these clocks an update takes {:.2} times the floor", typical / floor);
        }
    }
    let tokens = (batch * length) as f64;
    println!(
        "mt {}, {:?} on {}, {batch}×{length}, {}, {} threads: {:.0} target tokens/s (median of {} updates, {:.2} ms \
         each, of which {:.2} waiting for the device; slowest {:.0}, fastest {:.0})",
        env!("CARGO_PKG_VERSION"),
        args.shape,
        args.device,
        args.precision,
        args.threads,
        tokens / typical,
        times.len(),
        1e3 * typical,
        1e3 * waited,
        tokens / slowest,
        tokens / fastest,
    );
    Ok(())
}
