//! What each value must be, beside its type.

use super::Config;
use crate::commands::device::DeviceChoice;
use crate::ops::cpu::Isa;
use crate::ops::cuda::GemmChoice;
use crate::reward::PoolSettings;
use crate::server::auth::Tokens;

/// Every value that cannot be used: its key and a sentence that reads on from it.
pub(super) fn problems(config: &Config) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut within = |key: &'static str, value: u64, low: u64, high: u64| {
        if !(low..=high).contains(&value) {
            found.push((key, format!("is {value}; it must be between {low} and {high}")));
        }
    };
    let (l, j, e) = (&config.limits, &config.jobs, &config.engine);
    within("limits.max_body_bytes", l.max_body_bytes as u64, 1024, 4 << 30);
    within("limits.body_seconds", l.body_seconds, 1, 3600);
    within("limits.max_prompts", l.max_prompts as u64, 1, 1 << 20);
    within("limits.max_prompt_tokens", l.max_prompt_tokens as u64, 1, 1 << 30);
    within("limits.max_samples", u64::from(l.max_samples), 2, 1 << 16);
    within("limits.max_score_sequences", l.max_score_sequences as u64, 1, 1 << 20);
    within("limits.max_score_tokens", l.max_score_tokens as u64, 2, 1 << 30);
    within("limits.max_groups_page", l.max_groups_page as u64, 1, 1 << 20);
    within("limits.heartbeat_seconds", l.heartbeat_seconds, 1, 86_400);
    within("limits.shutdown_seconds", l.shutdown_seconds, 0, 86_400);
    within("jobs.max_open", j.max_open as u64, 1, 1 << 16);
    within("jobs.max_running", j.max_running as u64, 1, 1 << 16);
    within("engine.threads", e.threads as u64, 0, 1024);
    within("engine.max_batch_tokens", e.max_batch_tokens as u64, 0, 1 << 20);
    within("engine.max_sequences", e.max_sequences as u64, 1, 1 << 16);
    within("engine.max_queue", e.max_queue as u64, 1, 1 << 24);
    within("engine.kv_blocks", e.kv_blocks as u64, 0, 1 << 32);
    within("rollout.look_ahead", config.rollout.look_ahead as u64, 1, 1 << 20);
    within("rollout.max_in_flight", config.rollout.max_in_flight as u64, 0, 1 << 20);
    let r = &config.reward;
    within("reward.workers", r.workers as u64, 1, 1024);
    within("reward.webhook_batch", r.webhook_batch as u64, 1, 4096);
    within("reward.webhook_linger_ms", r.webhook_linger_ms, 0, 10_000);
    within("reward.webhook_concurrency", r.webhook_concurrency as u64, 1, 1024);
    within("reward.webhook_attempts", u64::from(r.webhook_attempts), 1, 20);
    within("reward.webhook_queue", r.webhook_queue as u64, 1, 1 << 20);
    within("reward.webhook_backoff_ms", r.webhook_backoff_ms, 0, 600_000);
    within("reward.webhook_backoff_most_ms", r.webhook_backoff_most_ms, 0, 3_600_000);
    within("reward.webhook_answer_bytes", r.webhook_answer_bytes as u64, 1024, 1 << 30);
    within("store.keep_days", u64::from(config.store.keep_days), 1, 36_500);
    let q = config.rollout.q_min;
    if !(q > 0.0 && q <= 1.0) {
        found.push(("rollout.q_min", format!("is {q}; it must be above 0 and at most 1 (0.3 to 0.5 on CPUs, 0.1 on idle GPUs)")));
    }
    if j.max_running > j.max_open {
        found
            .push(("jobs.max_running", format!("is {}, above jobs.max_open ({}); lower it or raise the other", j.max_running, j.max_open)));
    }
    if !(e.kv_memory_share > 0.0 && e.kv_memory_share <= 0.95) {
        found.push(("engine.kv_memory_share", format!("is {}; it must be above 0 and at most 0.95", e.kv_memory_share)));
    }
    if let Err(problem) = e.device.parse::<DeviceChoice>() {
        found.push(("engine.device", format!("is {:?}; {problem}", e.device)));
    }
    if let Err(problem) = e.gemm.parse::<GemmChoice>() {
        found.push(("engine.gemm", format!("is {:?}; {problem}", e.gemm)));
    }
    if !e.isa.is_empty()
        && let Err(problem) = e.isa.parse::<Isa>()
    {
        found.push(("engine.isa", format!("is {:?}: {problem}; leave it empty for the best this machine has", e.isa)));
    }
    if !(1.0..=86_400.0).contains(&r.local_timeout_s) {
        found.push(("reward.local_timeout_s", format!("is {}; give seconds from 1 to 86400", r.local_timeout_s)));
    }
    for host in r.webhook_hosts.iter().filter(|host| !PoolSettings::names_host(host)) {
        let help = "give a host as in \"grader.example\" or \"127.0.0.1:9000\", without scheme and path";
        found.push(("reward.webhook_hosts", format!("holds {host:?}; {help}")));
    }
    if config.store.path.as_os_str().is_empty() {
        found.push(("store.path", "is empty; give a file, or \":memory:\" to keep nothing on disk".into()));
    }
    for root in config.weights.roots.iter().filter(|root| !root.is_absolute()) {
        found.push(("weights.roots", format!("holds {}, which is no absolute path; give one", root.display())));
    }
    let server = &config.server;
    match Tokens::new(&server.data_token, &server.admin_token) {
        Err((key, problem)) => found.push((key, problem)),
        Ok(tokens) if !server.host.is_loopback() && !tokens.are_set() => {
            let help = "is not a loopback address, and without tokens anyone who reaches it could sample and pause; set server.data_token and \
                        server.admin_token (or ADAROLL_SERVER_DATA_TOKEN and ADAROLL_SERVER_ADMIN_TOKEN), or use 127.0.0.1";
            found.push(("server.host", format!("is {}, which {help}", server.host)));
        }
        Ok(_) => {}
    }
    found
}
