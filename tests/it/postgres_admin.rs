//! The writer's and the operator's side on PostgreSQL.

use std::collections::BTreeMap;
use std::time::Duration;

use outboxd::event::Payload;
use outboxd::lease::Lease;
use outboxd::source::admin::{Admin, DiscardedFilter, NewEvent, Operator};
use outboxd::source::postgres::Postgres;
use outboxd::source::{Command, Outcome, ReadBounds, Source, SourceErrorKind};
use uuid::Uuid;

use crate::postgres_fixture::*;
use crate::support::postgres::Database;

fn event(kind: &str) -> NewEvent {
    NewEvent {
        kind: kind.into(),
        payload: Some(
            serde_json::value::RawValue::from_string(r#"{"b":1, "a":1.0}"#.into()).unwrap(),
        ),
        payload_bytes: None,
        content_type: None,
        ordering_key: Some("k".into()),
        headers: BTreeMap::from([("request_id".into(), "r".into())]),
        delay: None,
        id: None,
    }
}

fn by() -> Operator {
    Operator {
        name: "ada".into(),
        reason: Some("mended".into()),
    }
}

#[tokio::test]
async fn published_events_keep_order_bytes_and_ids() {
    let (database, source) = outbox().await;
    let given = Uuid::new_v4();
    let mut events: Vec<NewEvent> = (0..300).map(|n| event(&format!("a.{n}"))).collect();
    events[1].id = Some(given);
    events[2].delay = Some(Duration::from_secs(3_600));
    events[3].payload = None;
    events[3].payload_bytes = Some(vec![0, 255]);
    events[3].content_type = Some("x/y".into());
    let ids = operator(&database).publish(&events).await.unwrap();
    assert_eq!(ids[1], given);
    let rows = read(&source).await;
    let kinds: Vec<String> = rows.iter().map(|row| row.kind.clone()).collect();
    assert_eq!(
        kinds,
        (0..300).map(|n| format!("a.{n}")).collect::<Vec<_>>()
    );
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), ids);
    assert!(rows[2].due_in > Duration::from_secs(3_500));
    let body = |place: usize| rows[place].body.clone().unwrap();
    assert_eq!(body(0).payload, Payload::Json(r#"{"b":1, "a":1.0}"#.into()));
    assert_eq!(body(3).payload, Payload::Bytes(vec![0, 255].into()));
    assert_eq!(source.pending_kinds(2).await.unwrap(), ["a.0", "a.1"]);
    // All or nothing, and the words say what was wrong.
    let mut bad = event("b");
    bad.ordering_key = Some(String::new());
    let error = refusal(operator(&database).publish(&[event("c"), bad]).await);
    assert!(
        error.kind == SourceErrorKind::Refused
            && error.message.contains("event_ordering_key_check"),
        "{error}"
    );
    let mut both = event("b");
    both.payload_bytes = Some(vec![]);
    assert!(
        refusal(operator(&database).publish(&[both]).await)
            .message
            .contains("event_payload_check")
    );
    assert_eq!(read(&source).await.len(), 300);
    assert_eq!(
        operator(&database).publish(&[]).await.unwrap(),
        Vec::<Uuid>::new()
    );
}

#[tokio::test]
async fn the_sql_functions_take_what_they_are_given() {
    let (database, source) = outbox().await;
    database
        .write(
            "select outbox.publish('a', '{\"x\": 1}');
             select outbox.publish('b', '1', ordering_key => 'k', headers => '{\"h\": \"v\"}', available_at => now() + interval '1 h',
                                   id => '01234567-89ab-7def-8123-456789abcdef');
             select outbox.publish('c', '1', null, null, null, null);
             select outbox.publish_bytes('d', '\\x00ff', 'x/y', 'k')",
        )
        .await;
    let rows = read(&source).await;
    let body = |place: usize| rows[place].body.clone().unwrap();
    assert_eq!(rows.len(), 4);
    assert_eq!(body(0).payload, Payload::Json(r#"{"x": 1}"#.into()));
    assert_eq!(
        rows[1].id.to_string(),
        "01234567-89ab-7def-8123-456789abcdef"
    );
    assert!(
        rows[1].due_in > Duration::from_secs(3_500) && rows[1].ordering_key.as_deref() == Some("k")
    );
    assert_eq!(
        (rows[2].due_in, body(2).headers.as_str()),
        (Duration::ZERO, "{}")
    );
    assert_eq!(body(3).payload, Payload::Bytes(vec![0, 255].into()));
}

#[tokio::test]
async fn default_ids_are_version_7_and_rise_with_time() {
    let (database, source) = outbox().await;
    insert(&database, 1, 1).await;
    let before = Uuid::now_v7();
    insert(&database, 200, 1).await;
    let rows = read(&source).await;
    for row in &rows {
        assert_eq!(
            (row.id.get_version_num(), row.id.get_variant()),
            (7, uuid::Variant::RFC4122)
        );
        let (seconds, _) = row.id.get_timestamp().unwrap().to_unix();
        let (now, _) = before.get_timestamp().unwrap().to_unix();
        assert!(seconds.abs_diff(now) < 60);
    }
    let unique: std::collections::HashSet<Uuid> = rows.iter().map(|row| row.id).collect();
    assert_eq!(unique.len(), 201);
}

/// Discards the first four of ten events of five keys.
async fn with_discards(sinks: &[&str]) -> (Database, Postgres, Vec<Lease>) {
    let (database, source) = outbox().await;
    let leases = acquire(&source).await;
    insert(&database, 10, 5).await;
    let rows = read(&source).await;
    let batch: Vec<Outcome> = rows[..4]
        .iter()
        .map(|row| outcome(&leases, row, sinks, discarded()))
        .collect();
    assert_eq!(source.settle(&batch, true).await.unwrap(), [true; 4]);
    (database, source, leases)
}

#[tokio::test]
async fn discarded_events_are_listed_by_filter_newest_first() {
    let (_database, source, _) = with_discards(&["events"]).await;
    let all = source
        .discarded(&DiscardedFilter::default(), 100)
        .await
        .unwrap();
    assert_eq!(all.iter().map(|d| d.seq).collect::<Vec<_>>(), [4, 3, 2, 1]);
    let one = &all[3];
    assert_eq!(
        (
            one.sink.as_str(),
            one.kind.as_str(),
            one.reason.as_str(),
            one.code.as_deref(),
            one.last_error.as_str()
        ),
        (
            "events",
            "a.b",
            "permanent",
            Some("too_large"),
            "far too large"
        )
    );
    assert_eq!(
        (one.payload.as_deref(), one.size, one.headers.as_str()),
        (Some(r#"{"n" : 1}"#), 9, "{}")
    );
    assert!(one.discarded_at.ends_with('Z') && one.discarded_at.starts_with("20"));
    let filters = [
        (
            DiscardedFilter {
                ids: vec![one.id],
                ..Default::default()
            },
            1,
        ),
        (
            DiscardedFilter {
                sink: Some("other".into()),
                ..Default::default()
            },
            0,
        ),
        (
            DiscardedFilter {
                kind: Some("a.*".into()),
                ..Default::default()
            },
            4,
        ),
        (
            DiscardedFilter {
                kind: Some("a.%".into()),
                ..Default::default()
            },
            0,
        ),
        (
            DiscardedFilter {
                kind: Some("a.b".into()),
                ordering_key: Some("k1".into()),
                ..Default::default()
            },
            1,
        ),
        (
            DiscardedFilter {
                reason: Some("crashed".into()),
                ..Default::default()
            },
            0,
        ),
    ];
    for (filter, count) in filters {
        assert_eq!(
            source.discarded(&filter, 100).await.unwrap().len(),
            count,
            "{filter:?}"
        );
    }
    assert_eq!(
        source
            .discarded(&DiscardedFilter::default(), 2)
            .await
            .unwrap()
            .len(),
        2
    );
    let status = source.status().await.unwrap();
    assert_eq!(
        (status.discarded[0].sink.as_str(), status.discarded[0].count),
        ("events", 4)
    );
    assert_eq!((status.backlog.events, status.leases.len()), (6, 16));
}

#[tokio::test]
async fn requeued_events_come_back_under_their_seq_and_owners_are_told() {
    let (database, source, _) = with_discards(&["events"]).await;
    let before = source.commands(None).await.unwrap();
    assert!(before.items.is_empty());
    let mut listener = source.listen().await.unwrap().unwrap();
    let filter = DiscardedFilter {
        kind: Some("a.*".into()),
        ..Default::default()
    };
    assert_eq!(
        operator(&database).requeue(&filter, &by()).await.unwrap(),
        4
    );
    tokio::time::timeout(TTL, listener.wait())
        .await
        .unwrap()
        .unwrap();
    let told = source.commands(Some(before.mark)).await.unwrap();
    assert_eq!(
        told.items,
        [Command::Look {
            seqs: vec![1, 2, 3, 4]
        }]
    );
    assert!(told.mark > before.mark);
    assert!(
        source
            .commands(Some(told.mark))
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let rows = read(&source).await;
    assert_eq!(
        rows.iter().map(|row| row.seq).collect::<Vec<_>>(),
        (1..=10).collect::<Vec<_>>()
    );
    assert!(rows.iter().all(|row| row.attempts == 0 && !row.done));
    assert_eq!(
        number(&database, "select count(*) from outbox.discarded").await,
        0
    );
    assert_eq!(
        text(&database, "select concat_ws('|', operator, action, reason, detail->>'count', detail->>'kind') from outbox.audit").await,
        "ada|requeue|mended|4|a.*"
    );
    assert_eq!(
        operator(&database).requeue(&filter, &by()).await.unwrap(),
        0
    );
    // Writers' numbers go on where they were.
    assert_eq!(insert(&database, 1, 1).await, [11]);
}

#[tokio::test]
async fn a_requeue_reaches_only_the_sinks_it_was_discarded_for() {
    let (database, source, leases) = with_discards(&["events", "hooks"]).await;
    let rows = source
        .read("hooks", 0, ReadBounds::rows(100), &[])
        .await
        .unwrap();
    // Event 1 is finished by the other sink and gone; event 2 still waits for it.
    let finish = [outcome(
        &leases,
        &rows[0],
        &["hooks", "events"],
        published(),
    )];
    assert_eq!(source.settle(&finish, false).await.unwrap(), [true]);
    assert_eq!(
        number(&database, "select count(*) from outbox.event").await,
        9
    );
    assert_eq!(
        operator(&database)
            .requeue(&DiscardedFilter::default(), &by())
            .await
            .unwrap(),
        4
    );
    let events = read(&source).await;
    assert_eq!(events.iter().filter(|row| row.done).count(), 0);
    let hooks = source
        .read("hooks", 0, ReadBounds::rows(100), &[])
        .await
        .unwrap();
    assert_eq!(
        hooks
            .iter()
            .filter(|row| row.done)
            .map(|row| row.seq)
            .collect::<Vec<_>>(),
        [1]
    );
    let again = [outcome(
        &leases,
        &events[0],
        &["events", "hooks"],
        published(),
    )];
    assert_eq!(source.settle(&again, false).await.unwrap(), [true]);
    assert_eq!(
        number(&database, "select count(*) from outbox.event where seq = 1").await,
        0
    );
}

#[tokio::test]
async fn a_seq_that_another_event_has_is_not_taken_back() {
    let (database, _, _) = with_discards(&["events"]).await;
    database
        .execute("insert into outbox.event (seq, kind, payload) overriding system value values (2, 'x', '1')")
        .await;
    let error = refusal(
        operator(&database)
            .requeue(&DiscardedFilter::default(), &by())
            .await,
    );
    assert!(
        error.kind == SourceErrorKind::Refused && error.message.contains("another event"),
        "{error}"
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.discarded").await,
        4
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.control").await,
        0
    );
}

#[tokio::test]
async fn dropped_events_are_gone_with_a_trace() {
    let (database, _, _) = with_discards(&["events"]).await;
    let filter = DiscardedFilter {
        ordering_key: Some("k1".into()),
        ..Default::default()
    };
    assert_eq!(
        operator(&database)
            .drop_discarded(&filter, &by())
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.discarded").await,
        3
    );
    let trace = "select count(*) from outbox.audit where action = 'drop' and detail->>'ordering_key' = 'k1'";
    assert_eq!(number(&database, trace).await, 1);
}

/// Ids must become visible in their order, or a reader would pass over the later commit of a lower one.
#[tokio::test]
async fn commands_appear_in_the_order_of_their_ids() {
    let (database, source) = outbox().await;
    let mut first = database.connect().await;
    sqlx::raw_sql(
        "begin; insert into outbox.control (command, payload) values ('look', '{\"seqs\": [1]}')",
    )
    .execute(&mut first)
    .await
    .unwrap();
    let other = database.clone();
    let second = tokio::spawn(async move {
        other
            .execute("insert into outbox.control (command, payload) values ('look', '{\"seqs\": [2]}'), ('unheard-of', '{}')")
            .await;
    });
    crate::support::eventually(Duration::from_secs(10), "the second to wait", || async {
        let waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted
                     and database = (select oid from pg_database where datname = current_database())";
        match number(&database, waits).await {
            1 => Ok(()),
            n => Err(format!("{n} wait")),
        }
    })
    .await;
    assert!(source.commands(Some(0)).await.unwrap().items.is_empty());
    sqlx::raw_sql("commit").execute(&mut first).await.unwrap();
    second.await.unwrap();
    let commands = source.commands(Some(0)).await.unwrap();
    assert_eq!(
        commands.items,
        [
            Command::Look { seqs: vec![1] },
            Command::Look { seqs: vec![2] }
        ]
    );
    assert_eq!(commands.mark, 3);
}
