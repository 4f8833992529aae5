//! What keys wait for, as the table knows it, and the events that an operator picks.

use std::time::Duration;

use uuid::Uuid;

use crate::event::Timestamp;

/// A failed event that is due again only after this long is blocked: no back-off is that long.
pub(crate) const BLOCKED: Duration = Duration::from_secs(50 * 365 * 24 * 3600);

/// Most pending events counted behind another one.
pub const MAX_BEHIND: u32 = 1_000;

/// What keeps an order of its own: a key, or an event without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyName {
    /// Events of this key.
    Named(String),
    /// The event without a key at this seq.
    Alone(i64),
}

/// A pending event as one sink sees it, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEvent {
    /// Place.
    pub seq: i64,
    /// Identity.
    pub id: Uuid,
    /// Kind.
    pub kind: String,
    /// Key.
    pub ordering_key: Option<String>,
    /// When it happened.
    pub occurred_at: Timestamp,
    /// When its writer lets it go.
    pub available_at: Timestamp,
    /// Charged failures.
    pub attempts: i64,
    /// When it is tried again, after a failure.
    pub next_at: Option<Timestamp>,
    /// What happened last.
    pub last_error: Option<String>,
    /// When that was.
    pub failed_at: Option<Timestamp>,
    /// It is to be set aside: an operator's word.
    pub skip: Option<String>,
    /// The present by the database's clock.
    pub now: Timestamp,
}

/// What an event waits for by itself, leaving aside what is in front of it and what is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Its turn: it may go, or is on its way.
    Turn,
    /// Its owner, who sets it aside by an operator's word.
    Skip,
    /// The time that its writer gave it.
    Delay,
    /// The end of its back-off.
    BackOff,
    /// An operator: its budget is spent (`on_exhausted = "block"`).
    Operator,
}

impl KeyEvent {
    /// What it waits for.
    pub fn waits_for(&self) -> WaitsFor {
        let far = i64::try_from(BLOCKED.as_micros()).unwrap_or(i64::MAX);
        if self.skip.is_some() {
            return WaitsFor::Skip;
        }
        match self.next_at {
            Some(next) if next.0 > self.now.0.saturating_add(far) => WaitsFor::Operator,
            Some(next) if next > self.now && next >= self.available_at => WaitsFor::BackOff,
            _ if self.available_at > self.now => WaitsFor::Delay,
            _ => WaitsFor::Turn,
        }
    }
}

/// An event that something keeps from going, with what stands behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// For this sink; `None`: for every sink of its route.
    pub sink: Option<String>,
    /// The event.
    pub event: KeyEvent,
    /// Pending events of its key behind it, counted up to [`MAX_BEHIND`].
    pub behind: u64,
}

/// One event for one sink, picked by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// Place.
    pub seq: i64,
    /// Sink.
    pub sink: String,
}

impl Pick {
    /// The places of picked events, each once, ascending.
    pub(crate) fn seqs(picks: &[Self]) -> Vec<i64> {
        let mut seqs: Vec<i64> = picks.iter().map(|pick| pick.seq).collect();
        seqs.sort_unstable();
        seqs.dedup();
        seqs
    }

    /// What the audit keeps of picked events.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn detail(picks: &[Self], count: u64) -> serde_json::Value {
        let events: Vec<serde_json::Value> = picks
            .iter()
            .map(|pick| serde_json::json!({ "seq": pick.seq, "sink": pick.sink }))
            .collect();
        serde_json::json!({ "count": count, "events": events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_waits_for_the_last_thing_that_keeps_it() {
        let event = |available: i64, next: Option<i64>, skip: Option<&str>| KeyEvent {
            seq: 1,
            id: Uuid::nil(),
            kind: "a".into(),
            ordering_key: None,
            occurred_at: Timestamp(0),
            available_at: Timestamp(available),
            attempts: 0,
            next_at: next.map(Timestamp),
            last_error: None,
            failed_at: None,
            skip: skip.map(str::to_owned),
            now: Timestamp(1_000),
        };
        let century = 100 * 365 * 24 * 3_600 * 1_000_000;
        let cases = [
            (event(0, None, None), WaitsFor::Turn),
            (event(0, Some(999), None), WaitsFor::Turn),
            (event(2_000, None, None), WaitsFor::Delay),
            (event(2_000, Some(1_500), None), WaitsFor::Delay),
            (event(0, Some(1_500), None), WaitsFor::BackOff),
            (event(0, Some(century), None), WaitsFor::Operator),
            (event(0, Some(century), Some("no")), WaitsFor::Skip),
        ];
        for (event, expected) in cases {
            assert_eq!(event.waits_for(), expected, "{event:?}");
        }
    }
}
