//! Promise: a bad request is refused with a status, a code, a sentence and the path of its field; never a 5xx, and the server serves on.

use serde_json::{Value, json};

use crate::fake_engine::Manner;
use crate::server_kit::{Kit, job};

/// A good request with one change: `path` is set to `value`.
fn with(path: &str, value: Value) -> String {
    let mut body = job(3, json!({}));
    let mut at = &mut body;
    for key in path.split('.') {
        at = match key.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[key],
        };
    }
    *at = value;
    body.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_rollout_request_names_its_field() {
    let kit = Kit::start(Manner::default()).await;
    let nested = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let deep = with("prompts.0.metadata", json!({"a": "DEEP"})).replace("\"DEEP\"", &nested);
    let good = job(1, json!({})).to_string();
    let huge = with("seed", json!("HUGE")).replace("\"HUGE\"", "1e999");
    let long_id = "x".repeat(2000);
    let rows: Vec<(String, u16, &str)> = vec![
        // Not JSON.
        (String::new(), 400, ""),
        ("{".into(), 400, ""),
        ("nonsense".into(), 400, ""),
        (format!("{good} {good}"), 400, ""),
        (deep, 400, ""),
        (nested, 422, ""),
        (huge, 422, "seed"),
        // Wrong shapes.
        ("[]".into(), 422, ""),
        ("{}".into(), 422, "prompts"),
        (with("prompts", json!({})), 422, "prompts"),
        (with("prompts", json!([])), 422, "prompts"),
        (with("prompts.1", json!(7)), 422, "prompts[1]"),
        (with("prompts.1", json!(["p1", null, "by position", null, {"kind": "math", "answer": "1"}, null])), 422, "prompts[1]"),
        (with("sampling", json!([1.0])), 422, "sampling"),
        (with("colour", json!("red")), 422, "colour"),
        (with("prompts.1.colour", json!("red")), 422, "prompts[1].colour"),
        // Prompts.
        (with("prompts.1.id", json!("p0")), 422, "prompts[1].id"),
        (with("prompts.1.id", json!(4)), 422, "prompts[1].id"),
        (with("prompts.1.id", json!("")), 422, "prompts[1].id"),
        (with("prompts.1.id", json!(long_id)), 422, "prompts[1].id"),
        (with("prompts.2.text", json!("both")), 422, "prompts[2]"),
        (with("prompts.2.token_ids", json!(null)), 422, "prompts[2]"),
        (with("prompts.2.token_ids", json!([])), 422, "prompts[2].token_ids"),
        (with("prompts.2.token_ids", json!([1, 256])), 422, "prompts[2].token_ids[1]"),
        (with("prompts.2.token_ids", json!([1, -1])), 422, "prompts[2].token_ids[1]"),
        (with("prompts.2.token_ids", json!([5_000_000_000u64])), 422, "prompts[2].token_ids[0]"),
        (with("prompts.2.token_ids", json!([0.5])), 422, "prompts[2].token_ids[0]"),
        (with("prompts.2.token_ids", json!(vec![1; 1024])), 422, "prompts[2].token_ids"),
        (with("prompts.0", json!({"text": "", "reward": {"kind": "math", "answer": "1"}})), 422, "prompts[0].text"),
        (with("prompts.0", json!({"messages": [], "reward": {"kind": "math", "answer": "1"}})), 422, "prompts[0].messages"),
        (with("prompts.0", json!({"messages": ["hi"], "reward": {"kind": "math", "answer": "1"}})), 422, "prompts[0].messages[0]"),
        (with("prompts.0", json!({"messages": [{}], "reward": {"kind": "math", "answer": "1"}})), 422, "prompts[0].messages[0].role"),
        (with("prompts.0", json!({"messages": [{"role": "user"}], "reward": {"kind": "math", "answer": "1"}})), 422, "prompts[0].messages"),
        (with("prompts.0", json!({"text": "x".repeat(1024), "reward": {"kind": "math", "answer": "1"}})), 422, "prompts[0].text"),
        (with("prompts.0.metadata", json!(1)), 422, "prompts[0].metadata"),
        // Rewards.
        (with("prompts.1.reward", json!(null)), 422, "prompts[1].reward"),
        (with("prompts.1.reward", json!("math")), 422, "prompts[1].reward"),
        (with("prompts.1.reward", json!({})), 422, "prompts[1].reward.kind"),
        (with("prompts.1.reward", json!({"kind": "webhook", "url": "http://x", "timeout_s": 30})), 422, "prompts[1].reward.url"),
        (with("prompts.1.reward", json!({"kind": "oracle"})), 422, "prompts[1].reward.kind"),
        (with("prompts.1.reward", json!({"kind": "regex", "pattern": "("})), 422, "prompts[1].reward.pattern"),
        (with("prompts.1.reward", json!({"kind": "math"})), 422, "prompts[1].reward.answer"),
        (with("prompts.1.reward", json!({"kind": "math", "answer": 72})), 422, "prompts[1].reward.answer"),
        (with("prompts.1.reward", json!({"kind": "math", "answer": "todo"})), 422, "prompts[1].reward.answer"),
        (with("prompts.1.reward", json!({"kind": "math", "answer": "1", "strict": true})), 422, "prompts[1].reward.strict"),
        // Sampling.
        (with("sampling.max_tokens", json!(0)), 422, "sampling.max_tokens"),
        (with("sampling.max_tokens", json!(1021)), 422, "sampling.max_tokens"),
        (with("sampling.max_tokens", json!(1u64 << 40)), 422, "sampling.max_tokens"),
        (with("sampling.max_tokens", json!("many")), 422, "sampling.max_tokens"),
        (with("sampling.temperature", json!(-1)), 422, "sampling.temperature"),
        (with("sampling.temperature", json!(1e300)), 422, "sampling.temperature"),
        (with("sampling.temperature", json!(1e-9)), 422, "sampling.temperature"),
        (with("sampling.top_p", json!(0)), 422, "sampling.top_p"),
        (with("sampling.min_p", json!(2)), 422, "sampling.min_p"),
        (with("sampling.stop", json!([""])), 422, "sampling.stop"),
        (with("sampling.stop_token_ids", json!([999])), 422, "sampling.stop_token_ids"),
        (with("sampling.logit_bias", json!([[999, 1.0]])), 422, "sampling.logit_bias"),
        (with("sampling.n", json!(4)), 422, "sampling.n"),
        // Strategy and advantage.
        (with("strategy", json!("balance")), 422, "strategy"),
        (with("strategy", json!({"kind": "speed"})), 422, "strategy.kind"),
        (with("strategy", json!({"exit": "luck"})), 422, "strategy.exit"),
        (with("strategy", json!({"exit": {"positives": 3}})), 422, "strategy.exit.negatives"),
        (with("strategy", json!({"exit": {"positives": 0, "negatives": 0}})), 422, "strategy.exit"),
        (with("strategy", json!({"exit": {"positives": 30, "negatives": 30}})), 422, "strategy.exit"),
        (with("strategy", json!({"group_size": 1})), 422, "strategy.group_size"),
        (with("strategy", json!({"group_size": 40})), 422, "strategy.group_size"),
        (with("strategy", json!({"max_samples": 0, "group_size": 2})), 422, "strategy.max_samples"),
        (with("strategy", json!({"max_samples": 4_000_000_000u64})), 422, "strategy.max_samples"),
        (with("strategy", json!({"round_size": 0})), 422, "strategy.round_size"),
        (with("strategy", json!({"positive_above": "half"})), 422, "strategy.positive_above"),
        (with("strategy", json!({"positive_above": -0.5})), 422, "strategy.positive_above"),
        (with("strategy", json!({"kind": "dapo", "groups_wanted": 9})), 422, "strategy.groups_wanted"),
        (with("strategy", json!({"kind": "uniform", "exit": "balance"})), 422, "strategy.exit"),
        (with("strategy", json!({"straight_positives": 2})), 422, "strategy.straight_positives"),
        (with("strategy", json!({"limit_counts": "maybe"})), 422, "strategy.limit_counts"),
        (with("strategy", json!({"budget": 0})), 422, "strategy.budget"),
        (with("strategy", json!({"groups_wanted": 10})), 422, "strategy.groups_wanted"),
        (with("strategy", json!({"pilot": 10})), 422, "strategy.pilot"),
        (with("advantage", json!("ppo")), 422, "advantage"),
        (with("advantage", json!({"baseline": "mean", "objective": "log"})), 422, "advantage.baseline"),
        // Options of the job.
        (with("job_id", json!("../../etc")), 422, "job_id"),
        (with("job_id", json!("")), 422, "job_id"),
        (with("weights", json!(2)), 409, "weights"),
        (with("weights", json!("best")), 422, "weights"),
        (with("namespace", json!("")), 422, "namespace"),
        (with("priority", json!(3000)), 422, "priority"),
        (with("deadline_s", json!(-10)), 422, "deadline_s"),
        (with("on_weight_update", json!("stop")), 422, "on_weight_update"),
        (with("order", json!("random")), 422, "order"),
        (with("order", json!(1)), 422, "order"),
        (with("bad_gold", json!([])), 422, "bad_gold"),
        (with("seed", json!(-1)), 422, "seed"),
        (with("seed", json!(1.5)), 422, "seed"),
        (with("bad_gold", json!("ignore")), 422, "bad_gold"),
        (with("return", json!({"tokens": true})), 422, "return.tokens"),
    ];
    println!("{} kinds of bad request", rows.len());
    for (body, expected, param) in rows {
        let shown: String = body.chars().take(300).collect();
        let (status, answer) = kit.post_raw("/v1/rollouts", body).await;
        let error = &answer["error"];
        let message = error["message"].as_str().unwrap_or_else(|| panic!("{shown}: {answer}"));
        println!("{status} {} {} | {message}", error["code"], error["param"]);
        assert_eq!(status, expected, "{shown}: {answer}");
        let code = if status == 400 {
            "invalid_json"
        } else if status == 409 {
            "conflict"
        } else {
            "invalid_request"
        };
        assert_eq!(error["code"], code, "{shown}");
        if !(param.is_empty() && status == 400) {
            assert_eq!(error["param"].as_str().unwrap_or(""), param, "{shown}: {message}");
        }
        assert!(message.len() > 15 && message.len() < 700, "{message}");
    }
    let (status, answer) = kit.post_raw("/v1/rollouts", b"{\"prompts\": [{\"text\": \"\xff\"}]}".to_vec()).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_json")));
    assert_eq!(kit.stream(&job(3, json!({}))).await.groups.len(), 3, "the server serves on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_routes_and_queries() {
    let mut options = adaroll::server::Options::default();
    options.limits.max_body_bytes = 4000;
    options.limits.max_prompts = 4;
    options.limits.max_prompt_tokens = 15;
    options.limits.max_samples = 64;
    let kit = Kit::with(Manner::default(), options).await;
    let (status, answer) = kit.post_raw("/v1/rollouts", "x".repeat(5000)).await;
    assert_eq!((status, &answer["error"]["code"]), (413, &json!("too_large")));
    let chunks = futures::stream::iter((0..10).map(|_| Ok::<_, std::io::Error>("x".repeat(1000))));
    assert_eq!(kit.post_raw("/v1/rollouts", reqwest::Body::wrap_stream(chunks)).await.0, 413);
    for (body, param) in [
        (job(5, json!({})), "prompts"),
        (job(4, json!({})), "prompts"),
        (job(1, json!({"strategy": {"max_samples": 65}})), "strategy.max_samples"),
    ] {
        let (status, answer) = kit.post(&body).await;
        assert_eq!((status, answer["error"]["param"].as_str().unwrap()), (422, param));
    }
    kit.stream(&job(1, json!({"job_id": "there"}))).await;
    for (path, status, param) in [
        ("/v1/rollouts/none", 404, json!("id")),
        ("/v1/rollouts/none/groups", 404, json!("id")),
        ("/v1/rollouts/none/events", 404, json!("id")),
        ("/v1/rollouts/%ff", 400, json!("id")),
        ("/v1/rollouts/there/groups?cursor=x", 422, json!("cursor")),
        ("/v1/rollouts/there/groups?cursor=+1", 422, json!("cursor")),
        ("/v1/rollouts/there/groups?limit=0", 422, json!("limit")),
        ("/v1/rollouts/there/groups?limit=99999999999999999999", 422, json!("limit")),
        ("/v1/rollouts/there/groups?page=1", 422, json!("page")),
        ("/v1/rollouts?cursor=1", 422, json!("cursor")),
        ("/nowhere", 404, json!(null)),
        ("/v1/score", 405, json!(null)),
    ] {
        let (got, answer) = kit.get(path).await;
        assert_eq!((got, &answer["error"]["param"]), (status, &param), "{path}: {answer}");
    }
    assert_eq!(kit.get("/v1/rollouts/there/groups?cursor=18446744073709551615").await.1["groups"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_score_requests_name_their_field() {
    let kit = Kit::start(Manner::default()).await;
    let sequence = |ids: Value, len: Value| json!({"sequences": [{"token_ids": ids, "prompt_len": len}]});
    let filtered = |field: &str, value: Value| json!({"sequences": [{"token_ids": [1, 2], "prompt_len": 1}], "sampling": {field: value}});
    for (body, param) in [
        (json!({}), "sequences"),
        (json!({"sequences": []}), "sequences"),
        (sequence(json!([]), json!(1)), "sequences[0].token_ids"),
        (sequence(json!([1, 300]), json!(1)), "sequences[0].token_ids[1]"),
        (sequence(json!([1, 2]), json!(0)), "sequences[0].prompt_len"),
        (sequence(json!([1, 2]), json!(2)), "sequences[0].prompt_len"),
        (sequence(json!([1, 2]), json!(-1)), "sequences[0].prompt_len"),
        (sequence(json!(vec![1; 1025]), json!(1)), "sequences[0].token_ids"),
        (filtered("top_p", json!(0.9)), "sampling.top_p"),
        (filtered("top_k", json!(5)), "sampling.top_k"),
        (filtered("temperature", json!(-1)), "sampling.temperature"),
        (json!({"sequences": [{"token_ids": [1, 2]}]}), "sequences[0].prompt_len"),
    ] {
        let (status, answer) = kit.post_raw("/v1/score", body.to_string()).await;
        assert_eq!((status, answer["error"]["param"].as_str().unwrap_or("")), (422, param), "{body}: {answer}");
    }
}
