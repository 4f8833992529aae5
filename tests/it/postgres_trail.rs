//! A history of days is walked slice by slice, each row once, and pending events and marks page by page.

use std::ops::ControlFlow;

use outboxd::event::Timestamp;
use outboxd::source::admin::Admin;
use outboxd::source::postgres::Postgres;
use outboxd::source::trail::Window;
use sqlx::{AssertSqlSafe, Row as _};

use crate::postgres_fixture::*;
use crate::support::postgres::Database;

/// Rows of a day: more than one statement reads.
const A_DAY: i64 = 150_000;

/// Three days, of which the second has no partition of its own, and a mark and a pending event for each of `pages` rows.
async fn history(pages: i64) -> (Database, Postgres) {
    let (database, _) = outbox().await;
    database
        .execute(&format!(
            "create table outbox.published_20200101 partition of outbox.published
               for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00');
             create table outbox.published_20200103 partition of outbox.published
               for values from ('2020-01-03 00:00+00') to ('2020-01-04 00:00+00');
             insert into outbox.published (published_at, seq, id, sink, attempts, stream, position, kind)
             select '2020-01-01 00:00+00'::timestamptz + n * interval '1 day' / {A_DAY}, n, gen_random_uuid(),
                    case n % 10 when 0 then 'hooks' else 'events' end, 0, 'E', n, 'a'
             from generate_series(0, 3 * {A_DAY} - 1) as n;
             insert into outbox.event (kind, ordering_key, payload)
             select 'a', 'k' || n % 7, '1' from generate_series(1, {pages}) as n;
             insert into outbox.delivery (seq, sink, state)
             select seq, 'events', case seq % 3 when 0 then 'published' when 1 then 'discarded' else 'retry' end
             from outbox.event;
             analyze outbox.published, outbox.event, outbox.delivery"
        ))
        .await;
    let viewer = source_of(&database, Role::Viewer, |_| {});
    (database, viewer)
}

fn moment(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_delivery_of_a_window_is_told_once_whatever_partition_it_is_in() {
    let (database, viewer) = history(45_000).await;
    let window = Window {
        since: moment("2020-01-01T12:00:00Z"),
        until: moment("2020-01-03T12:00:00Z"),
    };
    let (mut count, mut sum, mut places) = (0, 0, 0);
    let mut take = |delivered: outboxd::source::trail::Delivered<'_>| {
        assert!(delivered.receipt && window.contains(delivered.at));
        count += 1;
        sum += delivered.seq;
        places += delivered.position.unwrap() as i64;
        ControlFlow::Continue(())
    };
    viewer.trail("events", window, &mut take).await.unwrap();
    let expected = "from outbox.published where sink = 'events'
         and published_at >= '2020-01-01 12:00+00' and published_at < '2020-01-03 12:00+00'";
    let rows = number(&database, &format!("select count(*) {expected}")).await;
    assert!(rows > A_DAY, "{rows}");
    assert_eq!(count, rows);
    let seqs = number(&database, &format!("select sum(seq)::bigint {expected}")).await;
    assert_eq!((sum, places), (seqs, seqs));

    let now = Window {
        since: Timestamp(Timestamp::now().0 - 3_600_000_000),
        until: Timestamp(i64::MAX),
    };
    let mut marks = Vec::new();
    let mut take = |delivered: outboxd::source::trail::Delivered<'_>| {
        assert!(!delivered.receipt);
        marks.push(delivered.seq);
        ControlFlow::Continue(())
    };
    viewer.trail("events", now, &mut take).await.unwrap();
    let expected: Vec<i64> = (1..=45_000).filter(|seq| seq % 3 == 0).collect();
    assert_eq!(marks, expected);
    let tally = viewer.tally("events", now).await.unwrap();
    assert_eq!(tally.pending, [("a".to_owned(), 15_000)]);
    assert!(tally.reaches_back);
    let early = Window {
        since: moment("2019-01-01T00:00:00Z"),
        until: moment("2020-01-01T12:00:00Z"),
    };
    let tally = viewer.tally("events", early).await.unwrap();
    assert!(!tally.reaches_back && tally.pending.is_empty());
}

/// One slice reads its blocks of its partition and nothing else; everything else is found by index.
#[tokio::test]
async fn no_statement_of_a_trail_walks_what_it_was_not_asked_for() {
    let (database, _) = history(20_000).await;
    let mut connection = database.connect_as(Role::Viewer).await;
    let day = "'2020-01-01 12:00+00', '2020-01-02 00:00+00'";
    let statements = [
        (
            include_str!("../../src/source/postgres/sql/trail_published.sql"),
            "text, timestamptz, timestamptz, text, text",
            format!("'events', {day}, '(1024,0)', '(1100,0)'"),
            &["Tid Range Scan on published_20200101"][..],
        ),
        (
            include_str!("../../src/source/postgres/sql/trail_marks.sql"),
            "text, bigint, bigint, timestamptz, timestamptz",
            format!("'events', 7000, 100, {day}"),
            &["delivery_done", "event_pkey"],
        ),
        (
            include_str!("../../src/source/postgres/sql/trail_pending.sql"),
            "bigint, bigint, text, timestamptz, timestamptz",
            format!("7000, 100, 'events', {day}"),
            &["event_pkey", "delivery_pkey"],
        ),
        (
            include_str!("../../src/source/postgres/sql/trace.sql"),
            "uuid[]",
            format!(
                "'{{{}}}'",
                vec![uuid::Uuid::new_v4().to_string(); 2_000].join(",")
            ),
            &[
                "event_id_key",
                "published_20200101_id_idx",
                "discarded_pkey",
            ],
        ),
    ];
    for (place, (sql, types, arguments, wanted)) in statements.iter().enumerate() {
        let sql = sql.replace("{schema}", "outbox");
        for mode in ["force_custom_plan", "force_generic_plan"] {
            let plan = format!(
                "set plan_cache_mode = {mode}; prepare {mode}{place} ({types}) as {sql};
                 explain execute {mode}{place} ({arguments})"
            );
            let plan: Vec<String> = sqlx::raw_sql(AssertSqlSafe(plan))
                .fetch_all(&mut connection)
                .await
                .unwrap()
                .iter()
                .map(|row| row.get(0))
                .collect();
            let plan = plan.join("\n");
            for wanted in *wanted {
                assert!(plan.contains(wanted), "{mode}: {wanted} in {sql}\n{plan}");
            }
            // Partitions of days to come are empty.
            for large in ["event", "delivery", "published_2020", "published_rest"] {
                let walk = format!("Seq Scan on {large}");
                assert!(!plan.contains(&walk), "{mode}: {sql}\n{plan}");
            }
            let others = ["published_20200103 ", "published_rest "];
            let slice = wanted[0].starts_with("Tid");
            assert!(
                !slice || !others.iter().any(|other| plan.contains(other)),
                "{plan}"
            );
        }
    }
}
