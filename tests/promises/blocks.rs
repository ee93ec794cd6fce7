//! Promise: whatever else runs, a sequence sees its own tokens and nothing else, draws each of its tokens once, and comes to its end.
//!
//! The scheduler drives a model that computes nothing and remembers what every slot of the KV cache holds: a token together with
//! everything before it. A block shared or reused wrongly shows as a wrong text, whoever noticed it first.
//!
//! The model answers in the step itself, or one step late: then the newest token of a sequence is a promise to the scheduler while the model
//! knows it, and a sequence may end with a row in flight.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use adaroll::engine::RequestId;
use adaroll::engine::blocks::Blocks;
use adaroll::engine::scheduler::{Counters, Limits, Outcome, Purpose, Scheduler, Step};
use adaroll::ops::{BLOCK_TOKENS, Batch, PROMISED};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

type Checked = Result<(), TestCaseError>;

/// Prompts and draws use few tokens, so that different sequences often come to the same text.
const ALPHABET: u32 = 3;

/// Names every text (a token and all before it) by a number, exactly: equal numbers mean equal texts.
#[derive(Default)]
struct Texts {
    names: HashMap<(u32, u32), u32>,
    /// What the model makes of each text.
    logits: Vec<u64>,
}

/// The empty text.
const EMPTY: u32 = 0;
/// What a slot holds before anything is written to it.
const GARBAGE: u32 = u32::MAX;

impl Texts {
    fn name(&mut self, before: u32, token: u32) -> u32 {
        let next = self.names.len() as u32 + 1;
        let name = *self.names.entry((before, token)).or_insert(next);
        if name == next {
            self.logits.resize(next as usize + 1, START);
            self.logits[name as usize] = mix(self.logits[before as usize], token);
        }
        name
    }

    fn names(&mut self, tokens: &[u32]) -> Vec<u32> {
        let mut before = EMPTY;
        let mut name = |&token: &u32| {
            before = self.name(before, token);
            before
        };
        tokens.iter().map(&mut name).collect()
    }
}

const START: u64 = 0xcbf2_9ce4_8422_2325;

fn mix(hash: u64, value: u32) -> u64 {
    let h = (hash ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ (h >> 29)
}

/// The token that sample `index` draws from these logits.
fn draw(logits: u64, index: u32) -> u32 {
    (mix(logits, index) >> 40) as u32 % ALPHABET
}

/// What sample `index` of a prompt draws, from the prompt and the index alone.
fn expected(prompt: &[u32], index: u32, most: usize) -> Vec<u32> {
    let mut logits = prompt.iter().fold(START, |h, &t| mix(h, t));
    let mut drawn = Vec::new();
    while drawn.len() < most {
        drawn.push(draw(logits, index));
        logits = mix(logits, drawn[drawn.len() - 1]);
    }
    drawn
}

/// When the model's answers come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// In the step that asks.
    AtOnce,
    /// When the next step has been planned.
    Late,
    /// Late, for the twin: its owner tells the scheduler of a placeholder, as if that were the token.
    LateAndNaive,
}

/// The placeholder of the twin: no token of the alphabet.
const PLACEHOLDER: u32 = 1000;

/// An answer on its way to the scheduler.
#[derive(Clone, Copy)]
enum Answer {
    Draw { id: RequestId, token: u32 },
    Scored { id: RequestId, done: bool },
}

/// A sequence, as its owner knows it.
struct Live {
    purpose: Purpose,
    prompt: Arc<[u32]>,
    index: u32,
    /// Tokens to draw.
    most: usize,
    /// Tokens to draw as far as anybody can foresee: where it is more than `most`, the end comes as a surprise.
    foreseen: usize,
    /// Tokens that the model knows.
    tokens: Vec<u32>,
    /// Those of them that the scheduler has been told.
    told: usize,
    /// The text up to each token.
    names: Vec<u32>,
    /// Next position to be scored.
    next: usize,
    /// Step of the last draw, and the number of its ask.
    drew: (u64, u32),
}

/// What a sequence is at, as far as a cancel is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Waiting,
    /// Waiting for another sequence's prefill.
    Following,
    /// Computing its prompt for others, or for itself.
    Prefilling,
    Drawing,
}

/// The scheduler, its memory, and the book of who should see what.
struct Bench {
    answers: Answers,
    scheduler: Scheduler,
    limits: Limits,
    batch: Batch,
    last: Step,
    /// Answers of the last step, where they come late.
    open: Option<Vec<Answer>>,
    /// The text in each slot.
    memory: Vec<u32>,
    texts: Texts,
    live: BTreeMap<RequestId, Live>,
    /// Sequences that came to their end, and their tokens.
    finished: Vec<(RequestId, Vec<u32>)>,
    next_id: u64,
    steps: u64,
    rows: u64,
    seen: Seen,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Draws from logits that another sequence computed.
    forks: u64,
    /// Rows of promised tokens, and draws that came for nobody.
    promised: u64,
    dropped: u64,
    copies: u64,
    draws: u64,
    scored: u64,
    /// Cancels by [`Doing`].
    cancels: [u64; 4],
    /// Tokens that the sequences wanted, had nothing been shared or done twice.
    wanted: u64,
    prompt_tokens: u64,
}

impl Bench {
    fn new(batch_tokens: usize, sequences: usize, blocks: usize, caching: bool) -> Bench {
        Bench::with(Answers::AtOnce, batch_tokens, sequences, blocks, caching)
    }

    fn with(answers: Answers, batch_tokens: usize, sequences: usize, blocks: usize, caching: bool) -> Bench {
        let limits = Limits { batch_tokens, sequences };
        Bench {
            answers,
            scheduler: Scheduler::new(limits, Blocks::new(blocks, caching)),
            limits,
            batch: Batch::default(),
            last: Step::default(),
            open: None,
            memory: vec![GARBAGE; blocks * BLOCK_TOKENS],
            texts: Texts::default(),
            live: BTreeMap::new(),
            finished: Vec::new(),
            next_id: 0,
            steps: 0,
            rows: 0,
            seen: Seen::default(),
        }
    }

    fn add(&mut self, prompt: &Arc<[u32]>, purpose: Purpose, index: u32, most: usize) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let computed = match purpose {
            Purpose::Sample => prompt.len(),
            Purpose::Score(_) => prompt.len() - 1,
        };
        self.seen.prompt_tokens += computed as u64;
        self.seen.wanted += (computed + most) as u64;
        let next = if let Purpose::Score(from) = purpose { from } else { 0 };
        let names = self.texts.names(prompt);
        let room = self.memory.len() >= prompt.len() + most;
        let surprise = self.answers != Answers::AtOnce && id.0.is_multiple_of(3) && room;
        let foreseen = most + usize::from(surprise);
        let (tokens, told) = (prompt.to_vec(), prompt.len());
        let live = Live { purpose, prompt: prompt.clone(), index, most, foreseen, tokens, told, names, next, drew: (0, 0) };
        self.live.insert(id, live);
        self.scheduler.add(id, prompt.clone(), purpose);
        id
    }

    /// Samples `0..n` of a prompt.
    fn submit(&mut self, prompt: &Arc<[u32]>, n: u32, most: usize) -> Vec<RequestId> {
        (0..n).map(|index| self.add(prompt, Purpose::Sample, index, most)).collect()
    }

    fn score(&mut self, tokens: &Arc<[u32]>, from: usize) -> RequestId {
        self.add(tokens, Purpose::Score(from), 0, 0)
    }

    fn audit(&self) -> Checked {
        if self.answers == Answers::LateAndNaive {
            return Ok(());
        }
        self.scheduler.audit().map_err(TestCaseError::fail)?;
        let blocks = self.scheduler.blocks();
        prop_assert_eq!(blocks.available() + blocks.used(), blocks.total());
        prop_assert_eq!(self.scheduler.running() + self.scheduler.waiting(), self.live.len());
        Ok(())
    }

    fn step(&mut self) -> Checked {
        if self.live.is_empty() && self.open.is_none() {
            return Ok(());
        }
        self.steps += 1;
        let step = self.scheduler.schedule(&mut self.batch);
        self.audit()?;
        let runs = !step.parts.is_empty();
        prop_assert!(runs || self.open.is_some(), "nothing runs, though {} sequences are there", self.live.len());
        self.check_plan(&step)?;
        self.check_writes(&step)?;
        self.compute(&step)?;
        let mut outcomes = Vec::new();
        self.scheduler.complete(&step, &mut outcomes);
        self.audit()?;
        let asked = self.ask(&step, &outcomes)?;
        let known = match self.answers {
            Answers::AtOnce => Some(asked),
            _ if runs => self.open.replace(asked),
            _ => self.open.take(),
        };
        for answer in known.into_iter().flatten() {
            self.book(answer)?;
        }
        self.promise();
        self.last = step;
        self.audit()
    }

    /// What the model makes of the rows: draws first.
    fn ask(&mut self, step: &Step, outcomes: &[Outcome]) -> Result<Vec<Answer>, TestCaseError> {
        let mut answers = Vec::new();
        for outcome in outcomes {
            if let Outcome::Draw { id, logits } = *outcome {
                self.seen.forks += u64::from(step.parts.iter().all(|p| p.id != id));
                answers.push(self.draw(id, logits, answers.len() as u32)?);
            }
        }
        for outcome in outcomes {
            if let Outcome::Scored { id, logits, rows, from, done } = *outcome {
                self.check_scores(id, logits, rows, from, done)?;
                answers.push(Answer::Scored { id, done });
            }
        }
        Ok(answers)
    }

    /// Tells the scheduler what is still to come.
    fn promise(&mut self) {
        for (number, answer) in self.open.iter().flatten().enumerate() {
            match *answer {
                Answer::Draw { id, .. } => {
                    let Some(live) = self.live.get(&id) else { continue };
                    let goes_on = live.tokens.len() < live.prompt.len() + live.foreseen;
                    match self.answers {
                        Answers::LateAndNaive if goes_on => self.scheduler.push(id, PLACEHOLDER + number as u32),
                        _ => self.scheduler.promise(id, goes_on.then_some(number as u32)),
                    }
                }
                Answer::Scored { id, done: true } => self.scheduler.promise(id, None),
                Answer::Scored { .. } => {}
            }
        }
    }

    /// The rows are those of the parts, the limits hold, and logits are wanted of the last rows of a part.
    fn check_plan(&mut self, step: &Step) -> Checked {
        let batch = &self.batch;
        prop_assert!(batch.rows() <= self.limits.batch_tokens && batch.logit_rows.len() <= self.limits.sequences);
        prop_assert_eq!(batch.segments.len(), step.parts.len());
        let (mut row, mut logits) = (0, 0);
        for (segment, part) in batch.segments.iter().zip(&step.parts) {
            prop_assert_eq!((segment.row, segment.rows, part.logits), (row, part.rows, logits));
            prop_assert!(segment.rows > 0);
            row += part.rows;
            let of_logits = &batch.logit_rows[logits..][..part.num_logits];
            prop_assert!(of_logits.iter().rev().zip(1..).all(|(&r, back)| r as usize == row - back));
            logits += part.num_logits;
            let live = &self.live[&part.id];
            let done = live.purpose != Purpose::Sample && live.next == live.prompt.len();
            prop_assert!(!done, "{:?} runs again, while its last scores are on their way", part.id);
            for (r, position) in (segment.row..row).zip(segment.start..) {
                if position >= live.told && self.answers == Answers::Late {
                    // The newest token alone, in the step after the one that asked for it.
                    prop_assert_eq!((position + 1, self.steps), (live.tokens.len(), live.drew.0 + 1));
                    prop_assert_eq!(batch.tokens[r], PROMISED | live.drew.1);
                    self.seen.promised += 1;
                } else if self.answers != Answers::LateAndNaive {
                    prop_assert_eq!(Some(&batch.tokens[r]), live.tokens.get(position));
                }
                prop_assert_eq!(batch.positions[r] as usize, position);
                let block = batch.tables[segment.table + position / BLOCK_TOKENS] as usize;
                prop_assert_eq!(batch.slots[r] as usize, block * BLOCK_TOKENS + position % BLOCK_TOKENS);
            }
        }
        prop_assert_eq!((row, logits), (batch.rows(), batch.logit_rows.len()));
        let mut ids: Vec<_> = step.parts.iter().map(|p| p.id).collect();
        ids.sort();
        ids.dedup();
        prop_assert_eq!(ids.len(), step.parts.len(), "a sequence got rows twice");
        Ok(())
    }

    /// Nothing that somebody else holds, or that the cache can find, is about to be written.
    fn check_writes(&self, step: &Step) -> Checked {
        let total = self.scheduler.blocks().total();
        let (mut holders, mut owner) = (vec![0; total], vec![None; total]);
        for (id, table) in self.scheduler.tables() {
            for &b in table {
                holders[b as usize] += 1;
                owner[b as usize] = Some(id);
            }
        }
        let mut findable = vec![false; total];
        self.scheduler.blocks().findable().for_each(|b| findable[b as usize] = true);
        for &(_, to) in &step.copies {
            prop_assert!(holders[to as usize] <= 1 && !findable[to as usize], "block {to} is copied over");
        }
        for (segment, part) in self.batch.segments.iter().zip(&step.parts) {
            for slot in &self.batch.slots[segment.row..][..segment.rows] {
                let b = *slot as usize / BLOCK_TOKENS;
                prop_assert!(!findable[b], "block {b} is written and can be found");
                prop_assert_eq!((holders[b], owner[b]), (1, Some(part.id)), "block {} is written and shared", b);
            }
        }
        Ok(())
    }

    /// Copies, then writes all rows, then looks at everything that the rows see: a row sees the positions up to its own, so the last row of
    /// a segment sees what the others see.
    fn compute(&mut self, step: &Step) -> Checked {
        self.seen.copies += step.copies.len() as u64;
        self.rows += self.batch.rows() as u64;
        for &(from, to) in &step.copies {
            let from = from as usize * BLOCK_TOKENS;
            self.memory.copy_within(from..from + BLOCK_TOKENS, to as usize * BLOCK_TOKENS);
        }
        for (segment, part) in self.batch.segments.iter().zip(&step.parts) {
            for i in 0..segment.rows {
                self.memory[self.batch.slots[segment.row + i] as usize] = self.live[&part.id].names[segment.start + i];
            }
        }
        for (segment, part) in self.batch.segments.iter().zip(&step.parts) {
            for (position, name) in self.live[&part.id].names[..segment.start + segment.rows].iter().enumerate() {
                let block = self.batch.tables[segment.table + position / BLOCK_TOKENS] as usize;
                let holds = self.memory[block * BLOCK_TOKENS + position % BLOCK_TOKENS];
                prop_assert_eq!(holds, *name, "{:?} sees another text at position {}", part.id, position);
            }
        }
        Ok(())
    }

    /// The text that a row of logits follows.
    fn text_of(&self, logits: usize) -> u32 {
        self.memory[self.batch.slots[self.batch.logit_rows[logits] as usize] as usize]
    }

    /// A draw is from the logits of the newest token; there is one for every token.
    fn draw(&mut self, id: RequestId, logits: usize, number: u32) -> Result<Answer, TestCaseError> {
        let text = self.text_of(logits);
        let live = self.live.get_mut(&id).expect("only live sequences draw");
        prop_assert_eq!(live.purpose, Purpose::Sample);
        prop_assert_eq!(Some(&text), live.names.last());
        prop_assert!(live.drew.0 < self.steps, "{:?} draws twice in a step", id);
        live.drew = (self.steps, number);
        self.seen.draws += 1;
        let token = draw(self.texts.logits[text as usize], live.index);
        live.tokens.push(token);
        live.names.push(self.texts.name(text, token));
        prop_assert!(live.tokens.len() <= live.prompt.len() + live.foreseen, "{:?} draws after its end", id);
        Ok(Answer::Draw { id, token })
    }

    /// The owner learns an answer, unless what it was for has ended.
    fn book(&mut self, answer: Answer) -> Checked {
        let (Answer::Draw { id, .. } | Answer::Scored { id, .. }) = answer;
        let Some(live) = self.live.get_mut(&id) else {
            prop_assert!(self.answers != Answers::AtOnce);
            self.seen.dropped += 1;
            return Ok(());
        };
        let Answer::Draw { token, .. } = answer else {
            return if matches!(answer, Answer::Scored { done: true, .. }) { self.end(id) } else { Ok(()) };
        };
        prop_assert_eq!(Some(&token), live.tokens.get(live.told));
        live.told += 1;
        let drawn = &live.tokens[live.prompt.len()..live.told];
        let ends = drawn.len() == live.most;
        // The end is told with or without the token: the engine knows the token, except where the logits are not finite.
        if (!ends || id.0.is_multiple_of(2)) && self.answers != Answers::LateAndNaive {
            self.scheduler.push(id, token);
        }
        if ends {
            prop_assert_eq!(drawn, &expected(&live.prompt, live.index, live.most));
            self.end(id)?;
        }
        Ok(())
    }

    /// Scores come in order, each once.
    fn check_scores(&mut self, id: RequestId, logits: usize, rows: usize, from: usize, done: bool) -> Checked {
        let texts: Vec<u32> = (logits..logits + rows).map(|row| self.text_of(row)).collect();
        let live = self.live.get_mut(&id).expect("only live sequences are scored");
        prop_assert!(matches!(live.purpose, Purpose::Score(_)));
        if rows > 0 {
            prop_assert_eq!(from, live.next, "{:?} is not scored in order", id);
            prop_assert_eq!(&texts, &live.names[from - 1..from - 1 + rows]);
        }
        live.next += rows;
        self.seen.scored += rows as u64;
        prop_assert_eq!(done, live.next == live.prompt.len());
        Ok(())
    }

    fn end(&mut self, id: RequestId) -> Checked {
        prop_assert!(self.scheduler.remove(id));
        prop_assert!(!self.scheduler.remove(id), "what is gone cannot be taken out");
        if let Some(live) = self.live.remove(&id) {
            self.finished.push((id, live.tokens[..live.told].to_vec()));
        }
        self.audit()
    }

    fn doing(&self, id: RequestId) -> Doing {
        let live = &self.live[&id];
        let runs = |id: RequestId| self.scheduler.tables().any(|(other, table)| other == id && !table.is_empty());
        let fresh = |l: &Live| l.purpose == Purpose::Sample && l.tokens.len() == l.prompt.len();
        let leads = |(other, l): (&RequestId, &Live)| *other != id && l.prompt == live.prompt && fresh(l) && runs(*other);
        match runs(id) {
            true if live.tokens.len() == live.prompt.len() => Doing::Prefilling,
            true => Doing::Drawing,
            false if fresh(live) && self.live.iter().any(leads) => Doing::Following,
            false => Doing::Waiting,
        }
    }

    /// Takes out a sequence that is at `doing`, if there is one, else any.
    fn cancel(&mut self, doing: Doing, which: usize) -> Checked {
        let all: Vec<RequestId> = self.live.keys().copied().collect();
        let at: Vec<RequestId> = all.iter().copied().filter(|&id| self.doing(id) == doing).collect();
        let choice = if at.is_empty() { all } else { at };
        if choice.is_empty() {
            return Ok(());
        }
        let id = choice[which % choice.len()];
        self.seen.cancels[self.doing(id) as usize] += 1;
        self.end(id)
    }

    /// Runs until everything has ended.
    fn drain(&mut self) -> Checked {
        let most = self.steps + 6 * self.seen.wanted + 10;
        while !self.live.is_empty() {
            prop_assert!(self.steps < most, "{} sequences do not come to their end", self.live.len());
            self.step()?;
        }
        prop_assert!(self.scheduler.is_idle() && self.scheduler.running() == 0 && self.scheduler.waiting() == 0);
        prop_assert_eq!((self.scheduler.blocks().available(), self.scheduler.blocks().used()), (self.scheduler.blocks().total(), 0));
        Ok(())
    }

    fn step_until(&mut self, mut there: impl FnMut(&Bench) -> bool) {
        while !there(self) {
            assert!(!self.live.is_empty(), "everything has ended before");
            self.step().unwrap();
        }
    }

    fn counters(&self) -> Counters {
        self.scheduler.counters
    }

    /// Prompt and drawn tokens.
    fn tokens(&self, id: RequestId) -> &[u32] {
        &self.finished.iter().find(|(other, _)| *other == id).expect("it has come to its end").1
    }
}

/// The first `len` tokens of text `base`. The texts share beginnings of different lengths.
fn text(base: usize, len: usize) -> Arc<[u32]> {
    let differs = [usize::MAX, 5, 16, 40][base];
    (0..len).map(|i| (mix(if i < differs { 0 } else { base as u64 }, i as u32) >> 40) as u32 % ALPHABET).collect()
}

#[derive(Clone, Debug)]
enum Action {
    Submit {
        base: usize,
        len: usize,
        samples: u32,
        most: usize,
    },
    /// Another prompt from a finished sample, as the next turn of a conversation.
    Continue {
        which: usize,
        more: usize,
        samples: u32,
        most: usize,
    },
    Score {
        base: usize,
        len: usize,
        from: usize,
    },
    Steps(usize),
    Cancel {
        doing: Doing,
        which: usize,
    },
}

#[derive(Clone, Debug)]
struct Case {
    /// Most tokens of a sequence that are ever computed.
    longest: usize,
    batch_tokens: usize,
    sequences: usize,
    /// Blocks beyond the bare minimum, those of one longest sequence.
    spare_blocks: usize,
    caching: bool,
    actions: Vec<Action>,
}

fn cases() -> impl Strategy<Value = Case> {
    let len = || prop_oneof![prop::sample::select(vec![1usize, 2, 15, 16, 17, 31, 32, 33, 47, 48, 64, 65]), 1..70usize];
    let doing = prop::sample::select(vec![Doing::Waiting, Doing::Following, Doing::Prefilling, Doing::Drawing]);
    let action = prop_oneof![
        5 => (0..4usize, len(), 1..6u32, 1..30usize)
            .prop_map(|(base, len, samples, most)| Action::Submit { base, len, samples, most }),
        1 => (any::<usize>(), 1..20usize, 1..4u32, 1..30usize)
            .prop_map(|(which, more, samples, most)| Action::Continue { which, more, samples, most }),
        1 => (0..4usize, len(), any::<usize>()).prop_map(|(base, len, from)| Action::Score { base, len, from }),
        5 => prop_oneof![1..4usize, 1..12usize].prop_map(Action::Steps),
        2 => (doing, any::<usize>()).prop_map(|(doing, which)| Action::Cancel { doing, which }),
    ];
    let spare = prop_oneof![3 => 0..3usize, 2 => 3..12usize, 1 => 12..100usize];
    let batch_tokens = prop_oneof![1..=12usize, 1..=64usize];
    (4..100usize, batch_tokens, 1..=8usize, spare, any::<bool>(), prop::collection::vec(action, 1..25)).prop_map(
        |(longest, batch_tokens, sequences, spare_blocks, caching, actions)| Case {
            longest,
            batch_tokens,
            sequences,
            spare_blocks,
            caching,
            actions,
        },
    )
}

fn run(case: &Case, answers: Answers) -> Result<Bench, TestCaseError> {
    let blocks = case.longest.div_ceil(BLOCK_TOKENS) + case.spare_blocks;
    let mut bench = Bench::with(answers, case.batch_tokens, case.sequences, blocks, case.caching);
    for action in &case.actions {
        match *action {
            Action::Submit { base, len, samples, most } => {
                let len = len.min(case.longest);
                bench.submit(&text(base, len), samples, most.min(case.longest + 1 - len));
            }
            Action::Continue { which, more, samples, most } => {
                if bench.finished.is_empty() {
                    continue;
                }
                let (_, tokens) = &bench.finished[which % bench.finished.len()];
                let tokens: Arc<[u32]> = tokens.iter().chain(&*text(0, more)).copied().take(case.longest).collect();
                let most = most.min(case.longest + 1 - tokens.len());
                bench.submit(&tokens, samples, most);
            }
            Action::Score { base, len, from } => {
                let len = len.clamp(2, case.longest);
                bench.score(&text(base, len), 1 + from % (len - 1));
            }
            Action::Steps(n) => {
                for _ in 0..n {
                    bench.step()?;
                }
            }
            Action::Cancel { doing, which } => bench.cancel(doing, which)?,
        }
        bench.audit()?;
    }
    bench.drain()?;
    check_counters(&bench)?;
    Ok(bench)
}

/// Every row is counted, as what it was.
fn check_counters(bench: &Bench) -> Checked {
    let c = bench.counters();
    let after_prompts = bench.rows.checked_sub(c.prompt_computed + c.recomputed);
    let most_after = bench.seen.draws;
    prop_assert!(after_prompts.is_some_and(|n| n <= most_after), "{:?} of {} rows and {} draws", c, bench.rows, most_after);
    if bench.seen.cancels == [0; 4] {
        prop_assert_eq!(c.prompt_computed + c.prompt_cached, bench.seen.prompt_tokens, "of {:?}", c);
    }
    prop_assert!(c.preemptions > 0 || c.recomputed == 0);
    Ok(())
}

/// Runs random schedules; what happened in them must include everything that can go wrong.
fn run_random_schedules(count: u32, answers: Answers) {
    #[derive(Debug, Default)]
    struct Total {
        cases: u64,
        /// Cases with a preemption, a fork, a cache hit.
        preempted: u64,
        forked: u64,
        cached: u64,
        copied: u64,
        scored: u64,
        cancels: [u64; 4],
        /// Cases with a row of a promised token, and with an answer for nobody.
        promised: u64,
        dropped: u64,
        steps: u64,
        rows: u64,
        recomputed: u64,
    }
    let total = RefCell::new(Total::default());
    let config = Config { cases: count, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let result = TestRunner::new(config).run(&cases(), |case| {
        let bench = run(&case, answers)?;
        let (c, t) = (bench.counters(), &mut *total.borrow_mut());
        t.cases += 1;
        t.preempted += u64::from(c.preemptions > 0);
        t.forked += u64::from(bench.seen.forks > 0);
        t.cached += u64::from(case.caching && c.prompt_cached > 0);
        t.copied += u64::from(bench.seen.copies > 0);
        t.scored += u64::from(bench.seen.scored > 0);
        t.cancels.iter_mut().zip(bench.seen.cancels).for_each(|(sum, n)| *sum += n);
        t.promised += u64::from(bench.seen.promised > 0);
        t.dropped += u64::from(bench.seen.dropped > 0);
        t.steps += bench.steps;
        t.rows += bench.rows;
        t.recomputed += c.recomputed;
        Ok(())
    });
    let t = total.into_inner();
    println!("{t:?}");
    if let Err(e) = result {
        panic!("{e}");
    }
    let share = |n: u64, of: u64| n * of >= t.cases;
    assert!(share(t.preempted, 5) && share(t.forked, 3) && share(t.cached, 4) && share(t.copied, 3) && share(t.scored, 3), "{t:?}");
    assert!(t.cancels.iter().all(|&n| share(n, 40)), "{t:?}");
    assert!(answers == Answers::AtOnce || share(t.promised, 3) && share(t.dropped, 3), "{t:?}");
}

/// 10,000, or what PROPTEST_CASES says, but never so few that something rare may not happen.
fn schedules() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000).max(1000)
}

#[test]
fn random_schedules_show_every_sequence_its_own_text() {
    run_random_schedules(schedules(), Answers::AtOnce);
}

#[test]
fn random_schedules_show_every_sequence_its_own_text_when_answers_come_late() {
    run_random_schedules(schedules(), Answers::Late);
}

/// The twin takes a placeholder for the token that is not known yet. The cache then finds it, and takes one sample's text for another's.
#[test]
fn the_twin_that_takes_promises_for_tokens_shows_a_sequence_the_text_of_another() {
    let config = Config { cases: 2000, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let result = TestRunner::new(config).run(&cases(), |case| run(&case, Answers::LateAndNaive).map(drop));
    let problem = result.expect_err("some schedule shows it").to_string();
    assert!(problem.contains("sees another text"), "{problem}");
}

#[test]
fn samples_of_one_prompt_compute_it_once() {
    for caching in [false, true] {
        for len in 1..=70 {
            for n in [1, 2, 5, 8] {
                let mut bench = Bench::new(24, 8, 100, caching);
                bench.submit(&text(1, len), n, 6);
                bench.drain().unwrap();
                let (c, len, n) = (bench.counters(), len as u64, u64::from(n));
                assert_eq!((c.prompt_computed, c.prompt_cached), (len, (n - 1) * len), "{len} tokens, {n} samples");
                assert_eq!((c.recomputed, bench.seen.forks), (0, n - 1));
            }
        }
    }
}

#[test]
fn samples_wait_for_the_first_prefill_of_their_prompt() {
    let mut bench = Bench::new(8, 8, 100, true);
    let (prompt, other) = (text(1, 20), text(2, 3));
    let first = bench.submit(&prompt, 1, 3)[0];
    bench.step().unwrap();
    let late = bench.submit(&prompt, 1, 3)[0];
    let unrelated = bench.submit(&other, 1, 3)[0];
    bench.step().unwrap();
    assert_eq!(bench.last.parts.iter().map(|p| (p.id, p.rows)).collect::<Vec<_>>(), [(first, 8)]);
    assert_eq!((bench.doing(late), bench.doing(unrelated)), (Doing::Following, Doing::Waiting));
    bench.step().unwrap();
    // The last chunk leaves room for the unrelated prompt; the late sample draws from the first one's logits.
    assert_eq!(bench.last.parts.iter().map(|p| (p.id, p.rows)).collect::<Vec<_>>(), [(first, 4), (unrelated, 3)]);
    assert_eq!((bench.doing(late), bench.live[&late].tokens.len()), (Doing::Drawing, 21));
    bench.drain().unwrap();
    assert_eq!(bench.counters().prompt_computed, 23);
}

#[test]
fn late_samples_compute_one_token_with_the_cache_and_all_without() {
    for len in 1..=70 {
        for (caching, computed) in [(true, 1), (false, len as u64)] {
            let mut bench = Bench::new(24, 8, 100, caching);
            bench.submit(&text(1, len), 1, 4);
            bench.drain().unwrap();
            let first = bench.counters();
            bench.submit(&text(1, len), 1, 4);
            bench.drain().unwrap();
            let both = bench.counters();
            assert_eq!(both.prompt_computed - first.prompt_computed, computed, "{len} tokens, caching {caching}");
            assert_eq!(both.prompt_cached, len as u64 - computed);
        }
    }
}

#[test]
fn followers_of_a_leader_that_ends_at_its_first_token_fork_all_the_same() {
    let mut bench = Bench::new(8, 8, 100, false);
    let prompt = text(1, 20);
    bench.submit(&prompt, 1, 1);
    let followers: Vec<_> = (1..5).map(|index| bench.add(&prompt, Purpose::Sample, index, 5)).collect();
    bench.drain().unwrap();
    assert_eq!((bench.counters().prompt_computed, bench.seen.forks), (20, 4));
    assert!(followers.iter().all(|&id| bench.tokens(id).len() == 25));
}

#[test]
fn followers_of_a_leader_that_is_cancelled_go_on_without_it() {
    for caching in [false, true] {
        let mut bench = Bench::new(8, 8, 100, caching);
        let ids = bench.submit(&text(1, 40), 4, 5);
        (0..3).for_each(|_| bench.step().unwrap());
        assert_eq!(bench.doing(ids[1]), Doing::Following);
        bench.cancel(Doing::Prefilling, 0).unwrap();
        assert!(!bench.live.contains_key(&ids[0]) && bench.doing(ids[1]) == Doing::Waiting);
        bench.drain().unwrap();
        assert_eq!(bench.seen.forks, 2, "one of the three leads, and the others fork from it");
        // 24 tokens had been computed; whole blocks of them are found again.
        assert_eq!(bench.counters().prompt_computed, 24 + if caching { 40 - 16 } else { 40 });
    }
}

#[test]
fn followers_of_a_leader_that_is_preempted_wait_for_it_again() {
    let mut bench = Bench::new(4, 8, 6, false);
    bench.submit(&text(1, 30), 1, 40);
    let ids = bench.submit(&text(2, 60), 2, 5);
    bench.step_until(|b| b.doing(ids[1]) == Doing::Following);
    bench.step_until(|b| b.counters().preemptions > 0);
    assert!(ids.iter().all(|&id| bench.doing(id) == Doing::Waiting), "the leader has lost its blocks, and there is nobody to follow");
    bench.drain().unwrap();
    assert_eq!((bench.counters().prompt_computed, bench.seen.forks), (90, 1));
}

#[test]
fn preempted_samples_draw_the_same_tokens() {
    let mut drawn = Vec::new();
    for (blocks, answers) in [(7, Answers::AtOnce), (100, Answers::AtOnce), (7, Answers::Late), (100, Answers::Late)] {
        for caching in [false, true] {
            let mut bench = Bench::with(answers, 16, 8, blocks, caching);
            let ids: Vec<_> = (0..4).flat_map(|base| bench.submit(&text(base, 30 + base), 3, 60)).collect();
            bench.drain().unwrap();
            assert_eq!(bench.counters().preemptions > 0, blocks == 7);
            assert_eq!(bench.counters().recomputed > 0, blocks == 7);
            drawn.push(ids.iter().map(|&id| bench.tokens(id).to_vec()).collect::<Vec<_>>());
        }
    }
    assert!(drawn.windows(2).all(|pair| pair[0] == pair[1]));
}

/// A promised token that completes a block: the block can be found once the token is known, as if it had been known at once.
#[test]
fn the_next_turn_finds_as_much_when_answers_come_late() {
    for len in 1..40 {
        for most in [1, 2, 3, 16, 17] {
            let cached = [Answers::AtOnce, Answers::Late].map(|answers| {
                let mut bench = Bench::with(answers, 24, 8, 100, true);
                bench.submit(&text(0, 1), 1, 1);
                let id = bench.submit(&text(1, len), 1, most)[0];
                bench.drain().unwrap();
                let next: Arc<[u32]> = bench.tokens(id).iter().chain(&*text(2, 20)).copied().collect();
                let before = bench.counters().prompt_cached;
                bench.submit(&next, 1, 3);
                bench.drain().unwrap();
                bench.counters().prompt_cached - before
            });
            assert_eq!(cached[0], cached[1], "{len} tokens, {most} drawn");
        }
    }
}

/// Found by the random schedules: a preempted sequence had its values told again from the first one on.
#[test]
fn every_score_is_told_once_also_after_a_preemption() {
    for caching in [false, true] {
        let mut bench = Bench::new(9, 2, 6, caching);
        bench.submit(&text(0, 30), 1, 50);
        let id = bench.score(&text(1, 40), 1);
        bench.step_until(|b| b.counters().preemptions > 0);
        assert!(bench.live[&id].next > 1, "some values had been told");
        bench.drain().unwrap();
        assert_eq!(bench.seen.scored, 39);
    }
}

/// Found by review: a long prefill gave its own blocks away while younger sequences had rows.
#[test]
fn a_sequence_never_loses_its_blocks_to_a_younger_one() {
    let mut bench = Bench::new(16, 8, 8, false);
    bench.submit(&text(1, 20), 4, 30);
    let long = bench.submit(&text(2, 80), 1, 2)[0];
    let (mut rows, mut waited) = (0, false);
    while bench.live.contains_key(&long) {
        bench.step().unwrap();
        let own: usize = bench.last.parts.iter().filter(|p| p.id == long).map(|p| p.rows).sum();
        waited |= rows > 0 && own == 0;
        rows += own;
    }
    assert!(waited, "it had to wait for a block");
    assert_eq!(rows, 81, "and computed nothing twice");
    bench.drain().unwrap();
}

#[test]
fn a_long_prefill_holds_up_nobody_who_draws() {
    let mut bench = Bench::new(8, 8, 100, true);
    // The first prompt's followers come to run after the long prompt, and still go first.
    let short = bench.submit(&text(1, 12), 3, 20);
    let long = bench.submit(&text(2, 70), 1, 2)[0];
    bench.step_until(|b| b.doing(long) == Doing::Prefilling);
    while bench.doing(long) == Doing::Prefilling {
        bench.step().unwrap();
        let rows: Vec<_> = short.iter().map(|id| bench.last.parts.iter().find(|p| p.id == *id).map(|p| p.rows)).collect();
        assert_eq!(rows, [Some(1); 3]);
    }
    bench.drain().unwrap();
}

#[test]
fn sequences_start_in_the_order_in_which_they_came_and_preempted_ones_before_them() {
    let mut bench = Bench::new(32, 2, 6, false);
    let ids: Vec<_> = (0..4).flat_map(|base| bench.submit(&text(base, 20 + base), 1, 50)).collect();
    bench.step_until(|b| b.counters().preemptions > 0);
    let lost = ids.iter().position(|&id| bench.doing(id) == Doing::Waiting).unwrap();
    assert_eq!(lost, 1, "the younger of the two loses its blocks");
    bench.drain().unwrap();
    let order = |bench: &Bench| bench.finished.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(order(&bench), ids);

    // Samples of one prompt, too, where only some of them can fork.
    let mut bench = Bench::new(32, 2, 20, true);
    let ids = bench.submit(&text(1, 20), 6, 5);
    bench.drain().unwrap();
    assert_eq!(order(&bench), ids);
}

/// Found by the random schedules: what a preempted prompt found in the cache when it came back was not counted at all.
#[test]
fn prompt_tokens_are_counted_once_as_computed_or_as_found() {
    let mut bench = Bench::new(4, 4, 5, true);
    bench.submit(&text(0, 1), 4, 25);
    bench.submit(&text(2, 15), 4, 20);
    bench.submit(&text(0, 17), 1, 1);
    bench.drain().unwrap();
    let c = bench.counters();
    assert!(c.preemptions > 0);
    assert_eq!(c.prompt_computed + c.prompt_cached, 4 + 4 * 15 + 17);
}

/// Publishes `tokens` in blocks of one holder, who then lets them go, unless `keep`.
fn put(blocks: &mut Blocks, tokens: &[u32], keep: bool) -> Vec<u32> {
    let mut prefix = blocks.root();
    let mut held = Vec::new();
    for chunk in tokens.chunks(BLOCK_TOKENS) {
        let block = blocks.allocate().unwrap();
        prefix = blocks.publish(block, prefix, chunk);
        held.push(block);
    }
    if !keep {
        blocks.release(&held);
    }
    held
}

#[test]
fn no_block_is_found_under_other_weights() {
    let mut blocks = Blocks::new(8, true);
    let tokens = text(0, 40);
    let kept = put(&mut blocks, &tokens, false);
    let found = blocks.find(&tokens, 40);
    assert_eq!((found.blocks.clone(), found.tokens), (kept.clone(), 40));
    blocks.release(&found.blocks);
    let other = text(1, 20);
    let held = put(&mut blocks, &other, true);
    let old_root = blocks.root();

    blocks.new_version();
    blocks.audit(&[&held]).unwrap();
    assert_eq!((blocks.available(), blocks.kept(), blocks.findable().count()), (6, 0, 0));
    for tokens in [&tokens, &other] {
        assert_eq!(blocks.find(tokens, 40).blocks, Vec::<u32>::new());
    }
    // Who runs across the change publishes under the old weights, where nobody looks.
    blocks.publish(held[0], old_root, &other[..BLOCK_TOKENS]);
    assert_eq!(blocks.find(&other, 20).blocks, Vec::<u32>::new());
    // Under the new weights the same tokens are found again, in other blocks.
    let new = put(&mut blocks, &other, false);
    assert!(new.iter().all(|b| !held.contains(b)));
    let found = blocks.find(&other, 20);
    assert_eq!((&found.blocks, found.tokens), (&new, 20));
    blocks.audit(&[&held, &found.blocks]).unwrap();
    blocks.release(&held);
    blocks.release(&found.blocks);
    blocks.audit(&[]).unwrap();
    assert_eq!(blocks.available(), 8);
}

/// The twin: blocks by nothing but a hash of everything up to their end.
#[derive(Default)]
struct ByHashAlone(HashMap<u64, u32>);

impl ByHashAlone {
    /// Weak on purpose: the same for tokens in another order.
    fn hashes(tokens: &[u32]) -> impl Iterator<Item = u64> {
        tokens.chunks(BLOCK_TOKENS).scan(0, |hash, chunk| {
            *hash = *hash * 1000 + chunk.iter().map(|&t| u64::from(t)).sum::<u64>();
            Some(*hash)
        })
    }

    fn put(&mut self, tokens: &[u32], blocks: &[u32]) {
        self.0.extend(Self::hashes(tokens).zip(blocks.iter().copied()));
    }

    fn find(&self, tokens: &[u32]) -> Vec<u32> {
        Self::hashes(tokens).map_while(|hash| self.0.get(&hash).copied()).collect()
    }
}

#[test]
fn blocks_are_found_by_their_tokens_and_not_by_a_hash() {
    let (mut blocks, mut twin) = (Blocks::new(8, true), ByHashAlone::default());
    let tokens: Vec<u32> = (0..32).collect();
    let kept = put(&mut blocks, &tokens, false);
    twin.put(&tokens, &kept);
    let mut swapped = tokens.clone();
    swapped.swap(3, 9);
    assert_eq!(twin.find(&tokens), kept);
    assert_eq!(twin.find(&swapped), kept, "the twin takes the keys and values of other tokens");
    assert_eq!(blocks.find(&swapped, 32).tokens, 0);
    // The second blocks hold the same tokens after other ones: they are not the same.
    let own = put(&mut blocks, &swapped, false);
    let found = blocks.find(&swapped, 32).blocks;
    assert_eq!(found, own);
    assert!(own.iter().all(|b| !kept.contains(b)));
    assert_eq!(blocks.find(&tokens, 32).blocks, kept);
}
