//! Tables that change under a running relay, and a primary that is one no longer.

use std::collections::BTreeSet;

use outboxd::status::DatabaseState;

use super::super::bench::{
    Heard, LONG, Place, Running, Setup, TTL, create, emptied, execute, holds, insert, insert_on,
    numbers, stored, stream,
};
use super::SESSIONS;
use crate::postgres_fixture::{migrate, number_on, watched};
use crate::support::proxy::Proxy;
use crate::support::{eventually, nats, postgres};

/// Statements name their columns, and a plan that no longer fits costs its connection and nothing else.
#[tokio::test]
async fn c91_a_schema_that_changes_under_a_running_relay_costs_a_statement_a_connection() {
    let place = Place::new().await;
    let relay = place.relay().await;
    let changes = [
        "alter table outbox.event add column extra text default 'x'",
        "alter table outbox.delivery alter column last_error type varchar(4000)",
        "alter table outbox.discarded add column note text",
        "alter table outbox.published add column note text default 'y'",
        "alter table outbox.event alter column content_type type varchar(400)",
        "alter table outbox.lease add column note text",
    ];
    let mut n = 0;
    for change in changes {
        place.insert("k", n + 1..=n + 20).await;
        place.database.execute(change).await;
        place.insert("k", n + 21..=n + 40).await;
        n += 40;
    }
    let all = place.stored(n as usize).await;
    place.emptied().await;
    assert_eq!(numbers(&all, "k"), (1..=u64::from(n)).collect::<Vec<_>>());
    relay.is(DatabaseState::Active).await;
    for metric in [
        "missed_total",
        "retried_total",
        "lease_lost_total",
        "restarts_total",
    ] {
        assert_eq!(relay.metric(metric, &[]), 0.0, "{metric}");
    }
    let log = postgres::server().await.log();
    let mine = format!(" {} ERROR: ", place.database.name);
    let errors: Vec<&str> = log.lines().filter(|line| line.contains(&mine)).collect();
    // One change of a type that is read, four connections and the sessions' order among them.
    assert!(errors.len() <= 4, "{errors:#?}");
    place.verified().await;
}

async fn make_read_only(server: &postgres::Server, on: bool) {
    let value = if on { "on" } else { "off" };
    server
        .execute(&format!(
            "alter system set default_transaction_read_only = {value}"
        ))
        .await;
    server.execute("select pg_reload_conf()").await;
}

/// A write that is refused as read-only ends the ownership, and with it everything that was opened to that server.
#[tokio::test]
async fn c92_an_old_primary_that_comes_back_read_only_is_left() {
    let old = postgres::Server::start_own(&[]).await;
    let new = postgres::Server::start_own(&[]).await;
    let before = old.database().await;
    let after = new.database_named(&before.name).await;
    migrate(&before).await;
    migrate(&after).await;
    let broker = nats::Server::start().await;
    create(&broker, stream()).await;
    let heard = Heard::on(&broker).await;
    let name = Proxy::to(old.address()).await;
    let relay = Setup::new(&before.url_through(name.port()), broker.url());
    let relay = relay.start().await;
    relay.is(DatabaseState::Active).await;
    relay.listening(true).await;
    insert(&before, "k", 1..=3).await;
    emptied(&before).await;

    make_read_only(&old, true).await;
    // Rows that such a server holds: they came by replication.
    let mut replication = before.writer().await;
    eventually(LONG, "the server is read-only", || async {
        let mut fresh = before.connect().await;
        let sql = "select count(*) from pg_settings where name = 'transaction_read_only' and setting = 'on'";
        let on = number_on(&mut fresh, sql).await;
        (on == 1).then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    execute(&mut replication, "set default_transaction_read_only = off").await;
    insert_on(&mut replication, "late", 1).await;
    waits_for_writes(&relay).await;
    let sent = heard.count();
    for n in 1..=20 {
        insert_on(&mut replication, "later", n).await;
    }
    holds(2 * TTL, || async {
        let now = heard.count();
        (now == sent)
            .then_some(())
            .ok_or(format!("{} were sent", now - sent))
    })
    .await;

    name.lead_to(new.address());
    insert(&after, "k", 4..=6).await;
    emptied(&after).await;
    relay.is(DatabaseState::Active).await;
    relay.listening(true).await;
    eventually(LONG, "nobody is left on the old one", || async {
        let left = watched(&before, SESSIONS).await;
        (left == 0).then_some(()).ok_or(format!("{left} sessions"))
    })
    .await;
    let ids = heard.ids();
    let distinct: BTreeSet<_> = ids.iter().collect();
    assert_eq!(ids.len(), distinct.len(), "{ids:?}");
    let all = stored(&broker, 6).await;
    assert_eq!(numbers(&all, "k"), [1, 2, 3, 4, 5, 6]);
}

/// A standby answers every question and takes no write: it is waited for, and used from its promotion on.
#[tokio::test]
async fn c92_a_standby_is_waited_for_until_its_promotion() {
    let mut server = postgres::Server::start_own(&[]).await;
    let database = server.database().await;
    migrate(&database).await;
    let broker = nats::Server::start().await;
    create(&broker, stream()).await;
    let relay = Setup::new(&database.url, broker.url()).start().await;
    relay.is(DatabaseState::Active).await;
    insert(&database, "k", 1..=2).await;
    emptied(&database).await;
    server.restart_as_standby().await;
    waits_for_writes(&relay).await;
    server.promote().await;
    relay.is(DatabaseState::Active).await;
    insert(&database, "k", 3..=4).await;
    emptied(&database).await;
    let all = stored(&broker, 4).await;
    assert_eq!(numbers(&all, "k"), [1, 2, 3, 4]);
    assert_eq!(relay.metric("retried_total", &[]), 0.0);
    assert_eq!(relay.metric("restarts_total", &[]), 0.0);
}

async fn waits_for_writes(relay: &Running) {
    let board = relay.relay.board();
    eventually(LONG, "the relay waits, in words", || async {
        let shown = &board.snapshot().databases[0];
        let reason = shown.reason.clone().unwrap_or_default();
        (shown.state == DatabaseState::Waiting && reason.contains("read-only"))
            .then_some(())
            .ok_or(format!("{shown:?}"))
    })
    .await;
}
