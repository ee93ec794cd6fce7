//! Pairs of a reference and an answer, a line each, with the verdict that they must have (`tests/data/verifier/pairs*.txt`).
//!
//! `T ;; gold ;; response ;; {options}`: `T` is correct, `F` is not, `N` is no answer, `B` a bad gold, `L` a limit. A response stands in a box,
//! unless it begins with `!`: then it is the whole text, `\n` for a line break; `!!` asks for a lenient search besides.

use adaroll::reward::Ruling;
use adaroll::reward::math::{Gold, Options};
use serde_json::{Value, json};

fn check(file: &str, at_least: usize) {
    let path = format!("{}/tests/data/verifier/{file}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("//")) {
        let fields: Vec<&str> = line.split(" ;; ").collect();
        let [wanted, gold, response, given @ ..] = fields.as_slice() else { panic!("{file}: {line:?} has no three fields") };
        let mut options: Value = given.first().map_or(json!({}), |given| serde_json::from_str(given).unwrap());
        let raw = match response.strip_prefix('!') {
            Some(raw) => match raw.strip_prefix('!') {
                Some(raw) => {
                    options["lenient"] = true.into();
                    raw.replace("\\n\\n", "\n")
                }
                None => raw.replace("\\n\\n", "\n"),
            },
            None => format!("so \\boxed{{{response}}}"),
        };
        let options: Options = serde_json::from_value(options).unwrap();
        let judged = Gold::new(gold, options).map(|gold| gold.judge(&raw));
        let ruling = judged.as_ref().map_or(Ruling::BadGold, |found| found.ruling);
        let right = match wanted.trim() {
            "T" => ruling == Ruling::Correct,
            "F" => matches!(ruling, Ruling::Wrong | Ruling::NoAnswer | Ruling::Limit),
            "N" => ruling == Ruling::NoAnswer,
            "B" => ruling == Ruling::BadGold,
            "L" => ruling == Ruling::Limit,
            other => panic!("{file}: no verdict is called {other:?}"),
        };
        count += 1;
        if !right {
            wrong.push(format!("{line}\n    {judged:?}"));
        }
    }
    assert!(count >= at_least, "{file}: {count} rows");
    assert!(wrong.is_empty(), "{file}: {} of {count}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_kind_of_answer() {
    check("pairs", 280);
}

#[test]
fn right_answers_in_many_forms() {
    check("pairs_forms", 150);
}

#[test]
fn traps() {
    check("pairs_traps", 150);
}
