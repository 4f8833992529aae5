//! How order is kept, chosen by what the stream allows, and the ways to publish several messages.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::session::{Message, NatsSession};
use super::stream::Config;
use super::{Mode, atomic, fast};
use crate::event::Event;
use crate::sink::{Lanes, PublishError, Receipt};

/// Bytes of a batch, at most.
const BYTES: usize = 4 << 20;
/// So few events of different keys have an acknowledgement each: that takes one round trip instead of two.
const FEW: usize = 8;

/// How order is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Fast-ingest batches.
    Lane,
    /// Long runs as atomic batches; otherwise one event of a key in flight.
    Atomic,
    /// One event of a key in flight.
    Single,
}

impl Order {
    /// What to do with this stream: what is configured, where the stream allows it.
    pub(super) fn of(mode: Mode, stream: &Config) -> Self {
        match mode {
            Mode::Auto | Mode::Lane if stream.allow_batched => Self::Lane,
            Mode::Auto | Mode::Atomic if stream.allow_atomic => Self::Atomic,
            Mode::Auto | Mode::Lane | Mode::Atomic | Mode::Single => Self::Single,
        }
    }

    /// The word in status and configuration.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Atomic => "atomic",
            Self::Single => "single",
        }
    }

    pub(super) fn lanes(self) -> Option<Lanes> {
        let events = match self {
            Self::Lane => fast::MESSAGES,
            Self::Atomic => atomic::MESSAGES,
            Self::Single => return None,
        };
        Some(Lanes {
            count: 1,
            events,
            bytes: BYTES,
        })
    }
}

/// How order is kept with this stream, what that costs, and what would be better: for `check`.
pub(super) fn remark(mode: Mode, stream: &Config) -> String {
    let name = &stream.name;
    match Order::of(mode, stream) {
        Order::Lane => format!(
            "stream {name} allows batches (allow_batched): many events of a key are in flight, in ordered lanes"
        ),
        Order::Atomic => format!(
            "runs of {} events and more go to stream {name} as atomic batches (allow_atomic); otherwise one event of \
             each key is in flight, so a key gets one event a round trip: allow_batched on the stream (nats-server \
             2.14) lifts that",
            atomic::WORTHWHILE
        ),
        Order::Single if mode == Mode::Single => format!(
            "mode = single: one event of each key is in flight, so a key gets one event a round trip to stream {name}"
        ),
        Order::Single => format!(
            "stream {name} allows no batches: one event of each key is in flight, so a key gets one event a round \
             trip: allow_batched on the stream (nats-server 2.14) lifts that"
        ),
    }
}

/// A mode that is asked for and that the stream does not allow.
pub(super) fn finding(mode: Mode, stream: &Config) -> Option<String> {
    let (asked, flag, since) = match mode {
        Mode::Lane => (Order::Lane, "allow_batched", "2.14"),
        Mode::Atomic => (Order::Atomic, "allow_atomic", "2.12"),
        Mode::Auto | Mode::Single => return None,
    };
    (Order::of(mode, stream) != asked).then(|| {
        format!(
            "mode = {} needs {flag} on stream {}, which is off or unknown to the server (nats-server {since} or newer \
             has it): until then one event of each key is in flight",
            asked.as_str(),
            stream.name
        )
    })
}

impl NatsSession {
    /// Publishes messages so that of each key a beginning is stored.
    pub(super) async fn publish_in_order(
        &self,
        events: &[&Event],
        messages: Vec<Message>,
        timeout: Duration,
    ) -> Vec<Result<Receipt, PublishError>> {
        let deadline = Instant::now() + timeout;
        let singly = |messages| self.publish_singly(events, messages, deadline, timeout);
        let few = messages.len() <= FEW && all_differ(events);
        match self.order() {
            Order::Lane if !few => self.publish_fast(messages, deadline, timeout).await,
            Order::Atomic if messages.len() >= atomic::WORTHWHILE => {
                match self.publish_atomic(&messages, deadline, timeout).await {
                    Some(results) => results,
                    // Nothing of it is stored, and one of them is to blame.
                    None => singly(messages).await,
                }
            }
            Order::Lane | Order::Atomic | Order::Single => singly(messages).await,
        }
    }

    /// Each message with an acknowledgement of its own: of each key one after the other, all keys at once.
    async fn publish_singly(
        &self,
        events: &[&Event],
        messages: Vec<Message>,
        deadline: Instant,
        timeout: Duration,
    ) -> Vec<Result<Receipt, PublishError>> {
        let mut runs: Vec<Vec<(usize, Message)>> = Vec::new();
        let mut by_key = HashMap::new();
        let total = messages.len();
        for (index, (event, message)) in events.iter().zip(messages).enumerate() {
            match event.ordering_key.as_deref() {
                Some(key) => {
                    let run = *by_key.entry(key).or_insert_with(|| {
                        runs.push(Vec::new());
                        runs.len() - 1
                    });
                    runs[run].push((index, message));
                }
                None => runs.push(vec![(index, message)]),
            }
        }
        let runs = runs.into_iter().map(|run| async move {
            let mut results = Vec::with_capacity(run.len());
            let mut failed = false;
            for (index, message) in run {
                let result = match failed {
                    true => Err(PublishError::behind()),
                    false => self.publish_message(message, deadline, timeout).await,
                };
                failed |= result.is_err();
                results.push((index, result));
            }
            results
        });
        let mut results: Vec<_> = (0..total).map(|_| Err(PublishError::behind())).collect();
        for (index, result) in join_all(runs).await.into_iter().flatten() {
            results[index] = result;
        }
        results
    }
}

fn all_differ(events: &[&Event]) -> bool {
    let keys = || events.iter().enumerate();
    keys().all(|(index, event)| {
        event.ordering_key.is_none()
            || events[..index]
                .iter()
                .all(|earlier| earlier.ordering_key != event.ordering_key)
    })
}
