//! Leases, heartbeats, wake-ups and housekeeping on PostgreSQL.

use std::time::Duration;

use outboxd::source::{Heartbeat, PublishedKeep, Retention, Source};
use uuid::Uuid;

use crate::postgres_fixture::*;
use crate::support::eventually;

#[tokio::test]
async fn shards_are_taken_once_and_tokens_only_grow() {
    let (database, source) = outbox().await;
    let (a, b) = (Uuid::new_v4(), Uuid::new_v4());
    let first = source.acquire(a, TTL, u16::MAX).await.unwrap();
    assert_eq!(first.len(), 16);
    assert!(
        first
            .iter()
            .enumerate()
            .all(|(n, l)| usize::from(l.shard) == n && l.token == 1)
    );
    assert_eq!(source.acquire(b, TTL, u16::MAX).await.unwrap(), []);
    // A restarted claimer of the same instance takes its shards under fresh tokens.
    let again = source.acquire(a, TTL, u16::MAX).await.unwrap();
    assert!(again.iter().all(|lease| lease.token == 2) && again.len() == 16);
    assert_eq!(source.renew(&first, TTL).await.unwrap().held, []);
    assert_eq!(source.renew(&again, TTL).await.unwrap().held, again);
    // Old tokens release nothing.
    source.release(&first).await.unwrap();
    assert_eq!(source.acquire(b, TTL, u16::MAX).await.unwrap(), []);
    source.release(&again[..4]).await.unwrap();
    let taken = source.acquire(b, TTL, u16::MAX).await.unwrap();
    assert!(taken.iter().all(|lease| lease.token == 3) && taken.len() == 4);
    assert_eq!(source.renew(&again, TTL).await.unwrap().held, again[4..]);
    database
        .execute("update outbox.lease set expires_at = now() - interval '1 s' where shard > 9")
        .await;
    assert_eq!(source.acquire(b, TTL, u16::MAX).await.unwrap().len(), 10);
    let view = source.leases().await.unwrap();
    assert_eq!(view.len(), 16);
    assert!(
        view.iter()
            .all(|lease| lease.owner.is_some() && lease.expires_in_s > 10.0)
    );
}

#[tokio::test]
async fn rivals_at_the_same_moment_share_no_shard() {
    let (database, source) = outbox().await;
    for _ in 0..10 {
        let rivals: Vec<_> = (0..4).map(|_| another(&database, |_| {})).collect();
        let taken = futures_util::future::join_all(rivals.iter().map(acquire)).await;
        let mut shards: Vec<u16> = taken.iter().flatten().map(|lease| lease.shard).collect();
        shards.sort_unstable();
        assert_eq!(shards, (0..16).collect::<Vec<u16>>());
        for leases in taken {
            source.release(&leases).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_renewal_tells_where_the_database_stands() {
    let (database, source) = outbox().await;
    let opened = source.open().await.unwrap();
    assert_eq!(opened.shards, 16);
    assert_eq!(opened.remarks, Vec::<String>::new());
    let renewed = source.renew(&[], TTL).await.unwrap();
    assert_eq!(
        (renewed.last_seq, &renewed.incarnation),
        (0, &opened.incarnation)
    );
    insert(&database, 7, 1).await;
    let mut lost = database.writer().await;
    sqlx::raw_sql("begin; insert into outbox.event (kind, payload) values ('a', '1'); rollback")
        .execute(&mut lost)
        .await
        .unwrap();
    assert_eq!(source.renew(&[], TTL).await.unwrap().last_seq, 8);
    // A table restored from a dump is another history.
    database
        .execute(
            "alter table outbox.event rename to old;
             create table outbox.event (like outbox.old including all)",
        )
        .await;
    let other = another(&database, |_| {}).renew(&[], TTL).await.unwrap();
    assert_ne!(other.incarnation, opened.incarnation);
    assert!(
        opened.incarnation.split('/').all(|part| !part.is_empty()),
        "{opened:?}"
    );
}

#[tokio::test]
async fn heartbeats_show_in_status_until_goodbye() {
    let (_database, source) = outbox().await;
    let mut beat = Heartbeat {
        instance: Uuid::new_v4(),
        host: "a\0host".into(),
        version: "0.1.0",
        listening: false,
        report: r#"{"feeds":[]}"#.into(),
    };
    source.heartbeat(&beat).await.unwrap();
    beat.listening = true;
    source.heartbeat(&beat).await.unwrap();
    let status = outboxd::source::admin::Admin::status(&source)
        .await
        .unwrap();
    assert_eq!(status.instances.len(), 1);
    let seen = &status.instances[0];
    assert_eq!((seen.host.as_str(), seen.listening), ("ahost", true));
    assert!(seen.seen_s < 30.0);
    assert_eq!(seen.report["feeds"], serde_json::json!([]));
    source.goodbye(beat.instance).await.unwrap();
    let status = outboxd::source::admin::Admin::status(&source)
        .await
        .unwrap();
    assert!(status.instances.is_empty());
}

/// Writers notify only while the mark is set; commands always do.
#[tokio::test]
async fn writers_wake_a_listener_while_the_mark_is_set() {
    let (database, source) = outbox().await;
    let mut listener = source.listen().await.unwrap().unwrap();
    let quiet = Duration::from_millis(200);
    insert(&database, 1, 1).await;
    assert!(tokio::time::timeout(quiet, listener.wait()).await.is_err());
    source.set_wake_mark(Duration::from_secs(30)).await.unwrap();
    insert(&database, 1, 1).await;
    tokio::time::timeout(TTL, listener.wait())
        .await
        .unwrap()
        .unwrap();
    listener.probe().await.unwrap();
    // A shorter wish of another instance takes nothing away.
    source
        .set_wake_mark(Duration::from_millis(1))
        .await
        .unwrap();
    insert(&database, 1, 1).await;
    tokio::time::timeout(TTL, listener.wait())
        .await
        .unwrap()
        .unwrap();
    source.set_wake_mark(Duration::ZERO).await.unwrap();
    insert(&database, 1, 1).await;
    assert!(tokio::time::timeout(quiet, listener.wait()).await.is_err());
    database
        .execute("insert into outbox.control (command) values ('look')")
        .await;
    tokio::time::timeout(TTL, listener.wait())
        .await
        .unwrap()
        .unwrap();
    // Another outbox in the same database wakes somebody else.
    let other = another(&database, |o| o.schema = "other".into());
    migrate_in(&database, "other", 16).await;
    other.set_wake_mark(Duration::from_secs(30)).await.unwrap();
    database
        .execute("insert into other.event (kind, payload) values ('a', '1')")
        .await;
    assert!(tokio::time::timeout(quiet, listener.wait()).await.is_err());
}

#[tokio::test]
async fn a_plain_insert_wakes_with_the_printed_rights() {
    let (database, source) = outbox().await;
    source.set_wake_mark(Duration::from_secs(30)).await.unwrap();
    let mut listener = source.listen().await.unwrap().unwrap();
    database
        .write("insert into outbox.event (kind, payload) values ('a', '1')")
        .await;
    tokio::time::timeout(TTL, listener.wait())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(read(&source).await.len(), 1);
}

#[tokio::test]
async fn a_lost_listener_says_so_and_keeps_saying_so() {
    let (database, source) = outbox().await;
    let mut listener = source.listen().await.unwrap().unwrap();
    database
        .execute_as_superuser(
            "select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and query like 'LISTEN%'",
        )
        .await;
    let end = tokio::time::timeout(TTL, listener.wait()).await.unwrap();
    assert!(end.is_err());
    assert!(listener.wait().await.is_err() && listener.probe().await.is_err());
    let mut next = source.listen().await.unwrap().unwrap();
    next.probe().await.unwrap();
}

#[tokio::test]
async fn no_listener_where_there_is_to_be_none() {
    let (database, _source) = outbox().await;
    let polling = another(&database, |o| o.listen = false);
    assert!(polling.listen().await.unwrap().is_none());
}

#[tokio::test]
async fn a_purge_drops_days_and_makes_new_ones() {
    let (database, source) = outbox().await;
    database
        .execute(
            "insert into outbox.published (published_at, seq, id, sink, attempts, kind)
               select now() - interval '30 days', n, gen_random_uuid(), 'events', 0, 'a' from generate_series(1, 25) n;
             create table outbox.published_20200101 (like outbox.published including all);
             alter table outbox.published attach partition outbox.published_20200101
               for values from ('2020-01-01 00:00:00+00') to ('2020-01-02 00:00:00+00');
             insert into outbox.published (published_at, seq, id, sink, attempts, kind)
               select '2020-01-01 12:00:00+00', n, gen_random_uuid(), 'events', 0, 'a' from generate_series(1, 10) n;
             analyze outbox.published_20200101;
             insert into outbox.discarded (id, sink, seq, kind, payload, headers, occurred_at, available_at, reason, last_error, attempts, route, discarded_at)
               select gen_random_uuid(), 'events', n, 'a', '1', '{}', now(), now(), 'permanent', '', 1, '{events}', now() - n * interval '10 days'
               from generate_series(1, 20) n;
             insert into outbox.control (command, created_at) values ('look', now() - interval '8 days'), ('pause', now() - interval '8 days'), ('look', now());
             insert into outbox.instance (instance, host, version, listening, seen_at) values (gen_random_uuid(), 'h', 'v', false, now() - interval '2 days');
             insert into outbox.audit (operator, action, at) values ('o', 'a', now() - interval '2 years'), ('o', 'a', now());
             insert into outbox.event (seq, kind, payload) overriding system value values (50, 'a', '1');
             insert into outbox.delivery (seq, sink, state, updated_at) values (49, 'events', 'published', now() - interval '1 day'), (50, 'events', 'retry', now() - interval '1 day');
             drop table if exists outbox.published_gone",
        )
        .await;
    // Tomorrow's partition is missing, as after a long rest.
    let tomorrow = text(
        &database,
        "select 'published_' || to_char((now() at time zone 'UTC')::date + 1, 'YYYYMMDD')",
    )
    .await;
    database
        .execute(&format!("drop table outbox.{tomorrow}"))
        .await;
    assert_eq!(
        source.purge(&retention(), 10).await.unwrap(),
        10 + 10 + 10 + 1 + 1 + 1 + 1
    );
    let made = format!("select count(*) from pg_class where relname = '{tomorrow}'");
    assert_eq!(number(&database, &made).await, 1);
    assert_eq!(source.purge(&retention(), 10).await.unwrap(), 10 + 2);
    assert_eq!(source.purge(&retention(), 10).await.unwrap(), 5);
    assert_eq!(source.purge(&retention(), 10).await.unwrap(), 0);
    assert_eq!(
        number(&database, "select count(*) from outbox.discarded").await,
        8
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.control").await,
        2
    );
    assert_eq!(
        number(&database, "select count(*) from outbox.delivery").await,
        1
    );
    // Nothing is kept: the days go as soon as they are past.
    let nothing = Retention {
        published: Duration::ZERO,
        keep: PublishedKeep::None,
        discarded: Duration::ZERO,
    };
    assert_eq!(source.purge(&nothing, 100).await.unwrap(), 8);
}

#[tokio::test]
async fn a_day_whose_rows_came_before_its_partition_stays_in_the_rest() {
    let (database, source) = outbox().await;
    let tomorrow = text(
        &database,
        "select 'published_' || to_char((now() at time zone 'UTC')::date + 1, 'YYYYMMDD')",
    )
    .await;
    database
        .execute(&format!(
            "drop table outbox.{tomorrow};
             insert into outbox.published (published_at, seq, id, sink, attempts, kind)
               values (now() + interval '1 day', 1, gen_random_uuid(), 'events', 0, 'a')"
        ))
        .await;
    source.purge(&retention(), 10).await.unwrap();
    assert_eq!(
        number(&database, "select count(*) from outbox.published_rest").await,
        1
    );
}

#[tokio::test]
async fn time_left_is_counted_by_the_database() {
    let (_database, source) = outbox().await;
    let short = Duration::from_millis(300);
    source
        .acquire(Uuid::new_v4(), short, u16::MAX)
        .await
        .unwrap();
    let rival = Uuid::new_v4();
    let taken = eventually(Duration::from_secs(10), "the leases to run out", || async {
        let taken = source.acquire(rival, TTL, u16::MAX).await.unwrap();
        if taken.is_empty() {
            Err("none yet".into())
        } else {
            Ok(taken)
        }
    })
    .await;
    assert_eq!(taken.len(), 16);
}
