//! Any text as a response: the search ends, what it finds is part of an answer, and a lenient search finds no less.
#![no_main]

use adaroll::reward::Ruling;
use adaroll::reward::math::extract::{Extraction, extract, gold_in_text};
use adaroll::reward::math::{Gold, Options};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let strict = Options::default();
    let lenient = Options { lenient: true, ..Options::default() };
    let found = extract(text, &strict);
    assert_eq!(found, extract(text, &strict));
    match &found {
        Extraction::Found(found) => {
            assert!(!found.text.trim().is_empty(), "an empty answer was found");
            assert!(found.text.len() <= 8192, "an answer that is too long was found");
        }
        Extraction::None(why) | Extraction::Limit(why) => assert!(!why.is_empty()),
    }
    let loose = extract(text, &lenient);
    assert!(!matches!((found, loose), (Extraction::Found(_), Extraction::None(_))), "a lenient search finds less");
    let _ = gold_in_text(text, &lenient);
    // An empty response is never right, and no verdict is about the reference.
    if let Ok(gold) = Gold::new("42", strict) {
        let ruling = gold.judge(text).ruling;
        assert!(ruling != Ruling::BadGold);
        assert!(ruling != Ruling::Correct || !text.trim().is_empty());
    }
});
