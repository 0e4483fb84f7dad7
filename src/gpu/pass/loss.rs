//! The output projection with the loss, on the logits of the whole batch or on chunks of them.

use super::Pass;
use crate::error::Result;
use crate::gpu::launch::Side;
use crate::gpu::plan::Linear;
use crate::gpu::queue::Address;
use crate::ops::loss::Targets;

/// Bytes of logits that are held at once at most: those of a whole batch, if it is not very large. Each chunk adds to
/// all of the projection's gradient, and its products keep a GPU busy only if they are large.
pub(in crate::gpu) const LOGIT_BYTES: usize = 2 << 30;
/// The fewest rows of a chunk of logits, where memory is short.
const FEWEST_LOGIT_ROWS: usize = 256;

impl Pass<'_> {
    /// Adds the losses to the sums; `weights` may be [`Address::NONE`], for 1 everywhere. In training, also adds to the
    /// gradients of the projection; returns that of the states.
    pub(super) fn loss(
        &mut self,
        output: &Linear,
        states: Address,
        side: &Side,
        [labels, weights]: [Address; 2],
        targets: &Targets,
    ) -> Result<Address> {
        let left_out = self.engine.model.config().left_out(targets.padding);
        let (rows, training) = (side.rows, self.mode.is_training());
        let dx = if training { self.numbers(rows, self.d)? } else { Address::NONE };
        let mark = self.engine.arena.mark();
        // With R-Drop, each token has two rows, one in each half of all.
        let passes = if targets.r_drop > 0.0 { 2 } else { 1 };
        let tokens = rows / passes;
        let losses = self.floats(2 * tokens)?;
        let (logits, chunk) = self.logits(rows, output.stride)?;
        for start in (0..tokens).step_by(chunk / passes) {
            let count = (chunk / passes).min(tokens - start);
            let places = (0..passes).map(|pass| {
                let (row, logits) = (pass * tokens + start, self.after(logits, pass * count * output.stride));
                (self.after(states, row * self.d), logits, self.after(dx, row * self.d))
            });
            let places: Vec<_> = places.collect();
            places.iter().try_for_each(|(x, logits, _)| self.project(*x, count, output, *logits))?;
            let weights = if weights == Address::NONE { weights } else { weights.plus(4 * start) };
            let of_chunk = [logits, losses.plus(8 * start), labels.plus(4 * start), weights];
            let (sizes, smoothing, alpha) = ([count, output.out, output.stride], targets.smoothing, targets.r_drop);
            if passes == 2 {
                self.engine.kernels.paired_loss(of_chunk, [smoothing, alpha], sizes, left_out, training)?;
            } else {
                self.engine.kernels.smoothed_loss(of_chunk, smoothing, sizes, left_out, training)?;
            }
            for (x, logits, dx) in places.into_iter().filter(|_| training) {
                self.add_weight_gradient(logits, x, count, output, output.bias)?;
                self.project_back(logits, count, output, dx, false)?;
            }
        }
        self.engine.kernels.add_losses(self.engine.totals, losses, tokens)?;
        self.engine.arena.release(mark);
        Ok(dx)
    }

    /// Memory for a chunk of `rows` rows of logits, and how many rows it has: all, or as many as there is room for.
    fn logits(&mut self, rows: usize, stride: usize) -> Result<(Address, usize)> {
        loop {
            let chunk = rows_of_chunks(rows, self.engine.logit_bytes / self.number.bytes(stride));
            let mark = self.engine.arena.mark();
            match self.numbers(chunk, stride) {
                Err(error) if error.is_out_of_memory() && chunk > FEWEST_LOGIT_ROWS => {
                    self.engine.arena.release(mark);
                    self.engine.logit_bytes = self.number.bytes(chunk / 2 * stride);
                }
                taken => return Ok((taken?, chunk)),
            }
        }
    }
}

/// Rows per chunk when `rows` are divided into chunks of about `most`: evenly, since a short chunk would leave the
/// device partly idle, and rounded to a number at which products are fast.
fn rows_of_chunks(rows: usize, most: usize) -> usize {
    let chunks = rows.div_ceil(most.max(1)).max(1);
    rows.div_ceil(chunks).next_multiple_of(256).clamp(1, rows.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_even_and_of_round_sizes() {
        assert_eq!(rows_of_chunks(25_000, 4194), 4352);
        assert_eq!(rows_of_chunks(100, 4194), 100);
        assert_eq!(rows_of_chunks(0, 4194), 1);
        for (rows, most) in [(1, 1), (7, 3), (5000, 1), (5000, 300), (5000, 5000)] {
            let chunk = rows_of_chunks(rows, most);
            assert!(chunk <= rows && chunk < most + 256 && chunk * rows.div_ceil(most) >= rows);
        }
    }
}
