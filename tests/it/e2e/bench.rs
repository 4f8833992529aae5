//! A relay between a fresh, migrated PostgreSQL database and a nats-server of its own.
//!
//! ```ignore
//! let bench = Bench::new(&[("databases.orders.gap_guard", "hold")]).await;
//! let running = bench.relay().await;                  // in this process
//! let mut service = bench.process();                  // or the built program, on the same configuration
//! bench.insert(&["k"], 10).await;
//! let seen = bench.wait_for(10).await;
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outboxd::config::{Loaded, Place, build};
use outboxd::metrics::Metrics;
use outboxd::relay::{self, Relay};
use outboxd::source::postgres::Postgres;
use outboxd::verify::Report;
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use crate::cli_bin::{Ended, Workplace};
use crate::support::nats::Stored;
use crate::support::postgres::{self, Database};
use crate::support::process::Process;
use crate::support::roles::Role;
use crate::support::{eventually, nats, roles, verified};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

pub const STREAM: &str = "EVENTS";

/// Database, broker, and the configuration that joins them.
pub struct Bench {
    pub database: Database,
    pub nats: nats::Server,
    pub place: Workplace,
    settings: Vec<(String, String)>,
    /// A client for looking at the stream; made when first needed.
    look: Mutex<Option<async_nats::jetstream::Context>>,
}

/// A committed event, as its writer knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub id: Uuid,
    pub seq: i64,
    pub key: String,
    pub payload: String,
}

/// A message of the stream.
#[derive(Debug, Clone)]
pub struct Seen {
    pub id: Uuid,
    pub seq: i64,
    pub key: String,
    pub attempt: u32,
    pub payload: bytes::Bytes,
}

/// A relay in this process.
pub struct Running {
    pub relay: Relay,
    metrics: Metrics,
}

impl Bench {
    /// On the shared database server. Settings are configuration keys with their values.
    pub async fn new(settings: &[(&str, &str)]) -> Self {
        let database = postgres::server().await.database().await;
        Self::over(database, nats::Server::start().await, settings).await
    }

    /// Over this database and this broker.
    pub async fn over(database: Database, nats: nats::Server, settings: &[(&str, &str)]) -> Self {
        let place = Workplace::new(&format!(
            "[databases.orders]\nurl = \"{}\"\n[sinks.events]\ntype = \"nats\"\nurl = \"{}\"\n\
             stream = \"{STREAM}\"\ncreate_stream = true\n[routes.all]\nkinds = [\"*\"]\n\
             sinks = [\"events\"]\n",
            database.url,
            nats.url()
        ));
        let bench = Self {
            database,
            nats,
            place,
            settings: Vec::new(),
            look: Mutex::default(),
        }
        .with(settings);
        let config = bench.config();
        let schema = &config.databases["orders"].schema;
        roles::migrate_in(&bench.database, schema, config.lease.shards).await;
        bench
    }

    /// Changes settings for relays that start from now on.
    pub fn with(mut self, settings: &[(&str, &str)]) -> Self {
        for (key, value) in settings {
            let name = format!("OUTBOXD__{}", key.to_uppercase().replace('.', "__"));
            self.place = self.place.env(&name, value);
            self.settings.retain(|(known, _)| *known != name);
            self.settings.push((name, (*value).to_owned()));
        }
        self
    }

    fn config(&self) -> outboxd::config::Config {
        let place = Place {
            file: Some(self.place.path("outboxd.toml")),
            env: self
                .settings
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        };
        Loaded::from(&place).unwrap().config
    }

    /// Starts a relay in this process.
    pub async fn relay(&self) -> Running {
        let metrics = Metrics::new().unwrap();
        let options = build::options(&self.config(), metrics.telemetry()).unwrap();
        Running {
            relay: relay::start(options).await.unwrap(),
            metrics,
        }
    }

    /// Runs a command as an operator.
    pub fn outboxd(&self, args: &[&str]) -> Ended {
        let url = self.database.url_of(Role::Operator);
        let variable = ("OUTBOXD__DATABASES__ORDERS__URL", url.as_str());
        self.place.outboxd_with(variable, args)
    }

    /// Starts the program.
    pub fn process(&self) -> Process {
        self.place.start(&["run"])
    }

    /// Starts the program with this variable on top of the others.
    pub fn process_with(&self, variable: (&str, &str)) -> Process {
        self.place.start_with(variable, &["run"])
    }

    // ---- the last word ------------------------------------------------------------------------------

    /// What the database delivered and what each sink holds fit; looked at with a viewer's rights.
    pub async fn verified(&self) -> Vec<Report> {
        let reports = self.reports().await;
        reports.iter().for_each(verified::assert_fits);
        reports
    }

    /// What `verify` finds, per sink.
    pub async fn reports(&self) -> Vec<Report> {
        let config = self.config();
        let mut options = roles::options(&self.database.url_of(Role::Viewer));
        options.schema = config.databases["orders"].schema.clone();
        let viewer = Postgres::new(options).unwrap();
        let mut reports = Vec::new();
        for (name, sink) in &config.sinks {
            let sink = build::sink(name, sink, &config).unwrap();
            reports.push(verified::report(&viewer, name, &*sink).await);
        }
        reports
    }

    // ---- writing ------------------------------------------------------------------------------------

    /// Inserts `count` events for each key in turn, in one transaction.
    pub async fn insert(&self, keys: &[&str], count: usize) -> Vec<Written> {
        insert_on(&mut self.database.writer().await, keys, count).await
    }

    /// One number from the database.
    pub async fn number(&self, sql: &str) -> i64 {
        number_on(&mut self.database.connect().await, sql).await
    }

    /// Waits until the outbox is empty.
    pub async fn emptied(&self) {
        let connection = Arc::new(Mutex::new(self.database.connect().await));
        eventually(LONG, "the outbox is empty", || {
            let connection = Arc::clone(&connection);
            async move {
                let mut connection = connection.lock().await;
                match number_on(&mut connection, "select count(*) from outbox.event").await {
                    0 => Ok(()),
                    count => Err(format!("{count} rows pending")),
                }
            }
        })
        .await;
    }

    // ---- reading ------------------------------------------------------------------------------------

    /// Messages in the stream now; none when there is no stream or no broker yet.
    pub async fn count(&self) -> u64 {
        let mut look = self.look.lock().await;
        if look.is_none() {
            let Ok(client) = async_nats::connect(self.nats.url()).await else {
                return 0;
            };
            *look = Some(async_nats::jetstream::new(client));
        }
        let Some(context) = look.as_ref() else {
            return 0;
        };
        match context.get_stream(STREAM).await {
            Ok(stream) => stream.cached_info().state.messages,
            Err(_) => 0,
        }
    }

    /// Waits until the stream holds `count` messages, and gives them all.
    pub async fn wait_for(&self, count: usize) -> Vec<Seen> {
        self.wait_within(LONG, count).await
    }

    /// The same with a deadline that the test is about.
    pub async fn wait_within(&self, deadline: Duration, count: usize) -> Vec<Seen> {
        self.reaches(deadline, count as u64).await;
        self.seen().await
    }

    /// Waits until the stream holds `count` messages.
    pub async fn wait_until(&self, count: u64) {
        self.reaches(LONG, count).await;
    }

    async fn reaches(&self, deadline: Duration, count: u64) {
        eventually(deadline, "the stream holds the events", || async {
            match self.count().await {
                seen if seen >= count => Ok(()),
                seen => Err(format!("{seen} of {count}")),
            }
        })
        .await;
    }

    /// Every message of the stream.
    pub async fn seen(&self) -> Vec<Seen> {
        if self.count().await == 0 {
            return Vec::new();
        }
        self.seen_in(STREAM).await
    }

    /// Every message of a stream that is there.
    pub async fn seen_in(&self, stream: &str) -> Vec<Seen> {
        self.nats.stored(stream).await.iter().map(seen).collect()
    }

    /// Starts to count what is sent to the broker, duplicates included, which the stream does not show.
    pub async fn sent(&self) -> Sent {
        use futures_util::StreamExt as _;
        let client = self.nats.client().await;
        let mut messages = client.subscribe("events.>").await.unwrap();
        client.flush().await.unwrap();
        let heard = Arc::new(std::sync::Mutex::new(Heard::default()));
        let list = Arc::clone(&heard);
        let task = tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                let id = message.headers.as_ref().and_then(|h| h.get("Nats-Msg-Id"));
                // A word that ends a batch of a lane has the subject of an event, and is none.
                if let Some(id) = id {
                    list.lock().unwrap().take(id.as_str().to_owned());
                }
            }
        });
        Sent { heard, task }
    }
}

/// What was sent to the broker.
pub struct Sent {
    heard: Arc<std::sync::Mutex<Heard>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Heard {
    all: Vec<Instant>,
    first: HashMap<String, Instant>,
}

impl Heard {
    fn take(&mut self, id: String) {
        let now = Instant::now();
        self.all.push(now);
        self.first.entry(id).or_insert(now);
    }
}

impl Sent {
    /// Publishes so far.
    pub fn count(&self) -> usize {
        self.heard.lock().unwrap().all.len()
    }

    /// Message ids so far.
    pub fn distinct(&self) -> usize {
        self.heard.lock().unwrap().first.len()
    }

    /// Publishes beyond the first of each id.
    pub fn duplicates(&self) -> usize {
        self.count() - self.distinct()
    }

    /// Publishes later than this moment.
    pub fn since(&self, moment: Instant) -> usize {
        let heard = self.heard.lock().unwrap();
        heard
            .all
            .iter()
            .rev()
            .take_while(|at| **at > moment)
            .count()
    }

    /// Message ids that were sent for the first time later than this moment.
    pub fn new_since(&self, moment: Instant) -> usize {
        let heard = self.heard.lock().unwrap();
        heard.first.values().filter(|at| **at > moment).count()
    }

    /// Message ids of this database that were sent for the first time later than this moment.
    pub fn first_of(&self, database: &str, moment: Instant) -> usize {
        let heard = self.heard.lock().unwrap();
        let mine = |id: &str| id.split_once(':').is_some_and(|(from, _)| from == database);
        let first = heard.first.iter();
        first.filter(|(id, at)| mine(id) && **at > moment).count()
    }

    /// When this message id was sent first.
    pub fn at(&self, id: &str) -> Option<Instant> {
        self.heard.lock().unwrap().first.get(id).copied()
    }

    /// Waits until so many were sent.
    pub async fn wait_for(&self, count: usize) {
        eventually(LONG, "events are sent", || async {
            let sent = self.count();
            (sent >= count)
                .then_some(())
                .ok_or(format!("{sent} of {count}"))
        })
        .await;
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    /// A counter or gauge, summed over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        sum_of(&self.metrics.render().unwrap(), name)
    }

    /// Waits until everything due is delivered, settled, and no gap is open.
    pub async fn drained(&self, deadline: Duration) {
        let drained = tokio::time::timeout(deadline, self.relay.drained()).await;
        assert!(
            drained.is_ok(),
            "not drained within {deadline:?}: {:?}",
            self.relay.board().snapshot()
        );
    }
}

/// A metric of Prometheus' text format, summed over its labels. A missing one is a failure.
pub fn sum_of(text: &str, name: &str) -> f64 {
    let name = format!("event_outbox_{name}");
    let values: Vec<f64> = text
        .lines()
        .filter_map(|line| line.strip_prefix(name.as_str()))
        .filter(|rest| rest.starts_with(['{', ' ']))
        .map(|rest| rest.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(!values.is_empty(), "{name} in\n{text}");
    values.iter().sum()
}

pub async fn number_on(connection: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(connection)
        .await
        .unwrap()
}

/// Inserts `count` events for each key in turn, in whatever transaction the connection is in.
pub async fn insert_on(connection: &mut PgConnection, keys: &[&str], count: usize) -> Vec<Written> {
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(
        "insert into outbox.event (kind, ordering_key, payload)
         select 'order.made', k, json_build_object('n', n)
         from generate_series(1, $2) as n, unnest($1::text[]) with ordinality as k (k, place)
         order by n, place
         returning id, seq",
    )
    .bind(keys)
    .bind(count as i64)
    .fetch_all(connection)
    .await
    .unwrap();
    // A writer may not read what it wrote; the numbers rise in the order above.
    let written = |(place, (id, seq)): (usize, (Uuid, i64))| Written {
        id,
        seq,
        key: keys[place % keys.len()].to_owned(),
        payload: format!("{{\"n\" : {}}}", place / keys.len() + 1),
    };
    rows.into_iter().enumerate().map(written).collect()
}

fn seen(stored: &Stored) -> Seen {
    let header = |name: &str| {
        stored
            .header(name)
            .unwrap_or_else(|| panic!("{name} in {stored:?}"))
    };
    let (source, id) = header("Nats-Msg-Id").split_once(':').unwrap();
    assert_eq!(source, "orders");
    Seen {
        id: id.parse().unwrap(),
        seq: header("Outbox-Seq").parse().unwrap(),
        key: stored.header("Outbox-Key").unwrap_or_default().to_owned(),
        attempt: header("Outbox-Attempt").parse().unwrap(),
        payload: stored.payload.clone(),
    }
}

/// Seqs per key, in the order of the stream.
pub fn by_key(seen: &[Seen]) -> BTreeMap<&str, Vec<i64>> {
    let mut keys: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for message in seen {
        keys.entry(&message.key).or_default().push(message.seq);
    }
    keys
}

/// The stream holds exactly what was committed: each event once, with its key and its payload byte for
/// byte, and each key in the order of its seqs.
#[track_caller]
pub fn assert_exactly(written: &[Written], seen: &[Seen]) {
    let committed: HashMap<Uuid, &Written> = written.iter().map(|w| (w.id, w)).collect();
    assert_eq!(committed.len(), written.len(), "ids are unique");
    let mut found = HashSet::new();
    for message in seen {
        let Some(event) = committed.get(&message.id) else {
            panic!("this was never committed: {message:?}");
        };
        assert!(found.insert(message.id), "stored twice: {message:?}");
        assert_eq!(message.seq, event.seq);
        assert_eq!(message.key, event.key);
        assert_eq!(message.payload, event.payload.as_bytes(), "{message:?}");
    }
    let lost: Vec<&&Written> = committed
        .values()
        .filter(|event| !found.contains(&event.id))
        .collect();
    assert!(
        lost.is_empty(),
        "{} of {} committed events are missing, such as {:?}",
        lost.len(),
        written.len(),
        &lost[..lost.len().min(3)]
    );
    assert_in_order(seen);
}

/// Each key in the order of its seqs.
#[track_caller]
pub fn assert_in_order(seen: &[Seen]) {
    for (key, seqs) in by_key(seen) {
        if let Some(at) = seqs.windows(2).position(|pair| pair[0] >= pair[1]) {
            let around = &seqs[at.saturating_sub(3)..(at + 4).min(seqs.len())];
            panic!("key {key} out of order around {around:?}");
        }
    }
}
