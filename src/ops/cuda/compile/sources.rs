//! The kernels' sources, which the binary carries: one family is one file of `kernels/`, compiled to one cubin. Architectures and everything else
//! that decides a cubin's bytes is named here.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// One file of `kernels/`.
#[derive(Debug)]
pub struct Family {
    /// The file's name without `.cu`.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
}

macro_rules! file {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $name))
    };
}

/// Every family, the ones that take longest to compile first: whoever compiles several at a time is done soonest that way.
pub const FAMILIES: [Family; 17] = [
    Family { name: "attention_backward", source: file!("attention_backward.cu") },
    Family { name: "attention", source: file!("attention.cu") },
    Family { name: "gemm_backward", source: file!("gemm_backward.cu") },
    Family { name: "gemm", source: file!("gemm.cu") },
    Family { name: "sample", source: file!("sample.cu") },
    Family { name: "norm", source: file!("norm.cu") },
    Family { name: "loss", source: file!("loss.cu") },
    Family { name: "act", source: file!("act.cu") },
    Family { name: "rope_kv", source: file!("rope_kv.cu") },
    Family { name: "embed", source: file!("embed.cu") },
    Family { name: "norm_backward", source: file!("norm_backward.cu") },
    Family { name: "optimizer", source: file!("optimizer.cu") },
    Family { name: "score", source: file!("score.cu") },
    Family { name: "act_backward", source: file!("act_backward.cu") },
    Family { name: "rope_backward", source: file!("rope_backward.cu") },
    Family { name: "embed_backward", source: file!("embed_backward.cu") },
    Family { name: "transfer", source: file!("transfer.cu") },
];

/// What the sources include, under the names by which they do.
pub(super) const HEADERS: [(&str, &str); 2] = [("common.cuh", file!("common.cuh")), ("softmax.cuh", file!("softmax.cuh"))];

/// How everything is compiled. A multiply and an add stay two roundings, as on the CPU; functions of the sources are the device's.
pub(super) const FLAGS: [&str; 3] = ["--std=c++17", "--fmad=false", "-default-device"];

impl Family {
    /// The family of this name.
    pub fn named(name: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.name == name)
    }

    /// The kernels that the host starts, each with the dynamic shared memory of a block.
    pub fn kernels(&self) -> Vec<(&'static str, u32)> {
        let entries = super::super::entries().into_iter();
        entries.filter(|(family, ..)| *family == self.name).map(|(_, kernel, shared)| (kernel, shared)).collect()
    }

    /// Of source, headers and flags: cubins with the same digest were made from the same text.
    pub fn digest(&self) -> String {
        let headers = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
        digest([self.name, self.source].into_iter().chain(headers).chain(FLAGS).map(str::as_bytes))
    }
}

/// SHA-256 of a list of byte strings, in hexadecimal.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        // With its length: no two lists run into the same bytes.
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

/// SHA-256 of a file's bytes, in hexadecimal, as `sha256sum` prints it.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What a cubin runs on: cards of one compute capability, `sm_90` for (9, 0). No feature of the `sm_90a` kind is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture(u32);

/// The oldest with the instructions that the kernels need (`mma.sync` on bf16, `cp.async`).
const OLDEST: Architecture = Architecture(80);

impl From<(i32, i32)> for Architecture {
    fn from((major, minor): (i32, i32)) -> Architecture {
        Architecture((major * 10 + minor).max(0) as u32)
    }
}

impl FromStr for Architecture {
    type Err = String;

    fn from_str(text: &str) -> Result<Architecture, String> {
        let digits = text.strip_prefix("sm_").filter(|d| (2..=3).contains(&d.len()) && d.bytes().all(|b| b.is_ascii_digit()));
        match digits.and_then(|d| d.parse().ok()).map(Architecture) {
            Some(arch) if arch >= OLDEST => Ok(arch),
            Some(arch) => Err(format!("{arch} lacks instructions that the kernels need; {OLDEST} is the oldest")),
            None => Err("give sm_ and the compute capability without its point: sm_80, sm_86, sm_89, sm_90, sm_100, sm_120".into()),
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

impl Architecture {
    /// As NVRTC numbers it: 90.
    pub(super) fn number(self) -> u32 {
        self.0
    }
}
