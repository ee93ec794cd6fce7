//! Streamed text is the text: nothing is emitted that a later token takes back, and all of it is what decoding at once gives.

use std::sync::{Arc, OnceLock};

use adaroll::engine::detokenize::TextStream;
use adaroll::model::tokenizer::Tokenizer;
use proptest::prelude::*;
use serde_json::json;

use crate::assets;
use crate::tiny_tokenizers::{byte_fallback_decoder, of_bytes, of_pieces};

fn smollm2() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    TOKENIZER.get_or_init(|| Arc::new(Tokenizer::from_folder(&assets::smollm2()).unwrap().unwrap())).clone()
}

/// Pieces that make trouble: `▁` alone, bytes of whole, cut and impossible characters, a space as a byte, an empty piece.
fn fallback() -> Arc<Tokenizer> {
    let pieces = [
        "▁Hello", "▁world", "!", "▁", "a▁b", "", "<0xEA>", "<0xB9>", "<0xB0>", "<0x0A>", "<0x20>", "<0xFF>", "<0x41>", "<0xE2>", "<0x82>",
        "é", "</s>",
    ];
    of_pieces(&pieces, byte_fallback_decoder())
}

/// The chunks of a stream, the stop string, and the whole text.
pub fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32], stop: &[&str]) -> (Vec<String>, Option<String>, String) {
    let stop: Vec<String> = stop.iter().map(|&s| s.to_owned()).collect();
    let mut stream = TextStream::new(tokenizer.clone(), &stop);
    let mut chunks = Vec::new();
    for &id in ids {
        let step = stream.push(id, true);
        chunks.push(step.text);
        if step.stop.is_some() {
            assert_eq!(stream.finish(), "", "no text after a stop string");
            assert_eq!(stream.text(), chunks.concat());
            return (chunks, step.stop, stream.text().to_owned());
        }
    }
    chunks.push(stream.finish());
    assert_eq!(stream.text(), chunks.concat(), "the accumulated text is the emitted text");
    (chunks, None, stream.text().to_owned())
}

/// First token at which the text decoded so far holds a stop string; the match that is complete first, the longest of these.
fn naive_stop(tokenizer: &Tokenizer, ids: &[u32], stop: &[String]) -> (Option<String>, String) {
    for count in 1..=ids.len() {
        let text = tokenizer.decode(&ids[..count], true).unwrap();
        let matches = stop.iter().filter_map(|string| {
            text.find(string.as_str()).map(|start| (start + string.len(), std::cmp::Reverse(string.len()), start, string))
        });
        if let Some((_, _, start, string)) = matches.min() {
            return (Some(string.clone()), text[..start].to_owned());
        }
    }
    (None, tokenizer.decode(ids, true).unwrap())
}

fn check_stream(tokenizer: &Arc<Tokenizer>, ids: &[u32]) {
    let (chunks, _, text) = stream(tokenizer, ids, &[]);
    assert_eq!(text, tokenizer.decode(ids, true).unwrap(), "{ids:?}");
    // What has been emitted stays true however the sample ends.
    let mut emitted = String::new();
    for (count, chunk) in chunks[..ids.len()].iter().enumerate() {
        emitted.push_str(chunk);
        let so_far = tokenizer.decode(&ids[..=count], true).unwrap();
        assert!(so_far.starts_with(&emitted), "{emitted:?} is no prefix of {so_far:?}");
    }
}

fn check_stop(tokenizer: &Arc<Tokenizer>, ids: &[u32], stop: &[String]) {
    let expected = naive_stop(tokenizer, ids, stop);
    let (_, found, text) = stream(tokenizer, ids, &stop.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((found, text), expected, "{ids:?} {stop:?}");
}

/// Stop strings cut from the text itself, so that they occur, with one that does not.
fn cut_stops(text: &str, cuts: &[(usize, usize)]) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let cut = |&(start, length): &(usize, usize)| {
        let start = start % chars.len().max(1);
        chars[start..(start + length).min(chars.len())].iter().collect::<String>()
    };
    // U+FFFD is left out: at the end of a sample it stands for bytes that were still waiting.
    cuts.iter().map(cut).filter(|stop| !stop.is_empty() && !stop.contains('\u{FFFD}')).chain(["never there".to_owned()]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_byte_level_stream_is_the_full_decode(ids in prop::collection::vec(prop_oneof![4 => 17u32..49152, 1 => 17u32..300, 1 => 0u32..17, 1 => 49000u32..50000], 0..40)) {
        check_stream(&smollm2(), &ids);
    }

    #[test]
    fn a_byte_fallback_stream_is_the_full_decode(ids in prop::collection::vec(0u32..20, 0..30)) {
        check_stream(&fallback(), &ids);
    }

    #[test]
    fn a_stop_string_is_found_where_a_search_finds_it(
        ids in prop::collection::vec(prop_oneof![2 => 17u32..49152, 1 => 17u32..300], 1..40),
        cuts in prop::collection::vec((0usize..200, 1usize..8), 1..4),
    ) {
        let tokenizer = smollm2();
        let stop = cut_stops(&tokenizer.decode(&ids, true).unwrap(), &cuts);
        check_stop(&tokenizer, &ids, &stop);
    }

    #[test]
    fn a_stop_string_is_found_among_fallback_bytes(
        ids in prop::collection::vec(0u32..17, 1..30),
        cuts in prop::collection::vec((0usize..60, 1usize..5), 1..4),
    ) {
        let tokenizer = fallback();
        let stop = cut_stops(&tokenizer.decode(&ids, true).unwrap(), &cuts);
        check_stop(&tokenizer, &ids, &stop);
    }

    #[test]
    fn overlapping_stop_strings_are_found_where_a_search_finds_them(
        ids in prop::collection::vec(0u32..4, 1..30),
        stop in prop::collection::vec("[ab]{1,5}", 1..5),
    ) {
        check_stop(&of_bytes(&[b"a", b"b", b"ab", b"bba"]), &ids, &stop);
    }
}

#[test]
fn every_kind_of_decoder_streams_its_full_decode() {
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let decoders = [
        metaspace("always"),
        metaspace("first"),
        metaspace("never"),
        json!(null),
        byte_fallback_decoder(),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}),
        json!({"type": "Sequence", "decoders": [{"type": "Strip", "content": "▁", "start": 1, "stop": 0}, {"type": "Fuse"}]}),
        json!({"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}),
    ];
    for decoder in decoders {
        let tokenizer = of_pieces(&["▁Hello", "▁world", "!", "##ing", "▁▁x", "<0x20>", "<0xE2>"], decoder.clone());
        for first in 0..8 {
            for second in 0..8 {
                check_stream(&tokenizer, &[first, second, 1, first, 2, 5, 3]);
            }
        }
    }
}

#[test]
fn a_decoder_that_cannot_be_streamed_is_refused_with_its_name() {
    let tokenizer = |decoder| {
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": decoder, "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        })
    };
    let folder = tempfile::tempdir().unwrap();
    for (decoder, problem) in [
        (json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}), "CTC"),
        (json!({"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 0, "stop": 1}]}), "from the end"),
        (
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}]}),
            "after the pieces are joined",
        ),
    ] {
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer(decoder).to_string()).unwrap();
        let message = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json") && message.contains("field decoder") && message.contains(problem), "{message}");
    }
}

#[test]
fn text_is_held_back_only_while_it_could_begin_a_stop_string() {
    let tokenizer = of_bytes(&[b"a<", b"/", b"x", b"ans", b"</ans>"]);
    let (chunks, found, _) = stream(&tokenizer, &[0, 1, 2, 3], &["</ans>"]);
    assert_eq!(chunks, ["a", "", "</x", "ans", ""]);
    assert_eq!(found, None);
    // Held back at the end, it is text after all.
    assert_eq!(stream(&tokenizer, &[2, 0], &["</ans>"]).0, ["x", "a", "<"]);
    // Without stop strings nothing waits.
    assert_eq!(stream(&tokenizer, &[0, 1], &[]).0, ["a<", "/", ""]);
}

#[test]
fn the_match_that_is_complete_first_wins_and_then_the_longest() {
    let tokenizer = of_bytes(&[b"abcd", b"a", b"b", b"c", b"d", b"xEND"]);
    for ids in [&[0][..], &[1, 2, 3, 4]] {
        assert_eq!(stream(&tokenizer, ids, &["abcd", "bc"]).1.as_deref(), Some("bc"), "however the text was cut into tokens");
        assert_eq!(stream(&tokenizer, ids, &["abcd", "bc"]).2, "a");
    }
    assert_eq!(stream(&tokenizer, &[5], &["ND", "END", "D"]).1.as_deref(), Some("END"));
    assert_eq!(stream(&tokenizer, &[5], &["ND", "END", "D"]).2, "x");
}

#[test]
fn a_stop_string_may_begin_before_min_tokens_but_not_end_there() {
    let tokenizer = of_bytes(&[b"END", b"EN", b"D", b"x"]);
    let push = |ids: &[(u32, bool)]| {
        let mut stream = TextStream::new(tokenizer.clone(), &["END".to_owned()]);
        let stop = ids.iter().find_map(|&(id, look)| stream.push(id, look).stop);
        stream.finish();
        (stop.is_some(), stream.text().to_owned())
    };
    assert_eq!(push(&[(0, false), (3, true)]), (false, "ENDx".into()), "complete before min_tokens: text like any other");
    assert_eq!(push(&[(0, false), (3, true), (0, true)]), (true, "ENDx".into()));
    assert_eq!(push(&[(3, false), (1, false), (2, true)]), (true, "x".into()), "completed by a later token");
}

#[test]
fn a_fallback_newline_stops_at_once_and_is_emitted_once_it_is_certain() {
    let tokenizer = fallback();
    let (newline, exclamation, invalid) = (9, 2, 11);
    assert_eq!(stream(&tokenizer, &[0, newline, newline], &["\n\n"]).1.as_deref(), Some("\n\n"));
    assert_eq!(stream(&tokenizer, &[0, newline, exclamation], &[]).0, ["Hello", "", "\n!", ""]);
    // A run of bytes is judged as a whole: the newline before an impossible byte is no newline.
    assert_eq!(stream(&tokenizer, &[0, newline, invalid], &[]).2, "Hello\u{FFFD}\u{FFFD}");
    // And a search begins again where the run does.
    let (_, found, text) = stream(&tokenizer, &[0, newline, invalid, exclamation], &["\u{FFFD}\u{FFFD}!"]);
    assert_eq!((found.is_some(), text.as_str()), (true, "Hello"));
}

#[test]
fn an_unknown_or_special_token_has_no_text_and_ends_nothing() {
    let tokenizer = of_bytes(&[&[0xF0, 0x9F], &[0x98, 0x80], b"x"]);
    let special = tokenizer.token_id("<end>").unwrap();
    assert!(tokenizer.is_special(special));
    assert_eq!(stream(&tokenizer, &[0, special, 4_000_000, 1, 2], &[]).0, ["", "", "", "😀", "x", ""]);
    assert_eq!(stream(&tokenizer, &[2, 0], &[]).0, ["x", "", "\u{FFFD}"], "a cut character shows at the end");
}

#[test]
fn a_token_costs_the_same_late_in_a_sample() {
    // Not a clock: the state that grows with a sample is its text alone. A megabyte of tokens would take hours if each looked back.
    let tokenizer = of_bytes(&[b"abcdefgh", b"h"]);
    let ids: Vec<u32> = (0..200_000).map(|i| u32::from(i % 7 == 0)).collect();
    let (_, found, text) = stream(&tokenizer, &ids, &["hhhhabc", "abcdx"]);
    assert_eq!(found, None);
    assert_eq!(text, tokenizer.decode(&ids, true).unwrap());
}

#[test]
fn token_bytes_of_a_sample_are_its_text() {
    let tokenizer = smollm2();
    let text = "Naïve 안녕 🙂\n\ttabs";
    let ids = tokenizer.encode(text, false).unwrap();
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).collect();
    assert_eq!(bytes, text.as_bytes());
    assert_eq!(tokenizer.token_bytes(4_000_000), None);
    assert_eq!(fallback().token_bytes(6), Some(vec![0xEA]));
    assert_eq!(fallback().token_bytes(0), Some(b" Hello".to_vec()));
}
