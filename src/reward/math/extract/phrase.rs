//! "The answer is ..." and its like.

use std::borrow::Cow;

use super::words::{ADDITIONS, ADJECTIVES, FILLERS, LATIN, OTHERS, REMARKS, TURNS, VERBS};
use super::{ANSWER_BYTES, Held, MARKS, boxed, clean, formula, plain};

/// The bytes that names are found by.
const FINDS: [bool; 256] = {
    let mut finds = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        finds[byte] = byte >= 0xc3 || matches!(byte as u8, b'w' | b'W' | b'p' | b'P' | b'j' | b'J' | b':');
        byte += 1;
    }
    finds
};
/// What the last phrase of `text` says, and where that ends or stands. Remarks ("the answer is correct") are no phrases.
pub(super) fn last(text: &str, line_breaks: bool) -> Option<(Held<'_>, usize)> {
    let bytes = text.as_bytes();
    let names = (0..bytes.len()).rev().filter(|at| FINDS[usize::from(bytes[*at])]).filter_map(|at| name_at(text, bytes, at));
    names.take(MARKS).find_map(|name| {
        let start = said_from(text, &name)?;
        let rest = content(&text[start..]);
        let start = text.len() - rest.len();
        let remark = REMARKS.iter().any(|remark| word(rest, remark).is_some());
        if remark {
            return None;
        }
        let list = if text[..start].ends_with('\n') { items(rest) } else { None };
        match list.or_else(|| sentence(rest, line_breaks)) {
            Some((held, length)) => Some((Held::Text(held), start + length)),
            None => Some((Held::Nothing("an empty answer"), start)),
        }
    })
}

/// Where a name of the answer starts and ends, and how it was written.
struct Name {
    start: usize,
    end: usize,
    kind: Kind,
}

#[derive(PartialEq)]
enum Kind {
    /// A word of the Latin alphabet.
    Latin,
    /// A word of another one, where a verb may be missing.
    Other,
    /// "A:" at the start of a line; the colon belongs to it.
    Letter,
}

/// The name that is found by the byte at `at`, a rare one in it.
fn name_at(text: &str, bytes: &[u8], at: usize) -> Option<Name> {
    match bytes[at] {
        b'w' | b'W' | b'p' | b'P' | b'j' | b'J' if bytes.get(at + 1).is_some_and(|next| b"eouiEOUI".contains(next)) => {
            LATIN.iter().find_map(|(before, after)| {
                let start = at.checked_sub(before.len())?;
                let end = at + after.len();
                let same =
                    |from: usize, to: usize, word: &str| bytes.get(from..to).is_some_and(|part| part.eq_ignore_ascii_case(word.as_bytes()));
                (same(start, at, before) && same(at, end, after)).then_some(Name { start, end, kind: Kind::Latin })
            })
        }
        b':' => {
            let start = at.checked_sub(1).filter(|start| bytes[*start] == b'A')?;
            let marked = bytes[..start].iter().rev().take_while(|b| matches!(b, b' ' | b'\t' | b'*' | b'#' | b'>' | b'_')).count();
            if start != marked && bytes[start - marked - 1] != b'\n' {
                return None;
            }
            // "A: 12\nB: 15" are choices.
            let next = text[at..].split_once('\n').map_or("", |(_, below)| below.trim_start());
            (!next.starts_with("B:")).then_some(Name { start, end: at + 1, kind: Kind::Letter })
        }
        0xc3.. if text.is_char_boundary(at) => {
            let name = OTHERS.iter().find(|name| bytes[at..].starts_with(name.as_bytes()))?;
            Some(Name { start: at, end: at + name.len(), kind: Kind::Other })
        }
        _ => None,
    }
}

/// `text` behind `word`, which must not go on there.
fn word<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let same = text.as_bytes().get(..word.len())?.eq_ignore_ascii_case(word.as_bytes());
    let rest = if same { text.get(word.len()..)? } else { return None };
    let spaced = word.ends_with(|c: char| c.is_alphabetic() && c < '\u{900}');
    (!spaced || !rest.starts_with(char::is_alphanumeric)).then_some(rest)
}

/// Where what `name` announces begins, if it announces anything.
fn said_from(text: &str, name: &Name) -> Option<usize> {
    let marks = [' ', '\t', '*', '_', '`', '"', '”', '}', ')', '\u{a0}'];
    let place = |rest: &str| text.len() - rest.len();
    if name.kind == Kind::Letter {
        return Some(name.end);
    }
    let mut rest = &text[name.end..];
    if name.kind == Kind::Latin {
        rest = rest.strip_prefix(['s', 'S']).unwrap_or(rest);
        rest = rest.strip_prefix("en").unwrap_or(rest);
    }
    let bare = rest.trim_start_matches(marks);
    if bare.len() == rest.len() && name.kind == Kind::Latin && rest.starts_with(char::is_alphanumeric) {
        return None;
    }
    rest = bare;
    if let Some(after) = ADJECTIVES.iter().find_map(|adjective| word(rest, adjective)) {
        rest = after.trim_start_matches(marks);
    }
    if let Some(after) = VERBS.iter().find_map(|verb| word(rest, verb)) {
        return Some(place(without_fillers(after)));
    }
    // "the answer to the question is"
    if ["to ", "of ", "for "].iter().any(|word| rest.starts_with(word)) {
        let line = rest.lines().next().unwrap_or("");
        let at = [" is ", " is:", " are "].iter().filter_map(|verb| line.find(verb).map(|at| at + verb.len())).min();
        let at = at.filter(|at| *at <= 120 && !line[..*at].contains(". "))?;
        return Some(place(without_fillers(&rest[at..])));
    }
    if let Some(after) = rest.strip_prefix("– ").or_else(|| rest.strip_prefix("- ")) {
        return Some(place(after));
    }
    let line = text[..name.start].rfind('\n').map_or(0, |at| at + 1);
    let opening = &text[line..name.start];
    let opening = opening.trim_matches([' ', '\t', '*', '#', '>', '_']);
    let alone = opening.is_empty()
        || ["final", "the final", "the", "correct", "my", "最终", "最終"].iter().any(|word| opening.eq_ignore_ascii_case(word));
    // A heading of its own: "**Final Answer**\n\n42".
    if alone && (rest.starts_with(['\n', '\r']) || formula::starting(rest, true).is_some()) {
        return Some(place(rest));
    }
    let number = rest.starts_with(|c: char| c.is_ascii_digit() || "-−$".contains(c));
    let verb_before = text[..name.start].ends_with("ist die ");
    (number && (name.kind == Kind::Other || verb_before)).then(|| place(rest))
}

fn without_fillers(mut rest: &str) -> &str {
    loop {
        rest = rest.trim_start_matches([' ', '\t', '*', '_', ':', '：', '、', '，', ',', '\u{a0}']);
        match FILLERS.iter().find_map(|filler| word(rest, filler)) {
            Some(after) => rest = after.strip_prefix(',').unwrap_or(after),
            None => return rest,
        }
    }
}

/// `rest` from the answer's first character on: on the same line or below.
fn content(rest: &str) -> &str {
    let marks = [' ', '\t', '*', '_', ':', '：', '}', '\u{a0}', '\u{200b}', '>'];
    let same_line = rest.trim_start_matches(marks);
    if !same_line.starts_with(['\n', '\r']) {
        return same_line;
    }
    let below = same_line.trim_start();
    // A fence of Markdown.
    let below = below.strip_prefix("```").and_then(|fence| fence.split_once('\n')).map_or(below, |(_, below)| below);
    if item(below).is_some() { below } else { below.trim_start_matches(marks) }
}

/// What the item of a list says that `line` is.
fn item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = if numbered.len() < line.len() { numbered.strip_prefix(". ").or_else(|| numbered.strip_prefix(") ")) } else { None };
    let said = numbered.or_else(|| ["- ", "* ", "• "].iter().find_map(|bullet| line.strip_prefix(bullet)))?;
    (!said.trim().is_empty()).then_some(said)
}

/// The list that `rest` starts with, an item a line.
fn items(rest: &str) -> Option<(Cow<'_, str>, usize)> {
    let first = rest.starts_with(|c: char| !c.is_ascii_digit()) || rest.starts_with("1.") || rest.starts_with("1)");
    if !first {
        return None;
    }
    let mut length = 0;
    let mut said = Vec::new();
    for line in rest.split_inclusive('\n').take(MARKS) {
        match item(line) {
            Some(item) => said.push(clean::settle(item)),
            None if line.trim().is_empty() => {}
            None => break,
        }
        length += line.len();
    }
    (!said.is_empty()).then(|| (said.join(", ").into(), length))
}

/// The answer that `rest` starts with, as written, and its length. A formula is one by itself, else it goes up to the end of the sentence.
fn sentence(rest: &str, line_breaks: bool) -> Option<(Cow<'_, str>, usize)> {
    let rest = plain::shortened(rest, 2 * ANSWER_BYTES);
    if let Some(found) = formulas(rest, line_breaks) {
        return Some(found);
    }
    let line = rest.split('\n').next().unwrap_or("");
    for (open, close) in [('\'', '\''), ('"', '"'), ('“', '”'), ('`', '`'), ('「', '」'), ('«', '»')] {
        let inside = line.strip_prefix(open).and_then(|quoted| Some(&quoted[..quoted.find(close)?]));
        if let Some(inside) = inside.filter(|inside| !inside.trim().is_empty()) {
            return Some((inside.into(), open.len_utf8() + inside.len() + close.len_utf8()));
        }
    }
    let end = sentence_end(line, line_breaks);
    let mut said = &line[..end];
    for turn in &TURNS {
        if let Some(at) = said.find(turn).filter(|at| !said[..*at].trim().is_empty()) {
            // "B, but also C" is not B.
            let adds = ADDITIONS.iter().any(|addition| word(&said[at + turn.len()..], addition).is_some());
            if *turn == " but " && adds {
                continue;
            }
            said = &said[..at];
        }
    }
    // "The farmer has **12** cows."
    if let Some((_, bold)) = said.split_once("**")
        && let Some((bold, rest)) = bold.split_once("**")
        && plain::is_sentence(said)
        && !bold.trim().is_empty()
        && !rest.contains("**")
    {
        return Some((bold.into(), said.len()));
    }
    let nothing = said.trim_matches([' ', '\t', '\r', '.', '*', '$', ':', ',']).is_empty();
    (!nothing).then_some((said.into(), said.len()))
}

/// The formula that `rest` starts with, those that are joined to it, and a unit. Not where a formula is part of a larger one ("$x$ = 5").
fn formulas(rest: &str, line_breaks: bool) -> Option<(Cow<'_, str>, usize)> {
    let first = formula::starting(rest, line_breaks)?;
    let mut list = vec![first.inside.filter(|inside| !inside.trim().is_empty())?];
    let mut end = first.end;
    while list.len() < MARKS {
        let after = &rest[end..];
        let Some(next) = after.find('$').into_iter().chain(after.find("\\(")).min().filter(|at| *at <= 100 && after.is_char_boundary(*at))
        else {
            break;
        };
        let Some(formula) = formula::starting(&after[next..], line_breaks) else { break };
        let Some(inside) = formula.inside.filter(|_| boxed::joins(&after[..next], 0)) else { break };
        list.push(inside);
        end += next + formula.end;
    }
    let after = rest[end..].trim_start_matches([' ', '*']);
    if list.len() > 1 {
        let list: Vec<_> = list.into_iter().map(|inside| inside.trim().trim_end_matches([',', '.', ';'])).collect();
        return Some((list.join(", ").into(), end));
    }
    let goes_on = after.starts_with(['=', '<', '>', '≤', '≥', '+', '-', '−', '^', '/', '×', '±', '∈'])
        && !after.starts_with("- ")
        && !after.starts_with("</");
    if goes_on {
        return None;
    }
    let unit = plain::unit(&rest[end..]);
    if unit > 0 && formula::is_number(list[0]) {
        return Some((format!("{}{}", list[0].trim().trim_end_matches(['.', ',']), &rest[end..end + unit]).into(), end + unit));
    }
    Some((list[0].into(), end))
}

/// Where the sentence that `line` starts with ends.
fn sentence_end(line: &str, line_breaks: bool) -> usize {
    let mut skip = 0;
    let mut delimiters = true;
    let mut bold = false;
    for (at, character) in line.char_indices() {
        if at < skip {
            continue;
        }
        let after = &line[at + character.len_utf8()..];
        let next = after.chars().next();
        let ends = next.is_none_or(|c| c.is_whitespace() || "*\"'”’<)_$".contains(c));
        match character {
            '$' | '\\' if delimiters => match formula::starting(&line[at..], line_breaks) {
                Some(formula) => skip = at + formula.end,
                None => delimiters = character == '\\' && !after.starts_with(['(', '[']),
            },
            '.' if ends && !line[..at].ends_with("..") => return at,
            '?' if ends => return at,
            // At the end of the text it may be a factorial.
            '!' if ends && at > 0 && after.trim_start().starts_with(char::is_uppercase) => return at,
            '。' | '！' | '？' | '।' => return at,
            '*' if after.starts_with('*') => {
                skip = at + 2;
                let opens = after[1..].starts_with(|c: char| c.is_alphanumeric() || "($\\-−".contains(c));
                if at > 0 && !opens && !bold {
                    return at;
                }
                bold = opens;
            }
            '<' if after.starts_with(['|', '/']) => return at,
            '#' if after.starts_with("###") => return at,
            _ => {}
        }
    }
    line.len()
}
