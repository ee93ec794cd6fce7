//! The training side of a model: the forward pass over packed sequences, and the same list backwards.
//!
//! [`Training::forward`] makes the engine's calls on the engine's operations (one segment a sequence, blocks in order), so its
//! log-probabilities are the sampler's to the bit. What the way back needs is kept per layer, or per layer only its input
//! ([`Recompute::Layer`]); [`Training::backward`] then walks the list in reverse and adds to the gradients. Every number depends on its own
//! sequence, and every sum over rows goes on from what the gradients hold: a batch may be cut into micro-batches between sequences, and kept
//! or recomputed, and no bit changes.

mod buffers;
mod grads;

use buffers::{Buffers, Kept};
use grads::Places;

use super::config::ModelConfig;
use super::error::ModelError;
use super::forward::{Attend, FeedForward, Step, attend, feed_forward, rope_frequencies};
use super::params::Params;
use super::places::places;
use super::tensor_view::Dtype;
use super::weights::{TensorSource, Weights, heads};
pub use crate::ops::backward::Slope;
use crate::ops::backward::{Scored, Slab};
use crate::ops::handover::{DeviceId, Exported};
use crate::ops::{BLOCK_TOKENS, Batch, Heads, NonFinite, Segment, TrainOps};

/// Sequences that run together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Packed {
    /// In the order in which scores come back and gradients add up.
    pub sequences: Vec<PackedSequence>,
}

/// One sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedSequence {
    /// All tokens, prompt included.
    pub token_ids: Vec<u32>,
    /// First scored position, at least 1; scored are `from..token_ids.len()`.
    pub from: usize,
}

/// What is kept between forward and backward. The bits are the same either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// All activations.
    #[default]
    None,
    /// The input of each layer; the rest is computed again.
    Layer,
}

/// A scored token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Log-probability at the temperature: the sampler's bits.
    pub logprob: f32,
    /// Entropy of the distribution that the token was drawn from, in nats, at the temperature.
    pub entropy: f32,
}

/// Why a training step cannot run.
#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    /// No weights yet.
    #[error("there are no weights to run; set them before the first forward pass")]
    NoWeights,
    /// A sequence that cannot be run.
    #[error("sequence {sequence} of the batch {problem}")]
    Sequence {
        /// Index in the batch.
        sequence: usize,
        /// What is wrong and what to do; continues the sentence.
        problem: String,
    },
    /// The logits of a position hold a NaN or an infinity.
    #[error(
        "the logits for position {position} of sequence {sequence} are not finite; go back to an earlier checkpoint, and lower the learning rate if it happens again"
    )]
    NonFinite {
        /// Index in the batch.
        sequence: usize,
        /// Position of the token that could not be scored.
        position: usize,
    },
    /// The device.
    #[error("{0}")]
    Device(String),
    /// A backward pass that no forward pass belongs to.
    #[error("there is no forward pass to go back through; each backward pass needs one of its own")]
    NoForward,
    /// Not one slope for each scored token.
    #[error("{given} slopes were given for {scored} scored tokens; give one for each, in the order of the scores")]
    Slopes {
        /// Number given.
        given: usize,
        /// Number of scored tokens.
        scored: usize,
    },
    /// Gradients of another model.
    #[error("the gradients are not those of this model: {0}; make them with Params::zeros")]
    Gradients(String),
}

/// A model that can be trained: packed weights and the buffers of both passes.
pub struct Training<O: TrainOps> {
    ops: O,
    config: ModelConfig,
    heads: Heads,
    frequencies: Vec<f32>,
    recompute: Recompute,
    weights: Option<Weights<O>>,
    places: Places,
    buffers: Buffers<O>,
    run: Run,
}

/// The batch that ran last.
#[derive(Default)]
struct Run {
    batch: Batch,
    /// Rows of each segment within `batch.logit_rows`, and the tokens they predict: the scored ones, and up to the next groups of rows the
    /// unscored before and the padding after them.
    scored: Vec<std::ops::Range<usize>>,
    targets: Vec<u32>,
    scores: Vec<Scored>,
    /// Which of them the caller asked for, and where each of those stands: its sequence and position.
    wanted: Vec<usize>,
    places: Vec<(usize, usize)>,
    temperature: f32,
    /// A backward pass may follow.
    open: bool,
}

impl<O: TrainOps> Training<O> {
    /// Nothing is allocated until the first batch.
    pub fn new(ops: O, config: &ModelConfig, recompute: Recompute) -> Self {
        Training::with_frequencies(ops, config, rope_frequencies(&config.rope, config.head_dim), recompute)
    }

    /// The same with other rotary frequencies, `[head_dim / 2]`: for comparisons with references that used others.
    pub fn with_frequencies(ops: O, config: &ModelConfig, frequencies: Vec<f32>, recompute: Recompute) -> Self {
        let buffers = Buffers::new(&ops, config, recompute);
        let places = Places::of(config);
        let (config, heads) = (config.clone(), heads(config));
        Training { ops, config, heads, frequencies, recompute, weights: None, places, buffers, run: Run::default() }
    }

    /// At most so many logits (rows times vocabulary) stand at a time; half a gigabyte of them, if nothing else is said. A batch with more
    /// computes them in chunks, and again on the way back. No bit changes.
    pub fn limit_logits(&mut self, most: usize) {
        self.run.open = false;
        self.buffers.limit_logits(most);
    }

    /// The operations, for the optimizer.
    pub fn ops(&mut self) -> &mut O {
        &mut self.ops
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Packs new weights, in the memory of the old ones where there are some. A backward pass goes through the weights of its forward pass, so
    /// it cannot come after this.
    pub fn set_weights(&mut self, source: &dyn TensorSource) -> Result<(), ModelError> {
        self.run.open = false;
        match &mut self.weights {
            Some(weights) => weights.update(&mut self.ops, source),
            none => {
                *none = Some(Weights::load(&self.ops, &self.config, source, |_, _| {})?);
                Ok(())
            }
        }
    }

    /// Runs on these weights from now on.
    pub fn adopt_weights(&mut self, weights: Weights<O>) {
        self.run.open = false;
        self.weights = Some(weights);
    }

    /// Rounds master parameters into the weights that [`Training::set_weights`] has made. See [`Weights::round`].
    pub fn round_weights<'a>(&mut self, dtype: Dtype, slab: impl Fn(&str) -> Slab<'a, O::Flat>) -> Result<(), TrainingError>
    where
        O::Flat: 'a,
    {
        self.run.open = false;
        let weights = self.weights.as_mut().ok_or(TrainingError::NoWeights)?;
        weights.round(&mut self.ops, dtype, slab);
        self.ops.failure().map_or(Ok(()), |failure| Err(TrainingError::Device(failure)))
    }

    /// The weights, once there are some.
    pub fn weights(&self) -> Option<&Weights<O>> {
        self.weights.as_ref()
    }

    /// The device in whose memory other processes could read the weights, if there is one.
    pub fn handover_device(&self) -> Option<DeviceId> {
        self.ops.handover()?.device_id()
    }

    /// Where they would find them; they must stay as they are until they have been read.
    pub fn export(&self) -> Result<Exported, String> {
        let handover = self.ops.handover().ok_or("the weights are not in a GPU's memory")?;
        let weights = self.weights.as_ref().ok_or("there are no weights")?;
        handover.export(&places(&self.config, weights))
    }

    /// Makes room for batches of so many rows, padding included, of which all may be scored.
    pub fn reserve(&mut self, rows: usize) -> Result<(), TrainingError> {
        self.run.open = false;
        self.buffers.reserve(&self.ops, rows);
        self.ops.failure().map_or(Ok(()), |failure| Err(TrainingError::Device(failure)))
    }

    /// Bytes that [`Training::reserve`] takes for so many rows.
    pub fn activation_bytes(ops: &O, config: &ModelConfig, recompute: Recompute, rows: usize) -> u64 {
        Buffers::bytes(ops, config, recompute, rows)
    }

    /// Runs a batch and scores its tokens at `temperature` (0 reads as 1, as in scoring). The scores come in order: sequence after sequence,
    /// position after position.
    pub fn forward(&mut self, batch: &Packed, temperature: f32) -> Result<Vec<TokenScore>, TrainingError> {
        self.run.open = false;
        let weights = self.weights.as_ref().ok_or(TrainingError::NoWeights)?;
        self.run.pack(batch, &self.config, temperature, self.ops.row_group())?;
        let (ops, run) = (&mut self.ops, &mut self.run);
        let b = &mut self.buffers;
        b.fit(ops, &run.batch);
        b.set_angles(ops, &run.batch.positions, &self.frequencies);

        ops.embed(&weights.embed, &run.batch.tokens, &mut b.x);
        for (i, layer) in weights.layers.iter().enumerate() {
            let step =
                Step { heads: self.heads, eps: self.config.rms_norm_eps, angles: &b.angles, batch: &run.batch, first: i == 0, cached: 0 };
            let kept = match self.recompute {
                Recompute::None => &mut b.kept[i],
                Recompute::Layer => &mut b.kept[0],
            };
            let Kept { qkv, raw, attended, gate_up, x_mid } = kept;
            let buffers = Attend { x: &mut b.x, y: &mut b.y, h: &mut b.h, qkv, attended };
            attend(ops, layer, &step, buffers, &mut b.cache, |ops, x| raw.iter_mut().for_each(|raw| ops.copy(x, raw)));
            ops.copy(&b.x, &mut b.inputs[i]);
            feed_forward(ops, layer, &step, FeedForward { x: &mut b.x, y: &mut b.y, h: &mut b.h, gate_up, act: &mut b.act });
            if self.recompute == Recompute::None {
                ops.copy(&b.x, x_mid);
            }
        }
        ops.add(&mut b.x, &b.y);
        ops.gather_rows(&b.x, &run.batch.logit_rows, &mut b.last);

        let head = weights.head.as_ref().unwrap_or(&weights.embed);
        let mut results: Vec<Result<Scored, NonFinite>> = Vec::new();
        run.scores.clear();
        for rows in b.chunks(0..run.targets.len()) {
            b.chunk(ops, rows.clone(), &weights.norm, self.config.rms_norm_eps);
            ops.linear(&b.normed, head, &mut b.logits);
            ops.score(&b.logits, &run.targets[rows], temperature, &mut results);
            if let Some(failure) = ops.failure() {
                return Err(TrainingError::Device(failure));
            }
            for result in &results {
                match result {
                    Ok(scored) => run.scores.push(*scored),
                    Err(NonFinite) => return Err(run.non_finite()),
                }
            }
        }
        run.open = true;
        Ok(run.wanted.iter().map(|&i| run.scores[i]).map(|s| TokenScore { logprob: s.logprob, entropy: s.entropy }).collect())
    }

    /// Adds the gradients of `sum(slope.logprob * logprob + slope.entropy * entropy)` over the scored tokens of the last forward pass. A tied
    /// head adds to the embedding, sequence by sequence: first the head's part, then the embedding's.
    pub fn backward(&mut self, slopes: &[Slope], gradients: &mut Params<O::Flat>) -> Result<(), TrainingError> {
        let Some(weights) = self.weights.as_ref().filter(|_| self.run.open) else { return Err(TrainingError::NoForward) };
        let (scored, asked) = (self.run.targets.len(), self.run.wanted.len());
        if slopes.len() != asked {
            return Err(TrainingError::Slopes { given: slopes.len(), scored: asked });
        }
        let slopes = &self.run.spread(slopes)[..];
        self.places.check(gradients)?;
        self.run.open = false;
        let (ops, run, b, places) = (&mut self.ops, &self.run, &mut self.buffers, &self.places);
        let (eps, heads) = (self.config.rms_norm_eps, self.heads);
        let head = weights.head.as_ref().unwrap_or(&weights.embed);
        let vocab = self.config.vocab_size;
        let grads = &mut gradients.entries;

        // Head and last norm. One chunk of logits still stands from the forward pass.
        let whole = b.chunks(0..scored).count() <= 1;
        ops.clear(&mut b.dx);
        for rows in b.chunks(0..scored) {
            if !whole {
                b.chunk(ops, rows.clone(), &weights.norm, eps);
                ops.linear(&b.normed, head, &mut b.logits);
            }
            run.score_backward(ops, &mut b.logits, rows.clone(), slopes);
            if let Some(at) = places.head {
                ops.linear_dw(&b.logits, 0..rows.len(), 0..vocab, &b.normed, 0, &mut grads[at].values);
            }
            ops.linear_dx(&b.logits, head, &mut b.dnormed);
            ops.clear(&mut b.dpart);
            ops.rmsnorm_backward(&b.part, &weights.norm, eps, &b.dnormed, &mut b.dpart, &mut grads[places.norm].values);
            ops.scatter_rows(&b.dpart, &run.batch.logit_rows[rows], &mut b.dx);
        }

        for (i, (layer, at)) in weights.layers.iter().zip(&places.layers).enumerate().rev() {
            let kept = match self.recompute {
                Recompute::None => &mut b.kept[i],
                Recompute::Layer => {
                    let Kept { qkv, raw, attended, gate_up, x_mid } = &mut b.kept[0];
                    let step = Step { heads, eps, angles: &b.angles, batch: &run.batch, first: true, cached: 0 };
                    ops.copy(&b.inputs[i], x_mid);
                    let buffers = Attend { x: x_mid, y: &mut b.y, h: &mut b.h, qkv, attended };
                    attend(ops, layer, &step, buffers, &mut b.cache, |ops, x| raw.iter_mut().for_each(|raw| ops.copy(x, raw)));
                    ops.add_rmsnorm(x_mid, &b.y, &layer.mlp_norm, eps, &mut b.h);
                    ops.linear(&b.h, &layer.gate_up, gate_up);
                    &mut b.kept[0]
                }
            };
            let rows = 0..run.batch.rows();
            let wide = self.config.intermediate_size;

            // Feed-forward: x = x_mid + down(swiglu(gate_up(norm(x_mid)))).
            ops.linear_dx(&b.dx, &layer.down, &mut b.act);
            ops.swiglu_backward(&mut kept.gate_up, &mut b.act);
            ops.linear_dw(&b.dx, rows.clone(), 0..self.config.hidden_size, &b.act, 0, &mut grads[at.down].values);
            ops.rmsnorm(&kept.x_mid, &layer.mlp_norm, eps, &mut b.h);
            ops.linear_dw(&kept.gate_up, rows.clone(), 0..wide, &b.h, 0, &mut grads[at.gate].values);
            ops.linear_dw(&kept.gate_up, rows.clone(), wide..2 * wide, &b.h, 0, &mut grads[at.up].values);
            ops.linear_dx(&kept.gate_up, &layer.gate_up, &mut b.dh);
            ops.rmsnorm_backward(&kept.x_mid, &layer.mlp_norm, eps, &b.dh, &mut b.dx, &mut grads[at.mlp_norm].values);

            // Attention: x_mid = x + out(attention(rope(norms(qkv(norm(x)))))).
            ops.linear_dw(&b.dx, rows.clone(), 0..self.config.hidden_size, &kept.attended, 0, &mut grads[at.out].values);
            ops.linear_dx(&b.dx, &layer.out, &mut b.dattended);
            ops.attention_backward(&kept.qkv, heads, &run.batch, &kept.attended, &b.dattended, &mut b.dqkv);
            ops.rope_backward(&mut b.dqkv, heads, &b.angles);
            if let (Some((q, k)), Some(raw), Some((dq, dk))) = (&layer.qk_norm, &kept.raw, at.qk_norm(grads)) {
                ops.qk_norm_backward(raw, heads, q, k, eps, &mut b.dqkv, dq, dk);
            }
            ops.rmsnorm(&b.inputs[i], &layer.attention_norm, eps, &mut b.h);
            for (part, weight, bias) in at.projections(heads) {
                if let Some(bias) = bias {
                    ops.bias_backward(&b.dqkv, part.clone(), &mut grads[bias].values);
                }
                ops.linear_dw(&b.dqkv, rows.clone(), part, &b.h, 0, &mut grads[weight].values);
            }
            ops.linear_dx(&b.dqkv, &layer.qkv, &mut b.dh);
            ops.rmsnorm_backward(&b.inputs[i], &layer.attention_norm, eps, &b.dh, &mut b.dx, &mut grads[at.attention_norm].values);
        }

        let embed = &mut grads[places.embed].values;
        for (segment, scored) in run.batch.segments.iter().zip(&run.scored) {
            if places.head.is_none() && whole {
                ops.linear_dw(&b.logits, scored.clone(), 0..vocab, &b.normed, scored.start, embed);
            } else if places.head.is_none() {
                for rows in b.chunks(scored.clone()) {
                    b.chunk(ops, rows.clone(), &weights.norm, eps);
                    ops.linear(&b.normed, head, &mut b.logits);
                    run.score_backward(ops, &mut b.logits, rows.clone(), slopes);
                    ops.linear_dw(&b.logits, 0..rows.len(), 0..vocab, &b.normed, 0, embed);
                }
            }
            ops.embed_backward(&run.batch.tokens[segment.row..][..segment.rows], &b.dx, segment.row, embed);
        }
        ops.failure().map_or(Ok(()), |failure| Err(TrainingError::Device(failure)))
    }
}

impl Run {
    /// Lays the sequences out: rows one after the other, each sequence in blocks of its own. The last token of a sequence predicts nothing and
    /// has no row. Where the backend sums rows in groups, a sequence ends with further tokens up to the next group, and what is scored is
    /// widened to whole groups: nothing of a sequence looks at what comes behind it, and rows without a slope add nothing to a gradient.
    fn pack(&mut self, packed: &Packed, config: &ModelConfig, temperature: f32, group: usize) -> Result<(), TrainingError> {
        self.batch.clear();
        self.scored.clear();
        self.targets.clear();
        self.wanted.clear();
        self.places.clear();
        self.temperature = temperature;
        let batch = &mut self.batch;
        for (sequence, s) in packed.sequences.iter().enumerate() {
            let n = s.token_ids.len();
            let fail = |problem: String| Err(TrainingError::Sequence { sequence, problem });
            if s.from == 0 || s.from > n {
                return fail(format!("has {n} tokens and is scored from position {}; give a position from 1 to its length", s.from));
            }
            if n > config.context_length {
                return fail(format!("has {n} tokens, more than the model's context of {}; leave it out or cut it", config.context_length));
            }
            if let Some(id) = s.token_ids.iter().find(|&&id| id as usize >= config.vocab_size) {
                return fail(format!("holds token id {id}, and the vocabulary has {}; check the tokenizer", config.vocab_size));
            }
            let (row, rows, table) = (batch.rows(), (n - 1).next_multiple_of(group), batch.tables.len());
            let token = |position: usize| s.token_ids.get(position).copied().unwrap_or_default();
            batch.segments.push(Segment { row, rows, start: 0, table });
            batch.tokens.extend((0..rows).map(|t| if t < n - 1 { token(t) } else { 0 }));
            batch.positions.extend(0..rows as u32);
            batch.slots.extend((0..rows).map(|t| (table * BLOCK_TOKENS + t) as u32));
            batch.tables.extend((table..table + rows.div_ceil(BLOCK_TOKENS)).map(|block| block as u32));
            let (first, from) = (self.targets.len(), (s.from - 1) / group * group);
            let to = if s.from < n { rows } else { from };
            batch.logit_rows.extend((from..to).map(|t| (row + t) as u32));
            self.targets.extend((from..to).map(|t| token(t + 1)));
            self.places.extend((from..to).map(|t| (sequence, t + 1)));
            self.wanted.extend((s.from - 1..n - 1).map(|t| first + t - from));
            self.scored.push(first..self.targets.len());
        }
        Ok(())
    }

    /// The slopes of all rows whose logits stand, from those of the scored tokens.
    fn spread(&self, slopes: &[Slope]) -> Vec<Slope> {
        let mut all = vec![Slope::default(); self.targets.len()];
        self.wanted.iter().zip(slopes).for_each(|(&i, slope)| all[i] = *slope);
        all
    }

    fn score_backward<O: TrainOps>(&self, ops: &mut O, logits: &mut O::Tensor, rows: std::ops::Range<usize>, slopes: &[Slope]) {
        ops.score_backward(logits, &self.targets[rows.clone()], self.temperature, &self.scores[rows.clone()], &slopes[rows]);
    }

    /// Where the first token stands that has no score.
    fn non_finite(&self) -> TrainingError {
        let (sequence, position) = self.places.get(self.scores.len()).copied().unwrap_or_default();
        TrainingError::NonFinite { sequence, position }
    }
}
