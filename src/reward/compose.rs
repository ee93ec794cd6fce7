//! Rewards that are made of others.
//!
//! `all` is 1 if every part is positive, else 0; `any` is 1 if one is; `weighted` is the sum of weight times reward. A part is positive above
//! [`POSITIVE_ABOVE`], whatever the request calls positive. A part that fails fails the whole, and one that is too large to judge makes the
//! whole too large, unless the others decide by themselves: a part that is not positive decides `all`, a positive one `any`. So a failure is
//! never a zero here either.
//!
//! What is found names the part that decided: `all/1:choice/boxed` is what the second part of an `all` found. The part of the largest
//! weight speaks for a sum.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Found, Judgement, Ruling, Verdict, Verifier};

/// A part with a larger reward is positive.
pub const POSITIVE_ABOVE: f64 = 0.5;

/// A compiled composition.
#[derive(Clone, Debug)]
pub struct Composition {
    rule: Rule,
    parts: Vec<Arc<Verifier>>,
}

/// How the parts make the whole.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Every part must be positive.
    All,
    /// One must be.
    Any,
    /// The sum with these weights, one for each part.
    Weighted(Vec<f64>),
}

impl Composition {
    /// A composition of at least one part.
    pub fn new(rule: Rule, parts: Vec<Verifier>) -> Self {
        Composition { rule, parts: parts.into_iter().map(Arc::new).collect() }
    }

    /// Its name.
    pub fn kind(&self) -> &'static str {
        match self.rule {
            Rule::All => "all",
            Rule::Any => "any",
            Rule::Weighted(_) => "weighted",
        }
    }

    /// Parts that count, with their positions: all but those without weight.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &Arc<Verifier>)> {
        self.parts.iter().enumerate().filter(|(part, _)| self.weight(*part) != 0.0)
    }

    /// Number of parts, those without weight included.
    pub fn size(&self) -> usize {
        self.parts.len()
    }

    fn weight(&self, part: usize) -> f64 {
        match &self.rule {
            Rule::Weighted(weights) => weights.get(part).copied().unwrap_or_default(),
            _ => 1.0,
        }
    }

    /// Judges by what is known here: part after part, no more than it takes.
    pub fn judge(&self, text: &str, tokens: Option<u32>) -> Judgement {
        let mut known: Known = vec![None; self.size()];
        for (part, verifier) in self.parts() {
            known[part] = Some(verifier.judge_counted(text, tokens));
            if let Some(decided) = self.decided(&known, |asked| asked <= part) {
                return decided;
            }
        }
        self.whole(&known)
    }

    /// What a sample is worth that was cut off after so many tokens: right in nothing, and as long as it is.
    pub fn of_truncated(&self, tokens: u32) -> f64 {
        match self.rule {
            Rule::Weighted(_) => self.parts().fold(0.0, |sum, (part, verifier)| sum + self.weight(part) * verifier.of_truncated(tokens)),
            _ => 0.0,
        }
    }

    /// The judgement, if a part decides by itself whatever the unknown ones are. Of several the first one is named, so that which of them
    /// was known first does not show: parts before it that are `asked` must be known.
    pub fn decided(&self, known: &[Option<Judgement>], asked: impl Fn(usize) -> bool) -> Option<Judgement> {
        for (part, _) in self.parts().filter(|(part, _)| asked(*part)) {
            let judgement = known.get(part)?.as_ref()?;
            match (&self.rule, &judgement.verdict) {
                (Rule::All, Verdict::Scored(reward)) if !is_positive(*reward) => {
                    let no_answer = judgement.found.as_ref().is_some_and(|found| found.ruling == Ruling::NoAnswer);
                    let ruling = if no_answer { Ruling::NoAnswer } else { Ruling::Wrong };
                    return Some(Judgement { verdict: Verdict::Scored(0.0), found: Some(self.said(part, ruling, judgement)) });
                }
                (Rule::Any, Verdict::Scored(reward)) if is_positive(*reward) => {
                    return Some(Judgement { verdict: Verdict::Scored(1.0), found: Some(self.said(part, Ruling::Correct, judgement)) });
                }
                (Rule::Weighted(_), Verdict::Failed(_) | Verdict::Unscored) => return Some(self.failed(part, judgement)),
                _ => {}
            }
        }
        None
    }

    /// The judgement where every part that counts is known and none decides by itself.
    pub fn whole(&self, known: &[Option<Judgement>]) -> Judgement {
        let all: Vec<(usize, &Judgement)> = self.parts().filter_map(|(part, _)| Some((part, known.get(part)?.as_ref()?))).collect();
        if all.len() < self.parts().count() {
            return Judgement::failed("a part of the reward was not judged");
        }
        let first = |is: fn(&Verdict) -> bool| all.iter().find(|(_, judgement)| is(&judgement.verdict)).copied();
        if let Some((part, judgement)) = first(|verdict| matches!(verdict, Verdict::Failed(_) | Verdict::Unscored)) {
            return self.failed(part, judgement);
        }
        if let Some((part, judgement)) = first(|verdict| matches!(verdict, Verdict::Limit(_)))
            && let Verdict::Limit(why) = &judgement.verdict
        {
            let found = self.said(part, Ruling::Limit, judgement);
            return Judgement { verdict: Verdict::Limit(format!("parts[{part}]: {why}")), found: Some(found) };
        }
        let rewards = all.iter().map(|(part, judgement)| match judgement.verdict {
            Verdict::Scored(reward) => self.weight(*part) * reward,
            _ => 0.0,
        });
        let extracted = || all.iter().find_map(|(_, judgement)| judgement.found.as_ref()?.extracted.as_deref());
        let is_silent =
            |(_, judgement): &(usize, &Judgement)| judgement.found.as_ref().is_some_and(|found| found.ruling == Ruling::NoAnswer);
        let (reward, found) = match self.rule {
            Rule::All => (1.0, Some(Found::new(Ruling::Correct, extracted(), "all"))),
            Rule::Any if all.iter().all(is_silent) => (0.0, Some(Found::new(Ruling::NoAnswer, None, "any"))),
            Rule::Any => (0.0, Some(Found::new(Ruling::Wrong, extracted(), "any"))),
            Rule::Weighted(_) => {
                let speakers = all.iter().filter_map(|(part, judgement)| Some((*part, *judgement, judgement.found.as_ref()?.ruling)));
                // `max_by` takes the last of equals.
                let speaker = speakers.rev().max_by(|a, b| self.weight(a.0).abs().total_cmp(&self.weight(b.0).abs()));
                (rewards.fold(0.0, |sum, reward| sum + reward), speaker.map(|(part, judgement, ruling)| self.said(part, ruling, judgement)))
            }
        };
        Judgement { verdict: Verdict::Scored(reward), found }
    }

    /// A part could not be judged, and so the whole cannot.
    fn failed(&self, part: usize, judgement: &Judgement) -> Judgement {
        let why = match &judgement.verdict {
            Verdict::Failed(why) => why.as_str(),
            _ => "it was never scored",
        };
        let bad_gold = judgement.found.as_ref().is_some_and(|found| found.ruling == Ruling::BadGold);
        let found = bad_gold.then(|| self.said(part, Ruling::BadGold, judgement));
        Judgement { verdict: Verdict::Failed(format!("parts[{part}]: {why}")), found }
    }

    /// What a part found, with this ruling.
    fn said(&self, part: usize, ruling: Ruling, judgement: &Judgement) -> Found {
        let rule = match &judgement.found {
            Some(found) => &*found.rule,
            None => self.parts.get(part).map_or("", |verifier| verifier.kind()),
        };
        let extracted = judgement.found.as_ref().and_then(|found| found.extracted.clone());
        Found { ruling, extracted, rule: Cow::Owned(format!("{}/{part}:{rule}", self.kind())) }
    }
}

/// What is known of the parts.
type Known = Vec<Option<Judgement>>;

fn is_positive(reward: f64) -> bool {
    reward > POSITIVE_ABOVE
}
