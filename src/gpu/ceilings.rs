//! The highest rates of a device, measured with a large product and a large copy: a profile compares the engine's work
//! with them.

use std::time::Instant;

use super::Engine;
use super::queue::{Address, Epilogue, Matrix, Number, Product, Queue};
use crate::error::Result;
use crate::rng::Stream;

/// Rows and columns of the factors in float32 and in bfloat16: enough work for the highest rate of a large GPU.
const SIZES: [usize; 2] = [4096, 8192];
/// Bytes of a copy.
const COPIED: usize = 256 << 20;
/// Numbers that are drawn; larger matrices repeat them. Zeros would be faster than real data.
const DRAWN: usize = 1 << 20;

/// Floating-point operations per second in float32 and with bfloat16 factors, and bytes per second, read and written.
pub fn measure(engine: &mut Engine) -> Result<[f64; 3]> {
    let result = engine.rates(SIZES, COPIED);
    engine.arena.forget();
    result
}

impl Engine {
    /// [`measure`] with products and copies of other sizes.
    fn rates(&mut self, sizes: [usize; 2], copied: usize) -> Result<[f64; 3]> {
        let bytes = (4 * sizes[0] * sizes[0]).max(2 * sizes[1] * sizes[1]);
        let [a, b, c] = [self.random(bytes)?, self.random(bytes)?, self.arena.take(bytes)?];
        let product = |number: Number, size: usize| Product {
            m: size,
            n: size,
            k: size,
            a: Matrix::new(a, size),
            b: Matrix::new(b, size).t(),
            c: Matrix::new(c, size),
            number,
            result: number,
            accumulate: false,
            epilogue: Epilogue::None,
        };
        let flops = |size: usize| 2.0 * (size as f64).powi(3);
        let [f32, bf16] = [(Number::F32, sizes[0], 5), (Number::Bf16, sizes[1], 20)].map(|(number, size, times)| {
            let seconds = self.seconds(times, |queue| queue.product(&product(number, size)));
            seconds.map(|seconds| flops(size) / seconds)
        });
        let [from, to] = [self.arena.take(copied)?, self.arena.take(copied)?];
        let memory = 2.0 * copied as f64 / self.seconds(20, |queue| queue.copy(from, to, copied))?;
        Ok([f32?, bf16?, memory])
    }

    /// Memory that holds numbers between -1 and 1, as float32 and as bfloat16.
    fn random(&mut self, bytes: usize) -> Result<Address> {
        let mut stream = Stream::new(1, "ceilings");
        // Two bfloat16 numbers, which together are also one float32 number.
        let mut half = || {
            let bits = (stream.uniform(-1.0, 1.0) as f32).to_bits();
            bits >> 16
        };
        let words: Vec<u32> = (0..DRAWN.min(bytes / 4)).map(|_| half() | half() << 16).collect();
        let at = self.arena.take(bytes)?;
        for start in (0..bytes).step_by(4 * words.len()) {
            let count = (4 * words.len()).min(bytes - start);
            self.queue.upload(&super::bytes_of(&words)[..count], at.plus(start))?;
        }
        Ok(at)
    }

    /// Seconds that the device takes for `work`, averaged over `times` runs.
    fn seconds(&self, times: usize, work: impl Fn(&dyn Queue) -> Result<()>) -> Result<f64> {
        work(&*self.queue)?;
        self.wait()?;
        let started = Instant::now();
        for _ in 0..times {
            work(&*self.queue)?;
        }
        self.wait()?;
        Ok(started.elapsed().as_secs_f64() / times as f64)
    }

    fn wait(&self) -> Result<()> {
        self.queue.download(self.totals, &mut [0; 16])
    }
}
