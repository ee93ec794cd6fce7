//! What an ended sample comes to: positive, negative, failed or skipped, never a silent zero.
//!
//! An ended sample is written to the journal; then its end says everything (it was cut off, the model broke), or its text goes to a
//! verifier, or the client scores it ([`super::scores`]). The verdict follows it into the journal.

use super::job::{Arrival, Job};
use super::output::{RewardStatus, withhold_nonfinite};
use super::plan::{LimitCounts, Outcome};
use super::prompt::Ended;
use super::record::Ending;
use super::spec::PromptSpec;
use crate::engine::{FinishReason, Sample};
use crate::reward::{Asked as Question, Found, Judged, Verdict};
use crate::store::{self, SampleRow, VerdictRow};

/// A larger reward would make sums of squares overflow.
pub(crate) const MAX_REWARD: f64 = 1e9;

/// What a sample came to.
struct Resolved {
    outcome: Outcome,
    reward: Option<f64>,
    status: RewardStatus,
    note: Option<String>,
    found: Option<Found>,
    timeouts: u32,
}

impl Job<'_> {
    /// Takes an ended sample; an error ends the job.
    pub(super) fn sample_ended(&mut self, position: usize, index: u32, sample: Option<Box<Sample>>) -> Result<(), Ending> {
        let id = &self.spec.prompts[position].id;
        let Some(mut sample) = sample else {
            let sentence = format!("the engine stopped before it finished sample {index} of prompt {id:?}");
            return Err(Ending::Lost(format!("{sentence}; the job goes on when the server is back")));
        };
        withhold_nonfinite(&mut sample);
        let Some(prompt) = self.open.get_mut(&position) else { return Ok(()) };
        let reason = sample.finish_reason;
        if reason == FinishReason::Cancelled && !prompt.was_cancelled(index) {
            let sentence = format!("the engine gave up sample {index} of prompt {id:?}, which the job still needs");
            return Err(Ending::Lost(format!("{sentence}; the job goes on when the server is back")));
        }
        let matters = prompt.ended(index, Ended::new(reason, sample.token_ids.len() as u32));
        if !matters {
            self.settle(position);
            return Ok(());
        }
        let (text, tokens) = (sample.text.clone(), sample.token_ids.len() as u32);
        self.context.journal.sample(sample_row(self.record.key, position, *sample, self.spec.settings.fields.logprobs_raw));
        if !self.resolve_unread(position, index, reason, tokens) {
            self.judge(position, index, text, tokens);
        }
        Ok(())
    }

    /// A sample of a prompt that has started again has ended.
    pub(super) fn lost_sample_ended(&mut self, position: usize, sample: Option<Box<Sample>>) {
        if let (Some(prompt), Some(sample)) = (self.open.get_mut(&position), sample) {
            prompt.lost_tokens(sample.token_ids.len());
        }
    }

    /// Resolves a sample whose end says everything; says whether it did.
    pub(super) fn resolve_unread(&mut self, position: usize, index: u32, reason: FinishReason, tokens: u32) -> bool {
        let (outcome, reward, status, note) = match reason {
            FinishReason::Stop => return false,
            // A truncated answer gave no answer: it is negative whatever its last number is. A reward that looks at lengths sees its own.
            FinishReason::Length => match self.spec.settings.strategy.mask_truncated {
                true => (Outcome::Skipped, None, RewardStatus::Unscored, None),
                false => {
                    let reward = self.spec.prompts[position].verifier.as_ref().map_or(0.0, |verifier| verifier.of_truncated(tokens));
                    (Outcome::Negative, Some(reward), RewardStatus::Scored, None)
                }
            },
            FinishReason::Numerics | FinishReason::Cancelled => {
                (Outcome::Failed, None, RewardStatus::Failed, Some("the model gave non-finite logits".to_owned()))
            }
        };
        self.resolve(position, index, Resolved { outcome, reward, status, note, found: None, timeouts: 0 });
        true
    }

    /// Hands an ended sample's text to its verifier, or waits for a client to do the same.
    pub(super) fn judge(&mut self, prompt: usize, index: u32, text: String, tokens: u32) {
        let asked = &self.spec.prompts[prompt];
        let Ok(verifier) = asked.verifier.clone() else { return };
        let life = self.life;
        if let Some(timeout) = verifier.pull_timeout() {
            if let Some(timeout) = timeout {
                self.arrivals.push(Box::pin(async move {
                    tokio::time::sleep(timeout).await;
                    Arrival::Overdue { life, prompt, index }
                }));
            }
            self.record.waits_for_scores();
            return;
        }
        let judged = self.context.rewards.judge(verifier, question(&self.spec.id, asked, index, text, tokens));
        self.arrivals.push(Box::pin(async move { Arrival::Judged { life, prompt, index, judged: judged.await } }));
    }

    /// Takes the last word on a sample.
    pub(super) fn judged(&mut self, position: usize, index: u32, judged: Judged) {
        let Judged { verdict, found, wall_clock_timeouts: timeouts } = judged;
        let strategy = &self.spec.settings.strategy;
        let (outcome, reward, status, note) = match verdict {
            Verdict::Scored(r) if r.abs() > MAX_REWARD => {
                (Outcome::Failed, None, RewardStatus::Failed, Some(format!("its reward is {r}, above the {MAX_REWARD} that sums can bear")))
            }
            Verdict::Scored(r) if r > strategy.positive_above => (Outcome::Positive, Some(r), RewardStatus::Scored, None),
            Verdict::Scored(r) => (Outcome::Negative, Some(r), RewardStatus::Scored, None),
            Verdict::Limit(why) if strategy.limit_counts == LimitCounts::Skip => {
                (Outcome::Skipped, None, RewardStatus::Unscored, Some(why))
            }
            Verdict::Limit(why) => (Outcome::Negative, Some(0.0), RewardStatus::Scored, Some(why)),
            Verdict::Unscored => (Outcome::Failed, None, RewardStatus::Failed, Some("it was never scored".into())),
            Verdict::Failed(why) => (Outcome::Failed, None, RewardStatus::Failed, Some(why)),
        };
        self.resolve(position, index, Resolved { outcome, reward, status, note, found, timeouts });
    }

    fn resolve(&mut self, position: usize, index: u32, resolved: Resolved) {
        let Resolved { outcome, reward, status, note, found, timeouts } = resolved;
        // A verdict may come after its group has closed below it.
        let Some(prompt) = self.open.get_mut(&position) else { return };
        prompt.resolve(index, outcome, reward, status);
        prompt.timeouts += timeouts;
        let found = found.and_then(|found| serde_json::to_string(&found).ok());
        let verdict = store::Verdict { outcome: outcome.code(), reward, status: status.code(), note, found, timeouts };
        self.context.journal.verdict(VerdictRow { job: self.record.key, prompt: position as u32, index, verdict });
        self.settle(position);
    }
}

/// What a verifier is asked about a sample.
pub(super) fn question(job_id: &str, prompt: &PromptSpec, index: u32, text: String, tokens: u32) -> Question {
    Question { job_id: job_id.into(), prompt_id: prompt.id.as_str().into(), index, text, tokens, metadata: prompt.metadata.clone() }
}

fn sample_row(job: i64, position: usize, sample: Sample, keep_raw: bool) -> SampleRow {
    SampleRow {
        job,
        prompt: position as u32,
        index: sample.index,
        token_ids: sample.token_ids,
        logprobs: sample.logprobs,
        logprobs_raw: keep_raw.then_some(sample.logprobs_raw),
        text: sample.text,
        finish_reason: sample.finish_reason.name().to_owned(),
        stop_match: sample.stop_match.as_ref().and_then(|stop| serde_json::to_string(stop).ok()),
        weight_versions: sample.weight_versions.iter().map(|span| (span.version, span.start, span.end)).collect(),
    }
}
