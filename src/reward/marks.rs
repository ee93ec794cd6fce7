//! What stands inside `\boxed{...}`.

/// So many boxes are looked at, from the end: a text that repeats itself costs no more than reading it.
pub(super) const MARKS: usize = 16;
/// A longer box holds no answer.
const BOX_BYTES: usize = 4096;

/// What stands inside every `\boxed{...}` and where, the last one first.
pub(super) fn boxes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let boxes = text.rmatch_indices("\\boxed").take(MARKS);
    boxes.filter_map(|(at, tag)| Some((at, braced(text[at + tag.len()..].trim_start(), BOX_BYTES)?.0)))
}

/// What stands inside the braces that `text` starts with, at most `limit` bytes, and what follows them.
pub(super) fn braced(text: &str, limit: usize) -> Option<(&str, &str)> {
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
