//! Comparison by values: what no rule decides is computed, with hundreds of bits and a bound of the error, at fixed points.
//!
//! Two values that are farther apart than their errors are different: that is a proof at that point. Two that are not are taken as equal if
//! their error is small: below 2^-[`AGREEING_BITS`] of the values, or, where terms cancelled, even after multiplication with the largest of
//! them (a difference of roots that is not zero is at least about one over their size). If the error is too large for that, there are more
//! words; if even that does not help, nothing is said.
//!
//! At a point where a root, a logarithm or an inverse function chose one of several values ([`evaluate::Evaluation::branching`]), two ways to
//! write the same thing can differ by that choice. Such points count only where there are not enough others.

pub mod ball;
pub mod evaluate;
pub mod float;
mod functions;
pub mod point;
pub mod series;

use std::cmp::Ordering;

use num_rational::BigRational;

use super::equal::Budget;
use super::expr::{Expr, TooLarge};
use ball::{Ball, Failure, less_than_power};
use evaluate::{Evaluation, Place};
use point::{POINTS, Point, Region, Variables};

/// Bits that agree where two values are equal.
const AGREEING_BITS: i64 = 120;
/// Points that must agree.
const AGREEING_POINTS: usize = 3;
/// The same where natural numbers are counted with: what depends on remainders shows only at some.
const AGREEING_NATURAL_POINTS: usize = 6;

/// What two values say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    Apart,
    Together,
    /// As far as can be seen, but next to terms so large that something small would have been lost.
    Faint,
    /// The error is too large.
    Unclear,
    /// At least one of them has no value.
    Nowhere,
}

/// Whether two expressions are equal at (almost) all points, as far as some tell.
pub fn equal(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Option<bool>, TooLarge> {
    let variables = Variables::of(left, right, budget)?;
    if variables.is_empty() {
        return equal_constants(left, right, budget);
    }
    let needed = needed_points(&variables);
    // `faintly` counts what is only taken where there is nothing better.
    let (mut together, mut faintly, mut apart_branching) = (0, 0, false);
    let mut vast = None;
    for (number, region) in POINTS.iter().enumerate() {
        if *region == Region::Signed && !variables.any_signed() {
            continue;
        }
        if together >= needed && (number > AGREEING_POINTS + 1 || !variables.any_signed()) {
            return Ok(Some(true));
        }
        let place = Place { point: Some((Point::new(number), &variables)) };
        match meeting_somehow(left, right, place, budget) {
            Ok((Meeting::Apart, false)) => return Ok(Some(false)),
            Ok((Meeting::Together, false)) => together += 1,
            Ok((Meeting::Apart, true)) if *region != Region::Signed => apart_branching = true,
            Ok((Meeting::Together, true) | (Meeting::Faint, _)) if *region != Region::Signed => faintly += 1,
            Ok(_) => {}
            Err(Failure::Vast(reason)) => vast = Some(reason),
            Err(Failure::Spent(reason)) => return Err(reason),
            Err(Failure::Undefined | Failure::Imprecise) => {}
        }
    }
    if together >= needed || together + 1 >= needed && apart_branching {
        return Ok(Some(true));
    }
    if apart_branching {
        return Ok(Some(false));
    }
    if together + faintly >= needed {
        return Ok(Some(true));
    }
    vast.map_or(Ok(None), Err)
}

/// Whether the left one is the same multiple of the right one at all points.
pub fn proportional(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Option<bool>, TooLarge> {
    let variables = Variables::of(left, right, budget)?;
    for branching in [false, true] {
        if let Some(verdict) = proportional_with::<4>(left, right, &variables, branching, budget)? {
            return Ok(Some(verdict));
        }
        if let Some(verdict) = proportional_with::<8>(left, right, &variables, branching, budget)? {
            return Ok(Some(verdict));
        }
    }
    Ok(None)
}

fn proportional_with<const N: usize>(
    left: &Expr,
    right: &Expr,
    variables: &Variables,
    branching: bool,
    budget: &mut Budget,
) -> Result<Option<bool>, TooLarge> {
    let needed = needed_points(variables);
    let mut reference: Option<Pair<N>> = None;
    let (mut together, mut zeros) = (0, 0);
    for number in 0..POINTS.len() {
        let place = Place { point: Some((Point::new(number), variables)) };
        let pair = match Pair::<N>::at(left, right, place, budget) {
            Ok(pair) if branching || !pair.branching => pair,
            Err(Failure::Spent(reason)) => return Err(reason),
            _ => continue,
        };
        match (pair.left.may_be_zero(), pair.right.may_be_zero()) {
            (true, true) => {
                zeros += 1;
                continue;
            }
            (false, false) => {}
            _ if pair.meeting() == Meeting::Apart => return Ok(Some(false)),
            _ => continue,
        }
        let Some(first) = &reference else {
            reference = Some(pair);
            continue;
        };
        let crossed = Pair {
            left: pair.left.times(&first.right),
            right: pair.right.times(&first.left),
            largest: 2 * pair.largest.max(first.largest),
            branching,
        };
        match crossed.meeting() {
            Meeting::Apart => return Ok(Some(false)),
            Meeting::Together | Meeting::Faint => together += 1,
            Meeting::Unclear | Meeting::Nowhere => {}
        }
        if together >= needed {
            return Ok(Some(true));
        }
    }
    Ok((reference.is_none() && zeros >= needed).then_some(true))
}

/// Which of two real constants is larger, if that can be seen.
pub fn order(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Option<Ordering>, TooLarge> {
    for precision in Precision::ALL {
        let sign = match precision {
            Precision::Usual => sign_of_difference::<4>(left, right, budget),
            Precision::High => sign_of_difference::<8>(left, right, budget),
            Precision::Highest => sign_of_difference::<16>(left, right, budget),
        };
        match sign {
            Ok(sign) => return Ok(sign),
            Err(Failure::Imprecise) => {}
            Err(failure) => return failed(failure),
        }
    }
    Ok(None)
}

/// Whether a constant has a real value.
pub fn is_real(constant: &Expr, budget: &mut Budget) -> Result<bool, TooLarge> {
    match evaluate::constant::<4>(constant, budget) {
        Ok(value) => Ok(value.as_real().is_some()),
        Err(failure) => failed(failure).map(|none: Option<bool>| none.is_some()),
    }
}

/// Whether |constant - value| <= tolerance: a constant that lies on the border, as far as can be seen, is within.
pub fn within(constant: &Expr, value: &BigRational, tolerance: &BigRational, budget: &mut Budget) -> Result<Option<bool>, TooLarge> {
    let value = Expr::Number(value.clone());
    let tolerance = Expr::Number(tolerance.clone());
    for precision in Precision::ALL {
        let within = match precision {
            Precision::Usual => within_with::<4>(constant, &value, &tolerance, budget),
            Precision::High => within_with::<8>(constant, &value, &tolerance, budget),
            Precision::Highest => within_with::<16>(constant, &value, &tolerance, budget),
        };
        match within {
            Ok(within) => return Ok(within),
            Err(Failure::Imprecise) => {}
            Err(failure) => return failed(failure),
        }
    }
    // Still on the border.
    Ok(Some(true))
}

/// How many words are computed with.
#[derive(Clone, Copy)]
enum Precision {
    Usual,
    High,
    Highest,
}

impl Precision {
    const ALL: [Precision; 3] = [Precision::Usual, Precision::High, Precision::Highest];
}

fn equal_constants(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Option<bool>, TooLarge> {
    let place = Place { point: None };
    for precision in Precision::ALL {
        let meeting = match precision {
            Precision::Usual => meeting::<4>(left, right, place, budget),
            Precision::High => meeting::<8>(left, right, place, budget),
            Precision::Highest => meeting::<16>(left, right, place, budget),
        };
        match (meeting, precision) {
            (Ok((Meeting::Apart, _)), _) => return Ok(Some(false)),
            // Without other points to ask, more bits confirm it.
            (Ok((Meeting::Together, _)), Precision::High) => return Ok(Some(true)),
            (Ok((Meeting::Together | Meeting::Faint, _)), Precision::Highest) => return Ok(Some(true)),
            (Ok((Meeting::Nowhere, _)), _) => return Ok(None),
            (Ok(_) | Err(Failure::Imprecise), _) => {}
            (Err(failure), _) => return failed(failure),
        }
    }
    Ok(None)
}

/// What the two values say, with more words if that is needed; and whether branches were chosen.
fn meeting_somehow(left: &Expr, right: &Expr, place: Place, budget: &mut Budget) -> Result<(Meeting, bool), Failure> {
    match meeting::<4>(left, right, place, budget) {
        Ok((Meeting::Unclear | Meeting::Faint, _)) | Err(Failure::Imprecise) => meeting::<8>(left, right, place, budget),
        decided => decided,
    }
}

/// What the two values say with `N` words.
fn meeting<const N: usize>(left: &Expr, right: &Expr, place: Place, budget: &mut Budget) -> Result<(Meeting, bool), Failure> {
    match Pair::<N>::at(left, right, place, budget) {
        Ok(pair) => Ok((pair.meeting(), pair.branching)),
        Err(Failure::Undefined) => Ok((Meeting::Nowhere, false)),
        Err(failure) => Err(failure),
    }
}

/// Both values at a place.
struct Pair<const N: usize> {
    left: Ball<N>,
    right: Ball<N>,
    largest: i64,
    branching: bool,
}

impl<const N: usize> Pair<N> {
    fn at(left: &Expr, right: &Expr, place: Place, budget: &mut Budget) -> Result<Self, Failure> {
        let mut evaluation = Evaluation::new(place, budget);
        let (left, right) = (evaluation.value(left)?, evaluation.value(right)?);
        Ok(Self { left, right, largest: evaluation.largest, branching: evaluation.branching() })
    }

    fn meeting(&self) -> Meeting {
        let difference = self.left.minus(&self.right);
        if !difference.may_be_zero() {
            return Meeting::Apart;
        }
        let size = self.left.below().exponent.max(self.right.below().exponent);
        if less_than_power(&difference.radius, -self.largest - AGREEING_BITS) {
            return Meeting::Together;
        }
        match less_than_power(&difference.radius, size - AGREEING_BITS) {
            true if self.largest < 24 * N as i64 => Meeting::Together,
            true => Meeting::Faint,
            false => Meeting::Unclear,
        }
    }
}

fn sign_of_difference<const N: usize>(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Option<Ordering>, Failure> {
    let pair = Pair::<N>::at(left, right, Place { point: None }, budget)?;
    let (Some(left), Some(right)) = (pair.left.as_real(), pair.right.as_real()) else { return Ok(None) };
    let difference = left.minus(&right);
    match difference.may_be_zero() {
        true => Err(Failure::Imprecise),
        false => Ok(Some(if difference.real.negative { Ordering::Less } else { Ordering::Greater })),
    }
}

fn within_with<const N: usize>(constant: &Expr, value: &Expr, tolerance: &Expr, budget: &mut Budget) -> Result<Option<bool>, Failure> {
    let pair = Pair::<N>::at(constant, value, Place { point: None }, budget)?;
    let Some(left) = pair.left.as_real() else { return Ok(None) };
    let apart = left.minus(&pair.right);
    let apart = Ball { real: apart.real.absolute(), ..apart };
    let room = evaluate::constant::<N>(tolerance, budget)?.minus(&apart);
    if room.may_be_zero() { Err(Failure::Imprecise) } else { Ok(Some(!room.real.negative)) }
}

fn needed_points(variables: &Variables) -> usize {
    if variables.any_natural() { AGREEING_NATURAL_POINTS } else { AGREEING_POINTS }
}

fn failed<T>(failure: Failure) -> Result<Option<T>, TooLarge> {
    match failure {
        Failure::Vast(reason) | Failure::Spent(reason) => Err(reason),
        Failure::Undefined | Failure::Imprecise => Ok(None),
    }
}
