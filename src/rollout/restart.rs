//! `on_weight_update: restart`: what a job does when other weights begin to serve.
//!
//! Prompts whose group is formed keep it. Every open one loses its samples, in the journal too, and starts again from index 0, so that no
//! group is of two versions. What still arrives for the lost samples carries the job's earlier `life` and is dropped; their tokens count as
//! discarded. A budget is shared anew among the prompts that start again: what their lost samples cost is not charged.

use super::job::Job;
use super::prompt::OpenPrompt;
use super::versions::{OnWeightUpdate, Turn};

impl Job<'_> {
    /// Starts open prompts again if the weights have changed and the job asked for it. Called before anything that was drawn is taken.
    pub(super) fn follow_weights(&mut self) {
        if self.spec.settings.on_weight_update == OnWeightUpdate::Restart {
            let live = self.context.versions.live();
            if live.epoch != self.turn.epoch {
                self.start_again(live);
            }
        }
    }

    /// Starts every open prompt again under `live`.
    pub(super) fn start_again(&mut self, live: Turn) {
        self.life += 1;
        let open: Vec<usize> = self.open.keys().copied().collect();
        let prompts = open.iter().map(|position| *position as u32).collect();
        self.context.journal.restart(self.record.key, prompts, live.version, &live.digest);
        tracing::info!(job = %self.record.id, version = live.version, prompts = open.len(), "open prompts start again under other weights");
        self.turn = live;
        for &position in &open {
            let Some(mut old) = self.forget_prompt(position) else { continue };
            let running = old.take_running();
            self.cancel(running);
            self.open_prompt(position);
            if let Some(new) = self.open.get_mut(&position) {
                new.inherit(&old);
            }
        }
        // All bounds first: what the budget leaves to one prompt depends on those of the others.
        open.iter().for_each(|position| self.renew_bounds(*position));
        open.iter().for_each(|position| self.renew_allowance(*position));
    }

    fn renew_bounds(&mut self, position: usize) {
        if let Some((earliest, latest)) = self.open.get(&position).map(OpenPrompt::bounds) {
            self.ledger.set(position, earliest, latest);
        }
    }

    fn renew_allowance(&mut self, position: usize) {
        let allowance = self.ledger.allowance(position);
        if let Some(prompt) = self.open.get_mut(&position) {
            prompt.allow(allowance);
        }
        self.settle(position);
    }
}
