//! The command's arguments, and the request that they make.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::RolloutError;

/// Which samples are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrategyKind {
    /// The same number for every prompt: GRPO, RLOO, Dr. GRPO.
    Uniform,
    /// As uniform; prompts whose samples all agree are passed over until enough groups have contrast.
    Dapo,
    /// Each prompt until its exit: more samples for hard prompts.
    Sequential,
    /// By the pass rates that earlier jobs of the namespace saw.
    Estimate,
}

/// Send a file of prompts to a server and write the balanced groups that come back, one JSON object a line.
///
/// Each line of --prompts is an object with one of `messages`, `text` or `token_ids`, a `reward`, and if you like an `id` and `metadata`:
///   {"id": "p1", "messages": [{"role": "user", "content": "2 + 3?"}], "reward": {"kind": "math", "answer": "5"}}
/// Rows of another shape are turned into that by --prompt-field, --answer-field and --reward:
///   adaroll rollout --prompts gsm8k.jsonl --prompt-field problem --answer-field answer --reward '{"kind": "math"}' \
///     --strategy sequential --exit balance --group-size 4 --max-samples 32 --out groups.jsonl
///
/// sequential samples a prompt until its exit: `balance` (half of the group right, half wrong), `signal` (one of each), `positive`, or
/// counts such as `3,1`. What is not given is the server's default; the job's effective settings come back in GET /v1/rollouts/{id}.
///
/// The job has an id: if the connection breaks, the command attaches again and goes on where it was. If the command itself was ended, run it
/// again with --job-id and --resume. Exit status 0 if the job is done, 1 otherwise.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct RolloutArgs {
    /// The server.
    #[arg(long, default_value = "http://127.0.0.1:8000", value_name = "URL")]
    pub server: String,
    /// Data token, where the server asks for one [ADAROLL_TOKEN, which other users of the machine cannot see].
    #[arg(long)]
    pub token: Option<String>,
    /// Prompts, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub prompts: PathBuf,
    /// Take the first N lines alone.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Where the groups go, one line each, in request order.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace the output file if it is there.
    #[arg(long, conflicts_with = "resume")]
    pub overwrite: bool,
    /// Keep the groups that the output file holds and add the others; give the --job-id of the earlier run.
    #[arg(long, requires = "job_id")]
    pub resume: bool,

    /// The field of each line that holds the question; it becomes the user's message.
    #[arg(long, value_name = "FIELD", help_heading = "Rows of another shape")]
    pub prompt_field: Option<String>,
    /// What is asked, with {} for the field's text, such as "{}\nEnd with #### and the number."
    #[arg(long, value_name = "TEXT", requires = "prompt_field", help_heading = "Rows of another shape")]
    pub prompt_template: Option<String>,
    /// Send the field's text as it is, without the chat template.
    #[arg(long, requires = "prompt_field", help_heading = "Rows of another shape")]
    pub raw_text: bool,
    /// The field of each line that holds the reference answer; it becomes reward.answer.
    #[arg(long, value_name = "FIELD", help_heading = "Rows of another shape")]
    pub answer_field: Option<String>,
    /// Reward of lines that have none of their own, such as '{"kind": "math"}'.
    #[arg(long, value_name = "JSON", help_heading = "Rows of another shape")]
    pub reward: Option<String>,

    /// Which samples are drawn.
    #[arg(long, value_enum, default_value = "sequential", help_heading = "Strategy")]
    pub strategy: StrategyKind,
    /// When a prompt has enough: balance, signal, positive, or POSITIVES,NEGATIVES [balance].
    #[arg(long, help_heading = "Strategy")]
    pub exit: Option<String>,
    /// Samples kept per prompt [4].
    #[arg(long, value_name = "N", help_heading = "Strategy")]
    pub group_size: Option<u32>,
    /// Samples drawn per prompt at most [32].
    #[arg(long, value_name = "N", help_heading = "Strategy")]
    pub max_samples: Option<u32>,
    /// The exit is tested after every so many samples; 8 is the paper's [1].
    #[arg(long, value_name = "N", help_heading = "Strategy")]
    pub round_size: Option<u32>,
    /// Rewards above this are positive [0.5].
    #[arg(long, value_name = "R", help_heading = "Strategy")]
    pub positive_above: Option<f64>,
    /// Stop a prompt whose first N samples are all positive; 0 is off [0].
    #[arg(long, value_name = "N", help_heading = "Strategy")]
    pub straight_positives: Option<u32>,
    /// Leave truncated answers out instead of counting them as negative.
    #[arg(long, help_heading = "Strategy")]
    pub mask_truncated: bool,
    /// Samples for all prompts together.
    #[arg(long, value_name = "N", help_heading = "Strategy")]
    pub budget: Option<u64>,
    /// dapo: groups with contrast that are wanted.
    #[arg(long, value_name = "N", help_heading = "Strategy")]
    pub groups_wanted: Option<u64>,
    /// Further fields of the request's strategy, such as '{"max_failed": 2}'.
    #[arg(long, value_name = "JSON", help_heading = "Strategy")]
    pub strategy_options: Option<String>,
    /// How a kept sample is compared with its baseline: ada, grpo, rloo, drgrpo, ... [ada].
    #[arg(long, value_name = "NAME", help_heading = "Strategy")]
    pub advantage: Option<String>,

    /// 0 takes the most likely token [1].
    #[arg(long, value_name = "T", help_heading = "Sampling")]
    pub temperature: Option<f64>,
    /// Keep the most likely tokens up to this probability [1].
    #[arg(long, value_name = "P", help_heading = "Sampling")]
    pub top_p: Option<f64>,
    /// Keep the K most likely tokens; 0 keeps all [0].
    #[arg(long, value_name = "K", help_heading = "Sampling")]
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this share of the most likely one [0].
    #[arg(long, value_name = "P", help_heading = "Sampling")]
    pub min_p: Option<f64>,
    /// Most tokens of a sample [512].
    #[arg(long, value_name = "N", help_heading = "Sampling")]
    pub max_tokens: Option<u32>,
    /// End a sample where its text holds this string; may be given several times.
    #[arg(long, value_name = "TEXT", help_heading = "Sampling")]
    pub stop: Vec<String>,
    /// Seed of every random stream; the same seed gives the same groups [drawn, and shown].
    #[arg(long, help_heading = "Sampling")]
    pub seed: Option<u64>,

    /// Id of the job; the same id and request attach to the job that is there [made].
    #[arg(long, value_name = "ID", help_heading = "Job")]
    pub job_id: Option<String>,
    /// Where pass rates of prompts are kept [default].
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    pub namespace: Option<String>,
    /// Jobs of a higher priority are served first [0].
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Job")]
    pub priority: Option<i64>,
    /// Seconds after which the job ends with what it has.
    #[arg(long, value_name = "S", help_heading = "Job")]
    pub deadline_s: Option<f64>,
    /// Order of delivery: request or completion [request].
    #[arg(long, help_heading = "Job")]
    pub order: Option<String>,
    /// Write every sample below the exit, not only the kept ones.
    #[arg(long, help_heading = "Job")]
    pub all_samples: bool,
    /// Leave a prompt whose reference answer cannot be used out (its group is failed) instead of refusing the job.
    #[arg(long, help_heading = "Job")]
    pub skip_bad_gold: bool,
    /// Seconds that a broken connection is tried again before the command gives up.
    #[arg(long, value_name = "S", default_value_t = 120, help_heading = "Job")]
    pub patience_s: u64,
}

impl RolloutArgs {
    /// The body of POST /v1/rollouts, with an id and a seed whether they were given or not.
    pub fn request(&self, prompts: Vec<Value>) -> Result<Value, RolloutError> {
        let mut body = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        put("job_id", Some(self.job_id.clone().unwrap_or_else(|| format!("rollout-{}", uuid::Uuid::new_v4())).into()));
        put("strategy", Some(self.strategy()?));
        put("advantage", self.advantage.clone().map(Value::from));
        put("namespace", self.namespace.clone().map(Value::from));
        put("priority", self.priority.map(Value::from));
        put("deadline_s", self.deadline_s.map(Value::from));
        put("order", self.order.clone().map(Value::from));
        put("sampling", Some(self.sampling()));
        put("seed", Some(self.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 11).into()));
        put("bad_gold", self.skip_bad_gold.then(|| "fail_group".into()));
        put("return", self.all_samples.then(|| json!({"all_samples": true})));
        put("prompts", Some(prompts.into()));
        Ok(body.into())
    }

    fn strategy(&self) -> Result<Value, RolloutError> {
        let mut strategy = Map::new();
        let kind = self.strategy.to_possible_value().map(|kind| kind.get_name().to_owned());
        let given: [(&str, Option<Value>); 10] = [
            ("kind", kind.map(Value::from)),
            ("exit", self.exit.as_deref().map(exit).transpose()?),
            ("group_size", self.group_size.map(Value::from)),
            ("max_samples", self.max_samples.map(Value::from)),
            ("round_size", self.round_size.map(Value::from)),
            ("positive_above", self.positive_above.map(Value::from)),
            ("straight_positives", self.straight_positives.map(Value::from)),
            ("mask_truncated", self.mask_truncated.then_some(Value::Bool(true))),
            ("budget", self.budget.map(Value::from)),
            ("groups_wanted", self.groups_wanted.map(Value::from)),
        ];
        strategy.extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        if let Some(text) = &self.strategy_options {
            strategy.extend(object("--strategy-options", text)?);
        }
        Ok(strategy.into())
    }

    fn sampling(&self) -> Value {
        let given: [(&str, Option<Value>); 6] = [
            ("temperature", self.temperature.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            ("min_p", self.min_p.map(Value::from)),
            ("max_tokens", self.max_tokens.map(Value::from)),
            ("stop", (!self.stop.is_empty()).then(|| self.stop.clone().into())),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect::<Map<_, _>>().into()
    }
}

/// `balance`, `signal` and `positive` as they are, `3,1` as counts.
fn exit(text: &str) -> Result<Value, RolloutError> {
    let Some((positives, negatives)) = text.split_once(',') else { return Ok(text.into()) };
    match (positives.trim().parse::<u32>(), negatives.trim().parse::<u32>()) {
        (Ok(positives), Ok(negatives)) => Ok(json!({"positives": positives, "negatives": negatives})),
        _ => Err(RolloutError::Input(format!("--exit {text:?}: give balance, signal, positive, or two numbers such as 3,1"))),
    }
}

/// A JSON object in an argument.
pub(super) fn object(flag: &str, text: &str) -> Result<Map<String, Value>, RolloutError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(RolloutError::Input(format!("{flag} must be a JSON object such as '{{\"kind\": \"math\"}}'"))),
        Err(e) => Err(RolloutError::Input(format!("{flag} is not JSON: {e}; quote it for the shell: '{{\"kind\": \"math\"}}'"))),
    }
}
