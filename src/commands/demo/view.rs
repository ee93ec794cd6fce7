//! What the terminal shows while the demonstration runs: one screen that is drawn again, or plain lines where the output is no terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use serde_json::Value;

/// What was seen of a run so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Exact pass@1 of the hard slice, by samples.
    pub hard: Vec<(f64, f64)>,
    /// The same of the easy one.
    pub easy: Vec<(f64, f64)>,
    /// The last training line.
    pub last: Value,
    /// Largest difference between the trainer's log-probabilities and the sampler's, over all steps.
    pub worst_difference: f64,
    /// Steps.
    pub steps: u64,
}

impl Seen {
    /// What the lines of metrics.jsonl say.
    pub fn of(lines: &[Value]) -> Self {
        let mut seen = Seen::default();
        lines.iter().for_each(|line| seen.take(line));
        seen
    }

    fn take(&mut self, line: &Value) {
        let value = |name: &str| line.get(name).and_then(Value::as_f64);
        match line.get("kind").and_then(Value::as_str) {
            Some("eval") => {
                let samples = value("ada/samples_total").unwrap_or_default();
                self.hard.extend(value("eval/pass@1/hard").map(|p| (samples, p)));
                self.easy.extend(value("eval/pass@1/easy").map(|p| (samples, p)));
            }
            Some("train") => {
                self.steps = line.get("step").and_then(Value::as_u64).unwrap_or_default();
                self.worst_difference = self.worst_difference.max(value("training/rollout_logprobs_diff_max").unwrap_or_default());
                self.last = line.clone();
            }
            _ => {}
        }
    }

    fn now(&self, name: &str) -> f64 {
        self.last.get(name).and_then(Value::as_f64).unwrap_or_default()
    }
}

/// A curve in one line of blocks, from 0 to 1.
pub fn sparkline(values: &[(f64, f64)], width: usize) -> String {
    const BLOCKS: [char; 8] = ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
    let step = values.len().div_ceil(width.max(1)).max(1);
    values.iter().step_by(step).map(|(_, v)| BLOCKS[((v.clamp(0.0, 1.0) * 7.999) as usize).min(7)]).collect()
}

/// The view.
pub struct View {
    terminal: bool,
    drawn: usize,
}

impl Default for View {
    fn default() -> Self {
        View { terminal: std::io::stderr().is_terminal(), drawn: 0 }
    }
}

impl View {
    /// Draws the present state; without a terminal, one line for every evaluation.
    pub fn show(&mut self, title: &str, seen: &Seen, total_steps: u64, took: Duration, news: bool) {
        let mut err = std::io::stderr().lock();
        if !self.terminal {
            if news && let (Some(hard), Some(easy)) = (seen.hard.last(), seen.easy.last()) {
                let _ = writeln!(
                    err,
                    "{title}: step {:>3}, {:>6} samples, pass@1 hard {:.3} easy {:.3}, {:.0} s",
                    seen.steps,
                    hard.0,
                    hard.1,
                    easy.1,
                    took.as_secs_f64()
                );
            }
            return;
        }
        let mut text = String::new();
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn);
        }
        let percent = if total_steps > 0 { 100.0 * seen.steps as f64 / total_steps as f64 } else { 0.0 };
        let lines = [
            format!("{title}: step {} of {total_steps} ({percent:.0} %), {:.0} s", seen.steps, took.as_secs_f64()),
            format!("  hard {:.3} {}", seen.hard.last().map_or(0.0, |v| v.1), sparkline(&seen.hard, 60)),
            format!("  easy {:.3} {}", seen.easy.last().map_or(0.0, |v| v.1), sparkline(&seen.easy, 60)),
            format!(
                "  samples {:.0} ({:.2} a prompt), reward {:.3}, groups with contrast {:.0} %, rows {:.0}",
                seen.now("ada/samples_total"),
                seen.now("ada/samples_per_prompt/mean"),
                seen.now("critic/score/mean"),
                100.0 * seen.now("ada/signal_fraction"),
                seen.now("ada/rows_total"),
            ),
            format!("  largest |log p trainer - log p sampler| so far: {}", seen.worst_difference),
        ];
        for line in &lines {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = lines.len();
        let _ = err.write_all(text.as_bytes());
        let _ = err.flush();
    }

    /// Leaves what is drawn and goes on below it.
    pub fn leave(&mut self) {
        self.drawn = 0;
    }
}
