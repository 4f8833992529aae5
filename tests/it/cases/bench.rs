//! A PostgreSQL database, a nats-server with stream `EVT`, and relays between them with short times.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use futures_util::StreamExt;
use outboxd::metrics::Metrics;
use outboxd::relay::{self, DatabaseOptions, Relay, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::nats::{self as nats_sink, Nats};
use outboxd::source::postgres::{self as postgres_source, Postgres};
use outboxd::status::DatabaseState;
use outboxd::verify::Report;
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::time::Instant;

use crate::postgres_fixture;
use crate::support::postgres::Database;
use crate::support::roles::Role;
use crate::support::{eventually, nats, postgres, verified};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);
pub const TTL: Duration = Duration::from_secs(3);
pub const PUBLISH_TIMEOUT: Duration = Duration::from_millis(900);
pub const GRACE: Duration = Duration::from_secs(2);

/// A database and a broker.
pub struct Place {
    pub database: Database,
    pub nats: nats::Server,
    pub heard: Heard,
}

impl Place {
    /// With a stream that takes `evt.>`.
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// With what `change` makes of the stream's configuration.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let database = postgres::server().await.database().await;
        migrate(&database).await;
        let nats = nats::Server::start().await;
        let mut config = stream();
        change(&mut config);
        let subject = config.subjects[0].clone();
        create(&nats, config).await;
        let heard = Heard::of(&nats, subject).await;
        Self {
            database,
            nats,
            heard,
        }
    }

    /// With a single shard, so that one instance owns everything and the next one stands by.
    pub async fn one_shard(self) -> Self {
        self.database
            .execute(
                "update outbox.settings set shards = 1; delete from outbox.lease where shard > 0",
            )
            .await;
        self
    }

    /// A relay from this database to this broker.
    pub fn setup(&self) -> Setup {
        Setup::new(&self.database.url, self.nats.url())
    }

    /// Started as it is, and active.
    pub async fn relay(&self) -> Running {
        let running = self.setup().start().await;
        running.is(DatabaseState::Active).await;
        running
    }

    /// Inserts rows of one key, each in a transaction of its own.
    pub async fn insert(&self, key: &str, numbers: RangeInclusive<u32>) {
        insert(&self.database, key, numbers).await;
    }

    /// Inserts row 1 of each of `keys` keys `k1`, `k2` and so on, in one transaction.
    pub async fn insert_keys(&self, keys: u32) {
        self.database
            .write(&format!(
                "insert into outbox.event (kind, ordering_key, payload)
                 select 'k' || k, 'k' || k, json_build_object('n', 1) from generate_series(1, {keys}) as k"
            ))
            .await;
    }

    /// Waits until the stream holds `count` messages, and gives them.
    pub async fn stored(&self, count: usize) -> Vec<nats::Stored> {
        stored(&self.nats, count).await
    }

    /// Waits until the outbox is empty: every event is settled.
    pub async fn emptied(&self) {
        emptied(&self.database).await;
    }

    /// What the database delivered and what the stream holds fit; looked at with a viewer's rights.
    pub async fn verified(&self) {
        verified::assert_fits(&self.report().await);
    }

    /// What `verify` finds.
    pub async fn report(&self) -> Report {
        let viewer = postgres_fixture::source_of(&self.database, Role::Viewer, |_| {});
        let sink = nats_sink::Options::new("events", self.nats.url(), "EVT", "evt.{kind}");
        verified::report(&viewer, "events", &Nats::new(sink).unwrap()).await
    }

    pub async fn number(&self, sql: &str) -> i64 {
        postgres_fixture::number(&self.database, sql).await
    }

    pub async fn text(&self, sql: &str) -> String {
        postgres_fixture::text(&self.database, sql).await
    }

    /// A configuration file for the binary: this database and broker by way of these addresses.
    pub fn config(&self, database: &str, broker: &str, more: &str) -> String {
        format!(
            "[databases.orders]\nurl = \"{database}\"\npoll_max = \"200ms\"\n\
             [sinks.events]\ntype = \"nats\"\nurl = \"{broker}\"\nstream = \"EVT\"\n\
             subject = \"evt.{{kind}}\"\npublish_timeout = \"900ms\"\n\
             [routes.all]\nkinds = [\"*\"]\nsinks = [\"events\"]\n\
             [lease]\nttl = \"3s\"\n[shutdown]\ngrace = \"2s\"\n\
             [http]\nlisten = \"127.0.0.1:0\"\n{more}"
        )
    }
}

/// Stream `EVT`, as the relay itself would create it: with ordered batches.
pub fn stream() -> Config {
    Config {
        name: "EVT".to_owned(),
        subjects: vec!["evt.>".to_owned()],
        allow_batch_publish: true,
        ..Config::default()
    }
}

pub async fn create(server: &nats::Server, config: Config) {
    let jetstream = server.jetstream().await;
    jetstream.create_stream(config).await.unwrap();
}

pub async fn migrate(database: &Database) {
    postgres_fixture::migrate(database).await;
}

pub async fn insert(database: &Database, key: &str, numbers: RangeInclusive<u32>) {
    let mut connection = database.writer().await;
    for n in numbers {
        insert_on(&mut connection, key, n).await;
    }
}

/// One row, in whatever transaction the connection is.
pub async fn insert_on(connection: &mut PgConnection, key: &str, n: u32) {
    sqlx::query(
        "insert into outbox.event (kind, ordering_key, payload) values ($1, $1, json_build_object('n', $2::int))",
    )
    .bind(key)
    .bind(i32::try_from(n).unwrap())
    .execute(connection)
    .await
    .unwrap();
}

pub async fn execute(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

pub async fn stored(server: &nats::Server, count: usize) -> Vec<nats::Stored> {
    let jetstream = server.jetstream().await;
    eventually(LONG, "the stream holds the events", || async {
        let mut stream = jetstream
            .get_stream("EVT")
            .await
            .map_err(|e| e.to_string())?;
        let info = stream.info().await.map_err(|e| e.to_string())?;
        let held = info.state.messages;
        (held >= count as u64)
            .then_some(())
            .ok_or(format!("{held} of {count}"))
    })
    .await;
    server.stored("EVT").await
}

pub async fn emptied(database: &Database) {
    let mut connection = database.connect().await;
    let connection = tokio::sync::Mutex::new(&mut connection);
    eventually(LONG, "the outbox is empty", || async {
        let sql = "select count(*) from outbox.event";
        match postgres_fixture::number_on(*connection.lock().await, sql).await {
            0 => Ok(()),
            left => Err(format!("{left} rows are left")),
        }
    })
    .await;
}

/// Fails as soon as `check` does within `span`: for what must not happen.
pub async fn holds<F>(span: Duration, mut check: impl FnMut() -> F)
where
    F: Future<Output = Result<(), String>>,
{
    let end = Instant::now() + span;
    while Instant::now() < end {
        if let Err(seen) = check().await {
            panic!("{seen}");
        }
        // The pace of the sampling: the condition has to hold all the time.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Numbers per key, each message id once, in the order in which they came.
pub fn by_key<'a>(
    messages: impl IntoIterator<Item = (&'a async_nats::HeaderMap, &'a bytes::Bytes)>,
) -> BTreeMap<String, Vec<u64>> {
    let mut seen = std::collections::HashSet::new();
    let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (headers, payload) in messages {
        let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
        if seen.insert(header("Nats-Msg-Id").unwrap()) {
            let key = header("Outbox-Key").unwrap_or_default();
            keys.entry(key).or_default().push(number_in(payload));
        }
    }
    keys
}

/// The numbers of one key in a stream.
pub fn numbers(stored: &[nats::Stored], key: &str) -> Vec<u64> {
    let all = by_key(stored.iter().map(|m| (&m.headers, &m.payload)));
    all.get(key).cloned().unwrap_or_default()
}

pub fn number_in(payload: &[u8]) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(payload).unwrap();
    value["n"].as_u64().unwrap()
}

/// Everything that was published to the stream, copies that it dropped included.
///
/// Only to the stream's own subject: a listener would count as somebody who takes what no stream takes.
#[derive(Clone)]
pub struct Heard(Arc<Mutex<Vec<(Instant, async_nats::Message)>>>);

impl Heard {
    pub async fn on(server: &nats::Server) -> Self {
        Self::of(server, "evt.>".to_owned()).await
    }

    async fn of(server: &nats::Server, subject: String) -> Self {
        let client = server.client().await;
        let mut messages = client.subscribe(subject).await.unwrap();
        client.flush().await.unwrap();
        let list = Arc::new(Mutex::new(Vec::new()));
        let heard = Self(Arc::clone(&list));
        tokio::spawn(async move {
            // The client lives as long as somebody may read what it hears.
            let _client = client;
            while let Some(message) = messages.next().await {
                // A word that ends a batch has no headers, and is no event.
                if message.headers.is_none() {
                    continue;
                }
                list.lock().unwrap().push((Instant::now(), message));
            }
        });
        heard
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Message ids, in the order in which they came.
    pub fn ids(&self) -> Vec<String> {
        let list = self.0.lock().unwrap();
        let id = |message: &async_nats::Message| {
            let headers = message.headers.as_ref().unwrap();
            headers.get("Nats-Msg-Id").unwrap().as_str().to_owned()
        };
        list.iter().map(|(_, message)| id(message)).collect()
    }

    /// When the row of kind `good` with this key and number was first heard, whatever other rows hold.
    pub fn at_good(&self, key: &str, n: u32) -> Option<Instant> {
        let list = self.0.lock().unwrap();
        let found = list.iter().find(|(_, message)| {
            let headers = message.headers.as_ref().unwrap();
            let is =
                |name: &str, value: &str| headers.get(name).is_some_and(|h| h.as_str() == value);
            is("Outbox-Kind", "good")
                && is("Outbox-Key", key)
                && number_in(&message.payload) == u64::from(n)
        });
        found.map(|(at, _)| *at)
    }

    /// Numbers per key, each message id once.
    pub fn first_of_each(&self) -> BTreeMap<String, Vec<u64>> {
        let list = self.0.lock().unwrap();
        let message = |(_, message): &(_, async_nats::Message)| {
            (message.headers.clone().unwrap(), message.payload.clone())
        };
        let all: Vec<_> = list.iter().map(message).collect();
        by_key(all.iter().map(|(headers, payload)| (headers, payload)))
    }

    /// When key and number were first heard.
    pub fn at(&self, key: &str, n: u64) -> Option<Instant> {
        let list = self.0.lock().unwrap();
        let found = list.iter().find(|(_, message)| {
            let headers = message.headers.as_ref().unwrap();
            headers.get("Outbox-Key").is_some_and(|k| k.as_str() == key)
                && number_in(&message.payload) == n
        });
        found.map(|(at, _)| *at)
    }

    /// Waits until so many were heard.
    pub async fn wait_for(&self, count: usize) {
        eventually(LONG, "messages are heard", || async {
            let heard = self.count();
            (heard >= count)
                .then_some(())
                .ok_or(format!("{heard} of {count}"))
        })
        .await;
    }
}

/// A relay to be started inside the test.
pub struct Setup {
    pub source: postgres_source::Options,
    pub sink: nats_sink::Options,
    pub retry: Policy,
}

impl Setup {
    pub fn new(database: &str, broker: impl Into<String>) -> Self {
        Self {
            source: postgres_fixture::options(database),
            sink: nats_sink::Options::new("events", broker, "EVT", "evt.{kind}"),
            retry: Policy {
                max_attempts: 5,
                base: Duration::from_millis(100),
                max: Duration::from_secs(1),
                ..Policy::default()
            },
        }
    }

    pub fn database(mut self, url: impl Into<String>) -> Self {
        self.source.url = Some(url.into().into());
        self
    }

    pub fn broker(mut self, url: impl Into<String>) -> Self {
        self.sink.url = url.into();
        self
    }

    pub async fn start(self) -> Running {
        self.start_with(|_| {}).await
    }

    /// With what `change` makes of the relay's options.
    pub async fn start_with(self, change: impl FnOnce(&mut relay::Options)) -> Running {
        let source = Postgres::new(self.source).unwrap();
        let mut database = DatabaseOptions::new(Arc::new(source));
        database.poll_max = Duration::from_millis(200);
        let mut sink = SinkOptions::new("events", Arc::new(Nats::new(self.sink).unwrap()));
        sink.publish_timeout = PUBLISH_TIMEOUT;
        let route = Route {
            name: "all".into(),
            kinds: vec!["*".into()],
            sinks: Arc::from([Arc::from("events")]),
            retry: self.retry,
        };
        let mut options = relay::Options::new(vec![database], vec![sink], Routes::new(vec![route]));
        options.lease_ttl = TTL;
        options.grace = GRACE;
        let metrics = Metrics::new().unwrap();
        options.telemetry = metrics.telemetry();
        change(&mut options);
        Running {
            relay: relay::start(options).await.unwrap(),
            metrics,
        }
    }
}

/// A running relay.
pub struct Running {
    pub relay: Relay,
    metrics: Metrics,
}

impl Running {
    /// Waits until the first database is in this state.
    pub async fn is(&self, state: DatabaseState) {
        let board = self.relay.board();
        eventually(LONG, "the database is in its state", || async {
            let shown = &board.snapshot().databases[0];
            (shown.state == state)
                .then_some(())
                .ok_or(format!("{shown:?} is not {state:?}"))
        })
        .await;
    }

    /// Waits until the wake-up channel is open, or lost.
    pub async fn listening(&self, open: bool) {
        let board = self.relay.board();
        eventually(LONG, "the wake-up channel is open or lost", || async {
            let shown = &board.snapshot().databases[0];
            (shown.listening == open)
                .then_some(())
                .ok_or(format!("{shown:?}"))
        })
        .await;
    }

    /// All metrics, as Prometheus reads them.
    pub fn text(&self) -> String {
        self.metrics.render().unwrap()
    }

    /// The sum of a counter over all series with these labels, such as `expected="true"`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        metric_in(&self.metrics.render().unwrap(), name, labels)
    }

    /// Waits until a counter has reached a value.
    pub async fn counted(&self, name: &str, labels: &[&str], value: f64) {
        eventually(LONG, "the counter has counted", || async {
            let seen = self.metric(name, labels);
            (seen >= value)
                .then_some(())
                .ok_or(format!("{name}{labels:?} is {seen}"))
        })
        .await;
    }
}

/// The sum of a counter in Prometheus' text format.
pub fn metric_in(text: &str, name: &str, labels: &[&str]) -> f64 {
    text.lines()
        .filter(|line| line.starts_with(&format!("event_outbox_{name}{{")))
        .filter(|line| labels.iter().all(|label| line.contains(label)))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}
