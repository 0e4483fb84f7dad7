//! Rotary positions (Su et al. 2021, "RoFormer"): queries and keys are turned by angles proportional to their
//! positions, so that their products depend only on the distance between the two positions.
//!
//! Pair i of a head's K components at position p is turned by p / 10000^(2i/K).

use std::sync::Arc;

use candle_core::{D, DType, Result, Tensor};

use super::simd::vectorised;

/// Angles of all positions, for heads of one width.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// For every position the K/2 cosines, then the K/2 sines.
    table: Arc<Vec<f32>>,
    d_k: usize,
    halves: bool,
}

impl Rotary {
    /// For positions below `positions` and heads of even width `d_k`. With `halves`, component i is paired with i +
    /// K/2; otherwise 2i with 2i + 1.
    pub fn new(positions: usize, d_k: usize, halves: bool) -> Self {
        let half = d_k / 2;
        let mut table = vec![0f32; positions * d_k];
        for (p, row) in table.chunks_exact_mut(d_k).enumerate() {
            let (cosines, sines) = row.split_at_mut(half);
            for i in 0..half {
                let angle = p as f64 / 10_000f64.powf(2.0 * i as f64 / d_k as f64);
                cosines[i] = angle.cos() as f32;
                sines[i] = angle.sin() as f32;
            }
        }
        Self { table: Arc::new(table), d_k, halves }
    }

    /// For every position the K/2 cosines, then the K/2 sines; and whether component i is paired with i + K/2.
    pub fn table(&self) -> (&[f32], bool) {
        (&self.table, self.halves)
    }

    /// Rotates the first `heads` heads of rows `stride` wide, in place. Row r is at position `first` + r mod `length`.
    pub fn turn(&self, rows: &mut [f32], stride: usize, heads: usize, first: usize, length: usize) {
        turn_rows(rows, stride, heads, &self.table[first * self.d_k..], self.d_k, length, 1.0, self.halves);
    }

    /// Backward of [`Rotary::turn`] from position 0: turns gradients back.
    pub fn turn_back(&self, rows: &mut [f32], stride: usize, heads: usize, length: usize) {
        turn_rows(rows, stride, heads, &self.table, self.d_k, length, -1.0, self.halves);
    }

    /// [`Rotary::turn`] in plain Candle operations. x: [B·L, H·K].
    pub fn reference(&self, x: &Tensor, first: usize, length: usize) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let (heads, half) = (width / self.d_k, self.d_k / 2);
        let angles = &self.table[first * self.d_k..(first + length) * self.d_k];
        let angles = Tensor::from_slice(angles, (1, length, 1, self.d_k), x.device())?;
        let dtype = x.dtype();
        let x = if dtype == DType::F64 { x.clone() } else { x.to_dtype(DType::F32)? };
        let angles = angles.to_dtype(x.dtype())?;
        let (cos, sin) = (angles.narrow(3, 0, half)?, angles.narrow(3, half, half)?);
        // The first or the second component of every pair, [B, L, H, K/2].
        let shape = (rows / length, length, heads, half);
        let part = |which: usize| -> Result<Tensor> {
            let x = if self.halves {
                x.reshape((rows, heads, 2, half))?.narrow(2, which, 1)?
            } else {
                x.reshape((rows, heads, half, 2))?.narrow(3, which, 1)?
            };
            x.contiguous()?.reshape(shape)
        };
        let (a, b) = (part(0)?, part(1)?);
        let turned_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let turned_b = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
        let turned = if self.halves {
            Tensor::cat(&[turned_a, turned_b], D::Minus1)?
        } else {
            Tensor::stack(&[turned_a, turned_b], 4)?
        };
        turned.reshape((rows, width))?.to_dtype(dtype)
    }
}

vectorised! {
    fn turn_rows(
        rows: &mut [f32], stride: usize, heads: usize, table: &[f32], d_k: usize, length: usize, sign: f32,
        halves: bool,
    ) {
        let half = d_k / 2;
        for (r, row) in rows.chunks_exact_mut(stride).enumerate() {
            let (cosines, sines) = table[(r % length) * d_k..][..d_k].split_at(half);
            for head in row.chunks_exact_mut(d_k).take(heads) {
                if halves {
                    let (a, b) = head.split_at_mut(half);
                    for i in 0..half {
                        let (x, y, sine) = (a[i], b[i], sign * sines[i]);
                        a[i] = x * cosines[i] - y * sine;
                        b[i] = x * sine + y * cosines[i];
                    }
                } else {
                    for (i, pair) in head.chunks_exact_mut(2).enumerate() {
                        let (x, y, sine) = (pair[0], pair[1], sign * sines[i]);
                        pair[0] = x * cosines[i] - y * sine;
                        pair[1] = x * sine + y * cosines[i];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::rng::Stream;

    fn draw(n: usize) -> Vec<f32> {
        let mut stream = Stream::new(5, "rotary");
        (0..n).map(|_| stream.normal() as f32).collect()
    }

    #[test]
    fn turns_each_pair_by_its_angle() {
        // K = 4: the pairs turn by p and p/100.
        for (halves, pairs) in [(false, [[0, 1], [2, 3]]), (true, [[0, 2], [1, 3]])] {
            let rotary = Rotary::new(8, 4, halves);
            let x = draw(4);
            for position in 0..8 {
                let mut turned = x.clone();
                rotary.turn(&mut turned, 4, 1, position, 1);
                for ([a, b], angle) in pairs.iter().zip([position as f32, position as f32 / 100.0]) {
                    let (sin, cos) = angle.sin_cos();
                    assert!((turned[*a] - (x[*a] * cos - x[*b] * sin)).abs() < 1e-6);
                    assert!((turned[*b] - (x[*a] * sin + x[*b] * cos)).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn products_depend_on_the_distance_alone() {
        let rotary = Rotary::new(40, 16, false);
        let (q, k) = (draw(16), draw(32)[16..].to_vec());
        let product = |p: usize, r: usize| -> f32 {
            let (mut q, mut k) = (q.clone(), k.clone());
            rotary.turn(&mut q, 16, 1, p, 1);
            rotary.turn(&mut k, 16, 1, r, 1);
            q.iter().zip(&k).map(|(a, b)| a * b).sum()
        };
        for (p, r) in [(3, 1), (9, 0), (5, 5)] {
            assert!((product(p, r) - product(p + 30, r + 30)).abs() < 1e-4);
        }
    }

    #[test]
    fn kernel_equals_reference_and_turns_back() -> Result<()> {
        let (batch, length, heads, d_k) = (2, 5, 3, 6);
        for halves in [false, true] {
            let rotary = Rotary::new(9, d_k, halves);
            let x = draw(batch * length * heads * d_k);
            let mut turned = x.clone();
            rotary.turn(&mut turned, heads * d_k, heads, 3, length);
            let tensor = Tensor::from_slice(&x, (batch * length, heads * d_k), &Device::Cpu)?;
            let reference = rotary.reference(&tensor, 3, length)?.flatten_all()?.to_vec1::<f32>()?;
            assert!(turned.iter().zip(&reference).all(|(a, b)| (a - b).abs() < 1e-6));

            let mut there_and_back = x.clone();
            rotary.turn(&mut there_and_back, heads * d_k, heads, 0, length);
            rotary.turn_back(&mut there_and_back, heads * d_k, heads, length);
            assert!(there_and_back.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-6));
        }
        Ok(())
    }
}
