//! A text has the form that was asked for: a thought that is closed, an answer behind it, a mark around the answer.
//!
//! The whole text is looked at, in time linear in its length. Emptiness earns nothing: neither a thought without a letter or a digit nor an
//! answer of nothing but space, punctuation, braces and invisible characters is one.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{Found, Ruling};
use crate::field::FieldError;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// The form that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// Whether the text begins with a thought, `<think>...</think>`, before its answer.
    #[serde(default)]
    pub think: Think,
    /// What the answer must be marked with; nothing if absent.
    #[serde(default)]
    pub mark: Option<Mark>,
    /// The mark stands once in the whole text, the thought included. Else the last one counts, and it must stand behind the thought.
    #[serde(default = "yes")]
    pub exactly_one: bool,
}

fn yes() -> bool {
    true
}

/// What is wanted of thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Think {
    /// One at the very beginning (`true`).
    Wanted,
    /// None (`false`).
    Unwanted,
    /// None, or one that is as it should be (`"optional"`).
    #[default]
    Optional,
    /// One that the prompt has opened already: the text begins inside it (`"prefilled"`).
    Prefilled,
}

/// What marks an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// `\boxed{...}`
    Boxed,
    /// `<answer>...</answer>`
    AnswerTag,
    /// `#### ...`, to the end of the line.
    Hashes,
}

impl Form {
    /// Refuses a form that any text has.
    pub fn check(&self) -> Result<(), FieldError> {
        match (self.think, self.mark) {
            (Think::Optional, None) => {
                Err(FieldError::new("mark", "is missing; without a mark, and where a thought is optional, every text has the form"))
            }
            _ => Ok(()),
        }
    }

    /// Right if `text` has the form; the answer, without its mark, is extracted.
    pub fn judge(&self, text: &str) -> Found {
        match self.answer(text) {
            Ok(answer) => Found::new(Ruling::Correct, Some(answer.trim()), "format"),
            Err((ruling, rule)) => Found::new(ruling, None, rule),
        }
    }

    fn answer<'t>(&self, text: &'t str) -> Result<&'t str, (Ruling, &'static str)> {
        let answer = self.behind_thought(text)?;
        if !is_answer(answer) {
            return Err((Ruling::NoAnswer, "format/no_answer"));
        }
        let Some(mark) = self.mark else { return Ok(answer) };
        let (open, close) = match mark {
            Mark::Boxed => ("\\boxed", None),
            Mark::AnswerTag => ("<answer>", Some("</answer>")),
            Mark::Hashes => ("####", None),
        };
        let times = |mark: &str| text.matches(mark).count();
        if self.exactly_one && (times(open) > 1 || close.is_some_and(|close| times(close) > 1)) {
            return Err((Ruling::Wrong, "format/marks"));
        }
        let Some(at) = answer.rfind(open) else { return Err((Ruling::NoAnswer, "format/no_mark")) };
        let behind = &answer[at + open.len()..];
        let marked = match (mark, close) {
            (_, Some(close)) => behind.split_once(close).map(|(marked, _)| marked),
            (Mark::Hashes, None) => behind.lines().next(),
            (_, None) => braced(behind.trim_start(), behind.len()).map(|(marked, _)| marked),
        };
        match marked {
            None => Err((Ruling::Wrong, "format/open_mark")),
            Some(marked) if !is_answer(marked) => Err((Ruling::NoAnswer, "format/empty_mark")),
            Some(marked) => Ok(marked),
        }
    }

    /// What follows the thought, which must be there or not, as it is wanted.
    fn behind_thought<'t>(&self, text: &'t str) -> Result<&'t str, (Ruling, &'static str)> {
        let wrong = (Ruling::Wrong, "format/think");
        let (opens, closes) = (text.matches(OPEN).count(), text.matches(CLOSE).count());
        let begun = text.trim_start().strip_prefix(OPEN);
        let inside = match (self.think, opens, closes) {
            (Think::Unwanted | Think::Optional, 0, 0) => return Ok(text),
            (Think::Unwanted, ..) => return Err(wrong),
            (Think::Prefilled, 0, 1) => text,
            (_, 1, 1) => begun.ok_or(wrong)?,
            _ => return Err(wrong),
        };
        let (thought, answer) = inside.split_once(CLOSE).ok_or(wrong)?;
        if !thought.chars().any(|c| c.is_alphanumeric() && !is_invisible(c)) {
            return Err((Ruling::Wrong, "format/empty_think"));
        }
        Ok(answer)
    }
}

/// Commands that print nothing by themselves.
const SILENT: [&str; 12] = [
    "\\text",
    "\\textbf",
    "\\textit",
    "\\mathrm",
    "\\mathbf",
    "\\mbox",
    "\\left",
    "\\right",
    "\\quad",
    "\\qquad",
    "\\displaystyle",
    "\\hspace",
];

/// Whether something is said: more than space, stops, braces, LaTeX that prints nothing and what cannot be seen.
fn is_answer(text: &str) -> bool {
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c == '\\' {
            let letters = rest[1..].chars().take_while(char::is_ascii_alphabetic).count();
            let (command, after) = rest.split_at(1 + letters);
            if letters > 0 && !SILENT.contains(&command) {
                return true;
            }
            rest = after;
            continue;
        }
        if !(c.is_whitespace() || c.is_control() || is_invisible(c) || "{}$~.,;:!?'\"`*_".contains(c)) {
            return true;
        }
        rest = &rest[c.len_utf8()..];
    }
    false
}

/// Characters that show nothing, some of which count as letters.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

impl Serialize for Think {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        match self {
            Think::Wanted => writer.serialize_bool(true),
            Think::Unwanted => writer.serialize_bool(false),
            Think::Optional => writer.serialize_str("optional"),
            Think::Prefilled => writer.serialize_str("prefilled"),
        }
    }
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        match Value::deserialize(reader)? {
            Value::Bool(true) => Ok(Think::Wanted),
            Value::Bool(false) => Ok(Think::Unwanted),
            Value::String(name) if name == "optional" => Ok(Think::Optional),
            Value::String(name) if name == "prefilled" => Ok(Think::Prefilled),
            _ => Err(serde::de::Error::custom("must be true, false, \"optional\" or \"prefilled\"")),
        }
    }
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
