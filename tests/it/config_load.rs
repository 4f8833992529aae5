//! Reading the configuration: file, environment, and what is said about mistakes.

use std::ffi::OsString;
use std::time::Duration;

use outboxd::config::{Loaded, LogFormat, Place, SinkType};
use secrecy::ExposeSecret;

/// A configuration that everything here starts from.
pub const BASE: &str = r#"
[databases.orders]
url = "postgres://relay@127.0.0.1:5432/app"
[sinks.events]
type = "nats"
url = "nats://127.0.0.1:4222"
stream = "EVENTS"
[sinks.log]
type = "file"
path = "events.jsonl"
[routes.all]
kinds = ["*"]
sinks = ["events", "log"]
"#;

pub fn read(text: &str, env: &[(&str, &str)]) -> Result<Loaded, Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("outboxd.toml");
    std::fs::write(&file, text).unwrap();
    let env = env
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let place = Place {
        file: Some(file.clone()),
        env: env.collect(),
    };
    Loaded::from(&place).map_err(|error| {
        let shown = file.display().to_string();
        let problems = error.problems.into_iter();
        problems.map(|p| p.replace(&shown, "FILE")).collect()
    })
}

/// A problem without the number of its line, where the place is not the subject.
fn without_line(problem: &str) -> String {
    let mut parts = problem.split("FILE:");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("FILE");
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    text
}

/// `BASE` with lines put behind the header of a section.
pub fn with(section: &str, lines: &str) -> String {
    let header = format!("[{section}]\n");
    if BASE.contains(&header) {
        BASE.replace(&header, &format!("{header}{lines}\n"))
    } else {
        format!("{BASE}{header}{lines}\n")
    }
}

#[track_caller]
pub fn refused(text: &str, env: &[(&str, &str)]) -> String {
    match read(text, env) {
        Ok(_) => panic!("accepted: {text} {env:?}"),
        Err(problems) => without_line(&problems.join("\n")),
    }
}

#[test]
fn every_kind_of_value_comes_from_the_environment_and_goes_before_the_file() {
    let env = [
        ("OUTBOXD__DATABASES__ORDERS__URL", "postgres://other@db/x"),
        ("OUTBOXD__DATABASES__ORDERS__PASSWORD", "007"),
        ("OUTBOXD__DATABASES__ORDERS__GAP_GUARD", "hold"),
        ("OUTBOXD__RETRY__MAX_ATTEMPTS", "7"),
        ("OUTBOXD__RETRY__BASE", "250ms"),
        ("OUTBOXD__SINKS__EVENTS__CREATE_STREAM", "true"),
        ("OUTBOXD__SINKS__EVENTS__MAX_IN_FLIGHT_BYTES", "1MiB"),
        ("OUTBOXD__ROUTES__ALL__SINKS", "log, events"),
        ("OUTBOXD__ROUTES__ALL__RETRY__MAX", "1h"),
        ("OUTBOXD__HTTP__LISTEN", "127.0.0.1:0"),
        ("OUTBOXD__LOG__FORMAT", "json"),
        ("OUTBOXD__SHUTDOWN__GRACE", ""),
        ("OUTBOXD_CONFIG", "elsewhere.toml"),
        ("PATH", "/bin"),
    ];
    let loaded = read(&with("retry", "max_attempts = 3\nbase = \"9s\""), &env).unwrap();
    let config = loaded.config;
    let database = &config.databases["orders"];
    let url = database.url.as_ref().unwrap();
    assert_eq!(url.expose_secret(), "postgres://other@db/x");
    assert_eq!(database.password.as_ref().unwrap().expose_secret(), "007");
    assert_eq!(database.gap_guard, outboxd::relay::GapGuard::Hold);
    assert_eq!(config.retry.max_attempts, 7);
    assert_eq!(config.retry.base.0, Duration::from_millis(250));
    assert!(config.sinks["events"].create_stream);
    assert_eq!(config.sinks["events"].max_in_flight_bytes.0, 1 << 20);
    assert_eq!(config.routes["all"].sinks.0, ["log", "events"]);
    assert_eq!(config.http.listen.unwrap().port(), 0);
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.shutdown.grace.0, Duration::from_secs(25));
    assert_eq!(
        loaded.given["retry.max_attempts"],
        "environment variable OUTBOXD__RETRY__MAX_ATTEMPTS"
    );
    assert!(loaded.given["sinks.events.stream"].ends_with("outboxd.toml:7"));
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn the_environment_alone_is_enough() {
    let env = [
        ("OUTBOXD__DATABASES__ORDERS__URL", "sqlite://orders.db"),
        ("OUTBOXD__SINKS__OUT__TYPE", "stdout"),
        ("OUTBOXD__ROUTES__ALL__KINDS", "auth.*,orders.paid"),
        ("OUTBOXD__ROUTES__ALL__SINKS", "out"),
    ];
    let place = Place {
        file: None,
        env: env.iter().map(|(n, v)| (n.into(), v.into())).collect(),
    };
    let config = Loaded::from(&place).unwrap().config;
    assert_eq!(config.sinks["out"].kind, Some(SinkType::Stdout));
    assert_eq!(config.routes["all"].kinds.0, ["auth.*", "orders.paid"]);
}

#[test]
fn text_is_never_taken_for_a_number_or_the_other_way_round() {
    for password in ["007", "1e5", "True", "a,b", "p@ss/w?rd#%:&"] {
        let env = [("OUTBOXD__DATABASES__ORDERS__PASSWORD", password)];
        let config = read(BASE, &env).unwrap().config;
        let read = config.databases["orders"].password.as_ref().unwrap();
        assert_eq!(read.expose_secret(), password);
    }
    for bare in ["12345", "1e5", "true", "[\"a\"]"] {
        let problem = refused(
            &with("databases.orders", &format!("password = {bare}")),
            &[],
        );
        assert!(
            problem.starts_with("`databases.orders.password` (FILE)"),
            "{problem}"
        );
        assert!(
            problem.contains("in quotes") && !problem.contains("12345"),
            "{problem}"
        );
    }
    let problem = refused(&with("retry", "max_attempts = 2.7"), &[]);
    assert!(problem.contains("whole number"), "{problem}");
    let problem = refused(&with("sinks.events", "create_stream = 1"), &[]);
    assert!(problem.contains("true or false"), "{problem}");
}

#[test]
fn lengths_of_time_need_their_unit() {
    for value in ["15", "\"15\"", "\"soon\"", "15.5"] {
        let problem = refused(&with("lease", &format!("ttl = {value}")), &[]);
        assert!(problem.starts_with("`lease.ttl` (FILE)"), "{problem}");
        assert!(problem.contains("15s"), "{problem}");
    }
    let problem = refused(BASE, &[("OUTBOXD__LEASE__TTL", "15")]);
    assert!(
        problem.starts_with("`lease.ttl` (environment variable OUTBOXD__LEASE__TTL)"),
        "{problem}"
    );
}

#[test]
fn unknown_keys_are_refused_all_at_once_with_a_hint() {
    let text = with("retry", "maxattempts = 3\nbases = \"1s\"")
        .replace("stream = ", "streem = ")
        .replace("[routes.all]", "[route.all]");
    let problems = refused(&text, &[("OUTBOXD__RETRY__MAXATTEMPTS", "9")]);
    for words in [
        "`retry.maxattempts` (environment variable OUTBOXD__RETRY__MAXATTEMPTS): there is no such key; did you \
         mean `retry.max_attempts`?",
        "`retry.bases` (FILE): there is no such key; did you mean `retry.base`?",
        "`sinks.events.streem` (FILE): there is no such key; did you mean `sinks.events.stream`?",
        "`route` (FILE): there is no such key; did you mean `routes`?",
    ] {
        assert!(
            problems.lines().any(|p| p == words),
            "{words}\nnot in\n{problems}"
        );
    }
    let problem = refused(&format!("schema = \"x\"\n{BASE}"), &[]);
    assert!(
        problem.contains("it belongs to `databases.NAME.schema`"),
        "{problem}"
    );
    let problem = refused(BASE, &[("OUTBOXD__NO__SUCH", "1")]);
    assert!(
        problem.contains("environment variable OUTBOXD__NO__SUCH"),
        "{problem}"
    );
    let problem = refused(BASE, &[("OUTBOXD__RETRY__A[0]", "1")]);
    assert!(problem.contains("there is no such key"), "{problem}");
}

#[test]
fn a_variable_with_one_underscore_too_few_is_refused() {
    for (name, right) in [
        ("OUTBOXD_RETRY_MAX_ATTEMPTS", "OUTBOXD__RETRY__MAX_ATTEMPTS"),
        (
            "OUTBOXD_RETRY__MAX_ATTEMPTS",
            "OUTBOXD__RETRY__MAX_ATTEMPTS",
        ),
        ("OUTBOXD_HTTP_LISTEN", "OUTBOXD__HTTP__LISTEN"),
        (
            "OUTBOXD_DATABASES_ORDERS_URL",
            "OUTBOXD__DATABASES__ORDERS__URL",
        ),
    ] {
        let problem = refused(BASE, &[(name, "9")]);
        assert!(
            problem.contains(name) && problem.contains(right),
            "{problem}"
        );
    }
    let problem = refused(BASE, &[("OUTBOXD_LEASE_FOO", "9")]);
    assert!(problem.contains("two underscores"), "{problem}");
    // What is not ours to refuse: a word of warning, and none for what Kubernetes sets by itself.
    let env = [
        ("OUTBOXD_VERSION", "9"),
        ("OUTBOXD_SERVICE_HOST", "10.0.0.1"),
        ("OUTBOXD_PORT_8480_TCP", "tcp://10.0.0.1:8480"),
    ];
    let warnings = read(BASE, &env).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("OUTBOXD_VERSION"), "{warnings:?}");
}

#[test]
fn names_are_such_that_file_and_environment_can_both_write_them() {
    for name in ["Orders", "a__b", "\"a.b\"", "\"a b\"", "\"\""] {
        let problem = refused(
            &BASE.replace("databases.orders", &format!("databases.{name}")),
            &[],
        );
        assert!(problem.contains("a-z, 0-9"), "{problem}");
    }
    let text = BASE.replace("databases.orders", "databases.my-db_2");
    assert!(read(&text, &[]).is_ok());
}

#[test]
fn broken_toml_tells_the_place_and_never_the_line() {
    for text in [
        "[databases.orders]\npassword = \"s3cret\n",
        "[databases.orders]\npassword = s3cret\n",
        "[databases.orders]\nurl = \"postgres://u:s3cret@h/d\" x\n",
        "[databases.orders]\npassword = \"s3cret\"\npassword = \"s3cret\"\n",
        "s3cret",
    ] {
        let problem = refused(text, &[]);
        assert!(!problem.contains("s3cret"), "{problem}");
        assert!(problem.starts_with("FILE: "), "{text}: {problem}");
    }
    // The line itself, and every mistake of this kind at once.
    let text = "[retry]\nbase = 1s\n\n[lease]\nttl = \"15s\nshards = = 3\n";
    let problems = read(text, &[]).unwrap_err();
    let lines: Vec<&str> = problems
        .iter()
        .map(|p| p.split(": ").next().unwrap())
        .collect();
    assert_eq!(lines, ["FILE:2", "FILE:5", "FILE:6"], "{problems:?}");
}

#[test]
fn two_variables_for_one_key_are_refused() {
    let env = [
        ("OUTBOXD__RETRY__BASE", "5s"),
        ("outboxd__retry__base", "6s"),
    ];
    let problem = refused(BASE, &env);
    assert!(
        problem.contains("both set `retry.base`") && problem.contains("outboxd__retry__base"),
        "{problem}"
    );
}

#[test]
fn a_bad_url_is_named_and_not_repeated() {
    for url in [
        "postgres://u:s3cret/x@h:port/d",
        "mysql://u:s3cret@h/d",
        "s3cret",
    ] {
        let env = [("OUTBOXD__DATABASES__ORDERS__URL", url)];
        let problem = refused(BASE, &env);
        assert!(
            problem.contains("invalid url for database orders"),
            "{problem}"
        );
        assert!(
            !problem.contains("s3cret") && !problem.contains("mysql"),
            "{problem}"
        );
    }
    let env = [("OUTBOXD__SINKS__EVENTS__URL", "http://u:s3cret@h")];
    let problem = refused(BASE, &env);
    assert!(problem.contains("invalid url for sink events"), "{problem}");
    assert!(!problem.contains("s3cret"), "{problem}");
}

#[test]
fn secrets_are_not_shown() {
    let text = with("sinks.events", "user = \"u\"\npassword = \"s3cret-1\"");
    let env = [
        (
            "OUTBOXD__DATABASES__ORDERS__URL",
            "postgres://u:s3cret-2@h/d",
        ),
        ("OUTBOXD__DATABASES__OTHER__HOST", "h"),
        ("OUTBOXD__DATABASES__OTHER__PASSWORD", "s3cret-3"),
    ];
    let loaded = read(&text, &env).unwrap();
    let shown = format!(
        "{loaded:?} {}",
        serde_json::to_string(&loaded.config).unwrap()
    );
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("[REDACTED]"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let place = Place {
        file: Some("no-such.toml".into()),
        env: Vec::new(),
    };
    let error = Loaded::from(&place).unwrap_err().to_string();
    assert!(error.contains("cannot read no-such.toml"), "{error}");
    let text = BASE.replace(
        "url = \"postgres://relay@127.0.0.1:5432/app\"",
        "url_file = \"no-such\"",
    );
    let problem = refused(&text, &[]);
    assert!(problem.contains("cannot read no-such"), "{problem}");
}
