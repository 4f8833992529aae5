//! Discarded events: set aside whole, looked at, put back, dropped.

use std::time::Duration;

use super::*;
use crate::source::admin::{Discarded, DiscardedFilter, Operator};
use crate::source::{Command, DiscardReason};

pub(super) const CASES: &[Case] = list![
    a_discarded_event_is_set_aside_whole,
    a_discard_takes_nothing_from_other_sinks,
    errors_are_cut_and_cleaned,
    discards_are_selected_by_every_condition,
    a_requeued_event_is_itself_again,
    a_requeue_is_told_to_the_owners,
    a_requeue_is_for_its_sink_only,
    several_discards_of_one_event_are_requeued_together,
    dropped_discards_are_gone,
];

fn operator() -> Operator {
    Operator {
        name: "conformance".to_owned(),
        reason: Some("it's \"fine\" again".to_owned()),
    }
}

async fn list(outbox: &dyn Outbox) -> Vec<Discarded> {
    let filter = DiscardedFilter::default();
    outbox
        .admin()
        .discarded(&filter, 1_000)
        .await
        .expect("discarded")
}

/// The row leaves, and everything of it is kept beside reason, code, error and attempts.
async fn a_discarded_event_is_set_aside_whole(outbox: &dyn Outbox) {
    let mut whole = NewRow::json("order.paid", "{ \"n\": 1 }").key("k");
    whole.headers = Some(r#"{"request_id":"r-1"}"#.to_owned());
    let at = outbox
        .insert(&[
            whole,
            NewRow::json("order.paid", "2").key("k"),
            NewRow::bytes("b", b"\x00\xff"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes = [
        held.outcome(at[0], Some("k"), &[SINK], discarded()),
        held.outcome(
            at[2],
            None,
            &[SINK],
            Verdict::Discarded {
                reason: DiscardReason::RetryBudget,
                code: None,
                attempts: 50,
                error: "refused".to_owned(),
            },
        ),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [true, true]);
    assert_eq!(seqs(&read_all(&*source, SINK).await), [at[1].seq]);
    assert!(outbox.history().await.is_empty(), "it was not published");

    let dead = list(outbox).await;
    assert_eq!(dead.len(), 2);
    let first = dead
        .iter()
        .find(|dead| dead.seq == at[0].seq)
        .expect("listed");
    assert_eq!(
        (first.id, &*first.sink, &*first.kind),
        (at[0].id, SINK, "order.paid")
    );
    assert_eq!(first.ordering_key.as_deref(), Some("k"));
    assert_eq!(
        (&*first.reason, first.code.as_deref()),
        ("permanent", Some("too_large"))
    );
    assert_eq!((&*first.last_error, first.attempts), ("it is too large", 1));
    assert_eq!(first.payload.as_deref(), Some("{ \"n\": 1 }"));
    assert_eq!(first.size, 10);
    assert!(first.headers.contains("r-1"));
    assert!(
        first.discarded_at.contains('T'),
        "RFC 3339: {}",
        first.discarded_at
    );
    let second = dead
        .iter()
        .find(|dead| dead.seq == at[2].seq)
        .expect("listed");
    assert_eq!(
        (&*second.reason, second.code.as_deref()),
        ("retry_budget", None)
    );
    assert_eq!(second.payload.as_deref(), Some("AP8="), "bytes as base64");
    let status = outbox.admin().status().await.expect("status");
    let counts: Vec<_> = status
        .discarded
        .iter()
        .map(|c| (&*c.sink, c.count))
        .collect();
    assert_eq!(counts, [(SINK, 2)]);
}

/// A discard for one sink leaves the row to the others, whatever the order of outcomes.
async fn a_discard_takes_nothing_from_other_sinks(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k"),
            NewRow::json("a", "2").key("k"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let (mine, other) = ([SINK, "hooks"], ["hooks", SINK]);
    settle(
        &*source,
        &[held.outcome(at[0], Some("k"), &mine, discarded())],
    )
    .await;
    let done = row(&*source, SINK, at[0].seq).await.expect("hooks waits");
    assert!(done.done, "done for the sink that discarded it");
    let pending = row(&*source, "hooks", at[0].seq)
        .await
        .expect("hooks waits");
    assert!(!pending.done);
    settle(
        &*source,
        &[held.outcome(at[0], Some("k"), &other, published())],
    )
    .await;
    let both = [
        held.outcome(at[1], Some("k"), &other, published()),
        held.outcome(at[1], Some("k"), &mine, discarded()),
    ];
    assert_eq!(settle(&*source, &both).await, [true, true]);
    assert!(read_all(&*source, SINK).await.is_empty());
    let dead = list(outbox).await;
    assert!(dead.iter().all(|dead| dead.sink == SINK) && dead.len() == 2);
    let kept = outbox.history().await;
    assert!(kept.iter().all(|kept| kept.sink == "hooks") && kept.len() == 2);
}

/// Error text may hold anything: it is cleaned of what a database refuses and cut to 2,048 characters.
async fn errors_are_cut_and_cleaned(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[NewRow::json("a", "1"), NewRow::json("a", "2")])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let error = format!("\0bad '\"\\ {}", "ü".repeat(5_000));
    let outcomes = [
        held.outcome(
            at[0],
            None,
            &[SINK],
            Verdict::Retried {
                attempts: 1,
                retry_in: Duration::from_secs(1),
                error: error.clone(),
            },
        ),
        held.outcome(
            at[1],
            None,
            &[SINK],
            Verdict::Discarded {
                reason: DiscardReason::Crashed,
                code: None,
                attempts: 0,
                error,
            },
        ),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [true, true]);
    let dead = list(outbox).await;
    let text = &dead[0].last_error;
    assert!(
        !text.contains('\0') && text.contains("bad '\"\\ ü"),
        "{text:.20}"
    );
    assert!(text.chars().count() <= 2_048 && text.chars().count() > 2_000);
}

/// All conditions of a filter must hold; newest first; limited.
async fn discards_are_selected_by_every_condition(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("auth.login", "1").key("k"),
            NewRow::json("auth.logout", "2").key("l"),
            NewRow::json("a%th.login", "3"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    for (n, key) in [Some("k"), Some("l"), None].into_iter().enumerate() {
        settle(&*source, &[held.outcome(at[n], key, &[SINK], discarded())]).await;
    }
    let admin = outbox.admin();
    let find = async |filter: DiscardedFilter| -> Vec<i64> {
        let found = admin.discarded(&filter, 10).await.expect("discarded");
        found.iter().map(|dead| dead.seq).collect()
    };
    let any = DiscardedFilter::default;
    assert_eq!(
        find(any()).await,
        [at[2].seq, at[1].seq, at[0].seq],
        "newest first"
    );
    let kind = |kind: &str| DiscardedFilter {
        kind: Some(kind.to_owned()),
        ..any()
    };
    assert_eq!(find(kind("auth.login")).await, [at[0].seq]);
    assert_eq!(find(kind("auth.*")).await, [at[1].seq, at[0].seq]);
    assert_eq!(
        find(kind("a%*")).await,
        [at[2].seq],
        "a prefix is text, not a pattern"
    );
    assert_eq!(find(kind("*")).await.len(), 3);
    let key = DiscardedFilter {
        ordering_key: Some("l".to_owned()),
        ..any()
    };
    assert_eq!(find(key).await, [at[1].seq]);
    let ids = DiscardedFilter {
        ids: vec![at[0].id, at[2].id, Uuid::nil()],
        ..any()
    };
    assert_eq!(find(ids.clone()).await, [at[2].seq, at[0].seq]);
    assert_eq!(
        find(DiscardedFilter {
            kind: Some("auth.*".to_owned()),
            ..ids
        })
        .await,
        [at[0].seq]
    );
    let sink = DiscardedFilter {
        sink: Some("hooks".to_owned()),
        ..any()
    };
    assert!(find(sink).await.is_empty());
    let reason = |word: &str| DiscardedFilter {
        reason: Some(word.to_owned()),
        ..any()
    };
    assert_eq!(find(reason("permanent")).await.len(), 3);
    assert!(find(reason("operator")).await.is_empty());
    let one = admin.discarded(&any(), 1).await.expect("discarded");
    assert_eq!(one.len(), 1);
}

/// Back under its own seq and id, byte for byte, with nothing charged.
async fn a_requeued_event_is_itself_again(outbox: &dyn Outbox) {
    let mut new = NewRow::json("a", "{ \"n\" : 1.50 }").key("k");
    new.content_type = Some("application/json".to_owned());
    new.headers = Some(r#"{"request_id":"r-1"}"#.to_owned());
    let at = outbox.insert(&[new, NewRow::json("a", "2").key("k")]).await;
    let source = outbox.source();
    let before = row(&*source, SINK, at[0].seq).await.expect("pending");
    let held = own(&*source).await;
    let failed = held.outcome(
        at[0],
        Some("k"),
        &[SINK],
        retried(1, Duration::from_secs(60)),
    );
    settle(&*source, &[failed]).await;
    settle(
        &*source,
        &[held.outcome(at[0], Some("k"), &[SINK], discarded())],
    )
    .await;

    let filter = DiscardedFilter {
        ids: vec![at[0].id],
        ..DiscardedFilter::default()
    };
    let count = outbox.admin().requeue(&filter, &operator()).await;
    assert_eq!(count.expect("requeue"), 1);
    let after = row(&*source, SINK, at[0].seq).await.expect("pending again");
    assert_eq!(after, before);
    assert!(list(outbox).await.is_empty());
    let again = outbox.admin().requeue(&filter, &operator()).await;
    assert_eq!(again.expect("requeue"), 0);

    // A new row never takes a seq that was used before.
    let next = outbox.insert(&[NewRow::json("a", "3").key("k")]).await[0];
    assert!(next.seq > at[1].seq);
    settle(
        &*source,
        &[held.outcome(at[0], Some("k"), &[SINK], published())],
    )
    .await;
    assert_eq!(seqs(&read_all(&*source, SINK).await), [at[1].seq, next.seq]);
}

/// Claimers read commands with their polls: the place of what re-entered, once.
async fn a_requeue_is_told_to_the_owners(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k"),
            NewRow::json("a", "2").key("k"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let start = source.commands(None).await.expect("commands");
    assert!(
        start.items.is_empty(),
        "a new reader starts at the present mark"
    );
    let none = source.commands(Some(start.mark)).await.expect("commands");
    assert!(none.items.is_empty() && none.mark == start.mark);

    let dead = [0, 1].map(|n| held.outcome(at[n], Some("k"), &[SINK], discarded()));
    settle(&*source, &dead).await;
    let all = DiscardedFilter::default();
    let count = outbox.admin().requeue(&all, &operator()).await;
    assert_eq!(count.expect("requeue"), 2);
    let told = source.commands(Some(start.mark)).await.expect("commands");
    assert!(told.mark > start.mark);
    let mut seen = Vec::new();
    for command in told.items {
        let Command::Look { seqs } = command else {
            panic!("{command:?}");
        };
        seen.extend(seqs);
    }
    seen.sort_unstable();
    assert_eq!(seen, places(&at));
    let none = source.commands(Some(told.mark)).await.expect("commands");
    assert!(none.items.is_empty() && none.mark == told.mark);
    let late = source.commands(None).await.expect("commands");
    assert_eq!(late.mark, told.mark);
}

/// The other sinks of the route had the event: they do not get it again.
async fn a_requeue_is_for_its_sink_only(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k"),
            NewRow::json("a", "2").key("k"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let (mine, other) = ([SINK, "hooks"], ["hooks", SINK]);
    let outcomes = [
        held.outcome(at[0], Some("k"), &mine, discarded()),
        held.outcome(at[0], Some("k"), &other, published()),
        held.outcome(at[1], Some("k"), &mine, discarded()),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [true; 3]);
    let all = DiscardedFilter::default();
    let count = outbox.admin().requeue(&all, &operator()).await;
    assert_eq!(count.expect("requeue"), 2);

    let mine_now: Vec<bool> = read_all(&*source, SINK)
        .await
        .iter()
        .map(|r| r.done)
        .collect();
    assert_eq!(mine_now, [false, false]);
    let other_now: Vec<bool> = read_all(&*source, "hooks")
        .await
        .iter()
        .map(|r| r.done)
        .collect();
    assert_eq!(other_now, [true, false], "what hooks had, it had");
    settle(
        &*source,
        &[held.outcome(at[0], Some("k"), &mine, published())],
    )
    .await;
    assert_eq!(seqs(&read_all(&*source, SINK).await), [at[1].seq]);
    assert_eq!(outbox.history().await.len(), 2);
}

/// Discarded by both sinks, requeued by one call: one row, pending for both. By one only: pending for that
/// one.
async fn several_discards_of_one_event_are_requeued_together(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1").key("k")]).await[0];
    let source = outbox.source();
    let held = own(&*source).await;
    let both = [
        held.outcome(at, Some("k"), &[SINK, "hooks"], discarded()),
        held.outcome(at, Some("k"), &["hooks", SINK], discarded()),
    ];
    assert_eq!(settle(&*source, &both).await, [true, true]);
    assert!(read_all(&*source, SINK).await.is_empty());
    assert_eq!(list(outbox).await.len(), 2);

    let one = DiscardedFilter {
        sink: Some("hooks".to_owned()),
        ..DiscardedFilter::default()
    };
    assert_eq!(
        outbox
            .admin()
            .requeue(&one, &operator())
            .await
            .expect("requeue"),
        1
    );
    assert!(row(&*source, SINK, at.seq).await.expect("back").done);
    assert!(!row(&*source, "hooks", at.seq).await.expect("back").done);
    assert_eq!(settle(&*source, &both[1..]).await, [true]);
    assert!(read_all(&*source, SINK).await.is_empty());

    let all = DiscardedFilter::default();
    assert_eq!(
        outbox
            .admin()
            .requeue(&all, &operator())
            .await
            .expect("requeue"),
        2
    );
    assert!(!row(&*source, SINK, at.seq).await.expect("back").done);
    assert!(!row(&*source, "hooks", at.seq).await.expect("back").done);
}

/// Dropped for good; what was not selected stays.
async fn dropped_discards_are_gone(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k"),
            NewRow::json("b", "2").key("k"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let dead = [0, 1].map(|n| held.outcome(at[n], Some("k"), &[SINK], discarded()));
    settle(&*source, &dead).await;
    let filter = DiscardedFilter {
        kind: Some("a".to_owned()),
        ..DiscardedFilter::default()
    };
    let admin = outbox.admin();
    assert_eq!(
        admin
            .drop_discarded(&filter, &operator())
            .await
            .expect("drop"),
        1
    );
    assert_eq!(
        admin
            .drop_discarded(&filter, &operator())
            .await
            .expect("drop"),
        0
    );
    let left: Vec<i64> = list(outbox).await.iter().map(|dead| dead.seq).collect();
    assert_eq!(left, [at[1].seq]);
    assert!(read_all(&*source, SINK).await.is_empty());
}
