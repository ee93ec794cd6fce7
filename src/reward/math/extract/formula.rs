//! Formulas between delimiters.

use super::plain::{has_digit, has_sentence, shortened};
use super::{ANSWER_BYTES, MARKS};

/// A formula within a line is no longer than this.
const INLINE_BYTES: usize = 2000;

/// A formula at the start of a text or within it.
pub(super) struct Formula<'t> {
    /// Where its delimiter closes.
    pub end: usize,
    /// What stands between the delimiters; nothing where line breaks make it none.
    pub inside: Option<&'t str>,
}

/// The formula that `text` starts with.
pub(super) fn starting(text: &str, line_breaks: bool) -> Option<Formula<'_>> {
    let block = |open: &str, close: &str| {
        let inside = text.strip_prefix(open)?;
        let length = shortened(inside, 2 * ANSWER_BYTES).find(close)?;
        let end = open.len() + length + close.len();
        let inside = &inside[..length];
        let broken = open == "\\(" && !line_breaks && inside.contains('\n');
        (!inside.trim().is_empty()).then_some(Formula { end, inside: (!broken).then_some(inside) })
    };
    match text.as_bytes() {
        [b'$', b'$', ..] => block("$$", "$$"),
        [b'\\', b'[', ..] => block("\\[", "\\]"),
        [b'\\', b'(', ..] => block("\\(", "\\)"),
        [b'$', ..] => {
            let close = dollar(shortened(&text[1..], INLINE_BYTES))?;
            let inside = &text[1..=close];
            is_inline(inside, &text[close + 2..]).then(|| {
                let broken = !line_breaks && inside.contains('\n');
                Formula { end: close + 2, inside: (!broken).then_some(inside) }
            })
        }
        [b'\\', b'b', ..] => {
            let name = text.strip_prefix("\\begin{")?;
            let close = format!("\\end{{{}}}", &name[..name.find('}').filter(|length| *length <= 20)?]);
            let end = shortened(text, 2 * ANSWER_BYTES).find(&close)? + close.len();
            Some(Formula { end, inside: Some(&text[..end]) })
        }
        _ => None,
    }
}

/// Where the first dollar sign of `text` is that is not escaped.
fn dollar(text: &str) -> Option<usize> {
    text.match_indices('$').map(|(at, _)| at).find(|at| !text[..*at].ends_with('\\'))
}

/// Whether `inside` two dollar signs is a formula rather than prose between two amounts of money.
fn is_inline(inside: &str, after: &str) -> bool {
    let blank = inside.trim().is_empty() || inside.contains("\n\n");
    let money = after.starts_with(|c: char| c.is_ascii_digit()) || inside.ends_with([' ', '(']) && !inside.starts_with([' ', '\n']);
    !blank && !money && !has_sentence(inside)
}

/// The last formula of `text`, delimiters that are never closed or opened aside.
pub(super) fn last(text: &str, line_breaks: bool) -> Option<Formula<'_>> {
    let (mut bracket, mut parenthesis, mut environment) = (None, None, None);
    for (at, _) in text.rmatch_indices('\\') {
        match text.as_bytes().get(at + 1) {
            Some(b']') => bracket = bracket.or(Some(at)),
            Some(b')') => parenthesis = parenthesis.or(Some(at)),
            Some(b'e') if text[at..].starts_with("\\end{") => environment = environment.or(Some(at)),
            _ => continue,
        }
        if bracket.is_some() && parenthesis.is_some() && environment.is_some() {
            break;
        }
    }
    let from = |start: usize| starting(&text[start..], line_breaks).map(|found| Formula { end: start + found.end, ..found });
    let block = |open: &str, close: Option<usize>| from(text[..close?].rfind(open)?);
    let environment = || {
        let name = &text[environment? + "\\end{".len()..];
        block(&format!("\\begin{{{}}}", &name[..shortened(name, 20).find('}')?]), environment)
    };
    let dollars = || {
        let mut rest = text;
        for _ in 0..MARKS {
            let close = rest.rfind('$')?;
            let head = &text[..close];
            let start = match head.strip_suffix('$') {
                Some(head) => head.rfind("$$")?,
                None => head.rfind('$')?,
            };
            if head.ends_with('\\') {
                rest = head;
                continue;
            }
            if let Some(found) = starting(&text[start..], line_breaks).filter(|found| start + found.end == close + 1) {
                return Some(Formula { end: close + 1, ..found });
            }
            rest = head;
        }
        None
    };
    [block("\\[", bracket), block("\\(", parenthesis), environment(), dollars()].into_iter().flatten().max_by_key(|found| found.end)
}

/// What the last row of aligned equations says; any other formula is one row.
pub(super) fn last_row(formula: &str) -> &str {
    let aligned = ["\\begin{align", "\\begin{eqnarray", "\\begin{gather", "\\begin{split"].iter().any(|name| formula.contains(name));
    if !aligned {
        return formula;
    }
    let rows = formula.rsplit_once("\\end{").map_or(formula, |(rows, _)| rows).trim().trim_end_matches("\\\\");
    let row = rows.rsplit_once("\\\\").map_or(rows, |(_, row)| row);
    row.rsplit_once('&').map_or(row, |(_, side)| side).trim_start_matches(['=', ' '])
}

/// Whether a formula is a number that a unit may follow.
pub(super) fn is_number(formula: &str) -> bool {
    let formula = formula.trim();
    let mut rest = formula;
    while let Some(at) = rest.find('\\') {
        rest = &rest[at + 1..];
        let length = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        if length > 0 && !["frac", "dfrac", "tfrac", "sqrt", "pi", "cdot", "times"].contains(&&rest[..length]) {
            return false;
        }
        if length == 0 && !rest.starts_with([',', '!', '$']) {
            return false;
        }
        rest = &rest[length..];
    }
    let letters = formula.split('\\').enumerate().any(|(i, part)| {
        let command = if i == 0 { 0 } else { part.bytes().take_while(u8::is_ascii_alphabetic).count() };
        part[command..].contains(|c: char| c.is_alphabetic() || "=<>&".contains(c))
    });
    !letters && has_digit(formula)
}
