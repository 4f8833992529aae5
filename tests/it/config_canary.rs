//! Marked secrets in every place that takes one, and a search for the marks in everything that is said.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outboxd::config::{Loaded, Place, build};

use crate::cli_bin::{Ended, Workplace};
use crate::cli_run::{get, url_of};
use crate::support::certificates::Authority;
use crate::support::{eventually, nats, postgres};

const SOON: Duration = Duration::from_secs(40);

/// Part of every secret here, and of nothing else. Its percent-encoded and its JSON forms are the same.
const MARK: &str = "canary4711";

/// The same as a number, for values without quotes.
const NUMBER: &str = "471147114711";

fn secret() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{MARK}x{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[track_caller]
fn silent(what: &str, said: &str) {
    // Base64 is no secret keeping either: three alignments of the mark.
    for mark in [
        MARK,
        NUMBER,
        "Y2FuYXJ5NDcxM",
        "NhbmFyeTQ3MT",
        "jYW5hcnk0NzEx",
    ] {
        let at = said.find(mark);
        let around = at.map(|at| {
            let start = (0..=at.saturating_sub(300))
                .rev()
                .find(|n| said.is_char_boundary(*n));
            &said[start.unwrap_or(0)..at]
        });
        assert!(
            at.is_none(),
            "{what} shows a secret after: …{}",
            around.unwrap_or_default()
        );
    }
}

fn both(ended: &Ended) -> String {
    format!("{}{}", ended.stdout, ended.stderr)
}

/// Everything that each library in the tree has to say.
const EVERYTHING: &str = "trace,outboxd=trace,async_nats=trace,sqlx=trace,ractor=trace,hyper=trace,rustls=trace,\
                          tokio=trace";

const COMMANDS: &[&[&str]] = &[
    &["config", "show"],
    &["config", "show", "--output", "json"],
    &["config", "schema"],
    &["check"],
    &["check", "--output", "json"],
    &["migrate", "--dry-run"],
    &["migrate", "--print-grants"],
    &["migrate"],
    &[
        "publish",
        "order.made",
        "--payload",
        "1",
        "--database",
        "url",
    ],
    &[
        "publish",
        "order.made",
        "--payload",
        "1",
        "--database",
        "field",
    ],
    &["status"],
    &["status", "--output", "json"],
    &["discarded", "list"],
    &["discarded", "requeue", "--all"],
    &["discarded", "drop", "--all"],
    &["run", "--once"],
    &["run", "--help"],
    &["--help"],
    &["config", "--help"],
    &["no-such-command"],
];

/// Databases and sinks that have a secret in each place that takes one.
struct Everywhere {
    config: String,
    files: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, String)>,
}

impl Everywhere {
    /// `database` makes a role with a password and gives its URL and its fields; `broker` makes a user.
    fn new(logins: &[(String, String)], brokers: &[String]) -> Self {
        let [url, field, file, url_file, variable] = logins else {
            panic!("five databases");
        };
        let [user, user_file, in_url, token] = brokers else {
            panic!("four brokers");
        };
        let authority = Authority::new();
        let pair = authority.client("relay");
        let key = std::fs::read_to_string(&pair.key).unwrap();
        let certificate = std::fs::read_to_string(&pair.certificate).unwrap();
        let config = format!(
            "[databases.url]\nurl = \"{}\"\n[databases.field]\n{}\n[databases.file]\n{}password_file = \"pw\"\n\
             [databases.by_file]\nurl_file = \"url\"\n[databases.variable]\n{}\n\
             [sinks.user]\n{}[sinks.user_file]\n{}password_file = \"npw\"\n[sinks.in_url]\n{}\n[sinks.token]\n{}\n\
             [sinks.token_file]\ntype = \"nats\"\nurl = \"nats://127.0.0.1:1\"\nstream = \"T\"\ntoken_file = \"tok\"\n\
             [sinks.creds]\ntype = \"nats\"\nurl = \"nats://127.0.0.1:1\"\nstream = \"C\"\ncreds_file = \"creds\"\n\
             [sinks.cert]\ntype = \"nats\"\nurl = \"nats://127.0.0.1:1\"\nstream = \"D\"\nclient_cert_file = \"cert\"\n\
             client_key_file = \"key\"\n\
             [routes.all]\nkinds = [\"*\"]\nsinks = [\"user\", \"user_file\", \"in_url\", \"token\"]\n\
             [http]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"{EVERYTHING}\"\n",
            url.0,
            field.1,
            without_password(&file.1),
            without_password(&variable.1),
            user,
            without_password(user_file),
            in_url,
            token
        );
        Self {
            config,
            files: vec![
                ("pw", password_of(&file.1)),
                ("url", url_file.0.clone()),
                ("npw", password_of(user_file)),
                ("tok", secret()),
                (
                    "creds",
                    format!("-----BEGIN NATS USER JWT-----\n{}\n", secret()),
                ),
                ("cert", certificate),
                ("key", format!("{}\n{key}", secret())),
            ],
            variables: vec![(
                "OUTBOXD__DATABASES__VARIABLE__PASSWORD",
                password_of(&variable.1),
            )],
        }
    }

    fn place(&self) -> Workplace {
        let mut place = Workplace::new(&self.config);
        for (name, text) in &self.files {
            std::fs::write(place.path(name), format!("{text}\n")).unwrap();
        }
        for (name, value) in &self.variables {
            place = place.env(name, value);
        }
        place
    }
}

fn without_password(section: &str) -> String {
    let lines = section.lines().filter(|line| !line.starts_with("password"));
    lines.map(|line| format!("{line}\n")).collect()
}

fn password_of(section: &str) -> String {
    let line = section.lines().find(|line| line.starts_with("password"));
    line.unwrap().split('"').nth(1).unwrap().to_owned()
}

/// A database of its own with a role, by its URL and by its fields.
async fn login(n: usize) -> (String, String) {
    let database = postgres::server().await.database().await;
    let (role, password) = (format!("canary_{n}_{}", database.name), secret());
    let sql = format!("create role {role} superuser login password '{password}'");
    database.execute_as_superuser(&sql).await;
    let port = database.url.rsplit([':', '/']).nth(1).unwrap();
    let fields = format!(
        "host = \"127.0.0.1\"\nport = {port}\nuser = \"{role}\"\ndbname = \"{}\"\npassword = \"{password}\"\n",
        database.name
    );
    (database.url_as(&role, &password), fields)
}

/// A broker that stands for all, and the sections of its sinks.
async fn brokers() -> (Vec<nats::Server>, Vec<String>) {
    let passwords: Vec<String> = (0..3).map(|_| secret()).collect();
    let users: Vec<String> = passwords
        .iter()
        .enumerate()
        .map(|(n, password)| format!("{{ user: u{n}, password: \"{password}\" }}"))
        .collect();
    let by_user = nats::Server::start_with(&format!(
        "authorization {{ users: [ {} ] }}",
        users.join(", ")
    ))
    .await;
    let token = secret();
    let by_token =
        nats::Server::start_with(&format!("authorization {{ token: \"{token}\" }}")).await;
    let section = |url: String, stream: &str, more: String| {
        format!(
            "type = \"nats\"\nurl = \"{url}\"\nstream = \"{stream}\"\nsubject = \"{stream}.{{kind}}\"\n\
             create_stream = true\n{more}"
        )
    };
    let login = |n: usize| format!("user = \"u{n}\"\npassword = \"{}\"\n", passwords[n]);
    let in_url = by_user
        .url()
        .replace("://", &format!("://u2:{}@", passwords[2]));
    let sections = vec![
        section(by_user.url(), "A", login(0)),
        section(by_user.url(), "B", login(1)),
        section(in_url, "E", String::new()),
        section(by_token.url(), "F", format!("token = \"{token}\"\n")),
    ];
    (vec![by_user, by_token], sections)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_ever_shown() {
    let (_servers, brokers) = brokers().await;
    let mut logins = Vec::new();
    for n in 0..5 {
        logins.push(login(n).await);
    }
    let everywhere = Everywhere::new(&logins, &brokers);
    let place = everywhere.place().env("RUST_LOG", EVERYTHING);
    for args in COMMANDS {
        let ended = place.outboxd(args);
        silent(&args.join(" "), &both(&ended));
    }
    // It did work, and did say a lot.
    let shown = place.outboxd(&["config", "show"]).code(0);
    assert!(shown.stdout.matches("[REDACTED]").count() >= 5, "{shown:?}");
    let place = everywhere.place();
    let mut service = place.start(&["run"]);
    let url = url_of(&mut service).await;
    eventually(SOON, "the events have left", || async {
        let metrics = get(&url, "/metrics").await?;
        let published = "event_outbox_published_total{database=\"url\",sink=\"user\"} ";
        let line = metrics.lines().find(|line| line.starts_with(published));
        match line {
            Some(line) if !line.ends_with(" 0") => Ok(()),
            _ => Err(metrics.clone()),
        }
    })
    .await;
    for path in ["/metrics", "/readyz", "/livez", "/api/v1/status", "/"] {
        silent(path, &get(&url, path).await.unwrap());
    }
    service.signal("TERM");
    service.wait_async(SOON).await;
    let output = service.output();
    silent("the service", &output);
    for part in ["TRACE", "async_nats", "ractor"] {
        assert!(output.contains(part), "{part} is said at this level");
    }
    debug_forms(&everywhere);
}

/// What a panic message or a log line may show of the types themselves.
fn debug_forms(everywhere: &Everywhere) {
    let place = everywhere.place();
    let text = everywhere
        .config
        .replace("url_file = \"url\"", "host = \"h\"");
    std::fs::write(place.path("outboxd.toml"), text).unwrap();
    let variables = everywhere.variables.iter();
    let read = Place {
        file: Some(place.path("outboxd.toml")),
        env: variables
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
    };
    let loaded = Loaded::from(&read).unwrap();
    silent(
        "Debug",
        &format!("{loaded:?} {loaded:#?} {:?}", loaded.config),
    );
    silent("JSON", &serde_json::to_string(&loaded.config).unwrap());
    for (name, sink) in &loaded.config.sinks {
        silent("a sink", &format!("{sink:?}"));
        assert!(build::sink(name, sink, &loaded.config).is_ok());
    }
    let mut options = crate::postgres_fixture::options(&format!("postgres://u:{}@h/d", secret()));
    options.password = Some(secret().into());
    silent("options", &format!("{options:?}"));
    let source = outboxd::source::postgres::Postgres::new(options).unwrap();
    silent("a source", &format!("{source:?}"));
    let mut options = crate::sink_nats::bench::options(format!("nats://u:{}@h", secret()));
    silent(
        "a sink",
        &format!(
            "{:?}",
            outboxd::sink::nats::Nats::new(options.clone()).unwrap()
        ),
    );
    options.url = "nats://h".to_owned();
    options.token = Some(secret().into());
    silent("options", &format!("{options:?}"));
}

#[test]
fn no_secret_is_shown_by_a_refusal() {
    let base = "[databases.d]\nhost = \"h\"\n[sinks.s]\ntype = \"nats\"\nurl = \"nats://h\"\nstream = \"S\"\n\
                [routes.r]\nkinds = [\"*\"]\nsinks = [\"s\"]\n";
    let wrong = [
        NUMBER.to_owned(),
        format!("-{NUMBER}"),
        format!("{NUMBER}.5"),
        format!("[\"{MARK}\"]"),
        format!("[{NUMBER}]"),
        format!("{{ value = \"{MARK}\" }}"),
        format!("{{ {MARK} = 1 }}").replace(MARK, "x"),
        MARK.to_owned(),
        format!("\"{MARK}"),
        format!("\"{MARK}\" {MARK}"),
        format!("'{MARK}\n'"),
        format!("\"\"\"{MARK}"),
        format!("\"\\q{MARK}\""),
    ];
    let urls = [
        "%",
        "://%",
        "postgres://%",
        "nats://u:%@",
        "nats://%:x@h:y",
        "postgres://u:%@h:y/d",
        "http://u:%@h",
        "postgres://u@h/d?%",
        "postgres://u@h/d?password=%&x=y",
        "sqlite:///%?mode=%",
        "tls://u:%%zz@h",
        "nats://u:%/@h",
    ];
    let mut tried = 0;
    for (section, key) in [
        ("databases.d", "password"),
        ("databases.d", "url"),
        ("sinks.s", "password"),
        ("sinks.s", "token"),
        ("sinks.s", "url"),
    ] {
        let text = |value: &str| {
            let base = base.replace(&format!("{key} = \"nats://h\"\n"), "");
            base.replace(
                &format!("[{section}]\n"),
                &format!("[{section}]\n{key} = {value}\n"),
            )
        };
        let mut texts: Vec<String> = wrong.iter().map(|value| text(value)).collect();
        if key == "url" {
            let host = "host = \"h\"\n";
            texts.extend(
                urls.iter()
                    .map(|url| text(&format!("\"{}\"", url.replace('%', MARK))).replace(host, "")),
            );
        }
        for text in texts {
            let place = Workplace::new(&text);
            for args in [&["check"][..], &["config", "show", "--output", "json"]] {
                let ended = place.outboxd(args);
                assert_eq!(ended.code, 2, "{text}\n{ended:?}");
                silent(&text.replace(MARK, "…").replace(NUMBER, "…"), &both(&ended));
                tried += 1;
            }
        }
        let variable = format!(
            "OUTBOXD__{}__{}",
            section.replace('.', "__").to_uppercase(),
            key.to_uppercase()
        );
        for name in [
            variable.clone(),
            variable.replacen("__", "_", 1),
            format!("{variable}X"),
        ] {
            let place = Workplace::new(base).env(&name, &format!("nats://u:{MARK}@h:y"));
            silent(&name, &both(&place.outboxd(&["status"])));
        }
    }
    assert!(tried > 100, "{tried}");
}
