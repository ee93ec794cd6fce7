//! A store that is only looked at: beside a running server, or without one.

use std::path::Path;

use rusqlite::Connection;

use super::rows::{JobSummary, Resume, StoredJob, UsageRow};
use super::{StoreError, read, schema};

/// A connection that writes nothing and takes no lock.
#[derive(Debug)]
pub struct StoreReader(Connection);

impl StoreReader {
    /// Opens an existing store.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if !path.exists() {
            return Err(StoreError::Open(format!("{}: does not exist; give the path that the server's --store has", path.display())));
        }
        schema::open_reader(path).map(StoreReader)
    }

    /// See `Store::find`.
    pub fn find(&self, id: &str) -> Result<Option<StoredJob>, StoreError> {
        read::find(&self.0, id)
    }

    /// See `Store::list`.
    pub fn list(&self, limit: u32) -> Result<Vec<JobSummary>, StoreError> {
        read::list(&self.0, limit)
    }

    /// Delivered groups from a place in the order of delivery on: (place, JSON).
    pub fn groups_with_seq(&self, job: i64, cursor: u64, limit: u32) -> Result<Vec<(u64, String)>, StoreError> {
        read::groups(&self.0, job, cursor, limit)?.into_iter().map(|(seq, packed)| Ok((seq, read::group_text(packed)?))).collect()
    }

    /// See `Store::resume`.
    pub fn resume(&self, job: i64) -> Result<Resume, StoreError> {
        read::resume(&self.0, job)
    }

    /// See `Store::usages`.
    pub fn usages(&self) -> Result<Vec<UsageRow>, StoreError> {
        read::usage(&self.0)
    }
}
