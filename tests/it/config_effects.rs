//! Settings whose effect nothing else shows, from the file to what happens.

use std::time::Duration;

use crate::cli_bin::Workplace;
use crate::support::fake_nats::Server as FakeNats;
use crate::support::process::Process;
use crate::support::roles::Role;
use crate::support::{eventually, nats, postgres};

const SOON: Duration = Duration::from_secs(30);

/// From an SQLite file to this broker, all kinds to stream EVT.
fn place(broker: &str, sink: &str, more: &str) -> Workplace {
    let place = Workplace::new(&format!(
        "[databases.orders]\nurl = \"sqlite://orders.db\"\n[sinks.events]\ntype = \"nats\"\nurl = \"{broker}\"\n\
         stream = \"EVT\"\nsubject = \"evt.{{kind}}\"\n{sink}\n{more}"
    ));
    place.outboxd(&["migrate"]).code(0);
    place
}

const ROUTE: &str = "[routes.all]\nkinds = [\"*\"]\nsinks = [\"events\"]\n";

fn publish(place: &Workplace, kind: &str, keys: std::ops::Range<u32>, bytes: usize) {
    let body = "x".repeat(bytes);
    let line = |key| {
        format!("{{\"kind\":\"{kind}\",\"ordering_key\":\"k{key}\",\"payload\":\"{body}\"}}\n")
    };
    let lines: String = keys.map(line).collect();
    place
        .outboxd_reading(&["publish", "--stdin"], &lines)
        .code(0);
}

/// How many events are out at a broker that takes them and never answers.
async fn out_at_once(sink: &str, bytes: usize) -> usize {
    let broker = FakeNats::start().await;
    broker.on(|_| Some(Vec::new()));
    let place = place(
        &broker.url(),
        &format!("publish_timeout = \"12s\"\n{sink}"),
        ROUTE,
    );
    publish(&place, "order.made", 0..20, bytes);
    let _service = place.start(&["run"]);
    eventually(SOON, "events are out", || async {
        match broker.published().len() {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    // What is not sent in this time is not sent: an unanswered event blocks the others for 12 s.
    tokio::time::sleep(Duration::from_secs(2)).await;
    broker.published().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn max_in_flight_bounds_the_events_that_are_out() {
    assert_eq!(out_at_once("max_in_flight = 3", 10).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn max_in_flight_bytes_bounds_their_bytes() {
    let out = out_at_once("max_in_flight_bytes = \"5KiB\"", 1_000).await;
    assert!((3..=5).contains(&out), "{out} events of about 1 kB are out");
    assert_eq!(
        out_at_once("max_in_flight_bytes = \"100B\"", 1_000).await,
        1
    );
    assert_eq!(out_at_once("", 1_000).await, 20);
}

/// A service whose broker refuses every event, and when the broker heard of the key `k0`.
struct Refusing {
    place: Workplace,
    heard: std::sync::Arc<std::sync::Mutex<Vec<std::time::Instant>>>,
    _broker: FakeNats,
    _service: Process,
}

async fn refusing(settings: &str) -> Refusing {
    let broker = FakeNats::start().await;
    let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let list = std::sync::Arc::clone(&heard);
    broker.on(move |message| {
        if message.subject != "evt.bad" {
            return None;
        }
        list.lock().unwrap().push(std::time::Instant::now());
        let refusal = r#"{"error":{"code":400,"err_code":10999,"description":"no"}}"#;
        Some(vec![refusal.to_owned()])
    });
    let place = place(&broker.url(), "", settings);
    publish(&place, "bad", 0..1, 10);
    publish(&place, "good", 0..1, 10);
    let service = place.start(&["run"]);
    Refusing {
        place,
        heard,
        _broker: broker,
        _service: service,
    }
}

impl Refusing {
    async fn discarded(&self) -> serde_json::Value {
        eventually(SOON, "the event is set aside", || async {
            let args = ["discarded", "list", "--output", "json"];
            let list = self.place.outboxd(&args).code(0).json();
            match list.as_array().map(Vec::len) {
                Some(1) => Ok(list[0].clone()),
                _ => Err(list.to_string()),
            }
        })
        .await
    }

    fn pauses(&self) -> Vec<Duration> {
        let heard = self.heard.lock().unwrap();
        heard.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn backlog(&self) -> serde_json::Value {
        let args = ["status", "--output", "json"];
        self.place.outboxd(&args).code(0).json()["databases"][0]["backlog"].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_retry_rule_sets_number_and_pauses_of_attempts() {
    let settings = "[retry]\nmax_attempts = 5\nbase = \"300ms\"\nmax = \"600ms\"\n";
    let refusing = refusing(&format!("{ROUTE}{settings}")).await;
    let event = refusing.discarded().await;
    assert_eq!(event["reason"], "retry_budget", "{event}");
    assert_eq!(event["attempts"], 5, "{event}");
    let pauses = refusing.pauses();
    assert_eq!(pauses.len(), 4, "{pauses:?}");
    let least = [300, 600, 600, 600].map(Duration::from_millis);
    for (pause, least) in pauses.iter().zip(least) {
        assert!(*pause >= least, "{pauses:?}");
    }
    // `max` holds: without it the fourth pause would be 2.4 s at least.
    assert!(pauses[3] < Duration::from_millis(2_300), "{pauses:?}");
    eventually(
        SOON,
        "the event behind it in the same key goes on",
        || async {
            match refusing.backlog() {
                empty if empty == 0 => Ok(()),
                other => Err(other.to_string()),
            }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_has_a_retry_rule_of_its_own() {
    let routes = "[routes.good]\nkinds = [\"good\"]\nsinks = [\"events\"]\n\
                  [routes.bad]\nkinds = [\"bad\"]\nsinks = [\"events\"]\n\
                  retry = { max_attempts = 3, base = \"200ms\", max = \"250ms\" }\n";
    let refusing = refusing(routes).await;
    let event = refusing.discarded().await;
    assert_eq!(event["attempts"], 3, "{event}");
    let pauses = refusing.pauses();
    // The general rule would pause for 2 s and more.
    let least = [200, 250].map(Duration::from_millis);
    for (pause, least) in pauses.iter().zip(least) {
        assert!(
            *pause >= least && *pause < Duration::from_millis(1_900),
            "{pauses:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_event_of_a_blocking_route_stays_at_the_head_of_its_key() {
    let settings = "on_exhausted = \"block\"\nretry = { max_attempts = 2, base = \"100ms\", max = \"100ms\" }\n";
    let refusing = refusing(&format!("{ROUTE}{settings}")).await;
    eventually(SOON, "its attempts are used up", || async {
        match refusing.pauses().len() {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    // That nothing more happens needs time to show: ten pauses.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(refusing.pauses().len(), 1);
    assert_eq!(refusing.backlog(), 2, "the event, and the one behind it");
    let args = ["discarded", "list", "--output", "json"];
    let list = refusing.place.outboxd(&args).code(0).json();
    assert_eq!(list, serde_json::json!([]));
}

/// A postgres outbox made and looked at by commands, with these settings.
async fn postgres_place(settings: &str, more: &str) -> (postgres::Database, Workplace) {
    let database = postgres::server().await.database().await;
    let place = Workplace::new(&format!(
        "[databases.orders]\nurl = \"{}\"\n{settings}\n[sinks.log]\ntype = \"file\"\npath = \"events.jsonl\"\n\
         [routes.all]\nkinds = [\"*\"]\nsinks = [\"log\"]\n{more}",
        database.url_of(Role::Owner)
    ));
    place.outboxd(&["migrate"]).code(0);
    (database, place)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_shards_is_that_of_the_first_migration() {
    let (database, place) = postgres_place("", "[lease]\nshards = 3\n").await;
    let sql = "select shards::text from outbox.settings";
    assert_eq!(crate::postgres_fixture::text(&database, sql).await, "3");
    place.outboxd(&["check"]).code(0);
    let place = place.env("OUTBOXD__LEASE__SHARDS", "4");
    let ended = place.outboxd(&["check"]).code(3);
    assert!(ended.stdout.contains("has 3 shards"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_wake_poll_nothing_listens() {
    let listening = "select count(*)::text from pg_stat_activity where datname = current_database() \
                     and application_name = 'outboxd' and query ilike 'listen%'";
    let (polled, polling) = postgres_place("wake = \"poll\"", "").await;
    let (heard, listens) = postgres_place("wake = \"auto\"", "").await;
    let _services = [polling.start(&["run"]), listens.start(&["run"])];
    eventually(SOON, "the other one listens", || async {
        let count = crate::postgres_fixture::text(&heard, listening).await;
        if count == "1" { Ok(()) } else { Err(count) }
    })
    .await;
    // That nothing listens needs time to show: the other one had less.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let count = crate::postgres_fixture::text(&polled, listening).await;
    assert_eq!(count, "0");
    let args = ["publish", "a", "--payload", "1"];
    polling.outboxd(&args).code(0);
    eventually(SOON, "the event is found all the same", || async {
        match polling.lines("events.jsonl").len() {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
}

/// A row far behind everything read is what no poll looks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_behind_the_cursor_is_found_by_the_next_sweep() {
    let insert = "insert into outbox.event (seq, kind, payload) overriding system value values (-5, 'a', '1')";
    for (every, found) in [("300ms", true), ("1h", false)] {
        let (database, place) = postgres_place(&format!("sweep_every = \"{every}\""), "").await;
        let service = place.start(&["run"]);
        place.outboxd(&["publish", "a", "--payload", "1"]).code(0);
        eventually(SOON, "the event is delivered", || async {
            match place.lines("events.jsonl").len() {
                1 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
        // In its first moments a relay reads from the lowest row, more than once; those have to pass.
        tokio::time::sleep(Duration::from_secs(3)).await;
        database.execute(insert).await;
        if found {
            eventually(SOON, "the row is found", || async {
                match place.lines("events.jsonl").len() {
                    2 => Ok(()),
                    other => Err(other.to_string()),
                }
            })
            .await;
        } else {
            // That nothing finds it needs time to show: ten sweeps of the other kind.
            tokio::time::sleep(Duration::from_secs(3)).await;
            let lines = place.lines("events.jsonl");
            assert_eq!(lines.len(), 1, "{lines:?} {}", service.output());
        }
    }
}

/// With a longer lease a successor comes later: the stream has to remember longer than it is used to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dedupe_window_shorter_than_an_outcome_may_stay_unknown_is_told() {
    let broker = nats::Server::start().await;
    let stream = |seconds| async_nats::jetstream::stream::Config {
        name: "EVT".into(),
        subjects: vec!["evt.>".into()],
        duplicate_window: Duration::from_secs(seconds),
        ..Default::default()
    };
    let context = broker.jetstream().await;
    context.create_stream(stream(120)).await.unwrap();
    let place = place(&broker.url(), "", ROUTE);
    place.outboxd(&["check"]).code(0);
    let place = place.env("OUTBOXD__LEASE__TTL", "3m");
    let ended = place.outboxd(&["check"]).code(3);
    // 3 min, 2 s for the successor, 4 s of publish_timeout, 6.25 s between two attempts.
    for words in ["remembers message ids for 120s", "193s later"] {
        assert!(ended.stdout.contains(words), "{words} in {ended:?}");
    }
    publish(&place, "order.made", 0..3, 10);
    let ended = place.outboxd(&["run", "--once"]).code(0);
    let told = ended.stderr.matches("remembers message ids").count();
    assert_eq!(told, 1, "{ended:?}");
    assert!(ended.stderr.contains("WARN"), "{ended:?}");
    context.update_stream(stream(193)).await.unwrap();
    place.outboxd(&["check"]).code(0);

    // A stream of our own making is right from the start.
    context.delete_stream("EVT").await.unwrap();
    let place = place.env("OUTBOXD__SINKS__EVENTS__CREATE_STREAM", "true");
    publish(&place, "order.made", 0..1, 10);
    place.outboxd(&["run", "--once"]).code(0);
    place.outboxd(&["check"]).code(0);
}
