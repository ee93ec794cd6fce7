//! Arithmetic with fractions whose size is limited and whose work is counted. Small ones, nearly all, are computed with machine words.

use num_bigint::{BigInt, BigUint};
use num_integer::{Integer, Roots};
use num_rational::BigRational;
use num_traits::{One, Pow, Signed, ToPrimitive, Zero};

use super::super::equal::Budget;
use super::super::expr::TooLarge;

/// Numerators and denominators have at most so many bits.
pub const BITS: u64 = 8_192;

const DIGITS: &str = "an exact number with too many digits";

/// Says no to a number with too many bits.
pub fn limited(value: &BigRational, what: &'static str) -> Result<(), TooLarge> {
    if value.numer().bits().max(value.denom().bits()) > BITS { Err(TooLarge(what)) } else { Ok(()) }
}

/// x + y.
pub fn sum(x: &BigRational, y: &BigRational, budget: &mut Budget) -> Result<BigRational, TooLarge> {
    if let (Some((a, b)), Some((c, d))) = (small(x), small(y)) {
        budget.spend(8, DIGITS)?;
        return Ok(if b == d { from_small(a + c, b) } else { from_small(a * d + c * b, b * d) });
    }
    if x.is_integer() && y.is_integer() {
        return checked(BigRational::from_integer(x.numer() + y.numer()), budget);
    }
    let numerator = x.numer() * y.denom() + y.numer() * x.denom();
    reduced(numerator, x.denom() * y.denom(), budget)
}

/// x · y.
pub fn product(x: &BigRational, y: &BigRational, budget: &mut Budget) -> Result<BigRational, TooLarge> {
    if let (Some((a, b)), Some((c, d))) = (small(x), small(y)) {
        budget.spend(8, DIGITS)?;
        return Ok(from_small(a * c, b * d));
    }
    if x.is_integer() && y.is_integer() {
        budget.spend(words(x) + words(y) + words(x) * words(y) / 8, DIGITS)?;
        return checked(BigRational::from_integer(x.numer() * y.numer()), budget);
    }
    reduced(x.numer() * y.numer(), x.denom() * y.denom(), budget)
}

/// x / y for y that is not 0.
pub fn quotient(x: &BigRational, y: &BigRational, budget: &mut Budget) -> Result<BigRational, TooLarge> {
    product(x, &y.recip(), budget)
}

/// base ^ exponent for a base that is not 0.
pub fn power(base: &BigRational, exponent: i64, budget: &mut Budget) -> Result<BigRational, TooLarge> {
    let size = exponent.unsigned_abs();
    let bits = base.numer().bits().max(base.denom().bits());
    if (bits - 1).saturating_mul(size) > BITS {
        return Err(TooLarge("a power is too large"));
    }
    // The bound on the bits makes the exponent small.
    let size = size as u32;
    let words = bits * u64::from(size) / 64 + 1;
    budget.spend(10 + words * words / 8, DIGITS)?;
    let (numerator, denominator) = (base.numer().pow(size), base.denom().pow(size));
    let (numerator, denominator) = if exponent >= 0 {
        (numerator, denominator)
    } else if numerator.is_negative() {
        (-denominator, -numerator)
    } else {
        (denominator, numerator)
    };
    Ok(BigRational::new_raw(numerator, denominator))
}

/// The exact root of this degree, if it is rational: the real one.
pub fn root(value: &BigRational, degree: u32, budget: &mut Budget) -> Option<BigRational> {
    if value.is_negative() && degree.is_multiple_of(2) {
        return None;
    }
    let numerator = whole_root(value.numer().magnitude(), degree, budget)?;
    let denominator = whole_root(value.denom().magnitude(), degree, budget)?;
    let numerator = BigInt::from(numerator);
    Some(BigRational::new_raw(if value.is_negative() { -numerator } else { numerator }, denominator.into()))
}

fn whole_root(value: &BigUint, degree: u32, budget: &mut Budget) -> Option<BigUint> {
    if value.is_zero() || value.is_one() {
        return Some(value.clone());
    }
    if u64::from(degree) >= value.bits() {
        return None;
    }
    if let Some(small) = value.to_u64() {
        budget.spend(20, DIGITS).ok()?;
        let root = small.nth_root(degree);
        return (root.pow(degree) == small).then(|| root.into());
    }
    let words = value.bits() / 64 + 1;
    budget.spend(200 + words * words * 4, DIGITS).ok()?;
    let root = value.nth_root(degree);
    (Pow::pow(&root, degree) == *value).then_some(root)
}

/// The fraction in lowest terms.
fn reduced(numerator: BigInt, denominator: BigInt, budget: &mut Budget) -> Result<BigRational, TooLarge> {
    let bits = numerator.bits().max(denominator.bits());
    budget.spend(4 * bits + bits * bits / 1000, DIGITS)?;
    let divisor = numerator.gcd(&denominator);
    checked(BigRational::new_raw(numerator / &divisor, denominator / divisor), budget)
}

fn checked(value: BigRational, budget: &mut Budget) -> Result<BigRational, TooLarge> {
    limited(&value, DIGITS)?;
    budget.spend(10 + words(&value) / 2, DIGITS)?;
    Ok(value)
}

fn words(value: &BigRational) -> u64 {
    value.numer().bits() / 64 + 1
}

/// Numerator and denominator, if both fit into a word.
fn small(value: &BigRational) -> Option<(i128, i128)> {
    Some((value.numer().to_i64()?.into(), value.denom().to_i64()?.into()))
}

/// A fraction of two numbers below 2^127 in lowest terms.
fn from_small(numerator: i128, denominator: i128) -> BigRational {
    let divisor = if denominator == 1 {
        1
    } else if let (Ok(above), Ok(below)) = (u64::try_from(numerator.unsigned_abs()), u64::try_from(denominator)) {
        i128::from(above.gcd(&below))
    } else {
        numerator.gcd(&denominator)
    };
    BigRational::new_raw((numerator / divisor).into(), (denominator / divisor).into())
}
