//! Where a job writes down what it must not lose, and where it reads samples back when a group is formed.
//!
//! The job keeps only outcomes in memory. Rows are queued in the order of the calls; what reads comes after every row queued before it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::store::{GroupRow, SampleRow, Store, StoredSample, VerdictRow};

/// A job's journal. Errors are sentences.
pub trait Journal: Send + Sync {
    /// A finished sample.
    fn sample(&self, row: SampleRow);
    /// What it came to.
    fn verdict(&self, row: VerdictRow);
    /// Samples of one prompt by ascending index; those that are not there are left out.
    fn samples(&self, job: i64, prompt: u32, indices: Vec<u32>) -> BoxFuture<'static, Result<Vec<StoredSample>, String>>;
    /// A prompt's end; its samples go. Resolves when it is written.
    fn group(&self, row: GroupRow) -> BoxFuture<'static, Result<(), String>>;
    /// A job's open prompts start again under other weights: their samples go.
    fn restart(&self, job: i64, prompts: Vec<u32>, version: u64, digest: &str);
    /// Resolves when everything queued so far is written.
    fn flush(&self) -> BoxFuture<'static, Result<(), String>>;
}

impl Journal for Store {
    fn sample(&self, row: SampleRow) {
        Store::sample(self, row);
    }

    fn verdict(&self, row: VerdictRow) {
        Store::verdict(self, row);
    }

    fn samples(&self, job: i64, prompt: u32, indices: Vec<u32>) -> BoxFuture<'static, Result<Vec<StoredSample>, String>> {
        let samples = Store::samples(self, job, prompt, indices);
        async move { samples.await.map_err(|e| e.to_string()) }.boxed()
    }

    fn group(&self, row: GroupRow) -> BoxFuture<'static, Result<(), String>> {
        let group = Store::group(self, row);
        async move { group.await.map_err(|e| e.to_string()) }.boxed()
    }

    fn restart(&self, job: i64, prompts: Vec<u32>, version: u64, digest: &str) {
        Store::restart(self, job, prompts, version, digest);
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), String>> {
        let store = self.clone();
        async move {
            Store::flush(&store).await;
            store.health()
        }
        .boxed()
    }
}

/// A journal for simulations: it lives as long as the process, and every future of it is ready at once.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    samples: BTreeMap<(i64, u32, u32), StoredSample>,
    groups: Vec<GroupRow>,
}

impl MemoryJournal {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every group so far, in the order written.
    pub fn groups(&self) -> Vec<GroupRow> {
        self.rows().groups.clone()
    }
}

impl Journal for MemoryJournal {
    fn sample(&self, row: SampleRow) {
        self.rows().samples.insert((row.job, row.prompt, row.index), StoredSample { sample: row, verdict: None });
    }

    fn verdict(&self, row: VerdictRow) {
        if let Some(stored) = self.rows().samples.get_mut(&(row.job, row.prompt, row.index)) {
            stored.verdict = Some(row.verdict);
        }
    }

    fn samples(&self, job: i64, prompt: u32, indices: Vec<u32>) -> BoxFuture<'static, Result<Vec<StoredSample>, String>> {
        let rows = self.rows();
        let found = indices.iter().filter_map(|&index| rows.samples.get(&(job, prompt, index)).cloned()).collect();
        futures::future::ready(Ok(found)).boxed()
    }

    fn group(&self, row: GroupRow) -> BoxFuture<'static, Result<(), String>> {
        let mut rows = self.rows();
        let of_prompt = (row.job, row.prompt, 0)..=(row.job, row.prompt, u32::MAX);
        let gone: Vec<_> = rows.samples.range(of_prompt).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| {
            rows.samples.remove(key);
        });
        rows.groups.push(row);
        futures::future::ready(Ok(())).boxed()
    }

    fn restart(&self, job: i64, prompts: Vec<u32>, _: u64, _: &str) {
        self.rows().samples.retain(|(of, prompt, _), _| *of != job || !prompts.contains(prompt));
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), String>> {
        futures::future::ready(Ok(())).boxed()
    }
}
