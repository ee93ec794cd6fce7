//! Promise: `adaroll verify` says of responses what a job would say of them: for one in words and an exit status, for a file in lines in its
//! order or a summary; what cannot be used is refused by its argument or its line, and a bad gold spoils no row but its own.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

struct Ran {
    code: i32,
    out: String,
    error: String,
}

fn verify_with(args: &[&str], input: &[u8]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
    command.arg("verify").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its arguments reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    let done = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: done.status.code().unwrap(), out: text(done.stdout), error: text(done.stderr) }
}

fn verify(args: &[&str]) -> Ran {
    verify_with(args, b"")
}

/// Lines without the time, which alone differs from run to run.
fn lines(text: &str) -> Vec<Value> {
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        assert!(line.as_object_mut().unwrap().remove("microseconds").unwrap().as_f64().unwrap() >= 0.0);
        line
    };
    text.lines().map(line).collect()
}

fn write(dir: &Path, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn one_response_is_judged_in_words_and_by_exit_status() {
    let schema = "{\"type\": \"object\"}";
    let format = "{\"kind\": \"format\", \"mark\": \"boxed\"}";
    for (args, code, words) in [
        (vec!["--gold", "72", "--response", "So it is \\boxed{72}."], 0, "correct  (boxed/identical)  extracted: 72\n"),
        (vec!["--gold", "-3", "--response", "\\boxed{-4}"], 1, "wrong  (boxed/number)  extracted: -4\n"),
        (vec!["--gold", "72", "--response", "no idea"], 1, "no_answer  ("),
        (vec!["--gold", "72", "--response", "I get 72 of them"], 1, "no_answer  ("),
        (vec!["--gold", "72", "--response", "I get 72 of them", "--lenient"], 0, "correct  ("),
        (vec!["--gold", "72", "--response", "I get 72 of them", "--option", "lenient=true"], 0, "correct  ("),
        (vec!["--gold", "We add, so \\boxed{72} it is", "--text", "--response", "\\boxed{72}"], 0, "correct  ("),
        (vec!["--gold", "B", "--kind", "choice", "--response", "The answer is (B)."], 0, "correct  ("),
        (vec!["--gold", "X", "--kind", "choice", "--option", "choices=[\"X\", \"Y\"]", "--response", "Answer: Y"], 1, "wrong  ("),
        (vec!["--gold", "Paris", "--kind", "exact", "--response", "paris"], 1, "wrong  ("),
        (vec!["--gold", "Paris", "--kind", "exact", "--option", "ignore_case=true", "--response", "paris"], 0, "correct  ("),
        (vec!["--gold", "^\\d+$", "--kind", "regex", "--response", "12"], 0, "correct  (regex)  extracted: 12\n"),
        (vec!["--gold", schema, "--kind", "json", "--response", "[]"], 1, "wrong  (json)  extracted: []\n"),
        (vec!["--reward", format, "--response", "\\boxed{7}"], 0, "correct  (format)  extracted: 7\n"),
    ] {
        let ran = verify(&args);
        assert_eq!((ran.code, ran.error.as_str()), (code, ""), "{args:?}: {}", ran.out);
        assert!(ran.out.starts_with(words) && ran.out.lines().count() == 1, "{args:?}: {}", ran.out);
    }
    let ran = verify_with(&["--gold", "72", "--response", "-", "--json"], "first line\n\\boxed{72}\n".as_bytes());
    assert_eq!((ran.code, lines(&ran.out)), (0, vec![json!({"verdict": "correct", "extracted": "72", "rule": "boxed/identical"})]));
}

#[test]
fn what_cannot_be_used_is_named_and_exits_with_2() {
    let one = |more: &[&str]| [&["--response", "1"], more].concat().iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
    let pull = "{\"kind\": \"all\", \"parts\": [{\"kind\": \"webhook\", \"url\": \"http://x/\"}]}";
    for (args, words) in [
        (one(&["--gold", ""]), vec!["error: --gold ", "give the reference answer"]),
        (one(&["--gold", "none"]), vec!["error: --gold is \"none\""]),
        (one(&["--gold", "(", "--kind", "regex"]), vec!["--gold is no regular expression"]),
        (one(&["--gold", "{", "--kind", "json"]), vec!["--gold is no JSON"]),
        (one(&["--gold", "E", "--kind", "choice"]), vec!["--gold is \"E\"", "A, B, C, D"]),
        (one(&["--gold", "1", "--option", "strict=true"]), vec!["--option strict is not an option", "lenient", "tolerance"]),
        (one(&["--gold", "1", "--option", "lenient=maybe"]), vec!["--option lenient is"]),
        (one(&["--gold", "1", "--option", "answer=2"]), vec!["--option answer is not an option; give it as gold"]),
        (one(&["--gold", "1", "--option", "lenient"]), vec!["NAME=VALUE"]),
        (one(&["--gold", "1", "--option", "case=match", "--option", "case=ignore"]), vec!["--option case is given twice"]),
        (one(&["--gold", "A", "--kind", "choice", "--option", "choices=[\"A\", \"A\"]"]), vec!["--option choices[1]"]),
        (one(&["--gold", "1", "--kind", "webhook"]), vec!["webhook", "possible values: math"]),
        (one(&["--reward", "{"]), vec!["--reward is not JSON"]),
        (one(&["--reward", "{\"kind\": \"math\"}"]), vec!["--reward.answer is missing"]),
        (one(&["--reward", pull]), vec!["--reward.parts[0].kind is \"webhook\"", "nobody is asked"]),
        (one(&["--reward", "{\"kind\": \"pull\"}"]), vec!["--reward.kind is \"pull\"", "nobody is asked"]),
        (one(&["--reward", "{\"kind\": \"length\", \"max_tokens\": 4, \"buffer\": 1}"]), vec!["--reward.kind is \"length\""]),
        (one(&[]), vec!["--gold"]),
        (vec!["--gold".into(), "1".into()], vec!["--response"]),
        (vec![], vec!["--gold"]),
        (vec!["--file".into(), "none.jsonl".into()], vec!["none.jsonl: cannot be read"]),
        (one(&["--file", "none.jsonl"]), vec!["--file"]),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ran = verify(&args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}: {}", ran.error);
        assert!(words.iter().all(|words| ran.error.contains(words)), "{args:?}: {}", ran.error);
    }
    // A program reads the same as a verdict.
    let ran = verify(&["--gold", "none", "--response", "1", "--json"]);
    let line = &lines(&ran.out)[0];
    assert_eq!((ran.code, &line["verdict"], &line["extracted"]), (2, &json!("bad_gold"), &Value::Null));
    assert!(line["rule"].as_str().unwrap().starts_with("gold is \"none\""), "{line}");
}

#[test]
fn every_step_can_be_seen_and_help_shows_how() {
    let ran = verify(&["--gold", "\\frac{1}{2}", "--response", "Answer: 0.5", "--option", "tolerance=1e-6", "--explain"]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    for words in [
        "correct  (phrase/expression)  extracted: 0.5\n",
        "gold: \"\\\\frac{1}{2}\"\n",
        "kind: math\n",
        "tolerance=1e-6",
        "lenient=false",
        "taken for the answer: \"0.5\"\n",
        "decided by: phrase/expression; verdict correct, reward 1",
    ] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
    let ran = verify(&["--gold", "B", "--kind", "choice", "--response", "C", "--explain", "--json"]);
    let steps = lines(&ran.out)[0]["explain"].to_string();
    assert!(ran.code == 1 && steps.contains("choices=") && steps.contains("verdict wrong, reward 0"), "{steps}");
    let help = verify(&["--help"]);
    for words in ["adaroll verify --gold", "adaroll verify --file rows.jsonl --json", "bad_gold", "Exit status 0"] {
        assert!(help.code == 0 && help.out.contains(words), "{words}: {}", help.out);
    }
}

const ROWS: &str = r#"{"id": "a", "gold": "72", "response": "\\boxed{72}", "level": 4}

{"gold": 72, "response": "\\boxed{73}", "expected": false}
{"id": 7, "gold": "none", "response": "\\boxed{72}", "expected": null}
{"id": "d", "gold": "72", "response": "I get 72 of them"}
{"id": "e", "gold": "72", "response": "I get 72 of them", "options": {"lenient": true}, "expected": false}
{"id": "f", "gold": "B", "kind": "choice", "response": "Answer: B", "expected": true}
{"id": "g", "reward": {"kind": "exact", "answer": "x", "ignore_case": true}, "response": "X"}
{"id": "h", "gold": {"type": "object"}, "kind": "json", "response": "{}"}
"#;

/// Id, verdict and extracted text of every row. Which rule decides is the verifiers' own promise.
fn assert_verdicts(found: &[Value]) {
    let short = |line: &Value| ["id", "verdict", "extracted"].map(|field| line[field].clone());
    assert_eq!(
        found.iter().map(short).collect::<Vec<_>>(),
        [
            [json!("a"), json!("correct"), json!("72")],
            [json!("1"), json!("wrong"), json!("73")],
            [json!(7), json!("bad_gold"), Value::Null],
            [json!("d"), json!("no_answer"), Value::Null],
            [json!("e"), json!("correct"), json!("72")],
            [json!("f"), json!("correct"), json!("B")],
            [json!("g"), json!("correct"), json!("X")],
            [json!("h"), json!("correct"), json!("{}")],
        ]
    );
    for line in found {
        assert!(!line["rule"].as_str().unwrap().is_empty() && line.as_object().unwrap().len() == 4, "{line}");
    }
    assert!(found[2]["rule"].as_str().unwrap().starts_with("gold is \"none\", which is a placeholder"), "{}", found[2]);
}

#[test]
fn a_file_gives_a_line_for_each_row_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let rows = write(dir.path(), "rows.jsonl", ROWS);
    for threads in ["1", "3"] {
        let ran = verify(&["--file", &rows, "--json", "--threads", threads]);
        assert_eq!((ran.code, ran.error.as_str()), (1, ""), "a row is not as expected");
        assert_verdicts(&lines(&ran.out));
    }
    let ran = verify_with(&["--file", "-", "--json"], format!("\u{feff}{ROWS}").as_bytes());
    assert_verdicts(&lines(&ran.out));
    let out = dir.path().join("verdicts.jsonl");
    let ran = verify(&["--file", &rows, "--json", "--out", out.to_str().unwrap()]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert_verdicts(&lines(&std::fs::read_to_string(&out).unwrap()));
    let ran = verify(&["--file", &rows, "--out", out.to_str().unwrap()]);
    assert!(ran.out.contains("8 rows") && ran.out.contains("written to "), "{}", ran.out);
    assert_verdicts(&lines(&std::fs::read_to_string(&out).unwrap()));
    let ran = verify(&["--file", &rows, "--out", &rows]);
    assert!(ran.code == 2 && ran.error.contains("is the file that is read"), "{}", ran.error);
    assert_eq!(std::fs::read_to_string(&rows).unwrap(), ROWS);
    let ran = verify(&["--file", &rows, "--out", "/none/at/all.jsonl"]);
    assert!(ran.code == 2 && ran.error.contains("cannot be written"), "{}", ran.error);

    // Many rows on several threads: nothing is lost, repeated or out of order.
    let many: String =
        (0..5000).map(|i| format!("{{\"id\": {i}, \"gold\": \"{}\", \"response\": \"\\\\boxed{{{i}}}\"}}\n", i - i % 2)).collect();
    let many = write(dir.path(), "many.jsonl", many);
    let ran = verify(&["--file", &many, "--json", "--threads", "3"]);
    assert_eq!((ran.code, ran.error.as_str()), (0, ""));
    let found = lines(&ran.out);
    assert_eq!(found.len(), 5000);
    for (i, line) in found.iter().enumerate() {
        assert_eq!((&line["id"], &line["verdict"]), (&json!(i), &json!(["correct", "wrong"][i % 2])));
    }
}

#[test]
fn a_summary_counts_times_and_compares_with_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let rows = write(dir.path(), "rows.jsonl", ROWS);
    let ran = verify(&["--file", &rows]);
    assert_eq!((ran.code, ran.error.as_str()), (1, ""));
    println!("{}", ran.out);
    let words: Vec<&str> = ran.out.split_whitespace().collect();
    let counted = |name: &str| words[words.iter().position(|word| *word == name).unwrap() + 1];
    assert_eq!(["correct", "wrong", "no_answer", "bad_gold", "limit"].map(counted), ["5", "1", "1", "1", "0"]);
    for words in [
        "8 rows in",
        "verdicts per second",
        "microseconds: p50 ",
        "p99 ",
        "max ",
        "expected: 2 of 3 agree (66.67%); 5 rows without",
        "not as expected (1):\n  line 6  e  correct (",
        "\"72\", gold \"72\", expected not correct",
        "not correct (3):\n  line 3  wrong (boxed/number)  \"73\", gold \"72\"",
        "line 4  7  bad_gold (gold is \"none\"",
        "line 5  d  no_answer (no mark)  nothing, gold \"72\"",
    ] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
    // Options hold for rows that do not say otherwise, a whole reward for rows without gold.
    let rows = write(
        dir.path(),
        "usual.jsonl",
        "{\"gold\": \"1\", \"response\": \"I get 1 of them\"}\n{\"gold\": \"1\", \"response\": \"I get 1 of them\", \"options\": {\"lenient\": false}}\n\
         {\"gold\": \"A\", \"kind\": \"choice\", \"response\": \"A\"}",
    );
    let ran = verify(&["--file", &rows, "--lenient", "--json"]);
    let found: Vec<Value> = lines(&ran.out).iter().map(|line| line["verdict"].clone()).collect();
    assert_eq!((ran.code, found), (0, vec![json!("correct"), json!("no_answer"), json!("correct")]));
    let rows =
        write(dir.path(), "forms.jsonl", "{\"response\": \"\\\\boxed{1}\"}\n{\"response\": \"1\"}\n{\"gold\": \"1\", \"response\": \"1\"}");
    let ran = verify(&["--file", &rows, "--reward", "{\"kind\": \"format\", \"mark\": \"boxed\"}", "--json"]);
    let found: Vec<Value> = lines(&ran.out).iter().map(|line| line["verdict"].clone()).collect();
    assert_eq!((ran.code, found), (0, vec![json!("correct"), json!("no_answer"), json!("correct")]));
}

#[test]
fn every_bad_line_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let good = "{\"gold\": \"1\", \"response\": \"1\"}";
    for (line, words) in [
        ("{", "is not JSON: EOF"),
        ("[]", "the row is sequence; expected an object"),
        ("{\"gold\": \"1\", \"response\": \"1\"} 7", "is not JSON: trailing characters"),
        ("{\"gold\": \"1\"}", "response: is missing"),
        ("{\"response\": \"1\"}", "gold: is missing; give the reference answer, or a whole reward"),
        ("{\"gold\": \"1\", \"response\": 1}", "response: is integer `1`; expected a string"),
        ("{\"gold\": 0.1, \"response\": \"1\"}", "gold: is a number whose digits may have been rounded"),
        ("{\"gold\": [\"1\"], \"response\": \"1\"}", "gold: must be a string"),
        ("{\"gold\": \"1\", \"response\": \"1\", \"id\": 0.5}", "id: must be a string or a whole number"),
        ("{\"gold\": \"1\", \"response\": \"1\", \"expected\": \"yes\"}", "expected: is string \"yes\""),
        ("{\"gold\": \"1\", \"response\": \"1\", \"options\": {\"colour\": 1}}", "options.colour: is not an option of the kind \"math\""),
        ("{\"gold\": \"1\", \"response\": \"1\", \"options\": {\"tolerance\": 2}}", "options.tolerance: is 2"),
        ("{\"gold\": \"1\", \"response\": \"1\", \"options\": []}", "options: is sequence; expected an object"),
        ("{\"gold\": \"1\", \"response\": \"1\", \"kind\": \"oracle\"}", "kind: is \"oracle\", which is not judged here"),
        ("{\"gold\": \"1\", \"response\": \"1\", \"kind\": \"pull\"}", "kind: is \"pull\""),
        ("{\"gold\": \"1\", \"response\": \"1\", \"kind\": \"format\"}", "kind: is \"format\", which has no gold"),
        ("{\"gold\": \"1\", \"response\": \"1\", \"reward\": {\"kind\": \"math\", \"answer\": \"1\"}}", "gold: is given beside reward"),
        ("{\"response\": \"1\", \"reward\": {\"kind\": \"regex\", \"pattern\": \"(\"}}", "reward.pattern: is no regular expression"),
        ("{\"gold\": \"1\", \"gold\": \"2\", \"response\": \"1\"}", "gold: is given twice"),
        ("{\"gold\": \"1\", \"response\": \"1\", \"note\": {\"a\": 1, \"a\": 2}}", "note: holds the key \"a\" twice"),
    ] {
        let path = write(dir.path(), "rows.jsonl", format!("{good}\n\n{line}\n{good}\n"));
        let ran = verify(&["--file", &path, "--json"]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{line}: no row is judged before all are read: {}", ran.error);
        assert!(ran.error.starts_with(&format!("error: {path}:3: ")) && ran.error.contains(words), "{line}: {}", ran.error);
    }
    let path = write(dir.path(), "rows.jsonl", [good.as_bytes(), b"\n{\"gold\": \"\xff\"}"].concat());
    let ran = verify(&["--file", &path]);
    assert!(ran.code == 2 && ran.error.contains("rows.jsonl:2: is not UTF-8"), "{}", ran.error);
    let ran = verify_with(&["--file", "-"], b"\n \n");
    assert!(ran.code == 2 && ran.error.contains("standard input: holds no rows"), "{}", ran.error);
    // What is wrong with an argument is no line's fault.
    let path = write(dir.path(), "rows.jsonl", good);
    let ran = verify(&["--file", &path, "--option", "colour=1"]);
    assert!(ran.code == 2 && ran.error.starts_with("error: --option colour is not an option"), "{}", ran.error);
}
