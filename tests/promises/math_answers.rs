//! Real answers of real models with their labels, and the references of three data sets.

use std::io::Read;

use adaroll::reward::Ruling;
use adaroll::reward::math::{Gold, Options};
use serde_json::Value;

fn rows(file: &str) -> Vec<Value> {
    let path = format!("{}/tests/data/verifier/{file}.jsonl.gz", env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rows on which the verdict differs from the label.
fn differing(file: &str) -> (usize, Vec<(String, String)>) {
    let rows = rows(file);
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    let mut differing = Vec::new();
    for row in &rows {
        let (gold, response) = (text(row, "gold"), text(row, "response"));
        let found = Gold::new(&gold, Options::default()).unwrap().judge(&response);
        if (found.ruling == Ruling::Correct) != row["label"].as_bool().unwrap() {
            differing.push((gold, found.extracted.unwrap_or_default()));
        }
    }
    (rows.len(), differing)
}

#[test]
fn gsm8k_solutions_are_judged_as_labelled() {
    assert_eq!(differing("gsm8k_solutions"), (5276, Vec::new()));
}

/// On nine rows the label is wrong: that grader lost "p.m." from its own reading of eight answers that give the time with it, which is all
/// that was asked, and read `10{,}000` as something else than 10000.
#[test]
fn answers_of_a_model_are_judged_as_labelled_or_better() {
    let (count, differing) = differing("qwen_math");
    assert_eq!(count, 800);
    let (times, others): (Vec<_>, Vec<_>) = differing.into_iter().partition(|(gold, _)| gold == "\\text{4:30 p.m.}");
    assert_eq!(others, [("10{,}000".to_owned(), "10000".to_owned())]);
    assert_eq!(times.len(), 8);
    assert!(times.iter().all(|(_, answer)| answer == "4:30 \\text{ p.m.}"), "{times:?}");
}

fn golds() -> Vec<(String, String)> {
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    rows("golds").iter().map(|row| (text(row, "set"), text(row, "gold"))).collect()
}

#[test]
fn references_equal_themselves_bare_and_boxed() {
    let golds = golds();
    assert_eq!(golds.len(), 500 + 1319 + 7473);
    for (set, text) in golds {
        let gold = Gold::new(&text, Options::default()).unwrap_or_else(|why| panic!("{set}: {text} {why}"));
        assert!(gold.is_understood(), "{set}: {text} is only a string here");
        for response in
            [text.clone(), format!("\\boxed{{{text}}}"), format!("It is $\\boxed{{{text}}}$."), format!("The answer is ${text}$.")]
        {
            assert_eq!(gold.judge(&response).ruling, Ruling::Correct, "{set}: {text} in {response:?}");
        }
    }
}

/// All pairs of different references of MATH-500; the equal ones are other spellings.
#[test]
fn different_references_are_unequal() {
    let mut golds: Vec<String> = golds().into_iter().filter(|(set, _)| set == "math500").map(|(_, gold)| gold).collect();
    golds.sort();
    golds.dedup();
    let mut equal = Vec::new();
    for gold in &golds {
        let read = Gold::new(gold, Options::default()).unwrap();
        for other in golds.iter().filter(|other| *other != gold) {
            if read.judge(&format!("\\boxed{{{other}}}")).ruling == Ruling::Correct {
                equal.push(format!("{gold} = {other}"));
            }
        }
    }
    let expected = [
        // A bare list may stand for a tuple, in its order, and a list has none of its own.
        "(-2,1) = -2,1",
        "-2,1 = (-2,1)",
        "-2,1 = 1,-2",
        "1,-2 = -2,1",
        // Spelling.
        "10,\\!080 = 10080",
        "10080 = 10,\\!080",
        "2 \\sqrt{5} = 2\\sqrt{5}",
        "2\\sqrt{5} = 2 \\sqrt{5}",
        "\\frac14 = \\frac{1}{4}",
        "\\frac{1}{4} = \\frac14",
        // A unit or a name on one side alone.
        "120 = 120^\\circ",
        "120^\\circ = 120",
        "15 = 15\\mbox{ cm}^2",
        "15\\mbox{ cm}^2 = 15",
        "30 = 30^\\circ",
        "30^\\circ = 30",
        "36 = 36^\\circ",
        "36 = \\$36",
        "36^\\circ = 36",
        "90 = 90^\\circ",
        "90^\\circ = 90",
        "\\$36 = 36",
        "5 = x=5",
        "x=5 = 5",
    ];
    let mut expected: Vec<String> = expected.map(str::to_owned).to_vec();
    expected.sort();
    equal.sort();
    assert_eq!(equal, expected);
}

/// A neighbour in the last digit is unequal.
#[test]
fn neighbours_of_references_are_unequal() {
    for (set, text) in golds() {
        let Some(at) = text.rfind(|c: char| c.is_ascii_digit()) else { continue };
        let digit = text[at..].chars().next().and_then(|c| c.to_digit(10)).unwrap();
        // 0^n and n^0 forgive nothing here: another digit is another number.
        let neighbour = format!("{}{}{}", &text[..at], (digit + 1) % 10, &text[at + 1..]);
        let gold = Gold::new(&text, Options::default()).unwrap();
        // A unit's power is no part of the number.
        if text.contains("^2}") || text.ends_with("}^2") {
            continue;
        }
        assert_ne!(gold.judge(&format!("\\boxed{{{neighbour}}}")).ruling, Ruling::Correct, "{set}: {text} and {neighbour}");
    }
}
