//! [`Source`] for SQLite: each call is one function of the module that knows about it.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::Sqlite;
use crate::event::Timestamp;
use crate::lease::Lease;
use crate::source::{
    Backlog, Begun, Commands, Due, Heartbeat, InHand, LeaseView, Listener, Members, Opened,
    Outcome, ReadBounds, Renewed, Retention, Row, Source, SourceError, Suspects, Sweep, SweepMark,
    Writers,
};

#[async_trait]
impl Source for Sqlite {
    fn name(&self) -> &str {
        &self.options.name
    }

    async fn open(&self) -> Result<Opened, SourceError> {
        self.check().await
    }

    async fn read(
        &self,
        sink: &str,
        after: i64,
        bounds: ReadBounds,
        bare_keys: &[Arc<str>],
    ) -> Result<Vec<Row>, SourceError> {
        self.forward(sink, after, bounds, bare_keys).await
    }

    async fn read_keys(
        &self,
        sink: &str,
        keys: &[(Arc<str>, i64)],
        per_key: u32,
    ) -> Result<Vec<Row>, SourceError> {
        self.runs(sink, keys, per_key).await
    }

    async fn read_seqs(&self, sink: &str, seqs: &[i64]) -> Result<Vec<Row>, SourceError> {
        self.by_seq(sink, seqs, true).await
    }

    async fn probe(
        &self,
        ranges: &[RangeInclusive<i64>],
        limit: u32,
    ) -> Result<Vec<(i64, Option<Arc<str>>)>, SourceError> {
        self.existing(ranges, limit).await
    }

    /// None: SQLite has one writer at a time, and a seq is taken under its lock.
    async fn writers(&self) -> Result<Option<Writers>, SourceError> {
        Ok(None)
    }

    async fn heads(
        &self,
        sink: &str,
        mark: Option<&SweepMark>,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        self.sweep(sink, mark, limit).await
    }

    async fn due_after(
        &self,
        sink: &str,
        due: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>, SourceError> {
        self.due_from(sink, due, limit).await
    }

    async fn settle(&self, outcomes: &[Outcome], durable: bool) -> Result<Vec<bool>, SourceError> {
        self.write_outcomes(outcomes, durable).await
    }

    async fn delete_done(&self, required: &[Arc<str>], limit: u32) -> Result<u64, SourceError> {
        self.remove_done(required, limit).await
    }

    async fn begun(&self, after: i64, limit: u32) -> Result<Begun, SourceError> {
        self.read_begun(after, limit).await
    }

    async fn commands(&self, after: Option<i64>) -> Result<Commands, SourceError> {
        self.read_commands(after).await
    }

    /// The file lock knows one owner.
    async fn attend(
        &self,
        _instance: Uuid,
        _ttl: Duration,
        _idle: bool,
    ) -> Result<(), SourceError> {
        Ok(())
    }

    async fn members(&self, _instance: Uuid) -> Result<Members, SourceError> {
        Ok(Members::ONE)
    }

    async fn acquire(
        &self,
        instance: Uuid,
        ttl: Duration,
        _most: u16,
    ) -> Result<Vec<Lease>, SourceError> {
        self.take_leases(instance, ttl).await
    }

    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Result<Renewed, SourceError> {
        self.renew_leases(leases, ttl).await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), SourceError> {
        self.give_leases(leases).await
    }

    async fn bury(&self, instance: Uuid) -> Result<(), SourceError> {
        self.bury_leases(instance).await
    }

    async fn suspects(&self, leases: &[Lease]) -> Result<Vec<Suspects>, SourceError> {
        self.read_suspects(leases).await
    }

    async fn note(&self, in_hand: &[InHand], alone: bool) -> Result<(), SourceError> {
        self.note_in_hand(in_hand, alone).await
    }

    async fn acquit(&self, leases: &[Lease]) -> Result<(), SourceError> {
        self.acquit_leases(leases).await
    }

    async fn leases(&self) -> Result<Vec<LeaseView>, SourceError> {
        self.show_leases().await
    }

    async fn heartbeat(&self, beat: &Heartbeat) -> Result<(), SourceError> {
        self.write_heartbeat(beat).await
    }

    async fn goodbye(&self, instance: Uuid) -> Result<(), SourceError> {
        self.remove_instance(instance).await
    }

    async fn backlog(&self) -> Result<Backlog, SourceError> {
        self.sample_backlog().await
    }

    async fn purge(&self, retention: &Retention, limit: u32) -> Result<u64, SourceError> {
        self.remove_old(retention, limit).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listener>>, SourceError> {
        Ok(Some(Box::new(self.watch().await?)))
    }

    /// Writers do nothing for the wake-up here, so there is nothing to ask them.
    async fn set_wake_mark(&self, _span: Duration) -> Result<(), SourceError> {
        Ok(())
    }

    /// They watch the file, in which every owner writes.
    async fn wake_instances(&self) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&self) {
        *self.lock.held.lock().await = None;
        self.writer.close().await;
        self.reader.close().await;
    }
}
