//! What operations take and give. Defaults are those of the code where the code can tell them.

use serde_json::{Map, Value, json};

use crate::engine::SamplingParams;
use crate::reward::Ruling;
use crate::rollout::plan::Advantage;
use crate::server::Limits;
use crate::server::verify::MAX_ITEMS;
use crate::verify::KINDS;

/// Every schema, by name.
pub(super) fn all(limits: &Limits) -> Value {
    let mut all = Map::new();
    for part in [request(limits), rewards(), groups(), jobs(), weights(), verify(), others(limits)] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    all.into()
}

fn whole(minimum: u64, maximum: u64, description: &str) -> Value {
    json!({"type": "integer", "minimum": minimum, "maximum": maximum, "description": description})
}

fn with(mut schema: Value, key: &str, value: impl Into<Value>) -> Value {
    schema[key] = value.into();
    schema
}

fn nullable(mut schema: Value) -> Value {
    let kind = schema["type"].take();
    schema["type"] = json!([kind, "null"]);
    schema
}

fn list(items: Value, description: &str) -> Value {
    json!({"type": "array", "items": items, "description": description})
}

fn names(values: &[&str], description: &str) -> Value {
    json!({"type": "string", "enum": values, "description": description})
}

fn refer(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// An answer's object: every property is always there.
fn whole_object(properties: Value, description: &str) -> Value {
    let required: Vec<&String> = properties.as_object().map(|p| p.keys().collect()).unwrap_or_default();
    json!({"type": "object", "required": required, "properties": properties, "description": description})
}

/// A request's object: nothing else may be in it.
fn taken(required: &[&str], properties: Value, description: &str) -> Value {
    json!({"type": "object", "required": required, "additionalProperties": false, "properties": properties, "description": description})
}

const TOKEN: u64 = u32::MAX as u64;

fn request(limits: &Limits) -> Value {
    let u32_of = |low: u64, description: &str| whole(low, u64::from(u32::MAX), description);
    let sampling = SamplingParams::default();
    let default = |schema: Value, value: Value| with(schema, "default", value);
    json!({
        "RolloutRequest": taken(&["prompts"], json!({
            "job_id": nullable(json!({"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_:-][A-Za-z0-9._:-]*$",
                "description": "Makes the request idempotent. Absent: the server makes one."})),
            "prompts": json!({"type": "array", "minItems": 1, "maxItems": limits.max_prompts, "items": refer("Prompt"),
                "description": "Prompts; their ids must differ. Groups come in this order unless `order` says otherwise."}),
            "strategy": refer("Strategy"),
            "advantage": default(json!({"description": "How a kept sample is compared with its baseline: a name, or baseline and objective.",
                "oneOf": [{"type": "string", "examples": Advantage::NAMES}, {"type": "object"}, {"type": "null"}]}), json!("ada")),
            "weights": default(json!({"description": "Version of the weights: the newest, or a number that must be live or staged (409 otherwise).",
                "oneOf": [{"type": "string", "enum": ["latest"]}, whole(0, u64::MAX, "A version."), {"type": "null"}]}), json!("latest")),
            "namespace": default(nullable(json!({"type": "string", "minLength": 1, "maxLength": 128, "description": "Where per-prompt history is kept."})), json!("default")),
            "priority": default(nullable(json!({"type": "integer", "minimum": -1000, "maximum": 1000, "description": "Jobs of a higher priority are served first."})), json!(0)),
            "deadline_s": default(nullable(json!({"type": "number", "exclusiveMinimum": 0, "maximum": 31.6e6, "description": "Seconds after which the job ends with what it has."})), Value::Null),
            "order": default(nullable(json!({"type": "string", "enum": ["request", "completion", null],
                "description": "Order of delivery. The groups are the same either way."})), json!("request")),
            "sampling": json!({"oneOf": [refer("Sampling"), {"type": "null"}]}),
            "seed": nullable(whole(0, u64::MAX, "Seed of every random stream. Absent: drawn, and echoed.")),
            "on_weight_update": default(nullable(json!({"type": "string", "enum": ["finish", "restart", "continue", null],
                "description": "What a change of weights does to the job."})), json!("finish")),
            "bad_gold": default(nullable(json!({"type": "string", "enum": ["refuse", "fail_group", null],
                "description": "What a reference answer that cannot be used does: refuse the request, or fail its prompt's group."})), json!("refuse")),
            "return": json!({"oneOf": [refer("Return"), {"type": "null"}]})
        }), "A job."),
        "Prompt": with(taken(&["reward"], json!({
            "id": nullable(json!({"type": "string", "minLength": 1, "maxLength": 1024, "description": "Absent: its position, in decimal."})),
            "messages": json!({"type": "array", "minItems": 1, "items": refer("Message"), "description": "A conversation, for the chat template."}),
            "text": json!({"type": "string", "minLength": 1, "description": "Raw text."}),
            "token_ids": json!({"type": "array", "minItems": 1, "items": whole(0, TOKEN, "Below the model's vocabulary size."), "description": "Token ids."}),
            "reward": refer("Reward"),
            "metadata": nullable(json!({"type": "object", "description": "The caller's own notes."}))
        }), "Exactly one of `messages`, `text` and `token_ids`, and how samples are scored."),
            "oneOf", json!([{"required": ["messages"]}, {"required": ["text"]}, {"required": ["token_ids"]}])),
        "Message": json!({"type": "object", "required": ["role"], "properties": {"role": {"type": "string", "examples": ["system", "user", "assistant"]},
            "content": {"type": ["string", "array", "object", "null"], "description": "As the model's chat template reads it, usually a string."}}}),
        "Strategy": json!({"type": ["object", "null"], "description":
            "Which samples are drawn. `sequential` samples each prompt until its exit; `uniform` draws group_size each; `dapo` as uniform until enough groups have contrast; \
             `estimate` by pass rates of earlier jobs.",
            "properties": {
                "kind": default(names(&["sequential", "uniform", "dapo", "estimate"], "The strategy."), json!("sequential")),
                "exit": default(json!({"description": "When a prompt has enough.", "oneOf": [
                    {"type": "string", "enum": ["positive", "signal", "balance"]},
                    taken(&["positives", "negatives"], json!({"positives": u32_of(0, "Positives wanted."), "negatives": u32_of(0, "Negatives wanted.")}), "Counts; not both 0.")
                ]}), json!("balance")),
                "group_size": default(whole(2, u64::from(limits.max_samples), "Samples kept per prompt; at most max_samples."), json!(4)),
                "max_samples": default(whole(1, u64::from(limits.max_samples), "Samples drawn per prompt at most."), json!(32)),
                "round_size": default(whole(1, u64::from(limits.max_samples), "The exit is tested after every so many samples; at most max_samples."), json!(1)),
                "positive_above": default(json!({"type": "number", "description": "Rewards above this are positive."}), json!(0.5)),
                "straight_positives": default(whole(0, u64::from(limits.max_samples), "Stop a prompt whose first so many samples are all positive; 0 is off, else at least group_size."), json!(0)),
                "max_failed": nullable(whole(0, u64::from(limits.max_samples), "More failed samples end the group as failed. Absent: a tenth of max_samples, at least 1.")),
                "limit_counts": default(names(&["negative", "skip"], "What an answer beyond a verifier's limit counts as."), json!("negative")),
                "mask_truncated": default(json!({"type": "boolean", "description": "Leave truncated answers out instead of counting them as negative."}), json!(false)),
                "budget": nullable(whole(1, u64::MAX, "Samples for all prompts together.")),
                "min_samples": nullable(whole(1, u64::from(limits.max_samples), "estimate: fewest samples of a prompt. Absent: 2.")),
                "prior": nullable(json!({"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 2, "maxItems": 2,
                    "description": "estimate: pseudo-counts [a, b] of the pass rate. Absent: [1, 1]."})),
                "epsilon": nullable(json!({"type": "number", "exclusiveMinimum": 0, "description": "estimate: added to the pass rate below the root. Absent: 0.01."})),
                "history_prior": default(json!({"type": "number", "minimum": 0, "description": "Weight of a prompt's history in the width planner; changes no group."}), json!(0.0)),
                "history_decay": default(json!({"type": "number", "minimum": 0, "maximum": 1, "description": "What older counts of a prompt are worth when this job closes."}), json!(0.9)),
                "groups_wanted": nullable(whole(1, u64::MAX, "dapo: groups with contrast wanted."))
            }}),
        "Sampling": taken(&[], json!({
            "temperature": default(json!({"type": "number", "minimum": 0, "maximum": 1000, "description": "Divides the logits; 0 takes the most likely token, else at least 0.001."}), json!(sampling.temperature)),
            "top_k": default(u32_of(0, "Keep the K most likely tokens; 0 keeps all."), json!(sampling.top_k)),
            "top_p": default(json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "Keep the most likely tokens up to this probability."}), json!(sampling.top_p)),
            "min_p": default(json!({"type": "number", "minimum": 0, "maximum": 1, "description": "Drop tokens less likely than this share of the most likely one."}), json!(sampling.min_p)),
            "max_tokens": default(u32_of(1, "Most tokens of a sample; with the prompt at most the context."), json!(sampling.max_tokens)),
            "min_tokens": default(u32_of(0, "Fewest tokens; at most max_tokens."), json!(sampling.min_tokens)),
            "stop": default(json!({"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "A sample ends where its text holds one of these."}), json!([])),
            "stop_token_ids": default(list(whole(0, TOKEN, "Below the vocabulary size."), "A sample ends after one of these."), json!([])),
            "ignore_eos": default(json!({"type": "boolean", "description": "Do not end at the model's own stop tokens."}), json!(sampling.ignore_eos)),
            "logit_bias": default(list(json!({"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [whole(0, TOKEN, "Token id."), {"type": "number", "minimum": -1000, "maximum": 1000}]}),
                "Pairs of token id and bias."), json!([]))
        }), "How tokens are drawn."),
        "Return": taken(&[], json!({
            "text": {"type": "boolean", "default": true, "description": "The samples' text."},
            "logprobs": {"type": "boolean", "default": true, "description": "Log-probabilities of the distribution sampled from."},
            "logprobs_raw": {"type": "boolean", "default": false, "description": "Those of the model's untouched distribution."},
            "all_samples": {"type": "boolean", "default": false, "description": "Every sample below the exit, not only the kept ones."}
        }), "What groups carry.")
    })
}

/// The names of marks.
fn marks(description: &str) -> Value {
    json!({"type": "string", "enum": ["boxed", "hashes", "answer_tag", "phrase", "bold", "whole", "brackets"], "description": description})
}

/// The fields of a mathematical comparison.
fn math_fields(answer: Value) -> Value {
    let flag = |value: bool, description: &str| json!({"type": "boolean", "default": value, "description": description});
    let rule =
        |names: &[&str], description: &str| json!({"type": "string", "enum": names, "default": names[0], "description": description});
    let form = |description: &str| rule(&["accept", "refuse"], description);
    let default_marks = json!(["boxed", "hashes", "answer_tag", "phrase", "bold", "whole"]);
    json!({
        "answer": answer,
        "lenient": flag(false, "Where nothing marks an answer, the last formula or number is taken."),
        "gold_in_text": flag(false, "The reference is searched like a response."),
        "marks": with(json!({"type": "array", "minItems": 1, "items": marks("A mark."), "description": "What marks an answer."}), "default", default_marks),
        "line_breaks": flag(true, "A formula in a line may hold line breaks."),
        "compare": rule(&["math", "text"], "As mathematics, or as normalised strings only."),
        "percent": rule(&["either", "value", "sign"], "What a percent sign on one side alone means: 50% is 50 and 0.5; 0.5 only; 50% only."),
        "units": rule(&["convert", "ignore", "require"], "Two units must agree after conversion, and a missing one does not matter; none matters; one is wanted where the reference has one."),
        "list_order": rule(&["any", "same"], "Whether a bare list has an order."),
        "unreduced_fractions": form("2/4 for 1/2."),
        "case": rule(&["ignore", "match"], "Upper and lower case of words and choices."),
        "inequality_as_interval": form("x < 3 for (-inf, 3)."),
        "list_as_tuple": form("1, 2 or a vector for (1, 2)."),
        "assignment_as_value": form("5 for x = 5."),
        "names": rule(&["match", "ignore"], "y = 5 for x = 5, f(y) for f(x)."),
        "base_as_value": rule(&["refuse", "accept"], "5 for 101_2."),
        "rounding": rule(&["exact", "gold", "both", "never"], "Which decimals stand for exact values: a reference of 3 significant digits for an exact form, an answer of 12 for an exact reference; besides, a longer decimal that rounds to the reference; besides, a shorter one that the reference rounds to; none."),
        "tolerance": nullable(json!({"type": "number", "minimum": 0, "exclusiveMaximum": 1, "description": "A relative difference of this size does not matter."}))
    })
}

fn rewards() -> Value {
    let kind = |kind: &str, required: &[&str], mut properties: Value, description: &str| {
        properties["kind"] = json!({"type": "string", "const": kind});
        taken(&[&["kind"], required].concat(), properties, description)
    };
    let answer = |description: &str| json!({"type": "string", "description": description});
    let flag = |value: bool, description: &str| json!({"type": "boolean", "default": value, "description": description});
    let ignore_case = || flag(false, "Upper and lower case are the same.");
    let seconds = |most: f64, description: &str| json!({"type": "number", "minimum": 0.001, "maximum": most, "description": description});
    let parts = |items: Value, description: &str| json!({"type": "array", "minItems": 1, "maxItems": 16, "items": items, "description": description});
    let choice = json!({"type": "string", "minLength": 1, "description": "One word of letters and digits."});
    json!({
        "Reward": {"description": "How samples are scored; the fields depend on `kind`. A reward may have 16 parts, those of its parts included, and be nested 4 deep.", "oneOf": [
            kind("math", &["answer"], math_fields(answer("The answer, as in \"72\", \"\\frac{3}{4}\", \"x=5\", \"(1,2]\" or \"\\text{east}\"; a solution is searched for its \\boxed{...} or ####.")), "1 where the answer is equivalent to this one, as mathematics, else 0."),
            kind("exact", &["answer"], json!({"answer": answer("The answer."), "ignore_case": ignore_case(),
                "letters_and_digits": flag(false, "Nothing but letters and digits counts."),
                "mark": nullable(marks("Where the answer stands. Absent: it is the whole text.")),
                "trim": flag(true, "White space around the answer does not count.")}), "1 for exactly this answer, else 0."),
            kind("regex", &["pattern"], json!({"pattern": answer("A regular expression."), "ignore_case": ignore_case()}), "1 where it matches somewhere in the answer, else 0."),
            kind("choice", &["answer"], json!({"answer": answer("The right choice."),
                "choices": {"type": "array", "minItems": 2, "items": choice, "default": ["A", "B", "C", "D"], "description": "All choices."}}), "1 where the answer settles on this choice, else 0."),
            kind("json", &["schema"], json!({"schema": {"type": ["object", "boolean"], "description": "A JSON schema."}}), "1 where the answer's JSON is valid under the schema, else 0."),
            kind("format", &[], json!({
                "think": with(json!({"type": ["boolean", "string"], "enum": [true, false, "optional", "prefilled"],
                    "description": "A thought, <think>...</think>, stands at the beginning: one, none, none or one, one that the prompt has opened."}), "default", "optional"),
                "mark": nullable(json!({"type": "string", "description": "What the answer behind it is marked with: boxed, answer_tag (<answer>...</answer>) or hashes (####). Required where think is \"optional\"."})),
                "exactly_one": flag(true, "The mark stands once in the whole text. Else the last one counts.")
            }), "1 where the text has this form, else 0. An empty thought and an empty answer are none."),
            kind("length", &["max_tokens", "buffer"], json!({"max_tokens": whole(1, TOKEN, "An answer of so many tokens is worth -1."),
                "buffer": whole(0, TOKEN, "So many tokens before that the penalty begins; at most max_tokens.")}),
                "0, and from max_tokens - buffer tokens on linearly down to -1. Answers that were cut off get it too."),
            kind("all", &["parts"], json!({"parts": parts(refer("Reward"), "Any kind but pull and length.")}), "1 where the reward of every part is above 0.5, else 0. A part that fails fails it, unless another decides."),
            kind("any", &["parts"], json!({"parts": parts(refer("Reward"), "Any kind but pull and length.")}), "1 where the reward of one part is above 0.5, else 0. A part that fails fails it, unless another decides."),
            kind("weighted", &["parts"], json!({"parts": parts(taken(&["weight", "reward"], json!({
                "weight": {"type": "number", "description": "What its reward is multiplied with."}, "reward": refer("Reward")
            }), "A part."), "Any kind but pull.")}), "The sum of weight times reward, divided by nothing. A part that fails fails it."),
            kind("webhook", &["url"], json!({"url": answer("Where the grader listens; its host must be one of reward.webhook_hosts."),
                "timeout_s": with(seconds(3600.0, "Seconds that one call may take."), "default", 30.0),
                "data": {"type": ["object", "array", "string", "number", "boolean", "null"], "description": "Passed to the grader with every sample."}}), "A grader over HTTP gives the reward: it takes a GraderCall and answers with a GraderAnswer."),
            kind("pull", &[], json!({"timeout_s": nullable(seconds(31_622_400.0, "A sample without a score for so many seconds is failed. Absent: it waits for ever."))}), "The client posts the scores itself.")
        ], "examples": [{"kind": "math", "answer": "72"}]},
        "GraderCall": whole_object(json!({
            "deadline_s": json!({"type": "number", "description": "Seconds from the call after which nobody listens any more."}),
            "items": list(whole_object(json!({
                "id": {"type": "string", "description": "Unique in the call."}, "job_id": {"type": "string"}, "prompt_id": {"type": "string"},
                "index": whole(0, TOKEN, "The sample's index."), "text": {"type": "string", "description": "The answer."},
                "metadata": {"type": "object", "description": "What came with the prompt."},
                "data": {"type": ["object", "array", "string", "number", "boolean", "null"], "description": "What came with the reward."}
            }), "A sample."), "Samples, of several jobs perhaps.")
        }), "What a webhook is sent."),
        "GraderAnswer": {"type": "object", "required": ["items"], "properties": {"items": list(json!({"type": "object", "required": ["id"], "properties": {
            "id": {"type": "string", "description": "The item's of the call."},
            "reward": nullable(json!({"type": "number", "description": "Absent: 1 for correct, 0 for wrong and no_answer. None with limit and bad_gold."})),
            "verdict": {"type": ["string", "null"], "enum": ["correct", "wrong", "no_answer", "bad_gold", "limit", null]},
            "extracted": {"type": ["string", "null"], "description": "What was taken for the answer; beside a verdict."},
            "rule": {"type": ["string", "null"], "description": "What decided; beside a verdict."},
            "error": {"type": ["string", "null"], "description": "Why there is no reward: the sample is asked again, and failed in the end, never zero."}
        }}), "One per id, in any order. A missing one is asked again.")}, "description": "What a webhook answers."}
    })
}

fn groups() -> Value {
    let count = |description: &str| json!({"type": "integer", "minimum": 0, "description": description});
    let number = |description: &str| json!({"type": "number", "description": description});
    let logprobs = |description: &str| list(json!({"type": "number", "maximum": 0}), description);
    let mut sample = whole_object(
        json!({
            "index": count("Index within the prompt."),
            "token_ids": list(whole(0, TOKEN, "A token."), "The token that ended the sample included."),
            "logprobs": logprobs("One per token, of the distribution sampled from."),
            "logprobs_raw": logprobs("One per token, of the untouched distribution."),
            "text": json!({"type": "string", "description": "What the verifier saw: cut before a stop match, special tokens skipped."}),
            "reward": nullable(number("The raw reward, where there is one.")),
            "reward_status": names(&["scored", "unscored", "failed"], "Whether there is one."),
            "positive": nullable(json!({"type": "boolean", "description": "Whether it is above positive_above."})),
            "verdict": names(&Ruling::ALL.map(Ruling::name), "What the verifier says. Absent where none spoke: a sample that was cut off or broke, a score that the client gave, a grader that gives nothing but a reward."),
            "extracted": json!({"type": ["string", "null"], "description": "What the verifier took for the answer; long texts are cut. There with `verdict`."}),
            "rule": json!({"type": "string", "description": "Where the answer was found and what decided, or what was too large. There with `verdict`."}),
            "advantage": nullable(number("Absent for samples that the group did not keep.")),
            "finish_reason": names(&["stop", "length", "numerics"], "Why it ended."),
            "stop_match": json!({"type": ["integer", "string", "null"], "description": "What ended it, if it was a stop."}),
            "weight_versions": list(whole_object(json!({"version": count("The version."), "start": count("First token."), "end": count("Behind the last token.")}), "A span."),
                "Which weights drew which tokens.")
        }),
        "A sample of a group.",
    );
    // What `return` leaves out is not there.
    sample["required"] =
        json!(["index", "token_ids", "reward", "reward_status", "positive", "advantage", "finish_reason", "stop_match", "weight_versions"]);
    let rate = |description: &str| nullable(json!({"type": "number", "minimum": 0, "maximum": 1, "description": description}));
    let mut group = whole_object(
        json!({
            "prompt_id": {"type": "string"},
            "status": names(&["resolved", "exhausted", "failed"], "How it ended."),
            "prompt_token_ids": list(whole(0, TOKEN, "A token."), "The prompt's tokens."),
            "samples": list(refer("Sample"), "Kept samples, by index."),
            "signal": {"type": "boolean", "description": "Whether the kept rewards differ."},
            "exit": {"type": ["string", "null"], "enum": ["plan", "straight", "cap", "budget", "failed", null], "description": "Why sampling stopped."},
            "mixed_versions": {"type": "boolean", "description": "Whether more than one version of the weights drew its tokens."},
            "stats": refer("GroupStats"),
            "timing": refer("GroupTiming")
        }),
        "What a prompt yields. Everything outside `timing` is reproducible.",
    );
    group["properties"]["error"] = json!({"type": "string", "description": "Why the group failed; absent in others."});
    json!({
        "Sample": sample,
        "Group": group,
        "GroupStats": whole_object(json!({
            "seen": count("Samples below the exit: positive + negative + failed + skipped."),
            "positive": count("Positive."), "negative": count("Negative."), "failed": count("Without a reward for good."),
            "skipped": count("Left out by mask_truncated or limit_counts."), "truncated": count("Ended at a length limit."),
            "pass_rate": rate("positive / (positive + negative). Biased by the exit."),
            "pass_rate_first": rate("Over the first samples of the shortest stop. Unbiased."),
            "pass_rate_unbiased": rate("The path-count estimator. Unbiased."),
            "reward_mean": nullable(number("Mean of the raw rewards.")), "reward_std": nullable(number("Their standard deviation (n - 1).")),
            "tokens_seen": count("Tokens below the exit.")
        }), "Over every sample that the strategy saw."),
        "GroupTiming": whole_object(json!({
            "tokens_discarded": count("Tokens above the exit."), "samples_cancelled": count("Samples cancelled."),
            "wait_s": number("Seconds from close to delivery."), "age_s": number("Seconds from the first sample to delivery."),
            "wall_clock_timeouts": count("Timeouts that decided something; 0 means reproducible.")
        }), "What depends on timing.")
    })
}

fn jobs() -> Value {
    let count = |description: &str| json!({"type": "integer", "minimum": 0, "description": description});
    let state = || names(&["queued", "running", "done", "failed", "cancelled"], "Where the job stands.");
    let mut end = whole_object(
        json!({"job_id": {"type": "string"}, "state": state(), "error": {"type": ["string", "null"], "description": "Why it failed."}, "statistics": refer("JobStatistics")}),
        "How a job ended.",
    );
    end["additionalProperties"] = json!(true);
    let job = json!({"type": "object", "required": ["job_id", "events", "groups", "state", "statistics", "strategy", "sampling", "seed"], "properties": {
        "job_id": {"type": "string"},
        "events": {"type": "string", "description": "Where its stream is."},
        "groups": {"type": "string", "description": "Where its groups are."},
        "state": state(),
        "error": {"type": ["string", "null"], "description": "Why it failed."},
        "statistics": refer("JobStatistics"),
        "strategy": {"type": "object"}, "advantage": {"type": ["string", "object"]}, "weights_version": count("Pinned when the job was accepted."),
        "namespace": {"type": "string"}, "priority": {"type": "integer"}, "deadline_s": {"type": ["number", "null"]},
        "order": {"type": "string"}, "sampling": {"type": "object"}, "seed": count("As given or drawn."),
        "on_weight_update": names(&["finish", "restart", "continue"], "What new weights do to it."), "bad_gold": {"type": "string"}, "return": {"type": "object"}
    }, "description": "A job: its effective settings, nothing inherited silently, and where it stands."});
    json!({
        "Job": job,
        "JobEnd": end,
        "JobList": whole_object(json!({"jobs": list(refer("Job"), "Newest first.")}), "Jobs."),
        "JobStatistics": json!({"type": "object", "required": ["prompts", "groups"], "properties": {
            "prompts": count("Prompts of the job."), "groups": count("Groups delivered."), "resolved": count("Of these, resolved."),
            "exhausted": count("Exhausted."), "failed": count("Failed."), "signal": count("With contrast."),
            "samples_seen": count("Samples that strategies saw."), "samples_positive": count("Of these, positive."),
            "tokens_seen": count("Their tokens."), "tokens_discarded": count("Tokens above exits (timing)."),
            "samples_cancelled": count("Samples cancelled (timing).")
        }, "description": "Sums over the delivered groups."}),
        "GroupPage": whole_object(json!({"groups": list(refer("Group"), "Groups."), "cursor": count("Where to go on.")}), "Some of a job's groups."),
        "Stream": json!({"description": "NDJSON: one of these a line. SSE: `event: job | group | end`, `id: N`, `data:` one of these.", "oneOf": [
            whole_object(json!({"job": {"type": "object"}}), "First."),
            refer("Group"),
            whole_object(json!({"end": refer("JobEnd")}), "Last.")
        ]}),
        "ScoresRequest": taken(&["scores"], json!({"scores": {"type": "array", "items": refer("PulledScore")}}), "Scores of samples."),
        "PulledScore": taken(&["prompt_id", "index"], json!({
            "prompt_id": {"type": "string", "minLength": 1, "maxLength": 1024}, "index": whole(0, TOKEN, "The sample's index."),
            "reward": nullable(json!({"type": "number", "description": "Its reward. One of this and `error`."})),
            "error": nullable(json!({"type": "string", "description": "Why it cannot be scored; the sample is failed, never zero."}))
        }), "A score of a sample."),
        "ScoresAnswer": whole_object(json!({
            "accepted": count("They decide their samples."), "repeated": count("The same scores were there already."),
            "not_needed": count("Their groups are closed below them."),
            "conflicts": list(refer("ScoredSample"), "Samples that have another score already, which stands."),
            "not_finished": list(refer("ScoredSample"), "Samples that have not finished: no score was taken.")
        }), "What became of posted scores."),
        "ScoredSample": whole_object(json!({
            "prompt_id": {"type": "string"}, "index": count("The sample's index."), "reward": nullable(json!({"type": "number", "description": "The score that stands."}))
        }), "A sample by name."),
        "Pending": whole_object(json!({"samples": list(whole_object(json!({
            "prompt_id": {"type": "string"}, "index": count("The sample's index."), "text": {"type": "string", "description": "What is to be scored."},
            "token_ids": list(whole(0, TOKEN, "A token."), "Its tokens."), "finish_reason": {"type": "string", "description": "Why it ended."}
        }), "A sample."), "By prompt and index.")}), "Finished samples without a score.")
    })
}

fn weights() -> Value {
    let version = |description: &str| whole(0, u64::MAX, description);
    let seconds = json!({"type": "number", "minimum": 0});
    let digest = || json!({"type": "string", "pattern": "^(blake3|card):[0-9a-f]{64}$", "description": "BLAKE3 over names, types, shapes and bytes of all tensors; `card:` and that of the announcement where they came over `ipc` to a server without a store on disk."});
    let hex = |bytes: usize, description: &str| json!({"type": "string", "pattern": format!("^[0-9a-fA-F]{{{}}}$", 2 * bytes), "description": description});
    let bytes = || json!({"type": "integer", "minimum": 0, "description": "Bytes of all tensors."});
    let steps = ["receive", "verify", "keep", "stage", "commit", "wait", "swap", "pause"];
    let steps: Map<String, Value> = steps.into_iter().map(|step| (step.to_owned(), seconds.clone())).collect();
    json!({
        "WeightsRequest": with(taken(&["version"], json!({
            "version": version("The new version; above the live one."),
            "dir": nullable(json!({"type": "string", "description": "Absolute path of a Hugging Face folder."})),
            "file": nullable(json!({"type": "string", "description": "Absolute path of a safetensors file."})),
            "ipc": nullable(taken(&["device", "handles", "tensors"], json!({
                "device": hex(16, "UUID of the GPU: the one that GET /v1/weights names."),
                "handles": list(hex(64, "A CUipcMemHandle."), "Of allocations of the sender's."),
                "tensors": list(taken(&["name", "shape", "handle", "offset", "stride", "hash"], json!({
                    "name": {"type": "string"}, "shape": list(json!({"type": "integer", "minimum": 0}), "Sizes."),
                    "handle": whole(0, u32::MAX.into(), "Index into `handles`."),
                    "offset": whole(0, u64::MAX, "Bytes from the beginning of that memory; even."),
                    "stride": whole(0, u32::MAX.into(), "Values from one row to the next."),
                    "hash": hex(16, "Two sums mod 2^64 over the 32-bit words w_i of the rows without padding, of the finalizer of SplitMix64 of w_i + (i << 32) + seed; the seeds are 0x9e3779b97f4a7c15 and 0xd1b54a32d192ed03.")
                }), "Rows of BF16, [product of the shape / last, last]."), "Every tensor of the model.")
            }), "Weights in the sender's memory of the engine's GPU. The sender leaves them as they are until they are staged.")),
            "base": nullable(version("The live version, from which tensors are taken that `file` does not hold.")),
            "rollback": {"type": "boolean", "default": false, "description": "A version that is not above the live one is meant."},
            "async": {"type": "boolean", "default": false, "description": "Answer 202 when the weights are staged and wait for open jobs alone, or are behind a push that does; GET tells the rest."}
        }), "Weights in files or in GPU memory of the server's machine."), "oneOf", json!([{"required": ["dir"]}, {"required": ["file"]}, {"required": ["ipc"]}])),
        "WeightsUpdate": whole_object(json!({
            "version": version("What serves."), "digest": digest(), "bytes": bytes(),
            "unchanged": {"type": "boolean", "description": "It served already: nothing was done."},
            "seconds": whole_object(Value::Object(steps), "Of each step; `pause` is what the engine's loop spent on the swap.")
        }), "A push that is through."),
        "WeightsStaged": {"oneOf": [
            whole_object(json!({"version": version("What waits."), "digest": digest(), "bytes": bytes()}), "A push that waits for open jobs."),
            whole_object(json!({"version": version("What waits."), "state": {"type": "string", "enum": ["queued"]}}), "A push behind one that waits for open jobs; not looked at yet."),
        ]},
        "Weights": whole_object(json!({
            "version": version("What serves."), "digest": digest(), "bytes": bytes(),
            "loaded_unix_s": seconds,
            "staged": nullable(version("What waits for open jobs.")),
            "needed": nullable(version("What open jobs wait for and is not there.")),
            "last": {"type": ["object", "null"], "description": "How the last push went: `state` is staging, waiting, done or failed."},
            "ipc": nullable(hex(16, "UUID of the GPU from whose memory weights are taken over `ipc`; null where they are not.")),
            "numerics_id": {"type": "string", "description": "Backend, instruction set and kernels: where a trainer's are the same, so are the bits."}
        }), "The weights."),
        "WeightsVerified": whole_object(json!({
            "version": version("What serves."), "digest": digest(),
            "changed": list(json!({"type": "string"}), "Tensors whose files are no longer what was loaded."),
            "tensors": list(whole_object(json!({
                "name": {"type": "string"}, "dtype": names(&["BF16", "F16", "F32"], "Type."), "shape": list(json!({"type": "integer"}), "Sizes."),
                "digest": {"type": "string", "description": "BLAKE3 of its bytes, in hexadecimal."}
            }), "A tensor."), "In the model's order.")
        }), "Digests.")
    })
}

fn verify() -> Value {
    let id = |description: &str| json!({"type": ["string", "integer"], "minimum": i64::MIN, "maximum": u64::MAX, "maxLength": 1024, "description": description});
    let mut item = taken(
        &["response"],
        json!({
            "id": {"type": ["string", "integer", "null"], "minimum": i64::MIN, "maximum": u64::MAX, "maxLength": 1024, "description": "Goes back with the verdict. Absent: the item's position, in decimal."},
            "gold": {"type": ["string", "integer", "object", "null"], "minimum": i64::MIN, "maximum": u64::MAX,
                "description": "The reference answer; the pattern for `regex`, the schema for `json` (its text or the object itself)."},
            "response": {"type": "string", "description": "What is judged."},
            "kind": {"type": ["string", "null"], "enum": verify_kinds(), "default": "math", "description": "What kind of reward the gold belongs to."},
            "options": {"type": ["object", "null"], "description": "The other fields of a reward of that kind (see Reward)."},
            "reward": {"oneOf": [refer("Reward"), {"type": "null"}], "description": "A whole reward in place of gold, kind and options; not `webhook` and not `pull`."}
        }),
        "A response and what it is held against: a gold or a whole reward.",
    );
    // Null is as absent.
    item["oneOf"] = json!([
        {"required": ["gold"], "properties": {"gold": {"not": {"type": "null"}}}},
        {"required": ["reward"], "properties": {"reward": {"type": "object"}}}
    ]);
    json!({
        "VerifyRequest": taken(&["items"], json!({
            "items": {"type": "array", "minItems": 1, "maxItems": MAX_ITEMS, "items": refer("VerifyItem")}
        }), "Responses to be judged."),
        "VerifyItem": item,
        "VerifyAnswer": whole_object(json!({
            "items": list(whole_object(json!({
                "id": id("As given, or the item's position."),
                "verdict": names(&Ruling::ALL.map(Ruling::name), "`bad_gold`: the reference cannot be used. `limit`: the response is too large to judge."),
                "extracted": {"type": ["string", "null"], "description": "The text that was taken for the answer; long ones are cut."},
                "rule": {"type": "string", "description": "Where the answer was found and what decided; what was too large; what is wrong with the gold."},
                "reward": {"type": ["number", "null"], "description": "What a job would give for it. None for a limit and a bad gold."}
            }), "A verdict."), "In request order.")
        }), "Verdicts.")
    })
}

/// Kinds that are judged by the text alone; null is as absent.
fn verify_kinds() -> Vec<Option<&'static str>> {
    KINDS.into_iter().map(Some).chain([None]).collect()
}

fn others(limits: &Limits) -> Value {
    let seconds = json!({"type": "number", "minimum": 0});
    let logprobs = || list(json!({"type": "number", "maximum": 0}), "One per token from prompt_len on.");
    let mut error = whole_object(
        json!({
            "code": {"type": "string", "description": "A short name that programs can compare."},
            "message": {"type": "string", "description": "What is wrong and what to do."},
            "param": {"type": ["string", "null"], "description": "Path of the offending field; the first where there are several."}
        }),
        "The refusal.",
    );
    let detail = whole_object(
        json!({"prompt_id": {"type": "string"}, "param": {"type": "string", "description": "Path of the field."},
        "problem": {"type": "string", "description": "What is wrong with it."}}),
        "A prompt.",
    );
    error["properties"]["details"] =
        list(detail, "Every prompt that the refusal is about, where it is about reference answers; at most 100.");
    json!({
        "ScoreRequest": taken(&["sequences"], json!({
            "sequences": {"type": "array", "minItems": 1, "maxItems": limits.max_score_sequences, "items": taken(&["token_ids", "prompt_len"], json!({
                "token_ids": {"type": "array", "minItems": 2, "items": whole(0, TOKEN, "Below the vocabulary size.")},
                "prompt_len": whole(1, TOKEN, "Values are given from this position on; below the number of tokens.")
            }), "A sequence.")},
            "sampling": {"oneOf": [refer("Sampling"), {"type": "null"}], "description": "The temperature alone; filters are refused."}
        }), "Sequences to score."),
        "ScoreAnswer": whole_object(json!({
            "version": {"type": "integer", "minimum": 0},
            "sequences": list(whole_object(json!({"logprobs": logprobs(), "logprobs_raw": logprobs()}), "A sequence."), "In request order.")
        }), "Log-probabilities at the given temperature, and raw."),
        "State": json!({"type": "object", "required": ["uptime_s", "ready", "engine", "jobs", "limits"], "properties": {
            "uptime_s": seconds, "ready": {"type": "boolean"}, "paused": {"type": "boolean"}, "engine": {"type": "object"}, "weights": {"type": ["object", "null"]}, "jobs": {"type": "object"}, "limits": {"type": "object"}
        }}),
        "Alive": whole_object(json!({"alive": {"type": "boolean"}, "heartbeat_s": seconds}), "Alive."),
        "Ready": whole_object(json!({"ready": {"type": "boolean"}, "weights_version": {"type": "integer", "minimum": 0}}), "Ready."),
        "Paused": whole_object(json!({"paused": {"type": "boolean"}}), "Whether new samples are held back."),
        "Error": whole_object(json!({"error": error}), "A refusal.")
    })
}
