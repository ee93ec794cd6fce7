//! Promise: what the text alone decides is judged exactly, and what cannot be judged is never a silent zero.

use std::time::Duration;

use adaroll::reward::{Judge, KINDS, Pool, PoolSettings, Spec, Verdict};
use serde_json::{Value, json};

use crate::fake_engine::mix;
use crate::reward_kit::{asked, compile, failure, judge, metrics};

/// Rows of (reward, text, right).
fn check(rows: &[(Value, &str, bool)]) {
    for (reward, text, right) in rows {
        assert_eq!(judge(reward, text), Verdict::Scored(f64::from(u8::from(*right))), "{reward}, text {text:?}");
    }
}

#[test]
fn exact_compares_the_whole_text() {
    let paris = || json!({"kind": "exact", "answer": "Paris"});
    check(&[
        (paris(), "Paris", true),
        (paris(), " \nParis\t\n", true),
        (paris(), "paris", false),
        (paris(), "Paris.", false),
        (paris(), "It is Paris", false),
        (paris(), "", false),
        (json!({"kind": "exact", "answer": " Paris "}), "Paris", true),
        (json!({"kind": "exact", "answer": "Paris", "trim": false}), "Paris ", false),
        (json!({"kind": "exact", "answer": "Paris ", "trim": false}), "Paris ", true),
        (json!({"kind": "exact", "answer": "PARIS", "ignore_case": true}), "paris", true),
        (json!({"kind": "exact", "answer": "ÉCOLE", "ignore_case": true}), "école", true),
        (json!({"kind": "exact", "answer": "ÉCOLE", "ignore_case": true}), "ecole", false),
        (json!({"kind": "exact", "answer": " ", "trim": false}), " ", true),
    ]);
}

#[test]
fn regex_matches_anywhere() {
    let word = || json!({"kind": "regex", "pattern": "\\bfour(teen)?\\b"});
    check(&[
        (word(), "it is four.", true),
        (word(), "it is fourteen", true),
        (word(), "it is forty-four", true),
        (word(), "it is fourty", false),
        (word(), "Four", false),
        (json!({"kind": "regex", "pattern": "four", "ignore_case": true}), "FOUR", true),
        (json!({"kind": "regex", "pattern": "^4$"}), "so\n4\n", false),
        (json!({"kind": "regex", "pattern": "(?m)^4$"}), "so\n4\n", true),
        (json!({"kind": "regex", "pattern": "."}), "", false),
    ]);
}

/// `a` and `b` in no order.
fn mixed(length: u64) -> String {
    (0..length).map(|i| if mix(&[i]).is_multiple_of(2) { 'a' } else { 'b' }).collect()
}

#[test]
fn no_pattern_runs_away() {
    // A backtracking engine needs 2^n steps for these.
    let text = format!("{}!", "a".repeat(200_000));
    let started = std::time::Instant::now();
    for pattern in ["^(a+)+$", "^(a|aa)+$", "^(a?){50}(a){50}$", "(x+x+)+y"] {
        assert_eq!(judge(&json!({"kind": "regex", "pattern": pattern}), &text), Verdict::Scored(0.0), "{pattern}");
    }
    // Too many states to remember: the slowest of the engines, as large as a pattern may be.
    let text = mixed(20_000);
    assert_eq!(judge(&json!({"kind": "regex", "pattern": "[ab]*a[ab]{9000}c"}), &text), Verdict::Scored(0.0));
    assert!(Spec::read(&json!({"kind": "regex", "pattern": "[ab]*a[ab]{90000}c"})).unwrap_err().problem.contains("compiles to more than"));
    let text = format!("{}!", "a".repeat(200_000));
    let schema = json!({"kind": "json", "schema": {"pattern": "^(a+)+$"}});
    assert_eq!(judge(&schema, &format!("\"{text}\"")), Verdict::Scored(0.0));
    assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
}

#[test]
fn choice_finds_what_the_text_settles_on() {
    let rows: &[(&str, Option<&str>)] = &[
        ("\\boxed{B}", Some("B")),
        ("so \\boxed{\\text{B}}.", Some("B")),
        ("so $\\boxed{(b)}$", Some("B")),
        ("\\boxed{B. Paris}", Some("B")),
        ("\\boxed{42}", None),
        ("\\boxed{A} no, \\boxed{C}", Some("C")),
        ("The answer is (B).", Some("B")),
        ("The answer is B because it rains", Some("B")),
        ("the correct answer is: **B**", Some("B")),
        ("The answer is \\(\\text{B}\\).", Some("B")),
        ("Answer: B", Some("B")),
        ("Answer: b", Some("B")),
        ("**Answer:** B", Some("B")),
        ("ANSWER: (D) the last one", Some("D")),
        ("The answer is option C, as shown", Some("C")),
        ("I choose option C, since A is too small", Some("C")),
        ("(B) is correct. The others are not.", Some("B")),
        ("B is the right one", Some("B")),
        ("First I thought the answer is A. But no, the answer is B", Some("B")),
        ("\\boxed{A}\nWait. The answer is B.", Some("B")),
        ("The answer is B.\n\\boxed{A}", Some("A")),
        ("The answer is (B). I considered C", Some("B")),
        ("B", Some("B")),
        ("b", Some("B")),
        ("(B)", Some("B")),
        ("B.", Some("B")),
        ("B) Paris", Some("B")),
        ("B. Paris", Some("B")),
        ("(B) Paris", Some("B")),
        ("Let me think.\n\nB", Some("B")),
        ("**B**\n\nIt is the capital.", Some("B")),
        ("I would go with B", Some("B")),
        ("therefore, (C).", Some("C")),
        ("Option A is 1, option D is 4. Therefore B.", Some("B")),
        ("The correct option is C, option D is not", Some("C")),
        ("My choice: C", Some("C")),
        ("I can't pick A. So the answer is D", Some("D")),
        ("Final answer:\n\n**C**", Some("C")),
        // Not clear.
        ("I would not pick B for this", None),
        ("Option A is 1. Option B is 2. Option C is 3", None),
        ("", None),
        ("no idea", None),
        ("a", Some("A")),
        ("The answer is a matter of taste", None),
        ("The answer is a big number", None),
        ("A man walks into a bar", None),
        ("It is either A or B", None),
        ("The answer is A or B", None),
        ("The answer is (A) and (B).", None),
        ("The answer is not B.", None),
        ("It isn't B", None),
        ("Answer: Bee", None),
        ("Answer: B\u{fc}cher", None),
        ("The answer is E", None),
        ("vitamin-rich food", None),
        ("Options:\nA. 1\nB. 2\nC. 3\nD. 4", None),
    ];
    let mut wrong = Vec::new();
    for (text, found) in rows {
        for choice in ["A", "B", "C", "D"] {
            let verdict = judge(&json!({"kind": "choice", "answer": choice}), text);
            if verdict != Verdict::Scored(f64::from(u8::from(*found == Some(choice)))) {
                wrong.push(format!("{text:?}: {choice} is {verdict:?}, expected {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let words = |answer: &str| json!({"kind": "choice", "answer": answer, "choices": ["yes", "no", "unknown"]});
    check(&[
        (words("yes"), "The answer is Yes.", true),
        (words("yes"), "Yes", true),
        (words("no"), "yes", false),
        (words("no"), "I know", false),
        (words("no"), "Answer: no", true),
        (words("unknown"), "the answer is unknown to me", true),
        (
            json!({"kind": "choice", "answer": "\u{43d}\u{435}\u{442}", "choices": ["\u{434}\u{430}", "\u{43d}\u{435}\u{442}"]}),
            "Answer: \u{43d}\u{435}\u{442}.",
            true,
        ),
        (json!({"kind": "choice", "answer": "10", "choices": ["1", "10"]}), "answer: 10", true),
        (json!({"kind": "choice", "answer": "1", "choices": ["1", "10"]}), "answer: 10", false),
    ]);
}

#[test]
fn json_is_read_and_validated() {
    let person = || {
        json!({"kind": "json", "schema": {"type": "object", "required": ["name", "age"], "additionalProperties": false,
            "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}}}})
    };
    check(&[
        (person(), r#"{"name": "Ada", "age": 36}"#, true),
        (person(), r#"{"name": "Ada", "age": -1}"#, false),
        (person(), r#"{"name": "Ada"}"#, false),
        (person(), r#"{"name": "Ada", "age": 36, "born": 1815}"#, false),
        (person(), r#"{"name": "Ada", "age": 36"#, false),
        (person(), "no JSON at all", false),
        (person(), "", false),
        (person(), "Here:\n```json\n{\"name\": \"Ada\", \"age\": 36}\n```\nDone.", true),
        (person(), "```JSON\n{\"name\": \"Ada\", \"age\": 36}\n```", true),
        (person(), "```json\n{\"name\": 1}\n```\nbetter:\n```json\n{\"name\": \"Ada\", \"age\": 36}\n```", true),
        (person(), "```json\n{\"name\": \"Ada\", \"age\": 36}\n```\nworse:\n```json\n{\"name\": 1}\n```", false),
        (person(), "```json\n{\"name\": \"Ada\", \"age\": 36}", false),
        (person(), "```python\n{\"name\": \"Ada\", \"age\": 36}\n```", false),
        (person(), "{\"name\": \"Ada\", \"age\": 36} as asked", false),
        (json!({"kind": "json", "schema": true}), "[]", true),
        (json!({"kind": "json", "schema": {}}), "not this", false),
        (json!({"kind": "json", "schema": {"type": "string", "format": "date"}}), "\"2024-01-01\"", true),
        (json!({"kind": "json", "schema": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "number"}}}}), "1.5", true),
    ]);
}

#[test]
fn json_beyond_the_limits_is_a_limit_and_no_zero() {
    let any = json!({"kind": "json", "schema": {}});
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(judge(&any, &deep(100)), Verdict::Scored(1.0));
    for text in [deep(200), deep(400_000), "[".repeat(1_000_000), "1e999".into(), format!("\"{}\"", "x".repeat(1 << 20))] {
        let verdict = judge(&any, &text);
        assert!(matches!(verdict, Verdict::Limit(_)), "{verdict:?} for {} bytes", text.len());
    }
    let fenced = format!("so:\n```json\n{}\n```", deep(1000));
    assert!(matches!(judge(&any, &fenced), Verdict::Limit(_)));
}

#[test]
fn schemas_that_call_themselves_end() {
    // As deep as answers and requests can be; on a thread with the stack that verifiers get.
    let mut nested = json!({"type": "array"});
    (0..50).for_each(|_| nested = json!({"items": nested}));
    let schemas = [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        json!({"not": {"$ref": "#"}}),
        json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"items": {"$ref": "#"}, "anyOf": [{"type": "array"}, {"type": "number"}]}),
        json!({"$dynamicAnchor": "n", "allOf": [{"$dynamicRef": "#n"}]}),
        nested,
    ];
    let text = format!("{}{}", "[".repeat(120), "]".repeat(120));
    for schema in schemas {
        let text = text.clone();
        let judged = std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || Spec::read(&json!({"kind": "json", "schema": schema})).map(|spec| spec.compile().unwrap().judge(&text).verdict));
        let judged = judged.unwrap().join().unwrap();
        assert!(matches!(judged, Ok(Verdict::Scored(_)) | Err(_)), "{judged:?}");
    }
}

#[test]
fn bad_fields_are_named() {
    let rows = [
        (json!({"kind": "exact"}), "answer", "is missing"),
        (json!({"kind": "exact", "answer": 4}), "answer", "expected a string"),
        (json!({"kind": "exact", "answer": "4", "case": true}), "case", "is not a field here"),
        (json!({"kind": "exact", "answer": "4", "trim": "no"}), "trim", "expected a boolean"),
        (json!({"kind": "exact", "answer": "4", "trim": null}), "trim", "expected a boolean"),
        (json!({"kind": "regex"}), "pattern", "is missing"),
        (json!({"kind": "regex", "pattern": ""}), "pattern", "is empty"),
        (json!({"kind": "regex", "pattern": "(a"}), "pattern", "unclosed group"),
        (json!({"kind": "regex", "pattern": "(?=a)"}), "pattern", "look-around"),
        (json!({"kind": "regex", "pattern": "a{1000}{1000}"}), "pattern", "compiles to more than"),
        (json!({"kind": "regex", "pattern": "a".repeat(9000)}), "pattern", "9000 bytes long"),
        (json!({"kind": "regex", "pattern": "a", "flags": "i"}), "flags", "is not a field here"),
        (json!({"kind": "choice", "answer": "A", "choices": "ABCD"}), "choices", "expected a sequence"),
        (json!({"kind": "choice", "answer": "A", "choices": ["A"]}), "choices", "holds 1 choices"),
        (json!({"kind": "choice", "answer": "A", "choices": ["A", ""]}), "choices[1]", "give one word"),
        (json!({"kind": "choice", "answer": "A", "choices": ["A", "B C"]}), "choices[1]", "give one word"),
        (json!({"kind": "choice", "answer": "A", "choices": ["A", "B", "a"]}), "choices[2]", "is there already"),
        (json!({"kind": "choice", "answer": "A", "choices": ["A", 2]}), "choices[1]", "expected a string"),
        (json!({"kind": "json"}), "schema", "is missing"),
        (json!({"kind": "json", "schema": 4}), "schema", "no schema"),
        (json!({"kind": "json", "schema": {"type": "number?"}}), "schema", "cannot be compiled"),
        (
            json!({"kind": "json", "schema": {"$ref": "http://127.0.0.1:1/schema"}}),
            "schema",
            "http://127.0.0.1:1/schema, which is not looked up; put it",
        ),
        (json!({"kind": "json", "schema": {"$ref": "https://example.org/a.json#/b"}}), "schema", "https://example.org/a.json"),
        (json!({"kind": "json", "schema": {"items": {"$ref": "other.json"}}}), "schema", "which is not looked up; put it"),
        (json!({"kind": "json", "schema": {"$ref": "file:///etc/hostname"}}), "schema", "file:///etc/hostname, which is not looked up"),
        (json!({"kind": "json", "schema": {"$schema": "http://127.0.0.1:1/draft"}}), "schema", "cannot be compiled"),
        (json!({"kind": "json", "schema": {"pattern": "(a"}}), "schema", "cannot be compiled"),
        (json!({"kind": "json", "schema": {"const": "x".repeat(100_000)}}), "schema", "bytes long"),
        (json!({"kind": "webhook"}), "url", "is missing"),
        (json!({"kind": "webhook", "url": "grader"}), "url", "is no URL"),
        (json!({"kind": "webhook", "url": "ftp://grader/"}), "url", "use http or https"),
        (json!({"kind": "webhook", "url": "file:///etc/passwd"}), "url", "use http or https"),
        (json!({"kind": "webhook", "url": "http://me:secret@grader/"}), "url", "leave them out"),
        (json!({"kind": "webhook", "url": "http://me@grader/"}), "url", "leave them out"),
        (json!({"kind": "webhook", "url": "http://grader/#top"}), "url", "leave it out"),
        (json!({"kind": "webhook", "url": "http://grader/", "timeout_s": 0}), "timeout_s", "give seconds"),
        (json!({"kind": "webhook", "url": "http://grader/", "timeout_s": -1}), "timeout_s", "give seconds"),
        (json!({"kind": "webhook", "url": "http://grader/", "timeout_s": 1e300}), "timeout_s", "give seconds"),
        (json!({"kind": "webhook", "url": "http://grader/", "timeout_s": null}), "timeout_s", "is null"),
        (json!({"kind": "webhook", "url": "http://grader/", "retries": 3}), "retries", "is not a field here"),
        (json!({"kind": "pull", "timeout_s": 0}), "timeout_s", "give seconds"),
        (json!({"kind": "pull", "answer": "4"}), "answer", "is not a field here"),
        (json!({"kind": "oracle"}), "kind", "pull"),
        (json!({"kind": 4}), "kind", "does not judge"),
        (json!({"answer": "4"}), "kind", "is missing"),
        (json!(["exact", "4"]), "", "must be an object"),
    ];
    for (reward, path, problem) in rows {
        let error = Spec::read(&reward).map(|_| reward.clone()).expect_err("was taken");
        assert_eq!(error.path, path, "{reward}: {error}");
        assert!(error.problem.contains(problem), "{reward}: {error}");
        assert!(error.problem.len() < 600, "{reward}: {} bytes", error.problem.len());
    }
}

#[test]
fn bad_golds_are_told_from_bad_fields() {
    let rows = [
        (json!({"kind": "math", "answer": "todo"}), "is a placeholder"),
        (json!({"kind": "math", "answer": " "}), "holds no answer"),
        (json!({"kind": "exact", "answer": ""}), "is empty"),
        (json!({"kind": "exact", "answer": " \n"}), "is empty"),
        (json!({"kind": "exact", "answer": "", "trim": false}), "is empty"),
        (json!({"kind": "choice", "answer": "E"}), "not among the choices A, B, C, D"),
        (json!({"kind": "choice", "answer": "a"}), "not among the choices"),
        (json!({"kind": "choice", "answer": ""}), "not among the choices"),
        (json!({"kind": "choice", "answer": "no", "choices": ["yes", "maybe"]}), "not among the choices yes, maybe"),
    ];
    for (reward, problem) in rows {
        let bad = Spec::read(&reward).unwrap().compile().expect_err("was taken");
        assert_eq!(bad.field, "answer", "{reward}");
        assert!(bad.problem.contains(problem), "{reward}: {bad}");
    }
}

#[test]
fn what_is_echoed_reads_back_the_same() {
    let rewards = [
        json!({"kind": "math", "answer": "72"}),
        json!({"kind": "exact", "answer": " Paris"}),
        json!({"kind": "exact", "answer": "Paris", "ignore_case": true, "trim": false}),
        json!({"kind": "regex", "pattern": "a+", "ignore_case": true}),
        json!({"kind": "choice", "answer": "B"}),
        json!({"kind": "choice", "answer": "y", "choices": ["x", "y"]}),
        json!({"kind": "json", "schema": {"type": "object", "properties": {"z": {"kind": "a"}, "a": {"minimum": 0.1}}}}),
        json!({"kind": "webhook", "url": "http://127.0.0.1:9000/grade?x=1"}),
        json!({"kind": "webhook", "url": "https://GRADER.example", "timeout_s": 0.3, "data": {"tests": [1, 2.5, null]}}),
        json!({"kind": "pull"}),
        json!({"kind": "pull", "timeout_s": 12.25}),
        json!({"kind": "format", "mark": "boxed"}),
        json!({"kind": "format", "think": true, "mark": "answer_tag", "exactly_one": false}),
        json!({"kind": "format", "think": false}),
        json!({"kind": "format", "think": "prefilled", "mark": "hashes"}),
        json!({"kind": "length", "max_tokens": 4096, "buffer": 512}),
        json!({"kind": "all", "parts": [{"kind": "exact", "answer": "x", "ignore_case": true, "trim": false}]}),
        json!({"kind": "any", "parts": [{"kind": "math", "answer": "1"}, {"kind": "regex", "pattern": "a", "ignore_case": false}]}),
        json!({"kind": "weighted", "parts": [
            {"weight": 0.1, "reward": {"kind": "all", "parts": [{"kind": "math", "answer": "1"}]}},
            {"weight": -1e300, "reward": {"kind": "length", "max_tokens": 2, "buffer": 1}}]}),
    ];
    assert!(KINDS.iter().all(|kind| rewards.iter().any(|reward| reward["kind"] == *kind)));
    for reward in rewards {
        let spec = Spec::read(&reward).unwrap();
        let echo = serde_json::to_string(&spec).unwrap();
        let again = Spec::read(&serde_json::from_str(&echo).unwrap()).unwrap();
        assert_eq!(again, spec, "{echo}");
        assert_eq!(serde_json::to_string(&again).unwrap(), echo);
        assert_eq!(spec.compile().unwrap().kind(), reward["kind"]);
        // Every default is spelled out, and nothing that was given is lost.
        let echo: Value = serde_json::from_str(&echo).unwrap();
        for (field, value) in reward.as_object().unwrap() {
            assert_eq!(&echo[field], value, "{echo}");
        }
    }
    let echo = serde_json::to_value(Spec::read(&json!({"kind": "exact", "answer": "x"})).unwrap()).unwrap();
    assert_eq!(echo, json!({"kind": "exact", "answer": "x", "ignore_case": false, "trim": true}));
}

#[tokio::test]
async fn the_pool_counts_verdicts() {
    let metrics = metrics();
    let pool = Pool::new(PoolSettings { workers: 2, ..PoolSettings::default() }, metrics.clone());
    let verifier = compile(json!({"kind": "math", "answer": "1"}));
    let judged = futures::future::join_all((0..10).map(|i| pool.judge(verifier.clone(), asked(i, &format!("#### {}", i % 2))))).await;
    assert_eq!(judged.iter().filter(|j| j.verdict == Verdict::Scored(1.0)).count(), 5);
    assert_eq!(judged.iter().filter(|j| j.verdict == Verdict::Scored(0.0)).count(), 5);
    let pull = pool.judge(compile(json!({"kind": "pull"})), asked(0, "x")).await;
    assert!(failure(&pull.verdict).contains("come from the client"), "{pull:?}");
    let text = metrics.render(&adaroll::engine::EngineStats::default(), &[], (1, 0), 0).unwrap();
    assert!(text.contains("adaroll_rewards_total{kind=\"math\",status=\"scored\"} 10"), "{text}");
    assert!(text.contains("adaroll_rewards_total{kind=\"pull\",status=\"failed\"} 1"), "{text}");
}

#[tokio::test]
async fn a_verifier_that_does_not_end_in_time_fails() {
    let settings = PoolSettings { workers: 1, local_timeout_s: 0.0, ..PoolSettings::default() };
    let pool = Pool::new(settings, metrics());
    let long = "1,".repeat(2_000_000);
    let judged = pool.judge(compile(json!({"kind": "math", "answer": "1"})), asked(0, &long)).await;
    assert!(failure(&judged.verdict).contains("did not end within"), "{judged:?}");
    assert_eq!(judged.wall_clock_timeouts, 1);
}
