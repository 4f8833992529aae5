//! Several events at once, so that of each key a beginning is stored: as a batch of the stream where that pays, and
//! singly what it left open.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;

use super::atomic;
use super::order::Order;
use super::session::{Message, NatsSession};
use super::time::Time;
use crate::sink::behind::Behind;
use crate::sink::{Delivery, PublishError, PublishErrorKind, Receipt};

/// So few events of different keys have an acknowledgement each: that takes one round trip instead of two.
const FEW: usize = 8;

/// A batch may take so many round trips: it begins, it goes on, and it ends.
const ROUND_TRIPS: u32 = 4;

pub(super) type Answers = Vec<Result<Receipt, PublishError>>;

impl NatsSession {
    /// Publishes a batch, and answers for each event.
    pub(super) async fn publish_all(
        &self,
        batch: &[Delivery],
        timeout: Duration,
        limit: Duration,
    ) -> Answers {
        let time = Time::from_now(timeout, limit);
        let mut behind = Behind::default();
        let mut answers: Vec<Option<Result<Receipt, PublishError>>> = Vec::new();
        let mut good = Vec::with_capacity(batch.len());
        let mut messages = Vec::with_capacity(batch.len());
        for delivery in batch {
            match behind.unless(&delivery.event, || self.message_not_silent(delivery)) {
                Ok(message) => {
                    good.push(delivery);
                    messages.push(message);
                    answers.push(None);
                }
                Err(error) => answers.push(Some(Err(error))),
            }
        }
        let mut published = self
            .publish_in_order(&good, messages, &time)
            .await
            .into_iter();
        let missing = || Err(PublishError::unknown("no answer"));
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| published.next().unwrap_or_else(missing)))
            .collect()
    }

    async fn publish_in_order(
        &self,
        deliveries: &[&Delivery],
        messages: Vec<Message>,
        time: &Time,
    ) -> Answers {
        let few = messages.len() <= FEW && all_differ(deliveries);
        // One round trip may be all there is time for.
        let singly = few || time.left() < self.round_trip().get() * ROUND_TRIPS;
        match self.order() {
            Order::Lane if !singly => self.publish_in_lane(deliveries, messages, time).await,
            Order::Atomic if messages.len() >= atomic::WORTHWHILE => {
                match self.publish_atomic(&messages, time).await {
                    Some(answers) => answers,
                    // Nothing of it is stored, and one of them is to blame.
                    None => self.publish_singly(deliveries, messages, time).await,
                }
            }
            Order::Lane | Order::Atomic | Order::Single => {
                self.publish_singly(deliveries, messages, time).await
            }
        }
    }

    /// As one fast-ingest batch.
    async fn publish_in_lane(
        &self,
        deliveries: &[&Delivery],
        messages: Vec<Message>,
        time: &Time,
    ) -> Answers {
        let before = self.last_place();
        let mut outcome = self.publish_fast(messages, before, time).await;
        if outcome.passed_over {
            let stored = outcome.stored;
            let asked = self.ask_for_each(&deliveries[..stored], before, time).await;
            outcome.answers.splice(..stored, asked);
        }
        if let Some(refused) = outcome.refused
            && let rest = refused + 1
            && rest < deliveries.len()
        {
            let answers = &mut outcome.answers;
            self.go_on_singly(deliveries, rest, answers, time).await;
        }
        outcome.answers
    }

    /// The stream had some of these already, or says so: each is asked for by itself. One that it has from before the
    /// batch is a duplicate, and one without a place in it is not stored, whatever was said.
    async fn ask_for_each(&self, deliveries: &[&Delivery], before: u64, time: &Time) -> Answers {
        let mut answers = self.publish_again(deliveries, time).await;
        for answer in &mut answers {
            match answer {
                Ok(receipt) => {
                    receipt.duplicate &= receipt.position.is_some_and(|place| place <= before);
                }
                // The batch may have stored it all the same.
                Err(error) => error.kind = PublishErrorKind::Unknown,
            }
        }
        answers
    }

    /// The batch has ended with an event that was refused. Those of other keys need not wait for the next one, and if
    /// some of them will be refused too, this tells all of them at once.
    async fn go_on_singly(
        &self,
        deliveries: &[&Delivery],
        rest: usize,
        answers: &mut Answers,
        time: &Time,
    ) {
        let mut failed = Behind::default();
        for (delivery, answer) in deliveries.iter().zip(answers.iter()).take(rest) {
            if answer.is_err() {
                failed.add(&delivery.event);
            }
        }
        let open: Vec<usize> = (rest..deliveries.len())
            .filter(|index| !failed.includes(&deliveries[*index].event))
            .collect();
        let others: Vec<&Delivery> = open.iter().map(|index| deliveries[*index]).collect();
        let published = self.publish_again(&others, time).await;
        for (index, answer) in open.into_iter().zip(published) {
            answers[index] = answer;
        }
    }

    /// Singly, with messages made anew.
    async fn publish_again(&self, deliveries: &[&Delivery], time: &Time) -> Answers {
        let messages: Result<Vec<_>, _> = deliveries.iter().map(|one| self.message(one)).collect();
        match messages {
            Ok(messages) => self.publish_singly(deliveries, messages, time).await,
            // They were made before.
            Err(error) => deliveries
                .iter()
                .map(|_| Err(PublishError::unknown(error.message.clone())))
                .collect(),
        }
    }

    /// Each message with an acknowledgement of its own: of each key one after the other, all keys at once.
    async fn publish_singly(
        &self,
        deliveries: &[&Delivery],
        messages: Vec<Message>,
        time: &Time,
    ) -> Answers {
        let mut runs: Vec<Vec<(usize, Message)>> = Vec::new();
        let mut by_key = HashMap::new();
        let total = messages.len();
        for (index, (delivery, message)) in deliveries.iter().zip(messages).enumerate() {
            match delivery.event.ordering_key.as_deref() {
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
            let mut answers = Vec::with_capacity(run.len());
            let mut failed = false;
            for (index, message) in run {
                let answer = match failed {
                    true => Err(PublishError::behind()),
                    false => self.publish_message(message, time).await,
                };
                failed |= answer.is_err();
                answers.push((index, answer));
            }
            answers
        });
        let mut answers: Answers = (0..total).map(|_| Err(PublishError::behind())).collect();
        for (index, answer) in join_all(runs).await.into_iter().flatten() {
            answers[index] = answer;
        }
        answers
    }
}

fn all_differ(deliveries: &[&Delivery]) -> bool {
    let key = |delivery: &Delivery| delivery.event.ordering_key.clone();
    deliveries.iter().enumerate().all(|(index, delivery)| {
        delivery.event.ordering_key.is_none()
            || deliveries[..index]
                .iter()
                .all(|earlier| key(earlier) != key(delivery))
    })
}
