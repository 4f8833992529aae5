//! Migrations, schemas and roles on PostgreSQL.

use std::time::Duration;

use outboxd::source::admin::{Admin, DiscardedFilter, Migrated, Operator, Roles};
use outboxd::source::postgres::{Options, Postgres};
use outboxd::source::waiting::{KeyName, Pick};
use outboxd::source::{Heartbeat, ReadBounds, Source, SourceErrorKind, Target};
use sqlx::{AssertSqlSafe, Connection as _};
use uuid::Uuid;

use crate::postgres_fixture::*;
use crate::support::{eventually, postgres::server};

const LATEST: i64 = 4;

#[tokio::test]
async fn eight_migrators_at_once_all_succeed() {
    let database = server().await.database().await;
    let sources: Vec<Postgres> = (0..8).map(|_| owner(&database)).collect();
    let done = futures_util::future::join_all(sources.iter().map(|source| source.migrate())).await;
    for migrated in done {
        assert_eq!(migrated.unwrap().to, LATEST);
    }
    assert_eq!(
        number(&database, "select count(*) from outbox.migration").await,
        LATEST
    );
    let again = sources[0].migrate().await.unwrap();
    assert_eq!(
        again,
        Migrated {
            from: LATEST,
            to: LATEST
        }
    );
    assert_eq!(sources[0].pending_sql().await.unwrap(), []);
    sources[0].open().await.unwrap();
    let locks = "select count(*) from pg_locks where locktype = 'advisory'
                 and database = (select oid from pg_database where datname = current_database())";
    assert_eq!(number(&database, locks).await, 0);
}

#[tokio::test]
async fn a_killed_migrator_lets_the_others_go_on() {
    let database = server().await.database().await;
    // Stands for a migrator that hangs in the middle: it holds the lock of the same name.
    let mut holder = database.connect().await;
    let key = i64::from_be_bytes(outboxd::lease::fnv1a64(b"outboxd migrate outbox").to_be_bytes());
    sqlx::raw_sql(AssertSqlSafe(format!(
        "begin; select pg_advisory_xact_lock({key})"
    )))
    .execute(&mut holder)
    .await
    .unwrap();
    let holder_pid = number_on(&mut holder, "select pg_backend_pid()::bigint").await;
    let source = owner(&database);
    let waiting = tokio::spawn(async move { source.migrate().await });
    eventually(Duration::from_secs(10), "the second to wait", || async {
        let waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted
                     and database = (select oid from pg_database where datname = current_database())";
        match number(&database, waits).await {
            1 => Ok(()),
            n => Err(format!("{n} wait")),
        }
    })
    .await;
    database
        .execute_as_superuser(&format!("select pg_terminate_backend({holder_pid})"))
        .await;
    let migrated = tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .unwrap();
    assert_eq!(
        migrated.unwrap().unwrap(),
        Migrated {
            from: 0,
            to: LATEST
        }
    );
}

#[tokio::test]
async fn any_schema_name_works_and_nothing_else_is_touched() {
    let database = server().await.database().await;
    let decoy = "create table public.event (like pg_class); create table public._sqlx_migrations (version bigint);
                 create table public.lease (x int); insert into public._sqlx_migrations values (1), (2)";
    database.execute_as_superuser(decoy).await;
    database
        .execute_as_superuser(&format!(
            "alter database {} set search_path = ''",
            database.name
        ))
        .await;
    for schema in ["My-App", r#"it's "odd" {schema}; --"#, "Übergröße"] {
        migrate_in(&database, schema, 16).await;
        let source = another(&database, |o| o.schema = schema.into());
        source.open().await.unwrap();
        let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
        database
            .write(&format!(
                "select {quoted}.publish('a.b', '{{\"n\":1}}', 'k'); select {quoted}.publish_bytes('a.b', 'x')"
            ))
            .await;
        let leases = acquire(&source).await;
        let rows = read(&source).await;
        assert_eq!(rows.len(), 2, "{schema}");
        let batch = [
            outcome(&leases, &rows[0], &["events"], discarded()),
            outcome(&leases, &rows[1], &["events"], published()),
        ];
        assert_eq!(source.settle(&batch, true).await.unwrap(), [true, true]);
        let by = Operator {
            name: "op".into(),
            reason: None,
        };
        let operator = source_of(&database, Role::Operator, |o| o.schema = schema.into());
        assert_eq!(
            operator
                .requeue(&DiscardedFilter::default(), &by)
                .await
                .unwrap(),
            1
        );
        assert_eq!(source.commands(Some(0)).await.unwrap().items.len(), 1);
        assert!(source.writers().await.unwrap().unwrap().running.is_empty());
        source.purge(&retention(), 10).await.unwrap();
        source.renew(&leases, TTL).await.unwrap();
        source.set_wake_mark(Duration::from_secs(5)).await.unwrap();
        source
            .listen()
            .await
            .unwrap()
            .unwrap()
            .probe()
            .await
            .unwrap();
        source.backlog().await.unwrap();
        source.heads("events", None, 10).await.unwrap();
        source.delete_done(&["events".into()], 10).await.unwrap();
        source.status().await.unwrap();
    }
    let public = "select count(*) from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'S', 'i')";
    assert_eq!(number(&database, public).await, 3);
    assert_eq!(
        watched(&database, "select count(*) from public.event").await,
        0
    );
    assert_eq!(
        watched(&database, "select count(*) from public._sqlx_migrations").await,
        2
    );
}

#[tokio::test]
async fn an_absent_old_or_newer_schema_is_refused_with_words() {
    let database = server().await.database().await;
    let source = owner(&database);
    let absent = refusal(source.open().await);
    assert_eq!(absent.kind, SourceErrorKind::Unusable);
    assert!(absent.message.contains("run `outboxd migrate`"), "{absent}");
    source.migrate().await.unwrap();
    database
        .execute("delete from outbox.migration where version = 4")
        .await;
    let old = refusal(source.open().await);
    assert_eq!(old.kind, SourceErrorKind::Unusable);
    assert!(
        old.message.contains("at version 3") && old.message.contains("run `outboxd migrate`"),
        "{old}"
    );
    database
        .execute("insert into outbox.migration values (4, 'x'), (99, 'from the future')")
        .await;
    for error in [
        refusal(source.open().await),
        refusal(source.migrate().await),
        refusal(source.pending_sql().await),
    ] {
        assert_eq!(error.kind, SourceErrorKind::Unusable);
        assert!(
            error
                .message
                .contains("version 99, newer than this outboxd"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_must_be_agreed_is_checked() {
    let (database, source) = outbox().await;
    let fewer = another(&database, |o| o.shards = 4);
    let opened = fewer.open().await.unwrap();
    assert_eq!(opened.shards, 16);
    assert!(opened.remarks[0].contains("16 shards"), "{opened:?}");
    database
        .execute("alter table outbox.event alter column seq set cache 20")
        .await;
    let cache = refusal(source.open().await);
    assert!(
        cache.kind == SourceErrorKind::Unusable && cache.message.contains("cache 20"),
        "{cache}"
    );
    database.execute("alter table outbox.event alter column seq set cache 1; update outbox.settings set algorithm = 'md5'").await;
    let algorithm = refusal(source.open().await);
    assert!(
        algorithm.kind == SourceErrorKind::Unusable && algorithm.message.contains("md5"),
        "{algorithm}"
    );
}

/// The printed SQL, run by somebody else, is the migration; then the grants are all that roles need.
#[tokio::test]
async fn printed_sql_and_grants_are_enough_without_ownership_or_superuser() {
    let database = server().await.database().await;
    let name = &database.name;
    database
        .execute_as_superuser(&format!(
            "create role owner_{name} login password 'x'; create role relay_{name} login password 'x';
             create role writer_{name} login password 'x'; create role operator_{name} login password 'x';
             create role viewer_{name} login password 'x';
             grant create on database {name} to owner_{name}; revoke all on schema public from public"
        ))
        .await;
    let role = |role: &str| {
        let mut options = options(&database.url_as(&format!("{role}_{name}"), "x"));
        options.shards = 4;
        Postgres::new(options).unwrap()
    };
    let (owner, relay, operator) = (role("owner"), role("relay"), role("operator"));
    let viewer = role("viewer");
    // The relay's role has no right to migrate, and can print what is to be done all the same.
    assert_eq!(
        refusal(relay.migrate().await).kind,
        SourceErrorKind::Unusable
    );
    let pending = relay.pending_sql().await.unwrap();
    assert_eq!(
        pending.iter().map(|p| p.version).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    let mut connection =
        sqlx::PgConnection::connect(&database.url_as(&format!("owner_{name}"), "x"))
            .await
            .unwrap();
    for migration in pending {
        sqlx::raw_sql(AssertSqlSafe(migration.sql))
            .execute(&mut connection)
            .await
            .unwrap();
    }
    assert_eq!(
        owner.migrate().await.unwrap(),
        Migrated {
            from: LATEST,
            to: LATEST
        }
    );
    let blind = refusal(relay.open().await);
    assert_eq!(blind.kind, SourceErrorKind::Unusable);
    assert!(blind.message.contains("permission denied"), "{blind}");
    let grants = owner.grants(&Roles {
        relay: format!("relay_{name}"),
        writer: format!("writer_{name}"),
        viewer: format!("viewer_{name}"),
        operator: format!("operator_{name}"),
    });
    sqlx::raw_sql(AssertSqlSafe(grants.unwrap()))
        .execute(&mut connection)
        .await
        .unwrap();
    let revoke = format!(
        "revoke update on outbox.lease from relay_{name}; revoke delete on outbox.event from relay_{name}"
    );
    database.execute_as_superuser(&revoke).await;
    let lacking = refusal(relay.open().await);
    assert!(
        lacking.message.contains("UPDATE on table lease")
            && lacking.message.contains("DELETE on table event"),
        "{lacking}"
    );
    database.execute_as_superuser(&format!("grant update on outbox.lease to relay_{name}; grant delete on outbox.event to relay_{name}")).await;
    let opened = relay.open().await.unwrap();
    assert_eq!(
        (
            opened.shards,
            opened.incarnation.split('/').all(|p| !p.is_empty())
        ),
        (4, true)
    );

    let mut writer = sqlx::PgConnection::connect(&database.url_as(&format!("writer_{name}"), "x"))
        .await
        .unwrap();
    relay.set_wake_mark(Duration::from_secs(60)).await.unwrap();
    sqlx::raw_sql(
        "select outbox.publish('a.b', '1'); select outbox.publish_bytes('a.b', 'x', 'x/y')",
    )
    .execute(&mut writer)
    .await
    .unwrap();
    sqlx::raw_sql(
        "begin; insert into outbox.event (kind, payload) values ('a', '1') returning seq, id; rollback",
    )
    .execute(&mut writer)
    .await
    .unwrap();
    for forbidden in [
        "insert into outbox.event (seq, kind, payload) overriding system value values (9, 'a', '1')",
        "select * from outbox.event",
        "delete from outbox.event",
        "update outbox.event set kind = 'b'",
        "select seq from outbox.event for update",
        "select outbox.make_partitions(1)",
        "select nextval('outbox.wake_until')",
    ] {
        assert!(
            sqlx::raw_sql(forbidden).execute(&mut writer).await.is_err(),
            "{forbidden}"
        );
    }

    // Everything that a relay does.
    let instance = Uuid::new_v4();
    let leases = relay.acquire(instance, TTL, u16::MAX).await.unwrap();
    let rows = read(&relay).await;
    let place = |row: &outboxd::source::Row| {
        let shard = outboxd::lease::shard_of(None, row.seq, 4);
        leases[usize::from(shard)]
    };
    let with = |row: &outboxd::source::Row, verdict| outboxd::source::Outcome {
        seq: row.seq,
        id: row.id,
        sink: "events".into(),
        route: route(&["events"]),
        lease: place(row),
        verdict,
    };
    assert_eq!(
        relay
            .settle(&[with(&rows[0], retried(1, Duration::ZERO))], false)
            .await
            .unwrap(),
        [true]
    );
    assert_eq!(
        relay
            .settle(&[with(&rows[0], discarded())], true)
            .await
            .unwrap(),
        [true]
    );
    assert_eq!(
        relay
            .settle(&[with(&rows[1], published())], false)
            .await
            .unwrap(),
        [true]
    );
    relay.renew(&leases, TTL).await.unwrap();
    relay.writers().await.unwrap();
    relay.probe(&[1..=9], 10).await.unwrap();
    relay
        .read_keys("events", &[("k".into(), 1)], 5)
        .await
        .unwrap();
    relay.read_seqs("events", &[1]).await.unwrap();
    relay.heads("events", None, 5).await.unwrap();
    relay
        .due_after("events", outboxd::event::Timestamp::now(), 5)
        .await
        .unwrap();
    relay.delete_done(&["events".into()], 5).await.unwrap();
    relay.commands(None).await.unwrap();
    relay.backlog().await.unwrap();
    relay.purge(&retention(), 10).await.unwrap();
    let beat = Heartbeat {
        instance,
        host: "h".into(),
        version: "1",
        listening: true,
        report: "{}".into(),
    };
    relay.heartbeat(&beat).await.unwrap();
    relay.status().await.unwrap();
    relay
        .listen()
        .await
        .unwrap()
        .unwrap()
        .probe()
        .await
        .unwrap();
    relay.goodbye(instance).await.unwrap();
    relay.release(&leases).await.unwrap();
    let by = Operator {
        name: "op".into(),
        reason: Some("why not".into()),
    };
    let all = DiscardedFilter::default();
    let denied = refusal(relay.requeue(&all, &by).await);
    assert!(
        denied.kind == SourceErrorKind::Unusable
            && denied.message.contains("permission denied for table event"),
        "{denied}"
    );
    assert_eq!(viewer.status().await.unwrap().discarded[0].count, 1);
    assert_eq!(viewer.discarded(&all, 10).await.unwrap().len(), 1);
    viewer.waiting(None, 10).await.unwrap();
    let key = KeyName::Named("k".to_owned());
    viewer.key_events("events", &key, 10).await.unwrap();
    for denied in [
        refusal(viewer.requeue(&all, &by).await),
        refusal(viewer.drop_discarded(&all, &by).await),
    ] {
        assert!(denied.message.contains("permission denied"), "{denied}");
    }
    assert_eq!(operator.requeue(&all, &by).await.unwrap(), 1);
    operator.status().await.unwrap();
    let denied = refusal(relay.pause(&Target::Source, &by).await);
    assert!(denied.message.contains("permission denied"), "{denied}");
    assert!(operator.pause(&Target::Source, &by).await.unwrap());
    assert_eq!(relay.commands(None).await.unwrap().pauses.unwrap().len(), 1);
    assert!(operator.resume(&Target::Source, &by).await.unwrap());
    let seq = relay.read("events", 0, ReadBounds::rows(10), &[]).await;
    let picks = [Pick {
        seq: seq.unwrap()[0].seq,
        sink: "events".into(),
    }];
    assert_eq!(operator.skip(&picks, &by).await.unwrap(), 1);
    assert_eq!(operator.hurry(&picks, &by).await.unwrap(), 0);
    let waiting = operator.waiting(None, 10).await.unwrap();
    assert_eq!(waiting[0].event.seq, picks[0].seq);
}

#[tokio::test]
async fn settings_that_can_never_work_are_refused_before_anything_is_tried() {
    type Change = fn(&mut Options);
    let changes: [(Change, &str); 5] = [
        (
            |o| o.url = Some("mysql://u:hunter2@h/d".to_owned().into()),
            "invalid url for database orders",
        ),
        (|o| o.schema = String::new(), "schema's name is empty"),
        (|o| o.max_connections = 0, "max_connections"),
        (|o| o.shards = 0, "shards"),
        (|o| o.url_file = Some("x".into()), "url or url_file"),
    ];
    for (change, words) in changes {
        let mut options = options("postgres://u:hunter2@nowhere.invalid/d");
        change(&mut options);
        let error = refusal(Postgres::new(options));
        assert!(error.message.contains(words), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}
