//! KV blocks: who holds which, and which hold a prefix that can be used again.
//!
//! A block is in exactly one of three states: free; used (one or more sequences hold it); or kept (nobody holds it, but the prefix cache can
//! still find it; it is given up, oldest first, when nothing is free). A block that several sequences hold, or that the cache can find, is
//! never written: [`Blocks::writable`] is the one rule, and a sequence that must write copies first.
//!
//! The cache is a map from (the prefix before the block, the block's token ids) to the block. A prefix is named by a number that is given
//! out once and belongs to one weights version, so equal keys mean equal token ids from position 0 on, under the same weights: the map
//! compares the ids themselves after a hash hit, and no block is ever found under other weights.

use std::collections::{BTreeMap, HashMap};

use crate::ops::BLOCK_TOKENS;

/// Names the token ids from position 0 to the end of some block, under one weights version. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixId(u64);

/// What the cache is asked for: a block's content and everything before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    before: PrefixId,
    /// Up to [`BLOCK_TOKENS`] ids; fewer for the partial last block of a prompt.
    tokens: Box<[u32]>,
}

/// What a block holds, if the cache can find it.
struct Entry {
    key: Key,
    prefix: PrefixId,
}

/// The longest known prefix of some token ids.
#[derive(Debug, PartialEq, Eq)]
pub struct Match {
    /// Its blocks, held for the caller.
    pub blocks: Vec<u32>,
    /// Tokens that they hold.
    pub tokens: usize,
    /// Name of the prefix up to the last whole block.
    pub prefix: PrefixId,
}

/// All KV blocks of an engine.
pub struct Blocks {
    /// Sequences that hold each block.
    holders: Vec<u32>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Kept blocks by the time they were let go.
    kept: BTreeMap<u64, u32>,
    kept_at: Vec<u64>,
    clock: u64,
    index: HashMap<Key, u32>,
    next_prefix: u64,
    root: PrefixId,
    caching: bool,
}

impl Blocks {
    /// `total` free blocks. Without `caching` nothing is found again, but samples of one prompt still share.
    pub fn new(total: usize, caching: bool) -> Self {
        Blocks {
            holders: vec![0; total],
            entries: (0..total).map(|_| None).collect(),
            free: (0..total as u32).rev().collect(),
            kept: BTreeMap::new(),
            kept_at: vec![0; total],
            clock: 0,
            index: HashMap::new(),
            next_prefix: 1,
            root: PrefixId(0),
            caching,
        }
    }

    /// Blocks in all.
    pub fn total(&self) -> usize {
        self.holders.len()
    }

    /// Blocks that a sequence can have now.
    pub fn available(&self) -> usize {
        self.free.len() + self.kept.len()
    }

    /// Available blocks that still hold a prefix.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Blocks that some sequence holds.
    pub fn used(&self) -> usize {
        self.holders.iter().filter(|&&h| h > 0).count()
    }

    /// The prefix of length 0 under the present weights.
    pub fn root(&self) -> PrefixId {
        self.root
    }

    /// Makes every block so far unreachable: the weights are others now.
    pub fn new_version(&mut self) {
        self.root = PrefixId(self.next_prefix);
        self.next_prefix += 1;
        self.index.clear();
        for block in std::mem::take(&mut self.kept).into_values() {
            self.free.push(block);
        }
        self.entries.iter_mut().for_each(|e| *e = None);
    }

    /// Finds and holds the longest known prefix of `tokens` that is at most `limit` tokens long: whole blocks, then a block that holds
    /// exactly the rest (the partial last block of the same prompt). The last block found may hold more tokens than are used.
    pub fn find(&mut self, tokens: &[u32], limit: usize) -> Match {
        let mut found = Match { blocks: Vec::new(), tokens: 0, prefix: self.root };
        if !self.caching {
            return found;
        }
        for chunk in tokens.chunks(BLOCK_TOKENS) {
            if found.tokens >= limit {
                break;
            }
            let key = Key { before: found.prefix, tokens: chunk.into() };
            let Some(&block) = self.index.get(&key) else { break };
            let usable = (found.tokens + chunk.len()).min(limit);
            if usable == found.tokens + BLOCK_TOKENS
                && let Some(entry) = &self.entries[block as usize]
            {
                found.prefix = entry.prefix;
            }
            found.tokens = usable;
            found.blocks.push(block);
        }
        for &block in &found.blocks {
            self.hold(block);
        }
        found
    }

    /// One more sequence holds `block`.
    pub fn hold(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        if *holders == 0 {
            self.kept.remove(&self.kept_at[block as usize]);
        }
        *holders += 1;
    }

    /// A block for one sequence: a free one, else the one kept longest.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.kept.pop_first()?;
                self.forget(block);
                block
            }
        };
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// One sequence lets go of its blocks, given in position order. Later blocks are given up before earlier ones, without which they could
    /// not be found.
    pub fn release(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            let holders = &mut self.holders[block as usize];
            debug_assert!(*holders > 0, "block {block} was let go twice");
            *holders -= 1;
            if *holders > 0 {
                continue;
            }
            if self.entries[block as usize].is_some() {
                self.clock += 1;
                self.kept_at[block as usize] = self.clock;
                self.kept.insert(self.clock, block);
            } else {
                self.free.push(block);
            }
        }
    }

    /// Whether the only holder may write: nobody else holds the block and the cache cannot find it.
    pub fn writable(&self, block: u32) -> bool {
        self.holders[block as usize] == 1 && self.entries[block as usize].is_none()
    }

    /// Takes a block that only the caller holds out of the cache, so that it becomes writable. Says whether that worked.
    pub fn withdraw(&mut self, block: u32) -> bool {
        if self.holders[block as usize] != 1 {
            return false;
        }
        self.forget(block);
        true
    }

    /// Lets the cache find `block`, which holds `tokens` after the prefix `before`. Returns the name of the prefix that it ends, which is an
    /// older one if another block holds the same already.
    pub fn publish(&mut self, block: u32, before: PrefixId, tokens: &[u32]) -> PrefixId {
        let key = Key { before, tokens: tokens.into() };
        if self.caching
            && let Some(entry) = self.index.get(&key).and_then(|&other| self.entries[other as usize].as_ref())
        {
            return entry.prefix;
        }
        let prefix = PrefixId(self.next_prefix);
        self.next_prefix += 1;
        if self.caching && self.entries[block as usize].is_none() {
            self.index.insert(key.clone(), block);
            self.entries[block as usize] = Some(Entry { key, prefix });
        }
        prefix
    }

    fn forget(&mut self, block: u32) {
        if let Some(entry) = self.entries[block as usize].take() {
            self.index.remove(&entry.key);
        }
    }

    /// The blocks that the cache can find.
    #[doc(hidden)]
    pub fn findable(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.values().copied()
    }

    /// Checks every invariant; `held` are the block tables of all sequences.
    #[doc(hidden)]
    pub fn audit(&self, held: &[&[u32]]) -> Result<(), String> {
        let mut holders = vec![0u32; self.total()];
        for table in held {
            for &b in *table {
                holders[b as usize] += 1;
            }
        }
        if holders != self.holders {
            return Err("the counts of holders differ from the block tables".into());
        }
        let mut seen = vec![0; self.total()];
        for &b in self.free.iter().chain(self.kept.values()) {
            seen[b as usize] += 1;
        }
        for (b, (&h, &s)) in holders.iter().zip(&seen).enumerate() {
            if s != u32::from(h == 0) {
                return Err(format!("block {b} has {h} holders and is {s} times among the available ones"));
            }
        }
        if self.available() + self.used() != self.total() {
            return Err(format!("{} available + {} used blocks are not {}", self.available(), self.used(), self.total()));
        }
        for &b in &self.free {
            if self.entries[b as usize].is_some() {
                return Err(format!("free block {b} can be found"));
            }
        }
        for (key, &b) in &self.index {
            if self.entries[b as usize].as_ref().is_none_or(|e| e.key != *key) {
                return Err(format!("the index points at block {b}, which holds something else"));
            }
        }
        Ok(())
    }
}
