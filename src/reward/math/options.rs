//! House rules: where mathematics leaves a choice, graders differ, and a data set may mean either. Each rule has a name, a documented
//! default and no other place.

use serde::{Deserialize, Serialize};

/// How answers are looked for and compared. What is absent has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Where nothing marks an answer, the last formula or number of the text is taken. Off: such a text has no answer.
    pub lenient: bool,
    /// The gold is a text that holds the answer as a response does, and is searched like one.
    pub gold_in_text: bool,
    /// Which marks count, for formats that insist: all but `brackets`.
    pub marks: Vec<Mark>,
    /// A formula between `$...$` or `\(...\)` may hold line breaks.
    pub line_breaks: bool,
    /// `math`: answers are compared as mathematics; `text`: as normalised strings only.
    pub compare: Compare,
    /// What a percent sign on one side alone means.
    pub percent: Percent,
    /// What units mean.
    pub units: Units,
    /// Whether a bare list ("3, 1, 2") must have the gold's order. Tuples always must, sets never.
    pub list_order: ListOrder,
    /// Whether 2/4 is an answer where the gold is 1/2.
    pub unreduced_fractions: Allow,
    /// Whether words and choices must be of the gold's case.
    pub case: Case,
    /// Whether x < 3 is the interval (-inf, 3).
    pub inequality_as_interval: Allow,
    /// Whether the numbers of a list "1, 2" or of a column vector are the tuple (1, 2).
    pub list_as_tuple: Allow,
    /// Whether "5" answers the gold "x = 5", and "x = 5" the gold "5".
    pub assignment_as_value: Allow,
    /// Whether the name matters where both sides assign or apply one: y = 5 for x = 5, f(y) for f(x).
    pub names: Names,
    /// Whether 5 answers 101_2.
    pub base_as_value: Allow,
    /// Which decimals stand for exact values.
    pub rounding: Rounding,
    /// Numbers whose relative difference is at most this are equal, besides those that are equal anyway.
    pub tolerance: Option<f64>,
}

/// What marks an answer in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// `\boxed{...}` and `\fbox{...}`.
    Boxed,
    /// `#### ...`
    Hashes,
    /// `<answer>...</answer>`
    AnswerTag,
    /// "Answer: ...", "the answer is ...", "A: ...", and the same in other languages.
    Phrase,
    /// `**...**` at the end.
    Bold,
    /// The whole text is the answer and nothing else.
    Whole,
    /// `[...]`, the last one of the text (geometry3k's house format). Only when asked.
    Brackets,
}

/// See [`Options::compare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// As mathematics.
    Math,
    /// As normalised strings only.
    Text,
}

/// See [`Options::percent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Percent {
    /// 50% is 50 and is 0.5.
    Either,
    /// 50% is 0.5 only.
    Value,
    /// 50% is 50% only.
    Sign,
}

/// See [`Options::units`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Units {
    /// Where both sides have a unit, they must agree after conversion (2 hours is 120 minutes, 5 cm is not 5 m); a missing one does not matter.
    Convert,
    /// Units do not matter.
    Ignore,
    /// As `convert`, and a gold with a unit wants one.
    Require,
}

/// See [`Options::list_order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListOrder {
    /// In any order.
    Any,
    /// In the gold's order.
    Same,
}

/// Whether a form is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allow {
    /// It is.
    Accept,
    /// It is not.
    Refuse,
}

/// See [`Options::case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// It does not matter.
    Ignore,
    /// It must be the gold's.
    Match,
}

/// See [`Options::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Names {
    /// They must be the same.
    Match,
    /// They do not matter.
    Ignore,
}

/// See [`Options::rounding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// A gold decimal of three or more significant digits stands for an exact form that rounds to it (gold 33.3, answer 100/3), and an answer
    /// of twelve or more for the exact gold that rounds to it. A decimal never stands for another decimal.
    Exact,
    /// Besides, an answer with more digits than the gold's decimal is right if it rounds to it (gold 0.29, answer 0.2902).
    Gold,
    /// Besides, an answer of three or more significant digits is right if the gold rounds to it (gold 1/3, answer 0.333).
    Both,
    /// Only equal values are equal.
    Never,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lenient: false,
            gold_in_text: false,
            marks: vec![Mark::Boxed, Mark::Hashes, Mark::AnswerTag, Mark::Phrase, Mark::Bold, Mark::Whole],
            line_breaks: true,
            compare: Compare::Math,
            percent: Percent::Either,
            units: Units::Convert,
            list_order: ListOrder::Any,
            unreduced_fractions: Allow::Accept,
            case: Case::Ignore,
            inequality_as_interval: Allow::Accept,
            list_as_tuple: Allow::Accept,
            assignment_as_value: Allow::Accept,
            names: Names::Match,
            base_as_value: Allow::Refuse,
            rounding: Rounding::Exact,
            tolerance: None,
        }
    }
}
