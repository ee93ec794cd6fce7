//! Numbers without a pattern that depend on nothing but what they are for: every run sees the same.

/// A number without a pattern for each seed (SplitMix64).
pub fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The seed of a name.
pub fn text_seed(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |seed, byte| mixed(seed ^ u64::from(byte)))
}
