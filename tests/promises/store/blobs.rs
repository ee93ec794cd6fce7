//! Blobs come back to the bit, or not at all.

use adaroll::store::blob::{Tokens, pack_bytes, pack_tokens, unpack_bytes, unpack_text, unpack_tokens};
use proptest::prelude::*;

fn tokens() -> impl Strategy<Value = Tokens> {
    let bits = || any::<u32>().prop_map(f32::from_bits);
    (0usize..300, any::<bool>()).prop_flat_map(move |(n, small)| {
        let ids = proptest::collection::vec(if small { 0..300u32 } else { 0..u32::MAX }, n);
        let logprobs = proptest::collection::vec(bits(), n);
        let raw = proptest::option::of(proptest::collection::vec(bits(), n));
        let spans = proptest::collection::vec(any::<(u64, u32, u32)>(), 0..4);
        (ids, logprobs, raw, any::<String>(), spans).prop_map(|(token_ids, logprobs, logprobs_raw, text, weight_versions)| Tokens {
            token_ids,
            logprobs,
            logprobs_raw,
            text,
            weight_versions,
        })
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn assert_same_bits(a: &Tokens, b: &Tokens) {
    assert_eq!((&a.token_ids, &a.text, &a.weight_versions), (&b.token_ids, &b.text, &b.weight_versions));
    assert_eq!(bits(&a.logprobs), bits(&b.logprobs));
    assert_eq!(a.logprobs_raw.as_deref().map(bits), b.logprobs_raw.as_deref().map(bits));
}

proptest! {
    #[test]
    fn a_sample_comes_back_to_the_bit(tokens in tokens()) {
        assert_same_bits(&unpack_tokens(&pack_tokens(&tokens)).unwrap(), &tokens);
    }

    #[test]
    fn bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..2000), repeat in 1usize..5) {
        let bytes = bytes.repeat(repeat);
        prop_assert_eq!(unpack_bytes(&pack_bytes(&bytes)).unwrap(), bytes);
    }

    #[test]
    fn a_damaged_blob_is_an_error(tokens in tokens(), at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<prop::sample::Index>()) {
        let blob = pack_tokens(&tokens);
        let mut damaged = blob.clone();
        damaged[at.index(blob.len())] ^= flip;
        prop_assert!(unpack_tokens(&damaged).is_err());
        prop_assert!(unpack_tokens(&blob[..cut.index(blob.len())]).is_err());
    }

    /// With a checksum that fits, so that every length and every method behind it is tried.
    #[test]
    fn made_up_blobs_do_not_panic(tokens in tokens(), edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut blob = pack_tokens(&tokens);
        blob.truncate(blob.len() - 4);
        for (at, byte) in edits {
            let at = at.index(blob.len());
            blob[at] = byte;
        }
        let mut crc = flate2::Crc::new();
        crc.update(&blob);
        blob.extend_from_slice(&crc.sum().to_le_bytes());
        let _ = unpack_tokens(&blob);
        let _ = unpack_bytes(&blob);
        let _ = unpack_text(&blob);
    }
}

#[test]
fn nan_payloads_and_negative_zero_survive() {
    let logprobs = vec![f32::from_bits(0x7fc0_1234), f32::from_bits(0xff80_0001), -0.0, 0.0, f32::NEG_INFINITY];
    let back = unpack_tokens(&pack_tokens(&Tokens { token_ids: vec![1; 5], logprobs: logprobs.clone(), ..Tokens::default() })).unwrap();
    assert_eq!(bits(&back.logprobs), bits(&logprobs));
}

#[test]
fn equal_raw_logprobs_cost_a_byte_and_others_their_size() {
    let logprobs: Vec<f32> = (0..500).map(|i| (i as f32 * 0.7).sin()).collect();
    let plain = Tokens { logprobs: logprobs.clone(), ..Tokens::default() };
    let size = |raw: Option<Vec<f32>>| pack_tokens(&Tokens { logprobs_raw: raw, ..plain.clone() }).len();
    assert_eq!(size(Some(logprobs.clone())), size(None));
    // One bit of one value is not equal: 0.0 and -0.0 differ.
    let mut other = logprobs;
    assert_eq!(other[0].to_bits(), 0);
    other[0] = -0.0;
    assert!(size(Some(other)) > size(None) + 1000);
}
