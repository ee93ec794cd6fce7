//! Promise: the number of an answer is found and compared exactly.

use adaroll::reward::number::{Number, extract};
use adaroll::reward::{Spec, Verdict};
use serde_json::json;

fn judge(gold: &str, text: &str) -> Verdict {
    Spec::read(&json!({"kind": "math", "answer": gold})).unwrap().compile().unwrap().judge(text)
}

#[test]
fn math_finds_and_compares_numbers() {
    let rows: &[(&str, &str, bool)] = &[
        ("72", "so 70 + 2 = 72\n#### 72", true),
        ("72", "#### 72.", true),
        ("72", "#### $72.00 per day", true),
        ("72", "it is 72, I said so", true),
        ("72", "#### 73 and 72", true),
        ("72", "first 72, then 71", false),
        ("72", "no number at all", false),
        ("72", "", false),
        ("72", "#### 72\nThat took 3 steps", true),
        ("72", "#### Step 1\nwe get \\boxed{72}", true),
        ("72", "\\boxed{71} no, \\boxed{72}. Checked 5 times", true),
        ("72", "\\boxed{72}\n#### 71", false),
        ("72", "A: 72%", true),
        ("72", "A: 72km", true),
        ("2125", "#### 2,125", true),
        ("2,125", "it cost $2,125.", true),
        ("1450000", "1,450,000", true),
        ("3", "options 1, 2, 3", true),
        ("123", "12,3", false),
        ("-5", "x = -5", true),
        ("-5", "x = \u{2212}5", true),
        ("-5", "it is -$5", true),
        ("-5", "it is $-5", true),
        ("5", "10-5", true),
        ("5", "16 - 11 = 5", true),
        ("0.5", "the half, .5", true),
        ("0.5", "1/2", true),
        ("1/2", "0.50", true),
        ("1/2", "\\boxed{\\frac{2}{4}}", true),
        ("-1/2", "\\boxed{-\\dfrac{1}{2}}", true),
        ("0.333", "1/3", false),
        ("1/3", "2/6", true),
        ("0.1", "0.1000000000000000055511151231257827", false),
        ("0.30000000000000004", "0.3", false),
        ("19/10", "\\boxed{1\\frac{9}{10}}", true),
        ("9/10", "\\boxed{1\\frac{9}{10}}", false),
        ("-1.5", "-1\\frac{1}{2}", true),
        ("50,\\!625", "\\boxed{50{,}625}", true),
        ("72", "#### 72\n#### The end", true),
        ("0", "-0.00", true),
        ("007", "7", true),
        ("5", "5/0", false),
        ("18", "Janet makes $18/day", true),
        ("9007199254740993", "9007199254740992", false),
        ("3", "\\boxed{3", true),
        ("4", "{}}\\boxed}4{", true),
    ];
    for (gold, text, right) in rows {
        assert_eq!(
            judge(gold, text),
            Verdict::Scored(f64::from(u8::from(*right))),
            "gold {gold:?}, text {text:?}, found {:?}",
            extract(text)
        );
    }
}

#[test]
fn bad_gold_is_told_from_a_wrong_answer() {
    for gold in ["", "abc", "72 dollars", "1 2", "5/0", "--3", "1/2/3", "#### ", "\\frac{1}{x}", "1/0.0", "NaN", "inf", "1e5"] {
        let spec = Spec::read(&json!({"kind": "math", "answer": gold})).unwrap();
        let bad = spec.compile().expect_err(gold);
        assert_eq!(bad.field, "answer");
        assert!(bad.problem.contains("not one number"), "{}", bad.problem);
    }
    for gold in ["72", " 72. ", "$1,450,000", "50%", "50\\%", "-1.5", "\u{2212}3", "3/4", "\\frac{3}{4}", "9 * 8 = 72\n#### 72"] {
        assert!(Number::parse_gold(gold).is_some(), "{gold}");
    }
}

#[test]
fn long_rows_of_digits_cost_no_more_than_reading_them() {
    let long = "9".repeat(1_000_000);
    let started = std::time::Instant::now();
    assert_eq!(judge(&long, &format!("#### {long}")), Verdict::Scored(1.0));
    assert_eq!(judge("72", &long), Verdict::Scored(0.0));
    assert_eq!(judge("72", &"1,".repeat(300_000)), Verdict::Scored(0.0));
    assert_eq!(judge("72", &"\\boxed{".repeat(20_000)), Verdict::Scored(0.0));
    assert_eq!(judge("72", &"{-$-".repeat(200_000)), Verdict::Scored(0.0));
    assert!(matches!(judge("72", &format!("1/{long}")), Verdict::Limit(_)));
    assert!(started.elapsed().as_secs() < 20, "took {:?}", started.elapsed());
}

#[test]
fn agreement_with_published_labels() {
    let rows = include_str!("../data/gsm8k_solutions_sample.jsonl");
    let (mut agree, mut total) = (0, 0);
    for row in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        let verdict = judge(row["answer"].as_str().unwrap(), row["response"].as_str().unwrap());
        total += 1;
        let label = row["label"].as_bool().unwrap();
        if verdict == Verdict::Scored(f64::from(u8::from(label))) {
            agree += 1;
        } else {
            println!("label {label}, verdict {verdict:?}: answer {}, response {}", row["answer"], row["response"]);
        }
    }
    println!("{agree} of {total} agree");
    assert_eq!((agree, total), (203, 203));
}
