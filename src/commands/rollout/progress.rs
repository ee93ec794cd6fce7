//! What is shown while a job runs: bars on a terminal, else a line every few seconds.

use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::tally::Tally;

/// Time between two lines where there is no terminal.
const EVERY: Duration = Duration::from_secs(5);

/// A display.
pub enum Progress {
    /// A bar of groups, and below it samples, speed and pass rates.
    Bars {
        /// Draws both.
        all: MultiProgress,
        /// Groups.
        groups: ProgressBar,
        /// The rest.
        about: ProgressBar,
    },
    /// Lines.
    Lines {
        /// Takes a line.
        print: fn(&str),
        /// When the last one was printed, and of how many groups.
        last: Option<(Instant, u64)>,
    },
    /// Nothing.
    Quiet,
}

impl Progress {
    /// Bars.
    pub fn bars() -> Self {
        let all = MultiProgress::new();
        let groups = all.add(ProgressBar::new(0));
        let about = all.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("groups [{bar:40}] {pos}/{len} {elapsed} {msg}") {
            groups.set_style(style.progress_chars("=> "));
        }
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            about.set_style(style);
        }
        Progress::Bars { all, groups, about }
    }

    /// Lines.
    pub fn lines(print: fn(&str)) -> Self {
        Progress::Lines { print, last: None }
    }

    /// Shows where the job stands.
    pub fn show(&mut self, tally: &Tally, took: Duration) {
        match self {
            Progress::Bars { groups, about, .. } => {
                groups.set_length(tally.prompts);
                groups.set_position(tally.groups);
                groups.set_message(format!("{} resolved, {} exhausted, {} failed", tally.resolved, tally.exhausted, tally.failed));
                about.set_message(format!(
                    "{:.1} samples per prompt, {:.0} tokens/s, pass rates 0 {} 1",
                    tally.samples_per_prompt(),
                    tally.speed(took),
                    tally.spark()
                ));
            }
            Progress::Lines { print, last } => {
                let is_due = last.is_none_or(|(at, groups)| at.elapsed() >= EVERY && groups != tally.groups);
                if is_due && tally.groups > 0 {
                    print(&tally.line(took));
                    *last = Some((Instant::now(), tally.groups));
                }
            }
            Progress::Quiet => {}
        }
    }

    /// Takes the display away.
    pub fn finish(&mut self) {
        if let Progress::Bars { all, groups, about } = self {
            groups.finish_and_clear();
            about.finish_and_clear();
            let _ = all.clear();
        }
    }
}
