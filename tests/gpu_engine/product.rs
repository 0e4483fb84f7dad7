//! The kernels of small products on their own, beside their definition in float64.

use std::sync::Arc;

use mt::gpu::launch::{Kernels, WeightGradient};
use mt::gpu::queue::{Address, Epilogue, Matrix, Number, Product, Queue};
use mt::ops::dropout::Dropout;
use mt::rng::Stream;

use super::error_by_norm;
use crate::common::emulator::{Emulator, get, guarded_queue, on_emulator, put, to_bf16};

pub(crate) fn as_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// A matrix of random bf16 numbers, whose rows lie further apart than needed; what is between them is NaN.
pub(crate) struct Drawn {
    values: Vec<f32>,
    columns: usize,
    pub matrix: Matrix,
}

impl Drawn {
    pub(crate) fn new(queue: &dyn Queue, [rows, columns]: [usize; 2], stream: &mut Stream) -> Self {
        let stride = columns.next_multiple_of(8) + 8;
        let mut bits = vec![0xffff; (rows - 1) * stride + columns];
        let mut values = Vec::new();
        for row in bits.chunks_mut(stride) {
            for bits in &mut row[..columns] {
                *bits = to_bf16(stream.normal() as f32);
                values.push(as_f32(*bits));
            }
        }
        let matrix = Matrix::new(put(queue, &bits), stride);
        Self { values, columns, matrix }
    }

    fn at(&self, row: usize, column: usize, transposed: bool) -> f64 {
        let (row, column) = if transposed { (column, row) } else { (row, column) };
        f64::from(self.values[row * self.columns + column])
    }
}

/// [m, n] in float64.
pub(crate) fn by_definition([m, n, k]: [usize; 3], a: (&Drawn, bool), b: (&Drawn, bool)) -> Vec<f64> {
    let sum = |i: usize, j: usize| (0..k).map(|l| a.0.at(i, l, a.1) * b.0.at(l, j, b.1)).sum();
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| sum(i, j)).collect()
}

/// A result, [m, n], whose rows lie 8 numbers further apart than needed.
fn result(queue: &dyn Queue, c: Matrix, [m, n]: [usize; 2], number: Number) -> Vec<f32> {
    let count = (m - 1) * c.stride + n;
    let all = match number {
        Number::F32 => get::<f32>(queue, c.at, count),
        Number::Bf16 => get::<u16>(queue, c.at, count).into_iter().map(as_f32).collect(),
    };
    all.chunks(c.stride).flat_map(|row| row[..n].to_vec()).collect()
}

fn put_result(queue: &dyn Queue, [m, n]: [usize; 2], number: Number, value: f32) -> Matrix {
    let (stride, count) = (n + 8, (m - 1) * (n + 8) + n);
    let at = match number {
        Number::F32 => put(queue, &vec![value; count]),
        Number::Bf16 => put(queue, &vec![to_bf16(value); count]),
    };
    Matrix::new(at, stride)
}

fn assert_close(got: &[f32], want: &[f64], number: Number, what: &str) {
    let want: Vec<f32> = want.iter().map(|&x| x as f32).collect();
    let error = error_by_norm(got, &want);
    assert!(error < if number == Number::F32 { 1e-6 } else { 3e-3 }, "{what}: {error}");
}

/// A projection with every epilogue and type of result.
fn forward(queue: &Arc<dyn Queue>, [m, n, k]: [usize; 3]) {
    let mut stream = Stream::new((m + n + k) as u64, "product");
    let (x, w) = (Drawn::new(&**queue, [m, k], &mut stream), Drawn::new(&**queue, [n, k], &mut stream));
    let bias: Vec<f32> = (0..n).map(|_| as_f32(to_bf16(stream.normal() as f32))).collect();
    let kernels = Kernels::new(queue.clone(), Number::Bf16, true);
    for number in [Number::F32, Number::Bf16] {
        let bias_at = match number {
            Number::F32 => put(&**queue, &bias),
            Number::Bf16 => put(&**queue, &bias.iter().map(|&x| to_bf16(x)).collect::<Vec<_>>()),
        };
        for epilogue in [Epilogue::None, Epilogue::Bias(bias_at), Epilogue::BiasRelu(bias_at)] {
            let c = put_result(&**queue, [m, n], number, f32::NAN);
            let (a, b) = (x.matrix, w.matrix.t());
            let product =
                Product { m, n, k, a, b, c, number: Number::Bf16, result: number, accumulate: false, epilogue };
            assert!(kernels.has_kernel(&product));
            kernels.product(&product).unwrap();
            let mut want = by_definition([m, n, k], (&x, false), (&w, true));
            for (i, want) in want.iter_mut().enumerate() {
                match epilogue {
                    Epilogue::None => {}
                    Epilogue::Bias(_) => *want += f64::from(bias[i % n]),
                    Epilogue::BiasRelu(_) => *want = (*want + f64::from(bias[i % n])).max(0.0),
                }
            }
            let what = format!("{m}×{n}×{k}, {number:?}, {epilogue:?}");
            assert_close(&result(&**queue, c, [m, n], number), &want, number, &what);
        }
    }
}

/// A projection's input gradient, written, added, and back through relu.
fn backward(queue: &Arc<dyn Queue>, [m, n, k]: [usize; 3]) {
    let mut stream = Stream::new((m + n + k) as u64, "product");
    let (g, w) = (Drawn::new(&**queue, [m, k], &mut stream), Drawn::new(&**queue, [k, n], &mut stream));
    let kernels = Kernels::new(queue.clone(), Number::Bf16, true);
    let (number, epilogue) = (Number::Bf16, Epilogue::None);
    for (accumulate, before) in [(false, f32::NAN), (true, 3.0)] {
        let c = put_result(&**queue, [m, n], number, before);
        let (a, b) = (g.matrix, w.matrix);
        let product = Product { m, n, k, a, b, c, number, result: number, accumulate, epilogue };
        assert!(kernels.has_kernel(&product));
        kernels.product(&product).unwrap();
        let mut want = by_definition([m, n, k], (&g, false), (&w, false));
        want.iter_mut().for_each(|want| *want += if accumulate { f64::from(before) } else { 0.0 });
        let what = format!("{m}×{n}×{k}, backward, added {accumulate}");
        assert_close(&result(&**queue, c, [m, n], number), &want, number, &what);
    }
}

fn through_relu(queue: &Arc<dyn Queue>, [m, n, k]: [usize; 3]) {
    let mut stream = Stream::new((m + n + k) as u64, "product");
    let (g, w) = (Drawn::new(&**queue, [m, k], &mut stream), Drawn::new(&**queue, [k, n], &mut stream));
    let hidden = Drawn::new(&**queue, [m, n], &mut stream);
    let kernels = Kernels::new(queue.clone(), Number::Bf16, true);
    let (number, epilogue) = (Number::Bf16, Epilogue::None);
    let c = put_result(&**queue, [m, n], number, f32::NAN);
    let (a, b) = (g.matrix, w.matrix);
    assert_eq!(hidden.matrix.stride, c.stride);
    let product = Product { m, n, k, a, b, c, number, result: number, accumulate: false, epilogue };
    kernels.product_through_relu(&product, hidden.matrix.at, 1.25).unwrap();
    let mut want = by_definition([m, n, k], (&g, false), (&w, false));
    for (want, hidden) in want.iter_mut().zip(&hidden.values) {
        *want *= if *hidden > 0.0 { 1.25 } else { 0.0 };
    }
    assert_close(&result(&**queue, c, [m, n], number), &want, number, &format!("{m}×{n}×{k}, through relu"));
}

/// A projection through relu and dropout. Rows of the padded batch lie twice as far apart.
fn dropped(queue: &Arc<dyn Queue>, [m, n, k]: [usize; 3]) {
    let mut stream = Stream::new((m + n + k) as u64, "product");
    let (x, w) = (Drawn::new(&**queue, [m, k], &mut stream), Drawn::new(&**queue, [n, k], &mut stream));
    let kernels = Kernels::new(queue.clone(), Number::Bf16, true);
    let bias = put(&**queue, &vec![to_bf16(0.5); n]);
    let padded = put(&**queue, &(0..m as u32).map(|row| 2 * row).collect::<Vec<_>>());
    let (number, c) = (Number::Bf16, put_result(&**queue, [m, n], Number::Bf16, f32::NAN));
    let (a, b, epilogue) = (x.matrix, w.matrix.t(), Epilogue::BiasRelu(bias));
    let product = Product { m, n, k, a, b, c, number, result: number, accumulate: false, epilogue };
    let dropout = Dropout::new(0.3, 7);
    kernels.product_with_dropout(&product, dropout, padded).unwrap();
    let mut want = by_definition([m, n, k], (&x, false), (&w, true));
    for (i, want) in want.iter_mut().enumerate() {
        *want = (*want + 0.5).max(0.0) * f64::from(dropout.factor(i / n * 2 * n + i % n));
    }
    assert_close(&result(&**queue, c, [m, n], number), &want, number, &format!("{m}×{n}×{k}, with dropout"));
}

/// Projections of these sizes together, every other one with a bias.
fn projections(queue: &Arc<dyn Queue>, all: &[[usize; 3]]) {
    let mut stream = Stream::new(all.len() as u64, "product");
    let kernels = Kernels::new(queue.clone(), Number::Bf16, true);
    let bias = put(&**queue, &vec![to_bf16(0.5); 1024]);
    let made = all.iter().enumerate().map(|(i, &[m, n, k])| {
        let (x, w) = (Drawn::new(&**queue, [m, k], &mut stream), Drawn::new(&**queue, [n, k], &mut stream));
        let c = put_result(&**queue, [m, n], Number::Bf16, f32::NAN);
        let (a, b, number) = (x.matrix, w.matrix.t(), Number::Bf16);
        let epilogue = if i % 2 == 0 { Epilogue::Bias(bias) } else { Epilogue::None };
        let product = Product { m, n, k, a, b, c, number, result: number, accumulate: false, epilogue };
        assert!(kernels.is_one_of_many(&product));
        (x, w, product)
    });
    let made: Vec<_> = made.collect();
    let products: Vec<Product> = made.iter().map(|(_, _, product)| *product).collect();
    kernels.products(&products).unwrap();
    for (x, w, Product { m, n, k, c, epilogue, .. }) in &made {
        let bias = if *epilogue == Epilogue::None { 0.0 } else { 0.5 };
        let want = by_definition([*m, *n, *k], (x, false), (w, true)).iter().map(|sum| sum + bias).collect::<Vec<_>>();
        let what = format!("{m}×{n}×{k}, one of many");
        assert_close(&result(&**queue, *c, [*m, *n], Number::Bf16), &want, Number::Bf16, &what);
    }
}

/// The sum of products [m, n] with sums of so many terms.
fn sum_of_products(queue: &Arc<dyn Queue>, [m, n]: [usize; 2], terms: &[usize]) {
    let mut stream = Stream::new((m + n) as u64, "product");
    let kernels = Kernels::new(queue.clone(), Number::Bf16, true);
    let (number, epilogue, c) = (Number::Bf16, Epilogue::None, put_result(&**queue, [m, n], Number::Bf16, f32::NAN));
    let factors =
        terms.iter().map(|&k| (Drawn::new(&**queue, [m, k], &mut stream), Drawn::new(&**queue, [k, n], &mut stream)));
    let factors: Vec<_> = factors.collect();
    let products = factors.iter().zip(terms).enumerate().map(|(i, ((g, w), &k))| {
        let (a, b) = (g.matrix, w.matrix);
        Product { m, n, k, a, b, c, number, result: number, accumulate: i > 0, epilogue }
    });
    let products: Vec<Product> = products.collect();
    assert!(kernels.has_sum(&products));
    kernels.sum_of_products(&products).unwrap();
    let mut want = vec![0.0; m * n];
    for ((g, w), &k) in factors.iter().zip(terms) {
        let sums = by_definition([m, n, k], (g, false), (w, false));
        want.iter_mut().zip(sums).for_each(|(want, sum)| *want += sum);
    }
    assert_close(&result(&**queue, c, [m, n], number), &want, number, &format!("{m}×{n}, sums of {terms:?} terms"));
}

/// Weight gradients of these sizes [m, n, k] together, every other one with that of a bias.
fn weight_gradients(queue: &Arc<dyn Queue>, all: &[[usize; 3]]) {
    let mut stream = Stream::new(all.len() as u64, "product");
    let kernels = Kernels::new(queue.clone(), Number::Bf16, true);
    let made: Vec<_> = all
        .iter()
        .enumerate()
        .map(|(i, &[m, n, k])| {
            let (g, x) = (Drawn::new(&**queue, [k, m], &mut stream), Drawn::new(&**queue, [k, n], &mut stream));
            let c = put_result(&**queue, [m, n], Number::F32, 2.0);
            let bias = if i % 2 == 0 { put(&**queue, &vec![1f32; m]) } else { Address::NONE };
            let (a, b, number, result) = (g.matrix.t(), x.matrix, Number::Bf16, Number::F32);
            let product = Product { m, n, k, a, b, c, number, result, accumulate: true, epilogue: Epilogue::None };
            assert!(kernels.takes_weight_gradient(&product));
            (g, x, WeightGradient { product, bias })
        })
        .collect();
    let gradients: Vec<WeightGradient> = made.iter().map(|(_, _, gradient)| *gradient).collect();
    kernels.add_weight_gradients(&gradients).unwrap();
    for (g, x, WeightGradient { product, bias }) in &made {
        let Product { m, n, k, c, .. } = *product;
        let want: Vec<f64> = by_definition([m, n, k], (g, true), (x, false)).iter().map(|sum| 2.0 + sum).collect();
        let what = format!("{m}×{n}×{k}, weights");
        assert_close(&result(&**queue, c, [m, n], Number::F32), &want, Number::F32, &what);
        if *bias != Address::NONE {
            let sum = |i: usize| 1.0 + (0..k).map(|row| g.at(row, i, false)).sum::<f64>();
            let want: Vec<f64> = (0..m).map(sum).collect();
            assert_close(&get::<f32>(&**queue, *bias, m), &want, Number::F32, &format!("{what}, bias"));
        }
    }
}

/// Less than a block in every direction, exactly one, more than one; fewer steps than are fetched ahead, as many, and
/// more: of weight gradients, the first size is the number of terms.
const SIZES: [[usize; 3]; 7] =
    [[1, 8, 8], [64, 64, 32], [70, 72, 40], [131, 24, 200], [16, 136, 512], [65, 128, 128], [100, 16, 72]];

#[test]
fn small_products_are_their_definition() {
    let queue = guarded_queue();
    for sizes in SIZES {
        forward(&queue, sizes);
        backward(&queue, sizes);
        through_relu(&queue, sizes);
        dropped(&queue, sizes);
    }
    projections(&queue, &SIZES);
    // More than one launch takes.
    projections(&queue, &[[3, 16, 8]; 70]);
    sum_of_products(&queue, [70, 72], &[8, 512, 200, 40]);
    weight_gradients(&queue, &SIZES.map(|[rows, out, input]| [out, input, rows]));
    // More than one launch takes.
    weight_gradients(&queue, &[[8, 16, 3]; 70]);
}

#[test]
fn threads_of_small_products_do_not_race() {
    if !on_emulator("threads_of_small_products_do_not_race") {
        return;
    }
    let queue: Arc<dyn Queue> = Arc::new(Emulator::that_sees_races(true));
    forward(&queue, [70, 72, 200]);
    backward(&queue, [70, 72, 200]);
    through_relu(&queue, [70, 72, 200]);
    projections(&queue, &[[72, 72, 200], [8, 8, 8]]);
    sum_of_products(&queue, [70, 72], &[200, 8, 200]);
    weight_gradients(&queue, &[[72, 72, 200], [8, 8, 5]]);
}

/// What kernels do not take is left to the library: large products, and rows that are no whole pieces of 16 bytes.
#[test]
fn other_products_are_left_to_the_library() {
    let queue = guarded_queue();
    let mut kernels = Kernels::new(queue, Number::Bf16, true);
    let matrix = |stride: usize| Matrix::new(Address::NONE.plus(4096), stride);
    let (number, epilogue) = (Number::Bf16, Epilogue::None);
    let product = |[m, n, k]: [usize; 3]| Product {
        m,
        n,
        k,
        a: matrix(k),
        b: matrix(k).t(),
        c: matrix(n),
        number,
        result: number,
        accumulate: false,
        epilogue,
    };
    assert!(kernels.has_kernel(&product([4096, 512, 128])));
    for sizes in [[4097, 512, 128], [8, 8, 520], [64, 61, 64], [64, 64, 60]] {
        assert!(!kernels.has_kernel(&product(sizes)), "{sizes:?}");
    }
    let small = product([64, 64, 64]);
    assert!(kernels.has_kernel(&small));
    let [starts, strides] = [Matrix::new(Address::NONE.plus(4104), 64), matrix(68)];
    for odd in [starts, strides] {
        for other in [Product { a: odd, ..small }, Product { b: odd.t(), ..small }, Product { c: odd, ..small }] {
            assert!(!kernels.has_kernel(&other), "{other:?}");
        }
    }
    assert!(!kernels.has_kernel(&Product { number: Number::F32, ..small }));
    assert!(!Kernels::new(guarded_queue(), Number::Bf16, false).has_kernel(&small), "beside odd widths");
    // A sum is of products with one result.
    let (b, c) = (matrix(64), matrix(64));
    let back = Product { b, c, ..small };
    let elsewhere = Product { c: Matrix::new(Address::NONE.plus(8192), 64), ..back };
    assert!(kernels.has_sum(&[back; 56]));
    for others in [&[][..], &[back; 57], &[small], &[back, elsewhere], &[back, Product { m: 8, ..back }]] {
        assert!(!kernels.has_sum(others), "{others:?}");
    }
    let bias = Address::NONE.plus(4096);
    assert!(kernels.is_one_of_many(&Product { epilogue: Epilogue::Bias(bias), ..small }));
    for other in [back, Product { epilogue: Epilogue::BiasRelu(bias), ..small }, product([4097, 512, 128])] {
        assert!(!kernels.is_one_of_many(&other), "{other:?}");
    }
    let weights = |rows: usize| Product {
        k: rows,
        a: matrix(64).t(),
        b: matrix(64),
        result: Number::F32,
        accumulate: true,
        ..product([64, 64, 64])
    };
    assert!(kernels.takes_weight_gradient(&weights(16_384)) && !kernels.takes_weight_gradient(&weights(16_385)));
    assert!(kernels.has_small_gradients(16_384, [(64, 128)].into_iter()));
    assert!(!kernels.has_small_gradients(16_385, [(64, 128)].into_iter()));
    assert!(!kernels.has_small_gradients(4097, [(64, 64), (512, 128)].into_iter()));
    kernels.most_multiplications = 0;
    assert!(!kernels.has_kernel(&small));
}
