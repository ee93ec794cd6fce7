//! `POST /v1/rollouts`: from bytes to a [`JobSpec`].
//!
//! Two steps. [`RolloutRequest::read`] parses, fills every default in and refuses what needs no model to refuse; its digest identifies
//! the request. [`RolloutRequest::into_job`] tokenizes and checks against the model. What this server does not support is refused by
//! name; nothing is silently ignored.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::error::{ApiError, Detail};
use super::json;
use super::limits::Limits;
use crate::engine::{EngineInfo, SamplingParams};
use crate::field::{self, FieldError, Object};
use crate::reward::{self, Pool};
use crate::rollout::plan::{Advantage, Strategy};
use crate::rollout::versions::{NoSuchVersion, Pin, Versions};
use crate::rollout::{BadGoldRule, JobSpec, OnWeightUpdate, Order, PromptSpec, Return, Settings, TextModel, unix_now};

/// The request as the caller writes it. Fields of several shapes are read later, so that errors can say what is supported.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    job_id: Option<String>,
    prompts: Vec<Object<WrittenPrompt>>,
    strategy: Option<Value>,
    advantage: Option<Value>,
    weights: Option<Value>,
    namespace: Option<String>,
    priority: Option<i64>,
    deadline_s: Option<f64>,
    order: Option<Order>,
    sampling: Option<Object<SamplingParams>>,
    seed: Option<u64>,
    on_weight_update: Option<OnWeightUpdate>,
    bad_gold: Option<BadGoldRule>,
    #[serde(rename = "return")]
    fields: Option<Object<Return>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPrompt {
    id: Option<String>,
    messages: Option<Vec<Value>>,
    text: Option<String>,
    token_ids: Option<Vec<u32>>,
    reward: Option<Value>,
    metadata: Option<Map<String, Value>>,
}

/// What a prompt is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A conversation, for the chat template.
    Messages(Vec<Value>),
    /// Raw text.
    Text(String),
    /// Token ids.
    TokenIds(Vec<u32>),
}

impl Input {
    fn field(&self) -> &'static str {
        match self {
            Input::Messages(_) => "messages",
            Input::Text(_) => "text",
            Input::TokenIds(_) => "token_ids",
        }
    }
}

/// A prompt with its defaults filled in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptRequest {
    /// Its id; its position in decimal where none was given.
    pub id: String,
    /// What it is made of.
    #[serde(flatten)]
    pub input: Input,
    /// How its samples are scored.
    pub reward: reward::Spec,
    /// The caller's own notes, part of the request's identity.
    pub metadata: Map<String, Value>,
}

/// Which weights a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Weights {
    /// This version.
    Version(u64),
    /// Those that serve when the job is accepted.
    Latest(LatestTag),
}

/// `"latest"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LatestTag {
    /// `"latest"`.
    Latest,
}

/// A request with every default filled in. Its JSON with sorted keys is what the digest is taken of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RolloutRequest {
    /// The caller's id for the job.
    pub job_id: Option<String>,
    /// Prompts in order.
    #[serde(skip)]
    pub prompts: Vec<PromptRequest>,
    /// Strategy.
    pub strategy: Strategy,
    /// Advantage.
    pub advantage: Advantage,
    /// Weights.
    pub weights: Weights,
    /// Where per-prompt history is kept.
    pub namespace: String,
    /// Importance among jobs.
    pub priority: i64,
    /// Seconds after which the job ends.
    pub deadline_s: Option<f64>,
    /// Order of delivery.
    pub order: Order,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Seed, if the caller chose one.
    pub seed: Option<u64>,
    /// What new weights do.
    pub on_weight_update: OnWeightUpdate,
    /// What an unusable reference answer does.
    pub bad_gold: BadGoldRule,
    /// What groups carry.
    #[serde(rename = "return")]
    pub fields: Return,
}

impl RolloutRequest {
    /// Parses a body.
    pub fn read(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let Object(written): Object<Written> = json::parse(body)?;
        if let Some(id) = &written.job_id {
            check_job_id(id)?;
        }
        if written.prompts.is_empty() {
            return Err(ApiError::field("prompts", "is empty; give at least one prompt"));
        }
        if written.prompts.len() > limits.max_prompts {
            return Err(ApiError::field(
                "prompts",
                format!("holds {} prompts, more than {}; split the job", written.prompts.len(), limits.max_prompts),
            ));
        }
        let strategy = match &written.strategy {
            None => Strategy::default(),
            Some(strategy) => Strategy::read(strategy).map_err(|e| e.within("strategy"))?,
        };
        strategy.check(written.prompts.len()).map_err(|e| e.within("strategy"))?;
        if strategy.max_samples > limits.max_samples {
            let problem = format!("is {}, above this server's limit of {}", strategy.max_samples, limits.max_samples);
            return Err(ApiError::field("strategy.max_samples", problem));
        }
        let prompts = read_prompts(written.prompts, limits.max_prompt_tokens)?;
        let on_weight_update = written.on_weight_update.unwrap_or_default();
        check_restart(on_weight_update, &prompts)?;
        Ok(RolloutRequest {
            job_id: written.job_id,
            prompts,
            strategy,
            advantage: match &written.advantage {
                None => Advantage::default(),
                Some(advantage) => Advantage::read(advantage).map_err(|e| e.within("advantage"))?,
            },
            weights: read_weights(written.weights.as_ref())?,
            namespace: read_namespace(written.namespace)?,
            priority: read_priority(written.priority)?,
            deadline_s: read_deadline(written.deadline_s)?,
            order: written.order.unwrap_or_default(),
            sampling: written.sampling.unwrap_or_default().0,
            seed: written.seed,
            on_weight_update,
            bad_gold: written.bad_gold.unwrap_or_default(),
            fields: written.fields.unwrap_or_default().0,
        })
    }

    /// SHA-256 of the request with defaults filled in and keys sorted, before a seed is drawn or `latest` is resolved.
    pub fn digest(&self) -> Result<String, ApiError> {
        let cannot = |e: serde_json::Error| ApiError::internal(format!("the request could not be written back: {e}"));
        // Prompt by prompt: a tree of JSON values takes many times the room of the tokens in it.
        let mut hasher = Sha256::new();
        let mut add = |text: Result<String, serde_json::Error>| -> Result<(), ApiError> {
            let mut value: Value = serde_json::from_str(&text.map_err(cannot)?).map_err(cannot)?;
            value.sort_all_objects();
            hasher.update(value.to_string().as_bytes());
            hasher.update(b"\n");
            Ok(())
        };
        self.prompts.iter().try_for_each(|prompt| add(serde_json::to_string(prompt)))?;
        add(serde_json::to_string(self))?;
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// A hold on the weights that the request is for.
    pub fn pin(&self, versions: &Versions) -> Result<Pin, ApiError> {
        let wanted = match self.weights {
            Weights::Version(version) => Some(version),
            Weights::Latest(_) => None,
        };
        let conflict =
            |e: NoSuchVersion| ApiError::new(StatusCode::CONFLICT, "conflict", format!("weights: {e}; push it first, or use one of these"));
        versions.pin(wanted, self.on_weight_update).map_err(|e| conflict(e).about("weights"))
    }

    /// Tokenizes every prompt and checks the request against the model. Takes time; call it off the server's own threads.
    pub fn into_job(
        self,
        text: &dyn TextModel,
        info: &EngineInfo,
        weights_version: u64,
        limits: &Limits,
        rewards: &Pool,
        key: &str,
    ) -> Result<JobSpec, ApiError> {
        self.sampling.validate(info.vocab_size, info.has_tokenizer).map_err(|e| FieldError::new(e.field, e.problem).within("sampling"))?;
        let digest = self.digest()?;
        let mut prompts = Vec::with_capacity(self.prompts.len());
        let mut bad_golds = Vec::new();
        let mut total = 0usize;
        for (position, prompt) in self.prompts.into_iter().enumerate() {
            rewards.check(&prompt.reward).map_err(|e| e.within(&format!("prompts[{position}].reward")))?;
            let spec = tokenize(position, prompt, text, info, self.sampling.max_tokens)?;
            total += spec.token_ids.len();
            if total > limits.max_prompt_tokens {
                let problem = format!("hold more than {} tokens in all; split the job", limits.max_prompt_tokens);
                return Err(ApiError::field("prompts", problem));
            }
            if let Err(bad) = &spec.verifier {
                bad_golds.push(Detail {
                    prompt_id: spec.id.clone(),
                    param: format!("prompts[{position}].reward.{}", bad.field),
                    problem: bad.problem.clone(),
                });
            }
            prompts.push(spec);
        }
        if self.bad_gold == BadGoldRule::Refuse
            && let Some(error) = ApiError::bad_golds(bad_golds)
        {
            return Err(error);
        }
        let settings = Settings {
            strategy: self.strategy,
            advantage: self.advantage,
            weights_version,
            namespace: self.namespace,
            priority: self.priority,
            deadline_s: self.deadline_s,
            order: self.order,
            sampling: self.sampling,
            seed: self.seed.unwrap_or_else(draw_seed),
            on_weight_update: self.on_weight_update,
            bad_gold: self.bad_gold,
            fields: self.fields,
        };
        Ok(JobSpec {
            named: self.job_id.is_some(),
            id: self.job_id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            digest,
            sampling: Arc::new(settings.sampling.clone()),
            settings: Arc::new(settings),
            prompts,
            key: key.to_owned(),
            accepted_unix_s: unix_now(),
        })
    }
}

/// A client scores samples by their index, and a lost sample's successor has the same one: its score would count for another answer.
fn check_restart(rule: OnWeightUpdate, prompts: &[PromptRequest]) -> Result<(), ApiError> {
    if rule == OnWeightUpdate::Restart && prompts.iter().any(|prompt| matches!(prompt.reward, reward::Spec::Pull { .. })) {
        let problem = "is \"restart\", which does not go with rewards of kind \"pull\"; use \"finish\" or \"continue\"";
        return Err(ApiError::field("on_weight_update", problem));
    }
    Ok(())
}

fn check_job_id(id: &str) -> Result<(), ApiError> {
    let right = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    if id.is_empty() || id.len() > 128 || !id.chars().all(right) || id.starts_with('.') {
        return Err(ApiError::field("job_id", "must be 1 to 128 letters, digits or . _ : - and not start with a dot"));
    }
    Ok(())
}

fn read_prompts(written: Vec<Object<WrittenPrompt>>, max_tokens: usize) -> Result<Vec<PromptRequest>, ApiError> {
    let given: usize = written.iter().map(|Object(prompt)| prompt.token_ids.as_ref().map_or(0, Vec::len)).sum();
    if given > max_tokens {
        return Err(ApiError::field("prompts", format!("hold {given} tokens, more than {max_tokens} in all; split the job")));
    }
    let mut positions: HashMap<String, usize> = HashMap::with_capacity(written.len());
    let mut prompts = Vec::with_capacity(written.len());
    for (position, Object(prompt)) in written.into_iter().enumerate() {
        let at = |field: &str| field::join(&format!("prompts[{position}]"), field);
        let id = prompt.id.unwrap_or_else(|| position.to_string());
        if id.is_empty() || id.len() > 1024 {
            return Err(ApiError::field(at("id"), "must be 1 to 1024 bytes long"));
        }
        if let Some(other) = positions.insert(id.clone(), position) {
            let shown: String = id.chars().take(100).collect();
            return Err(ApiError::field(
                at("id"),
                format!("is {shown:?}, as that of prompts[{other}] (a prompt without id is called by its position); ids must differ"),
            ));
        }
        let given = [prompt.messages.is_some(), prompt.text.is_some(), prompt.token_ids.is_some()].iter().filter(|given| **given).count();
        let input = match (prompt.messages, prompt.text, prompt.token_ids) {
            (Some(messages), None, None) => Input::Messages(messages),
            (None, Some(text), None) => Input::Text(text),
            (None, None, Some(ids)) => Input::TokenIds(ids),
            _ => return Err(ApiError::field(at(""), format!("has {given} of messages, text and token_ids; give exactly one"))),
        };
        let empty = match &input {
            Input::Messages(messages) => messages.is_empty(),
            Input::Text(text) => text.is_empty(),
            Input::TokenIds(ids) => ids.is_empty(),
        };
        if empty {
            return Err(ApiError::field(at(input.field()), "is empty; a prompt needs at least one token"));
        }
        if let Input::Messages(messages) = &input {
            for (index, message) in messages.iter().enumerate() {
                let path = at(&format!("messages[{index}]"));
                if !message.is_object() {
                    return Err(ApiError::field(path, "must be an object with role and content"));
                }
                if !message.get("role").is_some_and(Value::is_string) {
                    return Err(ApiError::field(format!("{path}.role"), "must be a string such as \"user\""));
                }
            }
        }
        let reward = match &prompt.reward {
            Some(reward) => reward::Spec::read(reward).map_err(|e| e.within(&at("reward")))?,
            None => {
                return Err(ApiError::field(
                    at("reward"),
                    format!("is missing; samples must be scored: supported kinds are {}", reward::KINDS.join(", ")),
                ));
            }
        };
        prompts.push(PromptRequest { id, input, reward, metadata: prompt.metadata.unwrap_or_default() });
    }
    Ok(prompts)
}

fn read_namespace(namespace: Option<String>) -> Result<String, ApiError> {
    let namespace = namespace.unwrap_or_else(|| "default".into());
    if namespace.is_empty() || namespace.len() > 128 || namespace.chars().any(char::is_control) {
        return Err(ApiError::field("namespace", "must be 1 to 128 bytes without control characters"));
    }
    Ok(namespace)
}

fn read_priority(priority: Option<i64>) -> Result<i64, ApiError> {
    let priority = priority.unwrap_or(0);
    if !(-1000..=1000).contains(&priority) {
        return Err(ApiError::field(
            "priority",
            format!("is {priority}; it must be between -1000 and 1000 (0 is usual, higher goes first)"),
        ));
    }
    Ok(priority)
}

fn read_deadline(seconds: Option<f64>) -> Result<Option<f64>, ApiError> {
    match seconds {
        Some(seconds) if !(seconds > 0.0 && seconds <= 31.6e6) => {
            Err(ApiError::field("deadline_s", format!("is {seconds}; it must be above 0 and at most a year, in seconds")))
        }
        seconds => Ok(seconds),
    }
}

fn read_weights(value: Option<&Value>) -> Result<Weights, ApiError> {
    match value {
        None => Ok(Weights::Latest(LatestTag::Latest)),
        Some(Value::String(name)) if name == "latest" => Ok(Weights::Latest(LatestTag::Latest)),
        Some(other) => match other.as_u64() {
            Some(version) => Ok(Weights::Version(version)),
            None => Err(ApiError::field("weights", "must be \"latest\" or a version number")),
        },
    }
}

fn tokenize(
    position: usize,
    prompt: PromptRequest,
    text: &dyn TextModel,
    info: &EngineInfo,
    max_tokens: u32,
) -> Result<PromptSpec, ApiError> {
    let at = |field: &str| format!("prompts[{position}].{field}");
    let input_path = at(prompt.input.field());
    if !matches!(prompt.input, Input::TokenIds(_)) && !text.has_tokenizer() {
        return Err(ApiError::field(input_path, "needs a tokenizer, and this model has none; give token_ids"));
    }
    if !info.has_tokenizer {
        return Err(ApiError::field(at("reward"), "reads text, and this model has no tokenizer to make any"));
    }
    let token_ids = match prompt.input {
        Input::Messages(messages) => text.encode_messages(&messages).map_err(|e| ApiError::field(&input_path, e))?,
        Input::Text(words) => text.encode_text(&words).map_err(|e| ApiError::field(&input_path, e))?,
        Input::TokenIds(ids) => ids,
    };
    check_prompt(&token_ids, &input_path, info)?;
    if token_ids.len() as u64 + u64::from(max_tokens) > info.context_length as u64 {
        let problem = format!(
            "is {max_tokens}; with the {} tokens of prompts[{position}] this is more than the context of {} tokens; ask for at most {}",
            token_ids.len(),
            info.context_length,
            info.context_length - token_ids.len()
        );
        return Err(ApiError::field("sampling.max_tokens", problem));
    }
    let positions = token_ids.len() + max_tokens as usize - 1;
    if positions > info.kv_tokens {
        let problem = format!(
            "is {max_tokens}; with the {} tokens of prompts[{position}] this needs {positions} positions, and the KV cache holds {}; \
             ask for fewer, or start the server with more --kv-blocks",
            token_ids.len(),
            info.kv_tokens
        );
        return Err(ApiError::field("sampling.max_tokens", problem));
    }
    let verifier = prompt.reward.compile().map(Arc::new);
    let metadata = Arc::new(Value::Object(prompt.metadata));
    Ok(PromptSpec { id: prompt.id, token_ids: token_ids.into(), reward: prompt.reward, metadata, history: None, verifier })
}

/// Checks a prompt's ids and length; `path` names the field it came from.
fn check_prompt(token_ids: &[u32], path: &str, info: &EngineInfo) -> Result<(), ApiError> {
    check_ids(token_ids, path, info)?;
    if token_ids.len() >= info.context_length {
        let problem =
            format!("has {} tokens, and the context holds {}: no room for an answer; shorten it", token_ids.len(), info.context_length);
        return Err(ApiError::field(path, problem));
    }
    Ok(())
}

/// Checks that there are tokens and that the model has them; `path` names the field they came from.
pub fn check_ids(token_ids: &[u32], path: &str, info: &EngineInfo) -> Result<(), ApiError> {
    if token_ids.is_empty() {
        return Err(ApiError::field(path, "gives no tokens; at least one is needed"));
    }
    if let Some(index) = token_ids.iter().position(|&id| id as usize >= info.vocab_size) {
        let (id, last) = (token_ids[index], info.vocab_size.saturating_sub(1));
        return Err(ApiError::field(format!("{path}[{index}]"), format!("is {id}, but this model's ids end at {last}")));
    }
    Ok(())
}

/// A seed from the system. It fits in 53 bits, so that every JSON reader keeps it.
fn draw_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1)
}
