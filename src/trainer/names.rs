//! What a run's numbers are called outside of metrics.jsonl, and what each means.
//!
//! Names are those that practitioners know from other trainers, and ours below `ada/`. Every number of [`super::summary`],
//! [`super::update`], [`super::evaluate`] and [`super::run`] has a line here; whatever else a line holds is shown under a general one.

/// The name in `/metrics`: `critic/score/mean` is `trainer_critic_score_mean`. Valid for Prometheus whatever the name.
pub fn prometheus(name: &str) -> String {
    let mut out = String::from("trainer");
    let mut gap = true;
    for c in name.chars() {
        if c.is_ascii_alphanumeric() {
            if gap {
                out.push('_');
            }
            gap = false;
            out.push(c);
        } else {
            gap = true;
        }
    }
    out
}

/// Exact names, each with its line.
const HELP: &[(&str, &str)] = &[
    ("loss", "The loss that is minimised, mean over the updates of the step."),
    ("critic/score/mean", "Mean reward over every sample that was judged, kept or not."),
    ("critic/score/max", "Largest reward among the rows trained on."),
    ("critic/score/min", "Smallest reward among the rows trained on."),
    ("critic/advantages/mean", "Mean advantage of the rows trained on."),
    ("critic/advantages/max", "Largest advantage of the rows trained on."),
    ("critic/advantages/min", "Smallest advantage of the rows trained on."),
    ("ada/pass_rate_first", "Share of prompts whose first sample was right: unbiased, whatever the strategy."),
    ("ada/signal_fraction", "Share of prompts whose group has both successes and failures, so that it teaches something."),
    ("ada/groups_resolved", "Prompts that met their exit condition."),
    ("ada/groups_exhausted", "Prompts that used every sample they were allowed without meeting it."),
    ("ada/groups_failed", "Prompts whose samples could not be drawn or judged."),
    ("ada/groups_dropped", "Prompts that were sampled and then left out of the step."),
    ("ada/samples_failed", "Samples that could not be judged."),
    ("ada/prompts", "Prompts of the step."),
    ("ada/samples", "Samples drawn in the step, kept or not."),
    ("ada/samples_per_prompt/mean", "Samples drawn per prompt, mean over the step."),
    ("ada/samples_per_prompt/hist", "Prompts by samples drawn: 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64, more."),
    ("ada/samples_total", "Samples drawn since the run began."),
    ("ada/rows_total", "Rows trained on since the run began."),
    ("ada/updates_total", "Optimizer updates since the run began."),
    ("ada/prompts_total", "Prompts taken from the data since the run began."),
    ("ada/rows", "Rows trained on in the step."),
    ("ada/staleness", "Versions between the weights that sampled and those that are trained; 0 is on-policy."),
    ("ada/pool_length/mean", "Mean tokens of every sample drawn, kept or not."),
    ("ada/pool_clip_ratio", "Share of every sample drawn that ended at the token limit."),
    ("response_length/mean", "Mean tokens of the answers trained on."),
    ("response_length/max", "Tokens of the longest answer trained on."),
    ("response_length/min", "Tokens of the shortest answer trained on."),
    ("response_length/clip_ratio", "Share of the answers trained on that ended at the token limit."),
    ("actor/pg_loss", "Policy-gradient part of the loss, mean over the updates of the step."),
    ("actor/entropy", "Mean entropy of the policy at each token trained on, in nats."),
    ("actor/pg_clipfrac", "Share of tokens whose ratio was clipped, so that they have no gradient."),
    ("actor/pg_clipfrac_lower", "Share of tokens at the dual bound, where the advantage is negative."),
    ("actor/ppo_kl", "Mean of log p_old - log p: how far the updates of a step moved the policy."),
    ("actor/ratio/mean", "Mean of p / p_old over tokens; exactly 1 where a step is one update."),
    ("actor/ratio/max", "Largest p / p_old of a token."),
    ("actor/grad_norm", "Norm of the gradient before it is clipped, mean over the updates of the step."),
    ("actor/lr", "Learning rate of the last update."),
    ("actor/kl_loss", "Estimated divergence from the model that the run started from, mean over tokens."),
    ("actor/masked_tokens", "Tokens that the mismatch rule left out."),
    (
        "training/rollout_probs_diff_max",
        "Largest |trainer probability - sampler probability| of a token; 0 where both run the same operations.",
    ),
    ("training/rollout_probs_diff_mean", "Mean |trainer probability - sampler probability| of a token."),
    ("training/rollout_probs_diff_std", "Standard deviation of |trainer probability - sampler probability|."),
    (
        "training/rollout_logprobs_diff_max",
        "Largest |trainer log-probability - sampler log-probability| on samples of the current version; exactly 0 is the promise.",
    ),
    ("timing_s/gen", "Seconds until the step's samples were there."),
    ("timing_s/update_actor", "Seconds of forward, backward and optimizer."),
    ("timing_s/update_weights", "Seconds to push the new weights to the server."),
    ("timing_s/testing", "Seconds of the evaluation."),
    ("timing_s/step", "Seconds of the whole step, evaluation included."),
    ("perf/throughput", "Tokens per second through forward and backward, prompts included."),
];

/// Prefixes of names that data decide, and what stands before the rest of the name.
const PREFIXES: &[(&str, &str)] = &[
    ("timing_s/", "Seconds of a part of the step."),
    ("actor/", "A number of the update."),
    ("critic/", "A number of the rewards."),
    ("training/", "Trainer against sampler."),
    ("ada/", "A number of the adaptive sampling."),
    ("perf/", "A speed."),
];

/// One line that says what a number is.
pub fn help(name: &str) -> String {
    if let Some((_, line)) = HELP.iter().find(|(known, _)| *known == name) {
        return (*line).to_owned();
    }
    if let Some(rest) = name.strip_prefix("eval/pass@") {
        let (k, slice) = rest.split_once('/').map_or((rest, None), |(k, slice)| (k, Some(slice)));
        let over = slice.map_or(" over all held-out problems".to_owned(), |slice| format!(" over the held-out problems of slice {slice}"));
        return match k {
            "1" => format!("Probability that one sample is right, mean{over}."),
            k => format!("Probability that at least one of {k} samples is right, mean{over}."),
        };
    }
    match PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        Some((_, line)) => (*line).to_owned(),
        None => format!("{name}, as the trainer wrote it."),
    }
}

/// Whether [`help`] has a line for exactly this name.
pub fn is_known(name: &str) -> bool {
    name.starts_with("eval/pass@") || HELP.iter().any(|(known, _)| *known == name)
}
