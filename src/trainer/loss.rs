//! Policy-gradient losses over scored tokens: pure arithmetic in f64, no model in sight.
//!
//! A row is one kept sample. The loss of a mini-batch is `sum_rows sum_tokens a_t (L_t - entropy * H_t + kl_coefficient * KL_t)`, with weights
//! `a_t` from [`Denominator`] over the whole mini-batch; rows may come in any number of micro-batches, since each contributes on its own.
//! With sampler and trainer sharing their operations the ratio of a first update is 1 exactly, and every loss here is the plain policy gradient
//! `-A grad log p`.
//!
//! Sources: PPO (Schulman et al. 2017), dual clip (Ye et al. 2020), clip-higher and token mean (DAPO, Yu et al. 2025), GSPO (Zheng et al. 2025),
//! CISPO (MiniMax 2025), TIS (Yao et al. 2025), IcePop (Ling team 2025); k1, k2, k3: Schulman 2020.

use serde::{Deserialize, Serialize};

use crate::field::FieldError;
use crate::model::backward::Slope;

/// The surrogate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `max(-A rho, -A clip(rho, 1 - low, 1 + high))`, a token at a time.
    #[default]
    Ppo,
    /// The same with one ratio for the whole sequence: the geometric mean of its tokens' ratios.
    Gspo,
    /// `-A clip(rho) log p` with the clipped ratio as a constant: no token loses its gradient.
    Cispo,
}

/// How tokens are averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Every token of the mini-batch counts the same.
    #[default]
    TokenMean,
    /// Every row counts the same.
    SequenceMean,
    /// The sum over tokens, divided by this number.
    Constant {
        /// The number.
        denominator: f64,
    },
}

/// An estimator of the divergence from the reference, with `r = log p_ref - log p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Estimator {
    /// `-r`.
    K1,
    /// `r^2 / 2`.
    K2,
    /// `e^r - 1 - r`.
    K3,
}

/// The penalty for leaving the reference. The value is the estimator's; the gradient is always k2's, `(log p - log p_ref) grad log p`: the
/// expected gradient of k1's value is zero and k3's is that of the reverse divergence, while k2's is that of KL(p || p_ref) itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kl {
    /// What is reported.
    pub estimator: Estimator,
    /// Its weight in the loss.
    pub coefficient: f64,
}

/// What is done about a sampler that is not the trainer, by `w = p_old / p_sampler` of each token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mismatch {
    /// Nothing: here the two are the same.
    #[default]
    None,
    /// Weight min(w, cap).
    Tis {
        /// Largest weight.
        cap: f64,
    },
    /// Tokens with w outside of low to high are left out.
    Icepop {
        /// Smallest w.
        low: f64,
        /// Largest w.
        high: f64,
    },
}

/// A loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossSettings {
    /// The surrogate.
    pub kind: Kind,
    /// The ratio is clipped below 1 - this.
    pub clip_low: f64,
    /// And above 1 + this.
    pub clip_high: f64,
    /// Where A < 0, the loss is at most -A times this. 0: no bound.
    pub dual_clip: f64,
    /// Log-ratios are clamped to +- this.
    pub log_ratio_bound: f64,
    /// How tokens are averaged.
    pub aggregation: Aggregation,
    /// Weight of the entropy bonus.
    pub entropy: f64,
    /// The penalty for leaving the model that the run started from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl: Option<Kl>,
    /// What is done about a sampler that is not the trainer.
    pub mismatch: Mismatch,
}

impl Default for LossSettings {
    fn default() -> Self {
        LossSettings {
            kind: Kind::Ppo,
            clip_low: 0.2,
            clip_high: 0.28,
            dual_clip: 10.0,
            log_ratio_bound: 20.0,
            aggregation: Aggregation::TokenMean,
            entropy: 0.0,
            kl: None,
            mismatch: Mismatch::None,
        }
    }
}

impl LossSettings {
    /// Whether log-probabilities of the reference are needed.
    pub fn wants_reference(&self) -> bool {
        self.kl.is_some()
    }

    /// Refuses what makes no loss.
    pub fn check(&self) -> Result<(), FieldError> {
        let refuse = |wrong: bool, field: &str, problem: &str| if wrong { Err(FieldError::new(field, problem)) } else { Ok(()) };
        let good = |v: f64, least: f64| v.is_finite() && v >= least;
        refuse(!good(self.clip_low, 0.0) || self.clip_low > 1.0, "clip_low", "must be a number from 0 to 1")?;
        refuse(!good(self.clip_high, 0.0), "clip_high", "must be a number, 0 or above")?;
        refuse(self.dual_clip != 0.0 && !good(self.dual_clip, 1.0), "dual_clip", "must be 1 or above, or 0 for no bound")?;
        refuse(!good(self.log_ratio_bound, 0.0) || self.log_ratio_bound == 0.0, "log_ratio_bound", "must be above 0, such as 20")?;
        refuse(!self.entropy.is_finite(), "entropy", "must be a number")?;
        refuse(self.kl.is_some_and(|kl| !good(kl.coefficient, 0.0)), "kl.coefficient", "must be a number, 0 or above")?;
        if let Aggregation::Constant { denominator } = self.aggregation {
            refuse(!good(denominator, 0.0) || denominator == 0.0, "aggregation.constant.denominator", "must be above 0")?;
        }
        match self.mismatch {
            Mismatch::None => Ok(()),
            Mismatch::Tis { cap } => refuse(!good(cap, 0.0) || cap == 0.0, "mismatch.tis.cap", "must be above 0, such as 2"),
            Mismatch::Icepop { low, high } => {
                refuse(!good(low, 0.0) || !good(high, low), "mismatch.icepop", "needs 0 <= low <= high, such as .5 and 5")
            }
        }
    }
}

/// A kept sample; all lists have one value per token of the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its advantage.
    pub advantage: f64,
    /// Now.
    pub logprob: Vec<f32>,
    /// At the start of the step.
    pub logprob_old: Vec<f32>,
    /// As the server reported it.
    pub logprob_sampler: Vec<f32>,
    /// Of the reference, where one is wanted.
    pub logprob_ref: Option<Vec<f32>>,
    /// Of the distribution that the token was drawn from, now.
    pub entropy: Vec<f32>,
}

/// What sums are divided by, over a whole mini-batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Denominator {
    tokens: f64,
    rows: f64,
}

impl Denominator {
    /// From the numbers of tokens of all rows of a mini-batch.
    pub fn of(tokens: impl IntoIterator<Item = usize>) -> Self {
        let mut denominator = Denominator { tokens: 0.0, rows: 0.0 };
        for n in tokens {
            denominator.tokens += n as f64;
            denominator.rows += 1.0;
        }
        denominator
    }

    /// Weight of each token of a row of `n` tokens.
    fn weight(&self, aggregation: Aggregation, n: usize) -> f64 {
        match aggregation {
            Aggregation::TokenMean => 1.0 / self.tokens,
            Aggregation::SequenceMean => 1.0 / (self.rows * n as f64),
            Aggregation::Constant { denominator } => 1.0 / denominator,
        }
    }
}

/// Sums over tokens, for the step's numbers; those of micro-batches add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// The loss, weights applied.
    pub loss: f64,
    /// Of it, the surrogate.
    pub surrogate: f64,
    /// Tokens.
    pub tokens: f64,
    /// Tokens whose ratio was clipped, so that they have no gradient.
    pub clipped: f64,
    /// Tokens at the dual bound.
    pub dual_clipped: f64,
    /// Tokens that the mismatch rule left out.
    pub masked: f64,
    /// Sum of `log p_old - log p`.
    pub old_minus_new: f64,
    /// Sum of entropies.
    pub entropy: f64,
    /// Sum of the estimator's values.
    pub kl: f64,
    /// Sum of ratios.
    pub ratio: f64,
    /// Largest ratio.
    pub ratio_max: f64,
}

impl Sums {
    /// Adds another micro-batch.
    pub fn add(&mut self, other: &Sums) {
        self.loss += other.loss;
        self.surrogate += other.surrogate;
        self.tokens += other.tokens;
        self.clipped += other.clipped;
        self.dual_clipped += other.dual_clipped;
        self.masked += other.masked;
        self.old_minus_new += other.old_minus_new;
        self.entropy += other.entropy;
        self.kl += other.kl;
        self.ratio += other.ratio;
        self.ratio_max = self.ratio_max.max(other.ratio_max);
    }
}

/// A surrogate's value and its derivative by the log-ratio.
struct Surrogate {
    value: f64,
    slope: f64,
    clipped: bool,
    dual: bool,
}

/// PPO with dual clip, by the log-ratio before and after its clamp.
fn ppo(settings: &LossSettings, advantage: f64, raw: f64, d: f64) -> Surrogate {
    let rho = libm::exp(d);
    // Clamped log-ratios have no gradient.
    let slope = if raw == d { -advantage * rho } else { 0.0 };
    let (plain, bounded) = (-advantage * rho, -advantage * rho.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high));
    let mut surrogate = if plain >= bounded {
        Surrogate { value: plain, slope, clipped: false, dual: false }
    } else {
        Surrogate { value: bounded, slope: 0.0, clipped: true, dual: false }
    };
    let most = -advantage * settings.dual_clip;
    if advantage < 0.0 && settings.dual_clip > 0.0 && surrogate.value > most {
        surrogate = Surrogate { value: most, slope: 0.0, clipped: false, dual: true };
    }
    surrogate
}

/// The loss of some rows of a mini-batch, and its slope at every token, row after row.
pub fn loss_of_rows(settings: &LossSettings, rows: &[Row], denominator: Denominator) -> (Sums, Vec<Slope>) {
    let mut sums = Sums::default();
    let mut slopes = Vec::with_capacity(rows.iter().map(|row| row.logprob.len()).sum());
    let bound = settings.log_ratio_bound;
    for row in rows {
        let n = row.logprob.len();
        let a = denominator.weight(settings.aggregation, n);
        let raw = |t: usize| f64::from(row.logprob[t]) - f64::from(row.logprob_old[t]);
        let d = |t: usize| raw(t).clamp(-bound, bound);
        // One ratio for the sequence: every token has its surrogate, and moves it by 1/n.
        let sequence = (settings.kind == Kind::Gspo && n > 0).then(|| {
            let mean = (0..n).map(d).sum::<f64>() / n as f64;
            ppo(settings, row.advantage, mean, mean)
        });
        let weights: Vec<f64> = (0..n).map(|t| mismatch_weight(settings.mismatch, row, t)).collect();
        let whole: f64 = weights.iter().sum();
        for t in 0..n {
            let weight = weights[t];
            let ratio = libm::exp(d(t));
            let (surrogate, slope) = match (settings.kind, &sequence) {
                (Kind::Cispo, _) => {
                    let factor = -row.advantage * ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high);
                    let value = factor * f64::from(row.logprob[t]);
                    (Surrogate { value, slope: factor, clipped: false, dual: false }, weight * factor)
                }
                (_, Some(s)) => {
                    // This order: where no token has a weight of its own the quotient is 1 exactly.
                    let moved = if raw(t) == d(t) { s.slope * (whole / n as f64) } else { 0.0 };
                    (Surrogate { value: s.value, slope: s.slope, clipped: s.clipped, dual: s.dual }, moved)
                }
                (_, None) => {
                    let s = ppo(settings, row.advantage, raw(t), d(t));
                    let slope = weight * s.slope;
                    (s, slope)
                }
            };
            let entropy = f64::from(row.entropy[t]);
            let (mut value, mut slope) = (weight * surrogate.value, slope);
            sums.surrogate += a * value;
            if let (Some(kl), Some(reference)) = (settings.kl, &row.logprob_ref) {
                let r = f64::from(reference[t]) - f64::from(row.logprob[t]);
                let divergence = match kl.estimator {
                    Estimator::K1 => -r,
                    Estimator::K2 => 0.5 * r * r,
                    Estimator::K3 => libm::expm1(r) - r,
                };
                sums.kl += divergence;
                value += kl.coefficient * divergence;
                slope -= kl.coefficient * r;
            }
            value -= settings.entropy * entropy;
            sums.loss += a * value;
            sums.tokens += 1.0;
            sums.clipped += f64::from(u8::from(surrogate.clipped));
            sums.dual_clipped += f64::from(u8::from(surrogate.dual));
            sums.masked += f64::from(u8::from(weight == 0.0));
            sums.old_minus_new -= raw(t);
            sums.entropy += entropy;
            sums.ratio += ratio;
            sums.ratio_max = sums.ratio_max.max(ratio);
            slopes.push(Slope { logprob: (a * slope) as f32, entropy: (-a * settings.entropy) as f32 });
        }
    }
    (sums, slopes)
}

fn mismatch_weight(mismatch: Mismatch, row: &Row, t: usize) -> f64 {
    let w = || libm::exp(f64::from(row.logprob_old[t]) - f64::from(row.logprob_sampler[t]));
    match mismatch {
        Mismatch::None => 1.0,
        Mismatch::Tis { cap } => w().min(cap),
        Mismatch::Icepop { low, high } => f64::from(u8::from((low..=high).contains(&w()))),
    }
}
