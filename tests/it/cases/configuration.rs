//! Configuration: what was set and had no effect, and what took effect without being set.

use std::time::Duration;

use base64::Engine as _;
use serde_json::json;

use crate::cli_bin::Workplace;
use crate::cli_run::{get, url_of};
use crate::postgres_tls::{AWAY, Bench as Encrypted};
use crate::support::certificates::Authority;
use crate::support::{eventually, nats, postgres};

const SOON: Duration = Duration::from_secs(30);

/// Every variable either takes effect or is refused with the key that was meant; `config show` tells which.
#[tokio::test]
async fn c79_variables_take_effect_and_misspelt_ones_are_refused() {
    let place = Workplace::new(
        "[sinks.log]\ntype = \"file\"\npath = \"one.jsonl\"\n[sinks.more]\ntype = \"file\"\npath = \"two.jsonl\"\n\
         [routes.all]\nkinds = [\"nothing\"]\nsinks = [\"log\"]\n",
    )
    .env("OUTBOXD__DATABASES__ORDERS__URL", "sqlite://orders.db")
    .env("OUTBOXD__RETRY__MAX_ATTEMPTS", "7")
    .env("OUTBOXD__ROUTES__ALL__KINDS", "order.*,cart.made")
    .env("OUTBOXD__ROUTES__ALL__SINKS", "log, more");
    place.outboxd(&["migrate"]).code(0);
    for kind in ["order.made", "cart.made", "cart.lost"] {
        place.outboxd(&["publish", kind, "--payload", "1"]).code(0);
    }
    place.outboxd(&["run", "--once"]).code(0);
    for file in ["one.jsonl", "two.jsonl"] {
        assert_eq!(place.lines(file).len(), 2, "{file}");
    }
    let shown = place
        .outboxd(&["config", "show", "--output", "json"])
        .code(0)
        .json();
    for entry in [
        json!({ "key": "retry.max_attempts", "value": 7,
            "origin": "environment variable OUTBOXD__RETRY__MAX_ATTEMPTS" }),
        json!({ "key": "routes.all.sinks", "value": ["log", "more"],
            "origin": "environment variable OUTBOXD__ROUTES__ALL__SINKS" }),
        json!({ "key": "sinks.more.path", "value": "two.jsonl", "origin": "outboxd.toml:6" }),
        json!({ "key": "retry.base", "value": "2s", "origin": "default" }),
        json!({ "key": "databases.orders.url", "value": "[REDACTED]",
            "origin": "environment variable OUTBOXD__DATABASES__ORDERS__URL" }),
    ] {
        assert!(
            shown.as_array().unwrap().contains(&entry),
            "{entry} in {shown:#}"
        );
    }
    for (name, right) in [
        ("OUTBOXD__RETRY__MAXATTEMPTS", "`retry.max_attempts`"),
        ("OUTBOXD_RETRY_MAX_ATTEMPTS", "OUTBOXD__RETRY__MAX_ATTEMPTS"),
        ("OUTBOXD__DATABASE__ORDERS__URL", "`databases`"),
    ] {
        let place = Workplace::sqlite_to_file("").env(name, "9");
        for command in ["run", "check", "status"] {
            let ended = place.outboxd(&[command]).code(2);
            assert!(
                ended.stderr.contains(name) && ended.stderr.contains(right),
                "{ended:?}"
            );
        }
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A password is never part of a URL unless somebody puts it there, and then percent-encoded.
#[tokio::test]
async fn c80_a_password_may_have_any_characters() {
    let random: Vec<u8> = (0..4)
        .flat_map(|_| *uuid::Uuid::new_v4().as_bytes())
        .collect();
    let random = base64::engine::general_purpose::STANDARD.encode(random);
    for (n, password) in ["p@ss/w?rd#%:&", &random, "quote'\"$ {x} é"]
        .into_iter()
        .enumerate()
    {
        let database = postgres::server().await.database().await;
        let role = format!("special_{n}_{}", database.name);
        let quoted = password.replace('\'', "''");
        let sql = format!("create role {role} superuser login password '{quoted}'");
        database.execute_as_superuser(&sql).await;
        let port = database.url.rsplit([':', '/']).nth(1).unwrap();
        let name = &database.name;
        let fields = format!(
            "host = \"127.0.0.1\"\nport = {port}\nuser = \"{role}\"\ndbname = \"{name}\"\n"
        );
        let section = |lines: &str| Workplace::new(&format!("[databases.orders]\n{lines}"));
        let by_field = section(&format!("{fields}password = {}\n", json!(password)));
        by_field.outboxd(&["migrate"]).code(0);
        let by_file = section(&format!("{fields}password_file = \"pw\"\n"));
        std::fs::write(by_file.path("pw"), format!("{password}\n")).unwrap();
        let by_variable = section(&fields).env("OUTBOXD__DATABASES__ORDERS__PASSWORD", password);
        let url = format!(
            "postgres://{role}:{}@127.0.0.1:{port}/{name}",
            percent_encoded(password)
        );
        let by_url = section(&format!("url = \"{url}\"\n"));
        let by_url_file = section("url_file = \"url\"\n");
        std::fs::write(by_url_file.path("url"), format!("{url}\n")).unwrap();
        for place in [&by_field, &by_file, &by_variable, &by_url, &by_url_file] {
            place.outboxd(&["publish", "a", "--payload", "1"]).code(0);
        }
    }
    // Written down as it is, it makes no URL, and no part of it is repeated.
    let bad = Workplace::empty().env(
        "OUTBOXD__DATABASES__ORDERS__URL",
        "postgres://u:p@ss/w?rd#%:&@h/d",
    );
    let ended = bad.outboxd(&["status"]).code(2);
    assert!(
        ended.stderr.contains("invalid url for database orders"),
        "{ended:?}"
    );
    for part in ["p@ss", "ss/w", "w?rd", "rd#"] {
        assert!(!ended.stderr.contains(part), "{part} in {ended:?}");
    }
}

/// There is no second way out: a broker that refuses the login means not ready, and the rows stay as they are.
#[tokio::test]
async fn c82_a_broker_that_refuses_the_login_stops_the_sink_and_nothing_else_takes_its_place() {
    let password = "p/a@s#s%w?:&";
    let users =
        format!("authorization {{ users: [ {{ user: \"us/er\", password: \"{password}\" }} ] }}");
    let broker = nats::Server::start_with(&users).await;
    let with = |url: &str, login: &str| {
        let place = Workplace::new(&format!(
            "[databases.orders]\nurl = \"sqlite://orders.db\"\n[sinks.events]\ntype = \"nats\"\nurl = \"{url}\"\n\
             {login}stream = \"EVENTS\"\ncreate_stream = true\n[routes.all]\nkinds = [\"*\"]\nsinks = [\"events\"]\n\
             [http]\nlisten = \"127.0.0.1:0\"\n"
        ));
        place.outboxd(&["migrate"]).code(0);
        place
            .outboxd(&["publish", "order.made", "--payload", "1"])
            .code(0);
        place
    };
    let by_fields = with(
        &broker.url(),
        &format!("user = \"us/er\"\npassword = \"{password}\"\n"),
    );
    by_fields.outboxd(&["run", "--once"]).code(0);
    let login = format!(
        "{}:{}@",
        percent_encoded("us/er"),
        percent_encoded(password)
    );
    let by_url = with(&broker.url().replace("://", &format!("://{login}")), "");
    by_url.outboxd(&["run", "--once"]).code(0);

    for login in [
        "user = \"us/er\"\npassword = \"wr0ng\"\n",
        "token = \"wr0ng\"\n",
        "",
    ] {
        let place = with(&broker.url(), login);
        let ended = place.outboxd(&["run", "--once"]).code(5);
        assert!(
            ended.stderr.contains("refused the credentials"),
            "{ended:?}"
        );
        assert!(!ended.stderr.contains("wr0ng"), "{ended:?}");
        let mut service = place.start(&["run"]);
        let url = url_of(&mut service).await;
        eventually(SOON, "readiness names the sink and the reason", || async {
            let answer = get(&url, "/readyz").await?;
            let named = answer.contains("\"name\":\"events\"")
                && answer.contains("refused the credentials");
            match answer.starts_with("HTTP/1.1 503") && named {
                true => Ok(()),
                false => Err(answer),
            }
        })
        .await;
        let status = place
            .outboxd(&["status", "--output", "json"])
            .code(0)
            .json();
        assert_eq!(status["databases"][0]["backlog"], 1, "{status}");
        assert_eq!(status["feeds"][0]["discarded"], 0, "{status}");
        assert!(!service.output().contains("wr0ng"), "{}", service.output());
    }
}

/// Encryption that was asked for, or that a host off the loopback gets without asking, is there or there is no
/// connection: against a server without it, with an unknown authority, and with another name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c83_encryption_is_there_or_there_is_no_connection() {
    let authority = Authority::new();
    let ca = authority.ca().display().to_string();
    let ca = |yes: bool| {
        if yes {
            format!("ca_file = \"{ca}\"\n")
        } else {
            String::new()
        }
    };
    let right = authority.server(&[AWAY]);
    let other = authority.server(&["elsewhere.example"]);

    let plain = Encrypted::plain().await;
    let sound = Encrypted::encrypted(&right, &authority).await;
    let elsewhere = Encrypted::encrypted(&other, &authority).await;
    for (bench, tls, with_ca, refusal) in [
        (&plain, "", false, "offers no TLS"),
        (&plain, "tls = \"require\"\n", false, "offers no TLS"),
        (&plain, "tls = \"verify-full\"\n", true, "offers no TLS"),
        (&sound, "", false, "UnknownIssuer"),
        (&sound, "tls = \"verify-full\"\n", false, "UnknownIssuer"),
        (&elsewhere, "", true, "not valid for name"),
        (&elsewhere, "tls = \"verify-ca\"\n", true, ""),
        (&sound, "", true, ""),
    ] {
        let place = Workplace::new(&format!(
            "[databases.orders]\n{}{tls}{}",
            bench.fields(),
            ca(with_ca)
        ))
        // What the driver takes from the environment changes nothing of it.
        .env("PGSSLMODE", "disable")
        .env("PGSSLROOTCERT", &authority.ca().display().to_string());
        let ended = place.outboxd(&["migrate"]);
        assert_eq!(
            ended.code == 0,
            refusal.is_empty(),
            "{tls} {with_ca}: {ended:?}"
        );
        assert!(ended.stderr.contains(refusal), "{tls} {with_ca}: {ended:?}");
        assert!(
            !bench.wire.heard(crate::postgres_tls::PASSWORD),
            "{tls} {with_ca}"
        );
    }

    let server = |pair: &crate::support::certificates::Pair| {
        let (certificate, key) = (pair.certificate.display(), pair.key.display());
        let tls = format!("tls {{ cert_file: \"{certificate}\", key_file: \"{key}\" }}");
        async move { nats::Server::start_with(&tls).await }
    };
    let (plain, sound, elsewhere) = (
        nats::Server::start().await,
        server(&right).await,
        server(&other).await,
    );
    for (broker, tls, with_ca, refusal) in [
        (&plain, "", false, "offers no TLS"),
        (&plain, "tls = true\n", true, "offers no TLS"),
        (&plain, "tls = false\n", false, ""),
        (&sound, "", false, "UnknownIssuer"),
        (&elsewhere, "tls = true\n", true, "not valid for name"),
        (&sound, "", true, ""),
    ] {
        let place = Workplace::new(&format!(
            "[databases.orders]\nurl = \"sqlite://orders.db\"\n[sinks.events]\ntype = \"nats\"\nstream = \"EVENTS\"\n\
             create_stream = true\nurl = \"nats://{AWAY}:{}\"\n{tls}{}[routes.all]\nkinds = [\"*\"]\n\
             sinks = [\"events\"]\n",
            broker.port(),
            ca(with_ca)
        ));
        place.outboxd(&["migrate"]).code(0);
        let ended = place
            .outboxd(&["run", "--once"])
            .code(if refusal.is_empty() { 0 } else { 5 });
        assert!(ended.stderr.contains(refusal), "{tls} {with_ca}: {ended:?}");
    }
}
