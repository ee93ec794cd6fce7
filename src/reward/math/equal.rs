//! Whether two expressions are equal.
//!
//! Three ways are tried, from the cheap and certain to the expensive: exact values (`exact`), identities of rational functions (`modular`),
//! and values at fixed points (`numeric`). All work is counted in a [`Budget`], so the same two expressions always have the same verdict, on
//! any machine and under any load; what would cost more is [`TooLarge`].
//!
//! Variables are real numbers. One under an even root, a logarithm or a symbolic power is positive, one that is counted with (n!, a bound of
//! a sum, the exponent of a negative number) is a natural number. Equal means equal wherever both sides are defined, but for single points.

mod budget;
pub mod seeds;

use std::cmp::Ordering;

use num_rational::BigRational;
use num_traits::{Signed, Zero};

use super::expr::{Constant, Expr, Function, TooLarge};
use super::modular::{self, Comparison};
use super::{exact, numeric};

pub use budget::Budget;

/// Levels of an expression: the recursion stays within any thread's stack.
const LEVELS: usize = 300;

/// The share of a budget that one of the cheap ways may take.
const SHARE: u64 = 4;

/// Whether two expressions are equal. `None`: that cannot be said, for example because one is defined nowhere.
pub fn equal(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Option<bool>, TooLarge> {
    if let (Some(left), Some(right)) = (left.as_number(), right.as_number()) {
        return Ok(Some(left == right));
    }
    admit(&[left, right], budget)?;
    if left == right {
        return Ok(Some(true));
    }
    if let (Ok(Some(left)), Ok(Some(right))) = (folded(left, budget), folded(right, budget)) {
        return Ok(Some(left == right));
    }
    if let Some(verdict) = equal_infinities(left, right, budget) {
        return Ok(verdict);
    }
    match budget.part(SHARE, |budget| modular::compare(left, right, budget)) {
        Ok(Comparison::Equal) => Ok(Some(true)),
        Ok(Comparison::Unequal) => Ok(Some(false)),
        Ok(Comparison::Open) | Err(_) => numeric::equal(left, right, budget),
    }
}

/// Whether `left` is `right` times a number that is not zero, so that one is zero wherever the other is.
pub fn proportional(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Option<bool>, TooLarge> {
    admit(&[left, right], budget)?;
    if left == right {
        return Ok(Some(true));
    }
    match budget.part(SHARE, |budget| modular::proportion(left, right, budget)) {
        Ok(Comparison::Equal) => return Ok(Some(true)),
        Ok(Comparison::Unequal) => return Ok(Some(false)),
        Ok(Comparison::Open) | Err(_) => {}
    }
    if has_variables(left) || has_variables(right) {
        return numeric::proportional(left, right, budget);
    }
    let zero = Expr::Number(BigRational::zero());
    Ok(match (equal(left, &zero, budget)?, equal(right, &zero, budget)?) {
        (Some(left), Some(right)) => Some(left == right),
        _ => None,
    })
}

/// The exact value of an expression, if it folds to a rational number.
pub fn exact(expression: &Expr, budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    admit(&[expression], budget)?;
    exact::rational(expression, budget)
}

/// Whether |expression - value| <= tolerance, for a real constant; `None` for anything else.
pub fn within(expression: &Expr, value: &BigRational, tolerance: &BigRational, budget: &mut Budget) -> Result<Option<bool>, TooLarge> {
    admit(&[expression], budget)?;
    if let Ok(Some(exact)) = folded(expression, budget)
        && let Ok(distance) = exact::distance(&exact, value, budget)
    {
        return Ok(Some(exact::compare(&distance, tolerance).is_le()));
    }
    if has_variables(expression) {
        return Ok(None);
    }
    numeric::within(expression, value, tolerance, budget)
}

/// Which of two real constants is larger, infinite ones included; `None` for anything else.
pub fn order(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Option<Ordering>, TooLarge> {
    admit(&[left, right], budget)?;
    if has_variables(left) || has_variables(right) {
        return Ok(None);
    }
    if let (Ok(Some(left)), Ok(Some(right))) = (folded(left, budget), folded(right, budget)) {
        return Ok(Some(exact::compare(&left, &right)));
    }
    match (infinity(left, budget), infinity(right, budget)) {
        (Infinity::None, Infinity::None) => {}
        (Infinity::Inside, _) | (_, Infinity::Inside) => return Ok(None),
        // What is compared with infinity must have a real value itself.
        (Infinity::None, _) if !numeric::is_real(left, budget)? => return Ok(None),
        (_, Infinity::None) if !numeric::is_real(right, budget)? => return Ok(None),
        (left, right) => return Ok(Some(left.cmp(&right))),
    }
    if let Some(order) = numeric::order(left, right, budget)? {
        return Ok(Some(order));
    }
    Ok((equal(left, right, budget)? == Some(true)).then_some(Ordering::Equal))
}

/// Whether an expression depends on anything: a name that is not an index, or a function without a meaning.
pub fn has_variables(expression: &Expr) -> bool {
    depends(expression, &mut Vec::new())
}

fn depends<'a>(expression: &'a Expr, bound: &mut Vec<&'a str>) -> bool {
    match expression {
        Expr::Number(_) | Expr::Decimal { .. } | Expr::Constant(_) => false,
        Expr::Symbol(name) => !bound.contains(&name.as_str()),
        Expr::Unknown(..) => true,
        Expr::Sum(parts) | Expr::Product(parts) => parts.iter().any(|part| depends(part, bound)),
        Expr::Power(base, exponent) => depends(base, bound) || depends(exponent, bound),
        Expr::Apply(Function::SumOver | Function::ProductOver, arguments) => {
            let [term, Expr::Symbol(index), from, to] = arguments.as_slice() else { return true };
            if depends(from, bound) || depends(to, bound) {
                return true;
            }
            bound.push(index);
            let result = depends(term, bound);
            bound.pop();
            result
        }
        Expr::Apply(_, arguments) => arguments.iter().any(|argument| depends(argument, bound)),
    }
}

/// Lets expressions in that are not too deep, and counts their length.
fn admit(expressions: &[&Expr], budget: &mut Budget) -> Result<(), TooLarge> {
    expressions.iter().try_for_each(|expression| admit_level(expression, LEVELS, budget))
}

fn admit_level(expression: &Expr, levels: usize, budget: &mut Budget) -> Result<(), TooLarge> {
    let Some(levels) = levels.checked_sub(1) else { return Err(TooLarge("too deep an expression")) };
    budget.spend(1, "too long an expression")?;
    match expression {
        Expr::Number(_) | Expr::Decimal { .. } | Expr::Constant(_) | Expr::Symbol(_) => Ok(()),
        Expr::Sum(parts) | Expr::Product(parts) | Expr::Apply(_, parts) | Expr::Unknown(_, parts) => {
            parts.iter().try_for_each(|part| admit_level(part, levels, budget))
        }
        Expr::Power(base, exponent) => {
            admit_level(base, levels, budget)?;
            admit_level(exponent, levels, budget)
        }
    }
}

fn folded(expression: &Expr, budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    budget.part(SHARE, |budget| exact::rational(expression, budget))
}

/// Where an expression is infinite. The order is that of the numbers, for those that are not [`Infinity::Inside`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Infinity {
    Negative,
    None,
    Positive,
    /// It has no value.
    Inside,
}

/// Infinity is equal to itself and to nothing else.
fn equal_infinities(left: &Expr, right: &Expr, budget: &mut Budget) -> Option<Option<bool>> {
    match (infinity(left, budget), infinity(right, budget)) {
        (Infinity::None, Infinity::None) => None,
        (Infinity::Inside, _) | (_, Infinity::Inside) => Some(None),
        (left, right) => Some(Some(left == right)),
    }
}

fn infinity(expression: &Expr, budget: &mut Budget) -> Infinity {
    match expression {
        Expr::Constant(Constant::Infinity) => Infinity::Positive,
        Expr::Product(factors) if factors.contains(&Expr::Constant(Constant::Infinity)) => {
            let mut positive = true;
            for factor in factors.iter().filter(|factor| **factor != Expr::Constant(Constant::Infinity)) {
                match folded(factor, budget) {
                    Ok(Some(value)) if !value.is_zero() => positive ^= value.is_negative(),
                    _ => return Infinity::Inside,
                }
            }
            if positive { Infinity::Positive } else { Infinity::Negative }
        }
        other if mentions_infinity(other) => Infinity::Inside,
        _ => Infinity::None,
    }
}

fn mentions_infinity(expression: &Expr) -> bool {
    match expression {
        Expr::Constant(constant) => *constant == Constant::Infinity,
        Expr::Number(_) | Expr::Decimal { .. } | Expr::Symbol(_) => false,
        Expr::Sum(parts) | Expr::Product(parts) | Expr::Apply(_, parts) | Expr::Unknown(_, parts) => parts.iter().any(mentions_infinity),
        Expr::Power(base, exponent) => mentions_infinity(base) || mentions_infinity(exponent),
    }
}
