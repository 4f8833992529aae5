//! A source that fails on demand, around any other.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::plan::{Injected, Plan};
use crate::event::Timestamp;
use crate::lease::Lease;
use crate::source::{
    Backlog, Begun, Commands, Due, Heartbeat, InHand, LeaseView, Listener, Members, Opened,
    Outcome, ReadBounds, Renewed, Retention, Row, Source, SourceError, SourceErrorKind, Suspects,
    Sweep, SweepMark, Writers,
};

/// A call of [`Source`], for hooks and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Op {
    Open,
    Read,
    ReadKeys,
    ReadSeqs,
    Probe,
    Writers,
    Heads,
    DueAfter,
    Settle,
    DeleteDone,
    Begun,
    Commands,
    Attend,
    WakeInstances,
    Members,
    Acquire,
    Renew,
    Release,
    Bury,
    Suspects,
    Note,
    Acquit,
    Leases,
    Heartbeat,
    Goodbye,
    Backlog,
    Purge,
    Listen,
    SetWakeMark,
    Close,
    /// [`Listener::wait`].
    Wait,
}

/// What to break and what was called; shared by a [`FaultySource`] and the test that steers it.
pub type Faults = Plan<Op, SourceErrorKind>;

impl Injected<SourceErrorKind> for SourceError {
    fn injected(kind: SourceErrorKind, words: String) -> Self {
        Self::new(kind, words)
    }
}

/// A source whose calls fail, hang or are counted as its [`Faults`] say; all else goes to the inner one.
pub struct FaultySource {
    inner: Arc<dyn Source>,
    faults: Faults,
}

impl FaultySource {
    /// Around `inner`, steered by `faults`.
    pub fn new(inner: Arc<dyn Source>, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

#[async_trait]
impl Source for FaultySource {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn open(&self) -> Result<Opened, SourceError> {
        self.faults.around(Op::Open, self.inner.open()).await
    }

    async fn read(
        &self,
        sink: &str,
        after: i64,
        bounds: ReadBounds,
        bare_keys: &[Arc<str>],
    ) -> Result<Vec<Row>, SourceError> {
        let call = self.inner.read(sink, after, bounds, bare_keys);
        self.faults.around(Op::Read, call).await
    }

    async fn read_keys(
        &self,
        sink: &str,
        keys: &[(Arc<str>, i64)],
        per_key: u32,
    ) -> Result<Vec<Row>, SourceError> {
        let call = self.inner.read_keys(sink, keys, per_key);
        self.faults.around(Op::ReadKeys, call).await
    }

    async fn read_seqs(&self, sink: &str, seqs: &[i64]) -> Result<Vec<Row>, SourceError> {
        let call = self.inner.read_seqs(sink, seqs);
        self.faults.around(Op::ReadSeqs, call).await
    }

    async fn probe(
        &self,
        ranges: &[RangeInclusive<i64>],
        limit: u32,
    ) -> Result<Vec<(i64, Option<Arc<str>>)>, SourceError> {
        let call = self.inner.probe(ranges, limit);
        self.faults.around(Op::Probe, call).await
    }

    async fn writers(&self) -> Result<Option<Writers>, SourceError> {
        self.faults.around(Op::Writers, self.inner.writers()).await
    }

    async fn heads(
        &self,
        sink: &str,
        mark: Option<&SweepMark>,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        let call = self.inner.heads(sink, mark, limit);
        self.faults.around(Op::Heads, call).await
    }

    async fn due_after(
        &self,
        sink: &str,
        due: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>, SourceError> {
        let call = self.inner.due_after(sink, due, limit);
        self.faults.around(Op::DueAfter, call).await
    }

    async fn settle(&self, outcomes: &[Outcome], durable: bool) -> Result<Vec<bool>, SourceError> {
        let call = self.inner.settle(outcomes, durable);
        self.faults.around(Op::Settle, call).await
    }

    async fn delete_done(&self, required: &[Arc<str>], limit: u32) -> Result<u64, SourceError> {
        let call = self.inner.delete_done(required, limit);
        self.faults.around(Op::DeleteDone, call).await
    }

    async fn begun(&self, after: i64, limit: u32) -> Result<Begun, SourceError> {
        let call = self.inner.begun(after, limit);
        self.faults.around(Op::Begun, call).await
    }

    async fn commands(&self, after: Option<i64>) -> Result<Commands, SourceError> {
        let call = self.inner.commands(after);
        self.faults.around(Op::Commands, call).await
    }

    async fn attend(&self, instance: Uuid, ttl: Duration, idle: bool) -> Result<(), SourceError> {
        let call = self.inner.attend(instance, ttl, idle);
        self.faults.around(Op::Attend, call).await
    }

    async fn members(&self, instance: Uuid) -> Result<Members, SourceError> {
        let call = self.inner.members(instance);
        self.faults.around(Op::Members, call).await
    }

    async fn acquire(
        &self,
        instance: Uuid,
        ttl: Duration,
        most: u16,
    ) -> Result<Vec<Lease>, SourceError> {
        let call = self.inner.acquire(instance, ttl, most);
        self.faults.around(Op::Acquire, call).await
    }

    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Result<Renewed, SourceError> {
        let call = self.inner.renew(leases, ttl);
        self.faults.around(Op::Renew, call).await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), SourceError> {
        let call = self.inner.release(leases);
        self.faults.around(Op::Release, call).await
    }

    async fn bury(&self, instance: Uuid) -> Result<(), SourceError> {
        let call = self.inner.bury(instance);
        self.faults.around(Op::Bury, call).await
    }

    async fn suspects(&self, leases: &[Lease]) -> Result<Vec<Suspects>, SourceError> {
        let call = self.inner.suspects(leases);
        self.faults.around(Op::Suspects, call).await
    }

    async fn note(&self, in_hand: &[InHand], alone: bool) -> Result<(), SourceError> {
        let call = self.inner.note(in_hand, alone);
        self.faults.around(Op::Note, call).await
    }

    async fn acquit(&self, leases: &[Lease]) -> Result<(), SourceError> {
        let call = self.inner.acquit(leases);
        self.faults.around(Op::Acquit, call).await
    }

    async fn leases(&self) -> Result<Vec<LeaseView>, SourceError> {
        self.faults.around(Op::Leases, self.inner.leases()).await
    }

    async fn heartbeat(&self, beat: &Heartbeat) -> Result<(), SourceError> {
        let call = self.inner.heartbeat(beat);
        self.faults.around(Op::Heartbeat, call).await
    }

    async fn goodbye(&self, instance: Uuid) -> Result<(), SourceError> {
        let call = self.inner.goodbye(instance);
        self.faults.around(Op::Goodbye, call).await
    }

    async fn backlog(&self) -> Result<Backlog, SourceError> {
        self.faults.around(Op::Backlog, self.inner.backlog()).await
    }

    async fn purge(&self, retention: &Retention, limit: u32) -> Result<u64, SourceError> {
        let call = self.inner.purge(retention, limit);
        self.faults.around(Op::Purge, call).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listener>>, SourceError> {
        let inner = self.faults.around(Op::Listen, self.inner.listen()).await?;
        let faults = self.faults.clone();
        Ok(inner.map(|inner| Box::new(FaultyListener { inner, faults }) as Box<dyn Listener>))
    }

    async fn set_wake_mark(&self, span: Duration) -> Result<(), SourceError> {
        let call = self.inner.set_wake_mark(span);
        self.faults.around(Op::SetWakeMark, call).await
    }

    async fn wake_instances(&self) -> Result<(), SourceError> {
        let call = self.inner.wake_instances();
        self.faults.around(Op::WakeInstances, call).await
    }

    async fn close(&self) {
        let _ = self.faults.strike(Op::Close);
        self.inner.close().await;
    }
}

struct FaultyListener {
    inner: Box<dyn Listener>,
    faults: Faults,
}

#[async_trait]
impl Listener for FaultyListener {
    async fn wait(&mut self) -> Result<(), SourceError> {
        self.faults.around(Op::Wait, self.inner.wait()).await
    }

    async fn probe(&mut self) -> Result<(), SourceError> {
        self.inner.probe().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::When;
    use super::*;
    use crate::source::memory::Memory;

    fn faulty() -> (FaultySource, Faults) {
        let faults = Faults::default();
        let memory = Arc::new(Memory::new("m", 4));
        (FaultySource::new(memory, faults.clone()), faults)
    }

    #[tokio::test]
    async fn a_fault_before_leaves_the_inner_source_alone_and_wears_off() {
        let (source, faults) = faulty();
        faults.fail(Op::Acquire, 2, SourceErrorKind::Unavailable, When::Before);
        let instance = Uuid::from_u128(1);
        let ttl = Duration::from_secs(5);
        for _ in 0..2 {
            let error = source.acquire(instance, ttl, 4).await.expect_err("planned");
            assert_eq!(error.kind, SourceErrorKind::Unavailable);
        }
        assert!(
            source
                .leases()
                .await
                .expect("leases")
                .iter()
                .all(|l| l.owner.is_none())
        );
        assert_eq!(
            source
                .acquire(instance, ttl, 4)
                .await
                .expect("healed")
                .len(),
            4
        );
        assert_eq!(faults.count(Op::Acquire), 3);
        assert_eq!(faults.total(), 4);
    }

    #[tokio::test]
    async fn a_fault_after_hides_an_answer_but_not_the_deed() {
        let (source, faults) = faulty();
        faults.fail(Op::Acquire, 1, SourceErrorKind::Refused, When::After);
        let call = source
            .acquire(Uuid::from_u128(1), Duration::from_secs(5), 4)
            .await;
        assert_eq!(call.expect_err("planned").kind, SourceErrorKind::Refused);
        assert!(
            source
                .leases()
                .await
                .expect("leases")
                .iter()
                .all(|l| l.owner.is_some())
        );
    }

    #[tokio::test]
    async fn an_outage_strikes_everything_until_healed() {
        let (source, faults) = faulty();
        faults.outage(SourceErrorKind::Unavailable);
        assert!(source.open().await.is_err() && source.backlog().await.is_err());
        faults.heal();
        assert!(source.open().await.is_ok());
    }
}
