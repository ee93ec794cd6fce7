//! Mathematics: is the answer of a response equivalent to the reference ("gold")?
//!
//! A response passes through [`extract`] (where is the answer?), [`lex`] and [`parse`] (what does it say?), [`answer`] (what kind of answer is
//! it?) and [`compare`]. Equal tokens are equal at once; a text that is not understood to its end is never compared in part. [`equal`] decides
//! equality of expressions exactly or at fixed points in high precision. All limits are counted, none is timed: a verdict never depends on the
//! load of the machine. [`Options`] holds what is a matter of taste.

pub mod answer;
pub mod compare;
pub mod equal;
mod exact;
pub mod expr;
pub mod extract;
pub mod lex;
mod modular;
mod numeric;
mod options;
pub mod parse;
mod reference;
pub mod region;
pub mod units;
mod wording;

use std::borrow::Cow;

pub use options::{Allow, Case, Compare, ListOrder, Mark, Names, Options, Percent, Rounding, Units};

use answer::{Answer, answer};
use compare::Comparison;
use expr::TooLarge;
use extract::{Extracted, Extraction};
use lex::{Commas, Lexeme, lex};
use reference::{said_number, unusable};

use super::found::{Found, Ruling};

/// A reference, read once.
#[derive(Clone, Debug)]
pub struct Gold {
    text: String,
    read: Reading,
    options: Options,
}

/// A text and what it says.
#[derive(Clone, Debug)]
struct Reading {
    tokens: Vec<Lexeme>,
    answer: Answer,
}

impl Reading {
    fn of(text: &str, commas: Commas) -> Result<Self, TooLarge> {
        let tokens = lex(text, commas)?;
        let answer = answer(&tokens)?;
        Ok(Reading { tokens, answer })
    }
}

impl Gold {
    /// Reads a reference; says why it cannot be one.
    pub fn new(text: &str, options: Options) -> Result<Self, String> {
        let taken = match options.gold_in_text {
            true => extract::gold_in_text(text, &options).unwrap_or_default().into(),
            false => extract::gold(text),
        };
        Self::read(&taken, text, options)
    }

    fn read(taken: &str, text: &str, options: Options) -> Result<Self, String> {
        let shown = super::shortened(text);
        if taken.trim().is_empty() {
            return Err(format!("is {shown:?}, which holds no answer; give the reference answer, as in \"72\" or \"\\\\frac{{3}}{{4}}\""));
        }
        let taken = said_number(taken).unwrap_or(taken);
        let read =
            Reading::of(taken, Commas::Thousands).map_err(|TooLarge(why)| format!("is {shown:?}, which is too large to judge: {why}"))?;
        if let Some(why) = unusable(taken, &read.answer) {
            return Err(format!("is {shown:?}, which {why}"));
        }
        let gold = Gold { text: taken.to_owned(), read, options };
        // It must equal its own boxed form, by all the ways that a response goes.
        let own = gold.judge(&format!("\\boxed{{{taken}}}"));
        let own = if own.ruling == Ruling::Correct { own } else { gold.compare(taken, "own", false) };
        match own.ruling {
            Ruling::Correct => Ok(gold),
            _ => Err(format!("is {shown:?}, which does not equal itself in a box ({}); check its brackets", own.rule)),
        }
    }

    /// The reference's text without what surrounds it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is understood as mathematics or words, and not only as a string.
    pub fn is_understood(&self) -> bool {
        self.read.answer.is_read()
    }

    /// The verdict on a response.
    pub fn judge(&self, response: &str) -> Found {
        match extract::extract(response, &self.options) {
            Extraction::None(why) => Found::new(Ruling::NoAnswer, None, why),
            Extraction::Limit(why) => Found::new(Ruling::Limit, None, why),
            Extraction::Found(found) => self.judge_extracted(&found),
        }
    }

    fn judge_extracted(&self, found: &Extracted) -> Found {
        let whole = found.rule == "whole";
        let judged = self.compare(&found.text, found.rule, whole);
        match &found.otherwise {
            Some(otherwise)
                if matches!(judged.ruling, Ruling::NoAnswer) || (judged.ruling == Ruling::Wrong && Self::is_prose(&found.text)) =>
            {
                self.judge_extracted(otherwise)
            }
            _ => judged,
        }
    }

    /// Whether a text is prose and no answer.
    fn is_prose(text: &str) -> bool {
        Reading::of(text, Commas::Thousands).is_ok_and(|read| read.answer.is_prose())
    }

    /// Compares what was taken for the answer; `whole` says that it may be any text.
    fn compare(&self, text: &str, place: &'static str, whole: bool) -> Found {
        let found = |ruling, how: &'static str| Found::new(ruling, Some(text), rule(place, how));
        let limit = |TooLarge(why): TooLarge| Found::new(Ruling::Limit, Some(text), why);
        if same_text(&self.text, text, self.options.case == Case::Match) {
            return found(Ruling::Correct, "identical");
        }
        let read = match Reading::of(text, Commas::Thousands) {
            Ok(read) => read,
            Err(too_large) => return limit(too_large),
        };
        if read.tokens.is_empty() {
            return found(Ruling::NoAnswer, "nothing");
        }
        if read.tokens == self.read.tokens {
            return found(Ruling::Correct, "identical");
        }
        let how = kind(&self.read.answer);
        if self.options.compare == Compare::Text {
            return found(Ruling::Wrong, "text");
        }
        let mut comparison = Comparison::new(&self.options);
        match comparison.same(&self.read.answer, &read.answer) {
            Ok(true) => return found(Ruling::Correct, how),
            Ok(false) => {}
            Err(too_large) => return limit(too_large),
        }
        match self.decimal_comma(text, &read, &mut comparison) {
            Ok(true) => return found(Ruling::Correct, "decimal comma"),
            Ok(false) => {}
            Err(too_large) => return limit(too_large),
        }
        let unread = !read.answer.is_read();
        // A text that may be anything is an answer only if it reads as one.
        if whole && read.answer.is_prose() && !matches!(self.read.answer, Answer::Words(..)) {
            return Found::new(Ruling::NoAnswer, None, "no mark");
        }
        found(Ruling::Wrong, if unread { "not understood" } else { how })
    }

    /// "1000,99" where the other side is a plain decimal.
    fn decimal_comma(&self, text: &str, read: &Reading, comparison: &mut Comparison) -> Result<bool, TooLarge> {
        let is_number = |answer: &Answer| matches!(answer, Answer::Quantity(quantity) if quantity.is_number());
        if text.contains(',') && is_number(&self.read.answer) && !is_number(&read.answer) {
            let other = Reading::of(text, Commas::Decimal)?;
            return Ok(is_number(&other.answer) && comparison.same(&self.read.answer, &other.answer)?);
        }
        if self.text.contains(',') && is_number(&read.answer) {
            let other = Reading::of(&self.text, Commas::Decimal)?;
            return Ok(is_number(&other.answer) && comparison.same(&other.answer, &read.answer)?);
        }
        Ok(false)
    }
}

/// What a comparison with such a reference is called.
fn kind(answer: &Answer) -> &'static str {
    match answer {
        Answer::Quantity(quantity) if quantity.is_number() => "number",
        Answer::Quantity(_) => "expression",
        Answer::Delimited { .. } => "tuple or interval",
        Answer::Set(_) => "set",
        Answer::List(_) => "list",
        Answer::Equals { .. } => "equation",
        Answer::Inequality { .. } => "inequality",
        Answer::Member(_) | Answer::Combination(..) | Answer::Named(_) => "set of numbers",
        Answer::Matrix(..) => "matrix",
        Answer::Ratio(_) => "ratio",
        Answer::Based { .. } => "numeral",
        Answer::Clock(..) => "time",
        Answer::Date(..) => "date",
        Answer::Choice(..) => "choice",
        Answer::Words(..) => "words",
        Answer::Opaque(_) => "text",
    }
}

fn rule(place: &'static str, how: &'static str) -> Cow<'static, str> {
    format!("{place}/{how}").into()
}

/// Whether two texts say the same but for space and punctuation around them, and case unless it matters.
fn same_text(gold: &str, text: &str, cased: bool) -> bool {
    fn plain(text: &str) -> &str {
        let text = text.trim();
        // Three dots are no full stop.
        text.strip_suffix('.').filter(|rest| !rest.ends_with('.')).unwrap_or(text)
    }
    let (gold, text) = (plain(gold), plain(text));
    if gold == text {
        return true;
    }
    let letters = |text: &str| text.chars().all(|c| c.is_alphabetic() || c == ' ' || c == '-' || c == '\'');
    !cased && letters(gold) && letters(text) && gold.to_lowercase() == text.to_lowercase()
}
