//! Rewards that clients compute themselves (`pull`): scores on their way into a job. A score is final: the first one counts.

use tokio::sync::oneshot;

use super::job::{Arrival, Job};
use super::output::RewardStatus;
use crate::engine::FinishReason;
use crate::reward::{Judged, Judgement, Verdict};

/// A score that a client posts for a `pull` reward.
#[derive(Clone, Debug, PartialEq)]
pub struct PostedScore {
    /// Position of the prompt in the request.
    pub prompt: usize,
    /// The sample.
    pub index: u32,
    /// The reward, finite, or why there is none.
    pub reward: Result<f64, String>,
}

/// What became of a posted score.
#[derive(Clone, Debug, PartialEq)]
pub enum ScoreAnswer {
    /// It decides the sample.
    Taken,
    /// The same score was there already.
    Repeated,
    /// The sample can no longer matter: its group is closed, or it was cancelled.
    NotNeeded,
    /// Another score was there already.
    Conflict(Option<f64>, RewardStatus),
    /// No such sample has finished.
    NotFinished,
}

/// Scores on their way to the job's loop; the answers come when they are written down.
pub type Posted = (Vec<PostedScore>, oneshot::Sender<Vec<ScoreAnswer>>);

impl Job<'_> {
    /// Takes the scores that a client posted, and answers when they are written down.
    pub(super) fn scores_posted(&mut self, (scores, answer): Posted) {
        let answers: Vec<ScoreAnswer> = scores.into_iter().map(|score| self.score_posted(score)).collect();
        let written = self.context.journal.flush();
        self.arrivals.push(Box::pin(async move {
            // Without the write the answer is dropped, and the client is told that the job is gone.
            if written.await.is_ok() {
                let _ = answer.send(answers);
            }
            Arrival::Answered
        }));
    }

    fn score_posted(&mut self, score: PostedScore) -> ScoreAnswer {
        let PostedScore { prompt: position, index, reward } = score;
        let Some(prompt) = self.open.get(&position) else {
            let over = self.delivery.is_settled(position) || self.delivery.is_closed(position);
            return if over { ScoreAnswer::NotNeeded } else { ScoreAnswer::NotFinished };
        };
        let Some(ended) = prompt.sample(index) else {
            return if prompt.was_cancelled(index) || index >= prompt.bounds().1 {
                ScoreAnswer::NotNeeded
            } else {
                ScoreAnswer::NotFinished
            };
        };
        if prompt.outcome(index).is_resolved() {
            let same = match &reward {
                Ok(reward) => ended.reward == Some(*reward),
                Err(_) => ended.status == RewardStatus::Failed,
            };
            return if same { ScoreAnswer::Repeated } else { ScoreAnswer::Conflict(ended.reward, ended.status) };
        }
        // A score above the exit is written all the same: it can decide nothing, and the sample must not be asked for again.
        let needed = ended.finish_reason != FinishReason::Cancelled && index < prompt.bounds().1;
        let verdict = reward.map_or_else(Verdict::Failed, Verdict::Scored);
        self.judged(position, index, Judged::at_once(Judgement::bare(verdict)));
        if needed { ScoreAnswer::Taken } else { ScoreAnswer::NotNeeded }
    }

    /// No client has scored the sample in time.
    pub(super) fn overdue(&mut self, position: usize, index: u32) {
        self.judged(position, index, Judged::after(Judgement::failed("no score was posted in time"), 1));
    }
}
