//! Commands at the prompt: exit codes, what is said, what programs read.

use serde_json::json;

use crate::cli_bin::Workplace;
use crate::support::roles::Role;
use crate::support::{nats, postgres};

#[test]
fn help_is_for_people_and_wrong_usage_is_2() {
    let place = Workplace::empty();
    let help = place.outboxd(&["--help"]).code(0);
    assert!(help.stdout.contains("outboxd demo") && help.stdout.contains("Exit codes"));
    for command in ["run", "demo", "check", "migrate", "publish", "status"] {
        let help = place.outboxd(&[command, "--help"]).code(0);
        assert!(help.stdout.contains("Usage:"), "{command}");
    }
    place.outboxd(&["no-such-command"]).code(2);
    place.outboxd(&["publish"]).code(2);
    place.outboxd(&["publish", "kind", "--stdin"]).code(2);
}

#[test]
fn without_a_configuration_the_way_on_is_told() {
    let place = Workplace::empty();
    for command in ["run", "check", "migrate", "status"] {
        let ended = place.outboxd(&[command]).code(2);
        assert!(
            ended.stderr.contains("no database is configured"),
            "{ended:?}"
        );
        assert!(ended.stderr.contains("outboxd demo"), "{ended:?}");
    }
    let ended = place.env("OUTBOXD_CONFIG", "").outboxd(&["status"]).code(2);
    assert!(
        ended.stderr.contains("no database is configured"),
        "{ended:?}"
    );
    let place = Workplace::empty().env("OUTBOXD_CONFIG", "elsewhere.toml");
    let ended = place.outboxd(&["status"]).code(2);
    assert!(
        ended.stderr.contains("cannot read elsewhere.toml"),
        "{ended:?}"
    );
    let ended = place
        .outboxd(&["--config", "nowhere.toml", "status"])
        .code(2);
    assert!(
        ended.stderr.contains("cannot read nowhere.toml"),
        "{ended:?}"
    );
}

#[test]
fn an_invalid_configuration_is_2_and_lists_everything() {
    let place = Workplace::sqlite_to_file("[retry]\nmaxattempts = 3\nbas = \"1s\"\n");
    let ended = place.outboxd(&["run"]).code(2);
    assert!(ended.stderr.contains("retry.max_attempts"), "{ended:?}");
    assert!(ended.stderr.contains("retry.base"), "{ended:?}");
    assert_eq!(ended.stdout, "");
}

#[test]
fn config_show_tells_value_and_origin_and_no_secret() {
    let place = Workplace::new("[databases.orders]\nhost = \"db\"\npassword = \"s3cret\"\n")
        .env("OUTBOXD__RETRY__MAX_ATTEMPTS", "7");
    let ended = place.outboxd(&["config", "show"]).code(0);
    let line = |key: &str| {
        let found = ended.stdout.lines().find(|line| line.starts_with(key));
        found
            .unwrap_or_else(|| panic!("{key} in {ended:?}"))
            .to_owned()
    };
    assert!(line("retry.max_attempts").contains("7 "), "{ended:?}");
    assert!(
        line("retry.max_attempts").contains("OUTBOXD__RETRY__MAX_ATTEMPTS"),
        "{ended:?}"
    );
    assert!(
        line("databases.orders.host").contains("outboxd.toml:2"),
        "{ended:?}"
    );
    assert!(line("lease.ttl").ends_with("default"), "{ended:?}");
    assert!(!ended.stdout.contains("s3cret"), "{ended:?}");
    assert!(
        ended.stderr.contains("no sinks are configured"),
        "{ended:?}"
    );

    let ended = place
        .outboxd(&["config", "show", "--output", "json"])
        .code(0);
    let shown = ended.json();
    let entry = json!({ "key": "shutdown.grace", "value": "25s", "origin": "default" });
    assert!(shown.as_array().unwrap().contains(&entry), "{shown}");
}

#[test]
fn config_schema_needs_no_configuration() {
    let ended = Workplace::new("no toml")
        .outboxd(&["config", "schema"])
        .code(0);
    assert_eq!(ended.json(), outboxd::config::schema());
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let place = Workplace::sqlite_to_file("");
    for args in [["config", "show"], ["run", "--help"]] {
        let ended = place.outboxd_unread(&args).code(0);
        assert_eq!(ended.stderr, "");
    }
}

/// The life of an outbox as commands see it, without a relay.
fn life_without_a_relay(place: &Workplace) {
    let ended = place.outboxd(&["check"]).code(3);
    assert!(ended.stdout.contains("run `outboxd migrate`"), "{ended:?}");

    let plan = place.outboxd(&["migrate", "--dry-run"]).code(0);
    assert!(
        plan.stdout.to_lowercase().contains("create table"),
        "{plan:?}"
    );
    assert!(
        plan.stdout.starts_with("-- orders: version 1, "),
        "{plan:?}"
    );
    place.outboxd(&["check"]).code(3);
    let grants = place
        .outboxd(&["migrate", "--print-grants", "--relay-role", "Relay 1"])
        .code(0);
    assert!(
        grants.stdout.contains("to \"Relay 1\"") && grants.stdout.contains("to \"outboxd_viewer\"")
            || grants.stdout.contains("knows no roles"),
        "{grants:?}"
    );

    let done = place
        .outboxd(&["migrate", "--output", "json"])
        .code(0)
        .json();
    assert_eq!(done[0]["database"], "orders");
    assert_eq!(done[0]["from"], 0);
    let again = place.outboxd(&["migrate"]).code(0);
    assert!(again.stdout.contains("orders: up to date"), "{again:?}");
    let plan = place.outboxd(&["migrate", "--dry-run"]).code(0);
    assert!(plan.stdout.contains("nothing to do"), "{plan:?}");

    let id = "0199c1a0-1111-7222-8333-444455556666";
    let ended = place
        .outboxd(&[
            "publish",
            "order.paid",
            "--key",
            "order-1",
            "--payload",
            "{\"a\": 1.0}",
            "--header",
            "request_id=r=1",
            "--id",
            id,
        ])
        .code(0);
    assert_eq!(ended.stdout, format!("{id}\n"));
    let ended = place
        .outboxd(&[
            "publish",
            "report.ready",
            "--payload",
            "plain text",
            "--content-type",
            "text/plain",
            "--delay",
            "1h",
            "--output",
            "json",
        ])
        .code(0);
    assert_eq!(ended.json()["ids"].as_array().unwrap().len(), 1);

    let status = place
        .outboxd(&["status", "--output", "json"])
        .code(0)
        .json();
    let database = &status["databases"][0];
    assert_eq!(database["name"], "orders");
    assert_eq!(database["state"], "stopped");
    assert_eq!(database["backlog"], 2);
    assert!(
        database["oldest_ready_age_s"].as_f64().unwrap() >= 0.0,
        "{status}"
    );
    assert!(database["leases"].is_array());
    let feed = &status["feeds"][0];
    assert_eq!(
        (&feed["database"], &feed["sink"]),
        (&json!("orders"), &json!("log"))
    );
    assert_eq!(feed["discarded"], 0);
    let words = place.outboxd(&["status"]).code(0);
    assert!(words.stdout.contains("orders -> log"), "{words:?}");

    let ended = place
        .outboxd(&["discarded", "list", "--output", "json"])
        .code(0);
    assert_eq!(ended.json(), json!([]));
    let ended = place.outboxd(&["discarded", "show", id]).code(1);
    assert!(ended.stderr.contains(id), "{ended:?}");
    place.outboxd(&["discarded", "requeue"]).code(2);
    let ended = place.outboxd(&["discarded", "drop", "--all"]).code(0);
    assert_eq!(ended.stdout, "0 deleted\n");

    let ended = place.outboxd(&["check", "--output", "json"]).code(0);
    assert_eq!(ended.json()["ok"], true);
    lines_from_standard_input(place);
}

fn lines_from_standard_input(place: &Workplace) {
    let line = |n: u32| format!("{{\"kind\":\"bulk.made\",\"payload\":{{ \"n\": {n} }}}}\n");
    let many: String = (0..1_200).map(line).collect();
    let ended = place
        .outboxd_reading(&["publish", "--stdin"], &many)
        .code(0);
    assert_eq!(ended.stdout.lines().count(), 1_200);
    let bad = format!(
        "{}\n{}{{\"kind\":\"bulk.made\",\"paylod\":1}}\n",
        line(1),
        line(2)
    );
    let ended = place.outboxd_reading(&["publish", "--stdin"], &bad).code(1);
    assert!(
        ended.stderr.contains("line 4: unknown field `paylod`"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("nothing was published"), "{ended:?}");
    let bad = format!("{many}not json\n");
    let ended = place.outboxd_reading(&["publish", "--stdin"], &bad).code(1);
    assert!(ended.stderr.contains("line 1201: "), "{ended:?}");
    assert!(
        ended.stderr.contains("lines 1 to 1000 were published"),
        "{ended:?}"
    );
    let status = place
        .outboxd(&["status", "--output", "json"])
        .code(0)
        .json();
    assert_eq!(status["databases"][0]["backlog"], 2_202);
}

#[test]
fn the_life_of_an_sqlite_outbox_at_the_prompt() {
    life_without_a_relay(&Workplace::sqlite_to_file(""));
}

#[tokio::test]
async fn the_life_of_a_postgres_outbox_at_the_prompt() {
    let database = postgres::server().await.database().await;
    let place = Workplace::new(&format!(
        "[databases.orders]\nurl = \"{}\"\nschema = \"My Outbox\"\n[sinks.log]\ntype = \"file\"\npath = \
         \"events.jsonl\"\n[routes.all]\nkinds = [\"*\"]\nsinks = [\"log\"]\n",
        database.url_of(Role::Owner)
    ));
    life_without_a_relay(&place);
}

#[test]
fn publish_refuses_what_no_outbox_takes() {
    let place = Workplace::sqlite_to_file("");
    place.outboxd(&["migrate"]).code(0);
    let cases: [(&[&str], &str); 6] = [
        (&["publish", "k"], "no body"),
        (
            &["publish", "k", "--payload", "{'a': 1}"],
            "the payload is not JSON",
        ),
        (&["publish", "", "--payload", "1"], "the kind is empty"),
        (
            &["publish", "k", "--key", "", "--payload", "1"],
            "the ordering key is empty",
        ),
        (
            &["publish", "k", "--payload", "1", "--header", "x"],
            "NAME=VALUE",
        ),
        (
            &["publish", "k", "--payload", "1", "--delay", "10"],
            "with its unit",
        ),
    ];
    for (args, words) in cases {
        let ended = place.outboxd(args).code(2);
        assert!(ended.stderr.contains(words), "{words} in {ended:?}");
    }
}

#[test]
fn one_of_several_databases_has_to_be_named() {
    let place = Workplace::sqlite_to_file("[databases.other]\nurl = \"sqlite://other.db\"\n");
    place.outboxd(&["migrate"]).code(0);
    let ended = place.outboxd(&["publish", "k", "--payload", "1"]).code(2);
    assert!(
        ended.stderr.contains("--database: orders, other"),
        "{ended:?}"
    );
    let ended = place
        .outboxd(&["publish", "k", "--payload", "1", "--database", "others"])
        .code(2);
    assert!(
        ended.stderr.contains("there is no database `others`"),
        "{ended:?}"
    );
    place
        .outboxd(&["publish", "k", "--payload", "1", "--database", "other"])
        .code(0);
    let status = place
        .outboxd(&["status", "--output", "json"])
        .code(0)
        .json();
    let backlog = |at: usize| status["databases"][at]["backlog"].clone();
    assert_eq!((backlog(0), backlog(1)), (json!(0), json!(1)));
}

#[tokio::test]
async fn check_tells_what_a_stream_allows_and_what_it_costs_not_to() {
    let broker = nats::Server::start().await;
    let place = |mode: &str| {
        Workplace::new(&format!(
            "[databases.orders]\nurl = \"sqlite://orders.db\"\n[sinks.events]\ntype = \"nats\"\n\
             url = \"{}\"\nstream = \"EVENTS\"\nmode = \"{mode}\"\n[routes.all]\nkinds = [\"order.*\"]\n\
             sinks = [\"events\"]\n",
            broker.url()
        ))
    };
    let check = |mode: &str, code| {
        let place = place(mode);
        place.outboxd(&["migrate"]).code(0);
        place.outboxd(&["check"]).code(code).stdout
    };
    let stream = |allowed: serde_json::Value| {
        let mut config = json!({"name": "EVENTS", "subjects": ["events.>"]});
        let fields = config.as_object_mut().unwrap();
        fields.extend(allowed.as_object().unwrap().clone());
        let broker = &broker;
        async move {
            let _ = broker.jetstream().await.delete_stream("EVENTS").await;
            broker.create_stream(config).await
        }
    };
    stream(json!({})).await;
    assert!(check("auto", 0).contains("allow_batched on the stream (nats-server 2.14) lifts that"));
    assert!(check("lane", 3).contains("mode = lane needs allow_batched on stream EVENTS"));
    assert!(check("atomic", 3).contains("mode = atomic needs allow_atomic on stream EVENTS"));
    assert!(check("single", 0).contains("one event of each key is in flight"));
    stream(json!({"allow_atomic": true})).await;
    assert!(check("auto", 0).contains("as atomic batches"));
    stream(json!({"allow_batched": true})).await;
    assert!(check("auto", 0).contains("in ordered lanes"));
    assert!(check("lane", 0).contains("in ordered lanes"));
}

#[tokio::test]
async fn check_tells_a_database_from_a_sink_from_a_finding() {
    let database = postgres::server().await.database().await;
    let owner = database.url_of(Role::Owner);
    let broker = nats::Server::start().await;
    let free = crate::support::process::free_port();
    let config = |database: &str, broker: &str| {
        format!(
            "[databases.orders]\nurl = \"{database}\"\n[sinks.events]\ntype = \"nats\"\nurl = \"{broker}\"\n\
             stream = \"EVENTS\"\n[routes.all]\nkinds = [\"order.paid\"]\nsinks = [\"events\"]\n"
        )
    };
    let gone = format!("postgres://postgres@127.0.0.1:{free}/x");
    let nobody = format!("nats://127.0.0.1:{free}");

    let place = Workplace::new(&config(&gone, &nobody));
    let ended = place.outboxd(&["check", "--output", "json"]).code(4);
    let report = ended.json();
    assert_eq!(report["parts"][0]["reachable"], false, "{report}");
    assert_eq!(report["parts"][1]["reachable"], false, "{report}");
    place.outboxd(&["status"]).code(4);
    place.outboxd(&["migrate"]).code(4);
    place.outboxd(&["publish", "k", "--payload", "1"]).code(4);

    // A database that is not migrated is a finding, and an unreachable sink goes before it.
    let place = Workplace::new(&config(&owner, &nobody));
    place.outboxd(&["check"]).code(5);
    let place = Workplace::new(&config(&owner, &broker.url()));
    place.outboxd(&["check"]).code(3);
    place.outboxd(&["migrate"]).code(0);
    let ended = place.outboxd(&["check"]).code(3);
    assert!(
        ended.stdout.contains("EVENTS"),
        "the stream is missing: {ended:?}"
    );

    let stream = async_nats::jetstream::stream::Config {
        name: "EVENTS".into(),
        subjects: vec!["events.>".into()],
        ..Default::default()
    };
    let context = broker.jetstream().await;
    context.create_stream(stream).await.unwrap();
    let ended = place.outboxd(&["check"]).code(0);
    assert!(
        ended
            .stdout
            .contains("stream EVENTS allows no batches: one event of each key is in flight"),
        "{ended:?}"
    );
    place
        .outboxd(&["publish", "other.kind", "--payload", "1"])
        .code(0);
    let ended = place.outboxd(&["check"]).code(3);
    assert!(
        ended
            .stdout
            .contains("events of kind `other.kind` are pending"),
        "{ended:?}"
    );
}
