//! Whether an answer is the gold's.
//!
//! The gold's shape says what is asked: a response may come in another shape only where a rule says so (a value for an assignment, a list for
//! a set, an inequality for an interval). Values are equal exactly, by [`equal`](super::equal), or by the rule of rounding in [`Options`].
//! All work of one verdict is charged to one budget.

use std::cmp::Ordering;

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Signed, Zero};

use super::answer::{Answer, Quantity, numeral};
use super::equal::{self, Budget};
use super::expr::{Constant, Expr, Function, TooLarge};
use super::options::{Allow, Case, ListOrder, Names, Options, Percent, Rounding, Units};
use super::parse::is_unreduced;
use super::region::{region, substituted};
use super::wording;

/// A decimal of so many significant digits is a rounded value where the exact one is asked for.
const ROUNDED_DIGITS: usize = 12;
/// A gold of so many significant digits may be a rounded value.
const GOLD_DIGITS: usize = 3;

/// What looking at a pair costs, besides the comparison of expressions: of two items, of two equations, of two regions.
const PAIR: u64 = 3;
const PAIR_OF_EQUATIONS: u64 = 50;
const PAIR_OF_REGIONS: u64 = 100;
const LONG_LIST: &str = "too many pairs of items to compare";

/// One comparison.
pub struct Comparison<'a> {
    options: &'a Options,
    budget: Budget,
}

type Verdict = Result<bool, TooLarge>;

impl<'a> Comparison<'a> {
    /// Compares under `options`.
    pub fn new(options: &'a Options) -> Self {
        Comparison { options, budget: Budget::new() }
    }

    /// Whether `response` is `gold`.
    pub fn same(&mut self, gold: &Answer, response: &Answer) -> Verdict {
        use Answer as A;
        if gold == response {
            return Ok(!matches!(gold, A::Opaque(tokens) if tokens.is_empty()));
        }
        match (gold, response) {
            (A::Opaque(_), _) | (_, A::Opaque(_)) => Ok(false),
            (A::Equals { .. }, _) | (_, A::Equals { .. }) => self.equations(gold, response),
            (A::Quantity(gold), A::Quantity(response)) => self.quantities(gold, response),
            (A::Choice(gold, text), A::Choice(response, other)) => {
                Ok(gold == response && (!holds_option(other) || self.same(text, other)?))
            }
            (A::Choice(letter, text), other) => Ok(self.is_letter(other, *letter) || (!is_one_letter(other) && self.same(text, other)?)),
            // "(B) A" chooses two.
            (other, A::Choice(letter, text)) if is_one_letter(other) => Ok(self.is_letter(other, *letter) && !holds_option(text)),
            (other, A::Choice(_, text)) => self.same(other, text),
            (A::List(gold), A::List(response)) => self.lists(gold, response),
            (A::Set(gold), A::Set(response)) => self.sets(gold, response),
            (A::Set(gold), A::List(response)) | (A::List(gold), A::Set(response)) => self.sets(gold, response),
            // One value is a set or a list of one.
            (A::Set(items) | A::List(items), other) if items.len() == 1 => self.same(&items[0], other),
            (other, A::Set(items)) if items.len() == 1 && matches!(other, A::Quantity(_)) => self.same(other, &items[0]),
            (A::Delimited { open, close, items: gold }, A::Delimited { open: response_open, close: response_close, items: response }) => {
                if bracket(*open) == bracket(*response_open) && bracket(*close) == bracket(*response_close) {
                    return self.tuples(gold, response);
                }
                Ok(false)
            }
            (A::Delimited { open: '(' | '⟨', items: tuple, .. }, A::List(list)) => {
                Ok(self.options.list_as_tuple == Allow::Accept && self.tuples(tuple, list)?)
            }
            (A::List(list), A::Delimited { open: '(' | '⟨', items: tuple, .. }) => {
                Ok(self.options.list_as_tuple == Allow::Accept && self.tuples(list, tuple)?)
            }
            (A::Matrix(rows, false), A::Delimited { open: '(' | '⟨', items, .. }) => self.vector(rows, items, true),
            (A::Delimited { open: '(' | '⟨', items, .. }, A::Matrix(rows, false)) => self.vector(rows, items, false),
            (A::Matrix(gold, bars), A::Matrix(response, response_bars)) => {
                let shape = |rows: &[Vec<Answer>]| rows.iter().map(Vec::len).collect::<Vec<_>>();
                if bars != response_bars || shape(gold) != shape(response) {
                    return Ok(false);
                }
                self.tuples(&gold.concat(), &response.concat())
            }
            (A::Matrix(rows, false), A::Quantity(_)) if rows.len() == 1 && rows[0].len() == 1 => self.same(&rows[0][0], response),
            (A::Ratio(gold), A::Ratio(response)) => self.ratios(gold, response),
            (A::Clock(gold, gold_half), A::Clock(response, half)) => {
                Ok(same_time(gold, response) && (gold_half == half || gold_half.is_none() || half.is_none()))
            }
            (A::Clock(parts, None), A::Ratio(other)) | (A::Ratio(other), A::Clock(parts, None)) => {
                let clock: Vec<Expr> = parts.iter().map(|part| Expr::integer(*part)).collect();
                self.ratios(&clock, other)
            }
            (A::Date(year, month, day), A::Date(other_year, other_month, other_day)) => {
                Ok((month, day) == (other_month, other_day) && (year == other_year || year.is_none() || other_year.is_none()))
            }
            (A::Based { digits, base }, A::Based { digits: response, base: response_base }) => {
                let (gold, response) = (numeral(digits, *base), numeral(response, *response_base));
                let same_base = base == response_base || self.options.base_as_value == Allow::Accept;
                Ok(same_base && gold.is_some() && gold == response)
            }
            (A::Based { digits, base }, A::Quantity(quantity)) | (A::Quantity(quantity), A::Based { digits, base }) => {
                if self.options.base_as_value == Allow::Refuse && *base != 10 {
                    return Ok(false);
                }
                match numeral(digits, *base) {
                    Some(value) => self.values(&Expr::integer(value), &quantity.value),
                    None => Ok(false),
                }
            }
            (A::Named(gold), A::Named(response)) => Ok(gold == response),
            (A::Words(gold, _), A::Words(response, _)) => Ok(self.texts(gold, response)),
            _ => self.regions(gold, response),
        }
    }

    fn texts(&self, gold: &str, response: &str) -> bool {
        match self.options.case {
            Case::Match => gold == response,
            Case::Ignore => gold == response || gold.chars().flat_map(char::to_lowercase).eq(response.chars().flat_map(char::to_lowercase)),
        }
    }

    fn is_letter(&self, answer: &Answer, letter: char) -> bool {
        match answer {
            Answer::Quantity(Quantity { value: Expr::Symbol(name), .. }) => self.texts(name, &letter.to_string()),
            _ => false,
        }
    }

    /// Equations and assignments, on one side at least.
    fn equations(&mut self, gold: &Answer, response: &Answer) -> Verdict {
        match (gold, response) {
            (Answer::Equals { name, sides }, Answer::Equals { name: response_name, sides: response_sides }) => {
                if let (Some(name), Some(response_name)) = (name, response_name) {
                    let names =
                        self.options.names == Names::Ignore || name == response_name || name == "constant" && response_name == "constant";
                    if names
                        && self.same_arguments(&sides[0], &response_sides[0])?
                        && self.same(last(sides), last(response_sides))?
                        && self.is_consistent(response_sides)?
                    {
                        return Ok(true);
                    }
                } else if (name.is_none() && response_name.is_none() || sides.len() > 2 || response_sides.len() > 2)
                    && self.is_computed(sides)?
                    && (response_name.is_some() || self.is_computed(response_sides)?)
                    && self.same(last(sides), last(response_sides))?
                    && self.is_consistent(response_sides)?
                {
                    return Ok(true);
                }
                self.budget.spend(PAIR_OF_EQUATIONS, LONG_LIST)?;
                let (Some((a, b)), Some((c, d))) = (two(sides), two(response_sides)) else { return Ok(false) };
                // x = 5 is not x = 7, and that is all there is to it.
                if a == c && matches!(a, Expr::Symbol(_)) && b.as_number().is_some() && d.as_number().is_some() {
                    return Ok(false);
                }
                let difference = |a: &Expr, b: &Expr| Expr::Sum(vec![a.clone(), b.clone().negated()]);
                let (gold, response) = (difference(a, b), difference(c, d));
                if !equal::has_variables(&gold) || !equal::has_variables(&response) {
                    return Ok(false);
                }
                self.same_zeros(&gold, &response)
            }
            (Answer::Equals { name, sides }, other) => Ok(self.stands_for_value(name.as_deref(), sides)? && self.same(last(sides), other)?),
            (other, Answer::Equals { name, sides }) => {
                Ok(self.stands_for_value(name.as_deref(), sides)? && self.same(other, last(sides))? && self.is_consistent(sides)?)
            }
            _ => Ok(false),
        }
    }

    /// Whether an equation says what the value of its last side is the value of.
    fn stands_for_value(&mut self, name: Option<&str>, sides: &[Answer]) -> Verdict {
        match name {
            // "A = B" says of one option that it is another.
            Some(name) => {
                // (x, y) = 42 is no value of either.
                let of_several =
                    matches!(sides[0], Answer::Delimited { .. } | Answer::List(_)) && matches!(last(sides), Answer::Quantity(_));
                let of_options = is_option(&sides[0]) && is_option(last(sides));
                let accepted = self.options.assignment_as_value == Allow::Accept;
                Ok(accepted && !wording::denies(name) && !of_several && !of_options)
            }
            None => self.is_computed(sides),
        }
    }

    /// f(2) is not f(3); what a function is of matters where it is a constant.
    fn same_arguments(&mut self, gold: &Answer, response: &Answer) -> Verdict {
        let (Answer::Quantity(gold), Answer::Quantity(response)) = (gold, response) else { return Ok(true) };
        let (Expr::Unknown(_, gold), Expr::Unknown(_, response)) = (&gold.value, &response.value) else { return Ok(true) };
        if gold.len() != response.len() {
            return Ok(false);
        }
        for (gold, response) in gold.iter().zip(response) {
            let (of_gold, of_response) = (equal::has_variables(gold), equal::has_variables(response));
            let same = match of_gold || of_response {
                true => of_gold == of_response,
                false => equal::equal(gold, response, &mut self.budget)? == Some(true),
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a chain leads to its last side. A slip on the way is none of ours (`x = 5 + 5 + 1 = 7 = 11`), but other numbers where nothing was
    /// computed, or two of them, would be right whatever is asked: `x = 1 = 2 = 42`.
    fn is_consistent(&mut self, sides: &[Answer]) -> Verdict {
        let Answer::Quantity(end) = last(sides) else { return Ok(true) };
        if equal::has_variables(&end.value) {
            return Ok(true);
        }
        let mut computed = false;
        let mut others = 0;
        for side in &sides[..sides.len() - 1] {
            let Answer::Quantity(quantity) = side else { continue };
            // "2 minutes = 120": the unit is that of one side.
            let half_measured =
                quantity.unit.is_none() != end.unit.is_none() && (quantity.known_unit().is_some() || end.known_unit().is_some());
            if equal::has_variables(&quantity.value) || half_measured {
                continue;
            }
            let written = quantity.is_number() || matches!(quantity.value, Expr::Constant(Constant::Pi | Constant::Infinity));
            if written && !self.quantities(end, quantity)? && !self.rounds_somehow(&end.value, &quantity.value)? {
                others += 1;
                if !computed || others > 1 {
                    return Ok(false);
                }
            }
            computed |= !written;
        }
        Ok(true)
    }

    /// Whether one of two values rounds to the other as that is written, in whatever precision; so does what cannot be computed.
    fn rounds_somehow(&mut self, left: &Expr, right: &Expr) -> Verdict {
        for (written, value) in [(left, right), (right, left)] {
            let (rounded, places) = match written {
                Expr::Decimal { value, places } => (value.clone(), *places),
                Expr::Number(value) if value.is_integer() => (value.clone(), 0),
                _ => continue,
            };
            // An integer is no rounded integer; a decimal may be cut instead of rounded.
            if value.as_number().is_some_and(BigRational::is_integer) {
                continue;
            }
            let width = if places > 0 { power_of_ten(-places) } else { BigRational::new(1.into(), 2.into()) };
            if self.is_within(value, &rounded, &width)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether two expressions are zero together because one is a multiple of the other.
    fn same_zeros(&mut self, gold: &Expr, response: &Expr) -> Verdict {
        if equal::proportional(gold, response, &mut self.budget)? != Some(true) {
            return Ok(false);
        }
        // x and |x| differ only where x is negative: each variable is looked at with the other sign.
        let mut names = Vec::new();
        let absolute = [gold, response].map(|expression| names_in(expression, &mut names)).contains(&true);
        if absolute {
            for name in names {
                let turned = |expression: &Expr| substituted(expression, &name, &name.clone().negated());
                if equal::proportional(&turned(gold), &turned(response), &mut self.budget)? == Some(false) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether the first side is computed by the others, and not an unknown that they restrict: `3 + 2 = 5`, not `2x + z = 1`.
    fn is_computed(&mut self, sides: &[Answer]) -> Verdict {
        Ok(match &sides[0] {
            Answer::Quantity(first) => !has_symbols(&first.value),
            Answer::Opaque(_) | Answer::Matrix(..) => true,
            _ => false,
        })
    }

    fn lists(&mut self, gold: &[Answer], response: &[Answer]) -> Verdict {
        // Values without names answer a gold with names in its order, which alone says which is which.
        if has_names(gold) && !response.iter().any(|item| matches!(item, Answer::Equals { .. })) {
            return self.tuples(gold, response);
        }
        if gold.len() != response.len() {
            // `±0` and repeated values.
            return Ok(self.options.list_order == ListOrder::Any && self.sets(gold, response)?);
        }
        match self.options.list_order {
            ListOrder::Same => self.tuples(gold, response),
            ListOrder::Any => self.matched(gold, response),
        }
    }

    /// Every gold has its own equal.
    fn matched(&mut self, gold: &[Answer], response: &[Answer]) -> Verdict {
        let mut used = vec![false; response.len()];
        for gold in gold {
            let mut found = None;
            for (at, response) in response.iter().enumerate() {
                self.budget.spend(PAIR, LONG_LIST)?;
                if !used[at] && self.same(gold, response)? {
                    found = Some(at);
                    break;
                }
            }
            match found {
                Some(at) => used[at] = true,
                None => return Ok(false),
            }
        }
        Ok(used.into_iter().all(|used| used))
    }

    /// Every element of one is an element of the other.
    fn sets(&mut self, gold: &[Answer], response: &[Answer]) -> Verdict {
        if gold.is_empty() || response.is_empty() {
            return Ok(gold.is_empty() && response.is_empty());
        }
        // A set does not say which of several names a value is for.
        if has_names(gold) && !has_names(response) {
            return Ok(false);
        }
        for (some, others, swapped) in [(gold, response, false), (response, gold, true)] {
            for item in some {
                let mut found = false;
                for other in others {
                    self.budget.spend(PAIR, LONG_LIST)?;
                    if if swapped { self.same(other, item)? } else { self.same(item, other)? } {
                        found = true;
                        break;
                    }
                }
                if !found {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn tuples(&mut self, gold: &[Answer], response: &[Answer]) -> Verdict {
        if gold.len() != response.len() {
            return Ok(false);
        }
        for (gold, response) in gold.iter().zip(response) {
            // Entries that are not understood are equal only as tokens, which the whole was not.
            if !self.same(gold, response)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A matrix of one row or column beside a tuple.
    fn vector(&mut self, rows: &[Vec<Answer>], items: &[Answer], matrix_is_gold: bool) -> Verdict {
        let one = rows.len() == 1 || rows.iter().all(|row| row.len() == 1);
        if !one || self.options.list_as_tuple == Allow::Refuse {
            return Ok(false);
        }
        let entries = rows.concat();
        if matrix_is_gold { self.tuples(&entries, items) } else { self.tuples(items, &entries) }
    }

    fn ratios(&mut self, gold: &[Expr], response: &[Expr]) -> Verdict {
        if gold.len() != response.len() {
            return Ok(false);
        }
        // a : b = c : d where a d = b c.
        for at in 1..gold.len() {
            let left = Expr::Product(vec![gold[0].clone(), response[at].clone()]);
            let right = Expr::Product(vec![gold[at].clone(), response[0].clone()]);
            if equal::equal(&left, &right, &mut self.budget)? != Some(true) {
                return Ok(false);
            }
        }
        // 0 : 1 is not 0 : 2's equal by this alone, but 0 : 0 would be everybody's.
        let zero = |e: &Expr| e.as_number().is_some_and(Zero::is_zero);
        Ok(!gold.iter().all(zero) && !response.iter().all(zero))
    }

    fn regions(&mut self, gold: &Answer, response: &Answer) -> Verdict {
        let inequality = |answer: &Answer| match answer {
            Answer::Inequality { .. } => true,
            Answer::List(items) => items.iter().all(|item| matches!(item, Answer::Inequality { .. })),
            _ => false,
        };
        let (of_gold, of_response) = (inequality(gold), inequality(response));
        if of_gold != of_response && self.options.inequality_as_interval == Allow::Refuse {
            return Ok(false);
        }
        let plain = |answer: &Answer| matches!(answer, Answer::Delimited { .. } | Answer::Set(_) | Answer::Quantity(_) | Answer::List(_));
        if plain(gold) && plain(response) && !of_gold && !of_response {
            return Ok(false);
        }
        self.budget.spend(PAIR_OF_REGIONS, LONG_LIST)?;
        if let (Some((variable, gold)), Some((other, response))) = (region(gold, &mut self.budget)?, region(response, &mut self.budget)?) {
            let same_variable = match (&variable, &other) {
                (Some(a), Some(b)) => a == b || self.options.names == Names::Ignore,
                _ => true,
            };
            return Ok(same_variable && gold.same(&response, |a, b| self.values(a, b))?);
        }
        match (gold, response) {
            (Answer::Inequality { terms, relations }, Answer::Inequality { terms: other, relations: others }) => {
                self.inequalities(terms, relations, other, others)
            }
            (Answer::Member(gold), Answer::Member(response)) => self.same(gold, response),
            // A value is nothing that anything is a member of.
            (Answer::Member(set), _) | (_, Answer::Member(set)) if matches!(**set, Answer::Quantity(_)) => Ok(false),
            (Answer::Member(gold), other) => self.same(gold, other),
            (other, Answer::Member(response)) => self.same(other, response),
            (Answer::Combination(operation, a, b), Answer::Combination(other, c, d)) if operation == other => {
                let straight = self.same(a, c)? && self.same(b, d)?;
                Ok(straight || (*operation != '∖' && self.same(a, d)? && self.same(b, c)?))
            }
            _ => Ok(false),
        }
    }

    /// Chains of the same relations between the same terms, read from either end.
    fn inequalities(&mut self, terms: &[Expr], relations: &[char], other: &[Expr], others: &[char]) -> Verdict {
        let ascending = |terms: &[Expr], relations: &[char]| -> (Vec<Expr>, Vec<char>) {
            if relations.iter().all(|r| matches!(r, '>' | '≥')) {
                let turned = relations.iter().rev().map(|r| if *r == '>' { '<' } else { '≤' }).collect();
                return (terms.iter().rev().cloned().collect(), turned);
            }
            (terms.to_vec(), relations.to_vec())
        };
        let ((terms, relations), (other, others)) = (ascending(terms, relations), ascending(other, others));
        if relations != others {
            return Ok(false);
        }
        // The difference of neighbours says all: x + y < 1 is x < 1 - y.
        let difference = |terms: &[Expr], at: usize| Expr::Sum(vec![terms[at + 1].clone(), terms[at].clone().negated()]);
        for (at, relation) in relations.iter().enumerate() {
            let (gold, response) = (difference(&terms, at), difference(&other, at));
            let mut same = equal::equal(&gold, &response, &mut self.budget)? == Some(true);
            if !same && *relation == '≠' {
                same = self.same_zeros(&gold, &response)?;
            }
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn quantities(&mut self, gold: &Quantity, response: &Quantity) -> Verdict {
        if gold.unit.is_none() && response.unit.is_none() && !gold.percent && !response.percent {
            return self.values(&gold.value, &response.value);
        }
        // "42 million" is a number of its own, whatever units mean.
        match (multiplied(gold), multiplied(response)) {
            (None, None) => self.measures(gold, response),
            (of_gold, of_response) => self.measures(of_gold.as_ref().unwrap_or(gold), of_response.as_ref().unwrap_or(response)),
        }
    }

    /// Quantities whose units are no numbers.
    fn measures(&mut self, gold: &Quantity, response: &Quantity) -> Verdict {
        let known = (gold.known_unit(), response.known_unit());
        if wording::contradict(gold.unit.as_deref(), response.unit.as_deref(), known) {
            return Ok(false);
        }
        let mut factors = None;
        if self.options.units != Units::Ignore {
            let (of_gold, of_response) = known;
            if self.options.units == Units::Require && of_gold.is_some() && response.unit.is_none() {
                return Ok(false);
            }
            if let (Some(of_gold), Some(of_response)) = (of_gold, of_response)
                && of_gold != of_response
            {
                if of_gold.kind != of_response.kind {
                    return Ok(false);
                }
                factors = Some((of_gold.factor(), of_response.factor()));
            }
        }
        if let Some((gold_factor, response_factor)) = factors {
            let scaled = |value: &Expr, factor: BigRational| Expr::Product(vec![value.clone(), Expr::Number(factor)]);
            let (gold, response) = (scaled(&gold.value, gold_factor), scaled(&response.value, response_factor));
            return Ok(equal::equal(&gold, &response, &mut self.budget)? == Some(true));
        }
        let hundredth = |value: &Expr| match value {
            Expr::Decimal { value, places } => Expr::Decimal { value: value / BigInt::from(100), places: places + 2 },
            Expr::Number(value) => Expr::Number(value / BigInt::from(100)),
            other => Expr::Product(vec![other.clone(), Expr::Number(BigRational::new(1.into(), 100.into()))]),
        };
        match (gold.percent, response.percent) {
            (false, false) | (true, true) => self.values(&gold.value, &response.value),
            _ if self.options.percent == Percent::Sign => Ok(false),
            (true, false) => {
                let as_number = self.options.percent == Percent::Either && self.values(&gold.value, &response.value)?;
                Ok(as_number || self.values(&hundredth(&gold.value), &response.value)?)
            }
            (false, true) => {
                let as_number = self.options.percent == Percent::Either && self.values(&gold.value, &response.value)?;
                Ok(as_number || self.values(&gold.value, &hundredth(&response.value))?)
            }
        }
    }

    /// Whether two values are equal, or one rounds to the other as the options let it.
    pub fn values(&mut self, gold: &Expr, response: &Expr) -> Verdict {
        if self.options.unreduced_fractions == Allow::Refuse && is_unreduced(response) && !is_unreduced(gold) {
            return Ok(false);
        }
        if let (Expr::Symbol(a), Expr::Symbol(b)) = (gold, response) {
            return Ok(self.texts(a, b));
        }
        // As applied functions: f(y) for f(x).
        if let (Expr::Unknown(a, _), Expr::Unknown(b, _)) = (gold, response)
            && self.options.names == Names::Ignore
        {
            return Ok(a == b);
        }
        if let (Expr::Constant(Constant::Infinity), Expr::Constant(Constant::Infinity)) = (gold, response) {
            return Ok(true);
        }
        if equal::equal(gold, response, &mut self.budget)? == Some(true) {
            return Ok(true);
        }
        if equal::has_variables(gold) || equal::has_variables(response) {
            return Ok(false);
        }
        if let Some(tolerance) = self.options.tolerance
            && self.within_tolerance(gold, response, tolerance)?
        {
            return Ok(true);
        }
        self.rounds(gold, response)
    }

    fn within_tolerance(&mut self, gold: &Expr, response: &Expr, tolerance: f64) -> Verdict {
        let Some(tolerance) = BigRational::from_float(tolerance.abs()) else { return Ok(false) };
        let (value, other) = match equal::exact(response, &mut self.budget)? {
            Some(value) => (value, gold),
            None => match equal::exact(gold, &mut self.budget)? {
                Some(value) => (value, response),
                None => return Ok(false),
            },
        };
        let width = value.abs() * tolerance;
        self.is_within(other, &value, &width)
    }

    /// Whether |expression - value| <= width. A value that cannot be computed well enough to be seen near that is not.
    fn is_within(&mut self, expression: &Expr, value: &BigRational, width: &BigRational) -> Verdict {
        if equal::within(expression, value, width, &mut self.budget)? != Some(true) {
            return Ok(false);
        }
        let around = width * BigRational::from_integer(2.into());
        if around.is_zero() {
            return Ok(true);
        }
        let (below, above) = (Expr::Number(value - &around), Expr::Number(value + &around));
        Ok(equal::order(expression, &below, &mut self.budget)? == Some(Ordering::Greater)
            && equal::order(expression, &above, &mut self.budget)? == Some(Ordering::Less))
    }

    fn rounds(&mut self, gold: &Expr, response: &Expr) -> Verdict {
        let rounding = self.options.rounding;
        if rounding == Rounding::Never {
            return Ok(false);
        }
        let half = |places: i32| power_of_ten(-places) / BigRational::from_integer(2.into());
        match (gold, response) {
            (Expr::Decimal { value, places }, Expr::Decimal { value: other, places: more }) => {
                let allowed = matches!(rounding, Rounding::Gold | Rounding::Both) && more > places;
                Ok(allowed && (value - other).abs() <= half(*places) && !value.is_zero())
            }
            (Expr::Decimal { value, places }, exact) => {
                if significant(value, *places) < GOLD_DIGITS && !matches!(rounding, Rounding::Gold | Rounding::Both) {
                    return Ok(false);
                }
                // 51/100 is 0.51, as definite as a decimal.
                if let Some(exact) = equal::exact(exact, &mut self.budget)?
                    && terminates(&exact)
                {
                    return Ok(false);
                }
                Ok(!value.is_zero() && self.is_within(exact, value, &half(*places))?)
            }
            (exact, Expr::Decimal { value, places }) => {
                let digits = significant(value, *places);
                if digits < ROUNDED_DIGITS && !(rounding == Rounding::Both && digits >= GOLD_DIGITS) {
                    return Ok(false);
                }
                if let Some(exact) = equal::exact(exact, &mut self.budget)?
                    && terminates(&exact)
                    && rounding != Rounding::Both
                {
                    return Ok(false);
                }
                // Printed floats are rounded or cut.
                let width = if digits >= ROUNDED_DIGITS { power_of_ten(-places) } else { half(*places) };
                Ok(!value.is_zero() && self.is_within(exact, value, &width)?)
            }
            _ => Ok(false),
        }
    }
}

fn last(sides: &[Answer]) -> &Answer {
    // An equation has two sides at least.
    &sides[sides.len() - 1]
}

/// Collects the variables of an expression, and says whether there is an absolute value in it.
fn names_in(expression: &Expr, names: &mut Vec<Expr>) -> bool {
    let mut within = |items: &[Expr]| items.iter().fold(false, |any, item| names_in(item, names) | any);
    match expression {
        Expr::Symbol(_) => {
            if !names.contains(expression) {
                names.push(expression.clone());
            }
            false
        }
        Expr::Sum(items) | Expr::Product(items) | Expr::Unknown(_, items) => within(items),
        Expr::Apply(function, items) => within(items) | (*function == Function::Abs),
        Expr::Power(base, exponent) => names_in(base, names) | names_in(exponent, names),
        _ => false,
    }
}

/// The two sides of an equation, where both are expressions.
fn two(sides: &[Answer]) -> Option<(&Expr, &Expr)> {
    match (&sides[0], last(sides)) {
        (Answer::Quantity(a), Answer::Quantity(b)) if sides.len() == 2 => Some((&a.value, &b.value)),
        _ => None,
    }
}

fn bracket(bracket: char) -> char {
    match bracket {
        '⟨' => '(',
        '⟩' => ')',
        other => other,
    }
}

/// Whether it is the letter of an option.
fn is_option(answer: &Answer) -> bool {
    matches!(answer, Answer::Quantity(Quantity { value: Expr::Symbol(name), .. }) if matches!(name.as_bytes(), [b'A'..=b'J']))
}

/// Whether an option's text names options itself.
fn holds_option(text: &Answer) -> bool {
    match text {
        Answer::Choice(..) => true,
        Answer::List(items) | Answer::Set(items) | Answer::Delimited { items, .. } => items.iter().any(holds_option),
        other => is_option(other),
    }
}

/// Whether several different names are assigned to.
fn has_names(items: &[Answer]) -> bool {
    let names: Vec<&String> =
        items.iter().filter_map(|item| if let Answer::Equals { name, .. } = item { name.as_ref() } else { None }).collect();
    names.len() == items.len() && names.iter().any(|name| *name != names[0])
}

/// A quantity with what its unit multiplies it with ("million") multiplied in.
fn multiplied(quantity: &Quantity) -> Option<Quantity> {
    let (factor, unit) = wording::multiplier(quantity.unit.as_deref()?)?;
    let factor = BigRational::from_integer(factor);
    let value = match &quantity.value {
        Expr::Number(value) => Expr::Number(value * factor),
        Expr::Decimal { value, .. } => Expr::Number(value * factor),
        other => Expr::Product(vec![other.clone(), Expr::Number(factor)]),
    };
    let unit = Some(unit.to_owned()).filter(|unit| !unit.is_empty());
    Some(Quantity { value, percent: quantity.percent, unit })
}

fn is_one_letter(answer: &Answer) -> bool {
    matches!(answer, Answer::Quantity(Quantity { value: Expr::Symbol(name), percent: false, unit: None }) if name.chars().count() == 1)
}

fn has_symbols(expression: &Expr) -> bool {
    match expression {
        Expr::Symbol(_) => true,
        // f(3) is computed, f(x) is restricted.
        Expr::Sum(items) | Expr::Product(items) | Expr::Apply(_, items) => items.iter().any(has_symbols),
        Expr::Unknown(name, items) => !name.starts_with("lim") && !name.starts_with("int") && items.iter().any(has_symbols),
        Expr::Power(base, exponent) => has_symbols(base) || has_symbols(exponent),
        _ => false,
    }
}

fn same_time(gold: &[u32], response: &[u32]) -> bool {
    let second = |parts: &[u32], at: usize| parts.get(at).copied().unwrap_or(0);
    (0..3).all(|at| second(gold, at) == second(response, at))
}

fn power_of_ten(exponent: i32) -> BigRational {
    let power = BigRational::from_integer(BigInt::from(10).pow(exponent.unsigned_abs()));
    if exponent < 0 { power.recip() } else { power }
}

/// How many digits a decimal was written with, without leading zeros.
fn significant(value: &BigRational, places: i32) -> usize {
    let scaled = (value.abs() * power_of_ten(places)).to_integer();
    if scaled.is_zero() { 0 } else { scaled.to_string().len() }
}

/// Whether its decimals end.
fn terminates(value: &BigRational) -> bool {
    let mut denominator = value.denom().clone();
    // Longer ones do not end within anything that is written.
    if denominator.bits() > 256 {
        return false;
    }
    for prime in [2, 5] {
        let prime = BigInt::from(prime);
        while denominator.is_multiple_of(&prime) {
            denominator /= &prime;
        }
    }
    denominator.is_one()
}
