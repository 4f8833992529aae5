//! Settling on PostgreSQL: fences, routes with several sinks, history, repeats.

use std::time::Duration;

use outboxd::source::{Outcome, PublishedKeep, ReadBounds, Source, SourceErrorKind, Verdict};

use crate::postgres_fixture::*;
use crate::support::eventually;

const PENDING: &str = "select count(*) from outbox.event";
const MARKS: &str = "select count(*) from outbox.delivery";

#[tokio::test]
async fn published_events_are_deleted_and_remembered_in_full() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 500, 50).await;
    let rows = read(&source).await;
    let batch: Vec<Outcome> = rows
        .iter()
        .map(|row| outcome(&leases, row, &["events"], published()))
        .collect();
    assert_eq!(source.settle(&batch, false).await.unwrap(), vec![true; 500]);
    assert_eq!(number(&database, PENDING).await, 0);
    assert_eq!(
        number(
            &database,
            "select count(*) from outbox.published where stream = 'EVENTS' and position = 42
               and sink = 'events' and payload is not null and headers is not null and occurred_at is not null"
        )
        .await,
        500
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.published_rest").await,
        0
    );
    // The answer was lost, and the batch comes again.
    assert_eq!(
        source.settle(&batch, false).await.unwrap(),
        vec![false; 500]
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.published").await,
        500
    );
}

#[tokio::test]
async fn history_is_kept_as_configured() {
    let (database, first) = outbox().await;
    let leases = acquire(&first).await;
    for (keep, kept, full) in [
        (PublishedKeep::None, 0, 0),
        (PublishedKeep::Receipt, 2, 0),
        (PublishedKeep::Full, 2, 2),
    ] {
        let source = another(&database, |o| o.keep = keep);
        database.execute("truncate outbox.published").await;
        insert(&database, 2, 2).await;
        let rows = read(&source).await;
        // One by the quick way, one beside a retry, by the long way.
        let one = [outcome(&leases, &rows[0], &["events"], published())];
        assert_eq!(source.settle(&one, false).await.unwrap(), [true]);
        let two = [outcome(&leases, &rows[1], &["events"], published()); 1];
        let mixed = [two[0].clone(), two[0].clone()];
        assert_eq!(source.settle(&mixed, false).await.unwrap(), [true, false]);
        let count = "select count(*) from outbox.published";
        assert_eq!(number(&database, count).await, kept, "{keep:?}");
        let count = "select count(*) from outbox.published where payload is not null";
        assert_eq!(number(&database, count).await, full, "{keep:?}");
        assert_eq!(number(&database, PENDING).await, 0);
    }
}

#[tokio::test]
async fn an_old_token_leaves_the_fact_and_nothing_else() {
    let (database, source) = outbox().await;
    let old = acquire(&source).await;
    insert(&database, 3, 3).await;
    let rows = read(&source).await;
    source
        .settle(
            &[outcome(
                &old,
                &rows[0],
                &["events"],
                retried(1, Duration::ZERO),
            )],
            false,
        )
        .await
        .unwrap();
    source.release(&old).await.unwrap();
    let late = [
        outcome(&old, &rows[0], &["events"], published()),
        outcome(&old, &rows[1], &["events"], published()),
    ];
    // Released counts as not held, although the token is still the highest.
    assert_eq!(source.settle(&late, false).await.unwrap(), [false, false]);
    let new = acquire(&source).await;
    assert_eq!(source.settle(&late, false).await.unwrap(), [false, false]);
    let mixed = [
        outcome(&old, &rows[2], &["events"], published()),
        outcome(
            &old,
            &rows[1],
            &["events"],
            retried(1, Duration::from_secs(9)),
        ),
        outcome(&old, &rows[1], &["events"], discarded()),
    ];
    assert_eq!(source.settle(&mixed, true).await.unwrap(), [false; 3]);
    assert_eq!(number(&database, PENDING).await, 3);
    assert_eq!(
        number(&database, "select count(*) from outbox.published").await,
        0
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.discarded").await,
        0
    );
    let marks =
        "select count(*) from outbox.delivery where state = 'published' and next_at is null";
    assert_eq!(number(&database, marks).await, 3);
    assert!(read(&source).await.iter().all(|row| row.done));
    // The new owner's sweep removes what is done.
    assert_eq!(source.delete_done(&["events".into()], 2).await.unwrap(), 2);
    assert_eq!(source.delete_done(&["events".into()], 2).await.unwrap(), 1);
    assert_eq!(
        number(&database, PENDING).await + number(&database, MARKS).await,
        0
    );
    drop(new);
}

#[tokio::test]
async fn an_outcome_needs_seq_and_id() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 2, 2).await;
    let rows = read(&source).await;
    let mut wrong = outcome(&leases, &rows[0], &["events"], published());
    wrong.id = rows[1].id;
    assert_eq!(
        source.settle(&[wrong.clone()], false).await.unwrap(),
        [false]
    );
    wrong.verdict = discarded();
    assert_eq!(source.settle(&[wrong], true).await.unwrap(), [false]);
    assert_eq!(number(&database, PENDING).await, 2);
    assert_eq!(number(&database, MARKS).await, 0);
}

#[tokio::test]
async fn an_event_leaves_when_the_last_sink_of_its_route_is_done() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 3, 3).await;
    let rows = read(&source).await;
    let first: Vec<Outcome> = rows
        .iter()
        .map(|row| outcome(&leases, row, &["events", "hooks"], published()))
        .collect();
    assert_eq!(source.settle(&first, false).await.unwrap(), [true; 3]);
    assert_eq!(number(&database, PENDING).await, 3);
    // Again, as after a lost answer: nothing is written twice.
    assert_eq!(source.settle(&first, false).await.unwrap(), [true; 3]);
    assert_eq!(
        number(&database, "select count(*) from outbox.published").await,
        3
    );
    assert!(read(&source).await.iter().all(|row| row.done));
    assert_eq!(
        source
            .read("hooks", 0, ReadBounds::rows(10), &[])
            .await
            .unwrap()
            .iter()
            .filter(|row| row.done)
            .count(),
        0
    );
    let second = [
        outcome(&leases, &rows[0], &["hooks", "events"], published()),
        outcome(&leases, &rows[1], &["hooks", "events"], discarded()),
        outcome(
            &leases,
            &rows[2],
            &["hooks", "events"],
            retried(1, Duration::from_secs(60)),
        ),
    ];
    assert_eq!(source.settle(&second, true).await.unwrap(), [true; 3]);
    assert_eq!(number(&database, PENDING).await, 1);
    assert_eq!(
        number(&database, "select count(*) from outbox.published").await,
        4
    );
    assert_eq!(
        number(
            &database,
            "select count(*) from outbox.discarded where sink = 'hooks'"
        )
        .await,
        1
    );
    assert_eq!(number(&database, MARKS).await, 2);
    let waiting = source
        .read("hooks", 0, ReadBounds::rows(10), &[])
        .await
        .unwrap();
    assert_eq!((waiting.len(), waiting[0].attempts), (1, 1));
    assert!(waiting[0].due_in > Duration::from_secs(50));
}

#[tokio::test]
async fn both_sinks_in_one_batch_finish_an_event() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 1, 1).await;
    let rows = read(&source).await;
    let batch = [
        outcome(&leases, &rows[0], &["a", "b"], published()),
        outcome(&leases, &rows[0], &["b", "a"], published()),
    ];
    assert_eq!(source.settle(&batch, false).await.unwrap(), [true, true]);
    assert_eq!(
        number(&database, PENDING).await + number(&database, MARKS).await,
        0
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.published").await,
        2
    );
}

#[tokio::test]
async fn finished_events_are_found_from_the_sink_with_the_fewest_marks() {
    let (database, source) = outbox().await;
    insert(&database, 20, 4).await;
    database
        .execute(
            "insert into outbox.delivery (seq, sink, state, route)
               select seq, 'events', 'published', '{events,hooks}' from outbox.event;
             insert into outbox.delivery (seq, sink, state, route) values
               (3, 'hooks', 'discarded', '{events,hooks}'), (4, 'hooks', 'retry', null),
               -- This one's route had a third sink when it was settled.
               (5, 'hooks', 'published', '{events,hooks,audit}')",
        )
        .await;
    let required = ["events".into(), "hooks".into()];
    assert_eq!(source.delete_done(&required, 100).await.unwrap(), 1);
    assert_eq!(source.delete_done(&[], 100).await.unwrap(), 0);
    assert_eq!(
        number(&database, "select count(*) from outbox.event where seq = 3").await,
        0
    );
    assert_eq!(
        number(
            &database,
            "select count(*) from outbox.delivery where seq = 3"
        )
        .await,
        0
    );
    assert_eq!(number(&database, PENDING).await, 19);
}

#[tokio::test]
async fn failures_are_charged_with_a_cleaned_error_and_forgotten_on_success() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 2, 2).await;
    let rows = read(&source).await;
    let long = Verdict::Retried {
        attempts: 7,
        retry_in: Duration::MAX,
        error: "é\0".repeat(5_000),
    };
    let batch = [
        outcome(
            &leases,
            &rows[0],
            &["events"],
            retried(1, Duration::from_secs(30)),
        ),
        outcome(&leases, &rows[1], &["events"], long),
    ];
    assert_eq!(source.settle(&batch, false).await.unwrap(), [true, true]);
    assert_eq!(
        text(
            &database,
            "select last_error from outbox.delivery where seq = 1"
        )
        .await,
        "no luck"
    );
    assert_eq!(
        number(
            &database,
            "select char_length(last_error)::bigint from outbox.delivery where seq = 2"
        )
        .await,
        2_048
    );
    let rows = read(&source).await;
    assert_eq!((rows[0].attempts, rows[1].attempts), (1, 7));
    assert!(rows[0].due_in <= Duration::from_secs(30) && rows[0].due_in > Duration::from_secs(25));
    assert!(rows[0].body.is_none());
    let batch = [outcome(&leases, &rows[0], &["events"], published())];
    assert_eq!(source.settle(&batch, false).await.unwrap(), [true]);
    assert_eq!(number(&database, MARKS).await, 1);
}

#[tokio::test]
async fn a_discard_keeps_the_whole_event_and_must_be_durable() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 1, 1).await;
    let rows = read(&source).await;
    let batch = [outcome(&leases, &rows[0], &["events"], discarded())];
    let error = refusal(source.settle(&batch, false).await);
    assert_eq!(error.kind, SourceErrorKind::Refused);
    assert_eq!(source.settle(&batch, true).await.unwrap(), [true]);
    assert_eq!(
        text(
            &database,
            "select concat_ws('|', seq, kind, ordering_key, payload, reason, code, last_error, attempts, route)
             from outbox.discarded"
        )
        .await,
        "1|a.b|k0|{\"n\" : 1}|permanent|too_large|far too large|1|{events}"
    );
    assert_eq!(number(&database, PENDING).await, 0);
    assert_eq!(source.settle(&batch, true).await.unwrap(), [false]);
}

#[tokio::test]
async fn one_bad_outcome_fails_its_batch_as_a_whole() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 2, 2).await;
    let rows = read(&source).await;
    // A history that cannot take this row stands for whatever a database may refuse.
    database
        .execute("alter table outbox.published add constraint no_two check (seq <> 2)")
        .await;
    let batch = [
        outcome(&leases, &rows[0], &["events"], published()),
        outcome(&leases, &rows[1], &["events"], published()),
    ];
    let error = refusal(source.settle(&batch, false).await);
    assert_eq!(error.kind, SourceErrorKind::Refused, "{error}");
    assert_eq!(number(&database, PENDING).await, 2);
    assert_eq!(source.settle(&batch[..1], false).await.unwrap(), [true]);
}

#[tokio::test]
async fn a_quick_settlement_does_not_wait_for_the_disk_and_others_do() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 4, 4).await;
    let rows = read(&source).await;
    // The history tells the setting in force when it was written.
    database
        .execute(
            "create function outbox.tell() returns trigger language plpgsql as
               $$ begin new.content_type := current_setting('synchronous_commit'); return new; end $$;
             create trigger tell before insert on outbox.published for each row execute function outbox.tell()",
        )
        .await;
    let one =
        |place: usize, sinks: &[&str]| vec![outcome(&leases, &rows[place], sinks, published())];
    source.settle(&one(0, &["events"]), false).await.unwrap();
    source.settle(&one(1, &["events"]), true).await.unwrap();
    source
        .settle(&one(2, &["events", "b"]), false)
        .await
        .unwrap();
    source
        .settle(&one(3, &["events", "b"]), true)
        .await
        .unwrap();
    let told = "select string_agg(content_type, ' ' order by seq) from outbox.published";
    assert_eq!(text(&database, told).await, "off on off on");
}

/// Two owners that overlap, in opposite orders, and a purge between them.
#[tokio::test]
async fn settlements_in_any_order_do_not_deadlock() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    for round in 0..10 {
        insert(&database, 400, 40).await;
        let rows = source
            .read("events", 0, ReadBounds::rows(1_000), &[])
            .await
            .unwrap();
        let forward: Vec<Outcome> = rows
            .iter()
            .map(|row| outcome(&leases, row, &["events", "b"], published()))
            .collect();
        let mut backward = forward.clone();
        backward.reverse();
        let quick: Vec<Outcome> = rows
            .iter()
            .rev()
            .map(|row| outcome(&leases, row, &["events"], published()))
            .collect();
        let sinks = ["events".into()];
        let (a, b, c, d) = tokio::join!(
            source.settle(&forward, false),
            source.settle(&backward, false),
            source.settle(&quick, false),
            source.delete_done(&sinks, 1_000),
        );
        for result in [a.map(drop), b.map(drop), c.map(drop), d.map(drop)] {
            result.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
    assert_eq!(
        number(
            &database,
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
        .await,
        0
    );
}

#[tokio::test]
async fn an_acquisition_waits_for_a_discard_and_a_renewal_does_not() {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 1, 1).await;
    let rows = read(&source).await;
    let batch = [outcome(&leases, &rows[0], &["events"], discarded())];
    // Holds the settlement up when it has its locks and is about to write.
    let mut blocker = database.connect().await;
    sqlx::raw_sql("begin; lock table outbox.discarded in access exclusive mode")
        .execute(&mut blocker)
        .await
        .unwrap();
    let rival = another(&database, |o| {
        o.statement_timeout = Duration::from_millis(300);
    });
    let meanwhile = async {
        eventually(
            Duration::from_secs(10),
            "the settlement to wait",
            || async {
                let waits = "select count(*) from pg_locks where not granted
                         and relation = 'outbox.discarded'::regclass";
                match number(&database, waits).await {
                    1 => Ok(()),
                    n => Err(format!("{n} wait")),
                }
            },
        )
        .await;
        assert_eq!(source.renew(&leases, TTL).await.unwrap().held.len(), 16);
        database
            .execute("update outbox.lease set expires_at = now() - interval '1 s'")
            .await;
        let error = refusal(rival.acquire(uuid::Uuid::new_v4(), TTL, u16::MAX).await);
        assert_eq!(error.kind, SourceErrorKind::Unavailable, "{error}");
        sqlx::raw_sql("commit").execute(&mut blocker).await.unwrap();
    };
    let (settled, ()) = tokio::join!(source.settle(&batch, true), meanwhile);
    assert_eq!(settled.unwrap(), [true]);
    let taken = rival
        .acquire(uuid::Uuid::new_v4(), TTL, u16::MAX)
        .await
        .unwrap();
    assert_eq!(taken.len(), 16);
}
