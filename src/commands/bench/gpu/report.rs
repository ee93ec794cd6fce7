//! Everything that the command found, and the short table of it. Targets stand beside the figures they are for.

use std::fmt;

use super::{KernelFigure, Limits, ShapeReport};
use crate::model::backward::Recompute;

/// What the command found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// As the driver names the card.
    pub card: String,
    /// Its architecture.
    pub compute_capability: String,
    /// Its streaming multiprocessors.
    pub multiprocessors: u32,
    /// Its memory.
    pub memory_gib: f64,
    /// The driver's version, where the system tells.
    pub driver: Option<String>,
    /// Where the kernels come from.
    pub kernels: String,
    /// `--gemm`.
    pub gemm: String,
    /// When, in UTC.
    pub date: String,
    /// How long it took.
    pub seconds: f64,
    /// What the card does at best.
    pub limits: Limits,
    /// Models.
    pub shapes: Vec<ShapeReport>,
}

impl Report {
    /// Whether everything went as it should, targets apart.
    pub fn ok(&self) -> bool {
        self.shapes.iter().all(|s| s.failed.is_empty())
    }
}

/// Beside a share that is to be reached.
fn at_least(share: f64, target: Option<f64>) -> String {
    target.map_or(String::new(), |t| format!("target {:.0} %: {}", 100.0 * t, if share >= t { "reached" } else { "missed" }))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver.as_ref().map_or(String::new(), |d| format!(", driver {d}"));
        writeln!(f, "{}, {} multiprocessors, {:.0} GiB{driver}", self.card, self.multiprocessors, self.memory_gib)?;
        writeln!(f, "kernels from {}; --gemm {}; {} UTC, {:.0} s", self.kernels, self.gemm, self.date, self.seconds)?;
        let [rows, outputs, inputs] = self.limits.matrix_shape;
        let (copy, matrix) = (self.limits.copy_gb_per_s, self.limits.matrix_tflop_per_s);
        if self.shapes.iter().all(|s| s.shape == "tiny") {
            writeln!(f, "a shape for emulated cards: no time says anything of a real one")?;
        }
        let own = self.limits.own_matrix_tflop_per_s;
        let by = &self.limits.matrix_by;
        write!(
            f,
            "limits: copy {copy:.0} GB/s, products {matrix:.1} TFLOP/s ({by}, {rows} rows x [{outputs}, {inputs}]; our own kernels {own:.1})"
        )?;
        self.shapes.iter().try_for_each(|shape| write!(f, "\n\n{shape}"))
    }
}

impl fmt::Display for ShapeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (billions, gb) = (self.parameters as f64 / 1e9, self.weight_bytes / 1e9);
        write!(f, "{}: {billions:.2} billion parameters, {gb:.2} GB of weights a step", self.shape)?;
        if !self.decode.is_empty() {
            write!(f, "\n  {:<20} {:>10} {:>10} {:>12} {:>8}", "decode", "us a step", "no graphs", "tokens/s", "of copy")?;
        }
        for d in &self.decode {
            let (name, share) = (format!("{} x {}", d.batch, d.context), 100.0 * d.bandwidth_share);
            write!(f, "\n  {name:<20} {:>10.1} {:>10.1}", d.step_us, d.step_without_graphs_us)?;
            write!(f, " {:>12.0} {share:>6.1} %  {}", d.tokens_per_s, at_least(d.bandwidth_share, d.target))?;
        }
        if !self.prefill.is_empty() {
            write!(f, "\n  {:<20} {:>10} {:>10} {:>12} {:>8}", "prefill", "us a step", "", "tokens/s", "of matrix")?;
        }
        for p in &self.prefill {
            let (name, share) = (format!("{} x {}", p.prompts, p.length), 100.0 * p.matrix_share);
            write!(
                f,
                "\n  {name:<20} {:>10.1} {:>10} {:>12.0} {share:>6.1} %  {}",
                p.step_us,
                "",
                p.tokens_per_s,
                at_least(p.matrix_share, p.target)
            )?;
        }
        if !self.training.is_empty() {
            write!(f, "\n  {:<20} {:>10} {:>10} {:>12} {:>8}", "training", "us a step", "AdamW", "tokens/s", "of matrix")?;
        }
        for t in &self.training {
            let kept = if t.recompute == Recompute::Layer { " recomputed" } else { "" };
            let (name, share) = (format!("{} x {}{kept}", t.sequences, t.length), 100.0 * t.matrix_share);
            write!(f, "\n  {name:<20} {:>10.1} {:>10.1} {:>12.0} {share:>6.1} %", t.step_us, t.adamw_us, t.tokens_per_s)?;
            write!(f, "  {}", at_least(t.matrix_share, t.target.filter(|_| t.recompute == Recompute::None)))?;
            write!(
                f,
                "\n    forward {:.1}, backward {:.1}, norm {:.1}, rounding {:.1} us; AdamW {:.1} % of copy  {}",
                t.forward_us,
                t.backward_us,
                t.norm_us,
                t.weights_us,
                100.0 * t.adamw_share,
                at_least(t.adamw_share, t.adamw_target)
            )?;
        }
        for h in &self.handover {
            let (gb, gb_per_s) = (h.bytes as f64 / 1e9, h.bytes as f64 / h.total_us / 1e3);
            write!(f, "\n  weights from a trainer: {gb:.2} GB in {:.0} us ({gb_per_s:.0} GB/s),", h.total_us)?;
            write!(f, " hashed in {:.0} us, taken and verified in {:.0} us", h.export_us, h.import_us)?;
            if let Some(target) = h.target_us {
                write!(f, "  target at most {target:.0} us: {}", if h.total_us <= target { "reached" } else { "missed" })?;
            }
        }
        if !self.invariance.is_empty() {
            write!(f, "\n  {:<20} {:>10} {:>10} {:>12}", "invariance", "us a step", "varying", "costs")?;
        }
        for c in &self.invariance {
            let (name, cost) = (format!("{} {} x {}", c.step, c.sequences, c.length), 100.0 * c.cost);
            write!(f, "\n  {name:<20} {:>10.1} {:>10.1} {cost:>10.1} %", c.step_us, c.varying_us)?;
            if let Some(target) = c.target {
                write!(f, "  target at most {:.0} %: {}", 100.0 * target, if c.cost <= target { "reached" } else { "missed" })?;
            }
        }
        for e in &self.engine {
            let (decode, whole, prefill) = (e.decode_tokens_per_s, e.end_to_end_tokens_per_s, e.prefill_tokens_per_s);
            write!(
                f,
                "\n  engine, {} requests of {} + {} tokens: end to end {whole:.0} tokens/s, prefill {prefill:.0} tokens/s,",
                e.batch, e.prompt, e.generated
            )?;
            let share = 100.0 * e.bandwidth_share;
            write!(f, "\n    decode {decode:.0} tokens/s, {share:.1} % of copy  {}", at_least(e.bandwidth_share, e.target))?;
        }
        let mut names: Vec<&str> = Vec::new();
        for kernel in &self.kernels {
            if !names.contains(&kernel.kernel.as_str()) {
                names.push(&kernel.kernel);
            }
        }
        if !names.is_empty() {
            write!(f, "\n  kernels: us a call and the share of it that the card's limits explain")?;
        }
        for name in names {
            let of = |k: &&KernelFigure| k.kernel == name;
            let figures: Vec<String> =
                self.kernels.iter().filter(of).map(|k| format!("{} {:.1} ({:.0} %)", brief(&k.size), k.us, 100.0 * k.share)).collect();
            write!(f, "\n    {name:<21} {}", figures.join(", "))?;
        }
        self.left_out.iter().try_for_each(|what| write!(f, "\n  left out: {what}"))?;
        self.failed.iter().try_for_each(|what| write!(f, "\n  FAILED: {what}"))
    }
}

/// A size without what all sizes of a kernel have in common.
fn brief(size: &str) -> &str {
    let rows = size.strip_suffix(" rows").unwrap_or(size);
    rows.split_once(" x [").map_or(rows, |(rows, _)| rows)
}
