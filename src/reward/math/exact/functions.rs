//! Functions of exact numbers where their values are exact too.

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::super::equal::Budget;
use super::super::expr::{Constant, Expr, Function, TooLarge};
use super::{arithmetic, compare};

/// Larger factorials have more digits than exact numbers may have.
const FACTORIAL: u64 = 1_000;
/// Logarithms are looked for among fractions with denominators up to this.
const LOGARITHM: i64 = 12;

/// The value of a function at exact numbers, if it is exact: all but angles, roots, and sums over an index.
pub fn apply(function: Function, values: &[BigRational], budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    use Function::*;
    let work = |value: &BigRational| 1 + (value.numer().bits() + value.denom().bits()).pow(2) / 40_000;
    budget.spend(10 + values.iter().map(work).sum::<u64>(), "too much computation")?;
    match (function, values) {
        (Abs, [x]) => Ok(Some(x.abs())),
        (Floor, [x]) => Ok(Some(x.floor())),
        (Ceil, [x]) => Ok(Some(x.ceil())),
        (Re | Conjugate, [x]) => Ok(Some(x.clone())),
        (Im, [_]) => Ok(Some(BigRational::zero())),
        (Factorial, [n]) => factorial(n, 1, budget),
        (DoubleFactorial, [n]) => factorial(n, 2, budget),
        (Binomial, [n, k]) => binomial(n, k, budget),
        (Mod, [_, n]) if n.is_zero() => Ok(None),
        (Mod, [a, n]) => {
            let whole = arithmetic::quotient(a, n, budget)?.floor();
            let rest = arithmetic::product(n, &whole, budget)?;
            arithmetic::sum(a, &-rest, budget).map(Some)
        }
        (Gcd | Lcm, [_, ..]) => divisor(function, values, budget),
        (Max, values) => Ok(values.iter().max_by(|x, y| compare(x, y)).cloned()),
        (Min, values) => Ok(values.iter().min_by(|x, y| compare(x, y)).cloned()),
        (Log, [x, base]) => logarithm(x, base, budget),
        (Ln, [x]) => Ok(x.is_one().then(BigRational::zero)),
        (Arcosh | Arcsec | Arccos, [x]) => Ok(x.is_one().then(BigRational::zero)),
        (Cosh, [x]) => Ok(x.is_zero().then(BigRational::one)),
        (Sinh | Tanh | Arsinh | Artanh | Arcsin | Arctan | Degrees, [x]) => Ok(x.is_zero().then(BigRational::zero)),
        _ => Ok(None),
    }
}

/// A trigonometric function of a multiple of pi, where its value is rational.
pub fn trigonometric(function: Function, turns: &BigRational, budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    use Function::*;
    let parts = if matches!(function, Tan | Cot) { 4 } else { 6 };
    let parts = arithmetic::product(turns, &BigRational::from_integer(parts.into()), budget)?;
    if !parts.is_integer() {
        return Ok(None);
    }
    let part = parts.to_integer().mod_floor(&BigInt::from(12)).to_i64().unwrap_or(0);
    // Twice the value, of what has one.
    let twice = match function {
        Sin | Csc => sine(part),
        Cos | Sec => sine(part + 3),
        Tan => tangent(part),
        Cot => tangent(2 - part),
        _ => None,
    };
    let Some(twice) = twice else { return Ok(None) };
    let fraction = match function {
        Csc | Sec if twice == 0 => return Ok(None),
        Csc | Sec => BigRational::new(2.into(), twice.into()),
        _ => BigRational::new(twice.into(), 2.into()),
    };
    Ok(Some(fraction))
}

/// The exponent of a power of e.
pub fn natural_exponent(expression: &Expr) -> Option<&Expr> {
    match expression {
        Expr::Power(base, exponent) if is_natural_base(base) => Some(exponent),
        _ => None,
    }
}

/// Whether this is e.
pub fn is_natural_base(expression: &Expr) -> bool {
    *expression == Expr::Constant(Constant::E)
}

/// Whether a factor can make a product an angle.
pub fn mentions_angle(factor: &Expr) -> bool {
    match factor {
        Expr::Constant(Constant::Pi) | Expr::Apply(Function::Degrees, _) => true,
        Expr::Product(parts) | Expr::Sum(parts) => parts.iter().any(mentions_angle),
        _ => false,
    }
}

/// Twice the sine of so many twelfths of a turn.
fn sine(part: i64) -> Option<i64> {
    match part.rem_euclid(12) {
        0 | 6 => Some(0),
        1 | 5 => Some(1),
        3 => Some(2),
        7 | 11 => Some(-1),
        9 => Some(-2),
        _ => None,
    }
}

/// Twice the tangent of so many eighths of a turn.
fn tangent(part: i64) -> Option<i64> {
    match part.rem_euclid(4) {
        0 => Some(0),
        1 => Some(2),
        3 => Some(-2),
        _ => None,
    }
}

fn factorial(n: &BigRational, step: u64, budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    if !n.is_integer() || n.is_negative() {
        return Ok(None);
    }
    let Some(mut factor) = n.to_integer().to_u64().filter(|n| *n <= FACTORIAL) else { return Err(TooLarge("a factorial is too large")) };
    budget.spend(10 + factor * factor / 40, "a factorial is too large")?;
    let mut product = BigInt::one();
    while factor > 1 {
        product *= factor;
        factor -= step.min(factor);
    }
    let product = BigRational::from_integer(product);
    arithmetic::limited(&product, "a factorial is too large")?;
    Ok(Some(product))
}

fn binomial(n: &BigRational, k: &BigRational, budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    const LARGE: TooLarge = TooLarge("a binomial coefficient is too large");
    if !k.is_integer() {
        return Ok(None);
    }
    let natural = n.is_integer() && !n.is_negative();
    if k.is_negative() || natural && k > n {
        return Ok(Some(BigRational::zero()));
    }
    let lower = if natural { k.clone().min(n - k) } else { k.clone() };
    let lower = lower.to_integer().to_u64().filter(|lower| *lower <= FACTORIAL).ok_or(LARGE)?;
    let mut result = BigRational::one();
    for step in 0..lower {
        let above = arithmetic::sum(n, &BigRational::from_integer((-i128::from(step)).into()), budget)?;
        result = arithmetic::product(&result, &above, budget)?;
        if n.is_integer() {
            // The product of the first factors is divisible by as many.
            result = BigRational::from_integer(result.numer() / (step + 1));
        } else {
            result = arithmetic::quotient(&result, &BigRational::from_integer((step + 1).into()), budget)?;
        }
    }
    Ok(Some(result))
}

fn divisor(function: Function, values: &[BigRational], budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    if !values.iter().all(BigRational::is_integer) {
        return Ok(None);
    }
    let mut result = BigInt::zero();
    for (place, value) in values.iter().enumerate() {
        let bits = value.numer().bits().max(result.bits());
        budget.spend(4 * bits + bits * bits / 1000, "a common divisor of large numbers")?;
        result = match function {
            _ if place == 0 => value.numer().abs(),
            Function::Gcd => result.gcd(value.numer()),
            _ => result.lcm(value.numer()),
        };
    }
    let result = BigRational::from_integer(result);
    arithmetic::limited(&result, "a common multiple of large numbers")?;
    Ok(Some(result))
}

/// The rational p / q with base^(p/q) = x, if q is small.
fn logarithm(x: &BigRational, base: &BigRational, budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    if !x.is_positive() || !base.is_positive() || base.is_one() {
        return Ok(None);
    }
    let ratio = double_logarithm(x) / double_logarithm(base);
    for denominator in 1..=LOGARITHM {
        let numerator = (ratio * denominator as f64).round();
        if numerator.abs() > arithmetic::BITS as f64 || (numerator / denominator as f64 - ratio).abs() > 1e-9 * ratio.abs().max(1.0) {
            continue;
        }
        let numerator = numerator as i64;
        let (left, right) = (arithmetic::power(base, numerator, budget), arithmetic::power(x, denominator, budget));
        if let (Ok(left), Ok(right)) = (left, right)
            && left == right
        {
            return Ok(Some(BigRational::new(numerator.into(), denominator.into())));
        }
    }
    Ok(None)
}

fn double_logarithm(x: &BigRational) -> f64 {
    let part = |integer: &BigInt| {
        let shift = integer.bits().saturating_sub(60);
        let leading = (integer >> shift).to_f64().unwrap_or(1.0);
        libm::log(leading) + shift as f64 * std::f64::consts::LN_2
    };
    part(x.numer()) - part(x.denom())
}
