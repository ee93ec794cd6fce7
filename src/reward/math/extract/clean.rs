//! What surrounds an answer and is no part of it.

use std::borrow::Cow;

use super::{ANSWER_BYTES, boxed, formula};

/// So many layers are taken off.
const ROUNDS: usize = 16;

/// Quotes around an answer.
const QUOTES: [(char, char); 8] = [('\'', '\''), ('"', '"'), ('`', '`'), ('“', '”'), ('‘', '’'), ('„', '“'), ('「', '」'), ('«', '»')];
/// Ends of sentences in languages that put the verb last.
const VERBS_AT_THE_END: [&str; 8] = ["です", "となります", "である", "입니다", "이다", "हैं", "है", "हैं।"];

/// `text` without the delimiters of the one formula that it is.
pub(super) fn without_delimiters(text: &str) -> &str {
    let inside = |open: &str, close: &str| {
        let inside = text.strip_prefix(open)?.strip_suffix(close)?;
        (!inside.trim().is_empty() && !inside.contains(open) && !inside.contains(close)).then_some(inside.trim())
    };
    if text.starts_with("$$") {
        return inside("$$", "$$").filter(|inside| dollars(inside) == 0).unwrap_or(text);
    }
    if text.starts_with('$') && !text.ends_with("\\$") {
        let inside = text[1..].strip_suffix('$').filter(|inside| !inside.trim().is_empty() && dollars(inside) == 0);
        return inside.map_or(text, str::trim);
    }
    inside("\\(", "\\)").or_else(|| inside("\\[", "\\]")).unwrap_or(text)
}

/// Dollar signs in `text` that are not escaped.
pub(super) fn dollars(text: &str) -> usize {
    let bytes = text.as_bytes();
    (0..bytes.len()).filter(|at| bytes[*at] == b'$' && (*at == 0 || bytes[at - 1] != b'\\')).count()
}

/// `text` without spaces, delimiters of a formula, quotes, emphasis and punctuation around it.
pub(super) fn surroundings(text: &str) -> &str {
    let mut text = text.trim();
    if text.len() > 2 * ANSWER_BYTES {
        return text;
    }
    for _ in 0..ROUNDS {
        let before = text.len();
        text = text.trim().trim_start_matches([':', '：', '*', '=']).trim_start();
        if !text.ends_with("^*") {
            text = text.trim_end_matches('*').trim_end();
        }
        text = without_delimiters(text);
        text = without_quotes(text);
        text = without_closers(text);
        text = without_stop(text);
        if text.len() == before {
            break;
        }
    }
    text.trim()
}

fn without_quotes(text: &str) -> &str {
    let quoted = QUOTES.iter().find_map(|(open, close)| {
        let inside = text.strip_prefix(*open)?.strip_suffix(*close)?;
        (!inside.contains([*open, *close])).then_some(inside)
    });
    quoted.unwrap_or(text)
}

/// What was opened before `text`: `} 42 \]` of `\[ \text{Answer: } 42 \]`.
fn without_closers(text: &str) -> &str {
    let text = text.strip_prefix('}').unwrap_or(text);
    for (open, close) in [("\\[", "\\]"), ("\\(", "\\)")] {
        if let Some(inside) = text.strip_suffix(close).filter(|inside| !inside.contains(open)) {
            return inside;
        }
    }
    let closed = text.strip_suffix('$').filter(|inside| !inside.ends_with('\\') && dollars(inside) == 0);
    closed.unwrap_or(text)
}

/// `text` without the punctuation that ends it, `!` aside. Three dots behind a digit go on for ever, and `\right.` is a delimiter.
fn without_stop(text: &str) -> &str {
    let stops = [',', ';', ':', '?', '。', '，', '、', '；', '：', '！', '।'];
    let mut shorter = text.trim_end_matches(stops);
    let dots = shorter.len() - shorter.trim_end_matches('.').len();
    let undotted = &shorter[..shorter.len() - dots];
    let goes_on = dots == 3 && undotted.ends_with(|c: char| c.is_ascii_digit());
    let delimiter = undotted.ends_with("\\right") || undotted.ends_with("\\left");
    if dots > 0 && !goes_on && !delimiter {
        shorter = undotted;
    }
    // A space or a line break of LaTeX at the end.
    shorter.trim_end_matches('\\')
}

/// `text` without exclamation marks at its end that are no factorials: several, or one behind a word or nothing.
fn exclaimed(text: &str) -> Option<&str> {
    let calm = text.trim_end_matches('!');
    let marks = text.len() - calm.len();
    let letters = calm.chars().rev().take_while(|c| c.is_alphabetic()).take(3).count();
    let factorial = calm.ends_with(|c: char| c.is_alphanumeric() || ")]}|".contains(c)) && letters < 3 && marks < 2;
    let started = calm.starts_with('!');
    (marks > 0 && !factorial && !started && !calm.is_empty()).then_some(calm)
}

/// `text` without what surrounds it, and if it is a sentence that says what something is, only that.
pub(super) fn settle(text: &str) -> Cow<'_, str> {
    let mut text = surroundings(text);
    if let Some(calm) = exclaimed(text) {
        text = surroundings(calm);
    }
    for verb in VERBS_AT_THE_END {
        if let Some(shorter) = text.strip_suffix(verb) {
            text = surroundings(shorter);
        }
    }
    if let Some(said) = said(text) {
        text = surroundings(said);
    }
    if let Some(inside) = whole_box(text) {
        text = surroundings(inside);
    }
    without_inner_delimiters(text)
}

/// `text` without the delimiters of the formulas in it: "x $\in$ [0, 1]".
fn without_inner_delimiters(text: &str) -> Cow<'_, str> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        let (before, after) = rest.split_at(at);
        let delimited = ["$", "\\(", "\\["].iter().any(|open| after.starts_with(open));
        plain.push_str(before);
        rest = match formula::starting(after, true).filter(|_| delimited) {
            Some(formula) => {
                plain.push_str(formula.inside.unwrap_or("").trim());
                &after[formula.end..]
            }
            // One that is never closed, and the others are not looked at.
            None if after.starts_with("\\(") || after.starts_with("\\[") => {
                plain.push_str(after);
                ""
            }
            None => {
                // An escaped character is no delimiter.
                let length = if after.starts_with("\\$") || after.starts_with("\\\\") { 2 } else { 1 };
                plain.push_str(&after[..length]);
                &after[length..]
            }
        };
    }
    plain.push_str(rest);
    if plain.len() == text.len() { text.into() } else { surroundings(&plain).to_owned().into() }
}

/// X of "The total cost is X".
fn said(text: &str) -> Option<&str> {
    let word = text.bytes().take_while(u8::is_ascii_alphabetic).count();
    if word == 0 {
        return None;
    }
    let verbs = [" is ", " are ", " equals ", " equal to "];
    let at = verbs.iter().filter_map(|verb| text.rfind(verb).map(|at| at + verb.len())).max()?;
    // "x is 5 and y is 3"
    let first = verbs.iter().filter_map(|verb| text.find(verb)).min()?;
    if text[first..at].contains(" and ") {
        return None;
    }
    let said = text[at..].trim_start();
    // What stands in another sentence is said of something else.
    let sentences = [". ", "? ", "! "].iter().any(|stop| text[..at].contains(stop));
    if sentences || said.starts_with("a ") {
        return None;
    }
    let mut characters = said.chars();
    let first = characters.next()?;
    let single = first.is_alphabetic() && !characters.next().is_some_and(char::is_alphanumeric);
    (single || first.is_ascii_digit() || "-−+.$\\([{*'\"“√π€£".contains(first)).then_some(said)
}

/// What the box holds that `text` is.
fn whole_box(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("\\boxed").or_else(|| text.strip_prefix("\\fbox"))?.trim_start();
    let close = rest.starts_with('{').then(|| boxed::closing_brace(rest)).flatten()?;
    (close + 1 == rest.len()).then(|| &rest[1..close])
}
