//! A sink that fails on demand, around any other.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;

use super::plan::{Injected, Plan, When, pause};
use crate::event::Event;
use crate::sink::lost::Lost;
use crate::sink::trail::Readback;
use crate::sink::{
    Delivery, Lanes, PublishError, PublishErrorKind, Receipt, Session, Sink, SinkError,
};

/// A call of [`Sink`] or [`Session`], for faults and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SinkOp {
    /// [`Sink::open`]. Its error has words only, whatever the kind.
    Open,
    /// [`Sink::check`], likewise.
    Check,
    /// [`Sink::remarks`], likewise.
    Remarks,
    /// [`Sink::trail`], likewise.
    Trail,
    /// An event that is handed over, alone or in a batch. A batch waits once for all of its events.
    Publish,
    /// [`Session::publish_batch`], beside [`SinkOp::Publish`] for each of its events. A fault strikes each event of it
    /// that nothing was struck before of the same key.
    PublishBatch,
    /// [`Session::close`].
    Close,
}

/// One call of a session that hands events over.
#[derive(Debug, Clone)]
pub enum Call {
    /// [`Session::publish`].
    Single(Arc<Event>),
    /// [`Session::publish_batch`].
    Batch(Vec<Arc<Event>>),
}

/// What to break and what was called; shared by a [`FaultySink`] and the test that steers it. Most of it is a
/// [`Plan`]'s.
#[derive(Debug, Clone, Default)]
pub struct SinkFaults {
    plan: Plan<SinkOp, PublishErrorKind>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    calls: Vec<Call>,
    sessions: Vec<Weak<Lost>>,
}

impl Deref for SinkFaults {
    type Target = Plan<SinkOp, PublishErrorKind>;

    fn deref(&self) -> &Self::Target {
        &self.plan
    }
}

impl SinkFaults {
    /// Every session that is open now loses its connection; new ones may be opened.
    pub fn lose_connections(&self) {
        for session in self.seen().sessions.drain(..) {
            if let Some(lost) = session.upgrade() {
                lost.set("injected loss of the connection");
            }
        }
    }

    /// The hand-overs so far, whatever became of them.
    pub fn calls(&self) -> Vec<Call> {
        self.seen().calls.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Injected<PublishErrorKind> for PublishError {
    fn injected(kind: PublishErrorKind, message: String) -> Self {
        Self { kind, message }
    }
}

impl Injected<PublishErrorKind> for SinkError {
    fn injected(_kind: PublishErrorKind, words: String) -> Self {
        Self::new(words)
    }
}

/// A sink whose calls, and those of its sessions, fail, hang or are counted as its [`SinkFaults`] say; all else goes to
/// the inner one.
pub struct FaultySink {
    inner: Arc<dyn Sink>,
    faults: SinkFaults,
}

impl FaultySink {
    /// Around `inner`, steered by `faults`.
    pub fn new(inner: Arc<dyn Sink>, faults: SinkFaults) -> Self {
        Self { inner, faults }
    }
}

#[async_trait]
impl Sink for FaultySink {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn open(&self) -> Result<Arc<dyn Session>, SinkError> {
        let inner = self.faults.around(SinkOp::Open, self.inner.open()).await?;
        let lost = Arc::new(Lost::new());
        let mut seen = self.faults.seen();
        seen.sessions.retain(|session| session.strong_count() > 0);
        seen.sessions.push(Arc::downgrade(&lost));
        Ok(Arc::new(FaultySession {
            inner,
            faults: self.faults.clone(),
            lost,
        }))
    }

    async fn check(&self, kinds: &[String]) -> Result<Vec<String>, SinkError> {
        let call = self.inner.check(kinds);
        self.faults.around(SinkOp::Check, call).await
    }

    async fn remarks(&self) -> Result<Vec<String>, SinkError> {
        let call = self.inner.remarks();
        self.faults.around(SinkOp::Remarks, call).await
    }

    async fn trail(&self, source: &str) -> Result<Readback, SinkError> {
        let call = self.inner.trail(source);
        self.faults.around(SinkOp::Trail, call).await
    }
}

struct FaultySession {
    inner: Arc<dyn Session>,
    faults: SinkFaults,
    lost: Arc<Lost>,
}

type Answer = Result<Receipt, PublishError>;

/// What a batch does with one of its events.
enum Fate {
    Goes,
    /// It goes, and its answer is lost.
    GoesUnheard(PublishError),
    Stays(PublishError),
}

/// Keys of a batch of which one event has failed: what is behind it does not go.
#[derive(Default)]
struct Failed(HashSet<Arc<str>>);

impl Failed {
    fn add(&mut self, event: &Event) {
        self.0.extend(event.ordering_key.clone());
    }

    fn has(&self, event: &Event) -> bool {
        event
            .ordering_key
            .as_ref()
            .is_some_and(|key| self.0.contains(key))
    }
}

impl FaultySession {
    /// Takes part of a batch to the inner session, with whatever is planned.
    async fn batch(&self, batch: &[Delivery], timeout: Duration, limit: Duration) -> Vec<Answer> {
        let whole = self.faults.strike(SinkOp::PublishBatch);
        let (mut delay, mut late) = (whole.delay, whole.late);
        let mut failed = Failed::default();
        let mut fates = Vec::with_capacity(batch.len());
        for Delivery { event, .. } in batch {
            let own = self.faults.strike(SinkOp::Publish);
            (delay, late) = (delay.max(own.delay), late.max(own.late));
            let fate = match own.fault.as_ref().or(whole.fault.as_ref()) {
                _ if failed.has(event) => Fate::Stays(PublishError::behind()),
                None => Fate::Goes,
                Some(fault) => {
                    failed.add(event);
                    match fault.when {
                        When::Before => Fate::Stays(fault.error(SinkOp::Publish)),
                        When::After => Fate::GoesUnheard(fault.error(SinkOp::Publish)),
                    }
                }
            };
            fates.push(fate);
        }
        pause(delay).await;
        let going: Vec<Delivery> = batch
            .iter()
            .zip(&fates)
            .filter(|(_, fate)| !matches!(fate, Fate::Stays(_)))
            .map(|(delivery, _)| delivery.clone())
            .collect();
        let answers = match going.is_empty() {
            true => Vec::new(),
            false => self.inner.publish_batch(&going, timeout, limit).await,
        };
        pause(late).await;
        let mut answers = answers.into_iter();
        let mut next = || {
            let none = || Err(PublishError::unknown("the inner sink gave no answer"));
            answers.next().unwrap_or_else(none)
        };
        let mut failed = Failed::default();
        let mut told = Vec::with_capacity(batch.len());
        for (Delivery { event, .. }, fate) in batch.iter().zip(fates) {
            let answer = match fate {
                Fate::Goes => next(),
                Fate::GoesUnheard(error) => next().and(Err(error)),
                // The inner one may have failed an earlier one of the key, and one failure tells of all.
                Fate::Stays(_) if failed.has(event) => Err(PublishError::behind()),
                Fate::Stays(error) => Err(error),
            };
            if answer.is_err() {
                failed.add(event);
            }
            told.push(answer);
        }
        told
    }
}

#[async_trait]
impl Session for FaultySession {
    async fn publish(&self, delivery: &Delivery, timeout: Duration) -> Answer {
        let call = Call::Single(Arc::clone(&delivery.event));
        self.faults.seen().calls.push(call);
        if let Some(reason) = self.lost.reason() {
            return Err(PublishError::connection_lost(reason));
        }
        let publish = self.inner.publish(delivery, timeout);
        tokio::select! {
            // An answer that is there counts, even when the connection goes in the same moment.
            biased;
            answer = self.faults.around(SinkOp::Publish, publish) => answer,
            reason = self.lost.wait() => Err(PublishError::unknown(reason)),
        }
    }

    fn lanes(&self) -> Option<Lanes> {
        self.inner.lanes()
    }

    fn mode(&self) -> &'static str {
        self.inner.mode()
    }

    async fn publish_batch(
        &self,
        batch: &[Delivery],
        timeout: Duration,
        limit: Duration,
    ) -> Vec<Answer> {
        let events = batch.iter().map(|one| Arc::clone(&one.event)).collect();
        self.faults.seen().calls.push(Call::Batch(events));
        if let Some(reason) = self.lost.reason() {
            let mut answers = vec![Err(PublishError::connection_lost(reason))];
            answers.resize_with(batch.len(), || Err(PublishError::behind()));
            return answers;
        }
        tokio::select! {
            biased;
            answers = self.batch(batch, timeout, limit) => answers,
            reason = self.lost.wait() => {
                let unknown = |_| Err(PublishError::unknown(reason.clone()));
                batch.iter().map(unknown).collect()
            }
        }
    }

    async fn lost(&self) -> String {
        tokio::select! {
            reason = self.lost.wait() => reason,
            reason = self.inner.lost() => reason,
        }
    }

    async fn close(&self) {
        let _ = self.faults.strike(SinkOp::Close);
        self.inner.close().await;
    }
}

#[cfg(test)]
mod tests;
