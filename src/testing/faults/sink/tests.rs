//! What a faulty sink does to hand-overs, alone and in batches.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::*;
use crate::sink::memory::{self, Memory};
use crate::testing::sink::delivery_of;

const LIMIT: Duration = Duration::from_secs(5);

/// A session of a faulty sink, the sink inside, and what steers it.
async fn faulty() -> (Arc<dyn Session>, Memory, SinkFaults, FaultySink) {
    let (memory, faults) = (Memory::new(), SinkFaults::default());
    memory.keep_order(Some(Lanes::default()));
    let sink = FaultySink::new(Arc::new(memory.clone()), faults.clone());
    let session = sink.open().await.unwrap();
    (session, memory, faults, sink)
}

fn keyed(seq: i64, key: &str) -> Delivery {
    delivery_of(seq, |event| event.ordering_key = Some(key.into()))
}

fn taken(memory: &Memory) -> Vec<i64> {
    let received = memory.received();
    received.iter().map(|one| one.delivery.event.seq).collect()
}

/// What was answered, in a word each.
fn kinds(answers: &[Answer]) -> Vec<Option<PublishErrorKind>> {
    let kind = |answer: &Answer| answer.as_ref().err().map(|error| error.kind.clone());
    answers.iter().map(kind).collect()
}

#[tokio::test]
async fn a_fault_before_leaves_the_inner_sink_alone_and_wears_off() {
    let (session, memory, faults, _) = faulty().await;
    faults.fail(SinkOp::Publish, 2, PublishErrorKind::Full, When::Before);
    for seq in 1..=2 {
        let error = session.publish(&keyed(seq, "k"), LIMIT).await.unwrap_err();
        assert_eq!(error.kind, PublishErrorKind::Full);
    }
    session.publish(&keyed(3, "k"), LIMIT).await.unwrap();
    assert_eq!(taken(&memory), [3]);
    assert_eq!(faults.count(SinkOp::Publish), 3);
    assert_eq!(faults.total(), 4, "and one session was opened");
}

#[tokio::test]
async fn a_fault_after_hides_an_answer_but_not_the_deed() {
    let (session, memory, faults, _) = faulty().await;
    faults.fail(SinkOp::Publish, 1, PublishErrorKind::Unknown, When::After);
    let error = session.publish(&keyed(1, "k"), LIMIT).await.unwrap_err();
    assert_eq!(error.kind, PublishErrorKind::Unknown);
    assert_eq!(taken(&memory), [1]);
}

#[tokio::test]
async fn an_outage_strikes_everything_until_healed() {
    let (session, memory, faults, sink) = faulty().await;
    faults.outage(PublishErrorKind::Full);
    assert!(sink.open().await.is_err() && sink.check(&[]).await.is_err());
    let answers = session
        .publish_batch(&[keyed(1, "a"), keyed(2, "b"), keyed(3, "a")], LIMIT, LIMIT)
        .await;
    let (full, behind) = (PublishErrorKind::Full, PublishErrorKind::Behind);
    assert_eq!(
        kinds(&answers),
        [Some(full.clone()), Some(full), Some(behind)]
    );
    faults.heal();
    session.publish(&keyed(4, "a"), LIMIT).await.unwrap();
    assert_eq!(taken(&memory), [4]);
}

#[tokio::test]
async fn in_a_batch_what_is_behind_a_fault_of_its_key_stays() {
    let (session, memory, faults, _) = faulty().await;
    let batch: Vec<Delivery> = (1..=6)
        .map(|seq| keyed(seq, if seq % 2 == 1 { "odd" } else { "even" }))
        .collect();
    faults.fail(
        SinkOp::Publish,
        1,
        PublishErrorKind::Retryable,
        When::Before,
    );
    let answers = session.publish_batch(&batch, LIMIT, LIMIT).await;
    let (failed, behind) = (PublishErrorKind::Retryable, PublishErrorKind::Behind);
    let behind = || Some(behind.clone());
    assert_eq!(
        kinds(&answers),
        [Some(failed), None, behind(), None, behind(), None]
    );
    assert_eq!(taken(&memory), [2, 4, 6]);

    faults.fail(
        SinkOp::PublishBatch,
        1,
        PublishErrorKind::Unknown,
        When::After,
    );
    let answers = session.publish_batch(&batch, LIMIT, LIMIT).await;
    let unknown = || Some(PublishErrorKind::Unknown);
    assert_eq!(
        kinds(&answers),
        [unknown(), unknown(), behind(), behind(), behind(), behind()]
    );
    assert_eq!(taken(&memory), [2, 4, 6, 1, 2]);
    assert_eq!(faults.count(SinkOp::Publish), 12);
    assert_eq!(faults.count(SinkOp::PublishBatch), 2);
    let calls = faults.calls();
    assert!(matches!(&calls[..], [Call::Batch(one), Call::Batch(_)] if one.len() == 6));
}

#[tokio::test]
async fn what_the_inner_sink_says_goes_before_a_hidden_answer() {
    let (session, memory, faults, _) = faulty().await;
    memory.on(|_| {
        Some(memory::Answer::Fail(PublishError::rejected(
            "refused", "no",
        )))
    });
    let batch = [keyed(1, "k"), keyed(2, "k"), keyed(3, "k")];
    faults.fail(SinkOp::Publish, 1, PublishErrorKind::Retryable, When::After);
    let answers = session.publish_batch(&batch, LIMIT, LIMIT).await;
    let rejected = PublishErrorKind::Rejected { code: "refused" };
    let behind = || Some(PublishErrorKind::Behind);
    assert_eq!(kinds(&answers), [Some(rejected), behind(), behind()]);
    assert!(taken(&memory).is_empty());
}

#[tokio::test]
async fn a_lost_connection_is_told_to_whoever_waits_and_the_next_session_works() {
    let (session, memory, faults, sink) = faulty().await;
    faults.answer_late(SinkOp::Publish, Duration::from_secs(600));
    let (one, batch) = (keyed(1, "a"), [keyed(2, "b"), keyed(3, "b")]);
    let (answer, answers, reason, ()) = tokio::join!(
        session.publish(&one, LIMIT),
        session.publish_batch(&batch, LIMIT, LIMIT),
        session.lost(),
        async {
            memory.wait_for(3, LIMIT).await.unwrap();
            faults.lose_connections();
        }
    );
    assert_eq!(answer.unwrap_err().kind, PublishErrorKind::Unknown);
    let unknown = || Some(PublishErrorKind::Unknown);
    assert_eq!(kinds(&answers), [unknown(), unknown()]);
    assert!(reason.contains("injected"), "{reason}");
    let error = session.publish(&keyed(4, "a"), LIMIT).await.unwrap_err();
    assert!(error.is_connection_lost());
    faults.heal();
    let next = sink.open().await.unwrap();
    next.publish(&keyed(4, "a"), LIMIT).await.unwrap();
    assert_eq!(taken(&memory), [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn delays_are_before_the_deed_and_late_answers_after_it_once_a_batch() {
    let (session, memory, faults, _) = faulty().await;
    let second = Duration::from_secs(1);
    faults.delay(SinkOp::Publish, second);
    let batch = [keyed(1, "k"), keyed(2, "k")];
    let call = session.publish_batch(&batch, LIMIT, LIMIT);
    assert!(tokio::time::timeout(second / 2, call).await.is_err());
    assert!(taken(&memory).is_empty());
    faults.heal();
    faults.answer_late(SinkOp::PublishBatch, second);
    let began = tokio::time::Instant::now();
    let answers = session.publish_batch(&batch, LIMIT, LIMIT).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(began.elapsed(), second);
}

#[tokio::test]
async fn the_next_call_panics_and_only_that() {
    let (session, memory, faults, _) = faulty().await;
    faults.panic(SinkOp::Publish);
    let call = Arc::clone(&session);
    let panicked = tokio::spawn(async move { call.publish(&keyed(1, "k"), LIMIT).await.is_ok() });
    assert!(panicked.await.unwrap_err().is_panic());
    session.publish(&keyed(2, "k"), LIMIT).await.unwrap();
    assert_eq!(taken(&memory), [2]);
}
