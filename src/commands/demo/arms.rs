//! The arms of the comparison: what differs between them is where samples go and which rows are kept; everything else of a run is the same.

use serde_json::{Value, json};

/// One way to spend a step's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "verbatim")]
pub enum Arm {
    /// GRPO: 8 samples of every prompt.
    #[value(name = "grpo8")]
    Grpo8,
    /// The same with 16.
    #[value(name = "grpo16")]
    Grpo16,
    /// DAPO: 8 samples of every prompt, groups without contrast passed over.
    #[value(name = "dapo8")]
    Dapo8,
    /// Reinforce-Ada as printed: rounds of 8 until two of each, at most 32; keep 4.
    #[value(name = "balance")]
    Balance,
    /// Until the first success, at most 32; keep 8.
    #[value(name = "pos1m1n8")]
    Pos1M1N8,
    /// Until the second success, at most 32; keep 8.
    #[value(name = "pos2m1n8")]
    Pos2M1N8,
    /// GRPO with 4 samples: the baseline of the paper's regime.
    #[value(name = "grpo4")]
    Grpo4,
}

impl Arm {
    /// The arms of `--compare`, the baseline first.
    pub const COMPARED: [Arm; 4] = [Arm::Grpo8, Arm::Dapo8, Arm::Balance, Arm::Pos1M1N8];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Grpo8 => "grpo8",
            Arm::Grpo16 => "grpo16",
            Arm::Dapo8 => "dapo8",
            Arm::Balance => "balance",
            Arm::Pos1M1N8 => "pos1m1n8",
            Arm::Pos2M1N8 => "pos2m1n8",
            Arm::Grpo4 => "grpo4",
        }
    }

    /// Its strategy, as a request has it.
    pub fn strategy(self) -> Value {
        let positives = |k: u32| json!({"kind": "sequential", "exit": {"positives": k, "negatives": 0}, "group_size": 8, "max_samples": 32, "round_size": 1});
        match self {
            Arm::Grpo4 => json!({"kind": "uniform", "group_size": 4}),
            Arm::Grpo8 => json!({"kind": "uniform", "group_size": 8}),
            Arm::Grpo16 => json!({"kind": "uniform", "group_size": 16}),
            Arm::Dapo8 => json!({"kind": "dapo", "group_size": 8}),
            Arm::Balance => json!({"kind": "sequential", "exit": "balance", "group_size": 4, "max_samples": 32, "round_size": 8}),
            Arm::Pos1M1N8 => positives(1),
            Arm::Pos2M1N8 => positives(2),
        }
    }

    /// Its advantage.
    pub fn advantage(self) -> Value {
        match self {
            Arm::Grpo4 | Arm::Grpo8 | Arm::Grpo16 | Arm::Dapo8 => json!("grpo"),
            Arm::Balance | Arm::Pos1M1N8 | Arm::Pos2M1N8 => json!("ada"),
        }
    }
}

impl std::fmt::Display for Arm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
