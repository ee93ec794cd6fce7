//! Sets of real numbers: intervals, points, and what inequalities, unions, intersections and differences make of them.
//!
//! A [`Region`] is a sorted list of pieces that neither touch nor overlap, so that equal sets are equal lists. It exists only where all its
//! bounds can be ordered.

use std::cmp::Ordering;

use num_rational::BigRational;
use num_traits::Signed;

use super::answer::Answer;
use super::equal::{self, Budget};
use super::expr::{Constant, Expr, Function, TooLarge};

/// Where a piece ends.
#[derive(Clone, Debug)]
enum Bound {
    /// Minus infinity.
    Below,
    /// A number.
    At(Expr),
    /// Infinity.
    Above,
}

/// All numbers from `low` to `high`.
#[derive(Clone, Debug)]
struct Piece {
    low: Bound,
    low_closed: bool,
    high: Bound,
    high_closed: bool,
}

/// A set of real numbers.
#[derive(Clone, Debug)]
pub struct Region {
    pieces: Vec<Piece>,
}

/// Nothing where bounds cannot be ordered.
type Perhaps<T> = Result<Option<T>, TooLarge>;

/// Most pieces.
const PIECES: usize = 40;

/// The region that an answer describes, and the variable that it describes it of, if it names one.
pub fn region(answer: &Answer, budget: &mut Budget) -> Perhaps<(Option<Expr>, Region)> {
    Ok(match answer {
        Answer::Inequality { terms, relations } => inequality(terms, relations, budget)?,
        Answer::Member(set) => region(set, budget)?,
        Answer::Delimited { open, close, items } => interval(*open, *close, items, budget)?.map(|r| (None, r)),
        Answer::Set(items) => {
            if items.len() > PIECES {
                return Ok(None);
            }
            let mut all = Region { pieces: Vec::new() };
            for item in items {
                let Answer::Quantity(quantity) = item else { return Ok(None) };
                if equal::has_variables(&quantity.value) {
                    return Ok(None);
                }
                let Some(union) = all.union(&Region::point(quantity.value.clone()), budget)? else { return Ok(None) };
                all = union;
            }
            Some((None, all))
        }
        Answer::Named(name) => match name.as_str() {
            "R" => Some((None, Region::whole())),
            "R^+" | "R+" => Some((None, Region::half(Expr::integer(0), false, true))),
            "R^-" | "R-" => Some((None, Region::half(Expr::integer(0), false, false))),
            "R^*" => Region::point(Expr::integer(0)).complement(budget)?.map(|r| (None, r)),
            _ => None,
        },
        Answer::Combination(operation, left, right) => {
            let (Some((_, left)), Some((_, right))) = (region(left, budget)?, region(right, budget)?) else { return Ok(None) };
            let combined = match operation {
                '∪' => left.union(&right, budget)?,
                '∩' => left.intersection(&right, budget)?,
                _ => match right.complement(budget)? {
                    Some(rest) => left.intersection(&rest, budget)?,
                    None => None,
                },
            };
            combined.map(|r| (None, r))
        }
        // "x < 1 or x > 3"; "x > 2 and x < 5", which a union would make everything.
        Answer::List(items) if items.iter().all(|item| matches!(item, Answer::Inequality { .. })) => {
            let mut regions = Vec::new();
            let mut of: Option<Expr> = None;
            for item in items {
                let Some((variable, region)) = region(item, budget)? else { return Ok(None) };
                if of.is_some() && of != variable {
                    return Ok(None);
                }
                of = variable;
                regions.push(region);
            }
            let mut all = regions[0].clone();
            let mut common = regions[0].clone();
            for region in &regions[1..] {
                let (Some(union), Some(intersection)) = (all.union(region, budget)?, common.intersection(region, budget)?) else {
                    return Ok(None);
                };
                (all, common) = (union, intersection);
            }
            let everything = matches!(all.pieces.as_slice(), [Piece { low: Bound::Below, high: Bound::Above, .. }]);
            Some((of, if everything { common } else { all }))
        }
        _ => None,
    })
}

fn is_infinite(expression: &Expr) -> Option<Bound> {
    match expression {
        Expr::Constant(Constant::Infinity) => Some(Bound::Above),
        Expr::Product(items) => match items.as_slice() {
            [sign, Expr::Constant(Constant::Infinity)] if sign.as_number().is_some_and(|n| n.is_negative()) => Some(Bound::Below),
            _ => None,
        },
        _ => None,
    }
}

fn bound(expression: &Expr) -> Option<Bound> {
    is_infinite(expression).or_else(|| (!equal::has_variables(expression)).then(|| Bound::At(expression.clone())))
}

fn interval(open: char, close: char, items: &[Answer], budget: &mut Budget) -> Perhaps<Region> {
    let [Answer::Quantity(low), Answer::Quantity(high)] = items else { return Ok(None) };
    if !matches!(open, '(' | '[') || !matches!(close, ')' | ']') {
        return Ok(None);
    }
    let (Some(low), Some(high)) = (bound(&low.value), bound(&high.value)) else { return Ok(None) };
    let piece = Piece {
        low_closed: open == '[' && matches!(low, Bound::At(_)),
        high_closed: close == ']' && matches!(high, Bound::At(_)),
        low,
        high,
    };
    match piece.order_of_ends(budget)? {
        Some(Ordering::Less) => Ok(Some(Region { pieces: vec![piece] })),
        Some(Ordering::Equal) if piece.low_closed && piece.high_closed => Ok(Some(Region { pieces: vec![piece] })),
        _ => Ok(None),
    }
}

/// What the inequality is of: a variable, a function's value, or an absolute value of one.
fn subject(expression: &Expr) -> Option<&Expr> {
    match expression {
        Expr::Symbol(_) | Expr::Unknown(..) => Some(expression),
        Expr::Apply(Function::Abs, items) => subject(&items[0]).map(|_| expression),
        _ => None,
    }
}

/// The first variable of an expression.
fn variable(expression: &Expr) -> Option<&Expr> {
    match expression {
        Expr::Symbol(_) | Expr::Unknown(..) => Some(expression),
        Expr::Sum(items) | Expr::Product(items) | Expr::Apply(_, items) => items.iter().find_map(variable),
        Expr::Power(base, exponent) => variable(base).or_else(|| variable(exponent)),
        _ => None,
    }
}

/// `expression` with `value` in place of `variable`.
pub(super) fn substituted(expression: &Expr, variable: &Expr, value: &Expr) -> Expr {
    if expression == variable {
        return value.clone();
    }
    let all = |items: &[Expr]| items.iter().map(|item| substituted(item, variable, value)).collect();
    match expression {
        Expr::Sum(items) => Expr::Sum(all(items)),
        Expr::Product(items) => Expr::Product(all(items)),
        Expr::Apply(function, items) => Expr::Apply(*function, all(items)),
        Expr::Power(base, exponent) => substituted(base, variable, value).power(substituted(exponent, variable, value)),
        other => other.clone(),
    }
}

fn inequality(terms: &[Expr], relations: &[char], budget: &mut Budget) -> Perhaps<(Option<Expr>, Region)> {
    let mut of: Option<Expr> = None;
    let mut all = Region::whole();
    for (at, relation) in relations.iter().enumerate() {
        let (left, right) = (&terms[at], &terms[at + 1]);
        let Some((subject, region)) = one_inequality(left, *relation, right, budget)? else { return Ok(None) };
        if of.as_ref().is_some_and(|before| *before != subject) {
            return Ok(None);
        }
        of = Some(subject);
        let Some(both) = all.intersection(&region, budget)? else { return Ok(None) };
        all = both;
    }
    // Of an absolute value: of what is in it.
    if let Some(Expr::Apply(Function::Abs, inside)) = &of {
        let (Some(inside), Some(positive)) = (inside.first(), all.intersection(&Region::half(Expr::integer(0), true, true), budget)?)
        else {
            return Ok(None);
        };
        let Some(both) = positive.union(&positive.mirrored(), budget)? else { return Ok(None) };
        return Ok(Some((Some(inside.clone()), both)));
    }
    Ok(Some((of, all)))
}

/// `left relation right`, linear in one subject.
fn one_inequality(left: &Expr, relation: char, right: &Expr, budget: &mut Budget) -> Perhaps<(Expr, Region)> {
    if let (Some(subject), Some(bound)) = (subject(left), bound(right)) {
        return Ok(half_line(relation, bound, budget)?.map(|region| (subject.clone(), region)));
    }
    if let (Some(bound), Some(subject)) = (bound(left), subject(right)) {
        return Ok(half_line(flipped(relation), bound, budget)?.map(|region| (subject.clone(), region)));
    }
    // a x + b: found by its values at 0, 1 and 2.
    let difference = Expr::Sum(vec![left.clone(), right.clone().negated()]);
    let Some(variable) = variable(&difference).cloned() else { return Ok(None) };
    let at = |value: i64| substituted(&difference, &variable, &Expr::integer(value));
    let (zero, one, two) = (at(0), at(1), at(2));
    if equal::has_variables(&zero) {
        return Ok(None);
    }
    let slope = Expr::Sum(vec![one.clone(), zero.clone().negated()]);
    let straight = Expr::Sum(vec![zero.clone(), two, Expr::Product(vec![Expr::integer(-2), one])]);
    if equal::equal(&straight, &Expr::integer(0), budget)? != Some(true) {
        return Ok(None);
    }
    // Three points do not make a line of anything else.
    let apart = substituted(&difference, &variable, &Expr::Number(BigRational::new(355.into(), 113.into())));
    let line = Expr::Sum(vec![
        zero.clone(),
        Expr::Product(vec![slope.clone(), Expr::Number(BigRational::new(355.into(), 113.into()))]),
        apart.negated(),
    ]);
    if equal::equal(&line, &Expr::integer(0), budget)? != Some(true) {
        return Ok(None);
    }
    let relation = match equal::order(&slope, &Expr::integer(0), budget)? {
        Some(Ordering::Greater) => relation,
        Some(Ordering::Less) => flipped(relation),
        _ => return Ok(None),
    };
    let zero_at = zero.negated().divided(slope);
    Ok(half_line(relation, Bound::At(zero_at), budget)?.map(|region| (variable, region)))
}

fn flipped(relation: char) -> char {
    match relation {
        '<' => '>',
        '>' => '<',
        '≤' => '≥',
        '≥' => '≤',
        other => other,
    }
}

fn half_line(relation: char, bound: Bound, budget: &mut Budget) -> Perhaps<Region> {
    let Bound::At(value) = bound else {
        // x < infinity says nothing.
        return Ok(Some(Region::whole()));
    };
    Ok(Some(match relation {
        '<' => Region::half(value, false, false),
        '≤' => Region::half(value, true, false),
        '>' => Region::half(value, false, true),
        '≥' => Region::half(value, true, true),
        _ => return Region::point(value).complement(budget),
    }))
}

impl Bound {
    fn order(&self, other: &Bound, budget: &mut Budget) -> Perhaps<Ordering> {
        Ok(match (self, other) {
            (Bound::Below, Bound::Below) | (Bound::Above, Bound::Above) => Some(Ordering::Equal),
            (Bound::Below, _) | (_, Bound::Above) => Some(Ordering::Less),
            (Bound::Above, _) | (_, Bound::Below) => Some(Ordering::Greater),
            (Bound::At(a), Bound::At(b)) => equal::order(a, b, budget)?,
        })
    }

    fn mirrored(&self) -> Bound {
        match self {
            Bound::Below => Bound::Above,
            Bound::Above => Bound::Below,
            Bound::At(value) => Bound::At(value.clone().negated()),
        }
    }
}

impl Piece {
    fn order_of_ends(&self, budget: &mut Budget) -> Perhaps<Ordering> {
        self.low.order(&self.high, budget)
    }
}

impl Region {
    fn whole() -> Self {
        Region { pieces: vec![Piece { low: Bound::Below, low_closed: false, high: Bound::Above, high_closed: false }] }
    }

    fn point(value: Expr) -> Self {
        let (low, high) = (Bound::At(value.clone()), Bound::At(value));
        Region { pieces: vec![Piece { low, low_closed: true, high, high_closed: true }] }
    }

    /// All numbers above or below one.
    fn half(value: Expr, closed: bool, above: bool) -> Self {
        let piece = match above {
            true => Piece { low: Bound::At(value), low_closed: closed, high: Bound::Above, high_closed: false },
            false => Piece { low: Bound::Below, low_closed: false, high: Bound::At(value), high_closed: closed },
        };
        Region { pieces: vec![piece] }
    }

    fn mirrored(&self) -> Self {
        let mirror = |piece: &Piece| Piece {
            low: piece.high.mirrored(),
            low_closed: piece.high_closed,
            high: piece.low.mirrored(),
            high_closed: piece.low_closed,
        };
        Region { pieces: self.pieces.iter().rev().map(mirror).collect() }
    }

    fn union(&self, other: &Region, budget: &mut Budget) -> Perhaps<Region> {
        if self.pieces.len() + other.pieces.len() > PIECES {
            return Err(TooLarge("a union of more than 40 parts"));
        }
        let mut sorted: Vec<Piece> = Vec::new();
        for piece in self.pieces.iter().chain(&other.pieces) {
            let mut at = sorted.len();
            while at > 0 {
                let before = &sorted[at - 1];
                let Some(order) = piece.low.order(&before.low, budget)? else { return Ok(None) };
                let earlier = order == Ordering::Less || (order == Ordering::Equal && piece.low_closed && !before.low_closed);
                if !earlier {
                    break;
                }
                at -= 1;
            }
            sorted.insert(at, piece.clone());
        }
        let mut merged: Vec<Piece> = Vec::new();
        for piece in sorted {
            let Some(last) = merged.last_mut() else {
                merged.push(piece);
                continue;
            };
            let Some(gap) = piece.low.order(&last.high, budget)? else { return Ok(None) };
            let touches = gap == Ordering::Less || (gap == Ordering::Equal && (piece.low_closed || last.high_closed));
            if !touches {
                merged.push(piece);
                continue;
            }
            let Some(ends) = piece.high.order(&last.high, budget)? else { return Ok(None) };
            match ends {
                Ordering::Greater => {
                    last.high = piece.high;
                    last.high_closed = piece.high_closed;
                }
                Ordering::Equal => last.high_closed |= piece.high_closed,
                Ordering::Less => {}
            }
        }
        Ok(Some(Region { pieces: merged }))
    }

    fn intersection(&self, other: &Region, budget: &mut Budget) -> Perhaps<Region> {
        let mut common = Vec::new();
        for a in &self.pieces {
            for b in &other.pieces {
                let (Some(low), Some(high)) = (a.low.order(&b.low, budget)?, a.high.order(&b.high, budget)?) else { return Ok(None) };
                let (from, low_closed) = match low {
                    Ordering::Less => (&b.low, b.low_closed),
                    Ordering::Greater => (&a.low, a.low_closed),
                    Ordering::Equal => (&a.low, a.low_closed && b.low_closed),
                };
                let (to, high_closed) = match high {
                    Ordering::Less => (&a.high, a.high_closed),
                    Ordering::Greater => (&b.high, b.high_closed),
                    Ordering::Equal => (&a.high, a.high_closed && b.high_closed),
                };
                let Some(order) = from.order(to, budget)? else { return Ok(None) };
                if order == Ordering::Less || (order == Ordering::Equal && low_closed && high_closed) {
                    common.push(Piece { low: from.clone(), low_closed, high: to.clone(), high_closed });
                }
            }
        }
        Ok(Some(Region { pieces: common }))
    }

    fn complement(&self, budget: &mut Budget) -> Perhaps<Region> {
        let mut rest = Vec::new();
        let mut low = Bound::Below;
        let mut low_closed = false;
        for piece in &self.pieces {
            let Some(order) = low.order(&piece.low, budget)? else { return Ok(None) };
            let high_closed = !piece.low_closed && matches!(piece.low, Bound::At(_));
            if order == Ordering::Less || (order == Ordering::Equal && low_closed && high_closed) {
                rest.push(Piece { low: low.clone(), low_closed, high: piece.low.clone(), high_closed });
            }
            low = piece.high.clone();
            low_closed = !piece.high_closed && matches!(piece.high, Bound::At(_));
        }
        if !matches!(low, Bound::Above) {
            rest.push(Piece { low, low_closed, high: Bound::Above, high_closed: false });
        }
        Ok(Some(Region { pieces: rest }))
    }

    /// Whether it is the same set; `same` says which bounds are equal, so that a gold's rounding holds for them too.
    pub fn same(&self, other: &Region, mut same: impl FnMut(&Expr, &Expr) -> Result<bool, TooLarge>) -> Result<bool, TooLarge> {
        if self.pieces.len() != other.pieces.len() {
            return Ok(false);
        }
        let mut bounds = |a: &Bound, b: &Bound| match (a, b) {
            (Bound::Below, Bound::Below) | (Bound::Above, Bound::Above) => Ok(true),
            (Bound::At(a), Bound::At(b)) => same(a, b),
            _ => Ok(false),
        };
        for (a, b) in self.pieces.iter().zip(&other.pieces) {
            if a.low_closed != b.low_closed || a.high_closed != b.high_closed || !bounds(&a.low, &b.low)? || !bounds(&a.high, &b.high)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
