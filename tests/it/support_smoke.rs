//! The test support itself: servers start, stop and come back, and the faulty network is faulty.

use std::process::{Command, Stdio};
use std::time::Duration;

use sqlx::{Connection, PgConnection};

use crate::support::process::Spawn;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{eventually, nats, pgbouncer, postgres};

mod network;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn databases_are_fresh_and_roles_need_their_password() {
    let server = postgres::server().await;
    let (one, two) = tokio::join!(server.database(), server.database());
    assert_ne!(one.name, two.name);
    one.execute_as_superuser("create table x (y int); create role smoke login password 'secret'")
        .await;
    assert!(
        PgConnection::connect(&one.url_as("smoke", "secret"))
            .await
            .is_ok()
    );
    assert!(
        PgConnection::connect(&one.url_as("smoke", "wrong"))
            .await
            .is_err()
    );
    let tables: i64 = sqlx::query_scalar("select count(*) from pg_tables where tablename = 'x'")
        .fetch_one(&mut two.connect().await)
        .await
        .unwrap();
    assert_eq!(tables, 0);
}

#[tokio::test]
async fn an_own_postgres_survives_stop_and_crash() {
    let mut server = postgres::Server::start_own(&[("wal_level", "logical")]).await;
    let database = server.database().await;
    database
        .execute_as_superuser("create table x as select 1 as y")
        .await;
    server.stop_fast().await;
    assert!(PgConnection::connect(&database.url).await.is_err());
    server.restart().await;
    database
        .execute_as_superuser("insert into x values (2); checkpoint")
        .await;
    server.kill9().await;
    server.restart().await;
    let (rows, level): (i64, String) =
        sqlx::query_as("select count(*), current_setting('wal_level') from x")
            .fetch_one(&mut database.superuser().await)
            .await
            .unwrap();
    assert_eq!((rows, level.as_str()), (2, "logical"));
}

#[tokio::test]
async fn a_standby_follows_holds_commits_up_and_takes_over() {
    let mut old = postgres::Server::start_own(&[]).await;
    let database = old.database().await;
    let network = Proxy::to(old.address()).await;
    let new = old.standby(network.port()).await;
    let copy = new.copy_of(&database);
    database
        .execute_as_superuser("create table x as select 1 as y")
        .await;
    new.caught_up_with(&old).await;
    assert_eq!(rows_of_x(&copy).await, 1);

    old.commits_wait_for_a_standby().await;
    network.set(Mode::Hole);
    let waits = database.execute_as_superuser("insert into x values (2)");
    let answered = tokio::time::timeout(Duration::from_millis(300), waits).await;
    assert!(answered.is_err(), "a commit that no standby has");
    assert_eq!(rows_of_x(&database).await, 1, "nobody sees it");

    old.kill9().await;
    new.promote().await;
    copy.execute_as_superuser("insert into x values (3)").await;
    assert_eq!(rows_of_x(&copy).await, 2);

    old.restart_read_only().await;
    let refused = sqlx::query("insert into x values (4)")
        .execute(&mut database.superuser().await)
        .await;
    assert!(refused.is_err_and(|error| error.to_string().contains("read-only")));
}

async fn rows_of_x(database: &postgres::Database) -> i64 {
    sqlx::query_scalar("select count(*) from x")
        .fetch_one(&mut database.superuser().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_nats_server_keeps_its_port_and_its_store() {
    let mut server = nats::Server::start().await;
    let jetstream = server.jetstream().await;
    jetstream
        .create_stream(async_nats::jetstream::stream::Config {
            name: "S".into(),
            subjects: vec!["s.>".into()],
            ..Default::default()
        })
        .await
        .unwrap();
    jetstream
        .publish("s.a", "1".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let url = server.url();
    server.kill9();
    assert!(async_nats::connect(&url).await.is_err());
    server.restart().await;
    assert_eq!(server.url(), url);
    let stream = server.jetstream().await.get_stream("S").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 1);
    let stored = server.stored("S").await;
    assert_eq!(
        (
            stored.len(),
            stored[0].subject.as_str(),
            &stored[0].payload[..]
        ),
        (1, "s.a", &b"1"[..])
    );
}

#[tokio::test]
async fn a_nats_server_takes_a_snippet() {
    let snippet = "max_payload: 2048\nauthorization { user: u, password: p }";
    let server = nats::Server::start_with(snippet).await;
    assert!(async_nats::connect(server.url()).await.is_err());
    let options = async_nats::ConnectOptions::with_user_and_password("u".into(), "p".into());
    let client = options.connect(server.url()).await.unwrap();
    assert_eq!(client.server_info().max_payload, 2048);
}

#[tokio::test]
async fn pgbouncer_shares_server_connections_between_transactions() {
    let server = postgres::server().await;
    let database = server.database().await;
    let pooler = pgbouncer::PgBouncer::start(server, "default_pool_size = 1").await;
    // PgBouncer 1.18 refuses the parameter that sqlx sends at login.
    let options: sqlx::postgres::PgConnectOptions = pooler.url(&database).parse().unwrap();
    let options = options.extra_float_digits(None);
    let mut backends = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = PgConnection::connect_with(&options).await.unwrap();
        let rows = sqlx::raw_sql("select pg_backend_pid()")
            .fetch_one(&mut client)
            .await
            .unwrap();
        backends.push(sqlx::Row::get::<i32, _>(&rows, 0));
        clients.push(client);
    }
    assert_eq!(backends[0], backends[1]);
}

#[tokio::test]
async fn the_proxy_passes_cuts_swallows_mutes_holds_and_lags() {
    let server = postgres::server().await;
    let database = server.database().await;
    let proxy = Proxy::to(server.address()).await;
    let url = database.url_through(proxy.port());
    let ask = async |connection: &mut PgConnection| {
        let answer = sqlx::query_scalar::<_, i32>("select 1").fetch_one(connection);
        tokio::time::timeout(Duration::from_millis(400), answer).await
    };

    let mut connection = PgConnection::connect(&url).await.unwrap();
    assert!(matches!(ask(&mut connection).await, Ok(Ok(1))));
    proxy.cut_once().await;
    assert!(matches!(ask(&mut connection).await, Ok(Err(_))));

    let mut connection = PgConnection::connect(&url).await.unwrap();
    proxy.set(Mode::Hole);
    assert!(ask(&mut connection).await.is_err());
    proxy.set(Mode::Pass);
    assert!(matches!(ask(&mut connection).await, Ok(Err(_))));

    database
        .execute_as_superuser("create table heard (x int); grant all on heard to public")
        .await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    proxy.set(Mode::Mute);
    let insert = sqlx::raw_sql("insert into heard values (1)").execute(&mut connection);
    assert!(
        tokio::time::timeout(Duration::from_millis(400), insert)
            .await
            .is_err()
    );
    eventually(SOON, "the muted insert was carried out", || async {
        let mut direct = database.connect().await;
        match sqlx::query_scalar::<_, i64>("select count(*) from heard")
            .fetch_one(&mut direct)
            .await
        {
            Ok(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    proxy.set(Mode::Pass);

    let mut connection = PgConnection::connect(&url).await.unwrap();
    proxy.set(Mode::Hold);
    let (answer, ()) = tokio::join!(
        tokio::time::timeout(
            SOON,
            sqlx::query_scalar::<_, i32>("select 2").fetch_one(&mut connection)
        ),
        async {
            // Time is the subject: the answer must not come while bytes are held.
            tokio::time::sleep(Duration::from_millis(100)).await;
            proxy.set(Mode::Pass);
        }
    );
    assert!(matches!(answer, Ok(Ok(2))));

    proxy.set(Mode::Lag(Duration::from_millis(60)));
    let before = std::time::Instant::now();
    let answer: i32 = sqlx::query_scalar("select 3")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(answer == 3 && before.elapsed() >= Duration::from_millis(120));
    assert_eq!(proxy.accepted(), 4);
}

/// The test process is killed -9: its children must go. The part of the test process is played by a
/// second run of this binary, which starts a child in [`a_child_to_be_orphaned`] and then hangs.
#[tokio::test]
async fn children_do_not_outlive_a_killed_test_process() {
    let directory = tempfile::tempdir().unwrap();
    let note = directory.path().join("note");
    let mut run = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "support_smoke::a_child_to_be_orphaned",
            "--ignored",
        ])
        .env("OUTBOXD_SMOKE_NOTE", &note)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = eventually(SOON, "the second run has started its child", || async {
        let text = std::fs::read_to_string(&note).map_err(|error| error.to_string())?;
        text.trim()
            .parse::<u32>()
            .map_err(|error| error.to_string())
    })
    .await;
    run.kill().unwrap();
    run.wait().unwrap();
    eventually(SOON, "the orphan is gone", || async {
        match std::fs::read_to_string(format!("/proc/{child}/stat")) {
            Ok(stat) if !stat.contains(") Z ") => Err(stat),
            _ => Ok(()),
        }
    })
    .await;
}

#[test]
#[ignore = "only for children_do_not_outlive_a_killed_test_process"]
fn a_child_to_be_orphaned() {
    let Some(note) = std::env::var_os("OUTBOXD_SMOKE_NOTE") else {
        return;
    };
    let log = std::path::Path::new(&note).with_extension("log");
    let mut child = Spawn::new("sleep", log).arg("600").start();
    std::fs::write(&note, format!("{}\n", child.id())).unwrap();
    child.wait(Duration::from_secs(600));
}
