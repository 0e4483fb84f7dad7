//! Times every operation, forward and backward, fused and in plain Candle operations: `cargo bench --bench ops`.
//!
//! Shapes are those of transformer-tiny on 256 sentences of 16 tokens. `cargo bench --bench ops -- fused` runs a
//! subset.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mt::ops::attention::{Attention, Core};
use mt::ops::embedding::{self, Embedding, Positions};
use mt::ops::feed_forward::{Activation, FeedForward};
use mt::ops::loss::{self, Targets};
use mt::ops::mask::Mask;
use mt::ops::matmul::{self, Matrix, Packed, Precision};
use mt::ops::norm::{self, Norm, NormKind};
use mt::ops::optimizer::{self, AdamStep};
use mt::ops::params::{Kind, ParameterLayout, Parameters};
use mt::ops::projection::Projection;
use mt::ops::sublayer::{self, NormPlacement, Residual};
use mt::ops::{Implementation, Mode};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SENTENCES: usize = 256;
const LENGTH: usize = 16;
const ROWS: usize = SENTENCES * LENGTH;
const D: usize = 128;
const HEADS: usize = 4;
const F: usize = 256;
const V: usize = 10_000;

fn numbers(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn tensor(shape: (usize, usize)) -> Tensor {
    Tensor::from_vec(numbers(shape.0 * shape.1), shape, &Device::Cpu).unwrap()
}

fn parameters() -> Arc<Parameters> {
    let mut layout = ParameterLayout::default();
    for (name, shape) in [
        ("qkv", &[3 * D, D][..]),
        ("kv", &[2 * D, D]),
        ("q", &[D, D]),
        ("out", &[D, D]),
        ("fc1", &[F, D]),
        ("fc2", &[D, F]),
        ("table", &[V, D]),
        ("norm", &[2, D]),
    ] {
        layout.add(name, shape, Kind::Weight);
    }
    let parameters = layout.allocate(&Device::Cpu, DType::F32).unwrap();
    let values = Tensor::from_vec(numbers(parameters.values().elem_count()), parameters.values().shape(), &Device::Cpu);
    parameters.values().slice_set(&(values.unwrap() * 0.1).unwrap(), 0, 0).unwrap();
    parameters
}

fn projection(parameters: &Arc<Parameters>, name: &str) -> Projection {
    Projection { weight: parameters.param(name).unwrap(), bias: None }
}

fn attention(parameters: &Arc<Parameters>, mode: &Mode, cross: bool) -> Attention {
    let core = Core {
        batch: SENTENCES,
        heads: HEADS,
        queries: LENGTH,
        keys: LENGTH,
        d_k: D / HEADS,
        d_v: D / HEADS,
        mask: Mask { keys: Arc::new(vec![LENGTH as u32; SENTENCES]), queries: None, causal: !cross },
        rotary: None,
        relative: None,
        dropout: mode.dropout(0.1, 1),
        record: None,
    };
    Attention {
        core,
        query: projection(parameters, if cross { "q" } else { "qkv" }),
        key_value: cross.then(|| projection(parameters, "kv")),
        output: projection(parameters, "out"),
    }
}

fn operations(criterion: &mut Criterion) {
    mt::device::configure_libraries();
    let parameters = parameters();
    let (x, memory) = (Var::from_tensor(&tensor((ROWS, D))).unwrap(), Var::from_tensor(&tensor((ROWS, D))).unwrap());
    let ids: Vec<u32> = (0..ROWS as u32).map(|i| 4 + i.wrapping_mul(7919) % (V as u32 - 4)).collect();
    let mut group = criterion.benchmark_group("operation");
    group.throughput(Throughput::Elements(ROWS as u64));
    for (name, implementation) in [("fused", Implementation::Fused), ("plain", Implementation::Reference)] {
        let mode = Mode { training: Some(1), implementation };
        let norm = || Norm { parameters: parameters.param("norm").unwrap(), eps: 1e-5, kind: NormKind::Layer };
        let residual = || Residual { placement: NormPlacement::Post, norm: norm(), dropout: mode.dropout(0.1, 2) };
        let mut both = |operation: &str, forward: &dyn Fn() -> Tensor| {
            group.bench_function(BenchmarkId::new(operation, name), |b| {
                b.iter(|| black_box(forward().sum_all().unwrap().backward().unwrap()))
            });
        };
        both("self-attention", &|| {
            sublayer::run(attention(&parameters, &mode, false), residual(), &x, None, &mode).unwrap()
        });
        both("cross-attention", &|| {
            sublayer::run(attention(&parameters, &mode, true), residual(), &x, Some(&memory), &mode).unwrap()
        });
        both("feed-forward", &|| {
            let (fc1, fc2) = (projection(&parameters, "fc1"), projection(&parameters, "fc2"));
            let inner =
                FeedForward { fc1, fc2, activation: Activation::Relu, gated: false, dropout: mode.dropout(0.1, 3) };
            sublayer::run(inner, residual(), &x, None, &mode).unwrap()
        });
        both("norm", &|| norm::run(&x, &norm(), &mode).unwrap());
        both("projection and loss", &|| {
            let targets = Targets { labels: ids.clone(), padding: 0, smoothing: 0.1, ..Targets::default() };
            loss::run(&x, &projection(&parameters, "table"), &targets, None, &mode).unwrap().0
        });
        both("embedding", &|| {
            let embedding = Embedding {
                table: parameters.param("table").unwrap(),
                positions: Positions::Fixed(Arc::new(numbers(LENGTH * D))),
                max_length: LENGTH,
                scale: (D as f32).sqrt(),
                dropout: mode.dropout(0.1, 4),
            };
            embedding::run(embedding, ids.clone(), LENGTH, parameters.root(), &mode).unwrap()
        });
    }
    group.finish();
}

fn products(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("product");
    for (m, n, k) in [(128, 384, 128), (128, 128, 256), (128, 2048, 512), (128, 512, 2048), (24, 10_000, 128)] {
        let (a, b, mut c) = (numbers(m * k), numbers(k * n), vec![0f32; m * n]);
        group.throughput(Throughput::Elements((2 * m * n * k) as u64));
        for precision in [Precision::F32, Precision::Bf16].into_iter().filter(|precision| precision.is_native()) {
            let packed = Packed::new(&b, k, n, precision);
            let id = BenchmarkId::new(format!("{precision:?}"), format!("{m}x{n}x{k}"));
            group.bench_function(id, |b| b.iter(|| packed.product(black_box(&a), &mut c, false)));
        }
    }
    for (rows, m, n) in [(4096, 384, 128), (1024, 2048, 512)] {
        let (a, b, mut c) = (numbers(rows * m), numbers(rows * n), vec![0f32; m * n]);
        group.throughput(Throughput::Elements((2 * m * n * rows) as u64));
        for precision in [Precision::F32, Precision::Bf16].into_iter().filter(|precision| precision.is_native()) {
            let id = BenchmarkId::new(format!("weight gradient, {precision:?}"), format!("{rows}x{m}x{n}"));
            group.bench_function(id, |bench| {
                bench.iter(|| matmul::transposed_product(black_box(&a), &b, rows, &mut c, false, precision))
            });
        }
    }
    for (m, n, k) in [(16, 16, 32), (32, 32, 64), (1, 512, 512), (4, 512, 512)] {
        let (a, b, mut c) = (numbers(m * k), numbers(k * n), vec![0f32; m * n]);
        group.throughput(Throughput::Elements((2 * m * n * k) as u64));
        group.bench_function(BenchmarkId::new("small", format!("{m}x{n}x{k}")), |bench| {
            bench.iter(|| matmul::fixed(m, n, k, Matrix::new(black_box(&a), m, k), &b, n, &mut c, n))
        });
    }
    group.finish();
}

fn update(criterion: &mut Criterion) {
    const PARAMETERS: usize = 10_000_000;
    let flat = || Tensor::from_vec(numbers(PARAMETERS), PARAMETERS, &Device::Cpu).unwrap();
    let (values, gradients, first) = (flat(), flat(), flat());
    let second = flat().sqr().unwrap();
    let step = AdamStep { learning_rate: 1e-4, betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.0, update: 10 };
    let mut group = criterion.benchmark_group("update of 10M parameters");
    group.throughput(Throughput::Elements(PARAMETERS as u64));
    group.bench_function("gradient norm", |b| b.iter(|| optimizer::norm(black_box(&gradients)).unwrap()));
    group.bench_function("adam, fused", |b| {
        b.iter(|| optimizer::adam(&values, &gradients, &first, &second, 1e-3, &step).unwrap())
    });
    group.bench_function("adam, plain", |b| {
        b.iter(|| optimizer::reference(&values, &gradients, &first, &second, 1e-3, &step).unwrap())
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = operations, products, update
}
criterion_main!(benches);
