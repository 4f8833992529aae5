//! K9: migrations, roles and failover.

use std::time::Duration;

use outboxd::source::admin::Admin;
use outboxd::source::{Source, SourceErrorKind};
use outboxd::status::DatabaseState;
use sqlx::migrate::Migrator;

use super::bench::{LONG, Place, execute, numbers};
use crate::cli_bin::Workplace;
use crate::postgres_fixture::{Role, another, grants, migrate, number, owner, refusal, text};
use crate::support::{eventually, postgres};

mod failover;
mod planted;

const VERSIONS: i64 = 4;

/// Both keep their books in tables of their own, so neither finds the other's versions.
#[tokio::test]
async fn c85_an_application_with_sqlx_migrations_and_the_outbox_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    for n in 1..=3 {
        let sql = format!("create table app.t{n} (x int);");
        std::fs::write(folder.path().join(format!("{n}_make.sql")), sql).unwrap();
    }
    let app = Migrator::new(folder.path()).await.unwrap();
    for outbox_first in [true, false] {
        let database = postgres::server().await.database().await;
        database.execute("create schema app").await;
        let mut connection = database.connect().await;
        // The schema where its books go, as `public` does in a database of its own.
        execute(&mut connection, "set search_path = app").await;
        for _ in 0..2 {
            if outbox_first {
                migrate(&database).await;
            }
            app.run(&mut connection).await.unwrap();
            if !outbox_first {
                migrate(&database).await;
            }
        }
        let books = "select (select count(*) from app._sqlx_migrations) * 100
                          + (select count(*) from outbox.migration)";
        assert_eq!(number(&database, books).await, 300 + VERSIONS);
    }
    // And at the same moment.
    let database = postgres::server().await.database().await;
    database.execute("create schema app").await;
    let mut connection = database.connect().await;
    execute(&mut connection, "set search_path = app").await;
    let (done, ()) = tokio::join!(app.run(&mut connection), migrate(&database));
    done.unwrap();
}

/// An advisory lock that ends with the transaction: one runs, the others wait and find it done.
#[tokio::test]
async fn c86_eight_instances_migrate_at_once_and_the_end_of_one_lets_another_finish() {
    let database = postgres::server().await.database().await;
    // Somebody creates a schema of the same name and does not commit: the first instance waits for that, with
    // the lock in its hand, and the others wait for the lock.
    let mut blocker = database.connect().await;
    execute(&mut blocker, "begin; create schema outbox").await;
    let instances = (0..8).map(|_| {
        let source = owner(&database);
        tokio::spawn(async move { source.migrate().await })
    });
    let instances: Vec<_> = instances.collect();
    const ADVISORY: &str = "select count(*) from pg_locks where locktype = 'advisory'
         and database = (select oid from pg_database where datname = current_database())";
    eventually(LONG, "seven wait for one", || async {
        let waiting = number(&database, &format!("{ADVISORY} and not granted")).await;
        (waiting == 7)
            .then_some(())
            .ok_or(format!("{waiting} wait"))
    })
    .await;
    let holder =
        "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted
         and database = (select oid from pg_database where datname = current_database())";
    database.execute_as_superuser(holder).await;
    execute(&mut blocker, "rollback").await;
    let all = futures_util::future::join_all(instances);
    let all = tokio::time::timeout(Duration::from_secs(5), all).await;
    let (mut failed, mut from) = (0, Vec::new());
    for ended in all.unwrap() {
        match ended.unwrap() {
            Ok(migrated) => from.push(migrated.from),
            Err(error) => {
                assert_eq!(error.kind, SourceErrorKind::Unavailable, "{error}");
                failed += 1;
            }
        }
    }
    // The one that was ended says so; of the others somebody found nothing, and everybody ended at the latest.
    assert_eq!((failed, from.iter().min()), (1, Some(&0)));
    let books = "select count(*) * 100 + max(version) from outbox.migration";
    assert_eq!(number(&database, books).await, VERSIONS * 101);
    assert_eq!(number(&database, ADVISORY).await, 0);
    assert_eq!(number(&database, SESSIONS).await, 0);
}

/// Sessions of migrators that are still there.
const SESSIONS: &str = "select count(*) from pg_stat_activity
     where datname = current_database() and application_name = 'outboxd'";

/// Each step is a transaction together with its entry in the books.
#[tokio::test]
async fn c86_a_failing_step_leaves_nothing_half_done_and_the_next_run_works() {
    let database = postgres::server().await.database().await;
    // In the way of the third step, after it has created another table.
    database
        .execute("create schema outbox; create table outbox.lease (x int)")
        .await;
    let source = owner(&database);
    for _ in 0..2 {
        let error = refusal(source.migrate().await);
        assert!(
            error.message.contains("\"lease\" already exists"),
            "{error}"
        );
        let state = "select count(*) * 100 + (to_regclass('outbox.settings') is not null)::int * 10
                          + (to_regclass('outbox.discarded') is not null)::int from outbox.migration";
        assert_eq!(number(&database, state).await, 201);
        let locks = "select count(*) from pg_locks where locktype = 'advisory'
             and database = (select oid from pg_database where datname = current_database())";
        assert_eq!(number(&database, locks).await, 0);
    }
    database.execute("drop table outbox.lease").await;
    assert_eq!(source.migrate().await.unwrap().from, 2);
    database.execute(&grants(&source)).await;
    another(&database, |_| {}).open().await.unwrap();
}

/// Whoever has no right of his own has none: whatever default privileges say, nothing of the outbox is for PUBLIC,
/// and what runs with the owner's rights looks nowhere but into the catalogue.
#[tokio::test]
async fn c88_nothing_is_for_everybody() {
    let database = postgres::server().await.database().await;
    database
        .execute(
            "alter default privileges grant all on schemas to public;
             alter default privileges grant all on tables to public;
             alter default privileges grant all on sequences to public;
             alter default privileges grant all on functions to public",
        )
        .await;
    migrate(&database).await;
    let mut relay = database.connect_as(Role::Relay).await;
    execute(&mut relay, "select outbox.make_partitions(20)").await;
    let public = text(
        &database,
        "select coalesce(string_agg(distinct o.what, ', '), '') from (
           select 'schema' as what, coalesce(n.nspacl, acldefault('n', n.nspowner)) as acl
           from pg_namespace n where n.nspname = 'outbox'
           union all
           select c.relname, coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::\"char\", c.relowner))
           from pg_class c where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
           union all
           select a.attname, a.attacl
           from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace = 'outbox'::regnamespace
           union all
           select p.proname, coalesce(p.proacl, acldefault('f', p.proowner))
           from pg_proc p where p.pronamespace = 'outbox'::regnamespace
         ) as o cross join lateral aclexplode(o.acl) as a where a.grantee = 0",
    )
    .await;
    assert_eq!(public, "");
    let loose = "select count(*) from pg_proc p where p.pronamespace = 'outbox'::regnamespace
         -- A parsed body looks nothing up.
         and p.prosqlbody is null
         and not exists (select from unnest(p.proconfig) as c where c = 'search_path=pg_catalog, pg_temp')";
    assert_eq!(number(&database, loose).await, 0);
    let definers = text(
        &database,
        "select string_agg(f.proname || ':' || f.who, ' ' order by f.proname) from (
           select p.proname, coalesce(string_agg(r.rolname, ',' order by r.rolname), '') as who
           from pg_proc p
           left join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a on a.grantee <> p.proowner
           left join pg_roles r on r.oid = a.grantee
           where p.pronamespace = 'outbox'::regnamespace and p.prosecdef
           group by p.oid, p.proname) as f",
    )
    .await;
    assert_eq!(
        definers,
        "control_order: drop_partitions:test_relay make_partitions:test_relay \
         publish:test_writer publish_bytes:test_writer wake:"
    );
}

/// The printed SQL is all that roles need, and what one of them lacks is told by table and right.
#[tokio::test]
async fn c88_each_role_does_its_work_with_the_printed_rights_and_nothing_else() {
    let place = Place::new().await;
    let url = |role| place.database.url_of(role);
    let command = |role, args: &[&str]| {
        let config = place.config(&url(role), &place.nats.url(), "");
        Workplace::new(&config).outboxd(args)
    };
    place
        .database
        .write(
            "select outbox.publish('a', '{\"n\":1}', 'k');
             insert into outbox.event (kind, ordering_key, payload, headers)
               values ('a', 'k', '{\"n\":2}', '{\"Nats-Rollup\":\"all\"}');
             insert into outbox.event (kind, ordering_key, payload) values ('a', 'k', '{\"n\":3}')",
        )
        .await;
    // What writers do as well: ask for the id, and insert once however often they try.
    let once = "insert into outbox.event (id, kind, ordering_key, payload)
         values ('0199c1a0-1111-7222-8333-444455556666', 'a', 'k', '{\"n\":4}')
         on conflict (id) do nothing returning seq, id";
    for _ in 0..2 {
        place.database.write(once).await;
    }
    let publish = ["publish", "a", "--key", "k", "--payload", "{\"n\":5}"];
    command(Role::Writer, &publish).code(0);
    let refused = command(Role::Relay, &publish).code(1);
    assert!(refused.stderr.contains("permission denied"), "{refused:?}");
    command(Role::Relay, &["check"]).code(0);
    command(Role::Relay, &["run", "--once"]).code(0);
    assert_eq!(numbers(&place.stored(4).await, "k"), [1, 3, 4, 5]);
    let status = command(Role::Viewer, &["status", "--output", "json"]).code(0);
    assert_eq!(status.json()["feeds"][0]["discarded"], 1, "{status:?}");
    command(Role::Viewer, &["discarded", "list"]).code(0);
    command(Role::Viewer, &["verify"]).code(0);
    let requeue = ["discarded", "requeue", "--all", "--force"];
    for role in [Role::Viewer, Role::Writer, Role::Relay] {
        let ended = command(role, &requeue).code(1);
        let words = format!("{}{}", ended.stdout, ended.stderr);
        assert!(words.contains("permission denied for"), "{role:?}: {words}");
        assert!(words.contains("--print-grants"), "{role:?}: {words}");
    }
    command(Role::Operator, &requeue).code(0);
    for role in [Role::Viewer, Role::Writer, Role::Operator] {
        let ended = command(role, &["migrate"]);
        assert_ne!(ended.stderr.contains("permission denied"), ended.code == 0);
    }
    command(Role::Operator, &["discarded", "drop", "--all"]).code(0);
    place.verified().await;
}

/// A right that goes, or a role that may no longer log in, is waited for in words and costs no event anything.
#[tokio::test]
async fn c88_a_role_in_trouble_is_told_and_waited_for() {
    let place = Place::new().await;
    let role = format!("relay_{}", place.database.name);
    place
        .database
        .execute_as_superuser(&format!(
            "create role {role} login password 'x' in role {}",
            Role::Relay.name()
        ))
        .await;
    let relay = place
        .setup()
        .database(place.database.url_as(&role, "x"))
        .start()
        .await;
    relay.is(DatabaseState::Active).await;
    place.insert("k", 1..=1).await;
    place.emptied().await;
    let waits = |words: &'static str| {
        let board = relay.relay.board();
        async move {
            eventually(LONG, "the relay waits, in words", || async {
                let shown = &board.snapshot().databases[0];
                let reason = shown.reason.clone().unwrap_or_default();
                (shown.state == DatabaseState::Waiting && reason.contains(words))
                    .then_some(())
                    .ok_or(format!("{shown:?}"))
            })
            .await;
        }
    };
    let member = Role::Relay.name();
    // This database's rights alone; the role is shared.
    place
        .database
        .execute(&format!("revoke update on outbox.lease from {member}"))
        .await;
    waits("permission denied for table lease").await;
    place.insert("k", 2..=3).await;
    place
        .database
        .execute(&format!("grant update on outbox.lease to {member}"))
        .await;
    place.emptied().await;

    let sessions =
        format!("select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'");
    place
        .database
        .execute_as_superuser(&format!("alter role {role} nologin; {sessions}"))
        .await;
    waits("is not permitted to log in").await;
    place.insert("k", 4..=5).await;
    place
        .database
        .execute_as_superuser(&format!("alter role {role} login"))
        .await;
    place.emptied().await;
    assert_eq!(numbers(&place.stored(5).await, "k"), [1, 2, 3, 4, 5]);
    assert_eq!(relay.metric("retried_total", &[]), 0.0);
    assert_eq!(relay.metric("discarded_total", &[]), 0.0);
    place.verified().await;
}
