//! Any text as an answer: it is read or refused, in bounded work, and what is read equals itself.
#![no_main]

use adaroll::reward::math::Options;
use adaroll::reward::math::answer::answer;
use adaroll::reward::math::compare::Comparison;
use adaroll::reward::math::lex::{Commas, lex};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for commas in [Commas::Thousands, Commas::Punctuation, Commas::Decimal] {
        let Ok(tokens) = lex(text, commas) else { continue };
        assert!(tokens.len() <= 4096, "more tokens than the limit");
        let Ok(read) = answer(&tokens) else { continue };
        assert_eq!(answer(&tokens).as_ref(), Ok(&read));
        if !read.is_read() {
            continue;
        }
        let options = Options::default();
        assert!(Comparison::new(&options).same(&read, &read) != Ok(false), "{text:?} is not itself");
    }
});
