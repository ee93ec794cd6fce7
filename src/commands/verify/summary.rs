//! What the verdicts of a file sum up to, for people.

use std::fmt;
use std::time::Duration;

use super::rows::Judged;
use crate::reward::Ruling;

/// So many rows that are not correct are shown.
const NOT_CORRECT: usize = 10;
/// So many rows whose verdict is not what they expect are shown.
const DISAGREEMENTS: usize = 100;

/// Counts and times.
#[derive(Clone, Debug)]
pub struct Summary {
    name: String,
    threads: usize,
    /// How long all of it took.
    pub took: Duration,
    /// Rows by verdict, in the order of [`Ruling::ALL`].
    pub verdicts: [u64; 5],
    /// Rows whose verdict is what they expect.
    pub agreed: u64,
    /// Rows whose verdict is not what they expect.
    pub disagreed: u64,
    nanoseconds: Vec<u64>,
    slowest: Option<(u64, usize)>,
    not_correct: Vec<Judged>,
    disagreements: Vec<Judged>,
}

impl Summary {
    /// Nothing yet, of the file `name`.
    pub fn new(name: &str, threads: usize) -> Self {
        Summary {
            name: name.to_owned(),
            threads,
            took: Duration::ZERO,
            verdicts: [0; 5],
            agreed: 0,
            disagreed: 0,
            nanoseconds: Vec::new(),
            slowest: None,
            not_correct: Vec::new(),
            disagreements: Vec::new(),
        }
    }

    /// Counts a row.
    pub fn add(&mut self, row: Judged) {
        let ruling = row.answer.ruling;
        for (count, of) in self.verdicts.iter_mut().zip(Ruling::ALL) {
            *count += u64::from(of == ruling);
        }
        let took = u64::try_from(row.answer.took.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.push(took);
        if self.slowest.is_none_or(|(slowest, _)| took > slowest) {
            self.slowest = Some((took, row.line));
        }
        match row.expected.map(|expected| expected == (ruling == Ruling::Correct)) {
            None => {}
            Some(true) => self.agreed += 1,
            Some(false) => {
                self.disagreed += 1;
                if self.disagreements.len() < DISAGREEMENTS {
                    self.disagreements.push(row.clone());
                }
            }
        }
        if ruling != Ruling::Correct && self.not_correct.len() < NOT_CORRECT {
            self.not_correct.push(row);
        }
    }

    /// The time that so many percent of the rows stay within, in microseconds.
    fn percentile(sorted: &[u64], percent: usize) -> f64 {
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).map_or(0.0, |nanoseconds| *nanoseconds as f64 / 1e3)
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: u64 = self.verdicts.iter().sum();
        let seconds = self.took.as_secs_f64().max(1e-6);
        writeln!(
            f,
            "{}: {rows} row{} in {seconds:.2} s on {} thread{}, {:.0} verdicts per second",
            self.name,
            plural(rows),
            self.threads,
            plural(self.threads as u64),
            rows as f64 / seconds
        )?;
        for (count, ruling) in self.verdicts.iter().zip(Ruling::ALL) {
            writeln!(f, "  {:<10}{count:>9}{:>7.1}%", ruling.name(), 100.0 * *count as f64 / rows.max(1) as f64)?;
        }
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        let (slowest, line) = self.slowest.unwrap_or_default();
        write!(
            f,
            "microseconds: p50 {:.1}, p99 {:.1}, max {:.1} (line {line})",
            Self::percentile(&sorted, 50),
            Self::percentile(&sorted, 99),
            slowest as f64 / 1e3
        )?;
        let told = self.agreed + self.disagreed;
        if told > 0 {
            write!(f, "\nexpected: {} of {told} agree ({:.2}%)", self.agreed, 100.0 * self.agreed as f64 / told as f64)?;
            if rows > told {
                write!(f, "; {} row{} without", rows - told, plural(rows - told))?;
            }
            list(f, "not as expected", &self.disagreements, self.disagreed)?;
        }
        // The disagreements are what matters where there is an expectation for every row.
        if told < rows {
            list(f, "not correct", &self.not_correct, rows - self.verdicts[0])?;
        }
        Ok(())
    }
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, rows: &[Judged], all: u64) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let first = if (rows.len() as u64) < all { format!("the first {} of {all}", rows.len()) } else { all.to_string() };
    write!(f, "\n\n{title} ({first}):")?;
    for row in rows {
        let id = if row.has_id { format!("  {}", row.id.as_str().map_or_else(|| row.id.to_string(), short)) } else { String::new() };
        let extracted = row.answer.extracted.as_deref().map_or_else(|| "nothing".to_owned(), |text| format!("{:?}", short(text)));
        let rule = short(&row.answer.rule);
        write!(f, "\n  line {}{id}  {} ({rule})  {extracted}, gold {:?}", row.line, row.answer.ruling.name(), row.gold)?;
        if let Some(expected) = row.expected {
            write!(f, ", expected {}", if expected { "correct" } else { "not correct" })?;
        }
    }
    Ok(())
}

fn short(text: &str) -> String {
    if text.chars().count() <= 80 { text.to_owned() } else { text.chars().take(77).chain("...".chars()).collect() }
}
