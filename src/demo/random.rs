//! Random numbers of the demonstration: a stream of Philox words for each (seed, purpose, index), read from its beginning.
//!
//! Nothing is drawn from a shared state, so problem 1,000 needs no other problem, and streams of different purposes never meet.

use crate::ops::philox::philox;

/// What a stream is for. Part of the counter: streams of one seed differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Problems of a stream of problems.
    Problem = 0x7461_736b,
    /// The fixed problems of the evaluation.
    HeldOut = 0x6576_616c,
    /// A tensor's first values.
    Parameters = 0x696e_6974,
}

/// The words of one (seed, purpose, index), in order.
#[derive(Clone, Debug)]
pub struct Words {
    key: [u32; 2],
    /// `[index low, index high, purpose, block]`; a block is four words.
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Words {
    /// The stream's beginning.
    pub fn new(seed: u64, purpose: Purpose, index: u64) -> Self {
        let key = [seed as u32, (seed >> 32) as u32];
        Words { key, counter: [index as u32, (index >> 32) as u32, purpose as u32, 0], block: [0; 4], used: 4 }
    }

    /// The next word.
    pub fn word(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox(self.counter, self.key);
            self.counter[3] += 1;
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// A number below `n`, each as likely as any other up to n / 2^32.
    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(n)) >> 32) as u32
    }

    /// Two independent normal numbers of mean 0 and variance 1 (Box and Muller 1958), by `libm`'s functions and not the system's.
    pub fn normals(&mut self) -> [f64; 2] {
        const SCALE: f64 = 1.0 / 4_294_967_296.0;
        let [u, v] = [0; 2].map(|_| (f64::from(self.word()) + 0.5) * SCALE);
        let (radius, angle) = (libm::sqrt(-2.0 * libm::log(u)), std::f64::consts::TAU * v);
        [radius * libm::cos(angle), radius * libm::sin(angle)]
    }
}
