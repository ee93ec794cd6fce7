//! Task D: five digits and what to do with them. `sort 3 1 4 1 5 >` is answered by `1 1 3 4 5` and the end token.
//!
//! Four operations look at one digit at a time and are easy; the two sorts look at all five and are hard. A stream's problem `i` is a pure
//! function of (seed, mix, i), whichever others are asked for. The 512 problems of the evaluation are fixed and held out: no stream ever
//! yields one of their prompts.

use super::random::{Purpose, Words};

/// Digits of a problem.
pub const DIGITS: usize = 5;
/// Tokens of an answer: the digits and the end. A sample needs no more.
pub const ANSWER_TOKENS: usize = DIGITS + 1;
/// Token that closes a prompt, `>`.
pub const PROMPT_END: u32 = 10;
/// Token that ends an answer.
pub const EOS: u32 = 11;
/// Problems of the evaluation, half of them hard.
pub const HELD_OUT: usize = 512;

/// What is to be done with the digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// y = x.
    Copy,
    /// y = 9 - x.
    Comp,
    /// y = x + 1, and 0 after 9.
    Inc,
    /// y = the last digit of 2 x.
    Dbl,
    /// Ascending.
    Sort,
    /// Descending.
    SortD,
}

impl Op {
    /// All, the easy ones first, in the order of their tokens.
    pub const ALL: [Op; 6] = [Op::Copy, Op::Comp, Op::Inc, Op::Dbl, Op::Sort, Op::SortD];
    /// Those of the easy slice.
    pub const EASY: [Op; 4] = [Op::Copy, Op::Comp, Op::Inc, Op::Dbl];
    /// Those of the hard slice.
    pub const HARD: [Op; 2] = [Op::Sort, Op::SortD];

    /// The word in a prompt.
    pub fn name(self) -> &'static str {
        match self {
            Op::Copy => "copy",
            Op::Comp => "comp",
            Op::Inc => "inc",
            Op::Dbl => "dbl",
            Op::Sort => "sort",
            Op::SortD => "sortd",
        }
    }

    /// The word's token.
    pub fn token(self) -> u32 {
        match self {
            Op::Copy => 12,
            Op::Comp => 13,
            Op::Inc => 14,
            Op::Dbl => 15,
            Op::Sort => 18,
            Op::SortD => 20,
        }
    }

    /// Where its problems are counted.
    pub fn slice(self) -> &'static str {
        if Op::HARD.contains(&self) { "hard" } else { "easy" }
    }

    /// The right answer.
    pub fn answer(self, digits: [u8; DIGITS]) -> [u8; DIGITS] {
        let mut y = digits;
        match self {
            Op::Copy => {}
            Op::Comp => y = y.map(|x| 9 - x),
            Op::Inc => y = y.map(|x| (x + 1) % 10),
            Op::Dbl => y = y.map(|x| 2 * x % 10),
            Op::Sort => y.sort_unstable(),
            Op::SortD => y.sort_unstable_by_key(|&x| std::cmp::Reverse(x)),
        }
        y
    }
}

/// A prompt and its answer, as tokens and as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Differs within a stream and between streams of different seeds; those of the evaluation have ids of their own.
    pub id: String,
    /// What is asked.
    pub op: Op,
    /// Of what.
    pub digits: [u8; DIGITS],
    /// `[op, x1..x5, >]`.
    pub prompt_ids: Vec<u32>,
    /// The same as text: `sort 3 1 4 1 5 >`.
    pub prompt_text: String,
    /// `[y1..y5, EOS]`. Right, unless the mix is one of noisy demonstrations.
    pub answer_ids: Vec<u32>,
    /// The same as text, without the end: `1 1 3 4 5`.
    pub answer_text: String,
    /// `easy` or `hard`.
    pub slice: &'static str,
}

impl Problem {
    /// Puts a problem into words. `answer` is what stands in the data, right or not.
    pub fn new(id: String, op: Op, digits: [u8; DIGITS], answer: [u8; DIGITS]) -> Self {
        let tokens = |digits: [u8; DIGITS]| digits.map(u32::from);
        let words = |digits: [u8; DIGITS]| digits.map(|d| d.to_string()).join(" ");
        Problem {
            id,
            op,
            digits,
            prompt_ids: [&[op.token()], tokens(digits).as_slice(), &[PROMPT_END]].concat(),
            prompt_text: format!("{} {} >", op.name(), words(digits)),
            answer_ids: [tokens(answer).as_slice(), &[EOS]].concat(),
            answer_text: words(answer),
            slice: op.slice(),
        }
    }
}

/// Which operations a stream asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Shares of [`Op::ALL`], in ten thousandths.
    shares: [u32; 6],
    /// In hard problems each digit of the answer is replaced, with this probability in ten thousandths, by a digit that may be any.
    answer_noise: u32,
}

/// Shares of a mix add up to this.
const WHOLE: u32 = 10_000;

impl Mix {
    /// Reinforcement learning: one prompt in eight is hard.
    pub const TRAIN: Mix = Mix { shares: [2200, 2200, 2200, 2150, 625, 625], answer_noise: 0 };
    /// The warm-up: half of the problems are hard, and half of the digits in their answers say nothing.
    pub const WARM_UP: Mix = Mix { shares: [1250, 1250, 1250, 1250, 2500, 2500], answer_noise: WHOLE / 2 };

    /// The paper's regime: every prompt is hard.
    pub const HARD: Mix = Mix { shares: [0, 0, 0, 0, 5000, 5000], answer_noise: 0 };

    fn op(self, words: &mut Words) -> Op {
        let mut left = words.below(WHOLE);
        for (op, share) in Op::ALL.into_iter().zip(self.shares) {
            match left.checked_sub(share) {
                Some(rest) => left = rest,
                None => return op,
            }
        }
        Op::SortD
    }
}

/// Problems without end.
#[derive(Clone, Debug)]
pub struct Stream {
    seed: u64,
    mix: Mix,
    /// Codes of the evaluation's prompts, sorted.
    held_out: Vec<u32>,
}

impl Stream {
    /// The stream of a seed.
    pub fn new(seed: u64, mix: Mix) -> Self {
        let mut codes: Vec<u32> = held_out().iter().map(|p| code(p.op, p.digits)).collect();
        codes.sort_unstable();
        Stream { seed, mix, held_out: codes }
    }

    /// Its problem `i`, by this alone.
    pub fn prompt(&self, i: u64) -> Problem {
        let mut words = Words::new(self.seed, Purpose::Problem, i);
        let op = self.mix.op(&mut words);
        let digits = fresh_digits(&mut words, |digits| self.held_out.binary_search(&code(op, digits)).is_err());
        let mut answer = op.answer(digits);
        if self.mix.answer_noise > 0 && Op::HARD.contains(&op) {
            for y in &mut answer {
                let (noisy, any) = (words.below(WHOLE) < self.mix.answer_noise, words.below(10) as u8);
                *y = if noisy { any } else { *y };
            }
        }
        Problem::new(format!("{}-{i}", self.seed), op, digits, answer)
    }
}

/// The evaluation: the same [`HELD_OUT`] different problems whatever the seed of anything, easy and hard in turn, each operation of a slice as often as
/// the others.
pub fn held_out() -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::with_capacity(HELD_OUT);
    for i in 0..HELD_OUT {
        let (turn, hard) = (i / 2, i % 2 == 1);
        let op = if hard { Op::HARD[turn % Op::HARD.len()] } else { Op::EASY[turn % Op::EASY.len()] };
        let mut words = Words::new(0, Purpose::HeldOut, i as u64);
        let digits = fresh_digits(&mut words, |digits| !problems.iter().any(|p| (p.op, p.digits) == (op, digits)));
        problems.push(Problem::new(format!("held-out-{i}"), op, digits, op.answer(digits)));
    }
    problems
}

/// The first digits of the stream of words that are allowed.
fn fresh_digits(words: &mut Words, allowed: impl Fn([u8; DIGITS]) -> bool) -> [u8; DIGITS] {
    loop {
        let digits = [0; DIGITS].map(|_: u8| words.below(10) as u8);
        if allowed(digits) {
            return digits;
        }
    }
}

/// A prompt as one number.
fn code(op: Op, digits: [u8; DIGITS]) -> u32 {
    digits.iter().fold(op.token(), |code, &d| 10 * code + u32::from(d))
}
