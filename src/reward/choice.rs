//! Multiple choice: which choice does the answer settle on?
//!
//! The last marked choice counts: `\boxed{B}`, "the answer is (B)", "Answer: B", "I choose option B", "B is correct". Where none is marked,
//! the last choice that stands alone counts: as the text's last word, on a line of its own, or as the first thing of a one-line answer
//! ("B. Paris"). Where two are named at once ("A or B") or the choice is denied ("not B"), none is clear: that is no answer.

use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

use super::math::extract::{Extraction, boxes, extract};
use super::math::{Mark, Options};
use super::{Found, Ruling, shortened};
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
        let (open, close) = (r"(?:[ \t\r\n(\[{*_$`'\x22]|\\\(|\\text(?:bf)?\{)*", r"[)\]}*_$`'\x22\\]*");
        let choice = format!("{edge}(?P<choice>{one}){edge}");
        let another = format!(r"(?P<another>{close},?[ \t\r\n]*(?:or|and|/|,)[ \t\r\n]*{open}(?:{one}){edge})?");
        let marks = r"(?:answer|choose|pick|select|(?:correct|right|best|my|final) (?:option|choice|letter))";
        let verbs = r"(?:(?:is|would be|must be|should be)[ \t\r\n]*)?";
        let again = r"(?:(?:option|choice|letter)[ \t\r\n]*:?)?";
        let build = |pattern: String| {
            let built = RegexBuilder::new(&pattern).case_insensitive(true).multi_line(true).size_limit(1 << 22).build();
            built.map_err(|error| format!("has choices that cannot be looked for: {error}"))
        };
        Ok(Choice {
            answer: position,
            choices: choices.to_vec(),
            marked: build(format!(r"{edge}{marks}{edge}{close}[ \t\r\n]*{verbs}[:=]?{open}{again}{open}{choice}{another}"))?,
            called_right: build(format!(r"{choice}{close}[ \t\r\n]+is[ \t\r\n]+(?:the[ \t\r\n]+)?(?:correct|right|valid){edge}"))?,
            alone: build(format!(r"^{open}{choice}{close}[.:]?{close}[ \t\r\n]*$"))?,
            first: build(format!(r"\A{open}{choice}{close}[.):,]"))?,
            last_word: build(format!(r"(?:\A|(?P<before>[^ \t\r\n]+)[ \t\r\n]){open}{choice}[ \t\r\n)\]}}*_$`'\x22\\.,;:!?]*\z"))?,
        })
    }

    /// Whether the text settles on the right choice.
    pub fn judge(&self, text: &str) -> Found {
        match self.find(text) {
            Some((choice, rule)) => Found::new(Ruling::of(choice == self.choices[self.answer]), Some(choice), rule),
            None => Found::new(Ruling::NoAnswer, None, "choice"),
        }
    }

    /// The choice that `text` settles on, if there is one, and how it was found.
    fn find<'a>(&'a self, text: &str) -> Option<(&'a str, &'static str)> {
        let text = text.trim();
        let boxed = boxes(text).find_map(|(at, inside)| {
            let inside = inside.trim();
            let found = self.alone.captures(inside).or_else(|| self.first.captures(inside))?;
            Some((at, (self.named(found.name("choice")?.as_str(), true)?, "choice/boxed")))
        });
        let marked = self.marks(text).map(|(at, choice)| (at, (choice, "choice/marked")));
        let last = boxed.into_iter().chain(marked).max_by_key(|(at, _)| *at);
        let last = last.map(|(_, found)| found).or_else(|| Some((self.tagged(text)?, "choice/marked")));
        last.or_else(|| Some((self.lone(text)?, "choice/lone")))
    }

    /// Marked choices and where they stand.
    fn marks<'a, 't>(&'a self, text: &'t str) -> impl Iterator<Item = (usize, &'a str)> + use<'a, 't> {
        let marked = self.marked.captures_iter(text).filter_map(|found| {
            let choice = whole_word(text, found.name("choice")?)?;
            // "the answer is a matter of taste": in the other case it must end there.
            let ends = text[choice.end()..].chars().find(|c| *c != ' ').is_none_or(|next| !next.is_alphanumeric());
            let named = self.named(choice.as_str(), ends)?;
            let clear = found.name("another").is_none() && !denies(&text[..found.get(0)?.start()]);
            clear.then_some((choice.start(), named))
        });
        let called_right = self.called_right.captures_iter(text).filter_map(|found| {
            let choice = whole_word(text, found.name("choice")?)?;
            Some((choice.start(), self.named(choice.as_str(), false)?))
        });
        marked.chain(called_right)
    }

    /// The choice in `<answer>...</answer>`, behind `####`, or behind a phrase in another language.
    fn tagged<'a>(&'a self, text: &str) -> Option<&'a str> {
        static SEARCH: LazyLock<Options> =
            LazyLock::new(|| Options { marks: vec![Mark::AnswerTag, Mark::Hashes, Mark::Phrase], ..Options::default() });
        let Extraction::Found(found) = extract(text, &SEARCH) else { return None };
        let at = self.alone.captures(&found.text)?;
        self.named(at.name("choice")?.as_str(), true)
    }

    /// The last choice that stands alone.
    fn lone<'a>(&'a self, text: &str) -> Option<&'a str> {
        let last_word = self.last_word.captures(text).and_then(|found| {
            let choice = whole_word(text, found.name("choice")?)?;
            let before = found.name("before").map_or("", |word| word.as_str());
            (!denies(before)).then(|| self.named(choice.as_str(), before.is_empty())).flatten()
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

/// Whether the last word of `before` takes away what follows, or names it beside another.
fn denies(before: &str) -> bool {
    let word = before.split_whitespace().next_back().unwrap_or_default().to_lowercase().replace('\u{2019}', "'");
    let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
    ["not", "never", "cannot", "or", "and", "nor", "than"].contains(&word) || word.ends_with("n't")
}

/// `found` unless it is a part of a longer word.
fn whole_word<'t>(text: &str, found: regex::Match<'t>) -> Option<regex::Match<'t>> {
    let glued = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let (before, after) = (text[..found.start()].chars().next_back(), text[found.end()..].chars().next());
    (!glued(before) && !glued(after)).then_some(found)
}
