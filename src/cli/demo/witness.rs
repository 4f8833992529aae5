//! A sink around a sink that remembers what was delivered, so that the demo can prove its claims.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Notify;
use uuid::Uuid;

use super::super::output::say;
use crate::sink::{Delivery, PublishError, PublishErrorKind, Receipt, Session, Sink, SinkError};

/// How the sink says that its reader is gone.
const LOST: PublishErrorKind = PublishErrorKind::Unavailable {
    connection_lost: true,
};

/// The sink of the demo.
pub(super) struct Witness {
    inner: Arc<dyn Sink>,
    seen: Arc<Seen>,
}

/// What was delivered so far.
#[derive(Debug)]
pub(super) struct Seen {
    facts: Mutex<Facts>,
    start: Instant,
    /// Nobody reads standard output any more.
    unread: Notify,
}

/// Deliveries as the sink acknowledged them.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Acknowledged events.
    pub(super) delivered: u64,
    /// First deliveries per key, in the order of the acknowledgements.
    pub(super) by_key: BTreeMap<String, Vec<(i64, Uuid)>>,
    /// Ids of all of them.
    ids: HashSet<Uuid>,
    /// Deliveries that came again.
    pub(super) repeats: u64,
    /// When the first one came, since the witness was made.
    pub(super) first: Option<Duration>,
}

impl Witness {
    pub(super) fn around(inner: Arc<dyn Sink>) -> (Self, Arc<Seen>) {
        let seen = Arc::new(Seen {
            facts: Mutex::default(),
            start: Instant::now(),
            unread: Notify::new(),
        });
        let witness = Self {
            inner,
            seen: Arc::clone(&seen),
        };
        (witness, seen)
    }
}

impl Seen {
    pub(super) fn facts(&self) -> Facts {
        self.lock().clone()
    }

    pub(super) fn delivered(&self) -> u64 {
        self.lock().delivered
    }

    /// Resolves when the sink has lost its reader. Cancel safe.
    pub(super) async fn unread(&self) {
        self.unread.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, delivery: &Delivery) {
        let event = &delivery.event;
        let key = event.ordering_key.as_deref().unwrap_or_default().to_owned();
        let mut facts = self.lock();
        if facts.first.is_none() {
            let after = self.start.elapsed();
            facts.first = Some(after);
            say(format_args!(
                "relay   the first event is out, {} ms after the start; one line each on standard output",
                after.as_millis()
            ));
        }
        if facts.ids.insert(event.id) {
            facts.delivered += 1;
            facts
                .by_key
                .entry(key)
                .or_default()
                .push((event.seq, event.id));
        } else {
            facts.repeats += 1;
        }
    }
}

#[async_trait]
impl Sink for Witness {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn open(&self) -> Result<Arc<dyn Session>, SinkError> {
        Ok(Arc::new(Watched {
            inner: self.inner.open().await?,
            seen: Arc::clone(&self.seen),
        }))
    }

    async fn check(&self, kinds: &[String]) -> Result<Vec<String>, SinkError> {
        self.inner.check(kinds).await
    }
}

struct Watched {
    inner: Arc<dyn Session>,
    seen: Arc<Seen>,
}

#[async_trait]
impl Session for Watched {
    async fn publish(
        &self,
        delivery: &Delivery,
        timeout: Duration,
    ) -> Result<Receipt, PublishError> {
        let result = self.inner.publish(delivery, timeout).await;
        match &result {
            Ok(_) => self.seen.note(delivery),
            Err(error) if error.kind == LOST => self.seen.unread.notify_one(),
            Err(_) => {}
        }
        result
    }

    async fn lost(&self) -> String {
        self.inner.lost().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
