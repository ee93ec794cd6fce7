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
        // Longer ones first, so that "10" is not read as "1".
        let mut names: Vec<_> = choices.iter().map(|choice| regex::escape(choice)).collect();
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let one = names.join("|");
        // The edge of a word; that of ASCII words compiles ten times faster, and `whole_word` looks again.
        let edge = if one.is_ascii() { r"(?-u:\b)" } else { r"\b" };
        // What may stand around a choice: brackets, emphasis, LaTeX.
        let (open, close) = (r"(?:[\s(\[{*_$`'\x22]|\\\(|\\text(?:bf)?\{)*", r"[)\]}*_$`'\x22\\]*");
        let choice = format!("{edge}(?P<choice>{one}){edge}");
        let another = format!(r"(?P<another>{close},?\s*(?:or|and|/|,)\s*{open}(?:{one}){edge})?");
        let marks = r"(?:answer|choice|option)";
        let verbs = r"(?:(?:is|would be|must be|should be)\s*)?";
        let again = r"(?:(?:option|choice|letter)\s*:?)?";
        let build = |pattern: String| {
            let built = RegexBuilder::new(&pattern).case_insensitive(true).multi_line(true).size_limit(1 << 22).build();
            built.map_err(|error| format!("has choices that cannot be looked for: {error}"))
        };
        Ok(Choice {
            answer: position,
            choices: choices.to_vec(),
            marked: build(format!(r"{edge}{marks}{edge}{close}\s*{verbs}[:=]?{open}{again}{open}{choice}{another}"))?,
            called_right: build(format!(r"{choice}{close}\s+is\s+(?:the\s+)?(?:correct|right){edge}"))?,
            alone: build(format!(r"^{open}{choice}{close}[.:]?{close}\s*$"))?,
            first: build(format!(r"\A{open}{choice}{close}[.):,]"))?,
            last_word: build(format!(r"(?:\A|(?P<before>\S+)\s){open}{choice}[\s)\]}}*_$`'\x22\\.,;:!?]*\z"))?,
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
            let choice = whole_word(text, found.name("choice")?)?;
            // "the answer is a matter of taste": in the other case it must end there.
            let ends = text[choice.end()..].chars().find(|c| *c != ' ').is_none_or(|next| !next.is_alphanumeric());
            let named = self.named(choice.as_str(), ends)?;
            found.name("another").is_none().then_some((choice.start(), named))
        });
        let called_right = self.called_right.captures_iter(text).filter_map(|found| {
            let choice = whole_word(text, found.name("choice")?)?;
            Some((choice.start(), self.named(choice.as_str(), false)?))
        });
        marked.chain(called_right)
    }

    /// The last choice that stands alone.
    fn lone<'a>(&'a self, text: &str) -> Option<&'a str> {
        let last_word = self.last_word.captures(text).and_then(|found| {
            let choice = whole_word(text, found.name("choice")?)?;
            let before = found.name("before").map(|word| word.as_str().to_lowercase().replace('\u{2019}', "'"));
            let word = before.as_deref().unwrap_or_default().trim_matches(|c: char| c.is_ascii_punctuation());
            let denied = ["not", "or", "and", "nor", "than"].contains(&word) || word.ends_with("n't");
            (!denied).then(|| self.named(choice.as_str(), before.is_none())).flatten()
        });
        let alone = || {
            let all = self.alone.captures_iter(text).filter_map(|found| self.named(found.name("choice")?.as_str(), true));
            all.last()
        };
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

/// `found` unless it is a part of a longer word.
fn whole_word<'t>(text: &str, found: regex::Match<'t>) -> Option<regex::Match<'t>> {
    let glued = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let (before, after) = (text[..found.start()].chars().next_back(), text[found.end()..].chars().next());
    (!glued(before) && !glued(after)).then_some(found)
}
