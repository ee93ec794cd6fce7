//! Arithmetic in the four lanes.
//!
//! The first two lanes compute modulo 2^61 - 403, the others modulo 2^62 - 203: no numbers that a problem would have as its answer. Elements
//! are always below their prime.

use num_bigint::{BigInt, Sign};
use num_traits::ToPrimitive;

use super::super::equal::seeds::mixed;

/// How many lanes there are.
pub const LANES: usize = 4;

/// A prime 2^bits - below.
struct Prime {
    bits: u32,
    below: u64,
    /// A root of -1.
    turn: u64,
}

const PRIMES: [Prime; LANES] = [
    Prime { bits: 61, below: 403, turn: 1_655_409_490_667_276_801 },
    Prime { bits: 61, below: 403, turn: 1_655_409_490_667_276_801 },
    Prime { bits: 62, below: 203, turn: 3_095_414_385_999_876_382 },
    Prime { bits: 62, below: 203, turn: 3_095_414_385_999_876_382 },
];

impl Prime {
    const fn size(&self) -> u64 {
        (1 << self.bits) - self.below
    }

    /// The residue of a number below 2^126.
    fn residue(&self, value: u128) -> u64 {
        let low = (1u128 << self.bits) - 1;
        let folded = (value & low) + (value >> self.bits) * u128::from(self.below);
        let folded = ((folded & low) + (folded >> self.bits) * u128::from(self.below)) as u64;
        if folded >= self.size() { folded - self.size() } else { folded }
    }

    fn power(&self, base: u64, exponent: u64) -> u64 {
        (0..64 - exponent.leading_zeros()).rev().fold(1, |result, place| {
            let square = self.residue(u128::from(result) * u128::from(result));
            if exponent >> place & 1 == 1 { self.residue(u128::from(square) * u128::from(base)) } else { square }
        })
    }
}

/// An element per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes([u64; LANES]);

impl Lanes {
    /// 0.
    pub const ZERO: Self = Self([0; LANES]);
    /// 1.
    pub const ONE: Self = Self([1; LANES]);

    fn each(element: impl Fn(&Prime, usize) -> u64) -> Self {
        Self(std::array::from_fn(|lane| element(&PRIMES[lane], lane)))
    }

    /// A root of -1.
    pub fn root_of_minus_one() -> Self {
        Self::each(|prime, _| prime.turn)
    }

    /// The residues of an integer.
    pub fn of_integer(value: &BigInt) -> Self {
        if let Some(small) = value.to_i64().filter(|small| small.unsigned_abs() < 1 << 60) {
            let size = small.unsigned_abs();
            return Self::each(|prime, _| if small < 0 { prime.size() - size } else { size });
        }
        Self::each(|prime, _| {
            let digits = value.magnitude().iter_u64_digits().rev();
            // In halves, so that what is reduced stays below 2^126.
            let size = digits.fold(0, |rest, digit| {
                let upper = prime.residue(u128::from(rest) << 32 | u128::from(digit >> 32));
                prime.residue(u128::from(upper) << 32 | u128::from(digit & 0xffff_ffff))
            });
            if value.sign() == Sign::Minus && size > 0 { prime.size() - size } else { size }
        })
    }

    /// Elements drawn by a seed.
    pub fn drawn(seed: u64) -> Self {
        Self::each(|prime, lane| prime.residue(mixed(seed.wrapping_add(mixed(lane as u64))).into()))
    }

    /// The element of a lane.
    pub fn element(&self, lane: usize) -> u64 {
        self.0[lane]
    }

    /// Whether this is 0 in all lanes.
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Whether this is 0 in no lane.
    pub fn is_unit(&self) -> bool {
        self.0.iter().all(|element| *element != 0)
    }

    fn plus(&self, other: &Self) -> Self {
        Self::each(|prime, lane| {
            let sum = self.0[lane] + other.0[lane];
            if sum >= prime.size() { sum - prime.size() } else { sum }
        })
    }

    fn negated(&self) -> Self {
        Self::each(|prime, lane| if self.0[lane] == 0 { 0 } else { prime.size() - self.0[lane] })
    }

    fn times(&self, other: &Self) -> Self {
        Self::each(|prime, lane| prime.residue(u128::from(self.0[lane]) * u128::from(other.0[lane])))
    }

    fn power(&self, exponent: u64) -> Self {
        Self::each(|prime, lane| prime.power(self.0[lane], exponent))
    }

    fn inverse(&self) -> Self {
        Self::each(|prime, lane| prime.power(self.0[lane], prime.size() - 2))
    }
}

/// A quotient; the denominator is a unit in all lanes.
#[derive(Clone, Copy, Debug)]
pub struct Fraction {
    /// The numerator.
    pub above: Lanes,
    /// The denominator.
    pub below: Lanes,
}

impl Fraction {
    /// Over one.
    pub fn whole(above: Lanes) -> Self {
        Self { above, below: Lanes::ONE }
    }

    /// x + y.
    pub fn plus(&self, other: &Self) -> Self {
        if self.below == other.below {
            return Self { above: self.above.plus(&other.above), below: self.below };
        }
        let above = self.above.times(&other.below).plus(&other.above.times(&self.below));
        Self { above, below: self.below.times(&other.below) }
    }

    /// x - y.
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&Self { above: other.above.negated(), below: other.below })
    }

    /// x · y.
    pub fn times(&self, other: &Self) -> Self {
        let below = match (self.below == Lanes::ONE, other.below == Lanes::ONE) {
            (_, true) => self.below,
            (true, _) => other.below,
            _ => self.below.times(&other.below),
        };
        Self { above: self.above.times(&other.above), below }
    }

    /// 1 / x, unless x is 0 in some lane.
    pub fn inverse(&self) -> Option<Self> {
        self.above.is_unit().then_some(Self { above: self.below, below: self.above })
    }

    /// x^exponent.
    pub fn power(&self, exponent: u64) -> Self {
        let below = if self.below == Lanes::ONE { self.below } else { self.below.power(exponent) };
        Self { above: self.above.power(exponent), below }
    }

    /// The element itself.
    pub fn reduced(&self) -> Lanes {
        if self.below == Lanes::ONE { self.above } else { self.above.times(&self.below.inverse()) }
    }

    /// Whether both points of each prime have the same value.
    pub fn is_constant(&self) -> bool {
        let value = self.reduced();
        value.0[0] == value.0[1] && value.0[2] == value.0[3]
    }
}
