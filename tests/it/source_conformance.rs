//! Every source keeps every promise: one line per implementation.

use std::sync::Arc;

use async_trait::async_trait;
use outboxd::source::Source;
use outboxd::source::admin::Admin;
use outboxd::source::memory::{Memory, Tx};
use outboxd::testing::source::{
    Bench, Inserted, Kept, NewRow, OpenTransaction, Outbox, SHARDS, conformance,
};

pub mod sqlite;

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    conformance(&MemoryBench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_conforms() {
    conformance(&sqlite::SqliteBench).await;
}

struct MemoryBench;

#[async_trait]
impl Bench for MemoryBench {
    async fn outbox(&self) -> Box<dyn Outbox> {
        Box::new(MemoryOutbox(Memory::new("memory", SHARDS)))
    }
}

struct MemoryOutbox(Memory);

#[async_trait]
impl Outbox for MemoryOutbox {
    fn source(&self) -> Arc<dyn Source> {
        Arc::new(self.0.clone())
    }

    fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.0.clone())
    }

    async fn another(&self) -> Arc<dyn Source> {
        self.source()
    }

    async fn insert(&self, rows: &[NewRow]) -> Vec<Inserted> {
        self.0.insert(rows).unwrap()
    }

    async fn begin(&self) -> Option<Box<dyn OpenTransaction>> {
        Some(Box::new(MemoryTransaction(self.0.begin())))
    }

    async fn history(&self) -> Vec<Kept> {
        self.0.history()
    }
}

struct MemoryTransaction(Tx);

#[async_trait]
impl OpenTransaction for MemoryTransaction {
    async fn insert(&mut self, row: &NewRow) -> Inserted {
        self.0.insert(row).unwrap()
    }

    async fn commit(self: Box<Self>) {
        self.0.commit();
    }

    async fn rollback(self: Box<Self>) {
        self.0.rollback();
    }
}
