//! How a step's rows are cut: groups in a seeded order into mini-batches, a mini-batch's rows into parts that are summed apart, and each by a token
//! budget into micro-batches.
//!
//! The order is a Fisher-Yates shuffle whose words are Philox counters keyed by the run's seed: it depends on (seed, stream, length)
//! alone. Streams are numbered by what they are for, so no two shuffles of a run share words.

use std::ops::Range;

use crate::ops::philox::philox;

/// Word `index` of a stream.
fn word(seed: u64, stream: u64, index: u64) -> u64 {
    let counter = [index as u32, (index >> 32) as u32, stream as u32, (stream >> 32) as u32];
    let [a, b, ..] = philox(counter, [seed as u32, (seed >> 32) as u32]);
    u64::from(a) << 32 | u64::from(b)
}

/// Number `index` of a stream, uniform in 0 to 1 (never 1).
pub fn unit(seed: u64, stream: u64, index: u64) -> f64 {
    (word(seed, stream, index) >> 11) as f64 / (1u64 << 53) as f64
}

/// Puts `items` in the order of (seed, stream).
pub fn shuffle<T>(seed: u64, stream: u64, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        // A 64-bit word times i + 1 <= 2^32 items: the bias is below 2^-32.
        let j = (u128::from(word(seed, stream, i as u64)) * (i as u128 + 1)) >> 64;
        items.swap(i, j as usize);
    }
}

/// Groups `0..groups`, given by request position, in a seeded order and cut into mini-batches of `per` (0: all together).
pub fn mini_batches(groups: usize, per: usize, seed: u64, stream: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..groups).collect();
    shuffle(seed, stream, &mut order);
    let per = if per == 0 { groups.max(1) } else { per };
    order.chunks(per).map(<[usize]>::to_vec).collect()
}

/// Rows in order, cut into so many parts of about as many tokens: each cut is where the rows before it come nearest to their share of the tokens,
/// the earlier place of two. A function of the rows' lengths alone. Where there are as many rows as parts, every part has one; where there are
/// fewer, the last parts are empty.
pub fn parts(tokens: &[usize], parts: usize) -> Vec<Range<usize>> {
    let rows = tokens.len();
    // Tokens before each row, and all of them.
    let before: Vec<usize> = std::iter::once(0)
        .chain(tokens.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        }))
        .collect();
    let mut first = 0;
    let cut = |part: usize| {
        let nearest = (0..=rows).min_by_key(|&row| (before[row] * parts).abs_diff(before[rows] * part)).unwrap_or(0);
        let end = match (part == parts, rows < parts) {
            (true, _) => rows,
            (false, true) => part.min(rows),
            (false, false) => nearest.clamp(first + 1, rows - (parts - part)),
        };
        std::mem::replace(&mut first, end)..end
    };
    (1..=parts).map(cut).collect()
}

/// Consecutive rows that fit `budget` tokens together; a longer row is alone. How rows are cut changes no bit of their gradients' sum.
pub fn micro_batches(tokens: &[usize], budget: usize) -> Vec<Range<usize>> {
    let mut cuts = Vec::new();
    let (mut first, mut sum) = (0, 0);
    for (row, &n) in tokens.iter().enumerate() {
        if row > first && sum + n > budget {
            cuts.push(first..row);
            (first, sum) = (row, 0);
        }
        sum += n;
    }
    if first < tokens.len() {
        cuts.push(first..tokens.len());
    }
    cuts
}
