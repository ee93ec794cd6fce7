//! Random numbers in the card's memory, for measurements of models that nobody has trained.
//!
//! A few megabytes of them come from the host; everything else is copies of those within the card, each begun at another place. Not zeros: a card
//! multiplies zeros with less power and at a higher clock, and would look faster than it is.

use half::bf16;

use super::memory::{Arena, Buffer, Purpose};
use super::tensor::stride_of;
use super::{CudaOps, KvCache, Matrix, Tensor};

/// Values that come from the host: an odd number, so that rows of a matrix do not repeat.
const VALUES: usize = (2 << 20) - 9;
/// Shift of the beginning from one use to the next, in values.
const SHIFT: usize = 65_518;

/// Random bf16 values on the card, evenly between two bounds around 0.
pub struct Noise {
    buffer: Buffer,
    next: usize,
}

impl CudaOps {
    /// Values from `-scale` to `scale`.
    pub fn noise(&self, scale: f32) -> Noise {
        let mut state = 1u64;
        let mut bytes = Vec::with_capacity(2 * VALUES);
        for _ in 0..VALUES {
            // The linear congruential generator of Knuth's MMIX; its upper bits are good enough to keep multipliers busy.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            bytes.extend(bf16::from_f32(scale * unit).to_le_bytes());
        }
        let arena = Arena::new(self.device.clone(), Purpose::Weights, 0);
        let buffer = arena.take(bytes.len(), &self.queue.failure);
        // SAFETY: the buffer has this size.
        unsafe { self.queue.upload_now(buffer.ptr, &bytes) };
        Noise { buffer, next: 0 }
    }

    /// A matrix of them.
    pub fn random_matrix(&self, noise: &mut Noise, outputs: usize, inputs: usize) -> Matrix {
        let stride = stride_of(inputs);
        let buffer = self.weights.take(outputs * stride * 2, &self.queue.failure);
        self.repeat(noise, &buffer);
        Matrix { buffer, outputs, inputs, stride }
    }

    /// Fills all rows that a tensor has room for. In f32 every value is a random bf16 followed by 16 other bits, which is nearly the same.
    pub fn fill_tensor(&self, noise: &mut Noise, tensor: &mut Tensor) {
        self.repeat(noise, &tensor.buffer);
    }

    /// Fills keys and values of all layers.
    pub fn fill_cache(&self, noise: &mut Noise, cache: &mut KvCache) {
        self.repeat(noise, &cache.keys);
        self.repeat(noise, &cache.values);
    }

    fn repeat(&self, noise: &mut Noise, to: &Buffer) {
        if self.queue.failure.is_set() {
            return;
        }
        let (from, whole) = (&noise.buffer, noise.buffer.bytes);
        // The first copy of the noise begins at `next` and wraps around; then what is there is doubled until the end.
        let begin = 2 * noise.next;
        noise.next = (noise.next + SHIFT) % VALUES;
        let first = (whole - begin).min(to.bytes);
        let second = begin.min(to.bytes - first);
        // SAFETY: both parts lie in the noise and in `to`; the doubling reads what was written and writes what follows it.
        unsafe {
            self.queue.copy(to.ptr, from.ptr + begin as u64, first);
            self.queue.copy(to.ptr + first as u64, from.ptr, second);
            let mut filled = first + second;
            while filled > 0 && filled < to.bytes {
                let more = filled.min(to.bytes - filled);
                self.queue.copy(to.ptr + filled as u64, to.ptr, more);
                filled += more;
            }
        }
        // The noise may go before the stream gets here.
        self.queue.wait();
    }
}
