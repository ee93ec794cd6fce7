//! One sample's way from drawn tokens to events: stop conditions, text, and the finished record.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;

use super::api::{Event, FinishReason, Sample, SampleRequest, StopMatch, VersionSpan};
use super::detokenize::TextStream;
use crate::model::tokenizer::Tokenizer;
use crate::ops::{Draw, Drawn, Filters};

/// A sample that the engine works on.
pub(super) struct Output {
    request: SampleRequest,
    events: UnboundedSender<Event>,
    sample: Sample,
    /// Draws that were asked for and have not come.
    in_flight: usize,
    text: Option<TextStream>,
    /// Ids that end the sample.
    stops: Arc<[u32]>,
    /// Tokens that fit the context after the prompt, if fewer than `max_tokens`.
    most_tokens: usize,
}

impl Output {
    /// `stops`: every id that ends this sample. `context`: longest sequence.
    pub(super) fn new(
        request: SampleRequest,
        events: UnboundedSender<Event>,
        tokenizer: Option<&Arc<Tokenizer>>,
        stops: Arc<[u32]>,
        context: usize,
        weights_version: u64,
    ) -> Self {
        let text = tokenizer.map(|t| TextStream::new(t.clone(), &request.params.stop));
        let most_tokens = (request.params.max_tokens as usize).min(context - request.prompt.len());
        let sample = Sample {
            index: request.index,
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            logprobs_raw: Vec::new(),
            text: String::new(),
            finish_reason: FinishReason::Cancelled,
            stop_match: None,
            weight_versions: vec![VersionSpan { version: weights_version, start: 0, end: 0 }],
        };
        Output { request, events, sample, in_flight: 0, text, stops, most_tokens }
    }

    /// How the next token that nobody has asked for is to be drawn from `row` of the logits.
    pub(super) fn draw(&self, row: usize) -> Draw<'_> {
        let p = &self.request.params;
        let position = self.asked_tokens();
        let banned: &[u32] = if position < p.min_tokens as usize { &self.stops } else { &[] };
        let filters = Filters { temperature: p.temperature, top_k: p.top_k, top_p: p.top_p, min_p: p.min_p, bias: &p.logit_bias, banned };
        Draw { row, filters, key: self.request.key.0, position: position as u32, sample: self.request.index }
    }

    /// The draw has been asked for.
    pub(super) fn asked(&mut self) {
        self.in_flight += 1;
    }

    /// Whether the sample ends with the last token asked for, whatever that is.
    pub(super) fn asked_all(&self) -> bool {
        self.asked_tokens() >= self.most_tokens
    }

    fn asked_tokens(&self) -> usize {
        self.sample.token_ids.len() + self.in_flight
    }

    /// Takes a token that this version drew; says whether (and how) the sample has ended with it.
    pub(super) fn push(&mut self, drawn: Drawn, weights_version: u64) -> Option<FinishReason> {
        self.in_flight -= 1;
        let s = &mut self.sample;
        let at = s.token_ids.len() as u32;
        match s.weight_versions.last_mut() {
            Some(span) if span.version == weights_version => span.end += 1,
            // It waited while the weights changed.
            Some(span) if at == 0 => *span = VersionSpan { version: weights_version, start: 0, end: 1 },
            _ => s.weight_versions.push(VersionSpan { version: weights_version, start: at, end: at + 1 }),
        }
        s.token_ids.push(drawn.token);
        s.logprobs.push(drawn.logprob);
        s.logprobs_raw.push(drawn.logprob_raw);
        let enough = s.token_ids.len() >= self.request.params.min_tokens as usize;
        let stop_token = enough && self.stops.contains(&drawn.token);
        let mut text = String::new();
        if let Some(stream) = &mut self.text {
            let step = stream.push(drawn.token, enough);
            text = step.text;
            if let Some(stop) = step.stop {
                s.stop_match = Some(StopMatch::Text(stop));
            }
        }
        if self.request.stream_tokens {
            // A reader that is gone does not stop the sample; a cancel does.
            let _ = self.events.send(Event::Token { token_id: drawn.token, logprob: drawn.logprob, logprob_raw: drawn.logprob_raw, text });
        }
        if self.sample.stop_match.is_some() {
            return Some(FinishReason::Stop);
        }
        if stop_token {
            self.sample.stop_match = Some(StopMatch::Token(drawn.token));
            return Some(FinishReason::Stop);
        }
        (self.sample.token_ids.len() >= self.most_tokens).then_some(FinishReason::Length)
    }

    /// The last event.
    pub(super) fn finish(mut self, reason: FinishReason) {
        self.sample.finish_reason = reason;
        if let Some(stream) = &mut self.text {
            stream.finish();
            self.sample.text = stream.text().to_owned();
        }
        let _ = self.events.send(Event::Finished(Box::new(self.sample)));
    }
}
