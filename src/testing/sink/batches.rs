//! What a session has to do that takes batches: of each key a beginning is stored, and the answers say which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use super::{SOON, Suite, assert_not_lost, expect_connection_lost, ids, must, soon};
use crate::sink::{Delivery, Lanes, PublishError, PublishErrorKind, Receipt, Session};

/// Events of a large batch, where the session takes so many.
const MANY: usize = 400;

impl Suite<'_> {
    /// Everything about batches; nothing for a session that takes none.
    pub(super) async fn batches_keep_order(&self) {
        let session = self.open().await;
        let Some(lanes) = session.lanes() else {
            return session.close().await;
        };
        assert!(
            lanes.count > 0 && lanes.events > 1 && lanes.bytes > 0,
            "{lanes:?} take no batch"
        );
        self.a_batch_arrives_whole_and_in_order(&session, lanes)
            .await;
        self.small_batches_are_answered(&session).await;
        if self.bench.looks_at_rows() {
            self.a_rejected_row_holds_its_key_alone(&session, lanes)
                .await;
        }
        assert_not_lost(&*session).await;
        session.close().await;
        self.a_batch_without_a_destination_is_not_ok(lanes).await;
        self.a_batch_in_a_closed_session_says_what_became_of_it(lanes)
            .await;
    }

    async fn a_batch_arrives_whole_and_in_order(&self, session: &Arc<dyn Session>, lanes: Lanes) {
        let count = MANY.min(lanes.events);
        let many_keys = self.of_keys(count, |n| (n % 11 != 0).then(|| format!("k{}", n % 50)));
        let one_key = self.of_keys(count, |_| Some("hot".to_owned()));
        let no_key = self.of_keys(count, |_| None);
        for batch in [many_keys, one_key, no_key] {
            let mut positions = BTreeSet::new();
            for result in publish(session, &batch).await {
                let receipt = must(result, "one of a batch");
                assert!(
                    !receipt.duplicate,
                    "a first hand-over was called a duplicate"
                );
                if let Some(position) = receipt.position {
                    assert!(positions.insert(position), "position {position} twice");
                }
            }
            // The answers say that they are there, so they must be there now.
            self.expect_in_order(&batch, &ids(&batch)).await;
        }
    }

    async fn small_batches_are_answered(&self, session: &Arc<dyn Session>) {
        assert!(publish(session, &[]).await.is_empty());
        for count in [1, 2, 3] {
            for keys in [1, count] {
                let batch = self.of_keys(count, |n| Some(format!("small{}", n % keys)));
                for result in publish(session, &batch).await {
                    must(result, "one of a small batch");
                }
                self.expect_in_order(&batch, &ids(&batch)).await;
            }
        }
    }

    async fn a_rejected_row_holds_its_key_alone(&self, session: &Arc<dyn Session>, lanes: Lanes) {
        const KEYS: usize = 5;
        let count = MANY.min(lanes.events);
        // The first of all, in the middle, and the last of all.
        for bad in [0, count / 2, count - 1] {
            let mut batch = self.of_keys(count, |n| Some(format!("r{}", n % KEYS)));
            batch[bad] = self.delivery(|event| {
                event.ordering_key = Some(format!("r{}", bad % KEYS).into());
                event.headers = r#"{"bad name":"v"}"#.to_owned();
            });
            let results = publish(session, &batch).await;
            let mut stored = Vec::new();
            for (at, result) in results.into_iter().enumerate() {
                let kind = result.map(drop).map_err(|error| error.kind);
                let expected = match at {
                    _ if at == bad => Err(PublishErrorKind::Rejected {
                        code: "invalid_header",
                    }),
                    _ if at > bad && at % KEYS == bad % KEYS => Err(PublishErrorKind::Behind),
                    _ => Ok(()),
                };
                assert_eq!(
                    kind, expected,
                    "event {at} of a batch whose event {bad} is bad"
                );
                if expected.is_ok() {
                    stored.push(batch[at].event.id);
                }
            }
            self.expect_in_order(&batch, &stored).await;
            // What was behind goes on without the bad one.
            let rest = batch.split_off(bad + 1);
            let rest: Vec<_> = rest
                .into_iter()
                .filter(|delivery| !stored.contains(&delivery.event.id))
                .collect();
            for result in publish(session, &rest).await {
                must(result, "one that had been behind a bad one");
            }
            self.expect_in_order(&rest, &ids(&rest)).await;
        }
    }

    async fn a_batch_without_a_destination_is_not_ok(&self, lanes: Lanes) {
        let session = self.open().await;
        self.bench.take_away().await;
        let count = MANY.min(lanes.events);
        let batch = self.of_keys(count, |n| Some(format!("gone{}", n % 3)));
        let results = publish(&session, &batch).await;
        for result in &results {
            match result.as_ref().map_err(|error| &error.kind) {
                Err(
                    PublishErrorKind::Unavailable { .. }
                    | PublishErrorKind::Unknown
                    | PublishErrorKind::Behind,
                ) => {}
                other => panic!("one of a batch without a destination ended as {other:?}"),
            }
        }
        soon(session.lost(), "lost() after the destination went away").await;
        expect_connection_lost(&*session, &self.delivery(|_| ())).await;
        self.bench.bring_back().await;
        let session = self.open().await;
        for delivery in &batch {
            must(
                session.publish(delivery, SOON).await,
                "a publish after the outage",
            );
        }
        let mut arrived = self.arrived_among(&batch).await;
        // What was unknown may be there twice.
        let mut seen = BTreeSet::new();
        arrived.retain(|id| seen.insert(*id));
        assert_eq!(
            by_key(&batch, &arrived),
            by_key(&batch, &ids(&batch)),
            "the order after an outage"
        );
        session.close().await;
    }

    async fn a_batch_in_a_closed_session_says_what_became_of_it(&self, lanes: Lanes) {
        let session = self.open().await;
        let count = MANY.min(lanes.events);
        let batch = self.of_keys(count, |n| Some(format!("closing{}", n % 3)));
        // Polled first, so that it may be under way when the session closes.
        let (results, ()) = tokio::join!(publish(&session, &batch), session.close());
        let next = self.open().await;
        let look = || async {
            must(
                next.publish(&self.delivery(|_| ()), SOON).await,
                "a later publish",
            );
            self.arrived_among(&batch).await
        };
        let before = look().await;
        for (result, delivery) in results.iter().zip(&batch) {
            let there = before.contains(&delivery.event.id);
            match result.as_ref().map_err(|error| &error.kind) {
                Ok(_) => assert!(
                    there,
                    "an event was acknowledged during close() and is not there"
                ),
                Err(PublishErrorKind::Unknown) => {}
                Err(kind) => assert!(!there, "an event that ended as {kind:?} is there"),
            }
        }
        let stored = by_key(&batch, &before);
        for (key, sent) in by_key(&batch, &ids(&batch)) {
            let stored = stored.get(&key).map(Vec::as_slice).unwrap_or_default();
            assert!(
                sent.starts_with(stored),
                "what is stored of key {key:?} is no beginning of what was sent"
            );
        }
        for _ in 0..20 {
            assert_eq!(look().await, before, "a closed session went on sending");
        }
        next.close().await;
    }

    /// Deliveries with the keys that `key` gives for their places.
    fn of_keys(&self, count: usize, key: impl Fn(usize) -> Option<String>) -> Vec<Delivery> {
        (0..count)
            .map(|n| self.delivery(|event| event.ordering_key = key(n).map(Into::into)))
            .collect()
    }

    /// Of `batch` exactly those with `expected` ids are there, once, and those of each key in their order.
    async fn expect_in_order(&self, batch: &[Delivery], expected: &[Uuid]) {
        let arrived = self.arrived_among(batch).await;
        assert_eq!(
            arrived.len(),
            expected.len(),
            "not each of a batch exactly once"
        );
        assert_eq!(
            by_key(batch, &arrived),
            by_key(batch, expected),
            "a batch did not keep the order of its keys"
        );
    }
}

/// Publishes a batch: as many answers as events.
async fn publish(
    session: &Arc<dyn Session>,
    batch: &[Delivery],
) -> Vec<Result<Receipt, PublishError>> {
    let results = soon(session.publish_batch(batch, SOON, SOON), "a batch").await;
    assert_eq!(results.len(), batch.len(), "answers to a batch");
    results
}

/// Ids by key, in the order given; an event without a key is its own.
fn by_key(batch: &[Delivery], order: &[Uuid]) -> BTreeMap<String, Vec<Uuid>> {
    let keys: BTreeMap<Uuid, String> = batch
        .iter()
        .map(|delivery| {
            let event = &delivery.event;
            let key = event.ordering_key.as_deref();
            let key = key.map_or_else(|| format!("none {}", event.id), |key| format!("key {key}"));
            (event.id, key)
        })
        .collect();
    let mut found: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
    for id in order {
        found.entry(keys[id].clone()).or_default().push(*id);
    }
    found
}
