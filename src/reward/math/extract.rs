//! Where the answer stands in a text.
//!
//! Thoughts and end-of-turn tokens are no part of it. In the rest, of `\boxed{...}`, `#### ...` and `<answer>...</answer>` the one that comes
//! last counts, and what it holds is the answer, even if that is nothing: an empty or an unclosed one is no answer, whatever stands earlier.
//! Where there is none of these: `[...]` if it is asked for, then the last phrase ("The answer is ..."), then bold at the end, then the
//! whole text if it may be nothing but an answer. Only a lenient search goes on to the last formula or number. What is found loses what
//! surrounds it (delimiters of formulas, emphasis, quotes, the full stop), never units, signs or brackets.
//!
//! Every search goes through the text a bounded number of times, and nothing here reads mathematics: whether a text is an expression is for
//! the one who asked.

use std::borrow::Cow;

use super::options::{Mark, Options};

mod boxed;
mod clean;
mod formula;
mod phrase;
mod plain;
mod words;

pub use boxed::boxes;

/// Longest answer, in bytes.
const ANSWER_BYTES: usize = 8192;
/// A text longer than this is not "nothing but an answer", unless it is one formula.
const WHOLE_BYTES: usize = 400;
/// So many marks of a kind are looked at, from the end: a text that repeats itself costs no more than reading it.
const MARKS: usize = 16;
/// Elements around a model's thoughts.
const THOUGHTS: [&str; 4] = ["think", "thinking", "thought", "reasoning"];
/// What ends a turn, besides `<|...|>`.
const END_TOKENS: [&str; 10] =
    ["</s>", "<s>", "<eos>", "<pad>", "[EOS]", "[PAD]", "<end_of_turn>", "<start_of_turn>", "<｜end▁of▁sentence｜>", "<end_of_text>"];
/// Whose turn comes next, behind a token that opens it.
const ROLES: [&str; 5] = ["user", "assistant", "system", "model", "human"];

/// What was taken for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extracted {
    /// The answer's text without what surrounds it; never empty.
    pub text: String,
    /// Where it stood: `boxed`, `hashes`, `answer_tag`, `brackets`, `phrase`, `bold`, `whole`, `last_formula` or `last_number`.
    ///
    /// A `whole` text is an answer only if it reads as mathematics or equals the reference as a text: it may be any one-line response.
    pub rule: &'static str,
    /// In a lenient search, what to take if `text` does not read as mathematics.
    pub otherwise: Option<Box<Extracted>>,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extraction {
    /// An answer.
    Found(Extracted),
    /// None, and why.
    None(&'static str),
    /// One that is too large.
    Limit(&'static str),
}

/// What stands at a mark.
enum Held<'t> {
    /// An answer, as written.
    Text(Cow<'t, str>),
    /// No answer, and why.
    Nothing(&'static str),
}

/// Finds the answer of `response`.
pub fn extract(response: &str, options: &Options) -> Extraction {
    let Some(text) = after_thoughts(response) else { return Extraction::None("an unclosed think") };
    let text = without_end_tokens(text).trim();
    if text.is_empty() {
        return Extraction::None("an empty response");
    }
    find(text, options)
}

/// A reference may be a whole solution: then the answer is what its last `\boxed{...}` or `####` holds. Else it is the text without the
/// delimiters of a formula around it.
pub fn gold(text: &str) -> Cow<'_, str> {
    match marked_gold(text) {
        Some(marked) => marked,
        None => clean::without_delimiters(text.trim()).into(),
    }
}

/// As [`gold`], and where nothing is boxed the answer is looked for as in a response. For comparing two texts.
pub fn gold_in_text(text: &str, options: &Options) -> Option<String> {
    let text = without_end_tokens(text).trim();
    let formula = clean::without_delimiters(text);
    let found = match marked_gold(text) {
        Some(marked) => marked.into_owned(),
        None if formula.len() < text.len() => formula.to_owned(),
        None => match find(text, &Options { marks: vec![Mark::AnswerTag, Mark::Phrase, Mark::Bold, Mark::Whole], ..options.clone() }) {
            Extraction::Found(found) if found.rule != "whole" => found.text,
            _ => text.to_owned(),
        },
    };
    Some(found).filter(|found| !found.is_empty())
}

/// What the last `\boxed{...}` or `####` of a reference holds. A reference is not cut off: a box that is never closed ends with the text.
fn marked_gold(text: &str) -> Option<Cow<'_, str>> {
    let boxed = boxed::last(text);
    let from = boxed.as_ref().map_or(0, |(at, _)| *at);
    if let Some((_, line)) = hashes(text, from) {
        return Some(clean::surroundings(line).into());
    }
    match boxed? {
        (_, Held::Text(inside)) => Some(inside),
        (at, Held::Nothing(_)) => {
            let inside = text[at..].trim_start_matches(|c: char| c == '\\' || c.is_ascii_alphabetic()).trim_start();
            let inside = inside.strip_prefix('{').unwrap_or(inside);
            Some(clean::surroundings(inside.strip_suffix('}').filter(|i| i.trim().is_empty()).unwrap_or(inside)).into())
        }
    }
}

/// Finds the answer in a text that holds no thoughts and no tokens.
fn find(text: &str, options: &Options) -> Extraction {
    let counts = |mark: Mark| options.marks.contains(&mark);
    if let Some((held, rule)) = last_mark(text, options) {
        return report(held, rule, options);
    }
    if counts(Mark::Brackets)
        && let Some(inside) = plain::last_brackets(text)
    {
        return report(Held::Text(inside.into()), "brackets", options);
    }
    if counts(Mark::Phrase)
        && let Some((held, at)) = phrase::last(text, options.line_breaks)
    {
        let mut found = report(held, "phrase", options);
        if let Extraction::Found(found) = &mut found
            && options.lenient
            && found.otherwise.is_none()
        {
            // "Final answer is $?$. I hope. $42$"
            let rest = &text[at..];
            found.otherwise = formula::last(rest, options.line_breaks)
                .and_then(|formula| settled(formula.inside?.into(), "last_formula"))
                .filter(|other| other.text != found.text)
                .map(Box::new);
        }
        return found;
    }
    if counts(Mark::Bold)
        && let Some(inside) = plain::last_bold(text)
    {
        return report(Held::Text(inside.into()), "bold", options);
    }
    let fallback = if options.lenient { plain::last(text, options.line_breaks) } else { None };
    let fallback = fallback.and_then(|(found, rule)| settled(found, rule));
    let whole = counts(Mark::Whole) && may_be_whole(text, options.line_breaks);
    if whole && (fallback.is_none() || !plain::is_sentence(text)) {
        let Some(mut whole) = settled(text.into(), "whole") else { return Extraction::None("no mark") };
        whole.otherwise = fallback.filter(|other| other.text != whole.text).map(Box::new);
        return limited(whole);
    }
    fallback.map_or(Extraction::None("no mark"), limited)
}

/// The last of `\boxed`, `####` and `<answer>`.
fn last_mark<'t>(text: &'t str, options: &Options) -> Option<(Held<'t>, &'static str)> {
    let counts = |mark: Mark| options.marks.contains(&mark);
    let boxed = if counts(Mark::Boxed) { boxed::last(text) } else { None };
    // What stands before the box does not matter.
    let from = boxed.as_ref().map_or(0, |(at, _)| *at);
    let hashes = if counts(Mark::Hashes) { hashes(text, from) } else { None };
    let from = hashes.map_or(from, |(at, _)| at);
    if counts(Mark::AnswerTag)
        && let Some(held) = answer_tag(text, from)
    {
        return Some((held, "answer_tag"));
    }
    if let Some((_, line)) = hashes {
        return Some((Held::Text(line.into()), "hashes"));
    }
    boxed.map(|(_, held)| (held, "boxed"))
}

/// The rest of the line behind the last `####` from `from` on, and where that stands.
fn hashes(text: &str, from: usize) -> Option<(usize, &str)> {
    for (at, mark) in text[from..].rmatch_indices("####").take(MARKS) {
        let (at, after) = (from + at, from + at + mark.len());
        // Longer rows are headings or rulers.
        if text[..at].ends_with('#') || text[after..].starts_with('#') {
            continue;
        }
        let end = text[after..].find('\n').map_or(text.len(), |length| after + length);
        let line = cut_at_tag(&text[after..end]);
        if line.trim().is_empty()
            && let Some(open) = text[from..at].rfind("####").map(|open| from + open + mark.len())
            && !text[open..at].contains('\n')
            && !text[open..at].trim().is_empty()
        {
            // "#### 42 ####"
            return Some((open - mark.len(), &text[open..at]));
        }
        if !is_heading(line, &text[end..]) {
            return Some((at, line));
        }
    }
    None
}

/// Whether `#### line` is a heading in Markdown: it starts with a word, and something stands below it.
fn is_heading(line: &str, below: &str) -> bool {
    let line = line.trim_start_matches([' ', '\t', '*', ':']);
    let word = line.split(|c: char| !c.is_alphabetic()).next().unwrap_or("");
    word.chars().nth(1).is_some() && !below.trim().is_empty() && phrase::last(line, false).is_none()
}

/// What stands in the last `<answer>...</answer>` that opens at or behind `from`.
fn answer_tag(text: &str, from: usize) -> Option<Held<'_>> {
    let tag = |at: usize, name: &str| text.as_bytes()[at..].get(..name.len()).is_some_and(|tag| tag.eq_ignore_ascii_case(name.as_bytes()));
    let mut close = None;
    for (at, _) in text[from..].rmatch_indices('<') {
        let at = from + at;
        if tag(at, "</answer>") {
            close.get_or_insert(at);
        } else if tag(at, "<answer>") {
            let Some(close) = close else { return Some(Held::Nothing("an unclosed answer tag")) };
            return Some(Held::Text(text[at + "<answer>".len()..close].into()));
        }
    }
    None
}

/// `line` up to a tag or token.
fn cut_at_tag(line: &str) -> &str {
    let end = line.match_indices('<').map(|(at, _)| at).find(|at| line[at + 1..].starts_with(['|', '/']));
    &line[..end.unwrap_or(line.len())]
}

/// The answer in what a mark holds.
fn report(held: Held<'_>, rule: &'static str, options: &Options) -> Extraction {
    let text = match held {
        Held::Text(text) => text,
        Held::Nothing(why) => return Extraction::None(why),
    };
    if text.trim().len() > ANSWER_BYTES {
        return too_long();
    }
    if rule == "boxed" {
        let empty = text.is_empty();
        return if empty {
            Extraction::None("an empty box")
        } else {
            limited(Extracted { text: text.into_owned(), rule, otherwise: None })
        };
    }
    // "<answer>The answer is 42.</answer>"
    let inner = if matches!(rule, "answer_tag" | "hashes" | "bold") { phrase::last(&text, options.line_breaks) } else { None };
    let text = match &inner {
        Some((Held::Text(inner), _)) => inner.clone(),
        _ => text.clone(),
    };
    let Some(mut found) = settled(text, rule) else { return Extraction::None("an empty answer") };
    if options.lenient && plain::is_sentence(&found.text) {
        // "Final Answer: Jane started 3 hours ago."
        let last = plain::last(&found.text, options.line_breaks).and_then(|(last, _)| settled(last, rule));
        found = last.unwrap_or(found);
    }
    limited(found)
}

/// `text` without what surrounds an answer, if there is anything else.
fn settled(text: Cow<'_, str>, rule: &'static str) -> Option<Extracted> {
    let text = clean::settle(&text).into_owned();
    (!text.is_empty()).then_some(Extracted { text, rule, otherwise: None })
}

fn limited(found: Extracted) -> Extraction {
    if found.text.len() > ANSWER_BYTES { too_long() } else { Extraction::Found(found) }
}

fn too_long() -> Extraction {
    Extraction::Limit("answer longer than 8192 bytes")
}

/// Whether `text` may be an answer and nothing else: one short line, or one formula.
fn may_be_whole(text: &str, line_breaks: bool) -> bool {
    let one_line = text.len() <= WHOLE_BYTES && !text.contains('\n');
    one_line
        || formula::starting(text, line_breaks)
            .is_some_and(|formula| formula.inside.is_some() && text[formula.end..].trim_matches(['.', ' ', '\n']).is_empty())
}

/// What follows the last thoughts; nothing if they do not end. A template may have opened them.
fn after_thoughts(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    // Each kind of bracket on its own: texts are long, and one byte is found quickly.
    let angles = bytes.windows(2).enumerate().rev().filter(|(_, pair)| pair[0] == b'<' && b"/|tTrR".contains(&pair[1]));
    let angle = angles.map(|(at, _)| at).find_map(|at| Some((at, thoughts_tag(&text[at + 1..])?)));
    let triangle = text.rmatch_indices('◁').find_map(|(at, mark)| Some((at, thoughts_tag(&text[at + mark.len()..])?)));
    match angle.max(triangle) {
        Some((_, (closes, rest))) => closes.then_some(rest),
        None => Some(text),
    }
}

/// Whether the tag that `tag` begins with closes thoughts or opens them, and what follows it: `think>`, `/THINK >`, `|end_of_thought|>`.
fn thoughts_tag(tag: &str) -> Option<(bool, &str)> {
    if let Some(token) = tag.strip_prefix('|') {
        return ["end_of_thought|>", "begin_of_thought|>"].iter().find_map(|name| Some((name.starts_with('e'), token.strip_prefix(name)?)));
    }
    let name = tag.strip_prefix('/').unwrap_or(tag);
    let length = name.bytes().take_while(u8::is_ascii_alphabetic).count();
    if !THOUGHTS.iter().any(|thoughts| name[..length].eq_ignore_ascii_case(thoughts)) {
        return None;
    }
    let rest = name[length..].trim_start_matches(' ').strip_prefix(['>', '▷'])?;
    Some((name.len() < tag.len(), rest))
}

/// `text` without tokens at its end that are no text, and without the opening of another turn.
fn without_end_tokens(mut text: &str) -> &str {
    loop {
        text = text.trim_end();
        let token = END_TOKENS.iter().find_map(|token| text.strip_suffix(token)).or_else(|| without_token(text));
        let role = || ROLES.iter().find_map(|role| text.strip_suffix(role)).filter(|before| opens_a_turn(before));
        match token.or_else(role) {
            Some(shorter) => text = shorter,
            None => return text,
        }
    }
}

/// `text` without the `<|...|>` at its end.
fn without_token(text: &str) -> Option<&str> {
    let inside = text.strip_suffix("|>")?;
    inside.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_').strip_suffix("<|")
}

fn opens_a_turn(text: &str) -> bool {
    ["<|im_start|>", "<|start|>", "<|start_header_id|>", "<start_of_turn>"].iter().any(|token| text.ends_with(token))
}
