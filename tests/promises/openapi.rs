//! Promise: /openapi.json describes every route and every field that the server takes, and answers are as it says.

use std::collections::BTreeSet;

use adaroll::server::{Limits, openapi, routes};
use serde_json::{Value, json};

use crate::fake_engine::Manner;
use crate::server_kit::{Kit, job};

fn document() -> Value {
    openapi::document(&Limits::default())
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let document = document();
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(move |m| (m.to_ascii_uppercase(), path.clone())))
        .collect();
    let there: BTreeSet<(String, String)> = routes::table().iter().map(|r| (r.method.to_string(), r.path.to_owned())).collect();
    assert_eq!(described, there);
    assert!(there.len() >= 14);
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{path}");
            let answers = operation["responses"].as_object().unwrap();
            assert!(answers.keys().any(|code| code.starts_with('2')), "{method} {path}");
            assert_eq!(path.contains("{id}"), operation["parameters"].to_string().contains("\"path\""), "{path}");
        }
    }
}

#[test]
fn the_document_is_valid_openapi_and_every_reference_leads_somewhere() {
    let document = document();
    let read: utoipa::openapi::OpenApi = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(read.paths.paths.len(), document["paths"].as_object().unwrap().len());
    let mut followed = 0;
    references(&document, &mut |to| {
        let at = document.pointer(to.trim_start_matches('#'));
        assert!(at.is_some_and(Value::is_object), "{to}");
        followed += 1;
    });
    assert!(followed > 60, "{followed}");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let whole =
            json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "components": document["components"], "allOf": [schema]});
        jsonschema::meta::validate(&whole).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

fn references(value: &Value, to: &mut impl FnMut(&str)) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(reference)) = object.get("$ref") {
                to(reference);
            }
            object.values().for_each(|inner| references(inner, to));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, to)),
        _ => {}
    }
}

/// Serde's complaint about an unknown field lists the known ones: what the server takes and what the document says are compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_fields_are_those_that_the_server_takes() {
    let kit = Kit::start(Manner::default()).await;
    let document = document();
    for (pointer, schema) in
        [("", "RolloutRequest"), ("/prompts/0", "Prompt"), ("/sampling", "Sampling"), ("/return", "Return"), ("/strategy", "Strategy")]
    {
        let mut body = job(1, json!({"return": {}, "strategy": {"kind": "sequential"}}));
        body.pointer_mut(pointer).unwrap()["colour"] = json!("red");
        let (status, answer) = kit.post(&body).await;
        assert_eq!(status, 422);
        let message = answer["error"]["message"].as_str().unwrap().to_owned();
        let known: BTreeSet<&str> = message.split('`').skip(1).step_by(2).collect();
        let properties = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        let described: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
        assert!(known.len() >= 4, "{message}");
        let missing: Vec<_> = known.difference(&described).filter(|name| **name != "colour").collect();
        assert!(missing.is_empty(), "{schema} lacks {missing:?}");
        if schema != "Strategy" {
            assert!(described.is_subset(&known), "{schema} describes {:?}", described.difference(&known).collect::<Vec<_>>());
        }
    }
}

/// What the server answers, held against the schemas of its own document.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_as_described() {
    let kit = Kit::start(Manner::default()).await;
    let (_, document) = kit.get("/openapi.json").await;
    assert_eq!(document, self::document());
    let check = |name: &str, answer: &Value| {
        let schema = json!({"$ref": format!("#/components/schemas/{name}"), "components": document["components"]});
        let validator = jsonschema::validator_for(&schema).unwrap();
        let problems: Vec<String> = validator.iter_errors(answer).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(problems.is_empty(), "{name}: {problems:?} in {answer}");
    };
    let body = job(6, json!({"job_id": "a", "return": {"logprobs_raw": true}}));
    check("RolloutRequest", &body);
    let streamed = kit.stream(&body).await;
    for position in 0..6 {
        check("Group", &streamed.group(position));
        check("Stream", &streamed.group(position));
    }
    check("JobEnd", &streamed.end);
    for (path, name) in [
        ("/v1/rollouts", "JobList"),
        ("/v1/rollouts/a", "Job"),
        ("/v1/rollouts/a/groups", "GroupPage"),
        ("/v1/state", "State"),
        ("/livez", "Alive"),
        ("/readyz", "Ready"),
        ("/v1/rollouts/b", "Error"),
    ] {
        check(name, &kit.get(path).await.1);
    }
    // A twin: the check can fail.
    let wrong = jsonschema::validator_for(&json!({"$ref": "#/components/schemas/Group", "components": document["components"]})).unwrap();
    assert!(!wrong.is_valid(&streamed.end));
}
