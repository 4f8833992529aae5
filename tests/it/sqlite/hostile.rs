//! SQLite lets any value stand in any column. Whatever stands there, no row stops the others.

use std::sync::Arc;
use std::time::Duration;

use outboxd::event::Payload;
use outboxd::lease::shard_of;
use outboxd::source::admin::DiscardedFilter;
use outboxd::source::{DiscardReason, Outcome, ReadBounds, Source, Verdict};
use outboxd::testing::source::{Outbox as _, SHARDS};
use uuid::Uuid;

use crate::source_conformance::sqlite::SqliteOutbox;

/// Column lists and values that the checks would refuse, and that an old table or a writer with
/// `ignore_check_constraints` can hold all the same.
pub const HOSTILE: &[&str] = &[
    "(kind, payload) VALUES (x'00ff80', '1')",
    "(kind, payload) VALUES (CAST(x'61ff' AS TEXT), '1')",
    "(kind, payload) VALUES ('', '1')",
    "(kind, payload, ordering_key) VALUES ('a', '1', 7)",
    "(kind, payload, ordering_key) VALUES ('a', '1', x'6162')",
    "(kind, payload, ordering_key) VALUES ('a', '1', CAST(x'61ff62' AS TEXT))",
    "(kind, payload, ordering_key) VALUES ('a', '1', CAST(x'ff' AS TEXT))",
    "(kind, payload, ordering_key) VALUES ('a', '1', '')",
    "(kind, payload, ordering_key) VALUES ('a', '1', 'a' || char(0) || 'b')",
    "(kind, payload, occurred_at) VALUES ('a', '1', 'yesterday')",
    "(kind, payload, occurred_at, available_at) VALUES ('a', '1', x'ff', x'00')",
    "(kind, payload, available_at) VALUES ('a', '1', 1700000000)",
    "(kind, payload, available_at) VALUES ('a', '1', '9999-99-99T99:99:99Z')",
    "(kind, payload, headers) VALUES ('a', '1', 'no json')",
    "(kind, payload, headers) VALUES ('a', '1', x'ff')",
    "(kind, payload, content_type) VALUES ('a', '1', x'ff')",
    "(kind, payload) VALUES ('a', 'no json')",
    "(kind, payload) VALUES ('a', x'00ff')",
    "(kind, payload) VALUES ('a', CAST(x'22ff22' AS TEXT))",
    "(kind, payload_bytes) VALUES ('a', 'text')",
    "(kind, payload_bytes) VALUES ('a', 3.5)",
    "(kind) VALUES ('a')",
    "(kind, payload, payload_bytes) VALUES ('a', '1', x'01')",
    "(kind, payload, id) VALUES ('a', '1', 'order-1')",
    "(kind, payload, id) VALUES ('a', '1', x'0102')",
    "(kind, payload, id) VALUES ('a', '1', x'000102030405060708090a0b0c0d0e0f')",
    "(kind, payload, id) VALUES ('a', '1', '')",
    "(kind, payload, ordering_key) VALUES ('a', '1', 3.5)",
    "(kind, payload, ordering_key) VALUES ('a', '1', printf('%.*c', 1000000, 'x'))",
    "(kind, payload) VALUES (7, '1')",
    "(kind, payload) VALUES (printf('%.*c', 1000000, 'x'), '1')",
    "(kind, payload) VALUES ('a', 7)",
    "(kind, payload_bytes) VALUES ('a', 7)",
    "(kind, payload, content_type) VALUES ('a', '1', 7)",
    "(kind, payload, headers) VALUES ('a', '1', 7)",
    "(kind, payload, headers) VALUES ('a', '1', json_object('x', printf('%.*c', 1000000, 'h')))",
    "(kind, payload, occurred_at) VALUES ('a', '1', 1e300)",
    "(kind, payload, available_at) VALUES ('a', '1', '-infinity')",
];

async fn filled() -> (SqliteOutbox, Arc<dyn Source>) {
    let outbox = SqliteOutbox::new().await;
    let mut application = outbox.application().await;
    let on = "PRAGMA ignore_check_constraints = ON";
    sqlx::query(on).execute(&mut application).await.unwrap();
    for values in HOSTILE {
        let statement = sqlx::AssertSqlSafe(format!("INSERT INTO outbox_event {values}"));
        let done = sqlx::query(statement).execute(&mut application).await;
        done.unwrap_or_else(|error| panic!("{values}: {error}"));
    }
    let source = outbox.source();
    source.open().await.unwrap();
    (outbox, source)
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_rows_are_read_like_any_other() {
    let (_outbox, source) = filled().await;
    let rows = source
        .read("events", 0, ReadBounds::rows(1_000), &[])
        .await
        .unwrap();
    assert_eq!(rows.len(), HOSTILE.len());
    for (row, values) in rows.iter().zip(HOSTILE) {
        assert_eq!(
            row.due_in,
            Duration::ZERO,
            "no such time holds an event back: {values}"
        );
    }
    assert_eq!(rows[1].kind, "a\u{fffd}");
    assert_eq!(rows[3].ordering_key.as_deref(), Some("7"));

    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    let whole = source.read_seqs("events", &seqs).await.unwrap();
    assert_eq!(whole.len(), HOSTILE.len());
    for (row, values) in whole.iter().zip(HOSTILE) {
        assert!(row.body.is_some(), "{values}");
    }
    let payload = |n: usize| whole[n].body.clone().unwrap().payload;
    assert_eq!(
        payload(18),
        Payload::Json(b"\"\xff\""[..].into()),
        "byte for byte"
    );
    assert_eq!(payload(21), Payload::Bytes(bytes::Bytes::new()));
    assert_eq!(whole[13].body.as_ref().unwrap().headers, "no json");

    let found = source.probe(&[0..=i64::MAX], 1_000).await.unwrap();
    assert_eq!(found.len(), HOSTILE.len());
    assert_eq!(source.backlog().await.unwrap().events, HOSTILE.len() as u64);
    source
        .due_after("events", outboxd::event::Timestamp(0), 1_000)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_that_was_read_can_be_asked_for() {
    let (_outbox, source) = filled().await;
    let rows = source
        .read("events", 0, ReadBounds::rows(1_000), &[])
        .await
        .unwrap();
    let keyed: Vec<_> = rows
        .iter()
        .filter(|row| row.ordering_key.is_some())
        .collect();
    assert!(keyed.len() >= 6);
    for row in keyed {
        let key = row.ordering_key.clone().unwrap();
        let run = source
            .read_keys("events", &[(key.clone(), 0)], 10)
            .await
            .unwrap();
        let seqs: Vec<i64> = run.iter().map(|row| row.seq).collect();
        assert_eq!(seqs, [row.seq], "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_over_hostile_keys_ends() {
    let (_outbox, source) = filled().await;
    for limit in [1, 2, 1_000] {
        let (mut heads, mut mark, mut slices) = (Vec::new(), None, 0);
        loop {
            let slice = source.heads("events", mark.as_ref(), limit).await.unwrap();
            heads.extend(slice.heads.into_iter().map(|head| head.seq));
            mark = slice.next;
            slices += 1;
            assert!(slices < 200, "slices of {limit} go round in a circle");
            if mark.is_none() {
                break;
            }
        }
        heads.sort_unstable();
        let all: Vec<i64> = (1..=HOSTILE.len() as i64).collect();
        assert_eq!(heads, all, "every row is a head here");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_rows_can_be_settled_and_set_aside() {
    let (outbox, source) = filled().await;
    let leases = source
        .acquire(Uuid::now_v7(), Duration::from_secs(60), u16::MAX)
        .await
        .unwrap();
    let rows = source
        .read("events", 0, ReadBounds::rows(1_000), &[])
        .await
        .unwrap();
    let outcomes: Vec<Outcome> = rows
        .iter()
        .map(|row| Outcome {
            seq: row.seq,
            id: row.id,
            sink: "events".into(),
            route: [Arc::from("events")].into(),
            lease: leases[usize::from(shard_of(row.ordering_key.as_deref(), row.seq, SHARDS))],
            verdict: match row.seq % 2 {
                0 => Verdict::Discarded {
                    reason: DiscardReason::Permanent,
                    code: Some("invalid_subject"),
                    attempts: 0,
                    error: "it is no event".to_owned(),
                },
                _ => Verdict::Published {
                    attempts: 0,
                    receipt: outboxd::sink::Receipt::default(),
                },
            },
        })
        .collect();
    let flags = source.settle(&outcomes, true).await.unwrap();
    assert_eq!(flags, vec![true; HOSTILE.len()]);
    assert!(
        source
            .read("events", 0, ReadBounds::rows(10), &[])
            .await
            .unwrap()
            .is_empty()
    );
    let listed = outbox
        .admin()
        .discarded(&DiscardedFilter::default(), 100)
        .await
        .unwrap();
    assert_eq!(listed.len(), HOSTILE.len() / 2);
}

/// The checks stop all of it where it is made, with a name that says what is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn the_checks_name_what_they_refuse() {
    let outbox = SqliteOutbox::new().await;
    let mut application = outbox.application().await;
    for (values, check) in [
        ("(kind, payload) VALUES ('', '1')", "kind_is_text"),
        ("(kind, payload) VALUES ('a', '{')", "payload_is_json"),
        ("(kind) VALUES ('a')", "exactly_one_payload"),
        (
            "(kind, payload, ordering_key) VALUES ('a', '1', '')",
            "ordering_key_is_text",
        ),
        ("(kind, payload, id) VALUES ('a', '1', '7')", "id_is_a_uuid"),
        (
            "(kind, payload, headers) VALUES ('a', '1', '')",
            "headers_are_json",
        ),
        (
            "(kind, payload, available_at) VALUES ('a', '1', '2026-01-01 00:00:00')",
            "times_are_iso",
        ),
    ] {
        let statement = sqlx::AssertSqlSafe(format!("INSERT INTO outbox_event {values}"));
        let error = sqlx::query(statement)
            .execute(&mut application)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(check), "{values}: {error}");
    }
}
