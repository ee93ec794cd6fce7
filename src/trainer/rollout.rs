//! A step's samples: which prompts are asked for, and what came back.
//!
//! A step takes `samples_per_step` samples, charged in request order for indices below each prompt's exit. How many prompts that needs
//! is known only afterwards, so the trainer asks for somewhat more than a decayed mean says, with the rest of the samples as the job's
//! budget; if prompts ran out before the budget, it asks again. The jobs' ids, seeds and versions follow from the step and the weights: a step
//! that is run again is the same jobs, and another run of the same name, whose weights are others, has jobs of its own.

use serde_json::{Value, json};

use super::checkpoint::{Ahead, State};
use super::data::{Data, Line};
use super::server::{Finished, Group, Running, Server, ServerError};
use super::settings::Settings;
use crate::rollout::plan::Strategy;

/// Prompts of one job at most.
pub const MOST_PROMPTS: usize = 4096;

/// A request's prompt.
pub fn prompt(line: &Line) -> Value {
    let mut prompt = line.prompt.clone();
    prompt.insert("id".into(), line.id.clone().into());
    Value::Object(prompt)
}

/// What a step is trained on.
#[derive(Clone, Debug, Default)]
pub struct Rollout {
    /// Groups of prompts that were sampled, in request order.
    pub groups: Vec<Group>,
    /// Samples charged.
    pub samples: u64,
    /// Groups without contrast that `dapo` dropped.
    pub dropped: u64,
    /// Lines of the data that the step used.
    pub taken: u64,
    /// Step whose weights sampled it.
    pub sampled_at: u64,
}

/// A step that the server works on.
pub struct Started {
    running: Running,
    ids: Vec<String>,
    /// Groups that `dapo` stops at.
    wanted: Option<u64>,
    step: u64,
    version: u64,
}

/// Everything that decides a step's jobs.
pub struct Asker<'a> {
    /// The server.
    pub server: &'a Server,
    /// The run.
    pub settings: &'a Settings,
    /// Digest of the weights that sample.
    pub weights: &'a str,
}

impl Asker<'_> {
    /// Prompts to ask for, with so many samples left.
    fn prompts(&self, state: &State, left: u64) -> usize {
        let rollout = &self.settings.rollout;
        let field = |name: &str| rollout.strategy.get(name).and_then(Value::as_u64);
        let group = field("group_size").unwrap_or(4);
        let by_samples = match self.kind() {
            _ if rollout.samples_per_step == 0 => u64::MAX,
            "uniform" | "estimate" => (left / group).max(1),
            // Room for three times the groups that are wanted: dapo stops by itself.
            "dapo" => (3 * left / group).max(8),
            _ => {
                let mean = state.samples_per_prompt.unwrap_or(group as f64).max(1.0);
                // Well more than needed, so that a second job is rare; what the budget does not reach is the next step's.
                (left as f64 / mean * 1.6) as u64 + 8
            }
        };
        let by_prompts = if rollout.prompts_per_step == 0 { u64::MAX } else { rollout.prompts_per_step };
        by_samples.min(by_prompts).min(MOST_PROMPTS as u64) as usize
    }

    fn kind(&self) -> &str {
        self.settings.rollout.strategy.get("kind").and_then(Value::as_str).unwrap_or("sequential")
    }

    /// The body of part `part` of a step; `pass` counts the passes through the data that have begun within the step.
    fn body(&self, state: &State, step: u64, (part, pass): (u64, u64), version: u64, lines: &[&Line], left: u64) -> Value {
        let (run, rollout) = (&self.settings.run, &self.settings.rollout);
        let mut strategy = rollout.strategy.clone();
        if rollout.samples_per_step > 0 {
            match self.kind() {
                // Its groups have one size: the number of prompts is the limit.
                "uniform" => {}
                "dapo" => {
                    let group = strategy.get("group_size").and_then(Value::as_u64).unwrap_or(4);
                    let share = state.signal_share.unwrap_or(0.5);
                    let wanted = (left as f64 / group as f64 * share).round().max(1.0) as u64;
                    strategy["groups_wanted"] = wanted.into();
                }
                // It spends its whole budget, and the last lines of a pass may be too few for it.
                "estimate" => {
                    let most = strategy.get("max_samples").and_then(Value::as_u64);
                    let most = most.unwrap_or_else(|| Strategy::default().max_samples.into());
                    strategy["budget"] = left.min(most * lines.len() as u64).into();
                }
                _ => strategy["budget"] = left.into(),
            }
        }
        if let Some(wanted) = strategy.get("groups_wanted").and_then(Value::as_u64) {
            strategy["groups_wanted"] = wanted.min(lines.len() as u64).into();
        }
        json!({
            "job_id": format!("{}-step-{step}-{part}-{}", run.name, self.weights),
            "prompts": lines.iter().map(|line| prompt(line)).collect::<Vec<_>>(),
            "strategy": strategy,
            "advantage": rollout.advantage,
            "sampling": rollout.sampling,
            "seed": job_seed(run.seed, step, pass),
            "weights": version,
            "namespace": rollout.namespace,
            "return": {"text": false, "logprobs": true},
        })
    }

    /// Starts a step's first job; the server has it when this returns.
    pub async fn start(&self, data: &mut Data, state: &State, cursor: u64, step: u64, version: u64) -> Result<Started, ServerError> {
        let left = self.settings.rollout.samples_per_step;
        let lines = data.take(cursor, self.prompts(state, left));
        let ids = lines.iter().map(|line| line.id.clone()).collect();
        let places = places(&lines);
        let body = self.body(state, step, (0, 0), version, &lines, left);
        let wanted = body["strategy"].get("groups_wanted").and_then(Value::as_u64);
        let running = self.server.start(body, places).await?;
        Ok(Started { running, ids, wanted, step, version })
    }

    /// Waits for a step's samples, and asks for more where prompts ran out first.
    pub async fn finish(
        &self,
        data: &mut Data,
        state: &State,
        cursor: u64,
        started: Started,
        keep: bool,
    ) -> Result<(Rollout, Ahead), ServerError> {
        let Started { running, mut ids, wanted, step, version } = started;
        let mut rollout = Rollout { sampled_at: version - 1, ..Rollout::default() };
        let mut kept = Ahead { sampled_at: rollout.sampled_at, ..Ahead::default() };
        let mut running = Some(running);
        for part in 0.. {
            let job = match running.take() {
                Some(job) => job,
                None => {
                    let left = self.settings.rollout.samples_per_step - rollout.samples;
                    let (now, n) = (cursor + rollout.taken, data.lines().len() as u64);
                    let pass = now / n - cursor / n;
                    let lines = data.take(now, self.prompts(state, left));
                    ids = lines.iter().map(|line| line.id.clone()).collect();
                    let places = places(&lines);
                    self.server.start(self.body(state, step, (part, pass), version, &lines, left), places).await?
                }
            };
            let Finished { groups, lines, samples_seen, dropped } = job.finish(&ids).await?;
            rollout.samples += samples_seen;
            rollout.dropped += dropped;
            // Prompts that the budget did not reach are the next step's.
            let used = match self.kind() {
                // It saw every prompt if it did not get what it wanted.
                "dapo" if wanted.is_some_and(|wanted| (groups.len() as u64) < wanted) => ids.len(),
                "dapo" => {
                    groups.last().and_then(|group| ids.iter().position(|id| *id == group.prompt_id)).map_or(ids.len(), |last| last + 1)
                }
                _ => groups.iter().rposition(|group| group.stats.seen > 0 || group.stats.failed > 0).map_or(0, |last| last + 1),
            };
            // A step always moves on, also where every gold of it is bad.
            let used = if used == 0 { ids.len() } else { used };
            rollout.taken += used as u64;
            if keep {
                kept.ids.push(ids.clone());
                kept.groups.push(lines);
            }
            let sampled = groups.into_iter().filter(|group| group.stats.seen > 0 || group.status == crate::rollout::plan::Status::Failed);
            rollout.groups.extend(sampled);
            let left = self.settings.rollout.samples_per_step.saturating_sub(rollout.samples);
            // One step ahead, the weights of the first job may be gone by now: such a step takes what its one job gave.
            let settings = &self.settings.rollout;
            let tops_up = settings.samples_per_step > 0 && settings.prompts_per_step == 0 && settings.ahead == 0;
            if !tops_up || self.kind() != "sequential" || left == 0 {
                break;
            }
        }
        (kept.samples, kept.dropped, kept.taken) = (rollout.samples, rollout.dropped, rollout.taken);
        Ok((rollout, kept))
    }
}

/// A step that a checkpoint kept.
pub fn restore(ahead: &Ahead) -> Result<Rollout, serde_json::Error> {
    let mut groups = Vec::new();
    for lines in &ahead.groups {
        for line in lines {
            let group: Group = serde_json::from_str(line)?;
            if group.stats.seen > 0 || group.status == crate::rollout::plan::Status::Failed {
                groups.push(group);
            }
        }
    }
    Ok(Rollout { groups, samples: ahead.samples, dropped: ahead.dropped, taken: ahead.taken, sampled_at: ahead.sampled_at })
}

/// Where prompts were read from.
fn places(lines: &[&Line]) -> Vec<String> {
    lines.iter().map(|line| line.place.clone()).collect()
}

/// The seed of a job: a prompt that comes again, in another step or in a later pass within one, gets other samples.
fn job_seed(seed: u64, step: u64, pass: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(&step.to_le_bytes());
    if pass > 0 {
        hasher.update(&pass.to_le_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    // JSON readers in other languages keep 53 bits.
    u64::from_le_bytes(first) >> 11
}
