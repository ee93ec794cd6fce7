//! A reference and a response, with a line break between them: one verdict, the same again, and a reference equals itself.
#![no_main]

use adaroll::reward::Ruling;
use adaroll::reward::math::{Gold, Options, Rounding};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Some((reference, response)) = text.split_once('\n') else { return };
    let boxed = |inside: &str| format!("\\boxed{{{inside}}}");
    let exact = Options { rounding: Rounding::Never, ..Options::default() };
    for options in [Options::default(), exact] {
        let Ok(gold) = Gold::new(reference, options.clone()) else { continue };
        let found = gold.judge(&boxed(response));
        assert_eq!(found, gold.judge(&boxed(response)));
        assert!(found.ruling != Ruling::BadGold);
        let plain = !gold.text().contains(['{', '}', '<', '\\', '#', '$', '*']);
        if plain && gold.is_understood() {
            assert_eq!(gold.judge(&boxed(gold.text())).ruling, Ruling::Correct, "{reference:?} is not itself");
        }
    }
});
