//! Plots as inline SVG, each a figure with its title, axes, legend and, for those who do not see it, a table.
//!
//! Everything is drawn in a box of 480 by 286 that scales with the page. Runs may have many thousands of steps: lines keep the smallest
//! and the largest value of each stretch, so that no spike is lost; bars show means of stretches; tables show every n-th row, and say so.

use std::fmt::Write;

use super::markup::{escape, significant};
use super::read::Points;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 286.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 32.0;
const BOTTOM: f64 = HEIGHT - 46.0;
/// Points of a line, columns of bars and rows of a table: more cannot be seen.
const MOST_POINTS: usize = 800;
const MOST_COLUMNS: usize = 96;
const MOST_ROWS: usize = 200;
/// Colours of the style sheet.
const COLOURS: usize = 8;

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// As the legend has it.
    pub name: String,
    /// Its points, x ascending.
    pub points: Points,
    /// (x, lower, upper) around it; may be empty.
    pub band: Vec<(f64, f64, f64)>,
}

impl Series {
    /// A line without a band.
    pub fn new(name: impl Into<String>, points: Points) -> Self {
        Series { name: name.into(), points, band: Vec::new() }
    }
}

/// What every figure has.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// Title.
    pub title: String,
    /// A sentence below it.
    pub about: String,
    /// Of the horizontal axis.
    pub x: String,
    /// Of the vertical axis.
    pub y: String,
}

impl Labels {
    /// Labels of a figure over steps.
    pub fn over_steps(title: &str, about: &str, y: &str) -> Self {
        Labels { title: title.to_owned(), about: about.to_owned(), x: "step".to_owned(), y: y.to_owned() }
    }
}

/// What the vertical axis spans at least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Span {
    /// What the data span.
    #[default]
    Data,
    /// And zero.
    Zero,
    /// From 0 to 1.
    Unit,
}

/// A scale from data to the box.
#[derive(Clone, Copy)]
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    /// Spans the values; one value alone gets room around it.
    fn over(values: impl IntoIterator<Item = f64>) -> Self {
        let (from, to) =
            values.into_iter().filter(|v| v.is_finite()).fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        match (from <= to, from < to) {
            (false, _) => Scale { from: 0.0, to: 1.0 },
            (true, true) => Scale { from, to },
            (true, false) if from == 0.0 => Scale { from: 0.0, to: 1.0 },
            (true, false) => Scale { from: from - from.abs() / 2.0, to: from + from.abs() / 2.0 },
        }
    }

    fn at(self, value: f64, low: f64, high: f64) -> f64 {
        low + (value - self.from) / (self.to - self.from) * (high - low)
    }

    /// The same out to the next round numbers, so that no line runs along the edge.
    fn rounded(self) -> Self {
        let (_, step) = self.ticks(4.0);
        Scale { from: (self.from / step + 1e-9).floor() * step, to: (self.to / step - 1e-9).ceil() * step }
    }

    /// Round numbers within, about `wanted`, and their distance.
    fn ticks(self, wanted: f64) -> (Vec<f64>, f64) {
        let rough = (self.to - self.from) / wanted;
        let power = 10f64.powf(rough.log10().floor());
        let step = power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power >= rough * 0.999).unwrap_or(10.0);
        let first = (self.from / step - 1e-9).ceil();
        let ticks = (0..50).map(|i| (first + f64::from(i)) * step).take_while(|v| *v <= self.to + 1e-9 * step).collect();
        (ticks, step)
    }
}

/// A tick's label.
fn tick(value: f64, step: f64) -> String {
    let value = if value.abs() < step * 1e-6 { 0.0 } else { value };
    if value != 0.0 && step >= 1000.0 {
        return format!("{}k", significant(value / 1000.0, 6));
    }
    if value != 0.0 && step < 1e-3 {
        return significant(value, 3);
    }
    format!("{value:.*}", (-step.log10().floor()).max(0.0) as usize)
}

/// The frame of a figure: axes, gridlines, labels; `content` is drawn above the grid. `bins` names the rows of a heat strip.
fn frame(labels: &Labels, x: Scale, y: Scale, bins: Option<&[String]>, content: &str) -> String {
    let mut out = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\" data-scale=\"{LEFT} {RIGHT} {} {} {WIDTH}\">\n",
        escape(&format!("{}: {} over {}; the table below has the numbers", labels.title, labels.y, labels.x)),
        x.from,
        x.to
    );
    match bins {
        Some(bins) => {
            for (i, name) in bins.iter().enumerate() {
                let at = BOTTOM - (i as f64 + 0.5) / bins.len() as f64 * (BOTTOM - TOP);
                let _ = writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 6.0, at + 4.0, escape(name));
            }
        }
        None => {
            let (ticks, step) = y.ticks(4.0);
            for value in ticks {
                let at = y.at(value, BOTTOM, TOP);
                let _ = writeln!(
                    out,
                    "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" /><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    LEFT - 6.0,
                    at + 4.0,
                    tick(value, step)
                );
            }
        }
    }
    let (ticks, step) = x.ticks(4.0);
    for value in ticks {
        let at = x.at(value, LEFT, RIGHT);
        let anchor = if at > RIGHT - 12.0 { "end" } else { "middle" };
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{BOTTOM}\" y2=\"{}\" /><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            BOTTOM + 4.0,
            BOTTOM + 19.0,
            tick(value, step)
        );
    }
    let _ = write!(
        out,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{BOTTOM}\" y2=\"{BOTTOM}\" />\n\
         <text x=\"4\" y=\"14\">{}</text>\n<text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
         {content}<line class=\"cross\" x1=\"0\" x2=\"0\" y1=\"{TOP}\" y2=\"{BOTTOM}\" />\n</svg>\n",
        escape(&labels.y),
        HEIGHT - 6.0,
        escape(&labels.x)
    );
    out
}

/// A figure around a drawing; `columns` are the table's beside x, `rows` its x and cells.
fn figure(labels: &Labels, legend: &[String], drawing: &str, columns: &[String], rows: &[(f64, Vec<String>)]) -> String {
    let every = rows.len().div_ceil(MOST_ROWS).max(1);
    let mut body = String::new();
    for (i, (x, cells)) in rows.iter().enumerate() {
        // The last row is what most readers look for.
        if i % every == 0 || i + 1 == rows.len() {
            let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
            let _ = writeln!(body, "<tr data-x=\"{x}\"><td>{}</td>{cells}</tr>", significant(*x, 6));
        }
    }
    let head: String = [&labels.x].into_iter().chain(columns).map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect();
    // A line that is called like its figure needs no legend.
    let legend = match legend {
        [] => String::new(),
        [only] if *only == labels.title => String::new(),
        _ => {
            let entry = |(i, name): (usize, &String)| {
                let (colour, dash) = style(i);
                format!(
                    "<li><svg viewBox=\"0 0 18 10\" aria-hidden=\"true\"><line x1=\"0\" x2=\"18\" y1=\"5\" y2=\"5\" stroke=\"{colour}\" stroke-width=\"4\"{dash} /></svg>{}</li>",
                    escape(name)
                )
            };
            format!("<ul class=\"legend\">{}</ul>\n", legend.iter().enumerate().map(entry).collect::<String>())
        }
    };
    let summary = if every > 1 { format!("Table (one row in {every} of {})", rows.len()) } else { "Table".to_owned() };
    format!(
        "<figure>\n<figcaption><h3>{}</h3><p>{}</p></figcaption>\n{legend}{drawing}<details><summary>{summary}</summary><div class=\"wide\"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div></details>\n</figure>\n",
        escape(&labels.title),
        escape(&labels.about)
    )
}

/// Colour and dashes of series `i`.
fn style(i: usize) -> (String, &'static str) {
    (format!("var(--s{})", i % COLOURS), if i < COLOURS { "" } else { " stroke-dasharray=\"5 3\"" })
}

/// The points with, of every stretch, only the lowest and the highest.
fn thinned(points: &Points) -> Points {
    if points.len() <= MOST_POINTS {
        return points.clone();
    }
    let mut out = Vec::with_capacity(MOST_POINTS + 2);
    for part in points.chunks(points.len().div_ceil(MOST_POINTS / 2)) {
        let by = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (Some(low), Some(high)) = (part.iter().min_by(by), part.iter().max_by(by)) else { continue };
        out.push(if low.0 <= high.0 { *low } else { *high });
        if low.0 != high.0 {
            out.push(if low.0 <= high.0 { *high } else { *low });
        }
    }
    out
}

fn path(points: impl IntoIterator<Item = (f64, f64)>, x: Scale, y: Scale) -> String {
    let mut out = String::new();
    for (px, py) in points {
        let _ = write!(out, "{}{:.1} {:.1}", if out.is_empty() { "M" } else { "L" }, x.at(px, LEFT, RIGHT), y.at(py, BOTTOM, TOP));
    }
    out
}

/// Lines over an axis. `levels` are drawn across.
pub fn lines(labels: &Labels, series: &[Series], span: Span, levels: &[f64]) -> String {
    let x = Scale::over(series.iter().flat_map(|s| s.points.iter().map(|p| p.0)));
    let values = series.iter().flat_map(|s| s.points.iter().map(|p| p.1).chain(s.band.iter().flat_map(|b| [b.1, b.2])));
    let more: &[f64] = match span {
        Span::Data => &[],
        Span::Zero => &[0.0],
        Span::Unit => &[0.0, 1.0],
    };
    let y = Scale::over(values.chain(more.iter().copied())).rounded();
    let mut content = String::new();
    for level in levels.iter().filter(|v| (y.from..=y.to).contains(*v)) {
        let at = y.at(*level, BOTTOM, TOP);
        let _ = writeln!(content, "<line class=\"level\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" />");
    }
    for (i, s) in series.iter().enumerate().filter(|(_, s)| !s.band.is_empty()) {
        let there = s.band.iter().map(|b| (b.0, b.2)).chain(s.band.iter().rev().map(|b| (b.0, b.1)));
        let _ = writeln!(content, "<path class=\"band\" fill=\"{}\" d=\"{}Z\" />", style(i).0, path(there, x, y));
    }
    for (i, s) in series.iter().enumerate() {
        let (colour, dash) = style(i);
        match s.points.as_slice() {
            [] => {}
            [(px, py)] => {
                let _ = writeln!(
                    content,
                    "<circle fill=\"{colour}\" r=\"3.5\" cx=\"{:.1}\" cy=\"{:.1}\" />",
                    x.at(*px, LEFT, RIGHT),
                    y.at(*py, BOTTOM, TOP)
                );
            }
            _ => {
                let _ = writeln!(content, "<path class=\"line\" stroke=\"{colour}\"{dash} d=\"{}\" />", path(thinned(&s.points), x, y));
            }
        }
    }
    let names: Vec<String> = series.iter().map(|s| s.name.clone()).collect();
    figure(labels, &names, &frame(labels, x, y, None, &content), &names, &rows_of(series))
}

/// The table of some series: a row for every x that one of them has.
fn rows_of(series: &[Series]) -> Vec<(f64, Vec<String>)> {
    let mut xs: Vec<f64> = series.iter().flat_map(|s| s.points.iter().map(|p| p.0)).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let mut next = vec![0; series.len()];
    let cell = |s: &Series, at: &mut usize, x: f64| match s.points.get(*at) {
        Some(&(px, value)) if px == x => {
            // The last of several at one x.
            while s.points.get(*at).is_some_and(|p| p.0 == x) {
                *at += 1;
            }
            significant(value, 5)
        }
        _ => String::new(),
    };
    xs.iter().map(|&x| (x, series.iter().zip(&mut next).map(|(s, at)| cell(s, at, x)).collect())).collect()
}

/// Columns of values over steps, cut into stretches whose means are shown: (first, last, means).
fn stretches(columns: &[(f64, Vec<f64>)]) -> Vec<(f64, f64, Vec<f64>)> {
    let per = columns.len().div_ceil(MOST_COLUMNS).max(1);
    let mean = |part: &[(f64, Vec<f64>)]| {
        let n = part.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
        (0..n).map(|i| part.iter().filter_map(|(_, values)| values.get(i)).sum::<f64>() / part.len() as f64).collect()
    };
    columns.chunks(per).filter_map(|part| Some((part.first()?.0, part.last()?.0, mean(part)))).collect()
}

/// Horizontal place of column `i` of `n`, and its width.
fn column(i: usize, n: usize) -> (f64, f64) {
    let width = (RIGHT - LEFT) / n as f64;
    (LEFT + i as f64 * width, width)
}

/// The scale of columns: each is as wide as its steps, and its middle is its place.
fn column_scale(parts: &[(f64, f64, Vec<f64>)]) -> Scale {
    let (first, last) = (parts.first().map_or(0.0, |p| p.0), parts.last().map_or(1.0, |p| p.1));
    let half = if parts.len() > 1 { (last - first) / (parts.len() - 1) as f64 / 2.0 } else { 0.5 };
    Scale { from: first - half, to: last + half }
}

/// Stacked bars: `columns` has for each step a value of each part.
pub fn stacked(labels: &Labels, parts: &[String], columns: &[(f64, Vec<f64>)]) -> String {
    let shown = stretches(columns);
    let (x, y) = (column_scale(&shown), Scale::over(shown.iter().map(|(_, _, v)| v.iter().sum()).chain([0.0])).rounded());
    let (mut content, mut rows) = (String::new(), Vec::new());
    for (i, (first, last, values)) in shown.iter().enumerate() {
        let (left, width) = column(i, shown.len());
        let mut sum = 0.0;
        for (part, value) in values.iter().enumerate().filter(|(_, v)| **v > 0.0) {
            let (top, bottom) = (y.at(sum + value, BOTTOM, TOP), y.at(sum, BOTTOM, TOP));
            sum += value;
            let _ = writeln!(
                content,
                "<rect class=\"bar\" fill=\"{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" />",
                style(part).0,
                bottom - top
            );
        }
        rows.push(((first + last) / 2.0, values.iter().map(|v| significant(*v, 4)).collect()));
    }
    figure(labels, parts, &frame(labels, x, y, None, &content), parts, &rows)
}

/// A heat strip: `columns` has for each step a count of each bin; a cell is as strong as its share of the column.
pub fn heat(labels: &Labels, bins: &[String], columns: &[(f64, Vec<f64>)]) -> String {
    let shares: Vec<(f64, Vec<f64>)> = columns
        .iter()
        .map(|(x, counts)| (*x, counts, counts.iter().sum::<f64>()))
        .map(|(x, counts, sum)| (x, counts.iter().map(|c| if sum > 0.0 { c / sum } else { 0.0 }).collect()))
        .collect();
    let shown = stretches(&shares);
    let x = column_scale(&shown);
    let (mut content, mut rows) = (String::new(), Vec::new());
    let height = (BOTTOM - TOP) / bins.len() as f64;
    for (i, (first, last, values)) in shown.iter().enumerate() {
        let (left, width) = column(i, shown.len());
        for (bin, share) in values.iter().enumerate().filter(|(bin, share)| *bin < bins.len() && **share > 0.0) {
            let _ = writeln!(
                content,
                "<rect fill=\"var(--s0)\" fill-opacity=\"{:.3}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" />",
                0.06 + 0.94 * share,
                BOTTOM - (bin as f64 + 1.0) * height + 1.0,
                height - 2.0
            );
        }
        rows.push(((first + last) / 2.0, values.iter().map(|v| format!("{:.1} %", v * 100.0)).collect()));
    }
    figure(labels, &[], &frame(labels, x, Scale { from: 0.0, to: 1.0 }, Some(bins), &content), bins, &rows)
}
