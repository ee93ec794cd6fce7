//! Promise: POST /v1/verify says of texts what a job would say of samples, in order and without the engine; a bad field is refused by its path,
//! a bad gold is a verdict of its item.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use adaroll::server::verify::MAX_ITEMS;
use adaroll::server::{Limits, Options, openapi};
use serde_json::{Value, json};

use crate::fake_engine::Manner;
use crate::server_kit::Kit;

async fn verify(kit: &Kit, items: Value) -> (u16, Value) {
    kit.post_raw("/v1/verify", json!({"items": items}).to_string()).await
}

fn check(name: &str, value: &Value) {
    let document = openapi::document(&Limits::default());
    let schema = json!({"$ref": format!("#/components/schemas/{name}"), "components": document["components"]});
    let validator = jsonschema::validator_for(&schema).unwrap();
    let problems: Vec<String> = validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(problems.is_empty(), "{name}: {problems:?} in {value}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_judged_in_order_and_without_the_engine() {
    let kit = Kit::start(Manner::default()).await;
    let weighted = json!({"kind": "weighted", "parts": [{"weight": 0.5, "reward": {"kind": "math", "answer": "72"}}]});
    let items = json!([
        {"id": "a", "gold": "72", "response": "\\boxed{72}"},
        {"gold": 72, "response": "\\boxed{73}"},
        {"id": 7, "gold": "none", "response": "\\boxed{72}"},
        {"gold": "72", "response": "no idea", "id": null, "kind": null, "options": null, "reward": null},
        {"gold": "72", "response": "I get 72 of them", "options": {"lenient": true}},
        {"gold": "B", "kind": "choice", "response": "Answer: B"},
        {"gold": "(", "kind": "regex", "response": "("},
        {"gold": {"type": "object"}, "kind": "json", "response": "{\"a\": 1e999}"},
        {"reward": weighted, "response": "\\boxed{72}"},
        {"reward": {"kind": "all", "parts": [{"kind": "math", "answer": ""}]}, "response": "1"},
    ]);
    check("VerifyRequest", &json!({"items": items}));
    let (status, answer) = verify(&kit, items).await;
    assert_eq!(status, 200, "{answer}");
    check("VerifyAnswer", &answer);
    let short = |item: &Value| ["id", "verdict", "extracted", "reward"].map(|field| item[field].clone());
    let found: Vec<_> = answer["items"].as_array().unwrap().iter().map(short).collect();
    assert_eq!(
        found,
        [
            [json!("a"), json!("correct"), json!("72"), json!(1.0)],
            [json!("1"), json!("wrong"), json!("73"), json!(0.0)],
            [json!(7), json!("bad_gold"), Value::Null, Value::Null],
            [json!("3"), json!("no_answer"), Value::Null, json!(0.0)],
            [json!("4"), json!("correct"), json!("72"), json!(1.0)],
            [json!("5"), json!("correct"), json!("B"), json!(1.0)],
            [json!("6"), json!("bad_gold"), Value::Null, Value::Null],
            [json!("7"), json!("limit"), Value::Null, Value::Null],
            [json!("8"), json!("correct"), json!("72"), json!(0.5)],
            [json!("9"), json!("bad_gold"), Value::Null, Value::Null],
        ]
    );
    let rule = |position: usize| answer["items"][position]["rule"].as_str().unwrap();
    assert_eq!(rule(0), "boxed/identical");
    assert!(rule(2).starts_with("gold is \"none\""), "{}", rule(2));
    assert!(rule(6).starts_with("gold is no regular expression"), "{}", rule(6));
    assert!(rule(9).starts_with("reward.parts[0].answer is \"\""), "{}", rule(9));
    assert_eq!(kit.seen.submitted.load(Ordering::SeqCst), 0);
    // A server that takes no samples judges all the same.
    kit.seen.stopped.store(true, Ordering::SeqCst);
    assert_eq!(verify(&kit, json!([{"gold": "1", "response": "\\boxed{1}"}])).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_field_is_refused_by_its_path() {
    let kit = Kit::start(Manner::default()).await;
    let good = json!({"gold": "1", "response": "1"});
    let with = |field: &str, value: Value| {
        let mut item = good.clone();
        item[field] = value;
        item
    };
    let reward = |reward: Value| json!({"response": "1", "reward": reward});
    for (item, param, words) in [
        (json!(1), "", "expected an object"),
        (json!({"gold": "1"}), ".response", "is missing"),
        (json!({"response": "1"}), ".gold", "is missing; give the reference answer, or a whole reward"),
        (json!({"gold": null, "response": "1"}), ".gold", "is missing"),
        (with("colour", json!("red")), ".colour", "is not a field here"),
        (with("response", json!(1)), ".response", "expected a string"),
        (with("gold", json!(0.5)), ".gold", "give it as a string"),
        (with("gold", json!(true)), ".gold", "must be a string"),
        (with("gold", json!({})), ".gold", "must be a string"),
        (with("id", json!([])), ".id", "must be a string or a whole number"),
        (with("id", json!("x".repeat(1025))), ".id", "at most 1024 bytes"),
        (with("options", json!({"foo": 1})), ".options.foo", "is not an option of the kind \"math\"; its options are lenient"),
        (with("options", json!({"percent": "maybe"})), ".options.percent", "unknown variant"),
        (with("options", json!({"answer": "2"})), ".options.answer", "give it as gold"),
        (with("options", json!({"kind": "exact"})), ".options.kind", "give it as kind"),
        (with("options", json!(["lenient"])), ".options", "expected an object"),
        (with("kind", json!("oracle")), ".kind", "is not judged here"),
        (with("kind", json!("webhook")), ".kind", "nobody is asked here"),
        (with("kind", json!("pull")), ".kind", "nobody is asked here"),
        (with("kind", json!("length")), ".kind", "has no gold"),
        (with("reward", json!({"kind": "math", "answer": "1"})), ".gold", "is given beside reward"),
        (reward(json!("math")), ".reward", "must be an object"),
        (reward(json!({"kind": "math"})), ".reward.answer", "is missing"),
        (reward(json!({"kind": "math", "answer": "1", "foo": 1})), ".reward.foo", "is not a field here"),
        (reward(json!({"kind": "webhook", "url": "http://x/"})), ".reward.kind", "nobody is asked here"),
        (reward(json!({"kind": "pull"})), ".reward.kind", "nobody is asked here"),
        (
            reward(json!({"kind": "any", "parts": [{"kind": "webhook", "url": "http://x/"}]})),
            ".reward.parts[0].kind",
            "nobody is asked here",
        ),
        (reward(json!({"kind": "length", "max_tokens": 4, "buffer": 1})), ".reward.kind", "counts the tokens"),
    ] {
        let (status, answer) = verify(&kit, json!([good, good, good, item])).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!((status, &answer["error"]["code"]), (422, &json!("invalid_request")), "{item}: {answer}");
        assert_eq!(answer["error"]["param"], json!(format!("items[3]{param}")), "{item}: {message}");
        assert!(message.contains(words) && message.len() < 700, "{item}: {message}");
    }
    for (body, status, param) in [
        ("", 400, Value::Null),
        ("{\"items\": [", 400, json!("items")),
        ("[]", 422, Value::Null),
        ("{}", 422, json!("items")),
        ("{\"items\": []}", 422, json!("items")),
        ("{\"items\": {}}", 422, json!("items")),
        ("{\"items\": [], \"threads\": 4}", 422, json!("threads")),
        (
            "{\"items\": [{\"gold\": \"1\", \"response\": \"1\", \"options\": {\"lenient\": true, \"lenient\": false}}]}",
            422,
            json!("items[0].options"),
        ),
    ] {
        let (got, answer) = kit.post_raw("/v1/verify", body).await;
        assert_eq!((got, answer["error"]["param"].clone()), (status, param), "{body}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_items_are_judged_and_more_are_refused() {
    let kit = Kit::start(Manner::default()).await;
    let item = |i: usize| json!({"id": i, "gold": (i - i % 2).to_string(), "response": format!("\\boxed{{{i}}}")});
    let items: Vec<Value> = (0..=MAX_ITEMS).map(item).collect();
    // Several at once share the places and get their own verdicts.
    let asked = [&items[..MAX_ITEMS], &items[1..130], &items[2..3]];
    let answers = futures::future::join_all(asked.map(|items| verify(&kit, json!(items)))).await;
    for (items, (status, answer)) in asked.iter().zip(answers) {
        assert_eq!(status, 200);
        let found = answer["items"].as_array().unwrap();
        assert_eq!(found.len(), items.len());
        for (item, found) in items.iter().zip(found) {
            let right = ["correct", "wrong"][item["id"].as_u64().unwrap() as usize % 2];
            assert_eq!((&found["id"], &found["verdict"]), (&item["id"], &json!(right)));
        }
    }
    let (status, answer) = verify(&kit, json!(items)).await;
    assert_eq!((status, &answer["error"]["param"]), (422, &json!("items")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("10000"), "{answer}");
    assert_eq!(kit.get("/v1/verify").await.0, 405);

    let mut options = Options::default();
    options.limits.max_body_bytes = 1000;
    let small = Kit::with(Manner::default(), options).await;
    assert_eq!(verify(&small, json!([{"gold": "1", "response": "x".repeat(1000)}])).await.0, 413);
}

/// A response that costs more than the server has time for is refused by its path, and holds up nobody for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_takes_too_long_is_named() {
    let mut options = Options::default();
    options.rewards.local_timeout_s = 1e-6;
    let kit = Kit::with(Manner::default(), options).await;
    // Beyond ASCII a word's edge takes the slow engine.
    let slow = json!({"gold": "(?:x\\b.{0,40}|\\by){2}z", "kind": "regex", "response": "x\u{e9} ".repeat(1 << 20)});
    let (status, answer) = verify(&kit, json!([slow])).await;
    assert_eq!((status, &answer["error"]["param"]), (422, &json!("items[0].response")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("takes longer than"), "{answer}");
}

/// Serde's complaint about an unknown field lists the known ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_has_the_fields_that_are_taken() {
    let kit = Kit::start(Manner::default()).await;
    let document = openapi::document(&Limits::default());
    for (body, schema) in [
        (json!({"items": [], "colour": "red"}), "VerifyRequest"),
        (json!({"items": [{"gold": "1", "response": "1", "colour": "red"}]}), "VerifyItem"),
    ] {
        let (_, answer) = kit.post_raw("/v1/verify", body.to_string()).await;
        let message = answer["error"]["message"].as_str().unwrap().to_owned();
        let mut known: BTreeSet<&str> = message.split('`').skip(1).step_by(2).collect();
        known.remove("colour");
        let properties = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        assert_eq!(known, properties.keys().map(String::as_str).collect(), "{message}");
    }
    // A twin: what the server refuses, the document does not allow.
    let item = json!({"$ref": "#/components/schemas/VerifyItem", "components": document["components"]});
    let validator = jsonschema::validator_for(&item).unwrap();
    for (item, is_right) in [
        (json!({"gold": "1", "response": "1"}), true),
        (json!({"gold": null, "reward": {"kind": "math", "answer": "1"}, "response": "1"}), true),
        (json!({"response": "1"}), false),
        (json!({"gold": null, "response": "1"}), false),
        (json!({"gold": "1", "reward": {"kind": "math", "answer": "1"}, "response": "1"}), false),
        (json!({"gold": "1", "response": "1", "kind": "webhook"}), false),
    ] {
        assert_eq!(validator.is_valid(&item), is_right, "{item}");
    }
}
