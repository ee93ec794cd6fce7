//! Multiple choice: which choice does the answer settle on?
//!
//! The last marked choice counts: `\boxed{B}`, "the answer is (B)", "Answer: B", "option B is correct". Where none is marked, the last
//! choice that stands alone counts: on a line of its own, as the first thing of a one-line answer ("B. Paris"), or as the text's last
//! word. Where two are named at once ("A or B") or the choice is denied ("not B"), none is clear. No choice found is a wrong answer.

use regex::{Regex, RegexBuilder};

use super::{Verdict, math, shortened};
use crate::field::FieldError;

/// Most choices.
const CHOICES: usize = 64;
/// Longest choice, in characters.
const CHOICE_CHARS: usize = 40;

/// The right choice among all.
#[derive(Clone, Debug)]
pub struct Choice {
    answer: usize,
    choices: Vec<String>,
    marked: Regex,
    called_right: Regex,
    alone: Regex,
    first: Regex,
    last_word: Regex,
}

impl Choice {
    /// Refuses choices that cannot be told apart in a text.
    pub fn check(choices: &[String]) -> Result<(), FieldError> {
        if !(2..=CHOICES).contains(&choices.len()) {
            return Err(FieldError::new("choices", format!("holds {} choices; give 2 to {CHOICES}", choices.len())));
        }
        for (i, choice) in choices.iter().enumerate() {
            let at = format!("choices[{i}]");
            if choice.is_empty() || choice.chars().count() > CHOICE_CHARS || !choice.chars().all(char::is_alphanumeric) {
                let problem = format!("is {:?}; give one word of 1 to {CHOICE_CHARS} letters and digits", shortened(choice));
                return Err(FieldError::new(at, problem));
            }
            if choices[..i].iter().any(|other| other.to_lowercase() == choice.to_lowercase()) {
                return Err(FieldError::new(at, format!("is {choice:?}, which is there already")));
            }
        }
        Ok(())
    }

    /// Says why `answer` cannot be the right one of `choices`, which have passed [`Choice::check`].
    pub fn new(answer: &str, choices: &[String]) -> Result<Self, String> {
        let position = choices.iter().position(|choice| choice == answer.trim());
        let position =
            position.ok_or_else(|| format!("is {:?}, which is not among the choices {}", shortened(answer), choices.join(", ")))?;
        let one = choices.iter().map(|choice| regex::escape(choice)).collect::<Vec<_>>().join("|");
        // What may stand around a choice: brackets, emphasis, LaTeX.
        let (open, close) = (r"(?:[\s(\[{*_$`'\x22]|\\\(|\\text(?:bf)?\{)*", r"[)\]}*_$`'\x22\\]*");
        let another = format!(r"(?P<another>{close},?\s*(?:or|and|/|,)\s*{open}(?:{one})\b)?");
        let build = |pattern: String| {
            let built = RegexBuilder::new(&pattern).case_insensitive(true).multi_line(true).size_limit(1 << 22).build();
            built.map_err(|error| format!("has choices that cannot be looked for: {error}"))
        };
        Ok(Choice {
            answer: position,
            choices: choices.to_vec(),
            marked: build(format!(
                r"\b(?:answer|choice|option)\b{close}\s*(?:(?:is|would be|must be|should be)\b\s*)?[:=]?{open}(?:(?:option|choice|letter)\b\s*:?)?{open}\b(?P<choice>{one})\b{another}"
            ))?,
            called_right: build(format!(r"\b(?P<choice>{one})\b{close}\s+is\s+(?:the\s+)?(?:correct|right)\b"))?,
            alone: build(format!(r"^{open}\b(?P<choice>{one})\b{close}[.:]?{close}\s*$"))?,
            first: build(format!(r"\A{open}\b(?P<choice>{one})\b{close}[.):,]"))?,
            last_word: build(format!(r"(?:\A|(?P<before>[\w'\u{{2019}}/]+),?\s){open}\b(?P<choice>{one})\b[^\w\n]*\z"))?,
        })
    }

    /// 1 if the text settles on the right choice, else 0.
    pub fn judge(&self, text: &str) -> Verdict {
        Verdict::of(self.find(text) == Some(self.choices[self.answer].as_str()))
    }

    /// The choice that `text` settles on, if there is one.
    pub fn find<'a>(&'a self, text: &str) -> Option<&'a str> {
        let text = text.trim();
        let boxed = math::boxes(text).find_map(|(at, inside)| {
            let inside = inside.trim();
            let found = self.alone.captures(inside).or_else(|| self.first.captures(inside))?;
            Some((at, self.named(found.name("choice")?.as_str(), true)?))
        });
        let last = boxed.into_iter().chain(self.marks(text)).max_by_key(|(at, _)| *at);
        last.map(|(_, choice)| choice).or_else(|| self.lone(text))
    }

    /// Marked choices and where they stand.
    fn marks<'a, 't>(&'a self, text: &'t str) -> impl Iterator<Item = (usize, &'a str)> + use<'a, 't> {
        let marked = self.marked.captures_iter(text).filter_map(|found| {
            let choice = found.name("choice")?;
            // "the answer is a matter of taste": in the other case it must end there.
            let ends = text[choice.end()..].chars().find(|c| *c != ' ').is_none_or(|next| !next.is_alphanumeric());
            let choice_text = self.named(choice.as_str(), ends)?;
            found.name("another").is_none().then_some((choice.start(), choice_text))
        });
        let called_right = self.called_right.captures_iter(text).filter_map(|found| {
            let choice = found.name("choice")?;
            Some((choice.start(), self.named(choice.as_str(), false)?))
        });
        marked.chain(called_right)
    }

    /// The last choice that stands alone.
    fn lone<'a>(&'a self, text: &str) -> Option<&'a str> {
        let last_word = self.last_word.captures(text).and_then(|found| {
            let choice = found.name("choice")?;
            let before = found.name("before").map_or("", |word| word.as_str()).to_lowercase().replace('\u{2019}', "'");
            let denied = ["not", "or", "and", "nor", "than", "/"].contains(&before.as_str()) || before.ends_with("n't");
            let whole = before.is_empty();
            (!denied).then(|| self.named(choice.as_str(), whole)).flatten()
        });
        let alone = || self.alone.captures_iter(text).filter_map(|found| self.named(found.name("choice")?.as_str(), true)).last();
        let first = || {
            let found = self.first.captures(text).filter(|_| !text.contains('\n'))?;
            self.named(found.name("choice")?.as_str(), false)
        };
        last_word.or_else(alone).or_else(first)
    }

    /// The choice that is written `text`; in another case only if `any_case`.
    fn named<'a>(&'a self, text: &str, any_case: bool) -> Option<&'a str> {
        let exact = self.choices.iter().find(|choice| *choice == text);
        let like = || self.choices.iter().find(|choice| any_case && choice.to_lowercase() == text.to_lowercase());
        exact.or_else(like).map(String::as_str)
    }
}
