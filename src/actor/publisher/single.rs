//! A publish of one event, with an acknowledgement of its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tracing::Instrument;

use super::hand_over::HandOver;
use super::shared::Shared;
use crate::actor::handle::panic_text;
use crate::actor::sequencer::decide::Reply;
use crate::sink::{Delivery, PublishError, PublishErrorKind, Receipt, Session};
use crate::testing::fail_points::{fail_point, with_fail_point};

/// A sink that does not come back from a publish by itself is left this much later.
pub(super) const OVERTIME: Duration = Duration::from_millis(250);

/// The span around one publish: event id, kind and request id.
pub(super) fn publish_span(delivery: &Delivery) -> tracing::Span {
    // The fields are worked out only where somebody takes the span.
    tracing::info_span!(
        "outbox.publish",
        event_id = %delivery.event.id,
        kind = %delivery.event.kind,
        request_id = delivery.event.request_id(),
    )
}

impl Shared {
    /// Hands one event over and answers for it.
    pub(super) async fn publish(
        self: Arc<Self>,
        session: Arc<dyn Session>,
        generation: u64,
        hand_over: HandOver,
    ) {
        let span = publish_span(&hand_over.delivery);
        self.hand_over(session, generation, hand_over)
            .instrument(span)
            .await;
    }

    async fn hand_over(
        self: Arc<Self>,
        session: Arc<dyn Session>,
        generation: u64,
        mut hand_over: HandOver,
    ) {
        let left = hand_over.ownership().time_left();
        if !hand_over.may_leave() {
            return;
        }
        hand_over.permit.used();
        hand_over.answer.sent();
        let limit = self.arguments.timeout.min(left);
        fail_point!(HandedOver);
        let publish = with_fail_point!(Sent, session.publish(&hand_over.delivery, limit));
        let publish = AssertUnwindSafe(publish).catch_unwind();
        let result = match tokio::time::timeout(limit + OVERTIME, publish).await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(PublishError::panicked(format!(
                "the sink panicked: {}",
                panic_text(&*panic)
            ))),
            Err(_) => Err(PublishError::unknown(format!("no answer within {limit:?}"))),
        };
        fail_point!(Answered);
        if unanswered(&result) && session.lost().now_or_never().is_some() {
            // The connection ended under it: that says nothing about this event.
            self.lose(generation, "the connection ended with hand-overs under way");
            return;
        }
        self.take_sign(generation, hand_over.key, &result);
        if result.is_err() && hand_over.ownership().time_left().is_zero() {
            self.lose(generation, OVER_TIME);
        }
        drop(hand_over.permit);
        hand_over.answer.give(Reply::Answered(result));
    }
}

/// Whatever the client still has buffered must not leave under a lease that may be another's.
pub(super) const OVER_TIME: &str = "a hand-over was still open when the lease's time was over";

fn unanswered(result: &Result<Receipt, PublishError>) -> bool {
    matches!(result, Err(error) if error.kind == PublishErrorKind::Unknown)
}
