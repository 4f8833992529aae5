//! `outboxd run` as a process: what it delivers, says, serves and how it ends.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cli_bin::Workplace;
use crate::support::process::{Process, free_port};
use crate::support::{eventually, nats};

const SOON: Duration = Duration::from_secs(20);

/// One GET; the whole answer with its head.
pub async fn get(url: &str, path: &str) -> Result<String, String> {
    let address = url.strip_prefix("http://").unwrap();
    let words = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).await.map_err(words)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(words)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(words)?;
    Ok(answer)
}

/// The address that the service printed for port 0.
pub async fn url_of(service: &mut Process) -> String {
    eventually(SOON, "the service prints its address", || {
        let output = service.output();
        let line = output.lines().find(|line| line.starts_with("http://"));
        let url = line.map(str::to_owned).ok_or(output.clone());
        async move { url }
    })
    .await
}

pub async fn ready(url: &str) {
    eventually(SOON, "the service is ready", || async {
        let answer = get(url, "/readyz").await?;
        if answer.starts_with("HTTP/1.1 200") {
            Ok(())
        } else {
            Err(answer)
        }
    })
    .await;
}

#[test]
fn once_delivers_what_is_due_in_order_and_says_what_is_not() {
    let place = Workplace::sqlite_to_file("");
    place.outboxd(&["migrate"]).code(0);
    let line = |n: u32| {
        let key = n % 7;
        format!(
            "{{\"kind\":\"order.made\",\"ordering_key\":\"k{key}\",\"payload\":{{\"n\":{n}}}}}\n"
        )
    };
    let lines: String = (0..500).map(line).collect();
    place
        .outboxd_reading(&["publish", "--stdin"], &lines)
        .code(0);
    place
        .outboxd(&[
            "publish",
            "order.late",
            "--key",
            "late",
            "--payload",
            "1",
            "--delay",
            "1h",
        ])
        .code(0);

    let ended = place.outboxd(&["run", "--once"]).code(0);
    assert!(ended.stderr.contains("500 published"), "{ended:?}");
    assert!(ended.stderr.contains("1 keys wait"), "{ended:?}");
    let events = place.lines("events.jsonl");
    assert_eq!(events.len(), 500);
    let status = place
        .outboxd(&["status", "--output", "json"])
        .code(0)
        .json();
    assert_eq!(status["databases"][0]["backlog"], 1, "{status}");
    // Nothing is due any more: the second run has nothing to do and ends as well.
    place.outboxd(&["run", "--once"]).code(0);
    assert_eq!(place.lines("events.jsonl").len(), 500);
}

#[tokio::test]
async fn events_that_no_route_takes_stay_are_counted_and_shown() {
    let place = Workplace::sqlite_to_file("[http]\nlisten = \"127.0.0.1:0\"\n")
        .env("OUTBOXD__ROUTES__ALL__KINDS", "order.*");
    place.outboxd(&["migrate"]).code(0);
    for kind in [
        "order.made",
        "user.made",
        "user.\u{1b}[31mgone",
        "order.made",
    ] {
        place
            .outboxd(&["publish", kind, "--key", "k", "--payload", "1"])
            .code(0);
    }
    let ended = place.outboxd(&["run", "--once"]).code(0);
    let words = "events of kind `user.made` stay: no route takes them";
    assert!(ended.stderr.contains(words), "{ended:?}");
    assert_eq!(place.lines("events.jsonl").len(), 2, "the others go on");

    let mut service = place.start(&["run"]);
    let url = url_of(&mut service).await;
    eventually(SOON, "the status command shows them", || async {
        let status = place
            .outboxd(&["status", "--output", "json"])
            .code(0)
            .json();
        let database = &status["databases"][0];
        let wanted = serde_json::json!(["user.\u{1b}[31mgone", "user.made"]);
        (database["unrouted"] == wanted && database["backlog"] == 2)
            .then_some(())
            .ok_or(status.to_string())
    })
    .await;
    let shown = place.outboxd(&["status"]).code(0);
    assert!(shown.stdout.contains(words), "{shown:?}");
    assert!(!shown.stdout.contains('\u{1b}'), "{shown:?}");
    let metrics = get(&url, "/metrics").await.unwrap();
    let line = "event_outbox_unrouted_total{database=\"orders\"} 2";
    assert!(metrics.lines().any(|l| l == line), "{metrics}");
}

#[test]
fn once_ends_with_4_or_5_when_something_is_not_there() {
    let place = Workplace::new(&format!(
        "[databases.orders]\nurl = \"postgres://postgres@127.0.0.1:{}/x\"\n",
        free_port()
    ));
    place.outboxd(&["run", "--once"]).code(4);
    let place = Workplace::new(&format!(
        "[databases.orders]\nurl = \"sqlite://orders.db\"\n[sinks.events]\ntype = \"nats\"\nurl = \
         \"nats://127.0.0.1:{}\"\nstream = \"E\"\n[routes.all]\nkinds = [\"*\"]\nsinks = [\"events\"]\n",
        free_port()
    ));
    place.outboxd(&["migrate"]).code(0);
    let ended = place.outboxd(&["run", "--once"]).code(5);
    assert!(ended.stderr.contains("sink events: "), "{ended:?}");
}

#[test]
fn a_poison_event_is_set_aside_shown_put_back_and_dropped() {
    let place = Workplace::sqlite_to_file("");
    place.outboxd(&["migrate"]).code(0);
    let publish = |header: &str| {
        let args = [
            "publish",
            "order.made",
            "--key",
            "k",
            "--payload",
            "{\"a\":1}",
            "--header",
            header,
        ];
        place.outboxd(&args).code(0).stdout.trim().to_owned()
    };
    let poison = publish("Nats-Rollup=all");
    let good = publish("request_id=r1");
    let second = publish("Outbox-Kind=forged");
    place.outboxd(&["run", "--once"]).code(0);
    let delivered = place.lines("events.jsonl");
    assert_eq!(delivered.len(), 1, "{delivered:?}");
    assert!(delivered[0].to_string().contains(&good), "{delivered:?}");

    let list = place
        .outboxd(&["discarded", "list", "--output", "json"])
        .code(0)
        .json();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 2);
    let found = list
        .iter()
        .find(|event| event["id"] == poison.as_str())
        .unwrap();
    assert_eq!(found["reason"], "permanent", "{found}");
    assert_eq!(found["code"], "invalid_header", "{found}");
    let shown = place.outboxd(&["discarded", "show", &poison]).code(0);
    assert!(
        shown.stdout.contains("{\"a\":1}") && shown.stdout.contains("invalid_header"),
        "{shown:?}"
    );
    let status = place
        .outboxd(&["status", "--output", "json"])
        .code(0)
        .json();
    assert_eq!(status["feeds"][0]["discarded"], 2, "{status}");

    // More than one needs a word more, and nothing happens without it.
    let ended = place
        .outboxd(&["discarded", "requeue", "--cause", "permanent"])
        .code(2);
    assert!(ended.stderr.contains("--all"), "{ended:?}");
    let none = [
        "discarded",
        "requeue",
        "--cause",
        "crashed",
        "--output",
        "json",
    ];
    assert_eq!(place.outboxd(&none).code(0).json()["requeued"], 0);
    let wrong = "0199c1a0-0000-7000-8000-000000000000";
    let ended = place
        .outboxd(&["discarded", "drop", &poison, wrong])
        .code(1);
    assert!(ended.stderr.contains(wrong), "{ended:?}");

    let ended = place
        .outboxd(&[
            "discarded",
            "drop",
            &second,
            "--reason",
            "forged",
            "--output",
            "json",
        ])
        .code(0);
    assert_eq!(ended.json()["dropped"], 1);
    // One is left, so no --all is needed.
    let ended = place
        .outboxd(&["discarded", "requeue", "--kind", "order.*", "--force"])
        .code(0);
    assert_eq!(ended.stdout, "1 put back\n");
    let status = place
        .outboxd(&["status", "--output", "json"])
        .code(0)
        .json();
    assert_eq!(status["databases"][0]["backlog"], 1, "{status}");
    // It is as bad as before.
    place.outboxd(&["run", "--once"]).code(0);
    let list = place
        .outboxd(&["discarded", "list", "--output", "json"])
        .code(0)
        .json();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
}

#[tokio::test]
async fn the_service_delivers_shows_its_health_and_ends_in_order() {
    let place = Workplace::sqlite_to_file("[http]\nlisten = \"127.0.0.1:0\"\n");
    place.outboxd(&["migrate"]).code(0);
    let mut service = place.start(&["run"]);
    let url = url_of(&mut service).await;
    ready(&url).await;
    assert!(
        get(&url, "/livez")
            .await
            .unwrap()
            .starts_with("HTTP/1.1 200")
    );

    place
        .outboxd(&["publish", "order.made", "--key", "k", "--payload", "1"])
        .code(0);
    eventually(SOON, "the event is delivered", || async {
        match place.lines("events.jsonl").len() {
            1 => Ok(()),
            count => Err(format!("{count} lines")),
        }
    })
    .await;
    eventually(SOON, "the counter has counted", || async {
        let metrics = get(&url, "/metrics").await?;
        let line = "event_outbox_published_total{database=\"orders\",sink=\"log\"} 1";
        if metrics.lines().any(|l| l == line) {
            Ok(())
        } else {
            Err(metrics)
        }
    })
    .await;
    let metrics = get(&url, "/metrics").await.unwrap();
    for name in [
        "retried_total",
        "lease_lost_total",
        "enqueue_failed_total",
        "missed_total",
        "inversions_total",
    ] {
        assert!(
            metrics.contains(&format!("event_outbox_{name}{{")),
            "{name} in {metrics}"
        );
    }
    assert!(!metrics.contains("otel_scope"), "{metrics}");
    eventually(SOON, "the status command sees the instance", || async {
        let status = place
            .outboxd(&["status", "--output", "json"])
            .code(0)
            .json();
        let database = &status["databases"][0];
        if database["state"] == "active" && status["feeds"][0]["gate"] == "open" {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
    .await;

    service.signal("TERM");
    let ended = service.wait_async(SOON).await;
    let output = service.output();
    assert!(ended.success(), "{output}");
    assert!(
        output.contains("SIGTERM") && output.contains("acked="),
        "{output}"
    );
}

#[tokio::test]
async fn a_missing_outbox_is_waited_for_and_shown_as_the_reason() {
    let place = Workplace::sqlite_to_file("[http]\nlisten = \"127.0.0.1:0\"\n");
    let mut service = place.start(&["run"]);
    let url = url_of(&mut service).await;
    eventually(SOON, "readiness names the database", || async {
        let answer = get(&url, "/readyz").await?;
        let named = answer.contains("\"name\":\"orders\"") && answer.contains("migrate");
        if answer.starts_with("HTTP/1.1 503") && named {
            Ok(())
        } else {
            Err(answer)
        }
    })
    .await;
    assert!(
        get(&url, "/livez")
            .await
            .unwrap()
            .starts_with("HTTP/1.1 200")
    );
    place.outboxd(&["migrate"]).code(0);
    ready(&url).await;
    service.signal("INT");
    assert!(
        service.wait_async(SOON).await.success(),
        "{}",
        service.output()
    );
}

#[tokio::test]
async fn a_taken_port_is_told_at_once() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = format!("[http]\nlisten = \"{}\"\n", taken.local_addr().unwrap());
    let place = Workplace::sqlite_to_file(&listen);
    place.outboxd(&["migrate"]).code(0);
    let ended = place.outboxd(&["run"]).code(1);
    assert!(ended.stderr.contains("http.listen"), "{ended:?}");
}

#[tokio::test]
async fn log_lines_are_json_when_asked_and_obey_the_level() {
    let place =
        Workplace::sqlite_to_file("[http]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n");
    place.outboxd(&["migrate"]).code(0);
    let mut service = place.start(&["run"]);
    let url = url_of(&mut service).await;
    ready(&url).await;
    service.signal("TERM");
    assert!(service.wait_async(SOON).await.success());
    let output = service.output();
    let logged: Vec<&str> = output
        .lines()
        .filter(|l| !l.starts_with("http://"))
        .collect();
    assert!(!logged.is_empty());
    for line in logged {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        for key in ["timestamp", "level", "target", "fields"] {
            assert!(line.get(key).is_some(), "{key} in {line}");
        }
    }
    // The variable everybody knows goes before the file, and what is below the level is not said.
    let place = place.env("RUST_LOG", "error");
    let ended = place.outboxd(&["run", "--once"]).code(0);
    assert!(!ended.stderr.contains("\"INFO\""), "{ended:?}");
}

/// A service with an event handed to a broker that has stopped answering.
async fn stuck(broker: &mut nats::Server, more: &str) -> (Workplace, Process) {
    let place = Workplace::new(&format!(
        "[databases.orders]\nurl = \"sqlite://orders.db\"\n[sinks.events]\ntype = \"nats\"\nurl = \"{}\"\nstream \
         = \"EVENTS\"\ncreate_stream = true\npublish_timeout = \"12s\"\n[routes.all]\nkinds = [\"*\"]\nsinks = \
         [\"events\"]\n[http]\nlisten = \"127.0.0.1:0\"\n{more}",
        broker.url()
    ));
    place.outboxd(&["migrate"]).code(0);
    let mut service = place.start(&["run"]);
    let url = url_of(&mut service).await;
    let publish = || {
        place
            .outboxd(&["publish", "order.made", "--key", "k", "--payload", "1"])
            .code(0)
    };
    publish();
    // The gate opens with the first event at the latest, and the broker is frozen after that.
    eventually(SOON, "the first event is in the stream", || async {
        // The stream may not be there yet.
        let stream = broker.jetstream().await.get_stream("EVENTS").await;
        let stream = stream.map_err(|error| error.to_string())?;
        match stream.cached_info().state.messages {
            1 => Ok(()),
            count => Err(format!("{count} stored")),
        }
    })
    .await;
    ready(&url).await;
    broker.freeze();
    publish();
    eventually(SOON, "the second event is in flight", || async {
        let status = place
            .outboxd(&["status", "--output", "json"])
            .code(0)
            .json();
        let pending = status["databases"][0]["backlog"] == 1;
        if pending {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
    .await;
    service.signal("TERM");
    eventually(SOON, "the shutdown has begun", || {
        let output = service.output();
        async move {
            output
                .contains("SIGTERM: shutting down")
                .then_some(())
                .ok_or(output)
        }
    })
    .await;
    (place, service)
}

#[tokio::test]
async fn a_second_signal_ends_at_once_with_1() {
    let mut broker = nats::Server::start().await;
    let (_place, mut service) = stuck(&mut broker, "").await;
    service.signal("INT");
    let ended = service.wait_async(Duration::from_secs(5)).await;
    assert_eq!(ended.code(), Some(1), "{}", service.output());
    assert!(
        service.output().contains("SIGINT again"),
        "{}",
        service.output()
    );
    broker.thaw();
}

#[tokio::test]
async fn the_grace_bounds_the_wait_for_a_broker_that_does_not_answer() {
    let mut broker = nats::Server::start().await;
    let (_place, mut service) = stuck(&mut broker, "[shutdown]\ngrace = \"1s\"\n").await;
    // Less than the publish timeout: it is the grace that ended the wait.
    service.wait_async(Duration::from_secs(9)).await;
    assert!(
        service.output().contains("unknown=1"),
        "{}",
        service.output()
    );
    broker.thaw();
}
