//! What a PostgreSQL source makes of a database that is slow, gone, read-only, or behind a pooler.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use outboxd::source::admin::Admin;
use outboxd::source::postgres::{Options, Pooler, Tls};
use outboxd::source::{ReadBounds, Source, SourceErrorKind};

use crate::postgres_fixture::*;
use crate::support::eventually;
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::{Server, server};
use crate::support::process::free_port;
use crate::support::proxy::{Mode, Proxy};

const BACKENDS: &str = "select count(*) from pg_stat_activity
     where datname = current_database() and application_name = 'outboxd'";

#[tokio::test]
async fn a_statement_that_takes_too_long_ends_and_takes_its_connection_along() {
    let (database, source) = outbox().await;
    source.close().await;
    let source = another(&database, |o| {
        o.statement_timeout = Duration::from_millis(300)
    });
    let mut blocker = database.connect().await;
    sqlx::raw_sql("begin; lock table outbox.event in access exclusive mode")
        .execute(&mut blocker)
        .await
        .unwrap();
    let start = Instant::now();
    let error = refusal(source.read("events", 0, ReadBounds::rows(10), &[]).await);
    assert_eq!(error.kind, SourceErrorKind::Unavailable, "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    sqlx::raw_sql("commit").execute(&mut blocker).await.unwrap();
    source
        .read("events", 0, ReadBounds::rows(10), &[])
        .await
        .unwrap();
    eventually(Duration::from_secs(10), "the cut connection to end", || async {
        let left = watched(&database, "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'outboxd' and state = 'active'").await;
        if left == 0 { Ok(()) } else { Err(format!("{left} are active")) }
    })
    .await;
}

#[tokio::test]
async fn a_network_that_swallows_answers_costs_one_time_limit() {
    let (database, first) = outbox().await;
    first.close().await;
    let network = Proxy::to(server().await.address()).await;
    let source = another(&database, |o| {
        o.url = Some(database.url_through(network.port()).into());
        o.statement_timeout = Duration::from_millis(200);
        o.max_connections = 1;
    });
    source.open().await.unwrap();
    network.set(Mode::Mute);
    let start = Instant::now();
    assert_eq!(
        refusal(source.backlog().await).kind,
        SourceErrorKind::Unavailable
    );
    let connecting = refusal(source.backlog().await);
    assert_eq!(
        connecting.kind,
        SourceErrorKind::Unavailable,
        "{connecting}"
    );
    assert!(start.elapsed() < Duration::from_secs(10));
    network.set(Mode::Pass);
    source.backlog().await.unwrap();
    assert_eq!(network.accepted(), 3);
}

#[tokio::test]
async fn a_dropped_call_leaves_no_half_read_connection() {
    let (database, first) = outbox().await;
    first.close().await;
    insert(&database, 50, 5).await;
    let source = another(&database, |o| o.max_connections = 1);
    let mut blocker = database.connect().await;
    for _ in 0..3 {
        sqlx::raw_sql("begin; lock table outbox.event in access exclusive mode")
            .execute(&mut blocker)
            .await
            .unwrap();
        let read = source.read("events", 0, ReadBounds::rows(10), &[]);
        assert!(
            tokio::time::timeout(Duration::from_millis(100), read)
                .await
                .is_err()
        );
        sqlx::raw_sql("commit").execute(&mut blocker).await.unwrap();
        assert_eq!(source.leases().await.unwrap().len(), 16);
        assert_eq!(
            source
                .read("events", 0, ReadBounds::rows(100), &[])
                .await
                .unwrap()
                .len(),
            50
        );
    }
    eventually(
        Duration::from_secs(10),
        "one connection to be left",
        || async {
            match watched(&database, BACKENDS).await {
                1 => Ok(()),
                n => Err(format!("{n} connections")),
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_restarted_server_costs_one_call_and_a_read_only_one_is_left() {
    let mut own = Server::start_own(&[]).await;
    let database = own.database().await;
    migrate(&database).await;
    let source = another(&database, |_| {});
    // Four idle connections.
    join_all((0..4).map(|_| source.leases())).await;
    own.kill9().await;
    // Sessions outlive their postmaster by a moment.
    let gone = eventually(Duration::from_secs(10), "the server to be gone", || async {
        match source.leases().await {
            Err(error) => Ok(error),
            Ok(_) => Err("it answers".to_owned()),
        }
    })
    .await;
    assert_eq!(gone.kind, SourceErrorKind::Unavailable);
    let start = Instant::now();
    let refused = refusal(source.leases().await);
    assert_eq!(refused.kind, SourceErrorKind::Unavailable);
    // Refused at once and in words, not after a pool's patience.
    assert!(start.elapsed() < Duration::from_secs(1), "{refused}");
    own.restart().await;
    source.leases().await.unwrap();
    join_all((0..4).map(|_| source.leases())).await;

    own.execute("alter system set default_transaction_read_only = on")
        .await;
    own.execute("select pg_reload_conf()").await;
    eventually(Duration::from_secs(10), "writes to be refused", || async {
        match source.acquire(uuid::Uuid::new_v4(), TTL, u16::MAX).await {
            Err(error) => Ok(error),
            Ok(_) => Err("taken".to_owned()),
        }
    })
    .await;
    let error = refusal(source.open().await);
    assert!(
        error.kind == SourceErrorKind::ReadOnly && error.message.contains("read-only"),
        "{error}"
    );
    let error = refusal(source.acquire(uuid::Uuid::new_v4(), TTL, u16::MAX).await);
    assert!(
        error.kind == SourceErrorKind::ReadOnly && error.message.contains("read-only"),
        "{error}"
    );
    own.execute("alter system reset default_transaction_read_only")
        .await;
    own.execute("select pg_reload_conf()").await;
    eventually(Duration::from_secs(10), "writes to be taken", || async {
        source
            .acquire(uuid::Uuid::new_v4(), TTL, u16::MAX)
            .await
            .map_err(|error| error.to_string())
    })
    .await;
}

/// What was read on another server, or before a crash, is no beginning for what is read now.
#[tokio::test]
async fn events_are_read_where_the_outbox_was_opened_and_nowhere_else() {
    let old = Server::start_own(&[]).await;
    let database = old.database().await;
    migrate(&database).await;
    let mut new = old.standby(old.port()).await;
    let name = Proxy::to(old.address()).await;
    let source = another(&database, |options| {
        options.url = Some(database.url_through(name.port()).into());
    });
    source.open().await.unwrap();
    insert(&database, 3, 3).await;
    new.caught_up_with(&old).await;
    assert_eq!(read(&source).await.len(), 3);

    name.lead_to(new.address());
    name.cut_once().await;
    let bounds = ReadBounds::rows(10);
    // A standby, then the same server as the primary, then the same once more after a crash.
    for round in 0..3 {
        match round {
            0 => {}
            1 => new.promote().await,
            _ => {
                new.kill9().await;
                new.restart().await;
            }
        }
        let refused = eventually(Duration::from_secs(10), "reading is refused", || async {
            match source.read("events", 0, bounds, &[]).await {
                // The first call of all finds the cut connection.
                Err(error) if error.message.contains("another one") => Ok(error),
                Err(error) => Err(error.to_string()),
                Ok(rows) => panic!("{} rows in round {round}", rows.len()),
            }
        })
        .await;
        assert_eq!(refused.kind, SourceErrorKind::Unavailable);
        let refused = refusal(source.read_seqs("events", &[1]).await);
        assert!(refused.message.contains("another one"), "{refused}");
        match round {
            0 => assert_eq!(refusal(source.open().await).kind, SourceErrorKind::ReadOnly),
            _ => {
                source.open().await.unwrap();
                assert_eq!(read(&source).await.len(), 3);
            }
        }
    }
}

#[tokio::test]
async fn a_changed_table_costs_at_most_one_call_per_connection() {
    let (database, source) = outbox().await;
    insert(&database, 3, 3).await;
    read(&source).await;
    database
        .execute("alter table outbox.event add column extra text default 'x'")
        .await;
    assert_eq!(read(&source).await.len(), 3);
    database
        .execute("alter table outbox.event alter column content_type type varchar(400)")
        .await;
    let first = source.read("events", 0, ReadBounds::rows(10), &[]).await;
    assert!(first.is_ok() || refusal(first).kind == SourceErrorKind::Unavailable);
    assert_eq!(read(&source).await.len(), 3);
}

#[tokio::test]
async fn secrets_are_read_again_and_never_repeated() {
    let (database, _source) = outbox().await;
    let role = format!("secret_{}", database.name);
    let password = "p@ss/w?rd#%:& é";
    database
        .execute_as_superuser(&format!(
            "create role {role} login password '{password}' in role {}",
            Role::Relay.name()
        ))
        .await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "hunter2\n").unwrap();
    let fields = |o: &mut Options| {
        o.url = None;
        o.host = Some("127.0.0.1".into());
        o.port = Some(
            database
                .url
                .split([':', '/'])
                .nth(4)
                .unwrap()
                .parse()
                .unwrap(),
        );
        o.dbname = Some(database.name.clone());
        o.user = Some(role.clone());
    };
    let source = another(&database, |o| {
        fields(o);
        o.password_file = Some(file.clone());
    });
    let wrong = refusal(source.open().await);
    assert_eq!(wrong.kind, SourceErrorKind::Unusable, "{wrong}");
    assert!(!format!("{wrong} {wrong:?}").contains("hunter2"));
    std::fs::write(&file, format!("{password}\n")).unwrap();
    source.open().await.unwrap();
    let field = another(&database, |o| {
        fields(o);
        o.password = Some(password.to_owned().into());
    });
    field.open().await.unwrap();
    let url = directory.path().join("url");
    let encoded = "p%40ss%2Fw%3Frd%23%25%3A%26%20%C3%A9";
    std::fs::write(&url, format!("{}\n", database.url_as(&role, encoded))).unwrap();
    let by_file = another(&database, |o| {
        o.url = None;
        o.url_file = Some(url.clone());
    });
    by_file.open().await.unwrap();
    std::fs::remove_file(&url).unwrap();
    by_file.close().await;
    let missing = refusal(
        another(&database, |o| {
            o.url = None;
            o.url_file = Some(url.clone());
        })
        .open()
        .await,
    );
    assert!(
        missing.kind == SourceErrorKind::Unusable && missing.message.contains("cannot be read"),
        "{missing}"
    );
}

#[tokio::test]
async fn what_an_operator_must_mend_is_told_apart_from_an_outage() {
    let (database, _source) = outbox().await;
    let absent = another(&database, |o| {
        o.url = Some(format!("postgres://u:hunter2@127.0.0.1:{}/d", free_port()).into())
    });
    let error = refusal(absent.open().await);
    assert_eq!(error.kind, SourceErrorKind::Unavailable);
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    let nowhere = another(&database, |o| o.dbname = Some("nowhere".into()));
    let error = refusal(nowhere.open().await);
    assert!(
        error.kind == SourceErrorKind::Unusable && error.message.contains("nowhere"),
        "{error}"
    );
    let encrypted = another(&database, |o| o.tls = Some(Tls::Require));
    let error = refusal(encrypted.open().await);
    assert!(
        error.kind == SourceErrorKind::Unusable && error.message.contains("TLS"),
        "{error}"
    );
    let closed = another(&database, |_| {});
    closed.leases().await.unwrap();
    closed.close().await;
    assert_eq!(
        refusal(closed.leases().await).kind,
        SourceErrorKind::Unavailable
    );
}

#[tokio::test]
async fn an_undeclared_pooler_is_refused_with_words() {
    let (database, _source) = outbox().await;
    for settings in ["", "ignore_startup_parameters = options"] {
        let pooler = PgBouncer::start(server().await, settings).await;
        let source = another(&database, |o| o.url = Some(pooler.url(&database).into()));
        let error = refusal(source.open().await);
        assert_eq!(error.kind, SourceErrorKind::Unusable, "{settings}: {error}");
        assert!(
            error.message.contains("set pooler = \"transaction\""),
            "{settings}: {error}"
        );
        assert!(refusal(source.migrate().await).message.contains("pooler"));
        assert!(
            refusal(source.listen().await.map(drop))
                .message
                .contains("pooler")
        );
    }
}

/// PgBouncer 1.18 knows nothing of prepared statements: any that outlives its transaction ends in another
/// client's session.
#[tokio::test(flavor = "multi_thread")]
async fn a_declared_pooler_serves_eight_callers_without_a_failure() {
    let (database, _source) = outbox().await;
    let pooler = PgBouncer::start(server().await, "").await;
    let source = another(&database, |o| {
        o.url = Some(pooler.url(&database).into());
        o.pooler = Pooler::Transaction;
        o.max_connections = 8;
    });
    source.open().await.unwrap();
    assert!(source.listen().await.unwrap().is_none());
    let leases = acquire(&source).await;
    insert(&database, 2_000, 100).await;
    let calls = (0..8).map(|caller| {
        let (source, leases, database) = (&source, &leases, &database);
        async move {
            for round in 0..50_i64 {
                let rows = source
                    .read("events", caller * 250 + round * 5, ReadBounds::rows(5), &[])
                    .await
                    .unwrap();
                assert!(rows.iter().all(|row| row.seq > caller * 250 + round * 5));
                let verdict = if round % 10 == 9 {
                    retried(1, Duration::ZERO)
                } else {
                    published()
                };
                let batch: Vec<_> = rows
                    .iter()
                    .take(1)
                    .map(|row| outcome(leases, row, &["events"], verdict.clone()))
                    .collect();
                source.settle(&batch, round % 2 == 0).await.unwrap();
                assert_eq!(source.renew(leases, TTL).await.unwrap().held.len(), 16);
                assert_eq!(source.leases().await.unwrap().len(), 16);
                source.probe(&[1..=10], 5).await.unwrap();
                let _ = database;
            }
        }
    });
    join_all(calls).await;
    let settings = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'";
    assert_eq!(watched(&database, settings).await, 0);
}

#[tokio::test]
async fn one_connection_is_enough() {
    let (database, _source) = outbox().await;
    insert(&database, 100, 10).await;
    let source = another(&database, |o| o.max_connections = 1);
    let leases = acquire(&source).await;
    let mut listener = source.listen().await.unwrap().unwrap();
    let rows = read(&source).await;
    let batch: Vec<_> = rows
        .iter()
        .map(|row| outcome(&leases, row, &["events", "b"], published()))
        .collect();
    let kept = retention();
    let (a, b, c, d, e, f) = tokio::join!(
        source.settle(&batch, false),
        source.purge(&kept, 100),
        source.backlog(),
        source.renew(&leases, TTL),
        source.status(),
        source.writers(),
    );
    a.unwrap();
    b.unwrap();
    c.unwrap();
    d.unwrap();
    e.unwrap();
    f.unwrap();
    listener.probe().await.unwrap();
}
