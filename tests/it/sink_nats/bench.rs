//! The conformance suite, and what the other tests share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, Stream};
use async_trait::async_trait;
use outboxd::sink::nats::{Nats, Options};
use outboxd::sink::{PublishError, PublishErrorKind, Session, Sink};
use outboxd::testing::sink::{Arrived, Bench, conformance};
use tokio::sync::Mutex;

use crate::support::nats;

pub const SOON: Duration = Duration::from_secs(20);

/// Options for stream `EVT`, whose subjects are the kinds below `evt.`.
pub fn options(url: impl Into<String>) -> Options {
    Options::new("events", url, "EVT", "evt.{kind}")
}

pub fn config() -> Config {
    Config {
        name: "EVT".to_owned(),
        subjects: vec!["evt.>".to_owned()],
        ..Config::default()
    }
}

/// The same with ordered batches.
pub fn batched() -> Config {
    Config {
        allow_batch_publish: true,
        ..config()
    }
}

/// The same with atomic batches.
pub fn atomic() -> Config {
    Config {
        allow_atomic_publish: true,
        ..config()
    }
}

pub async fn create(server: &nats::Server, config: Config) -> Stream {
    server
        .jetstream()
        .await
        .create_stream(config)
        .await
        .unwrap()
}

pub async fn open(url: impl Into<String>) -> Arc<dyn Session> {
    Nats::new(options(url)).unwrap().open().await.unwrap()
}

pub fn kind<T: std::fmt::Debug>(result: Result<T, PublishError>) -> PublishErrorKind {
    result.unwrap_err().kind
}

pub const UNAVAILABLE: PublishErrorKind = PublishErrorKind::Unavailable {
    connection_lost: false,
};

pub fn rejected(code: &'static str) -> PublishErrorKind {
    PublishErrorKind::Rejected { code }
}

/// Users of which one may not publish everything, and one hears nothing.
pub const PERMISSIONS: &str = r#"authorization { users: [
    { user: relay, password: "p@ss/w?rd#%:&", permissions: { publish: { deny: ["evt.secret.>"] } } },
    { user: deaf, password: "x", permissions: { subscribe: { deny: ["_INBOX.>"] } } },
    { user: admin, password: "x" }
] }"#;

pub fn as_user(server: &nats::Server, user: &str, password: &str) -> Options {
    Options {
        user: Some(user.to_owned()),
        password: Some(password.to_owned().into()),
        ..options(server.url())
    }
}

pub async fn admin(server: &nats::Server) -> async_nats::jetstream::Context {
    let connect = async_nats::ConnectOptions::with_user_and_password("admin".into(), "x".into());
    async_nats::jetstream::new(connect.connect(server.url()).await.unwrap())
}

/// A message as a consumer sees it.
pub fn arrived(headers: &async_nats::HeaderMap, payload: bytes::Bytes) -> Arrived {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for (name, values) in headers.iter() {
        let [value] = values.as_slice() else {
            panic!("header {name} stands {} times", values.len());
        };
        all.insert(name.to_string(), value.to_string());
    }
    let mut take = |name: &str| all.remove(name);
    let id = take("Nats-Msg-Id").unwrap();
    assert_eq!(take("Nats-Expected-Stream").as_deref(), Some("EVT"));
    let source = take("Outbox-Source").unwrap();
    let id = id.strip_prefix(&format!("{source}:")).unwrap();
    let arrived = Arrived {
        id: id.parse().unwrap(),
        seq: take("Outbox-Seq").unwrap().parse().unwrap(),
        kind: take("Outbox-Kind").unwrap(),
        ordering_key: take("Outbox-Key").map(|key| percent_decoded(&key)),
        content_type: take("Content-Type"),
        occurred_at: take("Outbox-Occurred-At").unwrap(),
        attempt: take("Outbox-Attempt").unwrap().parse().unwrap(),
        source,
        payload,
        headers: BTreeMap::new(),
    };
    Arrived {
        headers: all,
        ..arrived
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap().as_bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

struct NatsBench {
    server: Mutex<nats::Server>,
    url: String,
    stream: Stream,
    /// What was read so far; a stream only grows.
    read: Mutex<Vec<Arrived>>,
}

#[async_trait]
impl Bench for NatsBench {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(Nats::new(options(&self.url)).unwrap())
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let mut read = self.read.lock().await;
        let state = self.stream.get_info().await.unwrap().state;
        assert_eq!(
            state.messages, state.last_sequence,
            "the stream lost messages"
        );
        for sequence in read.len() as u64 + 1..=state.last_sequence {
            let message = self.stream.get_raw_message(sequence).await.unwrap();
            read.push(arrived(&message.headers, message.payload));
        }
        read.clone()
    }

    async fn take_away(&self) {
        self.server.lock().await.kill9();
    }

    async fn bring_back(&self) {
        self.server.lock().await.restart().await;
        // The reading client comes back in its own time.
        crate::support::eventually(SOON, "the stream can be read", || async {
            let info = self.stream.get_info().await;
            info.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    fn has_subjects(&self) -> bool {
        true
    }

    fn too_large(&self) -> Option<usize> {
        Some(70_000)
    }
}

async fn conforms(change: Config, mode: &str) {
    let server = nats::Server::start_with("max_payload: 65536").await;
    // A roll-up header that got through would empty the stream.
    let allow_rollup = true;
    let stream = create(
        &server,
        Config {
            allow_rollup,
            ..change
        },
    )
    .await;
    assert_eq!(open(server.url()).await.mode(), mode);
    let bench = NatsBench {
        url: server.url(),
        server: Mutex::new(server),
        stream,
        read: Mutex::default(),
    };
    conformance(&bench).await;
}

#[tokio::test]
async fn nats_conforms() {
    conforms(config(), "single").await;
}

#[tokio::test]
async fn nats_in_lanes_conforms() {
    conforms(batched(), "lane").await;
}

#[tokio::test]
async fn nats_in_atomic_batches_conforms() {
    conforms(atomic(), "atomic").await;
}
