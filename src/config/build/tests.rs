//! Every key of the file reaches the options that give it its effect.

use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret;

use super::*;
use crate::config::{Loaded, Place};
use crate::relay::GapGuard;
use crate::retry::OnExhausted;
use crate::source::PublishedKeep;
use crate::{sink, source};

fn load(text: &str) -> Config {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("outboxd.toml");
    std::fs::write(&file, text).expect("written");
    let place = Place {
        file: Some(file),
        env: Vec::new(),
    };
    Loaded::from(&place).expect("a sound configuration").config
}

const ROUTE: &str = "[routes.all]\nkinds = [\"*\"]\nsinks = [\"events\"]\n";

const NATS: &str =
    "[sinks.events]\ntype = \"nats\"\nurl = \"nats://a:4222,tls://b\"\nstream = \"EVENTS\"\n";

fn postgres_of(lines: &str, rest: &str) -> source::postgres::Options {
    let config = load(&format!("[databases.orders]\n{lines}\n{NATS}{ROUTE}{rest}"));
    match source_options("orders", &config.databases["orders"], &config).expect("options") {
        SourceOptions::Postgres(options) => *options,
        SourceOptions::Sqlite(_) => panic!("not postgres"),
    }
}

fn text(secret: &Option<secrecy::SecretString>) -> Option<&str> {
    secret.as_ref().map(|secret| secret.expose_secret())
}

#[test]
fn options_made_in_code_are_those_of_a_file_that_says_no_more() {
    let configured = postgres_of("url = \"postgres://db/app\"", "");
    let own = source::postgres::Options::new("orders", configured.url.clone());
    assert_eq!(format!("{configured:?}"), format!("{own:?}"));
    let config = load(&format!(
        "[databases.orders]\nurl = \"postgres://db/app\"\n{NATS}{ROUTE}"
    ));
    let configured = nats_options("events", &config.sinks["events"], &config).expect("options");
    let (url, subject) = (&configured.url, &configured.subject);
    let own = sink::nats::Options::new("events", url, "EVENTS", subject);
    assert_eq!(format!("{configured:?}"), format!("{own:?}"));
}

#[test]
fn keys_of_a_postgres_database() {
    let by_fields = postgres_of(
        "host = \"db\"\nport = 5433\nuser = \"relay\"\npassword = \"p@ss/w?rd#%:&\"\ndbname = \"app\"\n\
         tls = \"verify-full\"\nca_file = \"ca.pem\"\nclient_cert_file = \"me.pem\"\nclient_key_file = \"me.key\"\nschema = \"my outbox\"\npooler = \"transaction\"\n\
         max_connections = 3\nstatement_timeout = \"7s\"",
        "[lease]\nshards = 4\n[retention]\npublished_keep = \"receipt\"\n",
    );
    assert_eq!(by_fields.name, "orders");
    assert_eq!(by_fields.host.as_deref(), Some("db"));
    assert_eq!(by_fields.port, Some(5433));
    assert_eq!(by_fields.user.as_deref(), Some("relay"));
    assert_eq!(text(&by_fields.password), Some("p@ss/w?rd#%:&"));
    assert_eq!(by_fields.dbname.as_deref(), Some("app"));
    assert_eq!(by_fields.tls, Some(source::postgres::Tls::VerifyFull));
    assert_eq!(by_fields.ca_file.as_deref(), Some(Path::new("ca.pem")));
    let path = |path: &'static str| Some(Path::new(path));
    assert_eq!(by_fields.client_cert_file.as_deref(), path("me.pem"));
    assert_eq!(by_fields.client_key_file.as_deref(), path("me.key"));
    assert_eq!(by_fields.schema, "my outbox");
    assert_eq!(by_fields.pooler, source::postgres::Pooler::Transaction);
    assert!(!by_fields.listen, "a pooler rules LISTEN out");
    assert_eq!(by_fields.max_connections, 3);
    assert_eq!(by_fields.statement_timeout, Duration::from_secs(7));
    assert_eq!(by_fields.shards, 4);
    assert_eq!(by_fields.keep, PublishedKeep::Receipt);

    let by_url = postgres_of(
        "url = \"postgres://relay@db/app\"\npassword_file = \"pw\"",
        "",
    );
    assert_eq!(text(&by_url.url), Some("postgres://relay@db/app"));
    assert_eq!(by_url.password_file.as_deref(), Some(Path::new("pw")));
    assert_eq!(by_url.schema, "outbox");
    assert_eq!(by_url.tls, None);
    assert!(by_url.listen);
    assert!(!postgres_of("host = \"db\"\nwake = \"poll\"", "").listen);
}

#[test]
fn a_url_file_is_handed_on_as_a_file_and_tells_the_kind() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("url");
    std::fs::write(&file, "postgres://relay:x@db/app\n").expect("written");
    let options = postgres_of(&format!("url_file = {file:?}"), "");
    assert_eq!(options.url_file.as_deref(), Some(file.as_path()));
    assert!(options.url.is_none());
}

#[test]
fn keys_of_an_sqlite_database() {
    let config = load(&format!(
        "[databases.orders]\nurl = \"sqlite:///var/orders.db\"\nstatement_timeout = \"3s\"\n{NATS}{ROUTE}\
         [lease]\nshards = 2\n[retention]\npublished_keep = \"none\"\n"
    ));
    let options = source_options("orders", &config.databases["orders"], &config);
    let SourceOptions::Sqlite(options) = options.expect("options") else {
        panic!("not sqlite");
    };
    assert_eq!(options.name, "orders");
    assert_eq!(options.path, Path::new("/var/orders.db"));
    assert_eq!(options.statement_timeout, Duration::from_secs(3));
    assert_eq!(options.shards, 2);
    assert_eq!(options.keep, PublishedKeep::None);
}

fn nats_of(lines: &str) -> sink::nats::Options {
    let nats = NATS.replace("nats://a:4222,tls://b", "nats://a:4222");
    let config = load(&format!(
        "[databases.orders]\nurl = \"sqlite://x\"\n{nats}{lines}\n{ROUTE}"
    ));
    nats_options("events", &config.sinks["events"], &config).expect("options")
}

#[test]
fn keys_of_a_nats_sink() {
    let plain = nats_of("");
    assert_eq!(plain.name, "events");
    assert_eq!(plain.url, "nats://a:4222");
    assert_eq!(plain.stream, "EVENTS");
    assert_eq!(plain.subject, "events.{kind}");
    assert_eq!(plain.mode, sink::nats::Mode::Auto);
    assert_eq!((plain.tls, plain.create_stream), (None, false));

    let full = nats_of(
        "user = \"u\"\npassword = \"p@ss/w?rd#%:&\"\ntls = true\nca_file = \"ca.pem\"\n\
         client_cert_file = \"me.pem\"\nclient_key_file = \"me.key\"\ncreate_stream = true\n\
         subject = \"e.{source}.{kind}\"\nmode = \"single\"",
    );
    assert_eq!(full.user.as_deref(), Some("u"));
    assert_eq!(text(&full.password), Some("p@ss/w?rd#%:&"));
    assert_eq!((full.tls, full.create_stream), (Some(true), true));
    assert_eq!(full.ca_file.as_deref(), Some(Path::new("ca.pem")));
    assert_eq!(full.client_cert_file.as_deref(), Some(Path::new("me.pem")));
    assert_eq!(full.client_key_file.as_deref(), Some(Path::new("me.key")));
    assert_eq!(full.subject, "e.{source}.{kind}");
    assert_eq!(full.mode, sink::nats::Mode::Single);

    assert_eq!(text(&nats_of("token = \"t\"").token), Some("t"));
    let path = |path: &'static str| Some(Path::new(path));
    assert_eq!(
        nats_of("token_file = \"t\"").token_file.as_deref(),
        path("t")
    );
    assert_eq!(
        nats_of("creds_file = \"c\"").creds_file.as_deref(),
        path("c")
    );
    let by_file = nats_of("user = \"u\"\npassword_file = \"p\"");
    assert_eq!(by_file.password_file.as_deref(), path("p"));
}

#[test]
fn credentials_in_a_broker_url_are_taken_out_of_it() {
    let sink = Sink {
        url: Some(crate::config::Secret(
            "nats://u:p%40ss@a:4222,tls://b:4222".to_owned().into(),
        )),
        ..Sink::default()
    };
    let options = nats_options("events", &sink, &Config::default()).expect("options");
    assert_eq!(options.url, "nats://a:4222,tls://b:4222");
    assert_eq!(options.user.as_deref(), Some("u"));
    assert_eq!(text(&options.password), Some("p@ss"));
}

#[tokio::test]
async fn keys_of_the_relay() {
    let config = load(&format!(
        "[databases.orders]\nhost = \"db\"\ngap_guard = \"hold\"\nquiet_after = \"10m\"\nsweep_every = \"5s\"\nfallback_poll = \"20s\"\n\
         [databases.small]\nurl = \"sqlite://small.db\"\npoll_max = \"3s\"\n\
         [databases.polled]\nhost = \"other\"\nwake = \"poll\"\n\
         {NATS}publish_timeout = \"3s\"\nmax_in_flight = 5\nmax_in_flight_bytes = \"1KiB\"\n\
         [sinks.log]\ntype = \"file\"\npath = \"x\"\n[sinks.out]\ntype = \"stdout\"\n\
         {ROUTE}on_exhausted = \"block\"\nretry = {{ max_attempts = 3 }}\n\
         [routes.audit]\nkinds = [\"audit.*\"]\nsinks = [\"log\", \"out\"]\nretry = {{ base = \"1s\", max = \"4s\" }}\n\
         [retry]\nmax_attempts = 9\nbase = \"7s\"\nmax = \"70s\"\n[lease]\nttl = \"9s\"\n\
         [retention]\npublished = \"1d\"\ndiscarded = \"2d\"\n[shutdown]\ngrace = \"4s\"\n"
    ));
    let options = options(&config, Telemetry::none()).expect("options");
    assert_eq!(options.lease_ttl, Duration::from_secs(9));
    assert_eq!(options.grace, Duration::from_secs(4));
    assert_eq!(options.retention.published, Duration::from_secs(86_400));
    assert_eq!(options.retention.discarded, Duration::from_secs(2 * 86_400));
    assert_eq!(options.retention.keep, PublishedKeep::Full);

    let [orders, polled, small] = options.databases.as_slice() else {
        panic!("three databases");
    };
    assert_eq!(orders.gap_guard, GapGuard::Hold);
    assert_eq!(orders.quiet_after, Some(Duration::from_secs(600)));
    assert_eq!(orders.sweep_every, Duration::from_secs(5));
    let poll_max = [orders, polled, small].map(|database| database.poll_max.as_secs());
    assert_eq!(poll_max, [1, 1, 3]);
    let fallback = [orders, polled, small].map(|database| database.fallback.as_secs());
    assert_eq!(fallback, [20, 30, 30]);
    assert_eq!(small.sweep_every, Duration::from_secs(60));

    let kinds: Vec<_> = options.sinks.iter().map(|sink| sink.sink.kind()).collect();
    assert_eq!(kinds, ["nats", "file", "stdout"]);
    let events = &options.sinks[0];
    assert_eq!(events.publish_timeout, Duration::from_secs(3));
    assert_eq!(events.max_in_flight, 5);
    assert_eq!(events.max_in_flight_bytes, 1_024);
    assert_eq!(options.sinks[1].max_in_flight, 4_096);

    let all = options.routes.of("order.paid").expect("a route");
    assert_eq!(all.retry.max_attempts, 3);
    assert_eq!(all.retry.base, Duration::from_secs(7));
    assert_eq!(all.retry.on_exhausted, OnExhausted::Block);
    let audit = options.routes.of("audit.login").expect("a route");
    assert_eq!(audit.retry.max_attempts, 9);
    assert_eq!(audit.retry.base, Duration::from_secs(1));
    assert_eq!(audit.retry.max, Duration::from_secs(4));
    assert_eq!(&*audit.sinks[1], "out");
}
