//! What operators do to keys and flows: pause and resume, look at what waits, retry now, skip, look ahead.

use std::time::Duration;

use super::*;
use crate::source::admin::{DiscardedFilter, Operator, Overtakes};
use crate::source::waiting::{KeyName, Pick, WaitsFor};
use crate::source::{Command, Commands, Target};

pub(super) const CASES: &[Case] = list![
    pauses_stand_until_they_are_taken_back,
    changes_of_pauses_are_told_to_the_owners,
    events_that_wait_are_listed_with_what_is_behind_them,
    a_key_is_shown_as_each_sink_sees_it,
    a_backed_off_event_is_made_due,
    a_blocked_event_gets_a_fresh_budget,
    a_skip_is_read_with_the_row_whatever_it_waits_for,
    a_skip_is_for_its_sink_and_ends_with_the_event,
    discards_are_selected_by_code_and_age,
    a_requeue_tells_what_it_overtakes,
];

/// As long as a key waits whose budget is spent.
const BLOCKED: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn operator() -> Operator {
    Operator {
        name: "conformance".to_owned(),
        reason: Some("it's \"odd\"".to_owned()),
    }
}

fn key(name: &str, sink: Option<&str>) -> Target {
    Target::Key {
        name: name.to_owned(),
        sink: sink.map(str::to_owned),
    }
}

fn pick(seq: i64, sink: &str) -> Pick {
    Pick {
        seq,
        sink: sink.to_owned(),
    }
}

async fn commands(source: &dyn Source, after: Option<i64>) -> Commands {
    source.commands(after).await.expect("commands")
}

fn hurried(commands: &Commands) -> Vec<i64> {
    let hurry = |command: &Command| matches!(command, Command::Hurry { .. });
    assert!(commands.items.iter().all(hurry), "{commands:?}");
    let seqs = commands.items.iter().flat_map(Command::seqs);
    seqs.copied().collect()
}

/// Each target once, with who and why, under any name; gone when it is resumed.
async fn pauses_stand_until_they_are_taken_back(outbox: &dyn Outbox) {
    let admin = outbox.admin();
    let long = "ü".repeat(256);
    let targets = [
        Target::Source,
        Target::Sink {
            name: SINK.to_owned(),
        },
        Target::Route {
            name: "all".to_owned(),
        },
        key("k", None),
        key("k", Some(SINK)),
        key("\u{1b}[2J'\"\\%\n", None),
        key(&long, None),
    ];
    assert!(admin.pauses().await.expect("pauses").is_empty());
    for target in &targets {
        assert!(admin.pause(target, &operator()).await.expect("pause"));
        let again = admin.pause(target, &operator()).await.expect("pause");
        assert!(!again, "{target} is paused already");
    }
    let pauses = admin.pauses().await.expect("pauses");
    assert_eq!(pauses.len(), targets.len());
    for target in &targets {
        let found = pauses.iter().find(|pause| pause.target == *target);
        let found = found.unwrap_or_else(|| panic!("{target} is paused: {pauses:?}"));
        assert_eq!(
            (&found.by, &found.reason),
            (&operator().name, &operator().reason)
        );
        assert!(found.since.contains('T'), "RFC 3339: {}", found.since);
    }
    let status = admin.status().await.expect("status");
    assert_eq!(status.pauses, pauses);
    // Whoever takes over finds all of them.
    let other = outbox.another().await;
    other.open().await.expect("open");
    assert_eq!(commands(&*other, None).await.pauses, Some(pauses));
    other.close().await;
    for target in &targets {
        assert!(admin.resume(target, &operator()).await.expect("resume"));
        let again = admin.resume(target, &operator()).await.expect("resume");
        assert!(!again, "{target} is not paused");
    }
    assert!(admin.pauses().await.expect("pauses").is_empty());
}

/// With the commands after a mark come the pauses, if they changed since.
async fn changes_of_pauses_are_told_to_the_owners(outbox: &dyn Outbox) {
    let (source, admin) = (outbox.source(), outbox.admin());
    let start = commands(&*source, None).await;
    assert_eq!(start.pauses, Some(Vec::new()));
    let none = commands(&*source, Some(start.mark)).await;
    assert_eq!((none.mark, &none.pauses), (start.mark, &None));
    admin
        .pause(&key("k", None), &operator())
        .await
        .expect("pause");
    admin
        .pause(&Target::Source, &operator())
        .await
        .expect("pause");
    let told = commands(&*source, Some(start.mark)).await;
    assert!(told.mark > start.mark && told.items.is_empty());
    assert_eq!(told.pauses.map(|pauses| pauses.len()), Some(2));
    let again = commands(&*source, Some(told.mark)).await;
    assert_eq!((again.mark, &again.pauses), (told.mark, &None));
    admin
        .pause(&Target::Source, &operator())
        .await
        .expect("pause");
    let same = commands(&*source, Some(told.mark)).await;
    assert_eq!(same.pauses, None, "nothing changed");
    admin
        .resume(&Target::Source, &operator())
        .await
        .expect("resume");
    let told = commands(&*source, Some(told.mark)).await;
    assert_eq!(told.pauses.map(|pauses| pauses.len()), Some(1));
}

/// Failed events per sink, blocked ones first; delayed heads; not what only stands behind them.
async fn events_that_wait_are_listed_with_what_is_behind_them(outbox: &dyn Outbox) {
    let hour = Duration::from_secs(3_600);
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("failed"),
            NewRow::json("a", "2").key("failed"),
            NewRow::json("a", "3").key("blocked"),
            NewRow::json("a", "4").key("delayed").delayed(hour),
            NewRow::json("a", "5").key("delayed").delayed(hour),
            NewRow::json("a", "6").key("fine"),
            NewRow::json("a", "7").key("fine").delayed(hour),
            NewRow::json("a", "8").delayed(hour),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let outcomes = [
        held.outcome(at[0], Some("failed"), &[SINK], retried(2, hour)),
        held.outcome(at[2], Some("blocked"), &[SINK], retried(50, BLOCKED)),
    ];
    assert_eq!(settle(&*source, &outcomes).await, [true, true]);
    let admin = outbox.admin();
    let waiting = admin.waiting(None, 100).await.expect("waiting");
    let shown: Vec<_> = waiting
        .iter()
        .map(|one| {
            (
                one.event.seq,
                one.sink.as_deref(),
                one.event.waits_for(),
                one.behind,
            )
        })
        .collect();
    let mut delayed = shown[2..].to_vec();
    delayed.sort_by_key(|one| one.0);
    assert_eq!(
        shown[..2],
        [
            (at[2].seq, Some(SINK), WaitsFor::Operator, 0),
            (at[0].seq, Some(SINK), WaitsFor::BackOff, 1),
        ]
    );
    assert_eq!(
        delayed,
        [
            (at[3].seq, None, WaitsFor::Delay, 1),
            (at[7].seq, None, WaitsFor::Delay, 0),
        ]
    );
    let failed = &waiting[1].event;
    assert_eq!(
        (failed.id, &*failed.kind, failed.attempts),
        (at[0].id, "a", 2)
    );
    assert_eq!(failed.ordering_key.as_deref(), Some("failed"));
    assert_eq!(failed.last_error.as_deref(), Some("it did not work"));
    assert!(failed.failed_at.is_some_and(|at| at <= failed.now));
    let other = admin.waiting(Some("hooks"), 100).await.expect("waiting");
    assert_eq!(other.len(), 2, "only the delayed ones wait there");
    let one = admin.waiting(Some(SINK), 1).await.expect("waiting");
    assert_eq!(one[0].event.seq, at[2].seq);
    assert!(one.len() <= 2, "at most one of each sort");
}

/// In order, without what the sink is done with; events without a key one by one.
async fn a_key_is_shown_as_each_sink_sees_it(outbox: &dyn Outbox) {
    let odd = "a'b\"c\\d\u{7}";
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key(odd),
            NewRow::json("b", "2").key(odd),
            NewRow::json("c", "3"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let half = held.outcome(at[0], Some(odd), &[SINK, "hooks"], published());
    assert_eq!(settle(&*source, &[half]).await, [true]);
    let admin = outbox.admin();
    let named = KeyName::Named(odd.to_owned());
    let see = async |sink: &str, key: &KeyName, limit| -> Vec<i64> {
        let events = admin.key_events(sink, key, limit).await.expect("key");
        events.iter().map(|event| event.seq).collect()
    };
    assert_eq!(see(SINK, &named, 10).await, [at[1].seq]);
    assert_eq!(see("hooks", &named, 10).await, [at[0].seq, at[1].seq]);
    assert_eq!(see("hooks", &named, 1).await, [at[0].seq]);
    assert_eq!(see(SINK, &KeyName::Alone(at[2].seq), 10).await, [at[2].seq]);
    let keyed = KeyName::Alone(at[1].seq);
    assert!(see(SINK, &keyed, 10).await.is_empty(), "it has a key");
    let unknown = KeyName::Named("nobody".to_owned());
    assert!(see(SINK, &unknown, 10).await.is_empty());
    let events = admin.key_events("hooks", &named, 1).await.expect("key");
    assert_eq!(events[0].waits_for(), WaitsFor::Turn);
}

/// Due at once, with its attempts; the owners look at it.
async fn a_backed_off_event_is_made_due(outbox: &dyn Outbox) {
    let rows = [1, 2].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let failed = held.outcome(
        at[0],
        Some("k"),
        &[SINK],
        retried(3, Duration::from_secs(600)),
    );
    settle(&*source, &[failed]).await;
    let start = commands(&*source, None).await.mark;
    let picks = [pick(at[0].seq, SINK), pick(at[1].seq, SINK)];
    let count = outbox.admin().hurry(&picks, &operator()).await;
    assert_eq!(count.expect("hurry"), 1, "one was backing off");
    let told = commands(&*source, Some(start)).await;
    assert_eq!(hurried(&told), places(&at), "both are looked at");
    let row = row(&*source, SINK, at[0].seq).await.expect("pending");
    assert!(row.due_in.is_zero() && row.body.is_some());
    assert_eq!(row.attempts, 3);
}

/// Its attempts begin anew.
async fn a_blocked_event_gets_a_fresh_budget(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1").key("k")]).await[0];
    let source = outbox.source();
    let held = own(&*source).await;
    let spent = held.outcome(at, Some("k"), &[SINK], retried(50, BLOCKED));
    settle(&*source, &[spent]).await;
    let blocked = row(&*source, SINK, at.seq).await.expect("pending");
    assert!(blocked.due_in > Duration::from_secs(86_400));
    let picks = [pick(at.seq, SINK), pick(at.seq, "hooks")];
    let count = outbox.admin().hurry(&picks, &operator()).await;
    assert_eq!(count.expect("hurry"), 1);
    let freed = row(&*source, SINK, at.seq).await.expect("pending");
    assert!(freed.due_in.is_zero());
    assert_eq!(freed.attempts, 0);
}

/// It is due with its body, for its owner to set it aside, and stays marked through a further failure.
async fn a_skip_is_read_with_the_row_whatever_it_waits_for(outbox: &dyn Outbox) {
    let hour = Duration::from_secs(3_600);
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("failed"),
            NewRow::json("a", "2").key("delayed").delayed(hour),
            NewRow::json("a", "3").key("fine"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let failed = || held.outcome(at[0], Some("failed"), &[SINK], retried(3, hour));
    settle(&*source, &[failed()]).await;
    let start = commands(&*source, None).await.mark;
    let picks = [0, 1, 2].map(|n: usize| pick(at[n].seq, SINK));
    let count = outbox.admin().skip(&picks, &operator()).await;
    assert_eq!(count.expect("skip"), 3);
    assert_eq!(hurried(&commands(&*source, Some(start)).await), places(&at));
    // An answer that was on its way.
    settle(&*source, &[failed()]).await;
    let keys: Vec<(Arc<str>, i64)> = ["failed", "delayed", "fine"]
        .map(|key| (Arc::from(key), 0))
        .into();
    let runs = source.read_keys(SINK, &keys, 10).await.expect("read keys");
    let by_seq = source.read_seqs(SINK, &places(&at)).await;
    for rows in [read_all(&*source, SINK).await, runs, by_seq.expect("read")] {
        assert_eq!(rows.len(), 3);
        for row in rows {
            let words = row.skip.as_deref().expect("marked");
            assert_eq!(words, "skipped by conformance: it's \"odd\"");
            assert!(row.due_in.is_zero() && row.body.is_some(), "{row:?}");
        }
    }
    let sweep = source.heads(SINK, None, 10).await.expect("heads");
    assert!(sweep.heads.iter().all(|head| head.due), "{sweep:?}");
    let waiting = outbox.admin().waiting(Some(SINK), 10).await;
    let waiting = waiting.expect("waiting");
    assert_eq!(waiting.len(), 3, "each once");
    assert!(
        waiting
            .iter()
            .all(|one| one.event.waits_for() == WaitsFor::Skip)
    );
}

/// Other sinks see nothing of it; what is done is not marked; a requeued event is sent.
async fn a_skip_is_for_its_sink_and_ends_with_the_event(outbox: &dyn Outbox) {
    let rows = [1, 2].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let half = held.outcome(at[0], Some("k"), &[SINK, "hooks"], published());
    settle(&*source, &[half]).await;
    let admin = outbox.admin();
    let picks = [
        pick(at[0].seq, SINK),
        pick(at[1].seq, SINK),
        pick(at[1].seq + 1_000, SINK),
    ];
    let count = admin.skip(&picks, &operator()).await.expect("skip");
    assert_eq!(count, 1, "one is done, one is not there");
    let other = read_all(&*source, "hooks").await;
    assert!(other.iter().all(|row| row.skip.is_none()));
    let gone = held.outcome(at[1], Some("k"), &[SINK, "hooks"], discarded());
    assert_eq!(settle(&*source, &[gone]).await, [true]);
    let all = DiscardedFilter::default();
    let back = admin.requeue(&all, &operator()).await.expect("requeue");
    assert_eq!(back, 1);
    let back = row(&*source, SINK, at[1].seq).await.expect("back");
    assert_eq!((back.skip, back.done), (None, false));
}

/// Beside sink, kind, key and reason.
async fn discards_are_selected_by_code_and_age(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1")]).await[0];
    let source = outbox.source();
    let held = own(&*source).await;
    settle(&*source, &[held.outcome(at, None, &[SINK], discarded())]).await;
    let admin = outbox.admin();
    let find = async |filter: DiscardedFilter| -> usize {
        admin.discarded(&filter, 10).await.expect("discarded").len()
    };
    let code = |code: &str| DiscardedFilter {
        code: Some(code.to_owned()),
        ..DiscardedFilter::default()
    };
    assert_eq!(find(code("too_large")).await, 1);
    assert_eq!(find(code("other")).await, 0);
    let age = |age| DiscardedFilter {
        older_than: Some(age),
        ..DiscardedFilter::default()
    };
    assert_eq!(find(age(Duration::ZERO)).await, 1);
    assert_eq!(find(age(Duration::from_secs(60))).await, 0);
    let none = admin.drop_discarded(&code("other"), &operator()).await;
    assert_eq!(none.expect("drop"), 0);
    let young = age(Duration::from_secs(60));
    let none = admin.requeue(&young, &operator()).await;
    assert_eq!(none.expect("requeue"), 0);
}

/// Pending events that it goes in front of, and those that come behind what their sink had.
async fn a_requeue_tells_what_it_overtakes(outbox: &dyn Outbox) {
    let rows = [1, 2, 3, 4].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let mut at = outbox.insert(&rows).await;
    let last = [
        NewRow::json("a", "5").key("l"),
        NewRow::json("a", "6"),
        NewRow::json("a", "7").key("l"),
    ];
    at.extend(outbox.insert(&last).await);
    let source = outbox.source();
    let held = own(&*source).await;
    let filter = DiscardedFilter::default();
    let admin = outbox.admin();
    let none = admin.overtakes(&filter).await.expect("overtakes");
    assert_eq!(none, Overtakes::default());
    // Of k: 1 and 2 are discarded, 3 went out after them, 4 is pending. Of l nothing is pending or went out
    // behind 7.
    for (n, key) in [(0, Some("k")), (1, Some("k")), (5, None), (6, Some("l"))] {
        settle(&*source, &[held.outcome(at[n], key, &[SINK], discarded())]).await;
    }
    for (n, key) in [(2, "k"), (4, "l")] {
        settle(
            &*source,
            &[held.outcome(at[n], Some(key), &[SINK], published())],
        )
        .await;
    }
    let found = admin.overtakes(&filter).await.expect("overtakes");
    let expected = Overtakes {
        events: 4,
        pending_keys: 1,
        pending_events: 1,
        late: 2,
        late_bounded: false,
    };
    assert_eq!(found, expected);
    let other = DiscardedFilter {
        sink: Some("hooks".to_owned()),
        ..filter
    };
    let none = admin.overtakes(&other).await.expect("overtakes");
    assert_eq!(none, Overtakes::default());
}
