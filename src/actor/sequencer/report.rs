//! What a sequencer reports about an event: its outcome to the settler, and words to the log.

use std::time::Duration;

use tracing::{error, info, warn};

use super::{FeedContext, State, decide};
use crate::actor::claimer::feed::action::Work;
use crate::actor::settler;
use crate::sink::Receipt;
use crate::source::{DiscardReason, Verdict};

impl State {
    pub(super) fn published(&self, work: &Work, receipt: Receipt) {
        if receipt.duplicate {
            self.context.duplicate(&work.event, work.may_be_repeat);
        }
        self.settle(
            work,
            Verdict::Published {
                attempts: work.attempts,
                receipt,
            },
        );
    }

    /// Sets an event aside; the key goes on when that is committed.
    pub(super) fn discard(
        &mut self,
        work: &Work,
        reason: DiscardReason,
        code: Option<&'static str>,
        attempts: u32,
        error: String,
    ) {
        let FeedContext { database, sink, .. } = &*self.context;
        let event = &work.event;
        if reason == DiscardReason::Operator {
            info!(event_id = %event.id, kind = %event.kind, %database, %sink, "event is discarded: {error}");
        } else {
            error!(
                event_id = %event.id,
                kind = %event.kind,
                request_id = event.request_id().unwrap_or_default(),
                %database,
                %sink,
                reason = reason.as_str(),
                code,
                attempts,
                %error,
                "event is discarded; see `outboxd discarded show`"
            );
        }
        self.run.closing(event.seq);
        self.settle(
            work,
            Verdict::Discarded {
                reason,
                code,
                attempts,
                error,
            },
        );
    }

    pub(super) fn settle(&self, work: &Work, verdict: Verdict) {
        let waits = matches!(verdict, Verdict::Discarded { .. });
        let mut item = self.context.outcome(&work.event, &work.route, verdict);
        item.tell.sequencer = waits.then(|| self.myself.clone());
        self.context
            .settler
            .send(settler::Message::Settle(vec![item]));
    }

    pub(super) fn log_retry(&self, work: &Work, attempts: u32, pause: Duration, error: &str) {
        // The first failure of an event is news; the following ones are in its delivery row.
        if attempts == 1 || pause >= decide::BLOCKED {
            warn!(
                event_id = %work.event.id,
                kind = %work.event.kind,
                request_id = work.event.request_id().unwrap_or_default(),
                database = %self.context.database,
                sink = %self.context.sink,
                attempts,
                blocked = pause >= decide::BLOCKED,
                %error,
                "publish failed; the key waits and is tried again"
            );
        }
    }
}
