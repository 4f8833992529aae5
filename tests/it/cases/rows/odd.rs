//! Values at the edge of their types, numbers that jump, ids that come again, and whatever SQLite lets stand anywhere.

use std::sync::Arc;
use std::time::Duration;

use outboxd::source::admin::DiscardedFilter;
use outboxd::testing::source::Outbox as _;
use sqlx::SqliteConnection;

use super::super::bench::{LONG, Place, numbers};
use super::{Calm, literal};
use crate::source_conformance::sqlite::SqliteOutbox;
use crate::sqlite::hostile::HOSTILE;
use crate::support::eventually;

/// Times are taken as they are, the infinities and years that no calendar knows among them.
#[tokio::test]
async fn c68_odd_values_in_every_column_leave_as_they_are() {
    let mut calm = Calm::new().await;
    for (occurred, shown) in [
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
        ("290000-01-01", "infinity"),
        ("4713-01-01 BC", "-infinity"),
        (
            "1969-12-31 23:59:59.999999+00",
            "1969-12-31T23:59:59.999999Z",
        ),
    ] {
        let values = format!("'a', '1', '{occurred}', '-infinity'");
        let arrived = calm
            .arrives("kind, payload, occurred_at, available_at", &values)
            .await;
        let header = arrived.message.header("Outbox-Occurred-At");
        assert_eq!(header, Some(shown), "{occurred}");
    }
    let id = "'00000000-0000-0000-0000-000000000000', 'a', '1'";
    let arrived = calm.arrives("id, kind, payload", id).await;
    let header = arrived.message.header("Nats-Msg-Id");
    assert_eq!(header, Some("orders:00000000-0000-0000-0000-000000000000"));
    // Never due: it waits and stands in nobody's way but its own key's.
    calm.place
        .database
        .write(
            "insert into outbox.event (kind, ordering_key, payload, available_at) values ('a', 'never', '1', 'infinity')",
        )
        .await;
    let values = format!("'a', '1', {}", literal(r#"{"x": "y"}"#));
    calm.arrives("kind, payload, headers", &values).await;
    let left = "select count(*) from outbox.event where ordering_key = 'never'";
    assert_eq!(calm.place.number(left).await, 1);
    calm.place
        .database
        .execute("delete from outbox.event where ordering_key = 'never'")
        .await;
    calm.end().await;
}

/// Numbers are 64 bits wide from the column to the header, and so are the attempts.
#[tokio::test]
async fn c71_numbers_beyond_31_bits_and_up_to_the_last_one() {
    let place = Place::new().await;
    let relay = place.relay().await;
    place.insert("k", 1..=2).await;
    place.emptied().await;
    let mut n = 2;
    for at in [2_147_483_645_i64, 9_000_000_000_000_000_000, i64::MAX - 6] {
        place
            .database
            .execute(&format!("select setval('outbox.event_seq', {at})"))
            .await;
        place.insert("k", n + 1..=n + 5).await;
        n += 5;
        place.stored(n as usize).await;
        place.emptied().await;
    }
    // The very last number; after it the writer is told that there are no more.
    place.insert("k", n + 1..=n + 1).await;
    let all = place.stored(n as usize + 1).await;
    place.emptied().await;
    let expected: Vec<u64> = (1..=u64::from(n) + 1).collect();
    assert_eq!(numbers(&all, "k"), expected);
    let last = all.last().and_then(|m| m.header("Outbox-Seq"));
    assert_eq!(last, Some(i64::MAX.to_string().as_str()));
    let full = "insert into outbox.event (kind, payload) values ('a', '1')";
    let error = sqlx::query(full)
        .execute(&mut place.database.writer().await)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("reached maximum value"),
        "{error}"
    );
    for metric in ["missed_total", "restarts_total", "discarded_total"] {
        assert_eq!(relay.metric(metric, &[]), 0.0, "{metric}");
    }
    place.verified().await;
}

/// SQLite lets a writer choose the number: any of 63 bits is one, up to the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c71_numbers_that_a_writer_chose_in_sqlite() {
    let place = Place::new().await;
    let outbox = SqliteOutbox::new().await;
    let mut application = outbox.application().await;
    let relay = place.setup().start_with(|options| {
        options.databases[0] = outboxd::relay::DatabaseOptions::new(outbox.source());
        options.databases[0].poll_max = Duration::from_millis(200);
    });
    let relay = relay.await;
    for seq in [i64::MIN, -7, 0] {
        let sql = format!("INSERT INTO outbox_event (seq, kind, payload) VALUES ({seq}, 'a', '1')");
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut application)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("seq_is_positive"), "{error}");
    }
    let numbers_chosen = [1, 5, 3_000_000_000, i64::MAX - 1, i64::MAX];
    for (n, seq) in numbers_chosen.iter().enumerate() {
        let sql = format!(
            "INSERT INTO outbox_event (seq, kind, ordering_key, payload) VALUES ({seq}, 'a', 'k', '{{\"n\":{n}}}')"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut application)
            .await
            .unwrap();
        place.stored(n + 1).await;
    }
    let all = place.stored(numbers_chosen.len()).await;
    assert_eq!(
        numbers(&all, "k"),
        (0..numbers_chosen.len() as u64).collect::<Vec<_>>()
    );
    let seqs: Vec<i64> = all
        .iter()
        .filter_map(|m| m.header("Outbox-Seq")?.parse().ok())
        .collect();
    assert_eq!(seqs, numbers_chosen);
    for metric in ["missed_total", "restarts_total", "discarded_total"] {
        assert_eq!(relay.metric(metric, &[]), 0.0, "{metric}");
    }
    place.verified().await;
}

/// A counter at the end of its type is spent, not wrapped.
#[tokio::test]
async fn c71_attempts_at_the_end_of_their_type_are_spent() {
    for attempts in [i64::from(i32::MAX) - 1, i64::from(u32::MAX), i64::MAX, -1] {
        let place = Place::with(|config| config.subjects = vec!["evt.good".to_owned()]).await;
        let mut setup = place.setup();
        setup.retry.max_attempts = 3;
        place
            .database
            .write("insert into outbox.event (kind, ordering_key, payload) values ('nobody', 'bad', '1')")
            .await;
        place
            .database
            .execute(&format!(
                "insert into outbox.delivery (seq, sink, state, attempts, next_at)
                 select seq, 'events', 'retry', {attempts}, now() from outbox.event"
            ))
            .await;
        let relay = setup.start().await;
        let mut n = 0;
        eventually(LONG, "the event is set aside", || {
            n += 1;
            let place = &place;
            async move {
                // A sink that takes others is not down, so the failure is this event's.
                place.insert("good", n..=n).await;
                let count = place.number("select count(*) from outbox.discarded").await;
                (count == 1).then_some(()).ok_or("it is not".to_owned())
            }
        })
        .await;
        let reason = "select reason from outbox.discarded";
        assert_eq!(place.text(reason).await, "retry_budget", "{attempts}");
        assert_eq!(relay.metric("restarts_total", &[]), 0.0, "{attempts}");
    }
}

/// A sequence that falls below the cursor is noticed at the next renewal, and the table read from its start.
#[tokio::test]
async fn c71_a_sequence_that_jumps_or_goes_back_under_a_running_relay_loses_nothing() {
    let place = Place::new().await;
    let relay = place.relay().await;
    let set = async |at: i64| {
        let sql = format!("select setval('outbox.event_seq', {at})");
        place.database.execute(&sql).await;
    };
    place.insert("k", 1..=5).await;
    place.emptied().await;
    set(5_000_000_000).await;
    place.insert("k", 6..=10).await;
    place.stored(10).await;
    place.emptied().await;
    set(100).await;
    place.insert("k", 11..=15).await;
    let all = place.stored(15).await;
    place.emptied().await;
    assert_eq!(numbers(&all, "k"), (1..=15).collect::<Vec<_>>());
    assert_eq!(relay.metric("restarts_total", &[]), 0.0);
    assert_eq!(relay.metric("discarded_total", &[]), 0.0);
    // Not verified: numbers that go back are no order to check.
}

/// The id is the event's identity: one that is given again while the stream remembers it is the same message, which
/// is counted, and nothing waits for it.
#[tokio::test]
async fn c65_an_id_that_comes_again_is_the_same_message_and_is_counted() {
    let place = Place::new().await;
    let relay = place.relay().await;
    let id = "0199c1a0-1111-7222-8333-444455556666";
    let again = |n: u32| {
        format!(
            "insert into outbox.event (id, kind, ordering_key, payload) values ('{id}', 'a', 'k', '{{\"n\":{n}}}')"
        )
    };
    place.database.write(&again(1)).await;
    // While it waits it is unique.
    place.stored(1).await;
    place.emptied().await;
    place.database.write(&again(2)).await;
    place.insert("k", 3..=3).await;
    let all = place.stored(2).await;
    place.emptied().await;
    assert_eq!(numbers(&all, "k"), [1, 3]);
    relay
        .counted("duplicates_total", &[r#"expected="false""#], 1.0)
        .await;
    let mut writer = place.database.writer().await;
    sqlx::raw_sql("begin").execute(&mut writer).await.unwrap();
    for n in 4..=5 {
        let sql = sqlx::AssertSqlSafe(again(n).replace(id, "0199c1a0-1111-7222-8333-444455557777"));
        let done = sqlx::raw_sql(sql).execute(&mut writer).await;
        assert_eq!(done.is_ok(), n == 4, "{done:?}");
    }
    place.verified().await;
}

/// Every hostile row with a good one behind it.
async fn write_hostile(application: &mut SqliteConnection) {
    sqlx::query("PRAGMA ignore_check_constraints = ON")
        .execute(&mut *application)
        .await
        .unwrap();
    for (n, values) in HOSTILE.iter().enumerate() {
        let good = format!(
            "INSERT INTO outbox_event {values};
             INSERT INTO outbox_event (kind, ordering_key, payload) VALUES ('good', 'g{}', '{{\"n\":{n}}}')",
            n % 3
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(good))
            .execute(&mut *application)
            .await
            .unwrap_or_else(|error| panic!("{values}: {error}"));
    }
}

async fn emptied(application: &mut SqliteConnection) {
    let left = tokio::sync::Mutex::new(application);
    eventually(LONG, "the outbox is empty", || async {
        let sql = "SELECT count(*) FROM outbox_event";
        let left: i64 = sqlx::query_scalar(sql)
            .fetch_one(&mut **left.lock().await)
            .await
            .unwrap();
        (left == 0).then_some(()).ok_or(format!("{left} rows"))
    })
    .await;
}

/// Whatever SQLite lets stand in a column leaves, or is set aside with a code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c65_rows_of_any_type_in_sqlite_leave_or_are_set_aside() {
    let place = Place::new().await;
    let outbox = SqliteOutbox::new().await;
    let relay = place.setup().start_with(|options| {
        options.databases[0] = outboxd::relay::DatabaseOptions::new(outbox.source());
        options.databases[0].poll_max = Duration::from_millis(200);
    });
    let relay = relay.await;
    let mut application = outbox.application().await;
    write_hostile(&mut application).await;
    emptied(&mut application).await;
    let discarded = outbox
        .admin()
        .discarded(&DiscardedFilter::default(), 1_000)
        .await
        .unwrap();
    for one in &discarded {
        let code = one.code.as_deref().unwrap_or("none");
        assert!(
            ["invalid_header", "invalid_subject", "too_large"].contains(&code),
            "{one:?}"
        );
    }
    let stored = place.nats.stored("EVT").await;
    assert_eq!(stored.len() + discarded.len(), 2 * HOSTILE.len());
    for key in 0..3 {
        let good: Vec<u64> = stored
            .iter()
            .filter(|m| m.header("Outbox-Key") == Some(&format!("g{key}")))
            .map(|m| super::number_in(&m.payload))
            .collect();
        let expected: Vec<u64> = (0..HOSTILE.len() as u64).filter(|n| n % 3 == key).collect();
        assert_eq!(good, expected);
    }
    for metric in ["restarts_total", "missed_total", "retried_total"] {
        assert_eq!(relay.metric(metric, &[]), 0.0, "{metric}");
    }
    place.verified().await;
}

/// The same into a file of JSON lines, where kinds are no subjects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c65_rows_of_any_type_in_sqlite_become_lines_or_are_set_aside() {
    let place = Place::new().await;
    let outbox = SqliteOutbox::new().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let file = outboxd::sink::file::File::new(outboxd::sink::file::Options { path: path.clone() });
    let relay = place.setup().start_with(|options| {
        options.databases[0] = outboxd::relay::DatabaseOptions::new(outbox.source());
        options.databases[0].poll_max = Duration::from_millis(200);
        options.sinks[0].sink = Arc::new(file);
    });
    let relay = relay.await;
    let mut application = outbox.application().await;
    write_hostile(&mut application).await;
    emptied(&mut application).await;
    let (admin, all) = (outbox.admin(), DiscardedFilter::default());
    let discarded = admin.discarded(&all, 1_000).await.unwrap();
    assert!(
        discarded.iter().all(|one| one.code.is_some()),
        "{discarded:?}"
    );
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len() + discarded.len(), 2 * HOSTILE.len());
    let good = lines.iter().filter(|line| line["kind"] == "good");
    assert_eq!(good.count(), HOSTILE.len());
    assert_eq!(relay.metric("restarts_total", &[]), 0.0);
    place.verified().await;
}

/// Upper and lower case are one id to everybody but a comparison of text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c65_an_id_in_another_case_is_the_same_id_in_sqlite_too() {
    let outbox = SqliteOutbox::new().await;
    let mut application = outbox.application().await;
    let id = "0199c1a0-1111-7222-8333-44445555abcd";
    let insert = |id: &str| {
        sqlx::AssertSqlSafe(format!(
            "INSERT INTO outbox_event (id, kind, payload) VALUES ('{id}', 'a', '1')"
        ))
    };
    sqlx::raw_sql(insert(&id.to_uppercase()))
        .execute(&mut application)
        .await
        .unwrap();
    let error = sqlx::raw_sql(insert(id))
        .execute(&mut application)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("UNIQUE"), "{error}");
    let source: Arc<dyn outboxd::source::Source> = outbox.source();
    source.open().await.unwrap();
    let rows = source.read_seqs("events", &[1]).await.unwrap();
    assert_eq!(rows[0].id.to_string(), id);
}
