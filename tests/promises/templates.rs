//! A conversation becomes the prompt that the model was trained on, and nobody's message becomes more than a message.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use adaroll::model::chat::encode_chat;
use adaroll::model::special_tokens::SpecialTokens;
use adaroll::model::template::{ChatTemplate, TemplateError, assistant_mask};
use adaroll::model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::assets;

/// A model folder with a tokenizer_config.json, and a chat_template.jinja if one is given.
fn folder(config: Value, template: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    if let Some(template) = template {
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    }
    folder
}

fn template(source: &str) -> ChatTemplate {
    let folder = folder(json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}}), Some(source));
    ChatTemplate::from_folder(folder.path()).unwrap().unwrap()
}

fn style(name: &str) -> String {
    std::fs::read_to_string(assets::data(&format!("templates/{name}.jinja"))).unwrap()
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Every row was rendered by the Python libraries (tests/assets/make_template_expectations.py).
#[test]
fn templates_render_as_the_python_libraries_render_them() {
    let rows = assets::rows("template_expectations.jsonl");
    let variables = &rows[0]["extra"];
    let mut wrong = Vec::new();
    for row in &rows[1..] {
        let source = row["file"].as_str().map_or_else(|| row["template"].as_str().unwrap().to_owned(), style);
        let extra = object(if row["extra"] == "VARS" { variables } else { &row["extra"] });
        let messages = row["messages"].as_array().unwrap();
        let prompt = row["add_generation_prompt"].as_bool().unwrap();
        let special = folder(json!({"bos_token": "<s>", "eos_token": "</s>"}), None);
        let result = ChatTemplate::from_source(&source, SpecialTokens::from_folder(special.path()).unwrap())
            .and_then(|template| template.render_with_generation_spans(messages, prompt, &extra));
        let right = match (&result, row["expected"].as_str()) {
            (Ok((text, spans)), Some(expected)) => {
                let said: Vec<&str> = spans.iter().map(|span| &text[span.clone()]).collect();
                text == expected && (row["generation"].is_null() || row["generation"] == json!(said))
            }
            (Err(TemplateError::Syntax { .. }), None) => row["broken"] == true,
            (Err(TemplateError::Raised(message)), None) => row["fails"] == json!(message),
            (Err(TemplateError::Render { .. }), None) => row["fails"].is_string(),
            _ => false,
        };
        if !right {
            wrong.push(format!("{}\n  template {source:?}\n  expected {}\n  got      {result:?}", row["name"], [&row["expected"], &row["fails"], &row["broken"]].iter().find(|v| !v.is_null()).unwrap()));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows differ:\n{}", wrong.len(), rows.len() - 1, wrong.join("\n"));
}
