//! Shares that no route leads to any more: they end as discarded, with the reason `cancelled`.
//!
//! What an event was on its way to is written beside its marks. Each owner begins by comparing that with the
//! routes it has, page by page: a sink that is not through with an event, and to which the route of the event's
//! kind no longer leads, will never be, and nothing else would ever end its part. An event that nothing is
//! remembered of simply follows the new route, and one whose kind has no route at all stays as it is.

use std::sync::Arc;

use tracing::warn;

use super::active::Active;
use super::{Message, Phase, State, Tag};
use crate::actor::handle::guarded;
use crate::actor::settler::{self, batch::Item};
use crate::route::{Route, Routes};
use crate::source::{Begun, BegunEvent, DiscardReason, Outcome, Share, SourceError, Verdict};

/// Events of one page.
const PAGE: u32 = 500;
/// No feed: nobody here waits for these outcomes.
const NO_FEED: usize = usize::MAX;

/// How far the comparison is.
#[derive(Debug)]
pub struct Cancelling {
    /// Where the next page begins; `None`: this was the last.
    next: Option<i64>,
    /// A page is being read, or what it brought is being written.
    busy: bool,
    cancelled: u64,
}

impl Default for Cancelling {
    fn default() -> Self {
        Self {
            next: Some(i64::MIN),
            busy: false,
            cancelled: 0,
        }
    }
}

impl Cancelling {
    /// Everything begun is compared, and what had to end has ended.
    pub fn is_over(&self) -> bool {
        self.next.is_none() && !self.busy
    }
}

impl Active {
    /// Reads the next page, if there is one.
    pub(super) fn cancel(&mut self) {
        if self.cancelling.busy {
            return;
        }
        let Some(after) = self.cancelling.next else {
            return;
        };
        self.cancelling.busy = true;
        let (source, myself, epoch) = self.task();
        self.tasks.spawn(async move {
            let result = guarded(source.begun(after, PAGE)).await;
            let _ = myself.cast(Message::Begun(epoch, result));
        });
    }

    /// Takes in a page; true when outcomes went to the settler.
    fn begun(&mut self, result: Result<Begun, SourceError>, now: u64) -> bool {
        let page = match result {
            Ok(page) => page,
            Err(error) => {
                self.cancelling.busy = false;
                self.trouble(&error, now);
                return false;
            }
        };
        self.fine();
        self.cancelling.next = page.next;
        let mut sent = 0;
        for event in page.events {
            if !self
                .owned
                .includes(event.ordering_key.as_deref(), event.seq)
            {
                continue;
            }
            for (share, route) in stray(&event, &self.env.routes) {
                let outcome = self.cancelled(&event, share, route);
                sent += 1;
                self.settle(outcome);
            }
        }
        self.cancelling.busy = sent > 0;
        self.cancelling.cancelled += sent;
        self.tell_cancelled();
        sent > 0
    }

    fn tell_cancelled(&mut self) {
        let count = std::mem::take(&mut self.cancelling.cancelled);
        if self.cancelling.next.is_some() {
            self.cancelling.cancelled = count;
        } else if count > 0 {
            let database = &self.env.database;
            warn!(%database, count, "parts of events for sinks that no route leads to any more are set aside as cancelled");
        }
    }

    fn cancelled(&self, event: &BegunEvent, share: &Share, route: &Route) -> Outcome {
        let ownership = self.ownership();
        let words = format!(
            "the route {} no longer leads to sink {}",
            route.name, share.sink
        );
        Outcome {
            seq: event.seq,
            id: event.id,
            sink: Arc::clone(&share.sink),
            route: Arc::clone(&route.sinks),
            lease: ownership.lease_for(event.ordering_key.as_deref(), event.seq),
            verdict: Verdict::Discarded {
                reason: DiscardReason::Cancelled,
                code: None,
                attempts: share.attempts,
                error: match &share.last_error {
                    Some(error) => format!("{words}; before that: {error}"),
                    None => words,
                },
            },
        }
    }

    fn settle(&self, outcome: Outcome) {
        let tell = settler::Tell {
            claimer: self.myself.clone(),
            epoch: self.epoch,
            feed: NO_FEED,
            sequencer: None,
        };
        // Without a settler this incarnation is about to end, and the next one begins with this.
        self.env
            .settler
            .send(settler::Message::Settle(vec![Item { outcome, tell }]));
    }
}

/// The shares of an event that its kind's route no longer includes. None without a route: it may come back.
fn stray<'a>(
    event: &'a BegunEvent,
    routes: &'a Routes,
) -> impl Iterator<Item = (&'a Share, &'a Arc<Route>)> {
    let route = routes.of(&event.kind);
    event.open.iter().filter_map(move |share| {
        let route = route?;
        (!route.sinks.contains(&share.sink)).then_some((share, route))
    })
}

impl State {
    /// A page arrived. The next one waits until what this one brought is written, so that there are never more
    /// outcomes than one page brings.
    pub(super) fn begun(&mut self, epoch: u64, result: Result<Begun, SourceError>) {
        let now = self.now();
        let sent = match &mut self.phase {
            Phase::Active(active) if epoch == self.epoch => active.begun(result, now),
            _ => return,
        };
        if sent {
            self.flush(Tag::Cancelled(epoch));
        }
    }

    /// What a page brought is written.
    pub(super) fn cancelled(&mut self, epoch: u64) {
        self.with(epoch, |active, _| active.cancelling.busy = false);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::retry::Policy;

    #[test]
    fn only_what_the_route_left_out_is_stray() {
        let route = |name: &str, kind: &str, sinks: &[&str]| Route {
            name: name.to_owned(),
            kinds: vec![kind.to_owned()],
            sinks: sinks.iter().map(|sink| Arc::from(*sink)).collect(),
            retry: Policy::default(),
        };
        let routes = Routes::new(vec![
            route("a", "a.*", &["x", "y"]),
            route("b", "b.*", &["z"]),
        ]);
        let event = |kind: &str| BegunEvent {
            seq: 1,
            id: Uuid::nil(),
            kind: kind.to_owned(),
            ordering_key: None,
            open: ["y", "z"]
                .map(|sink| Share {
                    sink: Arc::from(sink),
                    attempts: 0,
                    last_error: None,
                })
                .to_vec(),
        };
        let of = |kind: &str| -> Vec<String> {
            stray(&event(kind), &routes)
                .map(|(share, _)| share.sink.to_string())
                .collect()
        };
        assert_eq!(
            of("a.b"),
            ["z"],
            "another route's sink is no reason to stay"
        );
        assert_eq!(of("b.b"), ["y"]);
        assert!(of("c.c").is_empty(), "without a route it stays");
    }
}
