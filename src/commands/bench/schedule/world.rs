//! The workload of the scheduling bench: every sample's outcome and length, fixed before anything is scheduled.
//!
//! A sample is a pure function of (seed, prompt, index), as a real one is, so that policies meet the same samples whatever they do.

use crate::ops::philox::philox;
use crate::rollout::plan::{Outcome, Plan};

/// Indices per prompt (N_max).
pub const MAX_SAMPLES: u32 = 32;
/// Longest answer; one of this length is truncated and so negative.
pub const MAX_TOKENS: u32 = 2048;
/// Shortest answer.
const MIN_TOKENS: u32 = 8;
/// Mean length of correct answers of an average prompt.
const MEAN_TOKENS: f64 = 500.0;
/// Spread of the logarithm of the lengths of one prompt's answers.
const SIGMA: f64 = 0.55;
/// Spread of the logarithm of a prompt's length factor.
const PROMPT_SIGMA: f64 = 0.35;
/// Wrong answers are longer by this factor.
const WRONG: f64 = 1.6;

/// How pass rates are spread over the prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// Uniform on (0, 1).
    Uniform,
    /// Beta(.261, .725): early in training most prompts are too hard.
    Early,
    /// Beta(.339, .299): late in training most are too easy or too hard.
    Late,
}

impl Mix {
    /// Every mix.
    pub const ALL: [Mix; 3] = [Mix::Uniform, Mix::Early, Mix::Late];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Mix::Uniform => "uniform",
            Mix::Early => "early",
            Mix::Late => "late",
        }
    }
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Its tokens.
    pub tokens: u32,
    /// Whether its answer is right. A truncated one is not.
    pub right: bool,
}

/// Every sample of every prompt.
#[derive(Clone, Debug)]
pub struct World {
    fates: Vec<Fate>,
}

/// What a random word is for: a part of its counter.
#[derive(Clone, Copy)]
enum Use {
    Rate,
    OtherGamma,
    PromptLength,
    Sample,
}

impl World {
    /// `prompts` prompts with pass rates from `mix`.
    pub fn new(prompts: usize, mix: Mix, seed: u64) -> World {
        let dice = Dice { key: [seed as u32, (seed >> 32) as u32] };
        let mut fates = Vec::with_capacity(prompts * MAX_SAMPLES as usize);
        for prompt in 0..prompts as u32 {
            let rate = match mix {
                Mix::Uniform => dice.unit(prompt, 0, Use::Rate, 0)[0],
                Mix::Early => dice.beta(prompt, 0.261, 0.725),
                Mix::Late => dice.beta(prompt, 0.339, 0.299),
            };
            let factor = libm::exp(PROMPT_SIGMA * dice.normal(prompt, 0, Use::PromptLength, 0));
            for index in 0..MAX_SAMPLES {
                let right = dice.unit(prompt, index, Use::Sample, 0)[3] < rate;
                let mu = libm::log(MEAN_TOKENS) - SIGMA * SIGMA / 2.0;
                let length = libm::exp(mu + SIGMA * dice.normal(prompt, index, Use::Sample, 0)) * factor * if right { 1.0 } else { WRONG };
                let tokens = (length as u32).clamp(MIN_TOKENS, MAX_TOKENS);
                fates.push(Fate { tokens, right: right && tokens < MAX_TOKENS });
            }
        }
        World { fates }
    }

    /// Number of prompts.
    pub fn prompts(&self) -> usize {
        self.fates.len() / MAX_SAMPLES as usize
    }

    /// Every sample of one prompt.
    pub fn of(&self, prompt: usize) -> &[Fate] {
        &self.fates[prompt * MAX_SAMPLES as usize..][..MAX_SAMPLES as usize]
    }

    /// One sample.
    pub fn fate(&self, prompt: usize, index: u32) -> Fate {
        self.of(prompt)[index as usize]
    }

    /// How one sample counts.
    pub fn outcome(&self, prompt: usize, index: u32) -> Outcome {
        if self.fate(prompt, index).right { Outcome::Positive } else { Outcome::Negative }
    }

    /// Tokens below the exits of `plan`: what any policy has to draw.
    pub fn needed_tokens(&self, plan: &Plan) -> u64 {
        let of_prompt = |prompt: usize| {
            let outcomes: Vec<Outcome> = (0..MAX_SAMPLES).map(|index| self.outcome(prompt, index)).collect();
            self.of(prompt)[..plan.bound(&outcomes).t as usize].iter().map(|fate| u64::from(fate.tokens)).sum::<u64>()
        };
        (0..self.prompts()).map(of_prompt).sum()
    }
}

/// Random numbers by coordinates.
struct Dice {
    key: [u32; 2],
}

impl Dice {
    /// Four numbers in (0, 1).
    fn unit(&self, prompt: u32, index: u32, purpose: Use, attempt: u32) -> [f64; 4] {
        philox([prompt, index, purpose as u32, attempt], self.key).map(|word| (f64::from(word) + 0.5) / 4_294_967_296.0)
    }

    /// Standard normal (Box and Muller), from the first two.
    fn normal(&self, prompt: u32, index: u32, purpose: Use, attempt: u32) -> f64 {
        let [u, v, ..] = self.unit(prompt, index, purpose, attempt);
        (-2.0 * libm::log(u)).sqrt() * libm::cos(std::f64::consts::TAU * v)
    }

    /// Gamma(shape), shape < 1: of shape + 1 (Marsaglia and Tsang 2000), times U^(1/shape).
    fn gamma(&self, prompt: u32, purpose: Use, shape: f64) -> f64 {
        let d = shape + 1.0 - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        let mut attempt = 0;
        loop {
            let x = self.normal(prompt, 0, purpose, attempt);
            let [.., accept, power] = self.unit(prompt, 0, purpose, attempt);
            attempt += 1;
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && libm::log(accept) < x * x / 2.0 + d - d * v + d * libm::log(v) {
                return d * v * libm::pow(power, 1.0 / shape);
            }
        }
    }

    fn beta(&self, prompt: u32, a: f64, b: f64) -> f64 {
        let (x, y) = (self.gamma(prompt, Use::Rate, a), self.gamma(prompt, Use::OtherGamma, b));
        x / (x + y)
    }
}
