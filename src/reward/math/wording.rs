//! What the words around a value say of it.
//!
//! Words behind a number are mostly a unit or what was counted, and say nothing. But "42 thousand" is another number, "42 is wrong" is no answer,
//! "3 PM" is not "3 AM", and a response must not get away with any of them.

use num_bigint::BigInt;

use super::units::Unit;

/// Words that turn a value into something else: they deny it, offer another one, or go on computing. Both sides must have the same of them.
const TURNING: [&str; 58] = [
    "not",
    "no",
    "never",
    "isn't",
    "isnt",
    "neither",
    "nor",
    "wrong",
    "incorrect",
    "false",
    "invalid",
    "impossible",
    "or",
    "either",
    "maybe",
    "perhaps",
    "possibly",
    "probably",
    "might",
    "could",
    "unless",
    "instead",
    "except",
    "but",
    "without",
    "than",
    "versus",
    "vs",
    "plus",
    "minus",
    "times",
    "over",
    "modulo",
    "mod",
    "below",
    "squared",
    "cubed",
    "half",
    "third",
    "quarter",
    "tenth",
    "hundredth",
    "tenths",
    "hundredths",
    "thousandths",
    "base",
    "binary",
    "octal",
    "hexadecimal",
    "factorial",
    "infinity",
    "divided",
    "multiplied",
    "sqrt",
    "pi",
    "wait",
    "guess",
    "respectively",
];

/// Numbers in words.
const NUMERALS: [&str; 28] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
];

/// Words that a name does not have: "not = 42" and "a wrong answer = 42" name nothing.
const DENYING: [&str; 12] =
    ["not", "no", "never", "isn't", "isnt", "neither", "nor", "wrong", "incorrect", "false", "invalid", "impossible"];

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// Whether the words behind two values say that these cannot be the same. `known` are the units that they are, if they are.
pub(super) fn contradict(gold: Option<&str>, response: Option<&str>, known: (Option<Unit>, Option<Unit>)) -> bool {
    let turns = |text: Option<&str>, known: Option<Unit>| -> Vec<String> {
        // "square inches" and "cm squared" are units and turn nothing.
        let text = if known.is_some() { "" } else { text.unwrap_or("") };
        words(text).filter(|word| TURNING.contains(&word.as_str()) || is_numeral(word)).collect()
    };
    if turns(gold, known.0) != turns(response, known.1) {
        return true;
    }
    let (Some(gold), Some(response)) = (gold, response) else { return false };
    let differ = |kind: fn(&str) -> Option<&'static str>| matches!((kind(gold), kind(response)), (Some(a), Some(b)) if a != b);
    differ(half_of_day) || differ(scale) || (!(known.0.is_some() && known.1.is_some()) && formulas_differ(gold, response, known))
}

/// Before or after noon.
fn half_of_day(text: &str) -> Option<&'static str> {
    let letters: String = text.chars().filter(|c| c.is_alphabetic()).flat_map(char::to_lowercase).collect();
    ["am", "pm"].into_iter().find(|half| letters == *half)
}

/// The scale of a temperature.
fn scale(text: &str) -> Option<&'static str> {
    let letters: String = text.chars().filter(|c| c.is_alphabetic()).collect();
    let bare = letters.strip_prefix("degrees").or_else(|| letters.strip_prefix("degree")).unwrap_or(&letters);
    match bare {
        "C" | "Celsius" | "celsius" | "centigrade" => Some("Celsius"),
        "F" | "Fahrenheit" | "fahrenheit" => Some("Fahrenheit"),
        "K" | "Kelvin" | "kelvin" | "kelvins" => Some("Kelvin"),
        _ => None,
    }
}

/// Whether one is a formula of units (m/s^2) that the other, a formula or a measure of its own, is not.
fn formulas_differ(gold: &str, response: &str, known: (Option<Unit>, Option<Unit>)) -> bool {
    let formula = |text: &str| text.contains(['/', '^']);
    let measure = |unit: Option<Unit>| {
        unit.is_some_and(|unit| matches!(unit.kind, "length" | "area" | "volume" | "time" | "mass" | "speed" | "capacity" | "degrees"))
    };
    let plain = |text: &str| text.chars().filter(|c| !c.is_whitespace() && *c != '.').flat_map(char::to_lowercase).collect::<String>();
    let both = (formula(gold) || measure(known.0)) && (formula(response) || measure(known.1));
    both && plain(gold) != plain(response)
}

/// "thousand", "million dollars": what the value is multiplied with, and the words behind that.
pub(super) fn multiplier(unit: &str) -> Option<(BigInt, &str)> {
    let unit = unit.trim();
    let end = unit.find(|c: char| !c.is_alphabetic()).unwrap_or(unit.len());
    let zeros = match unit[..end].to_lowercase().as_str() {
        "dozen" | "dozens" => return Some((BigInt::from(12), unit[end..].trim())),
        "hundred" | "hundreds" => 2,
        "k" | "thousand" | "thousands" => 3,
        "million" | "millions" => 6,
        "billion" | "billions" => 9,
        "trillion" | "trillions" => 12,
        _ => return None,
    };
    Some((BigInt::from(10).pow(zeros), unit[end..].trim()))
}

/// Whether words before a sign of equality deny what follows it.
pub(super) fn denies(name: &str) -> bool {
    words(name).any(|word| DENYING.contains(&word.as_str()))
}

/// Whether a word in lower case is a number from zero to ninety.
pub(super) fn is_numeral(word: &str) -> bool {
    NUMERALS.contains(&word)
}
