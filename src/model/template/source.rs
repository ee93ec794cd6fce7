//! A template's text, made ready for the template engine.
//!
//! `{% generation %}` is a tag of the transformers library. Here it becomes a filter block around a scope of its own, with the tag's
//! whitespace marks where they were, so that it trims what it trims there. Everything else, and every line's number, stays.

/// The text with `{% generation %} ... {% endgeneration %}` read as a block of filter `filter`, and with Unix newlines.
pub(super) fn with_generation_as(source: &str, filter: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let mut raw = false;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match rest.as_bytes().get(1) {
            Some(b'#') if !raw => rest.find("#}").map_or(rest.len(), |end| end + 2),
            Some(b'{') if !raw => tag_length(rest, "}}"),
            Some(b'%') if raw => {
                raw = name_of(rest).is_none_or(|(_, name, _)| name != "endraw");
                2
            }
            Some(b'%') => tag_length(rest, "%}"),
            _ => 1,
        };
        let tag = &rest[..length];
        match name_of(tag) {
            Some((left, "generation", right)) if !raw => out.push_str(&format!("{{%{left} filter {filter} %}}{{% with {right}%}}")),
            Some((left, "endgeneration", right)) if !raw => out.push_str(&format!("{{%{left} endwith %}}{{% endfilter {right}%}}")),
            Some((left, "raw", right)) => {
                raw = true;
                // Jinja keeps the newline behind this one tag.
                out.push_str(&format!("{{%{left} raw {}%}}", if right.is_empty() { "+" } else { right }));
            }
            _ => out.push_str(tag),
        }
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}

/// Bytes of the tag that `rest` begins with: its end is not looked for inside string literals.
fn tag_length(rest: &str, end: &str) -> usize {
    let mut quote = None;
    let mut chars = rest.char_indices().skip(2);
    while let Some((at, c)) = chars.next() {
        match quote {
            Some(_) if c == '\\' => {
                chars.next();
            }
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if rest[at..].starts_with(end) => return at + end.len(),
            None => {}
        }
    }
    rest.len()
}

/// A tag that is nothing but a name: its whitespace marks and the name.
fn name_of(tag: &str) -> Option<(&str, &str, &str)> {
    let inside = tag.strip_prefix("{%")?;
    let inside = &inside[..inside.find("%}")?];
    let name = inside.trim_start_matches(['-', '+']);
    let (left, name) = inside.split_at(inside.len() - name.len());
    let bare = name.trim_end_matches(['-', '+']);
    let (bare, right) = name.split_at(bare.len());
    Some((left, bare.trim(), right))
}
