//! How much better a kept sample is than its baseline.

use serde::Serialize;

/// Added to the standard deviation of `grpo`.
const EPSILON: f64 = 1e-6;

/// An advantage by its usual name: a baseline and a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Advantage {
    /// `r - S/N`: the baseline is the mean reward of every sample that the plan saw (Reinforce-Ada, v1).
    Ada,
    /// `(r - mean) / (std + 1e-6)` over the kept samples, with the `n - 1` deviation.
    Grpo,
    /// `r - mean of the other kept samples`.
    Rloo,
    /// `r - mean` over the kept samples (Dr. GRPO).
    Drgrpo,
}

impl Advantage {
    /// Every name that [`Advantage::from_name`] takes.
    pub const NAMES: [&'static str; 4] = ["ada", "grpo", "rloo", "drgrpo"];

    /// The advantage called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ada" => Some(Advantage::Ada),
            "grpo" => Some(Advantage::Grpo),
            "rloo" => Some(Advantage::Rloo),
            "drgrpo" => Some(Advantage::Drgrpo),
            _ => None,
        }
    }

    /// One advantage for each kept reward; `seen_mean` is the mean reward of every sample that the plan saw.
    pub fn of(self, kept: &[f64], seen_mean: f64) -> Vec<f64> {
        let n = kept.len() as f64;
        let kept_mean = mean(kept).unwrap_or(0.0);
        match self {
            Advantage::Ada => kept.iter().map(|r| r - seen_mean).collect(),
            Advantage::Grpo => {
                let scale = deviation(kept) + EPSILON;
                kept.iter().map(|r| (r - kept_mean) / scale).collect()
            }
            Advantage::Rloo if kept.len() > 1 => kept.iter().map(|r| (r - kept_mean) * n / (n - 1.0)).collect(),
            Advantage::Rloo => vec![0.0; kept.len()],
            Advantage::Drgrpo => kept.iter().map(|r| r - kept_mean).collect(),
        }
    }
}

/// The mean, if there is anything to take it of.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard deviation with `n - 1`; 0 for fewer than two values.
pub fn deviation(values: &[f64]) -> f64 {
    let Some(mean) = mean(values).filter(|_| values.len() > 1) else { return 0.0 };
    (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}
