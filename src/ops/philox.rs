//! The keyed random stream: Philox4x32-10 (Salmon et al., SC 2011) and Gumbel noise made from its words.
//!
//! A word is a pure function of (key, token id, generated position, sample index): no state is drawn from, so the noise of a token does
//! not depend on the row or batch it was computed in. A GPU backend has the same lines.

use super::cpu::math::{ln, ln_1m};

const M0: u32 = 0xD251_1F53;
const M1: u32 = 0xCD9E_8D57;
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// Counters handled together, so that compilers see whole vectors.
pub(crate) const WIDTH: usize = 16;

/// Philox4x32-10 of one counter.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut c = counter.map(|word| [word; WIDTH]);
    rounds(&mut c, key);
    c.map(|lanes| lanes[0])
}

/// Philox4x32-10 of `WIDTH` counters at once: `c[word][lane]`.
#[inline(always)]
pub(crate) fn rounds(c: &mut [[u32; WIDTH]; 4], key: [u32; 2]) {
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        #[expect(clippy::needless_range_loop, reason = "a lane of four arrays, not of one")]
        for lane in 0..WIDTH {
            let p0 = u64::from(M0) * u64::from(c[0][lane]);
            let p1 = u64::from(M1) * u64::from(c[2][lane]);
            let (a, b) = (c[1][lane], c[3][lane]);
            c[0][lane] = (p1 >> 32) as u32 ^ a ^ k0;
            c[1][lane] = p1 as u32;
            c[2][lane] = (p0 >> 32) as u32 ^ b ^ k1;
            c[3][lane] = p0 as u32;
        }
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
}

/// Gumbel noise of one word, in f32: v = min((x + 0.5) 2^-32, 1 - 2^-24), E = -ln(1 - v), g = -ln E. The resolution is finest where g is
/// large, which is where winners come from; g is finite for every word (-2.82 to 22.88).
#[inline(always)]
pub fn gumbel(word: u32) -> f32 {
    const LARGEST: f32 = 1.0 - 1.0 / 16_777_216.0;
    let v = (word as f32 + 0.5) * (1.0 / 4_294_967_296.0);
    let v = if v < LARGEST { v } else { LARGEST };
    -ln(-ln_1m(v))
}

/// Noise of token ids `first .. first + out.len()`; `first` and the length are multiples of `4 * WIDTH`.
#[inline(always)]
pub(crate) fn gumbel_noise(key: [u32; 2], position: u32, sample: u32, first: usize, out: &mut [f32]) {
    for (i, chunk) in out.chunks_exact_mut(4 * WIDTH).enumerate() {
        let base = (first / 4 + i * WIDTH) as u32;
        let mut c = [[0; WIDTH], [position; WIDTH], [sample; WIDTH], [0; WIDTH]];
        for (lane, word) in c[0].iter_mut().enumerate() {
            *word = base + lane as u32;
        }
        rounds(&mut c, key);
        let mut g = [[0f32; WIDTH]; 4];
        for word in 0..4 {
            for lane in 0..WIDTH {
                g[word][lane] = gumbel(c[word][lane]);
            }
        }
        for lane in 0..WIDTH {
            for word in 0..4 {
                chunk[4 * lane + word] = g[word][lane];
            }
        }
    }
}
