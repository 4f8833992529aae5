//! Reading, sweeping and looking for gaps on PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use outboxd::event::{Payload, Timestamp};
use outboxd::source::{INLINE_LIMIT, ReadBounds, Source, SweepMark};
use sqlx::{AssertSqlSafe, Row as _};

use crate::postgres_fixture::*;
use crate::support::eventually;

#[tokio::test]
async fn payloads_come_byte_for_byte() {
    let (database, source) = outbox().await;
    let odd = r#"  {"b":1 , "a":2,"a":3, "e":1e2, "x":1.0, "s":"\/ \u00e9 \u0000"}  "#;
    let mut connection = database.connect().await;
    sqlx::query(
        "insert into outbox.event (kind, payload, headers) values ('a.b', $1::json, '{\"x\": \"y\"}')",
    )
    .bind(odd)
    .execute(&mut connection)
    .await
    .unwrap();
    sqlx::query(
        "insert into outbox.event (kind, payload_bytes, content_type) values ('a.b', $1, 'x/y')",
    )
    .bind(vec![0_u8, 255, 128])
    .execute(&mut connection)
    .await
    .unwrap();
    let rows = read(&source).await;
    let bodies: Vec<_> = rows.iter().map(|row| row.body.clone().unwrap()).collect();
    assert_eq!(bodies[0].payload, Payload::Json(odd.to_owned().into()));
    assert_eq!(bodies[0].headers, r#"{"x": "y"}"#);
    assert_eq!(bodies[1].payload, Payload::Bytes(vec![0, 255, 128].into()));
    assert_eq!(bodies[1].content_type.as_deref(), Some("x/y"));
    assert_eq!((rows[0].size, rows[1].size), (odd.len(), 3));
    let age = Timestamp::now().0 - bodies[0].occurred_at.0;
    assert!((0..60_000_000).contains(&age), "{age}");
}

#[tokio::test]
async fn no_value_in_any_column_fails_a_read() {
    let (database, source) = outbox().await;
    database
        .execute(
            "insert into outbox.event (kind, ordering_key, payload, headers, occurred_at, available_at) values
               ('', 'k', 'null', '[1]', 'infinity', '-infinity'),
               (repeat('k', 100000), repeat('x', 512), '1e400', '\"text\"', '-infinity', 'infinity'),
               (E'a\\nb', E'\\n', '\"\\u0000\"', 'null', '290000-01-01', '290000-01-01'),
               ('a', 'b', '[]', '7', '4713-01-01 BC', '4713-01-01 BC'),
               ('a', null, '{}', '{\"a\": {\"b\": null}}', now(), now());
             insert into outbox.event (kind, payload_bytes, content_type) values ('a', '', E'\\r\\n');
             insert into outbox.event (kind, payload, headers)
               values ('big', '1', jsonb_build_object('x', (select string_agg(md5(n::text), '') from generate_series(1, 10000) n)));
             alter table outbox.event drop constraint event_ordering_key_check;
             insert into outbox.event (kind, ordering_key, payload) values ('a', '', '1');
             insert into outbox.event (seq, kind, payload) overriding system value
               values (-5, 'a', '1'), (9223372036854775807, 'a', '1');
             insert into outbox.delivery (seq, sink, state, attempts, next_at)
               values (1, 'events', 'retry', 9223372036854775807, '-infinity'),
                      (4, 'events', 'retry', -1, 'infinity')",
        )
        .await;
    let rows = source
        .read("events", i64::MIN, ReadBounds::rows(1_000), &[])
        .await
        .unwrap();
    assert_eq!(rows.len(), 10);
    let at = |seq: i64| rows.iter().find(|row| row.seq == seq).unwrap();
    assert_eq!(at(1).due_in, Duration::ZERO);
    assert_eq!(at(1).attempts, u32::MAX);
    assert_eq!(
        at(1).body.as_ref().unwrap().occurred_at,
        Timestamp(i64::MAX)
    );
    assert!(at(2).due_in > Duration::from_secs(1_000 * 365 * 86_400));
    assert!(at(2).body.is_none());
    assert!(at(3).due_in > Duration::from_secs(1_000 * 365 * 86_400));
    assert!(at(4).due_in > Duration::from_secs(1_000 * 365 * 86_400));
    assert_eq!(at(4).attempts, 0);
    assert_eq!(at(6).size, 0);
    assert!(at(6).body.is_some());
    // Headers can be what is too large as well; the row is read when its turn comes.
    assert!(at(7).body.is_none() && at(7).size > INLINE_LIMIT);
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    assert_eq!(source.read_seqs("events", &seqs).await.unwrap().len(), 10);
    assert!(source.backlog().await.unwrap().oldest_ready_age_s.unwrap() > 1e9);
    let due = source
        .due_after("events", Timestamp(i64::MIN), 100)
        .await
        .unwrap();
    let due: Vec<i64> = due.iter().map(|row| row.seq).collect();
    assert_eq!(due, [1, 2, 4]);
    source.heads("events", None, 100).await.unwrap();
}

#[tokio::test]
async fn bodies_are_left_out_where_they_would_not_be_used() {
    let (database, source) = outbox().await;
    database
        .execute(
            "insert into outbox.event (kind, ordering_key, payload, available_at) values
               ('a', 'bare', '1', default), ('a', 'done', '1', default),
               ('a', 'delayed', '1', now() + interval '1 hour'), ('a', 'backs-off', '1', default),
               ('a', 'wanted', '1', default), ('a', null, '1', default);
             insert into outbox.event (kind, ordering_key, payload_bytes) select 'a', 'large', decode(repeat('00', 200000), 'hex');
             insert into outbox.delivery (seq, sink, state, attempts, next_at) values
               (2, 'events', 'published', 0, null), (2, 'other', 'retry', 3, now() + interval '1 hour'),
               (4, 'events', 'retry', 3, now() + interval '1 hour')",
        )
        .await;
    let bare: Arc<str> = "bare".into();
    let rows = source
        .read("events", 0, ReadBounds::rows(100), &[bare])
        .await
        .unwrap();
    let with_body: Vec<i64> = rows
        .iter()
        .filter(|r| r.body.is_some())
        .map(|r| r.seq)
        .collect();
    assert_eq!(with_body, [5, 6]);
    assert_eq!(rows.len(), 7);
    assert!(rows[1].done && rows[1].due_in.is_zero());
    assert!(rows[2].due_in > Duration::from_secs(3_500));
    assert!(rows[3].due_in > Duration::from_secs(3_500) && rows[3].attempts == 3);
    assert_eq!(rows[6].size, 200_000);
    let large = source.read_seqs("events", &[2, 7, 99]).await.unwrap();
    assert_eq!(large.len(), 1);
    assert_eq!(
        large[0].body.as_ref().unwrap().payload.as_bytes().len(),
        200_000
    );
    // The other sink sees its own state.
    let rows = source
        .read("other", 0, ReadBounds::rows(100), &[])
        .await
        .unwrap();
    assert!(!rows[1].done && rows[1].attempts == 3);
    assert!(rows[3].due_in.is_zero());
}

#[tokio::test]
async fn keys_are_read_from_their_place_without_what_is_done() {
    let (database, source) = outbox().await;
    insert(&database, 30, 3).await;
    database
        .execute("insert into outbox.delivery (seq, sink, state) values (3, 'events', 'discarded')")
        .await;
    let keys: Vec<(Arc<str>, i64)> = vec![("k0".into(), 1), ("k1".into(), 8), ("absent".into(), 1)];
    let rows = source.read_keys("events", &keys, 3).await.unwrap();
    let seqs = |key: &str| -> Vec<i64> {
        rows.iter()
            .filter(|row| row.ordering_key.as_deref() == Some(key))
            .map(|row| row.seq)
            .collect()
    };
    assert_eq!(seqs("k0"), [6, 9, 12]);
    assert_eq!(seqs("k1"), [10, 13, 16]);
    assert!(rows.iter().all(|row| row.body.is_some()));
}

#[tokio::test]
async fn a_late_commit_shows_its_transaction_until_it_ends() {
    let (database, source) = outbox().await;
    let mut late = database.writer().await;
    sqlx::raw_sql("begin; insert into outbox.event (kind, payload) values ('a', '1')")
        .execute(&mut late)
        .await
        .unwrap();
    insert(&database, 2, 1).await;
    assert_eq!(source.probe(&[1..=1], 10).await.unwrap(), []);
    let writers = source.writers().await.unwrap().unwrap();
    assert_eq!(writers.running.len(), 1, "{writers:?}");
    sqlx::raw_sql("commit").execute(&mut late).await.unwrap();
    eventually(Duration::from_secs(5), "the writer to go", || async {
        let now = source.writers().await.unwrap().unwrap();
        (!now.running.contains(&writers.running[0]))
            .then_some(())
            .ok_or(format!("{now:?}"))
    })
    .await;
    let found = source.probe(&[-5..=1, 1..=2], 10).await.unwrap();
    assert_eq!(found, [(1, None), (2, Some(Arc::from("k0")))]);
}

#[tokio::test]
async fn prepared_transactions_are_writers_too() {
    let (database, source) = outbox().await;
    let name = format!("outboxd-{}", database.name);
    database
        .execute(&format!(
            "begin; insert into outbox.event (kind, payload) values ('a', '1'); prepare transaction '{name}'"
        ))
        .await;
    let writers = source.writers().await.unwrap().unwrap();
    assert_eq!(
        (writers.running.len(), writers.prepared.len()),
        (0, 1),
        "{writers:?}"
    );
    database
        .execute(&format!("rollback prepared '{name}'"))
        .await;
    assert_eq!(source.writers().await.unwrap().unwrap(), Default::default());
}

#[tokio::test]
async fn the_sweep_walks_every_key_and_every_keyless_row() {
    let (database, source) = outbox().await;
    insert(&database, 40, 7).await;
    database
        .execute(
            "insert into outbox.event (kind, payload) select 'free', '1' from generate_series(1, 5);
             insert into outbox.delivery (seq, sink, state) select seq, 'events', 'published' from outbox.event where ordering_key = 'k3';
             insert into outbox.delivery (seq, sink, state) values (7, 'events', 'published'), (41, 'events', 'published')",
        )
        .await;
    let mut heads = Vec::new();
    let mut mark: Option<SweepMark> = None;
    let mut slices = 0;
    loop {
        let sweep = source.heads("events", mark.as_ref(), 3).await.unwrap();
        heads.extend(sweep.heads);
        slices += 1;
        match sweep.next {
            Some(next) => mark = Some(next),
            None => break,
        }
    }
    heads.sort_by_key(|head| head.seq);
    let seqs: Vec<i64> = heads.iter().map(|head| head.seq).collect();
    // k0 stands at 7 (done) and 14, k3 is done altogether.
    assert_eq!(seqs, [1, 2, 4, 5, 6, 14, 42, 43, 44, 45]);
    assert_eq!(heads[9].kind, "free");
    assert!(slices >= 5);
}

#[tokio::test]
async fn due_rows_come_in_order_whatever_made_them_wait() {
    let (database, source) = outbox().await;
    insert(&database, 5, 5).await;
    database
        .execute(
            "insert into outbox.event (kind, ordering_key, payload, available_at) values
               ('a', 'x', '1', now() + interval '30 s'), ('a', 'y', '1', now() + interval '10 s'),
               ('a', 'z', '1', now() + interval '20 s'), ('a', 'w', '1', now() + interval '5 s');
             insert into outbox.delivery (seq, sink, state, next_at) values
               (1, 'events', 'retry', now() + interval '15 s'), (8, 'events', 'retry', now() + interval '40 s'),
               (6, 'events', 'retry', now() + interval '1 s'), (9, 'events', 'published', null),
               (2, 'other', 'retry', now() + interval '1 s')",
        )
        .await;
    let now = Timestamp::now();
    let due = source.due_after("events", now, 100).await.unwrap();
    let seqs: Vec<i64> = due.iter().map(|row| row.seq).collect();
    assert_eq!(seqs, [7, 1, 6, 8]);
    assert!(due[0].due_in <= Duration::from_secs(10) && due[0].due_in > Duration::from_secs(5));
    // Going on from the last of a short page loses nothing.
    let page = source.due_after("events", now, 2).await.unwrap();
    let rest = source
        .due_after("events", Timestamp(page[1].due.0 + 1), 100)
        .await
        .unwrap();
    assert_eq!(rest.iter().map(|row| row.seq).collect::<Vec<_>>(), [6, 8]);
}

#[tokio::test]
async fn the_backlog_is_counted_up_to_a_bound() {
    let (database, source) = outbox().await;
    let empty = source.backlog().await.unwrap();
    assert_eq!(
        (empty.events, empty.bounded, empty.oldest_ready_age_s),
        (0, false, None)
    );
    database
        .execute(
            "insert into outbox.event (kind, payload, available_at) values ('a', '1', now() + interval '1 h');
             insert into outbox.event (kind, payload, occurred_at, available_at)
               select 'a', '1', now() - interval '1 min', now() - interval '1 min' from generate_series(1, 20)",
        )
        .await;
    let some = source.backlog().await.unwrap();
    assert_eq!((some.events, some.bounded), (21, false));
    assert!(
        (60.0..90.0).contains(&some.oldest_ready_age_s.unwrap()),
        "{some:?}"
    );
    insert(&database, 10_000, 10).await;
    let many = source.backlog().await.unwrap();
    assert_eq!((many.events, many.bounded), (10_000, true));
}

/// Statements with parameters as literals, planned with the server's own settings.
#[tokio::test]
async fn every_hot_statement_walks_an_index() {
    let (database, _source) = outbox().await;
    let seqs = insert(&database, 50_000, 500).await;
    database
        .execute("analyze outbox.event; analyze outbox.delivery")
        .await;
    let list: Vec<String> = seqs[..500].iter().map(i64::to_string).collect();
    let list = format!("'{{{}}}'", list.join(","));
    let ids = text(
        &database,
        &format!("select array_agg(id order by seq)::text from outbox.event where seq = any ({list}::bigint[])"),
    )
    .await;
    let ids = format!("'{ids}'");
    let many = |value: &str| format!("array_fill({value}, array[500])");
    let settle = format!(
        "{list}, {ids}, {}, {}, {}, false, {}, {}, {list}",
        many("'events'::text"),
        many("1"),
        many("0::bigint"),
        many("0::bigint"),
        many("'E'::text"),
    );
    let statements: &[(&str, &str, String)] = &[
        (
            include_str!("../../src/source/postgres/sql/read.sql"),
            "text, bigint, bigint, text[], int, bigint",
            "'events', 100, 500, '{k1,k2}', 131072, 500".into(),
        ),
        (
            include_str!("../../src/source/postgres/sql/read_keys.sql"),
            "text, text[], bigint[], bigint, int",
            "'events', '{k1,k2,k3}', '{1,1,1}', 50, 131072".into(),
        ),
        (
            include_str!("../../src/source/postgres/sql/read_seqs.sql"),
            "text, bigint[]",
            format!("'events', {list}"),
        ),
        (
            include_str!("../../src/source/postgres/sql/probe.sql"),
            "bigint[], bigint[], bigint",
            "'{5,60000}', '{9,70000}', 100".into(),
        ),
        (
            include_str!("../../src/source/postgres/sql/heads_keys.sql"),
            "text, text, bigint",
            "'events', '', 100".into(),
        ),
        (
            include_str!("../../src/source/postgres/sql/heads_keyless.sql"),
            "text, bigint, bigint",
            "'events', 0, 100".into(),
        ),
        (
            include_str!("../../src/source/postgres/sql/due_after.sql"),
            "text, timestamptz, bigint",
            "'events', now(), 100".into(),
        ),
        (
            include_str!("../../src/source/postgres/sql/settle_published_full.sql"),
            "bigint[], uuid[], text[], int[], bigint[], boolean, bigint[], text[], bigint[]",
            settle,
        ),
        (
            include_str!("../../src/source/postgres/sql/settle_lock.sql"),
            "bigint[], uuid[]",
            format!("{list}, {ids}"),
        ),
        (
            include_str!("../../src/source/postgres/sql/settle_delete.sql"),
            "bigint[]",
            list.clone(),
        ),
        (
            include_str!("../../src/source/postgres/sql/delete_done.sql"),
            "text[], bigint, text",
            "'{events,other}', 100, 'full'".into(),
        ),
        (
            include_str!("../../src/source/postgres/sql/begun.sql"),
            "bigint, bigint",
            "100, 500".into(),
        ),
        (
            include_str!("../../src/source/postgres/sql/backlog.sql"),
            "bigint",
            "10000".into(),
        ),
    ];
    let mut connection = database.connect().await;
    for (place, (sql, types, arguments)) in statements.iter().enumerate() {
        let sql = sql
            .replace("{schema}", "outbox")
            .replace("{schema_text}", "outbox");
        sqlx::raw_sql(AssertSqlSafe(format!(
            "prepare p{place} ({types}) as {sql}"
        )))
        .execute(&mut connection)
        .await
        .unwrap();
        let plan: Vec<String> = sqlx::raw_sql(AssertSqlSafe(format!(
            "explain execute p{place} ({arguments})"
        )))
        .fetch_all(&mut connection)
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
        let plan = plan.join("\n");
        assert!(plan.contains("Index"), "{sql}\n{plan}");
        assert!(!plan.contains("Seq Scan on event"), "{sql}\n{plan}");
    }
}
