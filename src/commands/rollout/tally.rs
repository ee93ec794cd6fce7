//! What a job's groups sum up to, for people.

use std::fmt::Write;
use std::time::Duration;

use serde::Deserialize;

/// The parts of a group that are counted.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct GroupHead {
    /// The prompt's id.
    pub prompt_id: String,
    /// `resolved`, `exhausted` or `failed`.
    pub status: String,
    /// Whether the kept rewards differ.
    pub signal: bool,
    /// Counts.
    pub stats: HeadStats,
    /// Waste.
    pub timing: HeadTiming,
}

/// Counts of a group.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct HeadStats {
    /// Samples below the exit.
    pub seen: u64,
    /// Of these, positive.
    pub positive: u64,
    /// Share of positives, if any sample counted.
    pub pass_rate: Option<f64>,
    /// Tokens below the exit.
    pub tokens_seen: u64,
}

/// Waste of a group.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct HeadTiming {
    /// Tokens above the exit.
    pub tokens_discarded: u64,
}

/// Sums over groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Prompts of the job.
    pub prompts: u64,
    /// Groups so far.
    pub groups: u64,
    /// With enough positives and negatives.
    pub resolved: u64,
    /// At their cap or budget.
    pub exhausted: u64,
    /// Failed.
    pub failed: u64,
    /// With contrast.
    pub signal: u64,
    /// Samples seen.
    pub samples: u64,
    /// Of these, positive.
    pub positive: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Tokens discarded.
    pub discarded: u64,
    /// Groups by pass rate: [0, 0.1), [0.1, 0.2), ... [0.9, 1].
    pub rates: [u64; 10],
}

impl Tally {
    /// Nothing yet, of `prompts`.
    pub fn new(prompts: u64) -> Self {
        Tally { prompts, ..Tally::default() }
    }

    /// Counts a group.
    pub fn add(&mut self, group: &GroupHead) {
        self.groups += 1;
        match group.status.as_str() {
            "resolved" => self.resolved += 1,
            "exhausted" => self.exhausted += 1,
            _ => self.failed += 1,
        }
        self.signal += u64::from(group.signal);
        self.samples += group.stats.seen;
        self.positive += group.stats.positive;
        self.tokens += group.stats.tokens_seen;
        self.discarded += group.timing.tokens_discarded;
        if let Some(rate) = group.stats.pass_rate {
            self.rates[((rate * 10.0) as usize).min(9)] += 1;
        }
    }

    /// Samples that a prompt took in the mean.
    pub fn samples_per_prompt(&self) -> f64 {
        self.samples as f64 / self.groups.max(1) as f64
    }

    /// Tokens a second, discarded ones too.
    pub fn speed(&self, took: Duration) -> f64 {
        (self.tokens + self.discarded) as f64 / took.as_secs_f64().max(1e-3)
    }

    /// One line.
    pub fn line(&self, took: Duration) -> String {
        format!(
            "{}/{} groups: {} resolved, {} exhausted, {} failed; {:.1} samples per prompt; {:.0} tokens/s; pass rates 0 {} 1",
            self.groups,
            self.prompts,
            self.resolved,
            self.exhausted,
            self.failed,
            self.samples_per_prompt(),
            self.speed(took),
            self.spark()
        )
    }

    /// The pass rates as one character a bin.
    pub fn spark(&self) -> String {
        const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.rates.iter().copied().max().unwrap_or(0).max(1);
        self.rates.iter().map(|&count| if count == 0 { '·' } else { LEVELS[(count * 7 / most) as usize] }).collect()
    }

    /// The summary, with the pass rates as a bar chart.
    pub fn report(&self, took: Duration) -> String {
        let mut text = format!(
            "{} of {} groups in {:.1} s: {} resolved, {} exhausted, {} failed; {} with contrast\n\
             {} samples seen ({:.1} per prompt), {} positive; {} tokens seen, {} discarded, {:.0} tokens/s\n\
             groups by pass rate (positive of the samples seen):",
            self.groups,
            self.prompts,
            took.as_secs_f64(),
            self.resolved,
            self.exhausted,
            self.failed,
            self.signal,
            self.samples,
            self.samples_per_prompt(),
            self.positive,
            self.tokens,
            self.discarded,
            self.speed(took)
        );
        let most = self.rates.iter().copied().max().unwrap_or(0).max(1);
        for (bin, &count) in self.rates.iter().enumerate() {
            let low = bin as f64 / 10.0;
            let bar = "█".repeat((count * 40).div_ceil(most) as usize);
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {low:.1} to {:.1}  {count:>6}  {bar}", low + 0.1);
        }
        text
    }
}
