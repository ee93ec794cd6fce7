//! The learning rate over a run's updates.

use serde::{Deserialize, Serialize};

use crate::field::FieldError;

/// What comes after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// Nothing changes.
    #[default]
    Constant,
    /// A straight line to `floor`.
    Linear,
    /// Half a cosine to `floor`.
    Cosine,
}

/// A schedule. Update `u`, counted from 0, has factor `min(1, (u + 1) / warmup_steps)` times that of the decay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// What comes after the warm-up.
    pub kind: Decay,
    /// Updates until the full rate is reached.
    pub warmup_steps: u64,
    /// Updates at which the decay ends; needed by `linear` and `cosine`.
    pub total_steps: u64,
    /// What the decay ends at, as a share of the full rate.
    pub floor: f64,
}

impl Schedule {
    /// The share of the full rate at update `u`.
    pub fn factor(&self, u: u64) -> f64 {
        let warm = if self.warmup_steps == 0 { 1.0 } else { ((u + 1) as f64 / self.warmup_steps as f64).min(1.0) };
        let span = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let done = (u.saturating_sub(self.warmup_steps) as f64 / span as f64).min(1.0);
        let left = match self.kind {
            Decay::Constant => 1.0,
            Decay::Linear => 1.0 - done,
            Decay::Cosine => 0.5 * (1.0 + libm::cos(std::f64::consts::PI * done)),
        };
        match self.kind {
            Decay::Constant => warm,
            _ => warm * (self.floor + (1.0 - self.floor) * left),
        }
    }

    /// Refuses what makes no schedule.
    pub fn check(&self) -> Result<(), FieldError> {
        if self.kind != Decay::Constant && self.total_steps <= self.warmup_steps {
            return Err(FieldError::new(
                "total_steps",
                format!("is {}; a decay needs to end after the warm-up of {} updates", self.total_steps, self.warmup_steps),
            ));
        }
        if !(0.0..=1.0).contains(&self.floor) {
            return Err(FieldError::new("floor", format!("is {}; give a share from 0 to 1", self.floor)));
        }
        Ok(())
    }
}
