//! `\boxed{...}` and `\fbox{...}`.

use std::borrow::Cow;

use super::{ANSWER_BYTES, Held, MARKS, clean, plain};

/// Boxes that are part of one answer stand no further apart than this, in bytes.
const BETWEEN_BYTES: usize = 120;
/// A box without braces holds no more than this.
const BARE_BYTES: usize = 100;
/// Most words between two boxes, before the "and".
const WORDS: usize = 4;
/// What joins two answers.
const AND: [&str; 9] = ["and", "or", "et", "und", "和", "与", "或", "и", "или"];
/// Commands between answers that mean nothing.
const SPACING: [&str; 15] = [
    "quad",
    "qquad",
    "text",
    "textbf",
    "textrm",
    "mathrm",
    "mbox",
    "left",
    "right",
    "displaystyle",
    "big",
    "Big",
    "enspace",
    "thinspace",
    "hfill",
];

/// A box: where it stands and ends, and what stands inside, if it is closed.
struct Boxed<'t> {
    at: usize,
    end: usize,
    inside: Option<&'t str>,
}

/// What stands inside every `\boxed{...}` and `\fbox{...}` and where, the last one first.
pub fn boxes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    all(text).take(MARKS).filter_map(|found| Some((found.at, found.inside.filter(|inside| inside.len() <= ANSWER_BYTES)?)))
}

/// Where the last box stands and what it holds. Boxes that are joined ("\boxed{1} and \boxed{2}") are one list.
pub(super) fn last(text: &str) -> Option<(usize, Held<'_>)> {
    let mut boxes = all(text);
    let last = boxes.next()?;
    let Some(inside) = last.inside else { return Some((last.at, Held::Nothing("an unclosed box"))) };
    if inside.trim().len() > ANSWER_BYTES {
        return Some((last.at, Held::Text(inside.trim().into())));
    }
    let inside = clean::surroundings(inside);
    let mut list = vec![inside];
    let mut first = last.at;
    if !inside.is_empty() {
        for earlier in boxes.take(MARKS) {
            let Some(more) = earlier.inside.filter(|more| more.len() <= ANSWER_BYTES) else { break };
            // A box around the last one ends behind it.
            let Some(between) = text.get(earlier.end..first) else { break };
            if !joins(between, WORDS) {
                break;
            }
            list.push(clean::surroundings(more));
            first = earlier.at;
        }
    }
    list.reverse();
    let held = if list.len() > 1 { Cow::from(list.join(", ")) } else { inside.into() };
    // The last box's place: marks are compared by their last ones.
    Some((last.at, Held::Text(held)))
}

/// Every box, the last one first.
fn all(text: &str) -> impl Iterator<Item = Boxed<'_>> {
    let commands = text.rmatch_indices("box").filter_map(move |(at, _)| {
        let (before, after) = (&text[..at], &text[at + "box".len()..]);
        match before.strip_suffix("\\f") {
            Some(before) => Some((before.len(), after)),
            None => Some((before.strip_suffix('\\')?.len(), after.strip_prefix("ed")?)),
        }
    });
    commands.take(4 * MARKS).filter_map(move |(at, after)| {
        let content = after.trim_start();
        let start = text.len() - content.len();
        if content.starts_with('{') {
            return match closing_brace(content) {
                // A box to be filled in, not an answer.
                Some(close) if content[1..close].trim_start().starts_with("\\phantom") => None,
                Some(close) => Some(Boxed { at, end: start + close + 1, inside: Some(&content[1..close]) }),
                None => Some(Boxed { at, end: text.len(), inside: None }),
            };
        }
        if content.is_empty() {
            return Some(Boxed { at, end: text.len(), inside: None });
        }
        let spaced = content.len() < after.len();
        let inside = bare(content).filter(|_| spaced || !content.starts_with(char::is_alphabetic))?;
        Some(Boxed { at, end: start + inside.len(), inside: Some(inside) })
    })
}

/// What `\boxed` holds without braces: the rest of the formula, or one word of prose if it may be an answer.
fn bare(content: &str) -> Option<&str> {
    let line = plain::shortened(content, BARE_BYTES).lines().next().unwrap_or("");
    let formula = ["$", "\\)", "\\]"].iter().filter_map(|close| line.find(close)).min();
    let inside = match formula {
        Some(end) => &line[..end],
        None => line.split_whitespace().next()?,
    };
    let mut characters = inside.chars();
    let first = characters.next()?;
    let answer = first.is_ascii_digit() || "+-−(\\[.".contains(first) || characters.all(|c| !c.is_alphanumeric()) && first.is_alphabetic();
    (formula.is_some() || answer).then_some(inside)
}

/// Where the brace that `text` starts with is closed. An escaped brace is none.
pub(super) fn closing_brace(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0usize);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Whether what stands between two boxes or formulas makes them one list: "and", "or" or a comma, with at most `words` words before it
/// (a unit, "for part (a)") and nothing behind it but a name that is assigned to.
pub(super) fn joins(between: &str, words: usize) -> bool {
    if between.len() > BETWEEN_BYTES {
        return false;
    }
    let plain = plain_text(between);
    let tokens: Vec<&str> = plain.split_whitespace().collect();
    let is_and = |token: &str| AND.contains(&token);
    let is_comma = |token: &str| matches!(token, "," | ";" | "、" | "，");
    let Some(joint) = tokens.iter().rposition(|token| is_and(token) || is_comma(token)) else { return false };
    let before = tokens[..joint].iter().filter(|token| !is_comma(token));
    let words = if is_and(tokens[joint]) { words } else { words.min(1) };
    let is_word = |token: &str| token.chars().all(|c| c.is_alphabetic() || "()-'".contains(c));
    let plain_words = before.clone().all(|token| is_word(token)) && before.count() <= words;
    let assigned = match &tokens[joint + 1..] {
        [] => true,
        [name, "="] => name.chars().count() <= 12,
        [assignment] => assignment
            .strip_suffix('=')
            .is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_'()".contains(c))),
        _ => false,
    };
    plain_words && assigned
}

/// `text` without delimiters, braces and spacing; commas stand alone, other commands are their names.
fn plain_text(text: &str) -> String {
    let mut plain = String::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        match character {
            '\\' => {
                let length = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
                let name = &rest[..length];
                if length == 0 {
                    rest = rest.get(rest.chars().next().map_or(0, char::len_utf8)..).unwrap_or("");
                    plain.push(' ');
                } else {
                    plain.push_str(if SPACING.contains(&name) { " " } else { name });
                    rest = &rest[length..];
                }
            }
            '{' => {}
            '$' | '}' | '~' | '&' | '*' => plain.push(' '),
            ',' | ';' | '、' | '，' => plain.extend([' ', character, ' ']),
            _ => plain.push(character),
        }
    }
    plain
}
