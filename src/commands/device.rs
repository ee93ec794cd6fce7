//! Which device runs a model: what was asked for, what this machine has, and why the two differ.

use std::fmt;
use std::str::FromStr;

/// `--device`: what was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU that can be used, else the CPU; the log says why.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// This GPU, or an error.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("cuda:").map(str::parse::<u16>);
        match (text, number) {
            ("auto", _) => Ok(DeviceChoice::Auto),
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("cuda", _) => Ok(DeviceChoice::Cuda(0)),
            (_, Some(Ok(n))) => Ok(DeviceChoice::Cuda(n.into())),
            _ => Err("give auto, cpu, cuda, or cuda:N for GPU N".into()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}
