//! What is remembered of deliveries, for `verify`.

use std::ops::ControlFlow;

use super::*;
use crate::event::Timestamp;
use crate::source::admin::{DiscardedFilter, Operator};
use crate::source::trail::{Hand, Known, Tally, Window};

pub(super) const CASES: &[Case] = list![
    the_trail_has_what_was_delivered_to_its_sink,
    a_trail_ends_where_it_is_told,
    a_publish_that_only_its_mark_knew_is_in_the_history_when_its_row_goes,
    a_publish_that_was_told_twice_is_in_the_history_once,
    what_was_not_delivered_is_counted,
    an_event_is_known_wherever_it_stands,
    what_operators_did_is_remembered,
];

const HOUR: i64 = 3_600 * 1_000_000;

fn around_now() -> Window {
    let now = Timestamp::now();
    Window {
        since: Timestamp(now.0 - HOUR),
        until: Timestamp(now.0 + HOUR),
    }
}

/// A delivery as the trail told it.
type Told = (i64, Uuid, Option<String>, Option<String>, Option<u64>, bool);

/// The whole trail, ascending by seq; of each event the receipt before the mark.
async fn trail(outbox: &dyn Outbox, sink: &str, window: Window) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    let mut take = |delivered: crate::source::trail::Delivered<'_>| {
        assert!(window.contains(delivered.at), "{delivered:?}");
        told.push((
            delivered.seq,
            delivered.id,
            delivered.ordering_key.map(str::to_owned),
            delivered.stream.map(str::to_owned),
            delivered.position,
            delivered.receipt,
        ));
        ControlFlow::Continue(())
    };
    outbox
        .admin()
        .trail(sink, window, &mut take)
        .await
        .expect("trail");
    told.sort_by_key(|told| (told.0, !told.5));
    told
}

/// Receipts, and marks beside events that are still there; of this sink, and of the window.
async fn the_trail_has_what_was_delivered_to_its_sink(outbox: &dyn Outbox) {
    let rows = [1, 2, 3, 4].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let turned = ["hooks", SINK];
    let outcomes = [
        held.outcome(at[0], Some("k"), &[SINK], published()),
        held.outcome(at[1], Some("k"), &[SINK, "hooks"], published()),
        held.outcome(at[2], Some("k"), &turned, published()),
        held.outcome(at[3], Some("k"), &[SINK], discarded()),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [true; 4]);

    let told = trail(outbox, SINK, around_now()).await;
    let receipts: Vec<_> = told.iter().filter(|told| told.5).collect();
    assert_eq!(receipts.len(), 2, "{told:?}");
    for (receipt, at) in receipts.iter().zip(&at) {
        assert_eq!((receipt.0, receipt.1), (at.seq, at.id));
        assert_eq!(receipt.2.as_deref(), Some("k"));
        assert_eq!((receipt.3.as_deref(), receipt.4), (Some("EVENTS"), Some(7)));
    }
    let marks: Vec<i64> = told
        .iter()
        .filter(|told| !told.5)
        .map(|told| told.0)
        .collect();
    assert_eq!(
        marks,
        [at[1].seq],
        "the mark of a discard is none of a delivery"
    );
    let others: Vec<i64> = trail(outbox, "hooks", around_now())
        .await
        .iter()
        .map(|told| told.0)
        .collect();
    assert_eq!(others, [at[2].seq, at[2].seq], "receipt and mark");

    let past = Window {
        until: Timestamp(Timestamp::now().0 - HOUR / 2),
        ..around_now()
    };
    assert!(trail(outbox, SINK, past).await.is_empty());
}

/// Whoever has enough says so.
async fn a_trail_ends_where_it_is_told(outbox: &dyn Outbox) {
    let rows = [1, 2, 3].map(|n| NewRow::json("a", &n.to_string()));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes = at
        .iter()
        .map(|at| held.outcome(*at, None, &[SINK], published()));
    settle(&*source, &outcomes.collect::<Vec<_>>()).await;
    let mut count = 0;
    let mut take = |_: crate::source::trail::Delivered<'_>| {
        count += 1;
        ControlFlow::Break(())
    };
    outbox
        .admin()
        .trail(SINK, around_now(), &mut take)
        .await
        .expect("trail");
    assert_eq!(count, 1);
}

/// A publish that was settled without its token is a mark until the row goes, and then a row of the history: what a sink
/// was given is remembered, whoever reported it.
async fn a_publish_that_only_its_mark_knew_is_in_the_history_when_its_row_goes(
    outbox: &dyn Outbox,
) {
    let rows = [1, 2].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let both = [SINK, "hooks"];
    let facts = [
        fenced(held.outcome(at[0], Some("k"), &[SINK], published())),
        // Of a shared event one sink's publish was settled by its owner, the other's was not.
        held.outcome(at[1], Some("k"), &both, published()),
        fenced(held.outcome(at[1], Some("k"), &["hooks", SINK], published())),
    ];
    settle(&*source, &facts).await;
    for sinks in [&[SINK][..], &both] {
        source
            .delete_done(&route(sinks), 100)
            .await
            .expect("delete");
    }
    assert!(read_all(&*source, SINK).await.is_empty());
    let mut kept: Vec<(i64, String)> = outbox
        .history()
        .await
        .into_iter()
        .map(|kept| {
            assert!(kept.payload.is_some(), "whole, as everything here");
            (kept.seq, kept.sink)
        })
        .collect();
    kept.sort();
    let expected = [(at[0].seq, SINK), (at[1].seq, SINK), (at[1].seq, "hooks")];
    assert_eq!(kept, expected.map(|(seq, sink)| (seq, sink.to_owned())));
    assert_eq!(trail(outbox, SINK, around_now()).await.len(), 2);
}

/// First by an owner whose lease had ended, then by the one that has it: in one batch, in two, and beside another sink.
async fn a_publish_that_was_told_twice_is_in_the_history_once(outbox: &dyn Outbox) {
    let rows = [1, 2, 3, 4].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let told = |n: usize, sinks: &[&str]| held.outcome(at[n], Some("k"), sinks, published());
    let (mine, hooks) = ([SINK, "hooks"], ["hooks", SINK]);
    settle(&*source, &[fenced(told(0, &[SINK])), told(0, &[SINK])]).await;
    settle(&*source, &[fenced(told(1, &[SINK]))]).await;
    settle(&*source, &[told(1, &[SINK])]).await;
    // The owner may read the mark and send to the other sink only.
    settle(&*source, &[fenced(told(2, &mine))]).await;
    settle(&*source, &[told(2, &hooks)]).await;
    settle(&*source, &[fenced(told(3, &mine))]).await;
    settle(&*source, &[told(3, &mine)]).await;
    settle(&*source, &[told(3, &hooks)]).await;
    assert!(read_all(&*source, SINK).await.is_empty());
    let history = outbox.history().await;
    let mut kept: Vec<_> = history.iter().map(|row| (row.seq, &*row.sink)).collect();
    kept.sort_unstable();
    let expected = [0, 1, 2, 2, 3, 3].map(|n| at[n].seq);
    let sinks = [SINK, SINK, SINK, "hooks", SINK, "hooks"];
    assert_eq!(kept, expected.into_iter().zip(sinks).collect::<Vec<_>>());
    let receipt = |kept: &Kept| (kept.stream.clone(), kept.position);
    assert!(
        history
            .iter()
            .all(|kept| receipt(kept) == receipt(&history[0]))
    );
    assert!(history[0].stream.is_some(), "with the acknowledgement");
}

/// Pending events by kind, without those that the sink is done with; discarded ones; and how far the history reaches.
async fn what_was_not_delivered_is_counted(outbox: &dyn Outbox) {
    let rows = ["a", "b", "a", "a", "c"].map(|kind| NewRow::json(kind, "1").key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes = [
        held.outcome(at[2], Some("k"), &[SINK, "hooks"], published()),
        held.outcome(at[4], Some("k"), &[SINK], discarded()),
    ];
    settle(&*source, &outcomes).await;
    let tally = async |sink: &str, window| {
        let tally = outbox.admin().tally(sink, window).await;
        let mut tally = tally.expect("tally");
        tally.pending.sort();
        tally
    };
    let kinds = |kinds: &[(&str, u64)]| -> Vec<(String, u64)> {
        kinds
            .iter()
            .map(|(kind, count)| ((*kind).to_owned(), *count))
            .collect()
    };
    let mine = tally(SINK, around_now()).await;
    assert_eq!(mine.pending, kinds(&[("a", 2), ("b", 1)]));
    assert_eq!((mine.discarded, mine.reaches_back), (1, false));
    let other = tally("hooks", around_now()).await;
    assert_eq!(other.pending, kinds(&[("a", 3), ("b", 1)]));
    assert_eq!(other.discarded, 0);
    let coming = Window {
        since: Timestamp(Timestamp::now().0 + HOUR / 2),
        ..around_now()
    };
    let later = Tally {
        reaches_back: true,
        ..Tally::default()
    };
    assert_eq!(tally(SINK, coming).await, later);
}

/// In their order; by its own identity, with or without its place.
async fn an_event_is_known_wherever_it_stands(outbox: &dyn Outbox) {
    let rows = [1, 2, 3].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes = [
        held.outcome(at[1], Some("k"), &[SINK], published()),
        held.outcome(at[2], Some("k"), &[SINK], discarded()),
    ];
    settle(&*source, &outcomes).await;
    let asked = [
        (Some(at[2].seq), at[2].id),
        (Some(at[0].seq), Uuid::from_u128(7)),
        (Some(at[1].seq), at[1].id),
        (Some(at[0].seq), at[0].id),
        (None, Uuid::from_u128(8)),
    ];
    let known = outbox.admin().trace(&asked).await.expect("trace");
    let expected = [
        Some(Known::Discarded),
        None,
        Some(Known::Published),
        Some(Known::Pending),
        None,
    ];
    assert_eq!(known, expected);
    assert!(outbox.admin().trace(&[]).await.expect("trace").is_empty());
}

/// What was requeued or dropped is told by its place.
async fn what_operators_did_is_remembered(outbox: &dyn Outbox) {
    let rows = [1, 2, 3].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let dead = at
        .iter()
        .map(|at| held.outcome(*at, Some("k"), &[SINK], discarded()));
    settle(&*source, &dead.collect::<Vec<_>>()).await;
    let admin = outbox.admin();
    let by = Operator {
        name: "conformance".to_owned(),
        reason: None,
    };
    let only = |n: usize| DiscardedFilter {
        ids: vec![at[n].id],
        ..DiscardedFilter::default()
    };
    assert_eq!(admin.requeue(&only(0), &by).await.expect("requeue"), 1);
    assert_eq!(admin.drop_discarded(&only(1), &by).await.expect("drop"), 1);
    let mut hands = admin.hands(SINK, &places(&at)).await.expect("hands");
    hands.sort_unstable();
    let expected = [(at[0].seq, Hand::Requeued), (at[1].seq, Hand::Dropped)];
    assert_eq!(hands, expected);
    let none = admin.hands(SINK, &[at[2].seq]).await.expect("hands");
    assert!(none.is_empty());
}
