//! Lanes: events gather while the batch before them is under way, and go together.
//!
//! ```text
//!   lane = hash of the key      queue ──batch──> session.publish_batch ──> answers
//!                                 ^                                          │
//!                                 └────────────── free ──────────────────────┘
//! ```
//!
//! A lane has one batch under way, so that nothing of a key is sent before the fate of what was sent before it is
//! known; and the busier the sink, the larger the batches.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::Message;
use super::hand_over::HandOver;
use super::shared::Shared;
use super::single::{OVER_TIME, OVERTIME, publish_span};
use crate::actor::sequencer::FeedContext;
use crate::actor::sequencer::decide::Reply;
use crate::actor::settler::batch::Item;
use crate::actor::settler::{self, Tell};
use crate::sink::{self, Delivery, PublishError, PublishErrorKind, Receipt, Session};
use crate::source::Verdict;
use crate::testing::fail_points::{fail_point, with_fail_point};

/// A batch takes several round trips: each may take the publish timeout, all together so many times that.
const PATIENCE: u32 = 4;

/// The lanes of a session; none without one that keeps order.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    limits: sink::Lanes,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<HandOver>,
    busy: bool,
}

impl Lanes {
    pub(super) fn of(limits: Option<sink::Lanes>) -> Self {
        let Some(limits) = limits else {
            return Self::default();
        };
        let lanes = std::iter::repeat_with(Lane::default).take(limits.count.max(1));
        Self {
            lanes: lanes.collect(),
            limits,
        }
    }

    /// The session keeps order.
    pub(super) fn are_there(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// Queues an event in the lane of its key, and tells which that is.
    pub(super) fn push(&mut self, hand_over: HandOver) -> usize {
        let lane = (hand_over.key % self.lanes.len().max(1) as u64) as usize;
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.queue.push_back(hand_over);
        }
        lane
    }

    /// Gives back what may not leave any more.
    pub(super) fn purge(&mut self) {
        for lane in &mut self.lanes {
            lane.queue.retain(HandOver::may_leave);
        }
    }

    /// The batch of this lane has ended.
    pub(super) fn free(&mut self, lane: usize) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.busy = false;
        }
    }

    /// What goes next, unless something is under way or nothing waits. What may not leave goes back.
    pub(super) fn take_batch(&mut self, lane: usize, timeout: Duration) -> Option<Vec<HandOver>> {
        let limits = self.limits;
        let lane = self.lanes.get_mut(lane).filter(|lane| !lane.busy)?;
        let mut batch: Vec<HandOver> = Vec::with_capacity(lane.queue.len().min(limits.events));
        let mut bytes = 0;
        while batch.len() < limits.events
            && let Some(next) = lane.queue.front()
        {
            bytes += next.delivery.event.weight();
            let first = batch.first();
            if first.is_some_and(|first| bytes > limits.bytes || !first.goes_with(next, timeout)) {
                break;
            }
            batch.extend(lane.queue.pop_front().filter(HandOver::may_leave));
        }
        lane.busy = !batch.is_empty();
        lane.busy.then_some(batch)
    }
}

impl Shared {
    /// Hands a batch over, answers for each of its events in their order, and frees the lane.
    pub(super) async fn publish_batch(
        self: Arc<Self>,
        session: Arc<dyn Session>,
        generation: u64,
        lane: usize,
        mut batch: Vec<HandOver>,
    ) {
        let left = batch.iter().map(|one| one.ownership().time_left()).min();
        let left = left.unwrap_or_default();
        let timeout = self.arguments.timeout.min(left);
        let limit = left.min(timeout * PATIENCE);
        // Held for as long as the publish takes.
        let _spans: Vec<_> = batch
            .iter()
            .map(|one| publish_span(&one.delivery))
            .collect();
        for one in &mut batch {
            one.permit.used();
            one.answer.sent();
        }
        let deliveries: Vec<Delivery> = batch.iter().map(|one| one.delivery.clone()).collect();
        fail_point!(HandedOver);
        let publish = with_fail_point!(Sent, session.publish_batch(&deliveries, timeout, limit));
        let publish = AssertUnwindSafe(publish).catch_unwind();
        let results = match tokio::time::timeout(limit + OVERTIME, publish).await {
            Ok(Ok(results)) => results,
            // Nobody knows which of them it was: each goes alone next, and the one is charged then.
            Ok(Err(_)) => all_unknown(batch.len(), "the sink panicked in the middle of a batch"),
            Err(_) => all_unknown(batch.len(), &format!("no answer within {limit:?}")),
        };
        fail_point!(Answered);
        // What was acknowledged before the connection ended is known all the same.
        let cut_off = results.iter().any(is_unknown) && session.lost().now_or_never().is_some();
        if cut_off {
            self.lose(generation, "the connection ended with a batch under way");
        }
        let over = batch
            .iter()
            .any(|one| one.ownership().time_left().is_zero());
        if over && results.iter().any(Result::is_err) {
            self.lose(generation, OVER_TIME);
        }
        self.answer(generation, batch, results, cut_off);
        let _ = self.myself.cast(Message::LaneFree(generation, lane));
    }

    /// What was stored is settled from here, all of a feed with one message; everything else is the sequencers'.
    fn answer(
        &self,
        generation: u64,
        batch: Vec<HandOver>,
        results: Vec<Result<Receipt, PublishError>>,
        cut_off: bool,
    ) {
        let stored = results.iter().filter(|result| result.is_ok()).count();
        // Beside others that were taken, what was not is a matter of its own subject.
        let tells = |result: &Result<Receipt, PublishError>| match result {
            Ok(_) => false,
            Err(error) => stored == 0 || !is_unavailable(error),
        };
        if let (Some(one), true) = (batch.first(), stored > 0) {
            self.take_signs_of_life(generation, one.key, stored as u64);
        }
        let missing = || {
            Err(PublishError::unknown(
                "the sink gave no answer for the event",
            ))
        };
        let mut results = results.into_iter();
        let mut outcomes = Outcomes::default();
        for one in batch {
            let result = results.next().unwrap_or_else(missing);
            drop(one.permit);
            match result {
                Ok(receipt) if !one.answer.is_awaited() => {
                    let event = &one.delivery.event;
                    if receipt.duplicate {
                        one.context.duplicate(event, one.delivery.may_be_repeat);
                    }
                    let attempts = one.delivery.attempt.saturating_sub(1);
                    let verdict = Verdict::Published { attempts, receipt };
                    outcomes.add(
                        &one.context,
                        one.context.outcome(event, &one.route, verdict),
                    );
                    one.answer.settled();
                }
                // That says nothing about the event: unanswered, it counts as lost on the way.
                Err(error) if cut_off && error.kind == PublishErrorKind::Unknown => {}
                result => {
                    if tells(&result) {
                        self.take_sign(generation, one.key, &result);
                    }
                    one.answer.give(Reply::Answered(result));
                }
            }
        }
        outcomes.send();
    }
}

/// Outcomes by feed.
#[derive(Default)]
struct Outcomes(Vec<(Arc<FeedContext>, Vec<Item<Tell>>)>);

impl Outcomes {
    fn add(&mut self, context: &Arc<FeedContext>, item: Item<Tell>) {
        let same = |(feed, _): &&mut (Arc<FeedContext>, _)| Arc::ptr_eq(feed, context);
        match self.0.iter_mut().find(same) {
            Some((_, items)) => items.push(item),
            None => self.0.push((Arc::clone(context), vec![item])),
        }
    }

    fn send(self) {
        for (context, items) in self.0 {
            // Without a settler the claimer is about to begin anew, and to read all of them again.
            context.settler.send(settler::Message::Settle(items));
        }
    }
}

fn is_unavailable(error: &PublishError) -> bool {
    let unavailable = PublishErrorKind::Unavailable {
        connection_lost: false,
    };
    error.kind == unavailable
}

fn is_unknown(result: &Result<Receipt, PublishError>) -> bool {
    matches!(result, Err(error) if error.kind == PublishErrorKind::Unknown)
}

fn all_unknown(count: usize, words: &str) -> Vec<Result<Receipt, PublishError>> {
    (0..count)
        .map(|_| Err(PublishError::unknown(words)))
        .collect()
}
