//! A sink in memory, for tests: it keeps what it took, answers as it is told, and goes down on demand.
//!
//! ```
//! # use std::time::Duration;
//! # use outboxd::sink::{PublishError, memory::{Answer, Memory}};
//! let sink = Memory::new();
//! // The first two hand-overs of this kind fail, everything else is taken.
//! let mut left = 2;
//! sink.on(move |delivery| {
//!     (delivery.event.kind == "poison" && left > 0).then(|| {
//!         left -= 1;
//!         Answer::Fail(PublishError::retryable("not yet"))
//!     })
//! });
//! # let _ = sink.wait_for(0, Duration::ZERO);
//! ```

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::lost::Lost;
use super::{Delivery, Lanes, PublishError, Receipt, Session, Sink, SinkError};

/// The sink, and the handle by which a test steers it; clones share everything.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

/// A hand-over that the sink took (or, from [`Memory::handed_over`], saw).
#[derive(Debug, Clone)]
pub struct Received {
    /// What was handed over.
    pub delivery: Delivery,
    /// When.
    pub at: Instant,
    /// By which session, counted from 1.
    pub session: u64,
}

/// What the sink does with one hand-over.
#[derive(Debug)]
pub enum Answer {
    /// Takes it and says so.
    Take,
    /// Takes it and answers with this receipt.
    TakeAs(Receipt),
    /// Takes it and never answers: the outcome is unknown when the time is up.
    TakeSilently,
    /// Does not take it and answers with this error.
    Fail(PublishError),
    /// Neither takes it nor answers.
    Hang,
    /// Waits this long, then does what follows.
    Delay(Duration, Box<Answer>),
    /// Waits until the gate is open, then does what follows.
    Hold(Gate, Box<Answer>),
    /// Does not take it; the session it came through is lost.
    LoseSession,
    /// Panics inside the sink.
    Panic,
}

/// Holds answers back until it is opened; clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// A closed gate.
    pub fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Lets everything through, now and later.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    async fn passed(&self) {
        let mut state = self.0.subscribe();
        // The sender lives in `self`, so this only ends by the gate opening.
        let _ = state.wait_for(|open| *open).await;
    }
}

type Script = Box<dyn FnMut(&Delivery) -> Option<Answer> + Send>;

struct Shared {
    state: Mutex<State>,
    /// Counts what was taken, so that tests can wait for it.
    taken: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    handed_over: Vec<Received>,
    received: Vec<Received>,
    /// Source and id of what was received.
    taken: HashSet<(Arc<str>, Uuid)>,
    scripts: Vec<Script>,
    down: Option<String>,
    sessions: Vec<Weak<Lost>>,
    opened: u64,
    lanes: Option<Lanes>,
}

impl Memory {
    /// A sink that takes everything.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::default()),
                taken: watch::Sender::new(0),
            }),
        }
    }

    /// From its next session on it keeps order by itself, in so many lanes (none: it does not). A batch ends with the
    /// first event that is not taken, and the events behind that are not even looked at.
    pub fn keep_order(&self, lanes: Option<Lanes>) {
        self.state().lanes = lanes;
    }

    /// What it took, in order, repeated deliveries included.
    pub fn received(&self) -> Vec<Received> {
        self.state().received.clone()
    }

    /// Every hand-over it saw, in order, whatever became of it.
    pub fn handed_over(&self) -> Vec<Received> {
        self.state().handed_over.clone()
    }

    /// Sessions opened so far.
    pub fn sessions_opened(&self) -> u64 {
        self.state().opened
    }

    /// Waits until it has taken `count` events (repeated deliveries included) and gives all it took.
    ///
    /// # Errors
    /// In words, when `deadline` has passed.
    pub async fn wait_for(
        &self,
        count: usize,
        deadline: Duration,
    ) -> Result<Vec<Received>, String> {
        self.wait_until(deadline, |received| received.len() >= count)
            .await
            .map_err(|seen| format!("waited {deadline:?} for {count} events, {seen} came"))
    }

    /// Waits until what it took satisfies `enough`, and gives it.
    ///
    /// # Errors
    /// The number of events taken when `deadline` had passed.
    pub async fn wait_until(
        &self,
        deadline: Duration,
        enough: impl Fn(&[Received]) -> bool,
    ) -> Result<Vec<Received>, usize> {
        let mut taken = self.shared.taken.subscribe();
        let waiting = async {
            loop {
                taken.borrow_and_update();
                // Looked at in place: a copy per event would make long tests quadratic.
                if enough(&self.state().received) {
                    return self.received();
                }
                // The sender lives in `self`.
                let _ = taken.changed().await;
            }
        };
        tokio::time::timeout(deadline, waiting)
            .await
            .map_err(|_| self.received().len())
    }

    /// Adds a script. For each hand-over the scripts are asked in the order in which they were added; the first
    /// that gives an answer decides, and without one the event is taken. A script must not use this handle:
    /// it runs while the sink is locked.
    pub fn on(&self, script: impl FnMut(&Delivery) -> Option<Answer> + Send + 'static) {
        self.state().scripts.push(Box::new(script));
    }

    /// Removes all scripts.
    pub fn forget_scripts(&self) {
        self.state().scripts.clear();
    }

    /// Loses every session and refuses new ones until [`Memory::come_up`].
    pub fn go_down(&self) {
        const REASON: &str = "the memory sink went down";
        let mut state = self.state();
        state.down = Some(REASON.to_owned());
        state.lose_sessions(REASON);
    }

    /// Accepts sessions again.
    pub fn come_up(&self) {
        self.state().down = None;
    }

    /// Loses every session, and accepts new ones.
    pub fn lose_sessions(&self) {
        self.state()
            .lose_sessions("the memory sink dropped the connection");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Memory")
            .field("received", &state.received.len())
            .field("handed_over", &state.handed_over.len())
            .field("down", &state.down)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// A script that panicked (tests do that on purpose) must not take the sink with it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, received: Received) -> Receipt {
        let mut state = self.state();
        let Delivery { source, event, .. } = &received.delivery;
        let duplicate = !state.taken.insert((Arc::clone(source), event.id));
        state.received.push(received);
        let position = state.received.len();
        drop(state);
        self.taken.send_replace(position);
        Receipt {
            stream: Some("memory".to_owned()),
            position: Some(position as u64),
            duplicate,
        }
    }
}

impl State {
    fn answer(&mut self, delivery: &Delivery) -> Answer {
        self.scripts
            .iter_mut()
            .find_map(|script| script(delivery))
            .unwrap_or(Answer::Take)
    }

    fn lose_sessions(&mut self, reason: &str) {
        for session in self.sessions.drain(..) {
            if let Some(lost) = session.upgrade() {
                lost.set(reason);
            }
        }
    }
}

#[async_trait]
impl Sink for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn open(&self) -> Result<Arc<dyn Session>, SinkError> {
        let mut state = self.state();
        if let Some(reason) = &state.down {
            return Err(SinkError::new(reason.clone()));
        }
        state.opened += 1;
        let lost = Arc::new(Lost::new());
        state.sessions.retain(|session| session.strong_count() > 0);
        state.sessions.push(Arc::downgrade(&lost));
        Ok(Arc::new(MemorySession {
            shared: Arc::clone(&self.shared),
            lost,
            number: state.opened,
            lanes: state.lanes,
        }))
    }

    async fn check(&self, _kinds: &[String]) -> Result<Vec<String>, SinkError> {
        match &self.state().down {
            Some(reason) => Err(SinkError::new(reason.clone())),
            None => Ok(Vec::new()),
        }
    }
}

struct MemorySession {
    shared: Arc<Shared>,
    lost: Arc<Lost>,
    number: u64,
    lanes: Option<Lanes>,
}

impl MemorySession {
    async fn act(&self, mut answer: Answer, received: Received) -> Result<Receipt, PublishError> {
        loop {
            answer = match answer {
                Answer::Take => return Ok(self.shared.take(received)),
                Answer::TakeAs(receipt) => {
                    self.shared.take(received);
                    return Ok(receipt);
                }
                Answer::TakeSilently => {
                    self.shared.take(received);
                    return std::future::pending().await;
                }
                Answer::Fail(error) => return Err(error),
                Answer::Hang => return std::future::pending().await,
                Answer::Delay(pause, then) => {
                    tokio::time::sleep(pause).await;
                    *then
                }
                Answer::Hold(gate, then) => {
                    gate.passed().await;
                    *then
                }
                Answer::LoseSession => {
                    self.lost.set("the memory sink dropped the connection");
                    return std::future::pending().await;
                }
                Answer::Panic => panic!("the memory sink was told to panic"),
            }
        }
    }
}

#[async_trait]
impl Session for MemorySession {
    async fn publish(
        &self,
        delivery: &Delivery,
        timeout: Duration,
    ) -> Result<Receipt, PublishError> {
        if let Some(reason) = self.lost.reason() {
            return Err(PublishError::connection_lost(reason));
        }
        let received = Received {
            delivery: delivery.clone(),
            at: Instant::now(),
            session: self.number,
        };
        let answer = {
            let mut state = self.shared.state();
            state.handed_over.push(received.clone());
            state.answer(delivery)
        };
        tokio::select! {
            // An answer that is there counts, even when the connection goes in the same moment.
            biased;
            result = self.act(answer, received) => result,
            reason = self.lost.wait() => Err(PublishError::unknown(reason)),
            () = tokio::time::sleep(timeout) => {
                Err(PublishError::unknown(format!("no answer within {timeout:?}")))
            }
        }
    }

    fn lanes(&self) -> Option<Lanes> {
        self.lanes
    }

    fn mode(&self) -> &'static str {
        match self.lanes {
            Some(_) => "lane",
            None => "single",
        }
    }

    async fn publish_batch(
        &self,
        batch: &[Delivery],
        timeout: Duration,
        limit: Duration,
    ) -> Vec<Result<Receipt, PublishError>> {
        let deadline = Instant::now() + limit;
        let mut results = Vec::with_capacity(batch.len());
        while results.last().is_none_or(Result::is_ok)
            && let Some(next) = batch.get(results.len())
        {
            let left = deadline.saturating_duration_since(Instant::now());
            results.push(self.publish(next, timeout.min(left)).await);
        }
        results.resize_with(batch.len(), || Err(PublishError::behind()));
        results
    }

    async fn lost(&self) -> String {
        self.lost.wait().await
    }

    async fn close(&self) {
        self.lost.set("the session was closed");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::sink::PublishErrorKind;
    use crate::testing::sink::delivery;

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn it_takes_and_tells() {
        let sink = Memory::new();
        let session = sink.open().await.unwrap();
        let receipt = session.publish(&delivery(1), SOON).await.unwrap();
        assert_eq!((receipt.position, receipt.duplicate), (Some(1), false));
        let again = session.publish(&delivery(1), SOON).await.unwrap();
        assert!(again.duplicate);
        assert_eq!(sink.wait_for(2, SOON).await.unwrap().len(), 2);
        assert!(sink.wait_for(3, SOON).await.unwrap_err().contains("2 came"));
    }

    #[tokio::test(start_paused = true)]
    async fn scripts_decide_in_order() {
        let sink = Memory::new();
        let gate = Gate::closed();
        let held = gate.clone();
        sink.on(move |d| {
            (d.event.seq == 1).then(|| Answer::Hold(held.clone(), Box::new(Answer::Take)))
        });
        sink.on(|d| (d.event.seq == 2).then_some(Answer::TakeSilently));
        sink.on(|_| Some(Answer::Fail(PublishError::retryable("no"))));
        let session = sink.open().await.unwrap();
        let kind = |result: Result<Receipt, PublishError>| result.unwrap_err().kind;
        assert_eq!(
            kind(session.publish(&delivery(2), SOON).await),
            PublishErrorKind::Unknown
        );
        assert_eq!(
            kind(session.publish(&delivery(3), SOON).await),
            PublishErrorKind::Retryable
        );
        let (one, two) = (delivery(1), delivery(1));
        let (first, ()) = tokio::join!(session.publish(&one, SOON), async { gate.open() });
        first.unwrap();
        session.publish(&two, SOON).await.unwrap();
        assert_eq!(sink.handed_over().len(), 4);
        assert_eq!(sink.received().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_are_lost_and_opened_again() {
        let sink = Memory::new();
        sink.on(|d| (d.event.seq == 7).then_some(Answer::LoseSession));
        let session = sink.open().await.unwrap();
        let error = session.publish(&delivery(7), SOON).await.unwrap_err();
        assert_eq!(error.kind, PublishErrorKind::Unknown);
        session.lost().await;
        sink.go_down();
        assert!(sink.open().await.is_err());
        sink.come_up();
        let session = sink.open().await.unwrap();
        session.publish(&delivery(8), SOON).await.unwrap();
        assert_eq!(sink.sessions_opened(), 2);
        assert_eq!(sink.received()[0].session, 2);
    }
}
