//! What can be a reference: placeholders, sentences about the answer and numbers in words cannot.

use super::answer::Answer;
use super::lex::Token;
use super::wording;

/// Longest reference that is words, in bytes.
const WORDS_BYTES: usize = 400;
/// What data sets write where there is no answer.
const PLACEHOLDERS: [&str; 24] = [
    "none",
    "null",
    "nan",
    "n/a",
    "na",
    "nil",
    "no answer",
    "no answer given",
    "answer",
    "proof",
    "proved",
    "see proof",
    "see solution",
    "see figure",
    "see the figure",
    "see above",
    "see below",
    "todo",
    "tbd",
    "unknown",
    "omitted",
    "no solution given",
    "not available",
    "not given",
];

/// "The answer is 72": a number that a sentence says is taken for the reference. Other sentences are refused.
pub(super) fn said_number(text: &str) -> Option<&str> {
    let text = text.trim();
    let behind = ["The answer is ", "the answer is ", "Answer is ", "answer is ", "Answer: ", "answer: "]
        .iter()
        .find_map(|said| text.strip_prefix(said))?;
    let number = behind.trim().trim_end_matches('.');
    let plain = number.chars().all(|c| c.is_ascii_digit() || ".,/-%".contains(c)) && number.contains(|c: char| c.is_ascii_digit());
    plain.then_some(number)
}

/// Why such a text is no reference.
pub(super) fn unusable(text: &str, answer: &Answer) -> Option<&'static str> {
    let plain = text.trim().trim_matches(|c: char| c.is_ascii_punctuation() && !matches!(c, '\\' | '{' | '}' | '$' | '^')).to_lowercase();
    let plain = plain.strip_prefix("text{").map_or(plain.as_str(), |rest| rest.trim_end_matches('}')).trim();
    if PLACEHOLDERS.contains(&plain) {
        return Some("is a placeholder and no answer; give the answer itself, or leave the prompt out");
    }
    let words: Vec<&str> = plain.split([' ', '-']).filter(|word| !word.is_empty()).collect();
    let last_words = words.iter().rev().take_while(|word| is_number_word(word)).count();
    if last_words > 0 && (last_words == words.len() || matches!(words[0], "answer" | "the")) {
        return Some("spells a number in words; give it in digits");
    }
    if words.len() > 2 && (plain.starts_with("answer is ") || plain.starts_with("the answer is ")) {
        return Some("is a sentence about the answer; give the answer alone");
    }
    match answer {
        Answer::Words(words, _) if words.len() > WORDS_BYTES => Some("is longer than 400 bytes of prose; give the answer alone"),
        Answer::Opaque(tokens) if tokens.iter().all(|token| matches!(token, Token::Symbol(_))) => {
            Some("holds nothing but punctuation; give the answer itself")
        }
        _ => None,
    }
}

fn is_number_word(word: &str) -> bool {
    wording::is_numeral(word) || matches!(word, "hundred" | "thousand" | "million" | "and")
}
