//! Settings of a local engine.

use crate::ops::BLOCK_TOKENS;

/// How much an engine runs at a time. None of it changes a token or a log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    /// Rows of a step.
    pub max_batch_tokens: usize,
    /// Sequences that run at a time.
    pub max_sequences: usize,
    /// KV blocks of 16 tokens; `None` takes a share of the free memory.
    pub kv_blocks: Option<usize>,
    /// Share of a device's free memory that the cache takes where `kv_blocks` does not say; the host's memory is not the engine's alone.
    pub kv_memory_share: f32,
    /// Keep the blocks of finished prefixes and find them again.
    pub prefix_cache: bool,
    /// Samples that are taken before `submit` says that the queue is full.
    pub max_queue: usize,
}

impl Default for EngineSettings {
    fn default() -> Self {
        EngineSettings {
            max_batch_tokens: 512,
            max_sequences: 128,
            kv_blocks: None,
            kv_memory_share: 0.9,
            prefix_cache: true,
            max_queue: 16_384,
        }
    }
}

/// Most of the host's memory that the cache takes without being told.
const MOST_CACHE_BYTES: u64 = 4 << 30;

impl EngineSettings {
    /// The number of blocks: as set, or what a share of the free memory holds, and at most what `max_sequences` can use. The share is
    /// `kv_memory_share` of what a device says is free, or a quarter of the host's memory, at most 4 GiB.
    pub fn blocks(&self, block_bytes: usize, context_length: usize, device: Option<u64>) -> usize {
        if let Some(blocks) = self.kv_blocks {
            return blocks.max(1);
        }
        let share = match device {
            Some(free) => (free as f64 * f64::from(self.kv_memory_share)) as u64,
            None => (free_memory().unwrap_or(4 << 30) / 4).min(MOST_CACHE_BYTES),
        };
        let affordable = (share / block_bytes as u64) as usize;
        let useful = self.max_sequences.saturating_mul(context_length.div_ceil(BLOCK_TOKENS) + 1);
        affordable.min(useful).max(1)
    }
}

/// Memory that can be had without swapping, where the system tells.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
