//! Numbers: does the answer's last number equal the reference?
//!
//! Where the number is looked for: on the line behind a `####`, or inside a `\boxed{...}`, whichever of those that hold
//! a number comes last; else in the whole text. The last number of that place counts. Thousands separators, currency signs,
//! percent signs, units and a full stop after the number are passed over; `a/b`, `\frac{a}{b}`, `1\frac{a}{b}` and the Unicode minus are understood.
//! Comparison is exact: decimals as digit strings, fractions by cross-multiplication. There is no floating point, and a long row of
//! digits costs no more than reading it.

use std::borrow::Cow;

use super::Verdict;

/// So many `####` and `\boxed` are looked at, from the end: a text that repeats itself costs no more than reading it.
const MARKS: usize = 16;
/// A box longer than this holds no answer, and neither does a longer part of a `\frac`.
const BOX_BYTES: usize = 4096;
const FRACTION_BYTES: usize = 64;
/// Fractions whose parts have more digits than this are not compared ([`Verdict::Limit`]).
const FRACTION_DIGITS: usize = 18;

/// An exact number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Number {
    /// A decimal: sign, digits without leading zeros before the point and without trailing zeros behind it. Zero has no sign.
    Decimal {
        /// Below zero.
        negative: bool,
        /// Digits before the point; empty for 0.
        whole: String,
        /// Digits behind the point; empty for an integer.
        part: String,
    },
    /// numerator / denominator, as written.
    Fraction(Box<(Number, Number)>),
}

/// 1 if the answer's number equals `gold`, 0 if it does not or if there is none.
pub fn judge(gold: &Number, text: &str) -> Verdict {
    let Some(number) = extract(text) else { return Verdict::Scored(0.0) };
    match number.equals(gold) {
        Some(equal) => Verdict::Scored(if equal { 1.0 } else { 0.0 }),
        None => Verdict::Limit(format!("the answer holds a fraction of more than {FRACTION_DIGITS} digits")),
    }
}

/// The number that `text` gives as its answer, if there is one.
pub fn extract(text: &str) -> Option<Number> {
    let text = &*without_thin_spaces(text);
    let marked = text.rmatch_indices("####").take(MARKS).find_map(|(at, mark)| {
        let line = text[at + mark.len()..].lines().next().unwrap_or("");
        last_number(line).map(|number| (at, number))
    });
    let boxed = last_boxed(text);
    match (marked, boxed) {
        (Some((a, marked)), Some((b, boxed))) => Some(if a > b { marked } else { boxed }),
        (Some((_, number)), None) | (None, Some((_, number))) => Some(number),
        (None, None) => last_number(text),
    }
}

/// LaTeX writes thousands as `1{,}234` or `1,\!234`.
fn without_thin_spaces(text: &str) -> Cow<'_, str> {
    if text.contains("\\!") || text.contains("{,}") { text.replace("\\!", "").replace("{,}", ",").into() } else { text.into() }
}

/// What stands inside every `\boxed{...}` and where, the last one first.
pub(super) fn boxes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let boxes = text.rmatch_indices("\\boxed").take(MARKS);
    boxes.filter_map(|(at, tag)| Some((at, braced(text[at + tag.len()..].trim_start(), BOX_BYTES)?.0)))
}

/// Position and last number of the last `\boxed{...}` that holds one.
fn last_boxed(text: &str) -> Option<(usize, Number)> {
    boxes(text).find_map(|(at, inside)| last_number(inside).map(|number| (at, number)))
}

/// What stands inside the braces that `text` starts with, at most `limit` bytes, and what follows them.
fn braced(text: &str, limit: usize) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    for (at, character) in text.char_indices().take_while(|(at, _)| *at <= limit) {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some((text.get(1..at)?, &text[at + 1..]));
        }
    }
    None
}

/// The last number in `text`.
fn last_number(text: &str) -> Option<Number> {
    let mut last = None;
    let mut at = 0;
    let mut before = None;
    while let Some(character) = text[at..].chars().next() {
        match read_number(&text[at..], before) {
            Some((number, length)) => {
                last = number.or(last);
                before = text[at..at + length].chars().next_back();
                at += length;
            }
            None => {
                before = Some(character);
                at += character.len_utf8();
            }
        }
    }
    last
}

/// Reads the number that `text` starts with, sign and currency included; `before` is the character in front of it. Gives its length,
/// and no number for a division by zero.
fn read_number(text: &str, before: Option<char>) -> Option<(Option<Number>, usize)> {
    let glued = before.is_some_and(|c| c.is_alphanumeric() || c == ')' || c == '}');
    let mut rest = text;
    let mut negative = false;
    if let Some(after) = rest.strip_prefix(['-', '\u{2212}']) {
        // Behind a digit or a letter it is a subtraction or a hyphen.
        negative = !glued;
        rest = after;
    }
    rest = rest.strip_prefix('\\').filter(|r| r.starts_with('$')).unwrap_or(rest);
    rest = rest.strip_prefix(['$', '€', '£']).unwrap_or(rest);
    if let Some(after) = rest.strip_prefix('-').filter(|_| !negative && rest.len() < text.len() && !glued) {
        negative = true;
        rest = after;
    }
    let signed = |number: Number| if negative { number.negated() } else { number };
    if let Some((numerator, denominator, after)) = latex_fraction(rest) {
        return Some((quotient(numerator, denominator).map(signed), text.len() - after.len()));
    }
    let (number, length) = read_decimal(rest, before.filter(|_| rest.len() == text.len()))?;
    let after = &rest[length..];
    if let Some((numerator, denominator, after)) = latex_fraction(after) {
        return Some((mixed(&number, &numerator, denominator).map(signed), text.len() - after.len()));
    }
    let number = signed(number);
    if let Some((denominator, length)) = after.strip_prefix('/').and_then(|d| read_decimal(d, None).map(|(n, l)| (n, l + 1))) {
        return Some((quotient(number, denominator), text.len() - after.len() + length));
    }
    Some((Some(number), text.len() - after.len()))
}

/// Numerator and denominator of the `\frac{a}{b}` that `text` starts with, and what follows it.
fn latex_fraction(text: &str) -> Option<(Number, Number, &str)> {
    let after = ["\\frac", "\\dfrac", "\\tfrac"].iter().find_map(|command| text.strip_prefix(command))?;
    let (numerator, after) = braced(after, FRACTION_BYTES)?;
    let (denominator, after) = braced(after, FRACTION_BYTES)?;
    Some((whole_text(numerator)?, whole_text(denominator)?, after))
}

/// A mixed number such as `1\frac{9}{10}`, for parts that are short integers.
fn mixed(whole: &Number, numerator: &Number, denominator: Number) -> Option<Number> {
    let short = |number: &Number| number.scaled().filter(|n| n.scale == 0 && (0..1_000_000_000).contains(&n.mantissa)).map(|n| n.mantissa);
    let sum = short(whole)? * short(&denominator)? + short(numerator)?;
    quotient(Number::decimal(false, &sum.to_string(), ""), denominator)
}

/// Reads an unsigned decimal, with thousands separators where they stand right.
fn read_decimal(text: &str, before: Option<char>) -> Option<(Number, usize)> {
    let bytes = text.as_bytes();
    let run = |from: usize| bytes[from.min(bytes.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut at = run(0);
    let mut whole = text[..at].to_owned();
    if (1..=3).contains(&at) {
        while bytes.get(at) == Some(&b',') && run(at + 1) == 3 {
            whole.push_str(&text[at + 1..at + 4]);
            at += 4;
        }
    }
    let mut part = "";
    if bytes.get(at) == Some(&b'.') && run(at + 1) > 0 && (at > 0 || !before.is_some_and(|c| c.is_ascii_digit())) {
        let digits = run(at + 1);
        part = &text[at + 1..at + 1 + digits];
        at += 1 + digits;
    }
    (at > 0).then(|| (Number::decimal(false, &whole, part), at))
}

/// `text` if it is one number and nothing else.
fn whole_text(text: &str) -> Option<Number> {
    let text = text.trim();
    let (number, length) = read_number(text, None)?;
    number.filter(|_| length == text.len())
}

fn quotient(numerator: Number, denominator: Number) -> Option<Number> {
    (!denominator.is_zero()).then(|| Number::Fraction(Box::new((numerator, denominator))))
}

impl Number {
    fn decimal(negative: bool, whole: &str, part: &str) -> Self {
        let (whole, part) = (whole.trim_start_matches('0').to_owned(), part.trim_end_matches('0').to_owned());
        Number::Decimal { negative: negative && !(whole.is_empty() && part.is_empty()), whole, part }
    }

    /// Reads a reference answer: one number and nothing else, a currency or percent sign and a full stop aside. What stands before a
    /// `####`, as in GSM8K's solutions, is passed over.
    pub fn parse_gold(text: &str) -> Option<Self> {
        let text = &*without_thin_spaces(text);
        let text = text.rfind("####").map_or(text, |at| &text[at + 4..]).trim();
        let text = text.strip_suffix('.').unwrap_or(text);
        let text = text.strip_suffix('%').map_or(text, |t| t.strip_suffix('\\').unwrap_or(t));
        whole_text(text).filter(|gold| gold.equals(gold).is_some())
    }

    fn is_zero(&self) -> bool {
        match self {
            Number::Decimal { whole, part, .. } => whole.is_empty() && part.is_empty(),
            Number::Fraction(parts) => parts.0.is_zero(),
        }
    }

    fn negated(self) -> Self {
        match self {
            Number::Decimal { negative, whole, part } => Number::decimal(!negative, &whole, &part),
            Number::Fraction(parts) => Number::Fraction(Box::new((parts.0.negated(), parts.1))),
        }
    }

    /// Whether both are the same rational number; nothing if a fraction is too long to say.
    pub fn equals(&self, other: &Number) -> Option<bool> {
        if let (Number::Decimal { .. }, Number::Decimal { .. }) = (self, other) {
            return Some(self == other);
        }
        let ((a, b), (c, d)) = (self.as_ratio()?, other.as_ratio()?);
        Some(product(a, d)? == product(c, b)?)
    }

    /// As numerator and denominator, each mantissa x 10^-scale.
    fn as_ratio(&self) -> Option<(Scaled, Scaled)> {
        match self {
            Number::Decimal { .. } => Some((self.scaled()?, Scaled { mantissa: 1, scale: 0 })),
            Number::Fraction(parts) => Some((parts.0.scaled()?, parts.1.scaled()?)),
        }
    }

    fn scaled(&self) -> Option<Scaled> {
        let Number::Decimal { negative, whole, part } = self else { return None };
        if whole.len() + part.len() > FRACTION_DIGITS {
            return None;
        }
        let mantissa = format!("0{whole}{part}").parse::<i128>().ok()?;
        Some(Scaled { mantissa: if *negative { -mantissa } else { mantissa }, scale: part.len() as u32 })
    }
}

/// mantissa x 10^-scale, in lowest terms after [`product`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scaled {
    mantissa: i128,
    scale: u32,
}

/// The product in lowest terms; two products are equal exactly if their parts are.
fn product(a: Scaled, b: Scaled) -> Option<Scaled> {
    let mut product = Scaled { mantissa: a.mantissa.checked_mul(b.mantissa)?, scale: a.scale + b.scale };
    while product.scale > 0 && product.mantissa % 10 == 0 {
        product = Scaled { mantissa: product.mantissa / 10, scale: product.scale - 1 };
    }
    Some(product)
}
