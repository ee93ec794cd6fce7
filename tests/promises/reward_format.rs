//! Promise: a form is looked for in the whole text, in time linear in its length, and emptiness earns nothing.

use std::time::{Duration, Instant};

use adaroll::reward::Verdict;
use serde_json::{Value, json};

use crate::reward_kit::{compile, judge};

fn form(think: Value, mark: Value, exactly_one: bool) -> Value {
    json!({"kind": "format", "think": think, "mark": mark, "exactly_one": exactly_one})
}

#[test]
fn forms_are_told_apart() {
    let boxed = || form(json!(true), json!("boxed"), true);
    let tagged = || form(json!("optional"), json!("answer_tag"), true);
    let hashes = || form(json!(false), json!("hashes"), true);
    let last = |mark: &str| form(json!(false), json!(mark), false);
    let thought = || form(json!(true), json!(null), true);
    let inside = || form(json!("prefilled"), json!("boxed"), true);
    // (form, text, what is extracted or which rule is broken)
    let rows: Vec<(Value, &str, Result<&str, &str>)> = vec![
        (boxed(), "<think>70 + 2</think> It is \\boxed{72}.", Ok("72")),
        (boxed(), " \n<think>\n70 + 2\n</think>\n\\boxed {7{2}}", Ok("7{2}")),
        (boxed(), "\\boxed{72}", Err("wrong format/think")),
        (boxed(), "Well. <think>70 + 2</think> \\boxed{72}", Err("wrong format/think")),
        (boxed(), "<think>70 + 2 \\boxed{72}", Err("wrong format/think")),
        (boxed(), "70 + 2</think> \\boxed{72}", Err("wrong format/think")),
        (boxed(), "</think>70 + 2<think> \\boxed{72}", Err("wrong format/think")),
        (boxed(), "<think>70 + 2</think></think> \\boxed{72}", Err("wrong format/think")),
        (boxed(), "<think><think>70 + 2</think> \\boxed{72}", Err("wrong format/think")),
        (boxed(), "<think>a</think> <think>b</think> \\boxed{72}", Err("wrong format/think")),
        (boxed(), "<think></think> \\boxed{72}", Err("wrong format/empty_think")),
        (boxed(), "<think> \n\t </think> \\boxed{72}", Err("wrong format/empty_think")),
        (boxed(), "<think>...</think> \\boxed{72}", Err("wrong format/empty_think")),
        (boxed(), "<think>\u{200b}\u{3164}</think> \\boxed{72}", Err("wrong format/empty_think")),
        (boxed(), "<think>70 + 2</think>", Err("no_answer format/no_answer")),
        (boxed(), "<think>\\boxed{72}</think> \n", Err("no_answer format/no_answer")),
        (boxed(), "<think>\\boxed{72}</think> Done.", Err("no_answer format/no_mark")),
        (boxed(), "<think>70 + 2</think> It is 72.", Err("no_answer format/no_mark")),
        (boxed(), "<think>so \\boxed{72}?</think> \\boxed{72}", Err("wrong format/marks")),
        (boxed(), "<think>70 + 2</think> \\boxed{71} \\boxed{72}", Err("wrong format/marks")),
        (boxed(), "<think>70 + 2</think> \\boxed{72", Err("wrong format/open_mark")),
        (boxed(), "<think>70 + 2</think> \\boxed 72", Err("wrong format/open_mark")),
        (boxed(), "<think>70 + 2</think> \\boxed{}", Err("no_answer format/empty_mark")),
        (boxed(), "<think>70 + 2</think> \\boxed{ \\, \\text{} {} . }", Err("no_answer format/empty_mark")),
        (boxed(), "<think>70 + 2</think> \\boxed{\u{200b}\u{2060}}", Err("no_answer format/empty_mark")),
        (boxed(), "<think>70 + 2</think> \\boxed{\\emptyset}", Ok("\\emptyset")),
        (boxed(), "<think>70 + 2</think> \\boxed{<}", Ok("<")),
        (boxed(), "<think>70 + 2</think> \\boxed{\u{221e}}", Ok("\u{221e}")),
        (boxed(), "<think>\u{601d}\u{8003}</think> \\boxed{\u{56db}}", Ok("\u{56db}")),
        (boxed(), "", Err("wrong format/think")),
        (tagged(), "<answer>72</answer>", Ok("72")),
        (tagged(), "So:\n<answer>\n72 apples\n</answer>\nDone.", Ok("72 apples")),
        (tagged(), "<think>hm</think><answer>72</answer>", Ok("72")),
        (tagged(), "<think></think><answer>72</answer>", Err("wrong format/empty_think")),
        (tagged(), "<answer>72", Err("wrong format/open_mark")),
        (tagged(), "</answer>72<answer>", Err("wrong format/open_mark")),
        (tagged(), "<answer> </answer>", Err("no_answer format/empty_mark")),
        (tagged(), "<answer>71</answer> <answer>72</answer>", Err("wrong format/marks")),
        (tagged(), "<answer>72</answer></answer>", Err("wrong format/marks")),
        (tagged(), "72", Err("no_answer format/no_mark")),
        (hashes(), "70 + 2 = 72\n#### 72", Ok("72")),
        (hashes(), "<think>70 + 2</think>\n#### 72", Err("wrong format/think")),
        (hashes(), "#### Step 1\n#### 72", Err("wrong format/marks")),
        (hashes(), "so ####\n72", Err("no_answer format/empty_mark")),
        (hashes(), "so 72", Err("no_answer format/no_mark")),
        (last("hashes"), "#### Step 1\n#### 72", Ok("72")),
        (last("boxed"), "\\boxed{71} or \\boxed{72}", Ok("72")),
        (last("boxed"), "\\boxed{71} or \\boxed{}", Err("no_answer format/empty_mark")),
        (last("answer_tag"), "<answer>1</answer><answer>2</answer>", Ok("2")),
        (thought(), "<think>70 + 2</think> It is 72.", Ok("It is 72.")),
        (thought(), "<think>70 + 2</think> ...", Err("no_answer format/no_answer")),
        (thought(), "It is 72.", Err("wrong format/think")),
        (inside(), "70 + 2</think> \\boxed{72}", Ok("72")),
        (inside(), "<think>70 + 2</think> \\boxed{72}", Ok("72")),
        (inside(), "</think> \\boxed{72}", Err("wrong format/empty_think")),
        (inside(), "70 + 2 \\boxed{72}", Err("wrong format/think")),
    ];
    for (form, text, expected) in rows {
        let judgement = compile(form.clone()).judge(text);
        let found = judgement.found.unwrap();
        let got = match &found.extracted {
            Some(extracted) => Ok(extracted.as_str()),
            None => Err(format!("{} {}", found.ruling.name(), found.rule)),
        };
        assert_eq!(got.as_deref(), expected.map_err(str::to_owned).as_ref().map(|text| *text), "{form}, {text:?}");
        assert_eq!(judgement.verdict, Verdict::Scored(f64::from(u8::from(expected.is_ok()))), "{form}, {text:?}");
        assert_eq!(found.rule == "format", expected.is_ok());
    }
}

#[test]
fn hostile_texts_cost_no_more_than_reading_them() {
    let started = Instant::now();
    let n = 300_000;
    let texts = [
        "<think>".repeat(n),
        "</think>".repeat(n),
        format!("<think>a</think>{}", "\\boxed{".repeat(n)),
        format!("<think>a</think>{}", "\\boxed{a}".repeat(n)),
        format!("<think>a</think>\\boxed{}", "{".repeat(n)),
        format!("<think>a</think>\\boxed{{{}}}", "\\,".repeat(n)),
        format!("<think>a</think>{}", "<answer>".repeat(n)),
        format!("<think>a</think>{}", "#".repeat(n)),
        format!("<think>{}</think>\\boxed{{1}}", "\u{200b}".repeat(n)),
    ];
    for text in &texts {
        for mark in ["boxed", "answer_tag", "hashes"] {
            for exactly_one in [true, false] {
                assert!(matches!(judge(&form(json!(true), json!(mark), exactly_one), text), Verdict::Scored(_)));
            }
        }
    }
    assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
}
