//! Gaps, open transactions, the sweep, due times and the backlog.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::event::Timestamp;

pub(super) const CASES: &[Case] = list![
    a_probe_finds_the_rows_of_its_ranges,
    a_late_commit_is_found_in_its_gap,
    a_rolled_back_row_never_shows,
    open_writers_are_told_until_they_end,
    the_sweep_meets_every_head_once,
    the_sweep_passes_what_is_done,
    due_rows_come_earliest_first,
    the_backlog_counts_what_is_pending,
    no_backlog_has_no_age,
];

/// [`Source::probe`] names exactly the rows inside the ranges, ascending, at most `limit`.
async fn a_probe_finds_the_rows_of_its_ranges(outbox: &dyn Outbox) {
    let rows: Vec<NewRow> = (0..6)
        .map(|n| match n % 2 {
            0 => NewRow::json("a", "1").key(&format!("k{n}")),
            _ => NewRow::json("a", "1"),
        })
        .collect();
    let at = places(&outbox.insert(&rows).await);
    let source = outbox.source();
    let ranges = [at[1]..=at[2], at[4]..=at[4], at[5] + 1..=at[5] + 1_000];
    let found = source.probe(&ranges, 10).await.expect("probe");
    let found: Vec<_> = found
        .iter()
        .map(|(seq, key)| (*seq, key.as_deref()))
        .collect();
    assert_eq!(
        found,
        [(at[1], None), (at[2], Some("k2")), (at[4], Some("k4"))]
    );
    let found = source.probe(&ranges, 2).await.expect("probe");
    let found: Vec<i64> = found.into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(found, at[1..3], "the lowest come first");
}

/// A row that commits behind the cursor is found by looking into the gap.
async fn a_late_commit_is_found_in_its_gap(outbox: &dyn Outbox) {
    let Some(mut open) = outbox.begin().await else {
        return;
    };
    let source = outbox.source();
    let late = open.insert(&NewRow::json("a", "1").key("k")).await;
    let early = outbox.insert(&[NewRow::json("a", "2").key("k")]).await[0];
    assert!(late.seq < early.seq);
    assert_eq!(seqs(&read_all(&*source, SINK).await), [early.seq]);
    let gap = [late.seq..=late.seq];
    assert!(source.probe(&gap, 10).await.expect("probe").is_empty());
    open.commit().await;
    let found = source.probe(&gap, 10).await.expect("probe");
    assert_eq!(found.len(), 1);
    assert_eq!(seqs(&read_all(&*source, SINK).await), [late.seq, early.seq]);
}

/// What was rolled back is never reported.
async fn a_rolled_back_row_never_shows(outbox: &dyn Outbox) {
    let Some(mut open) = outbox.begin().await else {
        return;
    };
    let source = outbox.source();
    let gone = open.insert(&NewRow::json("a", "1").key("k")).await;
    open.rollback().await;
    let stays = outbox.insert(&[NewRow::json("a", "2").key("k")]).await[0];
    assert_eq!(seqs(&read_all(&*source, SINK).await), [stays.seq]);
    let found = source
        .probe(&[gone.seq..=gone.seq], 10)
        .await
        .expect("probe");
    assert!(found.is_empty());
}

/// [`Source::writers`] names a transaction from its insert to its end, however it ends; `None` only where
/// a late commit cannot happen.
async fn open_writers_are_told_until_they_end(outbox: &dyn Outbox) {
    let source = outbox.source();
    let told = source.writers().await.expect("writers");
    let Some(mut first) = outbox.begin().await else {
        assert_eq!(told, None, "a single writer leaves no gap");
        return;
    };
    let before = told.expect("several writers can leave a gap");
    let mut second = outbox.begin().await.expect("a second transaction");
    first.insert(&NewRow::json("a", "1")).await;
    second.insert(&NewRow::json("a", "2")).await;
    let names = |writers: Option<crate::source::Writers>| -> BTreeSet<String> {
        let writers = writers.expect("still several writers");
        let all = writers.running.into_iter().chain(writers.prepared);
        all.filter(|name| !before.running.contains(name)).collect()
    };
    let both = names(source.writers().await.expect("writers"));
    assert_eq!(both.len(), 2, "two transactions are open: {both:?}");
    first.commit().await;
    let one = names(source.writers().await.expect("writers"));
    assert_eq!(one.len(), 1, "one is left: {one:?}");
    assert!(one.is_subset(&both), "a transaction keeps its name");
    second.rollback().await;
    let none = names(source.writers().await.expect("writers"));
    assert!(none.is_empty(), "all have ended: {none:?}");
}

/// Slices of any size walk all key heads and all keyless rows, each once.
async fn the_sweep_meets_every_head_once(outbox: &dyn Outbox) {
    let mut rows = Vec::new();
    for n in 0..30 {
        rows.push(NewRow::json("kind", "1").key(&format!("key-{}", n % 7)));
        if n % 3 == 0 {
            rows.push(NewRow::json("kind", "1"));
        }
    }
    let at = outbox.insert(&rows).await;
    let mut expected = BTreeSet::new();
    let mut keys = BTreeSet::new();
    for (row, at) in rows.iter().zip(&at) {
        if row.ordering_key.is_none() || keys.insert(row.ordering_key.clone()) {
            expected.insert(at.seq);
        }
    }
    for limit in [1, 2, 5, 1_000] {
        let heads = sweep(&*outbox.source(), limit).await;
        let seqs: Vec<i64> = heads.iter().map(|head| head.seq).collect();
        let set: BTreeSet<i64> = seqs.iter().copied().collect();
        assert_eq!(set, expected, "slices of {limit}");
        assert_eq!(set.len(), seqs.len(), "each once, in slices of {limit}");
        assert!(heads.iter().all(|head| head.kind == "kind"));
    }
    let delayed = NewRow::json("kind", "1").key("delayed");
    let delayed = delayed.delayed(Duration::from_secs(3_600));
    let delayed = outbox.insert(&[delayed]).await[0].seq;
    for head in sweep(&*outbox.source(), 5).await {
        assert_eq!(head.due, head.seq != delayed, "{head:?}");
    }
    rows.push(NewRow::json("kind", "1"));
    let left = read_all(&*outbox.source(), SINK).await;
    assert_eq!(
        left.len(),
        rows.len(),
        "a sweep removes nothing that is pending"
    );
}

/// Walks the whole table, in slices.
async fn sweep(source: &dyn Source, limit: u32) -> Vec<crate::source::Head> {
    let mut heads = Vec::new();
    let mut mark = None;
    for _ in 0..1_000 {
        let slice = source
            .heads(SINK, mark.as_ref(), limit)
            .await
            .expect("heads");
        heads.extend(slice.heads);
        mark = slice.next;
        if mark.is_none() {
            return heads;
        }
    }
    panic!("a sweep comes to an end");
}

/// A head that is done for the sink is not its head: the next row is.
async fn the_sweep_passes_what_is_done(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k"),
            NewRow::json("a", "2").key("k"),
            NewRow::json("a", "3").key("k"),
            NewRow::json("a", "4").key("l"),
            NewRow::json("a", "5"),
            NewRow::json("a", "6"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let sinks = [SINK, "other"];
    let done = [
        held.outcome(at[0], Some("k"), &sinks, published()),
        held.outcome(at[1], Some("k"), &sinks, published()),
        held.outcome(at[3], Some("l"), &sinks, published()),
        held.outcome(at[4], None, &sinks, published()),
        held.outcome(
            at[2],
            Some("k"),
            &sinks,
            retried(1, Duration::from_secs(60)),
        ),
    ];
    assert_eq!(settle(&*source, &done).await, [true; 5]);
    let mut heads: Vec<i64> = sweep(&*source, 2).await.iter().map(|h| h.seq).collect();
    heads.sort_unstable();
    assert_eq!(
        heads,
        [at[2].seq, at[5].seq],
        "a row that backs off is a head"
    );
}

/// [`Source::due_after`] gives delayed and backed-off rows, earliest first, from `due` on, and none that is
/// done.
async fn due_rows_come_earliest_first(outbox: &dyn Outbox) {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k").delayed(minutes(30)),
            NewRow::json("a", "2").delayed(minutes(10)),
            NewRow::json("a", "3").key("l"),
            NewRow::json("a", "4").delayed(minutes(40)),
            NewRow::json("a", "5").delayed(minutes(50)),
            NewRow::json("a", "6"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes = [
        held.outcome(at[2], Some("l"), &[SINK], retried(2, minutes(20))),
        held.outcome(at[3], None, &[SINK, "other"], published()),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [true, true]);

    let now = Timestamp::now();
    let due = source.due_after(SINK, now, 10).await.expect("due after");
    let order: Vec<i64> = due.iter().map(|due| due.seq).collect();
    assert_eq!(order, [at[1].seq, at[2].seq, at[0].seq, at[4].seq]);
    assert_eq!(due[1].ordering_key.as_deref(), Some("l"));
    let gap = due[2].due_in;
    assert!(gap <= minutes(30) && gap > minutes(29), "due in {gap:?}");
    assert!(due.windows(2).all(|pair| pair[0].due <= pair[1].due));

    let two = source.due_after(SINK, now, 2).await.expect("due after");
    let two: Vec<i64> = two.iter().map(|due| due.seq).collect();
    assert_eq!(two, order[..2], "the earliest come first");
    let later = source
        .due_after(SINK, due[2].due, 10)
        .await
        .expect("due after");
    let later: Vec<i64> = later.iter().map(|due| due.seq).collect();
    assert_eq!(
        later,
        [at[0].seq, at[4].seq],
        "the moment itself is included"
    );
    let other = source.due_after("other", now, 10).await.expect("due after");
    assert_eq!(other.len(), 4, "another feed has other rows: {other:?}");
}

/// [`Source::backlog`] counts rows and tells how long the oldest due one has waited.
async fn the_backlog_counts_what_is_pending(outbox: &dyn Outbox) {
    let source = outbox.source();
    let hour = Duration::from_secs(3_600);
    outbox.insert(&[NewRow::json("a", "1").delayed(hour)]).await;
    let delayed = source.backlog().await.expect("backlog");
    assert_eq!((delayed.events, delayed.bounded), (1, false));
    assert_eq!(delayed.oldest_ready_age_s, None, "nothing is due");
    outbox
        .insert(&[NewRow::json("a", "2"), NewRow::json("a", "3")])
        .await;
    let due = source.backlog().await.expect("backlog");
    assert_eq!(due.events, 3);
    let age = due.oldest_ready_age_s.expect("something is due");
    assert!((0.0..60.0).contains(&age), "just now, not {age} s ago");
}

/// An empty outbox has no oldest row.
async fn no_backlog_has_no_age(outbox: &dyn Outbox) {
    let backlog = outbox.source().backlog().await.expect("backlog");
    assert_eq!(backlog, crate::source::Backlog::default());
}
