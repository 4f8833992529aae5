//! What is remembered of events that wait: which sinks they were on their way to, and are not through with.

use std::sync::Arc;

use uuid::Uuid;

/// One page of [`Source::begun`](super::Source::begun).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Begun {
    /// Events of the page that have a share left, ascending by seq.
    pub events: Vec<BegunEvent>,
    /// The page ended here and there may be more; `None`: there are none.
    pub next: Option<i64>,
}

/// An event that was on its way when the route that is written beside its marks held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunEvent {
    /// Place.
    pub seq: i64,
    /// Identity.
    pub id: Uuid,
    /// Kind.
    pub kind: String,
    /// Key.
    pub ordering_key: Option<Arc<str>>,
    /// What is left of that route, by sink: sinks that are not through with it.
    pub open: Vec<Share>,
}

/// One sink's part of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The sink.
    pub sink: Arc<str>,
    /// Charged failures.
    pub attempts: u32,
    /// What happened last, if anything did.
    pub last_error: Option<String>,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Begun {
    /// From one row for each event and sink, those of one event beside each other: where the row stands, and what
    /// is left to do, if anything is.
    pub(super) fn gather(
        rows: impl Iterator<Item = (i64, Option<(BegunEvent, Share)>)>,
        limit: u32,
    ) -> Self {
        let mut events: Vec<BegunEvent> = Vec::new();
        let (mut seen, mut last) = (0, None);
        for (seq, left) in rows {
            seen += u32::from(last != Some(seq));
            last = Some(seq);
            let Some((event, share)) = left else { continue };
            match events.last_mut() {
                Some(last) if last.seq == seq => last.open.push(share),
                _ => events.push(BegunEvent {
                    open: vec![share],
                    ..event
                }),
            }
        }
        Self {
            events,
            next: last.filter(|_| seen >= limit),
        }
    }
}
