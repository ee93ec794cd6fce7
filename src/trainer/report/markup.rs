//! HTML by hand: every text that comes from a file is escaped, every element is closed, and nothing is fetched.

/// A text as HTML shows it.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A number with at most `digits` significant digits, and no zeros at its end.
pub fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if !value.is_finite() {
        return "-".into();
    }
    let exponent = value.abs().log10().floor() as i32;
    let trim = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if !(-4..9).contains(&exponent) {
        let text = format!("{value:.*e}", digits.saturating_sub(1));
        return match text.split_once('e') {
            Some((mantissa, power)) => format!("{}e{power}", trim(mantissa.to_owned())),
            None => text,
        };
    }
    trim(format!("{value:.*}", (digits as i32 - 1 - exponent).max(0) as usize))
}

/// A count with commas between its thousands.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A table that can be printed and shown: the first row of text is its head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it holds.
    pub caption: String,
    /// Columns' names.
    pub head: Vec<String>,
    /// Its cells; those of a row are as many as the columns.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Its cells as HTML.
    pub fn html(&self) -> String {
        let row = |cells: &[String], tag: &str, scope: &str| {
            let cells: String = cells.iter().map(|cell| format!("<{tag}{scope}>{}</{tag}>", escape(cell))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let rows: String = self.rows.iter().map(|cells| row(cells, "td", "")).collect();
        let head = row(&self.head, "th", " scope=\"col\"");
        format!(
            "<div class=\"wide\"><table><caption>{}</caption>\n<thead>{head}</thead>\n<tbody>{rows}</tbody></table></div>\n",
            escape(&self.caption)
        )
    }

    /// The same as aligned text.
    pub fn text(&self) -> String {
        let width = |cell: &str| cell.chars().count();
        let widths: Vec<usize> = (0..self.head.len())
            .map(|i| self.rows.iter().chain([&self.head]).filter_map(|row| row.get(i)).map(|cell| width(cell)).max().unwrap_or(0))
            .collect();
        let mut out = format!("{}\n", self.caption);
        for row in [&self.head].into_iter().chain(&self.rows) {
            let line: String = row.iter().zip(&widths).map(|(cell, w)| format!("  {cell}{}", " ".repeat(w - width(cell)))).collect();
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// A whole page.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<div id=\"tip\" hidden=\"hidden\"></div>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        escape(title)
    )
}

/// A section of a page, with an anchor.
pub fn section(title: &str, intro: &str, content: &str) -> String {
    let id: String = title.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let intro = if intro.is_empty() { String::new() } else { format!("<p>{}</p>\n", escape(intro)) };
    format!("<section id=\"{id}\">\n<h2>{}</h2>\n{intro}<div class=\"figures\">\n{content}</div>\n</section>\n", escape(title))
}

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
