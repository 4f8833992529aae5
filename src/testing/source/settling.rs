//! Outcomes: published and retried ones, the fence, repeats.

use std::time::Duration;

use super::*;
use crate::source::{BegunEvent, Share};

pub(super) const CASES: &[Case] = list![
    a_published_event_leaves_and_is_kept,
    an_event_leaves_when_every_sink_has_it,
    a_retried_event_backs_off_for_its_sink_only,
    attempts_go_up_to_the_end_of_their_range,
    an_outcome_needs_the_row_it_names,
    a_fenced_outcome_leaves_only_the_fact_of_a_publish,
    flags_stand_in_the_order_of_the_outcomes,
    a_repeated_outcome_changes_nothing,
    later_outcomes_of_a_batch_go_on_from_earlier_ones,
    a_done_mark_is_never_undone,
    large_batches_settle_at_once,
    shared_events_are_deleted_only_when_all_have_them,
    what_was_begun_is_told_page_by_page,
];

/// One sink, acknowledged: the row is gone, the history has it in full with its receipt.
async fn a_published_event_leaves_and_is_kept(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "{ \"n\": 1 }").key("k"),
            NewRow::bytes("a", b"\x00\xff"),
            NewRow::json("a", "3").key("k"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes = [
        held.outcome(at[0], Some("k"), &[SINK], published()),
        held.outcome(at[1], None, &[SINK], published()),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [true, true]);
    assert_eq!(seqs(&read_all(&*source, SINK).await), [at[2].seq]);
    let kept = outbox.history().await;
    assert_eq!(kept.len(), 2);
    let first = kept.iter().find(|kept| kept.seq == at[0].seq);
    let first = first.expect("the first is kept");
    assert_eq!((first.id, &*first.sink), (at[0].id, SINK));
    assert_eq!(first.stream.as_deref(), Some("EVENTS"));
    assert_eq!(first.position, Some(7));
    assert_eq!(first.payload.as_deref(), Some(&b"{ \"n\": 1 }"[..]));
    let second = kept.iter().find(|kept| kept.seq == at[1].seq);
    let second = second.expect("the second is kept");
    assert_eq!(second.payload.as_deref(), Some(&b"\x00\xff"[..]));
}

/// Two sinks share an event: done for one, pending for the other, deleted with the last.
async fn an_event_leaves_when_every_sink_has_it(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1").key("k")]).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let first = held.outcome(at[0], Some("k"), &[SINK, "hooks"], published());
    let second = held.outcome(at[0], Some("k"), &["hooks", SINK], published());
    assert_eq!(settle(&*source, &[first]).await, [true]);

    let done = row(&*source, SINK, at[0].seq).await.expect("still a row");
    assert!(
        done.done && done.body.is_none(),
        "done, and no body fetched"
    );
    let pending = row(&*source, "hooks", at[0].seq).await.expect("pending");
    assert!(!pending.done && pending.body.is_some());

    assert_eq!(settle(&*source, &[second]).await, [true]);
    assert!(read_all(&*source, SINK).await.is_empty());
    let mut sinks: Vec<String> = outbox.history().await.into_iter().map(|k| k.sink).collect();
    sinks.sort();
    assert_eq!(sinks, [SINK, "hooks"], "history is per sink");
}

/// A charged failure: attempts and due time are this sink's own.
async fn a_retried_event_backs_off_for_its_sink_only(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1").key("k")]).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let minute = Duration::from_secs(60);
    let outcome =
        |attempts, pause| held.outcome(at[0], Some("k"), &[SINK], retried(attempts, pause));
    assert_eq!(
        settle(&*source, &[outcome(1, Duration::ZERO)]).await,
        [true]
    );
    let now = row(&*source, SINK, at[0].seq).await.expect("stays");
    assert_eq!((now.attempts, now.due_in), (1, Duration::ZERO));
    assert!(now.body.is_some(), "it is due");

    assert_eq!(settle(&*source, &[outcome(3, minute)]).await, [true]);
    let later = row(&*source, SINK, at[0].seq).await.expect("stays");
    assert_eq!(later.attempts, 3);
    assert!(
        later.due_in <= minute && later.due_in > Duration::from_secs(50),
        "due in {:?}",
        later.due_in
    );
    assert!(later.body.is_none(), "it is not due");
    let other = row(&*source, "hooks", at[0].seq).await.expect("stays");
    assert_eq!((other.attempts, other.due_in), (0, Duration::ZERO));

    let done = held.outcome(at[0], Some("k"), &[SINK], published());
    assert_eq!(settle(&*source, &[done]).await, [true]);
    assert!(read_all(&*source, SINK).await.is_empty());
    let due = source.due_after(SINK, crate::event::Timestamp(0), 10).await;
    assert!(due.expect("due after").is_empty(), "nothing of it is left");
}

/// Counters near the end of their range neither wrap nor fail.
async fn attempts_go_up_to_the_end_of_their_range(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1")]).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let most = i32::MAX as u32;
    let outcome = held.outcome(at[0], None, &[SINK], retried(most, Duration::ZERO));
    assert_eq!(settle(&*source, &[outcome]).await, [true]);
    let row = row(&*source, SINK, at[0].seq).await.expect("stays");
    assert_eq!(row.attempts, most);
}

/// Another id under the same seq, or no row at all: false, and nothing is written.
async fn an_outcome_needs_the_row_it_names(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1").key("k")]).await[0];
    let source = outbox.source();
    let held = own(&*source).await;
    let impostor = Inserted {
        id: Uuid::from_u128(1),
        ..at
    };
    let nobody = Inserted {
        seq: at.seq + 1_000,
        id: Uuid::from_u128(2),
    };
    for (at, key) in [(impostor, Some("k")), (nobody, None)] {
        for verdict in [
            published(),
            retried(9, Duration::from_secs(60)),
            discarded(),
        ] {
            let outcome = held.outcome(at, key, &[SINK], verdict);
            assert_eq!(settle(&*source, &[outcome]).await, [false]);
        }
    }
    let row = row(&*source, SINK, at.seq).await.expect("untouched");
    assert_eq!(
        (row.attempts, row.done, row.due_in),
        (0, false, Duration::ZERO)
    );
    assert!(outbox.history().await.is_empty());
    let filter = crate::source::admin::DiscardedFilter::default();
    let dead = outbox.admin().discarded(&filter, 10).await;
    assert!(dead.expect("discarded").is_empty());
}

/// Without the token nothing is written but the mark that a sink has the event: deletion, history, retries
/// and discards are the owner's.
async fn a_fenced_outcome_leaves_only_the_fact_of_a_publish(outbox: &dyn Outbox) {
    let rows = [1, 2, 3].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes = [
        fenced(held.outcome(at[0], Some("k"), &[SINK], published())),
        fenced(held.outcome(
            at[1],
            Some("k"),
            &[SINK],
            retried(5, Duration::from_secs(60)),
        )),
        fenced(held.outcome(at[2], Some("k"), &[SINK], discarded())),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [false; 3]);
    let rows = read_all(&*source, SINK).await;
    assert_eq!(seqs(&rows), places(&at), "nothing is deleted");
    let done: Vec<bool> = rows.iter().map(|row| row.done).collect();
    assert_eq!(done, [true, false, false], "a publish is a fact");
    assert_eq!((rows[1].attempts, rows[1].due_in), (0, Duration::ZERO));
    let filter = crate::source::admin::DiscardedFilter::default();
    let dead = outbox.admin().discarded(&filter, 10).await;
    assert!(dead.expect("discarded").is_empty());

    let mut elsewhere = held.outcome(at[1], Some("k"), &[SINK], published());
    elsewhere.lease.shard = SHARDS + 7;
    assert_eq!(
        settle(&*source, &[elsewhere]).await,
        [false],
        "no such shard"
    );
}

/// One flag per outcome, in the order given, whatever the order of seqs.
async fn flags_stand_in_the_order_of_the_outcomes(outbox: &dyn Outbox) {
    let rows = [1, 2, 3, 4].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let make = |n: usize| held.outcome(at[n], Some("k"), &[SINK], published());
    let mut wrong = make(1);
    wrong.id = Uuid::from_u128(5);
    let outcomes = [make(3), wrong, fenced(make(2)), make(0)];
    assert_eq!(
        settle(&*source, &outcomes).await,
        [true, false, false, true]
    );
    let left = read_all(&*source, SINK).await;
    assert_eq!(seqs(&left), [at[1].seq, at[2].seq]);
}

/// The same outcome again, after an answer was lost, adds nothing.
async fn a_repeated_outcome_changes_nothing(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k"),
            NewRow::json("a", "2").key("k"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let minute = Duration::from_secs(60);
    let shared = held.outcome(at[0], Some("k"), &[SINK, "hooks"], published());
    let failed = held.outcome(at[1], Some("k"), &[SINK], retried(2, minute));
    for _ in 0..3 {
        settle(&*source, &[shared.clone(), failed.clone()]).await;
    }
    settle(&*source, &[shared.clone(), shared.clone()]).await;
    assert_eq!(outbox.history().await.len(), 1);
    let rows = read_all(&*source, SINK).await;
    assert_eq!((rows[0].done, rows[1].attempts), (true, 2));

    let last = held.outcome(at[0], Some("k"), &["hooks", SINK], published());
    assert!(settle(&*source, &[last.clone(), last.clone()]).await[0]);
    assert_eq!(settle(&*source, &[last]).await, [false], "the row is gone");
    assert_eq!(outbox.history().await.len(), 2);
}

/// A batch may hold several outcomes of one event; they apply one after the other.
async fn later_outcomes_of_a_batch_go_on_from_earlier_ones(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k"),
            NewRow::json("a", "2").key("k"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let minute = Duration::from_secs(60);
    let outcomes = [
        held.outcome(at[0], Some("k"), &[SINK, "hooks"], retried(1, minute)),
        held.outcome(at[0], Some("k"), &[SINK, "hooks"], published()),
        held.outcome(at[0], Some("k"), &["hooks", SINK], published()),
        held.outcome(at[1], Some("k"), &[SINK], retried(1, minute)),
        held.outcome(at[1], Some("k"), &[SINK], retried(2, Duration::ZERO)),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [true; 5]);
    let rows = read_all(&*source, SINK).await;
    assert_eq!(seqs(&rows), [at[1].seq]);
    assert_eq!((rows[0].attempts, rows[0].due_in), (2, Duration::ZERO));
    assert_eq!(outbox.history().await.len(), 2);
}

/// What a sink has, it has: a failure or a discard that comes late does not take it back.
async fn a_done_mark_is_never_undone(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1").key("k")]).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let sinks = [SINK, "hooks"];
    let make = |verdict| held.outcome(at[0], Some("k"), &sinks, verdict);
    settle(&*source, &[make(published())]).await;
    settle(&*source, &[make(retried(4, Duration::from_secs(60)))]).await;
    settle(&*source, &[make(discarded())]).await;
    let row = row(&*source, SINK, at[0].seq).await.expect("hooks waits");
    assert!(row.done);
    let filter = crate::source::admin::DiscardedFilter::default();
    let dead = outbox.admin().discarded(&filter, 10).await;
    assert!(dead.expect("discarded").is_empty());
}

/// Batches of some thousand outcomes are one transaction like any other.
async fn large_batches_settle_at_once(outbox: &dyn Outbox) {
    let rows: Vec<NewRow> = (0..3_000)
        .map(|n| NewRow::json("a", "{}").key(&format!("k{}", n % 100)))
        .collect();
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes: Vec<Outcome> = (0..3_000)
        .map(|n| held.outcome(at[n], rows[n].ordering_key.as_deref(), &[SINK], published()))
        .collect();
    let flags = source.settle(&outcomes, false).await.expect("settle");
    assert_eq!(flags, vec![true; 3_000]);
    assert!(read_all(&*source, SINK).await.is_empty());
    assert_eq!(outbox.history().await.len(), 3_000);
}

/// [`Source::delete_done`] removes what its owner could not, and never an event that a sink of its route
/// still waits for, even when that sink is not asked about.
async fn shared_events_are_deleted_only_when_all_have_them(outbox: &dyn Outbox) {
    let rows = [1, 2, 3, 4].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let both = [SINK, "hooks"];
    let turned = ["hooks", SINK];
    let facts = [
        fenced(held.outcome(at[0], Some("k"), &both, published())),
        fenced(held.outcome(at[0], Some("k"), &turned, published())),
        fenced(held.outcome(at[1], Some("k"), &both, published())),
        fenced(held.outcome(at[2], Some("k"), &[SINK], published())),
    ];
    assert_eq!(settle(&*source, &facts).await, [false; 4]);
    let removed = source
        .delete_done(&route(&both), 100)
        .await
        .expect("delete");
    assert_eq!(removed, 1);
    let left = read_all(&*source, SINK).await;
    assert_eq!(seqs(&left), [at[1].seq, at[2].seq, at[3].seq]);
    let removed = source
        .delete_done(&route(&[SINK]), 100)
        .await
        .expect("delete");
    assert_eq!(removed, 1, "the one that hooks waits for stays");
    let left = read_all(&*source, SINK).await;
    assert_eq!(seqs(&left), [at[1].seq, at[3].seq]);
    let none = source.delete_done(&route(&[SINK]), 100).await;
    assert_eq!(none.expect("delete"), 0);
    let none = source.delete_done(&[], 100).await;
    assert_eq!(
        none.expect("delete"),
        0,
        "no sink asked about, nothing deleted"
    );
}

/// [`Source::begun`] tells which sinks of the routes written beside the marks still wait, whatever the page.
async fn what_was_begun_is_told_page_by_page(outbox: &dyn Outbox) {
    let rows = [1, 2, 3, 4, 5].map(|n| NewRow::json("a.b", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let (both, turned) = ([SINK, "hooks"], ["hooks", SINK]);
    let pause = Duration::from_secs(60);
    let outcomes = [
        held.outcome(at[0], Some("k"), &both, published()),
        held.outcome(at[1], Some("k"), &turned, retried(2, pause)),
        held.outcome(at[3], Some("k"), &both, published()),
        held.outcome(at[3], Some("k"), &turned, published()),
        // A fact without its owner: the row stays, and nothing waits for it.
        fenced(held.outcome(at[4], Some("k"), &[SINK], published())),
    ];
    settle(&*source, &outcomes).await;

    let share = |sink: &str, attempts, error: Option<&str>| Share {
        sink: Arc::from(sink),
        attempts,
        last_error: error.map(str::to_owned),
    };
    let event = |at: Inserted, open: Vec<Share>| BegunEvent {
        seq: at.seq,
        id: at.id,
        kind: "a.b".to_owned(),
        ordering_key: Some(Arc::from("k")),
        open,
    };
    let first = event(at[0], vec![share("hooks", 0, None)]);
    let failed = share("hooks", 2, Some("it did not work"));
    let mut open = vec![failed, share(SINK, 0, None)];
    open.sort_by(|a, b| a.sink.cmp(&b.sink));
    let second = event(at[1], open);

    let all = source.begun(i64::MIN, 100).await.expect("begun");
    assert_eq!(all.events, [first.clone(), second.clone()]);
    assert_eq!(all.next, None);
    let mut pages = Vec::new();
    let mut after = i64::MIN;
    loop {
        let page = source.begun(after, 1).await.expect("begun");
        pages.push(page.events);
        let Some(next) = page.next else { break };
        after = next;
    }
    assert_eq!(pages, [vec![first], vec![second], vec![], vec![]]);
}
