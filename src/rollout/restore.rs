//! Puts a job back where the journal says it was when its process died.
//!
//! Groups that were written stay as they are. Finished samples are kept with their verdicts; those without a verdict are judged again;
//! samples that were running are run again from their key, so that they come out the same.

use std::collections::BTreeMap;

use super::job::{Arrival, Job};
use super::output::RewardStatus;
use super::plan::Outcome;
use super::prompt::Ended;
use super::verdicts::question;
use super::versions::OnWeightUpdate;
use crate::engine::FinishReason;
use crate::store::{Resume, ResumeSample};

impl Job<'_> {
    /// Takes over what an earlier process left; does nothing for a new job.
    pub(super) fn restore(&mut self, start: Resume) -> Result<(), String> {
        for row in &start.groups {
            self.delivery.was_written(row.prompt as usize, row.seq);
            self.was_closed(row.prompt as usize, row.t, row.signal);
        }
        let mut by_prompt: BTreeMap<usize, Vec<ResumeSample>> = BTreeMap::new();
        start.samples.into_iter().for_each(|sample| by_prompt.entry(sample.prompt as usize).or_default().push(sample));
        for (position, samples) in &by_prompt {
            if self.delivery.is_settled(*position) {
                continue;
            }
            self.open_prompt(*position);
            let Some(prompt) = self.open.get_mut(position) else { continue };
            for sample in samples {
                let unknown =
                    |what: &str| format!("sample {} of prompt {position} has {what} that this version does not know", sample.index);
                let finish_reason = FinishReason::from_name(&sample.finish_reason).ok_or_else(|| unknown("an end"))?;
                let mut ended = Ended::new(finish_reason, sample.tokens);
                let mut outcome = None;
                if let Some(verdict) = &sample.verdict {
                    outcome = Some(Outcome::from_code(verdict.outcome).ok_or_else(|| unknown("an outcome"))?);
                    ended.status = RewardStatus::from_code(verdict.status).ok_or_else(|| unknown("a reward status"))?;
                    ended.reward = verdict.reward;
                    prompt.timeouts += verdict.timeouts;
                }
                prompt.restore(sample.index, ended, outcome);
            }
            self.has_lost(*position);
        }
        for position in by_prompt.into_keys() {
            let unjudged = self.open.get(&position).map(|prompt| prompt.unjudged()).unwrap_or_default();
            for index in unjudged {
                self.judge_again(position, index);
            }
            self.settle(position);
        }
        self.skip_unneeded();
        self.deliver();
        // What it was sampling from may be gone.
        let is_same = start.weights.is_none_or(|(version, digest)| self.turn.is(version, &digest));
        if !is_same && self.spec.settings.on_weight_update == OnWeightUpdate::Restart {
            self.start_again(self.turn.clone());
        }
        Ok(())
    }

    /// Judges a sample that was finished and not judged when the process died.
    fn judge_again(&mut self, position: usize, index: u32) {
        let Some(ended) = self.open.get(&position).and_then(|prompt| prompt.sample(index)).copied() else { return };
        if self.resolve_unread(position, index, ended.finish_reason, ended.tokens) {
            return;
        }
        let Ok(verifier) = self.spec.prompts[position].verifier.clone() else { return };
        if verifier.pull_timeout().is_some() {
            return self.judge(position, index, String::new(), ended.tokens);
        }
        let stored = self.context.journal.samples(self.record.key, position as u32, vec![index]);
        let (rewards, spec, life) = (self.context.rewards.clone(), self.spec.clone(), self.life);
        self.arrivals.push(Box::pin(async move {
            let text = match stored.await {
                Ok(mut stored) => stored.pop().map(|stored| stored.sample.text).ok_or_else(|| "a sample is gone".to_owned()),
                Err(error) => Err(error),
            };
            match text {
                Ok(text) => {
                    let judged = rewards.judge(verifier, question(&spec.id, &spec.prompts[position], index, text, ended.tokens)).await;
                    Arrival::Judged { life, prompt: position, index, judged }
                }
                Err(error) => Arrival::Broken(error),
            }
        }));
    }
}
