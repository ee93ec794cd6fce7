//! Public reports about chat templates and tokenization, one row each (tests/data/template_bugs.jsonl). Every row is run: as it
//! stands where it can be executed, and where it states a rule, as a test of the rule. A row of a kind without a test here fails.

use std::sync::Arc;

use adaroll::engine::detokenize::TextStream;
use adaroll::engine::{SampleRequest, SamplingParams, StreamKey};
use adaroll::model::chat::{ChatPrompt, encode_chat};
use adaroll::model::special_tokens::SpecialTokens;
use adaroll::model::stop_tokens::stop_token_ids;
use adaroll::model::template::{ChatTemplate, assistant_mask};
use adaroll::model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::assets;
use crate::detokenize::stream;
use crate::tiny_tokenizers::{byte_fallback_decoder, byte_level, llama2_like, of_bytes, of_pieces};

#[test]
fn every_reported_case_is_right() {
    let rows = assets::rows("template_bugs.jsonl");
    assert!(rows.len() >= 50, "the table has been cut");
    for row in &rows {
        let (id, kind) = (row["id"].as_str().unwrap(), row["kind"].as_str().unwrap());
        println!("{id} {kind}");
        match kind {
            "double_bos" => double_bos(row),
            "generation_tag" | "loop_controls" | "negative_slice" | "fromjson_filter" | "tojson_indent" | "tojson_kwargs"
            | "tojson_spacing" | "tojson_html" => rendered_template(row),
            "think_strip" => think_strip(row),
            "think_placement" => think_placement(),
            "think_prefill" => think_prefill(row),
            "template_variant" => template_variant(),
            "assistant_mask" => masked(row),
            "generation_prompt" => generation_prompt(),
            "retokenize_drift" => retokenize_drift(),
            "special_in_completion" => special_in_completion(),
            "partial_utf8" => partial_utf8(row),
            "byte_fallback" => byte_fallback(row),
            "decode_stream" => decode_stream(row),
            "leading_space" => leading_space(row),
            "stop_string" => stop_string(row),
            "eos_list" => eos_list(row),
            "special_token_injection" => special_token_injection(row),
            _ => panic!("{id}: no test covers the kind {kind}"),
        }
    }
}

fn smollm2() -> (Arc<Tokenizer>, ChatTemplate) {
    let folder = assets::smollm2();
    (Arc::new(Tokenizer::from_folder(&folder).unwrap().unwrap()), ChatTemplate::from_folder(&folder).unwrap().unwrap())
}

fn style(name: &str) -> ChatTemplate {
    let source = std::fs::read_to_string(assets::data(&format!("templates/{name}.jinja"))).unwrap();
    ChatTemplate::from_source(&source, SpecialTokens::default()).unwrap()
}

fn render(template: &ChatTemplate, messages: Value, add_generation_prompt: bool) -> String {
    template.render(messages.as_array().unwrap(), add_generation_prompt, &Map::new()).unwrap()
}

fn encode(tokenizer: &Tokenizer, template: &ChatTemplate, messages: &Value, add_generation_prompt: bool) -> ChatPrompt {
    encode_chat(tokenizer, template, messages.as_array().unwrap(), add_generation_prompt, &Map::new()).unwrap()
}

fn ids_of(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A tokenizer with the ids of the row's model, and what its template makes of a message.
fn double_bos(row: &Value) {
    let llama3 = byte_level(
        &[("user", 882), ("\n\n", 271), ("test", 1985), ("assistant", 78191)],
        &[("<|begin_of_text|>", 128_000), ("<|start_header_id|>", 128_006), ("<|end_header_id|>", 128_007), ("<|eot_id|>", 128_009)],
    );
    let distill = byte_level(&[], &[("<|begin_of_sentence|>", 151_646), ("<|User|>", 151_644)]);
    let mistral = byte_level(&[("Who", 31500)], &[("<s>", 1), ("[INST]", 3), ("[/INST]", 4), ("</s>", 2)]);
    let right = &row["right_output"];
    let header = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\ntest<|eot_id|>";
    let (tokenizer, text) = match row["id"].as_str().unwrap() {
        "tpl005" => {
            let template =
                "{{ '<s>' }}{% for m in messages %}{{ '[INST]' + m + '[/INST]' if m.startswith('Who') else m + '</s>' }}{% endfor %}";
            let template = ChatTemplate::from_source(template, SpecialTokens::default()).unwrap();
            let messages: Vec<Value> = row["input"]["messages"]
                .as_array()
                .unwrap()
                .iter()
                .map(|m| json!(m.as_str().unwrap().split_once(": ").unwrap().1))
                .collect();
            (&mistral, render(&template, json!(messages), false))
        }
        "tpl006" => (&mistral, "<s>[INST]Who[/INST]".to_owned()),
        "tpl002" => (&distill, row["input"]["rendered"].as_str().unwrap().to_owned()),
        "tpl004" => (&llama3, row["input"]["prompt"].as_str().unwrap().to_owned()),
        "tpl000" => (&llama3, row["input"]["rendered"].as_str().unwrap().to_owned()),
        _ => (&llama3, header.to_owned()),
    };
    // Rendered text as the chat path encodes it, and the same text sent as a plain prompt.
    for add_special_tokens in [false, true] {
        let ids = tokenizer.encode(&text, add_special_tokens).unwrap();
        let bos = ids[0];
        assert_eq!(ids.iter().filter(|&&id| id == bos).count(), 1, "{row} {ids:?}");
        if let Some(all) = right.get("ids") {
            assert_eq!(ids, ids_of(all));
        }
        if let Some(prefix) = right.get("ids_prefix") {
            assert_eq!(ids[..prefix.as_array().unwrap().len()], ids_of(prefix), "{row}");
        }
        // The baseline: a text without its own beginning gets one where it is asked for, and only there.
        assert_eq!(tokenizer.encode("x", add_special_tokens).unwrap()[0] == bos, add_special_tokens);
    }
}

fn rendered_template(row: &Value) {
    let input = &row["input"];
    let template = ChatTemplate::from_source(input["template"].as_str().unwrap(), SpecialTokens::default()).unwrap();
    let messages = input["messages"].as_array().cloned().unwrap_or_default();
    let vars = input["vars"].as_object().cloned().unwrap_or_default();
    for add_generation_prompt in [false, true] {
        assert_eq!(template.render(&messages, add_generation_prompt, &vars).unwrap(), row["right_output"].as_str().unwrap(), "{row}");
    }
}

fn think_strip(row: &Value) {
    let template = style("qwen3_style");
    let user = |text: &str| json!({"role": "user", "content": text});
    let first = json!([user("u1"), {"role": "assistant", "content": "<think>t1</think>x"}]);
    let both = json!([first[0], first[1], user("u2")]);
    match row["id"].as_str().unwrap() {
        // The last assistant turn keeps its thoughts.
        "tpl035" => {
            let messages = json!([user("What is 2+2?"), {"role": "assistant", "content": "<think>Let me calculate this.</think>\n\nThe answer is 4."}]);
            assert_eq!(render(&template, messages, false), row["right_output"].as_str().unwrap());
        }
        // An earlier one loses them ...
        "tpl036" => assert!(render(&template, first, false).contains("t1") && !render(&template, both, false).contains("t1")),
        // ... so that the next turn's prompt is no extension of this turn's tokens: sampled ids must be kept, not rendered again.
        _ => assert!(!render(&template, both, true).starts_with(render(&template, first, false).trim_end())),
    }
}

fn think_placement() {
    let template = style("qwen3_style");
    for assistant in [
        json!({"role": "assistant", "content": "<think>R</think>A"}),
        json!({"role": "assistant", "reasoning_content": "R", "content": "A"}),
    ] {
        let text = render(&template, json!([{"role": "user", "content": "q"}, assistant]), false);
        assert!(text.ends_with("<|im_start|>assistant\n<think>\nR\n</think>\n\nA<|im_end|>\n"), "{text}");
    }
}

fn think_prefill(row: &Value) {
    let text = render(&style("think_prefill_style"), json!([{"role": "user", "content": "q"}]), true);
    assert!(text.ends_with(row["input"]["generation_prompt"].as_str().unwrap()));
    // The tag that the prompt holds is not put into the completion: its text is what was sampled.
    let tokenizer = of_bytes(&[b"reasoning", b"</think>answer"]);
    assert_eq!(stream(&tokenizer, &[0, 1], &[]).2, row["input"]["completion"].as_str().unwrap());
}

/// Two checkpoints of one family: each has its own template.
fn template_variant() {
    let texts: Vec<String> = ["{{ 'thinking' }}", "{{ 'instruct' }}"]
        .iter()
        .map(|source| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("tokenizer_config.json"), json!({"chat_template": "{{ 'old' }}"}).to_string()).unwrap();
            std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
            render(&ChatTemplate::from_folder(folder.path()).unwrap().unwrap(), json!([]), false)
        })
        .collect();
    assert_eq!(texts, ["thinking", "instruct"]);
}

fn masked(row: &Value) {
    let template = ChatTemplate::from_source(row["input"]["template"].as_str().unwrap(), SpecialTokens::default()).unwrap();
    let messages = row["input"]["messages"].as_array().unwrap();
    let (text, spans) = template.render_with_generation_spans(messages, false, &Map::new()).unwrap();
    // Pieces so that the text has as many tokens as in the report.
    let tokenizer = byte_level(&[("A", 1), ("<|", 2), ("user", 3), ("|>", 4), (" message", 5), (">user", 6), ("|user", 7)], &[]);
    let (ids, offsets) = tokenizer.encode_with_offsets(&text).unwrap();
    let mask: Vec<u8> = assistant_mask(&offsets, &spans).into_iter().map(u8::from).collect();
    let right: Vec<u8> = ids_of(&row["right_output"]["mask"]).into_iter().map(|bit| bit as u8).collect();
    assert_eq!(ids.len(), mask.len());
    // The report's own tokenizer has other pieces after the first; what they have in common is the rule.
    assert_eq!(mask[0], right[0], "token 0 is a token");
    assert!(mask[1..].iter().chain(&right[1..]).all(|&bit| bit == 0), "{mask:?}");
}

fn generation_prompt() {
    let (tokenizer, real) = smollm2();
    for template in [&real, &style("qwen3_style")] {
        for completion in ["a", " a", "\n\na", "<b>"] {
            let question = json!([{"role": "user", "content": "q"}]);
            let prompt = encode(&tokenizer, template, &question, true);
            let answered = json!([question[0], {"role": "assistant", "content": completion}]);
            let text = render(template, answered.clone(), false);
            // Qwen3 puts an empty thought before an answer without one, so its prompt is a prefix as text.
            assert!(text.starts_with(&prompt.text), "{text:?}");
            let whole = encode(&tokenizer, template, &answered, false);
            let ids = &prompt.token_ids;
            if std::ptr::eq(template, &real) && !completion.starts_with('\n') {
                assert_eq!(&whole.token_ids[..ids.len()], &ids[..], "{completion:?}");
                assert!(!whole.token_ids[ids.len()..].contains(&1), "no header counts as completion");
            }
        }
    }
}

/// Two sequences of ids spell one text: what was sampled is known from its ids alone.
fn retokenize_drift() {
    let (tokenizer, _) = smollm2();
    let whole = tokenizer.encode(" hello", false).unwrap();
    let parts: Vec<u32> = [" he", "llo"].iter().flat_map(|part| tokenizer.encode(part, false).unwrap()).collect();
    assert_ne!(whole, parts);
    assert_eq!(stream(&tokenizer, &whole, &[]).2, stream(&tokenizer, &parts, &[]).2);
    assert_ne!(tokenizer.encode(&tokenizer.decode(&parts, true).unwrap(), false).unwrap(), parts, "encoding the text again loses the ids");
    // Ids in are ids used: a request is made of ids, and nothing on the way knows their text.
    let prompt: Arc<[u32]> = parts.clone().into();
    let request = SampleRequest { prompt, params: Arc::default(), key: StreamKey([0, 0]), index: 0, stream_tokens: false };
    assert_eq!(request.prompt[..], parts);
}

fn special_in_completion() {
    let (tokenizer, _) = smollm2();
    let mut ids = tokenizer.encode("a b", false).unwrap();
    ids.insert(1, tokenizer.token_id("<repo_name>").unwrap());
    let text = stream(&tokenizer, &ids, &[]).2;
    assert_eq!(text, "a b", "special tokens have no text");
    assert_ne!(tokenizer.encode(&text, false).unwrap().len(), ids.len(), "so ids cannot be counted from text");
}

fn partial_utf8(row: &Value) {
    let pieces: Vec<Vec<u8>> =
        row["input"]["token_bytes"].as_array().unwrap().iter().map(|bytes| serde_json::from_value(bytes.clone()).unwrap()).collect();
    let tokenizer = of_bytes(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let ids: Vec<u32> = (0..pieces.len() as u32).collect();
    let (chunks, _, text) = stream(&tokenizer, &ids, &[]);
    match row["right_output"] {
        Value::Object(ref right) if right.contains_key("chunks") => assert_eq!(json!(chunks[..ids.len()]), right["chunks"]),
        Value::Object(ref right) if right.contains_key("text") => {
            assert_eq!(text, right["text"].as_str().unwrap());
            assert_eq!(chunks[0], "\u{FFFD}", "an impossible byte does not wait");
        }
        // A cut character waits; the space that makes it impossible brings it out.
        _ => assert_eq!(chunks, ["", "\u{FFFD} a", ""]),
    }
}

fn byte_fallback(row: &Value) {
    let pieces: Vec<&str> = row["input"]["pieces"].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
    let tokenizer = of_pieces(&pieces, byte_fallback_decoder());
    assert_eq!(stream(&tokenizer, &[0, 1, 2], &[]).2, row["right_output"].as_str().unwrap());
}

fn decode_stream(row: &Value) {
    let (tokenizer, _) = smollm2();
    let text = row["input"]["text"].as_str().unwrap_or("`HTML` and [links](x)");
    let mut ids = tokenizer.encode(text, false).unwrap();
    // The ids of the report, which this vocabulary does not even have, and a special one in between.
    ids.extend([row["input"]["token_id"].as_u64().unwrap_or(0) as u32, 0]);
    ids.extend(tokenizer.encode(" 안녕](", false).unwrap());
    let (_, _, streamed) = stream(&tokenizer, &ids, &[]);
    assert_eq!(streamed, tokenizer.decode(&ids, true).unwrap());
    assert_eq!(streamed, format!("{text} 안녕]("), "with nothing lost");
}

fn leading_space(row: &Value) {
    let Some(pieces) = row["input"].get("pieces") else {
        let text = row["input"]["text"].as_str().unwrap();
        let tokenizer = llama2_like(&["▁", "x"]);
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(stream(&tokenizer, &ids, &[]).2, row["right_output"].as_str().unwrap());
        return;
    };
    let pieces: Vec<&str> = pieces.as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
    let tokenizer = of_pieces(&pieces, json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}));
    let (chunks, _, text) = stream(&tokenizer, &[0, 1, 2], &[]);
    assert_eq!(text, row["right_output"].as_str().unwrap());
    assert_eq!(chunks, ["Hello", " world", "!", ""]);
}

fn stop_string(row: &Value) {
    let input = &row["input"];
    let stop: Vec<String> = serde_json::from_value(input["stop"].clone()).unwrap();
    let Some(pieces) = input.get("pieces") else {
        if input["mode"].is_string() {
            // Without text a stop string is refused, by name.
            let params = SamplingParams { stop, ..SamplingParams::default() };
            assert_eq!(params.validate(100, false).unwrap_err().field, "stop");
            assert!(params.validate(100, true).is_ok());
        } else {
            // In the reasoning part as anywhere.
            let tokenizer = of_bytes(&[b"<think>9", b".8 < 9.11", b"</think>"]);
            assert_eq!(stream(&tokenizer, &[0, 1, 2], &[&stop[0]]).2, "<think>");
        }
        return;
    };
    let pieces: Vec<&str> = pieces.as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
    let tokenizer = of_bytes(&pieces.iter().map(|piece| piece.as_bytes()).collect::<Vec<_>>());
    let mut stream = TextStream::new(tokenizer, &stop);
    let used = (0..pieces.len() as u32).take_while(|&id| stream.push(id, true).stop.is_none()).count();
    stream.finish();
    assert_eq!(stream.text(), row["right_output"]["text"].as_str().unwrap());
    assert_eq!(used + 1, pieces.len(), "the token that completed it is the last");
}

fn eos_list(row: &Value) {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, value: Value| std::fs::write(folder.path().join(file), value.to_string()).unwrap();
    write("config.json", json!({"eos_token_id": row["input"]["config_eos"]}));
    assert_eq!(stop_token_ids(folder.path(), None).unwrap(), [2], "the baseline");
    write("generation_config.json", json!({"eos_token_id": row["input"]["generation_config_eos"]}));
    assert_eq!(stop_token_ids(folder.path(), None).unwrap(), ids_of(&row["right_output"]["eos"]));
}

fn special_token_injection(row: &Value) {
    let messages = &row["input"]["messages"];
    let (smollm2, real) = smollm2();
    let qwen = byte_level(&[("user", 882), ("system", 883)], &[("<|endoftext|>", 1000), ("<|im_start|>", 1001), ("<|im_end|>", 1002)]);
    for (tokenizer, template) in [(&smollm2, &real), (&smollm2, &style("qwen3_style")), (&qwen, &style("qwen3_style"))] {
        let count = |ids: &[u32], text: &str| ids.iter().filter(|&&id| Some(id) == tokenizer.token_id(text)).count();
        let clean = encode(tokenizer, template, &json!([{"role": "user", "content": "hi"}]), true);
        let prompt = encode(tokenizer, template, messages, true);
        for special in ["<|im_start|>", "<|im_end|>"] {
            assert_eq!(count(&prompt.token_ids, special), count(&clean.token_ids, special), "one user turn only");
            // The twin: encoding the same text directly opens another turn.
            assert!(count(&tokenizer.encode(&prompt.text, false).unwrap(), special) > count(&clean.token_ids, special));
        }
        assert!(prompt.text.contains(messages[0]["content"].as_str().unwrap()), "the text itself is unchanged");
        assert_eq!(tokenizer.decode(&prompt.token_ids, false).unwrap(), prompt.text, "and so are the tokens, spelled out");
    }
}
