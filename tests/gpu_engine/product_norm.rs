//! The kernels of small products joined with residual sums and norms, beside the definitions of both in float64.

use std::sync::Arc;

use mt::gpu::launch::{Kernels, NormArgument, Side};
use mt::gpu::queue::{Address, Epilogue, Matrix, Number, Product, Queue};
use mt::ops::dropout::Dropout;
use mt::ops::norm::NormKind;
use mt::rng::Stream;

use super::error_by_norm;
use super::norm::{self, EPS, get_numbers, put_numbers, rounded, sums_of};
use super::product::{self, Drawn};
use crate::common::emulator::{Emulator, guarded_queue, on_emulator, put};

const NUMBER: Number = Number::Bf16;

fn assert_close(got: &[f32], want: &[f64], bound: f64, what: &str) {
    let want: Vec<f32> = want.iter().map(|&x| x as f32).collect();
    let error = error_by_norm(got, &want);
    assert!(error < bound, "{what}: {error}");
}

/// What both passes take beside their products, as put on the device, and its values.
struct Given {
    /// x, what is there before the product of dy, what is added to the norm's gradient, bias, γ, β.
    values: [Vec<f64>; 6],
    side: Side,
    norm: NormArgument,
    dropout: Dropout,
}

/// Results and products, forward and back, of a joint with `m` rows of `n` numbers after a sub-layer with `k` inputs.
fn joints(queue: &Arc<dyn Queue>, [m, n, k]: [usize; 3], kind: NormKind, rate: f64) {
    let on = &**queue;
    let mut stream = Stream::new((m + n + k) as u64, "product_norm");
    // Products of about the size of what they are added to.
    let scale = 1.0 / (k as f64).sqrt();
    let factors = [[m, k], [n, k], [m, k], [k, n]].map(|sizes| Drawn::new(on, sizes, &mut stream));
    let [context, weight, g, weight_back] = &factors;
    let mut draw = |count: usize, scale: f64, shift: f64| -> Vec<f64> {
        (0..count).map(|_| rounded(shift + scale * stream.normal(), NUMBER)).collect()
    };
    let size = 1.0 / scale;
    let [x, before, addend] = [0; 3].map(|_| draw(m * n, size, 0.3 * size));
    let (bias, gamma, beta) =
        (draw(n, size, 0.0), draw(n, 0.2, 1.0), draw(n, if kind.is_centred() { 0.5 } else { 0.0 }, 0.0));
    let dropout = if rate > 0.0 { Dropout::new(rate, 11) } else { Dropout::OFF };
    let rows: Vec<u32> = (0..m as u32).collect();
    let side = Side { padded: put(on, &rows), rows: m, sentences: 1, longest: m, ..Side::NONE };
    let norm = norm::argument(on, [&gamma, &beta], kind);
    let given = Given { values: [x, before, addend, bias, gamma, beta], side, norm, dropout };
    let h = product::by_definition([m, n, k], (context, false), (weight, true));
    let of_dy = product::by_definition([m, n, k], (g, false), (weight_back, false));
    let what = format!("{m}×{n}×{k}, {kind:?}, dropout {rate}");
    for post in [true, false] {
        compare(queue, [m, n, k], [context, weight, g, weight_back], &given, [&h, &of_dy], post, kind, &what);
    }
}

/// As between sub-layers with post-norm, where the product is added to a gradient, or with pre-norm, where the gradient
/// of the stream is added to the norm's, in place.
#[allow(clippy::too_many_arguments)]
fn compare(
    queue: &Arc<dyn Queue>,
    [m, n, k]: [usize; 3],
    [context, weight, g, weight_back]: [&Drawn; 4],
    given: &Given,
    [h, of_dy]: [&[f64]; 2],
    post: bool,
    kind: NormKind,
    what: &str,
) {
    let on = &**queue;
    let Given { values: [x, before, addend, bias, gamma, beta], side, norm, dropout } = given;
    let kernels = Kernels::new(queue.clone(), NUMBER, true);
    let room = || on.allocate(NUMBER.bytes(m * n)).unwrap();
    let (s, y, dh, statistics) = (room(), room(), room(), on.allocate(8 * m).unwrap());
    let of = |a, b, c| {
        let (number, epilogue) = (NUMBER, Epilogue::None);
        Product { m, n, k, a, b, c: Matrix::new(c, n), number, result: number, accumulate: false, epilogue }
    };
    let forward = of(context.matrix, weight.matrix.t(), s);
    assert!(kernels.joins_norm(&forward));
    let (x_at, bias_at) = (put_numbers(on, x, NUMBER), put_numbers(on, bias, Number::F32));
    kernels.product_add_norm(&forward, [y, statistics], [x_at, bias_at], *norm, *dropout, side).unwrap();

    let zero = vec![0.0; m * n];
    let (before, addend) = if post { (before, &zero) } else { (&zero, addend) };
    let backward = of(g.matrix, weight_back.matrix, if post { put_numbers(on, before, NUMBER) } else { room() });
    let backward = Product { accumulate: post, ..backward };
    assert!(kernels.joins_norm(&backward));
    let (ds, addend_at) = match post {
        true => (room(), Address::NONE),
        false => [put_numbers(on, addend, NUMBER); 2].into(),
    };
    let blocks = kernels.product_norm_blocks(m);
    let partial = on.allocate(4 * 3 * n * blocks).unwrap();
    let results = [ds, dh, partial];
    kernels.product_norm_backward(&backward, results, [addend_at, s, statistics], *norm, *dropout, side).unwrap();

    let dy: Vec<f64> = of_dy.iter().zip(before).map(|(product, before)| product + before).collect();
    let want = norm::by_definition([x, h, bias, gamma, beta, &dy, addend], n, kind, dropout, NUMBER);
    let rows = [s, y, ds, dh].map(|at| get_numbers(on, at, m * n, NUMBER));
    let sums = sums_of(on, partial, blocks, n);
    // Rows are rounded once; a sum that is as near to another number of bf16 may be rounded to that.
    let bounds = ["s", "y", "ds", "dh"].map(|name| (name, 3e-3)).into_iter();
    let bounds = bounds.chain(["dγ", "dβ", "dbias"].map(|name| (name, 1e-4)));
    for (((name, bound), got), want) in bounds.zip(rows.iter().chain(&sums)).zip(&want) {
        assert_close(got, want, bound, &format!("{name}, {what}, post-norm {post}"));
    }

    // Without a norm after it, without a gradient of its own.
    let bare = Product { c: Matrix::new(room(), n), ..forward };
    let none = NormArgument::new(Address::NONE, Address::NONE, EPS, kind);
    kernels.product_add_norm(&bare, [Address::NONE; 2], [x_at, bias_at], none, *dropout, side).unwrap();
    assert_eq!(get_numbers(on, bare.c.at, m * n, NUMBER), rows[0], "s without a norm, {what}");
    let again = room();
    let backward = Product { c: Matrix::new(put_numbers(on, before, NUMBER), n), accumulate: true, ..backward };
    let addend_at = put_numbers(on, addend, NUMBER);
    let given = [addend_at, s, statistics];
    kernels.product_norm_backward(&backward, [again, Address::NONE, partial], given, *norm, *dropout, side).unwrap();
    assert_eq!(get_numbers(on, again, m * n, NUMBER), rows[2], "ds without dh, {what}");
}

#[test]
fn products_joined_with_norms_are_their_definition() {
    let queue = guarded_queue();
    for sizes in [[1, 8, 8], [32, 128, 128], [33, 128, 256], [70, 72, 40], [131, 24, 200], [16, 120, 512], [40, 64, 96]]
    {
        for kind in NormKind::ALL {
            joints(&queue, sizes, *kind, if *kind == NormKind::Layer { 0.2 } else { 0.0 });
        }
    }
}

#[test]
fn threads_of_products_joined_with_norms_do_not_race() {
    if !on_emulator("threads_of_products_joined_with_norms_do_not_race") {
        return;
    }
    let queue: Arc<dyn Queue> = Arc::new(Emulator::that_sees_races(true));
    joints(&queue, [40, 104, 200], NormKind::Layer, 0.2);
}

/// Rows that are wider than a block, and those that do not lie side by side.
#[test]
fn other_products_are_not_joined_with_norms() {
    let kernels = Kernels::new(guarded_queue(), NUMBER, true);
    let matrix = |stride: usize| Matrix::new(Address::NONE.plus(4096), stride);
    let product = |n: usize, stride: usize| Product {
        m: 64,
        n,
        k: 64,
        a: matrix(64),
        b: matrix(64).t(),
        c: matrix(stride),
        number: NUMBER,
        result: NUMBER,
        accumulate: false,
        epilogue: Epilogue::None,
    };
    assert!(kernels.joins_norm(&product(128, 128)));
    for (n, stride) in [(136, 136), (64, 72), (61, 61)] {
        assert!(!kernels.joins_norm(&product(n, stride)), "{n} columns, {stride} apart");
    }
}
