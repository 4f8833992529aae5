//! Schemas with odd names, and objects in the way of every name that is looked up carelessly.

use std::sync::Arc;

use outboxd::relay::DatabaseOptions;
use outboxd::source::admin::{Admin, DiscardedFilter, Operator};
use outboxd::source::postgres::{Options, Postgres};
use outboxd::status::DatabaseState;

use super::super::bench::{LONG, Place, number_in};
use super::VERSIONS;
use crate::postgres_fixture::{Role, migrate_in, operator, options, source_of, watched};
use crate::support::eventually;

/// Objects that bear the names of what the outbox uses, each of which fails whoever comes upon it.
const PLANTED: &str = r#"
    create schema evil; grant usage on schema evil to public;
    create table evil.event (x int); create table evil.lease (x int); create table evil.settings (x int);
    create table evil.migration (version bigint); create table evil.pg_class (x int);
    create domain evil.uuid as text check (false); create domain evil.jsonb as text check (false);
    create domain evil.timestamptz as text check (false);
    do $$
    declare what text;
    begin
      foreach what in array array[
        'now()', 'clock_timestamp()', 'statement_timestamp()', 'pg_backend_pid()', 'current_setting(text)',
        'current_setting(text, boolean)', 'set_config(text, text, boolean)', 'octet_length(text)', 'octet_length(pg_catalog.bytea)',
        'date_part(text, pg_catalog.timestamptz)', 'starts_with(text, text)', 'hashtextextended(text, bigint)',
        'encode(pg_catalog.bytea, text)', 'gen_random_uuid()', 'pg_advisory_xact_lock(bigint)',
        'pg_notify(text, text)', 'setval(regclass, bigint)', 'nextval(regclass)', 'pg_column_size(pg_catalog.jsonb)',
        'row_security_active(text)', 'has_table_privilege(text, text)', 'num_nonnulls(variadic pg_catalog.json[])'
      ] loop
        execute format('create function evil.%s returns text language plpgsql as
          $f$ begin raise exception ''planted''; end $f$', what);
      end loop;
      foreach what in array array['bigint', 'integer', 'text', 'pg_catalog.uuid', 'boolean', 'pg_catalog.timestamptz', 'name', 'oid'] loop
        execute format('create function evil.same(%s, %1$s) returns boolean language plpgsql as
          $f$ begin raise exception ''planted''; end $f$', what);
        execute format('create operator evil.= (leftarg = %s, rightarg = %1$s, function = evil.same)', what);
        execute format('create operator evil.> (leftarg = %s, rightarg = %1$s, function = evil.same)', what);
        execute format('create operator evil.<= (leftarg = %s, rightarg = %1$s, function = evil.same)', what);
      end loop;
    end $$;
"#;

/// Every name is looked up where it belongs: in the outbox's schema or in the catalogue.
#[tokio::test]
async fn c89_planted_names_and_odd_schemas_change_nothing() {
    let place = Place::new().await;
    let database = &place.database;
    database.execute_as_superuser(PLANTED).await;
    for role in Role::ALL {
        let (role, name) = (role.name(), &database.name);
        let path = "evil, pg_catalog, public";
        database
            .execute_as_superuser(&format!(
                "alter role {role} in database {name} set search_path = {path}"
            ))
            .await;
    }
    // A second outbox under that path, by the printed SQL and by the command, and a name that wants quoting.
    let odd = r#"My "App" {schema}; -- 'x'"#;
    migrate_in(database, odd, 16).await;
    let printed = source_of(database, Role::Owner, |o| {
        o.schema = "Printed".into();
    });
    for step in printed.pending_sql().await.unwrap() {
        database.execute(&step.sql).await;
    }
    assert_eq!(printed.migrate().await.unwrap().from, VERSIONS);
    let relay = place.setup().start_with(|relay| {
        let second = Postgres::new(Options {
            name: "billing".to_owned(),
            schema: odd.to_owned(),
            ..options(&database.url)
        });
        let second = DatabaseOptions::new(Arc::new(second.unwrap()));
        relay.databases.push(second);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    let quoted = format!("\"{}\"", odd.replace('"', "\"\""));
    let temporary = "create temp table event (x int); create type pg_temp.uuid as enum ();
         create type pg_temp.json as enum (); create function pg_temp.now() returns text language sql as 'select 1/0'";
    for schema in ["outbox", &quoted] {
        database
            .write(&format!(
                "{temporary};
                 select {schema}.publish('a', '{{\"n\":1}}', 'k');
                 insert into {schema}.event (kind, ordering_key, payload) values ('a', 'k', '{{\"n\":2}}');
                 select {schema}.publish('a', '{{\"n\":3}}', 'k', headers => '{{\"Nats-Rollup\": \"all\"}}');
                 select {schema}.publish_bytes('a', '{{\"n\":4}}', null, 'k')"
            ))
            .await;
    }
    relay.counted("discarded_total", &[], 2.0).await;
    let all = place.stored(6).await;
    let of = |source: &str| -> Vec<u64> {
        let mine = all
            .iter()
            .filter(|m| m.header("Outbox-Source") == Some(source));
        mine.map(|m| number_in(&m.payload)).collect()
    };
    assert_eq!(
        (of("orders"), of("billing")),
        (vec![1, 2, 4], vec![1, 2, 4])
    );
    let by = Operator {
        name: "op".to_owned(),
        reason: None,
    };
    let (operator, all) = (operator(database), DiscardedFilter::default());
    assert_eq!(operator.requeue(&all, &by).await.unwrap(), 1);
    relay.counted("discarded_total", &[], 3.0).await;
    let status = source_of(database, Role::Viewer, |_| {});
    status.status().await.unwrap();
    let left = format!(
        "select (select pg_catalog.count(*) from outbox.event) operator(pg_catalog.+)
                (select pg_catalog.count(*) from {quoted}.event) operator(pg_catalog.+)
                (select pg_catalog.count(*) from evil.event) operator(pg_catalog.+)
                (select pg_catalog.count(*) from evil.migration)"
    );
    eventually(LONG, "nothing is left", || async {
        let left = watched(database, &left).await;
        (left == 0).then_some(()).ok_or(format!("{left} rows"))
    })
    .await;
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}
