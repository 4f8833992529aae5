//! What cannot work is refused before anything starts, all of it at once, with its place.

use crate::config_load::{BASE, read, refused, with};

#[test]
fn every_mistake_is_told_at_once_with_its_line_or_its_variable() {
    let text = r#"[databases.orders]
url = "postgres://relay@127.0.0.1:5432/app"
max_connections = "many"
port = 70000

[sinks.events]
type = "nats"
url = "nats://127.0.0.1:4222"
streem = "EVENTS"

[sinks.log]
type = "file"

[routes.all]
kinds = ["*"]
sinks = ["events", 3]

[retry]
max_attempts = 0

[lease]
ttl = 2020-01-01
"#;
    let env = [("OUTBOXD__RETRY__BASE", "5"), ("OUTBOXD_LEASE_SHARDS", "3")];
    let mut problems = read(text, &env).unwrap_err();
    problems.sort();
    assert_eq!(
        problems,
        [
            "`databases.orders.max_connections` (FILE:3): expected a whole number that is neither negative nor too \
             large",
            "`databases.orders.port` (FILE:4): a database is given either by its url or by host, port, user and \
             dbname, not by both",
            "`databases.orders.port` (FILE:4): expected a whole number that is neither negative nor too large",
            "`lease.ttl` (FILE:22): no key takes a date or a time without quotes",
            "`retry.base` (environment variable OUTBOXD__RETRY__BASE): expected a length of time with its unit, such \
             as \"15s\" or \"7d\"",
            "`retry.max_attempts` (FILE:19): at least 1",
            "`routes.all.sinks` (FILE:16): expected text in quotes, found a bare number",
            "`sinks.events.streem` (FILE:9): there is no such key; did you mean `sinks.events.stream`?",
            "`sinks.log` (FILE:11): a file sink needs `path`",
            "environment variable OUTBOXD_LEASE_SHARDS: sections are separated by two underscores; did you mean \
             OUTBOXD__LEASE__SHARDS?",
        ]
    );
}

#[test]
fn what_cannot_work_is_told_all_at_once() {
    let text = r#"
[databases.orders]
url = "postgres://relay@127.0.0.1/app"
host = "127.0.0.1"
[databases.small]
url = "sqlite://small.db"
schema = "x"
[databases.nowhere]
schema = "x"
[sinks.events]
type = "nats"
path = "x"
publish_timeout = "13s"
[sinks.log]
type = "file"
stream = "x"
[sinks.none]
publish_timeout = "1s"
[routes.all]
kinds = ["a*b"]
sinks = ["evnts"]
[routes.empty]
[lease]
shards = 0
[retry]
base = "1h"
[log]
level = "loud"
"#;
    let problems = refused(text, &[]);
    for words in [
        "`databases.orders.host` (FILE): a database is given either by its url or by host",
        "`databases.small.schema` (FILE): an sqlite database has no such key",
        "`databases.nowhere` (FILE): no address: set `url`, `url_file` or `host`",
        "`sinks.events.path` (FILE): a nats sink has no such key; it belongs to type file",
        "`sinks.events` (FILE): a nats sink needs `stream`",
        "`sinks.events` (FILE): a nats sink needs `url`",
        "`sinks.events.publish_timeout` (FILE): 13s is too long for `lease.ttl` = 15s",
        "`sinks.log.stream` (FILE): a file sink has no such key; it belongs to type nats",
        "`sinks.log` (FILE): a file sink needs `path`",
        "`sinks.none` (FILE): no type",
        "`routes.all.kinds` (FILE): `a*b`: a kind is exact, or ends in one `*`",
        "`routes.all.sinks` (FILE): there is no sink `evnts`; there is events, log, none",
        "`routes.empty` (FILE): no kinds",
        "`routes.empty` (FILE): no sinks",
        "`lease.shards` (FILE): from 1 to 1024",
        "`retry.max`: 4m 16s is less than base = 1h",
        "`log.level` (FILE): expected error, warn, info",
    ] {
        assert!(
            problems.lines().any(|p| p.starts_with(words)),
            "{words}\nnot in\n{problems}"
        );
    }
}

#[test]
fn single_rules_of_sections() {
    let cases = [
        (
            with("lease", "ttl = \"2s\""),
            "`lease.ttl` (FILE): at least 3s",
        ),
        (with("lease", "shards = 1025"), "from 1 to 1024"),
        (with("lease", "shards = 70000"), "whole number"),
        (
            with("sinks.events", "mode = \"fast\""),
            "expected one of `auto`, `lane`, `atomic`, `single`",
        ),
        (
            with("sinks.events", "envelope = \"cloudevents\""),
            "expected `raw`",
        ),
        (with("sinks.events", "max_in_flight = 0"), "at least 1"),
        (
            with("sinks.events", "publish_timeout = \"0s\""),
            "longer than 0s",
        ),
        (
            with("sinks.events", "subject = \"events.{kin}\""),
            "sinks.events",
        ),
        (
            with("sinks.events", "password = \"x\""),
            "a password without `user`",
        ),
        (
            with("sinks.events", "user = \"x\"\ntoken = \"y\""),
            "`user` and `token`",
        ),
        (
            with("sinks.more", "type = \"file\"\npath = \"events.jsonl\""),
            "same destination",
        ),
        (
            with(
                "sinks.more",
                "type = \"nats\"\nurl = \"nats://other,nats://localhost\"\nstream = \"EVENTS\"",
            ),
            "the same destination as `sinks.events`",
        ),
        (
            with("databases.orders", "tls = \"require\"\nca_file = \"x\""),
            "no certificate is checked",
        ),
        (
            with("databases.orders", "client_key_file = \"x\""),
            "it needs `client_cert_file` beside it",
        ),
        (
            with("sinks.events", "tls = false\nca_file = \"x\""),
            "everything goes in plain text",
        ),
        (
            with("sinks.events", "client_cert_file = \"x\""),
            "it needs `client_key_file` beside it",
        ),
        (
            with("sinks.more", "type = \"webhook\""),
            "expected one of `nats`, `file`, `stdout`",
        ),
        (
            with(
                "databases.twice",
                "host = \"localhost\"\nuser = \"other\"\ndbname = \"app\"",
            ),
            "same outbox",
        ),
        (
            with("databases.orders", "wake = \"poll\"\nquiet_after = \"1m\""),
            "quiet_after",
        ),
        (
            with("databases.orders", "tls = \"on\""),
            "expected one of `disable`",
        ),
        (
            with("databases.orders", "max_connections = 1"),
            "at least 2",
        ),
        (
            with("databases.orders", "url_file = \"x\""),
            "`url` and `url_file` are both set",
        ),
        (
            with("routes.all", "on_exhausted = \"retry\""),
            "expected `discard` or `block`",
        ),
        (with("routes.all", "retry = 3"), "a section of its own"),
        (with("http", "listen = \"8480\""), "an address and a port"),
        (
            with("log", "format = \"xml\""),
            "expected `human` or `json`",
        ),
    ];
    for (text, words) in cases {
        let problems = refused(&text, &[]);
        assert!(problems.contains(words), "{words}\nnot in\n{problems}");
    }
    // A longer lease gives a longer timeout its room.
    let text = with("sinks.events", "publish_timeout = \"13s\"");
    assert!(read(&text, &[("OUTBOXD__LEASE__TTL", "16s")]).is_ok());
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let only_database = "[databases.orders]\nurl = \"sqlite://orders.db\"\n";
    let warnings = read(only_database, &[]).unwrap().warnings;
    assert_eq!(
        warnings,
        ["no sinks are configured: every event stays pending"]
    );
    let text = BASE.replace("\"events\", \"log\"", "\"events\"");
    let text = format!("{text}[routes.more]\nkinds = [\"*\"]\nsinks = [\"events\"]\n");
    let warnings = read(&text, &[]).unwrap().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains("`sinks.log` is in no route"),
        "{warnings:?}"
    );
    assert!(
        warnings[1].contains("`routes.all` and `routes.more`"),
        "{warnings:?}"
    );
}
