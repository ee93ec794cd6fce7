//! The operations: parameters, bodies, answers, refusals.

use serde_json::{Value, json};

use crate::server::Limits;

fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn refusal(name: &str) -> Value {
    json!({"$ref": format!("#/components/responses/{name}")})
}

fn body(name: &str) -> Value {
    json!({"required": true, "content": {"application/json": {"schema": schema(name)}}})
}

fn ok(description: &str, name: &str) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema(name)}}})
}

/// A stream, or one JSON object where the client accepts neither kind of stream.
fn streams(description: &str) -> Value {
    json!({"description": description, "content": {
        "application/x-ndjson": {"schema": schema("Stream")},
        "text/event-stream": {"schema": schema("Stream")}
    }})
}

fn id() -> Value {
    json!({"name": "id", "in": "path", "required": true, "description": "The job's id.", "schema": {"type": "string", "minLength": 1, "maxLength": 128}})
}

fn cursor(of: &str) -> Value {
    json!({"name": "cursor", "in": "query", "required": false, "description": format!("Position of the first {of} wanted, counted from 0."),
        "schema": {"type": "integer", "minimum": 0, "maximum": u64::MAX, "default": 0}})
}

fn limit(default: usize, maximum: usize, of: &str) -> Value {
    json!({"name": "limit", "in": "query", "required": false, "description": format!("Most {of} wanted."),
        "schema": {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}})
}

fn operation_of(id: &str, tag: &str, summary: &str, description: &str) -> Value {
    json!({"operationId": id, "tags": [tag], "summary": summary, "description": description, "responses": {}})
}

/// What can be done with a job that was accepted.
fn links() -> Value {
    let to = |operation: &str| (operation.to_owned(), json!({"operationId": operation, "parameters": {"id": "$response.body#/job_id"}}));
    ["getRollout", "listGroups", "followRollout", "listPending", "postScores", "cancelRollout"].map(to).into_iter().collect()
}

/// What a POST with a body can be refused with, beside its own refusals.
fn body_refusals(operation: &mut Value) {
    for (status, name) in
        [("400", "BadJson"), ("408", "Timeout"), ("413", "TooLarge"), ("415", "NotJson"), ("422", "Invalid"), ("500", "Internal")]
    {
        operation["responses"][status] = refusal(name);
    }
}

/// What a push can come to.
fn update_answers(operation: &mut Value) {
    let refusals = [
        ("400", "BadJson"),
        ("408", "Timeout"),
        ("409", "Conflict"),
        ("413", "TooLarge"),
        ("422", "BadWeights"),
        ("429", "Overloaded"),
        ("500", "Internal"),
        ("501", "NotSupported"),
        ("503", "NotReady"),
    ];
    for (status, name) in refusals {
        operation["responses"][status] = refusal(name);
    }
    operation["responses"]["200"] = ok("They serve.", "WeightsUpdate");
    operation["responses"]["202"] =
        ok("They are staged: jobs are accepted for them, and run once no open job holds the old ones.", "WeightsStaged");
}

/// The operation of a route; nothing for a route that is not described.
pub(super) fn operation(method: &str, path: &str, limits: &Limits) -> Option<Value> {
    let mut op;
    match (method, path) {
        ("POST", "/v1/rollouts") => {
            op = operation_of(
                "startRollout",
                "rollouts",
                "Start a job, or attach to it",
                "Samples every prompt until its strategy's exit and gives one group each. With `Accept: application/x-ndjson` or \
                 `text/event-stream` the answer is the job's stream; otherwise 202 at once. With a `job_id` the call is idempotent: the same \
                 id and body attach to the job that is there, another body is a 409; the job goes on when the connection is gone. \
                 A streamed job without an id is cancelled with its connection.",
            );
            op["requestBody"] = body("RolloutRequest");
            body_refusals(&mut op);
            op["responses"]["200"] = streams("The job's stream, if the client accepts one.");
            op["responses"]["202"] = ok("The job was accepted, or was there.", "Job");
            op["responses"]["202"]["links"] = links();
            op["responses"]["409"] = refusal("Conflict");
            op["responses"]["429"] = refusal("Overloaded");
            op["responses"]["503"] = refusal("NotReady");
        }
        ("GET", "/v1/rollouts") => {
            op = operation_of("listRollouts", "rollouts", "The jobs", "Open and kept jobs, newest first.");
            op["parameters"] = json!([limit(100, 1000, "jobs")]);
            op["responses"]["200"] = ok("The jobs.", "JobList");
            op["responses"]["422"] = refusal("Invalid");
        }
        ("GET", "/v1/rollouts/{id}") => {
            op = operation_of("getRollout", "rollouts", "A job", "Its effective settings, state and statistics.");
            op["parameters"] = json!([id()]);
            op["responses"]["200"] = ok("The job.", "Job");
            op["responses"]["400"] = refusal("BadId");
            op["responses"]["404"] = refusal("NotFound");
        }
        ("DELETE", "/v1/rollouts/{id}") => {
            op = operation_of(
                "cancelRollout",
                "rollouts",
                "Cancel a job",
                "Answers when the blocks of the job's samples are free. A job that is over stays as it is.",
            );
            op["parameters"] = json!([id()]);
            op["responses"]["200"] = ok("The job as it ended.", "Job");
            op["responses"]["400"] = refusal("BadId");
            op["responses"]["404"] = refusal("NotFound");
        }
        ("GET", "/v1/rollouts/{id}/groups") => {
            op = operation_of(
                "listGroups",
                "rollouts",
                "A job's groups",
                "Delivered groups from a position on; `cursor` of the answer is where to go on.",
            );
            op["parameters"] = json!([id(), cursor("group"), limit(limits.max_groups_page, limits.max_groups_page, "groups")]);
            op["responses"]["200"] = ok("Groups.", "GroupPage");
            op["responses"]["400"] = refusal("BadId");
            op["responses"]["404"] = refusal("NotFound");
            op["responses"]["422"] = refusal("Invalid");
        }
        ("GET", "/v1/rollouts/{id}/events") => {
            op = operation_of(
                "followRollout",
                "rollouts",
                "A job's stream",
                "Event 0 is `{\"job\": ...}`, then come the groups, then `{\"end\": ...}`. NDJSON unless the client accepts `text/event-stream`; \
                 empty lines (comments in SSE) keep a quiet connection open. Goes on where `cursor`, or the `Last-Event-ID` header, says.",
            );
            op["parameters"] = json!([id(), cursor("event")]);
            op["responses"]["200"] = streams("The stream, to the job's end.");
            op["responses"]["400"] = refusal("BadId");
            op["responses"]["404"] = refusal("NotFound");
            op["responses"]["422"] = refusal("Invalid");
        }
        ("POST", "/v1/rollouts/{id}/scores") => {
            op = operation_of(
                "postScores",
                "rollouts",
                "Score samples of `pull` rewards",
                "Each score names a sample that waits for one. The same score twice is as once; another score for a sample that has one is \
                 named among the conflicts and changes nothing. A job that is over answers 409.",
            );
            op["parameters"] = json!([id()]);
            op["requestBody"] = body("ScoresRequest");
            body_refusals(&mut op);
            op["responses"]["200"] = ok("What was taken.", "ScoresAnswer");
            op["responses"]["404"] = refusal("NotFound");
            op["responses"]["409"] = refusal("Conflict");
            op["responses"]["503"] = refusal("NotReady");
        }
        ("GET", "/v1/rollouts/{id}/pending") => {
            op = operation_of(
                "listPending",
                "rollouts",
                "Samples that wait for a score",
                "Finished samples with a `pull` reward that no one has scored yet.",
            );
            let wait = json!({"name": "wait_s", "in": "query", "required": false, "description": "Seconds to wait for the first sample.",
                "schema": {"type": "integer", "minimum": 0, "maximum": 60, "default": 0}});
            op["parameters"] = json!([id(), limit(100, 1000, "samples"), wait]);
            op["responses"]["200"] = ok("The samples.", "Pending");
            op["responses"]["400"] = refusal("BadId");
            op["responses"]["404"] = refusal("NotFound");
            op["responses"]["422"] = refusal("Invalid");
        }
        ("POST", "/v1/score") => {
            op = operation_of(
                "score",
                "scoring",
                "Log-probabilities of sequences",
                "One value per token from `prompt_len` on, by the kernels that sample.",
            );
            op["requestBody"] = body("ScoreRequest");
            body_refusals(&mut op);
            op["responses"]["200"] = ok("The log-probabilities.", "ScoreAnswer");
            op["responses"]["429"] = refusal("Overloaded");
            op["responses"]["503"] = refusal("NotReady");
        }
        ("POST", "/v1/verify") => {
            op = operation_of(
                "verify",
                "scoring",
                "Verdicts on texts",
                "Judges responses as a job judges its samples, without the model. A reference answer that cannot be used is a verdict of its item. \
                 `webhook` and `pull` are refused: nobody is asked here.",
            );
            op["requestBody"] = body("VerifyRequest");
            body_refusals(&mut op);
            op["responses"]["200"] = ok("The verdicts, in the order of the items.", "VerifyAnswer");
            op["responses"]["503"] = refusal("NotReady");
        }
        ("PUT", "/v1/weights") => {
            op = operation_of(
                "putWeights",
                "weights",
                "New weights",
                "The body is a safetensors file with all tensors of the model, or with `base` those that changed since the live version. They are \
                 verified, kept and packed while the old ones serve, and swapped in between two steps, once no open job with \
                 `on_weight_update: finish` pins the old version. The answer comes after the swap. The same version with the same tensors again \
                 is 200 and changes nothing; a refused push changes nothing either.",
            );
            let query = |name: &str, required: bool, schema: Value, description: &str| json!({"name": name, "in": "query", "required": required, "description": description, "schema": schema});
            let number = || json!({"type": "integer", "minimum": 0, "maximum": u64::MAX});
            let flag = || json!({"type": "boolean", "default": false});
            op["parameters"] = json!([
                query("version", true, number(), "The new version; above the live one."),
                query("base", false, number(), "The live version, from which tensors are taken that the body does not hold."),
                query("rollback", false, flag(), "A version that is not above the live one is meant."),
                query("async", false, flag(), "Answer 202 when the weights are staged and wait for open jobs alone, or are behind a push that does; GET tells the rest."),
                {"name": "Content-Digest", "in": "header", "required": false, "description": "SHA-256 of the body (RFC 9530).",
                    "schema": {"type": "string", "pattern": "^sha-256=:[A-Za-z0-9+/]{43}=:$"}}
            ]);
            op["requestBody"] =
                json!({"required": true, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}});
            update_answers(&mut op);
        }
        ("POST", "/v1/weights") => {
            op = operation_of(
                "loadWeights",
                "weights",
                "New weights from files or GPU memory of the server's machine",
                "`dir` is a Hugging Face folder, `file` one safetensors file, under one of the server's `weights.roots`. A file in shared memory is \
                 mapped and packed where it is: nothing is copied on the way. It must not be written over while it serves; write a new file. `ipc` \
                 is memory of the engine's own GPU: it is copied there and the copy is checked there, and read back only to be written to the disk \
                 where the server has a store on disk.",
            );
            op["requestBody"] = body("WeightsRequest");
            update_answers(&mut op);
            op["responses"]["415"] = refusal("NotJson");
            op["responses"]["403"] = refusal("Forbidden");
        }
        ("GET", "/v1/weights") => {
            op = operation_of("getWeights", "weights", "What serves", "And what waits to, and how the last push went.");
            op["responses"]["200"] = ok("The weights.", "Weights");
            op["responses"]["501"] = refusal("NotSupported");
        }
        ("POST", "/v1/weights/verify") => {
            op = operation_of("verifyWeights", "weights", "Digests of what serves", "Reads the files of the live version again.");
            op["responses"]["200"] = ok("The digest of each tensor.", "WeightsVerified");
            op["responses"]["409"] = refusal("Conflict");
            op["responses"]["422"] = refusal("BadWeights");
            op["responses"]["501"] = refusal("NotSupported");
            op["responses"]["503"] = refusal("NotReady");
        }
        ("GET", "/v1/state") => {
            op = operation_of("state", "state", "Engine, jobs and limits", "For dashboards.");
            op["responses"]["200"] = ok("The state.", "State");
        }
        ("GET", "/livez") => {
            op = operation_of("livez", "state", "Alive", "200 while the engine's loop goes round. Needs no token.");
            op["responses"]["200"] = ok("Alive.", "Alive");
            op["responses"]["503"] = refusal("NotReady");
        }
        ("GET", "/readyz") => {
            op = operation_of(
                "readyz",
                "state",
                "Ready",
                "200 while jobs are taken and sampled: not paused, not shutting down. Needs no token.",
            );
            op["responses"]["200"] = ok("Ready.", "Ready");
            op["responses"]["503"] = refusal("NotReady");
        }
        ("GET", "/metrics") => {
            op = operation_of("metrics", "state", "Metrics", "In the text format of Prometheus.");
            op["responses"]["200"] = json!({"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}});
            op["responses"]["500"] = refusal("Internal");
        }
        ("GET", "/openapi.json") => {
            op = operation_of("openapi", "state", "This document", "Needs no token.");
            op["responses"]["200"] =
                json!({"description": "The document.", "content": {"application/json": {"schema": {"type": "object"}}}});
        }
        ("POST", "/v1/pause") => {
            op = operation_of(
                "pause",
                "admin",
                "Hold new samples back",
                "Samples in flight finish and groups close; jobs submit nothing new until resumed. Twice is as once.",
            );
            op["responses"]["200"] = ok("Paused.", "Paused");
        }
        ("POST", "/v1/resume") => {
            op = operation_of("resume", "admin", "Let jobs go on", "Twice is as once.");
            op["responses"]["200"] = ok("Going on.", "Paused");
        }
        _ => return None,
    }
    Some(op)
}

/// The refusals, by name.
pub(super) fn responses() -> Value {
    let error = |description: &str| json!({"description": description, "content": {"application/json": {"schema": schema("Error")}}});
    let later = |description: &str| {
        let mut response = error(description);
        response["headers"] = json!({"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 0}}});
        response
    };
    let mut unauthorized = error("`unauthorized`: no token, or none of this server's.");
    unauthorized["headers"] = json!({"WWW-Authenticate": {"schema": {"type": "string"}}});
    json!({
        "BadJson": error("`invalid_json`: the body is no JSON; `param` says where, if that is known. `truncated`: it broke off."),
        "BadWeights": error("`invalid_weights`: `param` is the tensor that is missing, unknown, misshapen, of a wrong type, or not finite. `invalid_request`: a field or parameter. `digest_mismatch`: the body is not what was announced. `ipc_unavailable`: the engine cannot reach that memory; push in another way."),
        "NotSupported": error("`not_supported`: this server's engine takes no new weights."),
        "BadId": error("`invalid_request`: the id in the path is not UTF-8."),
        "Unauthorized": unauthorized,
        "Forbidden": error("`forbidden`: the data token where the admin token is needed, or a path outside of `weights.roots`."),
        "NotFound": error("`not_found`: there is no such job."),
        "Timeout": error("`timeout`: the body did not arrive in time."),
        "Conflict": error("`conflict`: the id belongs to another request; or the version of the weights is not there, or is there with other tensors, or is not above the live one, or came over `ipc` to a server that keeps no files, so that nothing can be read from it again."),
        "TooLarge": error("`too_large`: the body is larger than the server's limit."),
        "NotJson": error("`unsupported_media_type`: the content type is not JSON."),
        "Invalid": error("`invalid_request`: `param` is the path of the field that cannot be used, such as `prompts[3].reward.answer`."),
        "Overloaded": later("`overloaded`: too many open jobs, or a full queue."),
        "Internal": error("`internal` or `numerics`: a fault of the server's or the model's."),
        "NotReady": later("`not_ready`: paused, shutting down, or the engine is stuck. `needs_weights`: open jobs wait for a version whose file is gone.")
    })
}
