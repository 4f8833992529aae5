//! K6: payloads, subjects, headers and keys. Whatever a writer managed to commit leaves as it is, or is set aside with
//! a code that says why, and costs nobody else anything.

use outboxd::status::DatabaseState;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::bench::{LONG, Place, Running, execute, number_in};
use crate::support::proxy::Proxy;
use crate::support::{eventually, nats};

mod keys;
mod odd;
mod random;

/// A relay whose broker, connections and actors have to stay as they are, whatever the rows hold.
struct Calm {
    place: Place,
    relay: Running,
    network: Proxy,
    connections: usize,
    writer: PgConnection,
    good: u32,
}

/// A message as it was stored, by the row it is of.
struct Arrived {
    payload: Vec<u8>,
    message: nats::Stored,
}

impl Calm {
    async fn new() -> Self {
        Self::over(Place::new().await).await
    }

    async fn over(place: Place) -> Self {
        let network = Proxy::to(place.nats.address()).await;
        let broker = format!("nats://{}", network.address());
        let relay = place.setup().broker(broker).start().await;
        relay.is(DatabaseState::Active).await;
        place.insert("warm", 1..=1).await;
        place.stored(1).await;
        let (connections, writer) = (network.accepted(), place.database.writer().await);
        Self {
            place,
            relay,
            network,
            connections,
            writer,
            good: 0,
        }
    }

    /// Commits a row of key `k`, and behind it a good one of its key and one of another. Returns its number.
    async fn insert(&mut self, columns: &str, values: &str) -> i64 {
        let sql = format!(
            "insert into outbox.event (ordering_key, {columns}) values ('k', {values}) returning seq"
        );
        let row = sqlx::query(AssertSqlSafe(sql))
            .fetch_one(&mut self.writer)
            .await
            .unwrap_or_else(|error| panic!("{values}: {error}"));
        self.good += 1;
        let n = self.good;
        execute(
            &mut self.writer,
            &format!(
                "insert into outbox.event (kind, ordering_key, payload)
                 values ('good', 'k', '{{\"n\":{n}}}'), ('good', 'other-{n}', '{{\"n\":{n}}}')"
            ),
        )
        .await;
        row.get(0)
    }

    /// Waits until both good ones that came last are heard.
    async fn goes_on(&self, what: &str) {
        for key in ["k".to_owned(), format!("other-{}", self.good)] {
            eventually(LONG, "the good neighbour arrives", || async {
                let at = self.place.heard.at_good(&key, self.good);
                at.map(drop).ok_or(format!("{key} behind {what}"))
            })
            .await;
        }
    }

    /// The row must be set aside with this code, at once and alone.
    async fn set_aside(&mut self, columns: &str, values: &str, code: &str) {
        let seq = self.insert(columns, values).await;
        self.goes_on(values).await;
        let found = format!(
            "select coalesce(string_agg(reason || ' ' || code || ' ' || attempts, ','), 'none')
             from outbox.discarded where seq = {seq}"
        );
        let found = self.place.text(&found).await;
        assert_eq!(found, format!("permanent {code} 1"), "{values}");
    }

    /// The row must arrive.
    async fn arrives(&mut self, columns: &str, values: &str) -> Arrived {
        let seq = self.insert(columns, values).await;
        self.goes_on(values).await;
        let seq = seq.to_string();
        let stored = self.place.nats.stored("EVT").await;
        let mut mine = stored
            .into_iter()
            .filter(|m| m.header("Outbox-Seq") == Some(&seq));
        let message = mine.next().unwrap_or_else(|| panic!("{values} is missing"));
        assert!(mine.next().is_none(), "{values} came twice");
        Arrived {
            payload: message.payload.to_vec(),
            message,
        }
    }

    /// Nothing but the rows has changed.
    async fn end(self) {
        self.place.emptied().await;
        assert_eq!(self.network.accepted(), self.connections, "reconnects");
        let zero = [
            "restarts_total",
            "missed_total",
            "retried_total",
            "lease_lost_total",
            "inversions_total",
        ];
        for metric in zero {
            assert_eq!(self.relay.metric(metric, &[]), 0.0, "{metric}");
        }
        let good: Vec<u64> = self
            .place
            .nats
            .stored("EVT")
            .await
            .iter()
            .filter(|m| m.header("Outbox-Kind") == Some("good"))
            .filter(|m| m.header("Outbox-Key") == Some("k"))
            .map(|m| number_in(&m.payload))
            .collect();
        assert_eq!(good, (1..=u64::from(self.good)).collect::<Vec<_>>());
        self.place.verified().await;
    }
}

/// A JSON text as an SQL literal.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Bytes as an SQL literal.
fn bytea(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{hex}'")
}

/// The size is compared with the connection's own limit before anything is sent.
#[tokio::test]
async fn c59_an_event_above_the_brokers_limit_is_set_aside_and_the_limit_is_learned_anew() {
    const LIMIT: usize = 64 * 1024;
    let mut place = Place::new().await;
    place.nats.set_snippet(&format!("max_payload: {LIMIT}"));
    place.nats.restart().await;
    place.heard = super::bench::Heard::on(&place.nats).await;
    let mut calm = Calm::over(place).await;
    let padded = |bytes: usize| format!("'a', json_build_object('pad', repeat('x', {bytes}))");
    calm.set_aside("kind, payload", &padded(70_000), "too_large")
        .await;
    let header = format!("{}, '{{\"pad\": \"{}\"}}'", padded(65_500), "h".repeat(100));
    calm.set_aside("kind, payload, headers", &header, "too_large")
        .await;
    // Far above everything: the relay's bounds in memory too.
    let huge = "'a', convert_to(repeat('x', 40000000), 'UTF8')";
    calm.set_aside("kind, payload_bytes", huge, "too_large")
        .await;
    calm.arrives("kind, payload", &padded(60_000)).await;

    // Another server under the same name takes more.
    calm.place
        .nats
        .set_snippet(&format!("max_payload: {}", 4 * LIMIT));
    calm.place.nats.restart().await;
    calm.place.heard = super::bench::Heard::on(&calm.place.nats).await;
    let arrived = calm.arrives("kind, payload", &padded(70_000)).await;
    assert!(arrived.payload.len() > 70_000);
    calm.connections = calm.network.accepted();
    calm.end().await;
}

/// A bound is for what is in memory together; an event that is larger takes it alone.
#[tokio::test]
async fn c59_an_event_above_the_relays_own_bounds_arrives() {
    let place = Place::new().await;
    let relay = place.setup().start_with(|options| {
        options.databases[0].budget_bytes = 10_000;
        options.databases[0].budget_events = 4;
        options.sinks[0].max_in_flight_bytes = 10_000;
        options.sinks[0].max_in_flight = 2;
    });
    let relay = relay.await;
    for n in 1..=5 {
        place
            .database
            .write(&format!(
                "insert into outbox.event (kind, ordering_key, payload)
                 select 'a', 'k' || k % 3, json_build_object('n', {n}, 'pad', repeat('x', 300000 / k))
                 from generate_series(1, 20) as k"
            ))
            .await;
    }
    place.stored(100).await;
    place.emptied().await;
    assert_eq!(relay.metric("discarded_total", &[]), 0.0);
    assert_eq!(relay.metric("restarts_total", &[]), 0.0);
    place.verified().await;
}

/// Names and values are checked before the client sees them, which would panic or cut them.
#[tokio::test]
async fn c61_headers_that_no_message_can_carry_are_set_aside() {
    let mut calm = Calm::new().await;
    let refused = [
        r#"{"x": "a\r\nNats-Rollup: all"}"#,
        r#"{"x": "a\nb"}"#,
        r#"{"x": "a\u0001b"}"#,
        r#"{"x": " a"}"#,
        r#"{"x": "a\u00a0"}"#,
        r#"{"bad name": "v"}"#,
        r#"{"bad:name": "v"}"#,
        r#"{"bad\r\nname": "v"}"#,
        r#"{"é": "v"}"#,
        r#"{"": "v"}"#,
        r#"{"x": 1}"#,
        r#"{"x": null}"#,
        r#"{"x": {"y": "z"}}"#,
        r#"["x"]"#,
        r#""x""#,
        "null",
        "7",
    ];
    for headers in refused {
        let values = format!("'a', '1', {}", literal(headers));
        calm.set_aside("kind, payload, headers", &values, "invalid_header")
            .await;
    }
    let content_type = "'a', '1', E'text/plain\\r\\nNats-Rollup: all'";
    calm.set_aside(
        "kind, payload, content_type",
        content_type,
        "invalid_header",
    )
    .await;
    // More than a server takes of them.
    let many = "'a', '1', jsonb_build_object('pad', repeat('h', 70000))";
    calm.set_aside("kind, payload, headers", many, "too_large")
        .await;
    // More than a server takes of them.
    let many = "'a', '1', jsonb_build_object('pad', repeat('h', 70000))";
    calm.set_aside("kind, payload, headers", many, "too_large")
        .await;
    let values = format!(
        "'a', '1', {}",
        literal(r#"{"x": "", "tab": "a\tb", "u": "é 漢"}"#)
    );
    let arrived = calm.arrives("kind, payload, headers", &values).await;
    let mut names: Vec<String> = arrived
        .message
        .headers
        .iter()
        .map(|(name, _)| name.to_string())
        .collect();
    names.sort();
    // No other than those stored, and the relay's own.
    assert_eq!(
        names.join(" "),
        "Nats-Expected-Stream Nats-Msg-Id Outbox-Attempt Outbox-Key Outbox-Kind Outbox-Occurred-At \
         Outbox-Seq Outbox-Source tab u x"
    );
    let header = |name| arrived.message.header(name);
    assert_eq!(
        (header("x"), header("tab"), header("u")),
        (Some(""), Some("a\tb"), Some("é 漢"))
    );
    calm.end().await;
}

/// What steers the broker or speaks for the relay is nobody else's to set.
#[tokio::test]
async fn c62_headers_of_the_broker_and_of_the_relay_cannot_come_from_a_row() {
    let place = Place::with(|config| config.allow_rollup = true).await;
    let mut calm = Calm::over(place).await;
    let mut before = 0;
    for name in [
        "Nats-Rollup",
        "nats-rollup",
        "NATS-MSG-ID",
        "Nats-Msg-Id",
        "nats-Expected-Last-Sequence",
        "Nats-Expected-Stream",
        "Nats-TTL",
        "Nats-Batch-Id",
        "Nats-Batch-Commit",
        "Nats-Schedule",
        "Outbox-Key",
        "oUTBOX-seq",
        "Outbox-Anything",
    ] {
        let values = format!("'a', '1', {}", literal(&format!(r#"{{"{name}": "all"}}"#)));
        calm.set_aside("kind, payload, headers", &values, "invalid_header")
            .await;
        let now = calm.place.nats.stored("EVT").await;
        assert!(now.len() > before, "{name}");
        before = now.len();
        for message in &now {
            let ids = message.headers.get_all("Nats-Msg-Id").count();
            assert_eq!(ids, 1, "{name}");
        }
    }
    calm.end().await;
}

/// A kind becomes part of a subject as it is, so it is checked as one.
#[tokio::test]
async fn c64_kinds_that_are_no_subject_are_set_aside() {
    let mut calm = Calm::new().await;
    for kind in [
        "''",
        "'a b'",
        "E'a\\nPUB evt.inj 1\\nz'",
        "E'a\\r\\n'",
        "E'a\\tb'",
        "E'a\\u0001b'",
        "E'a\\u00a0b'",
        "E'a\\u2003b'",
        "'.a'",
        "'a.'",
        "'a..b'",
        "'*'",
        "'a.>'",
        "'$JS.API'",
        "repeat('a', 5000)",
        "repeat('a.', 100000)",
    ] {
        calm.set_aside("kind, payload", &format!("{kind}, '1'"), "invalid_subject")
            .await;
    }
    let arrived = calm.arrives("kind, payload", "'événement.créé', '1'").await;
    assert_eq!(
        arrived.message.header("Outbox-Kind"),
        Some("événement.créé")
    );
    calm.end().await;
}

/// The column is `json`, whose text is kept, and nothing on the way parses it.
#[tokio::test]
async fn c65_json_arrives_byte_for_byte() {
    let mut calm = Calm::new().await;
    let deep = format!("{}{}", "[".repeat(3_000), "]".repeat(3_000));
    let wide = format!(
        "{{{}}}",
        (0..20_000)
            .map(|n| format!("\"k{n}\":{n}"))
            .collect::<Vec<_>>()
            .join(" ,\n")
    );
    for text in [
        r#"  {"b":1 , "a":2,"a":3, "e":1e2, "x":1.0}  "#,
        r#"{"s":"\/ \u00e9 \u0000 \ud83d\ude00 é 😀"}"#,
        "9007199254740993",
        "123456789012345678901234567890.000100",
        "1e400",
        "-0.0",
        "[1,\n\t2 ,\r\n3]",
        r#""""#,
        "null",
        "{}",
        r#"{"__proto__":{"x":1},"":""}"#,
        &deep,
        &wide,
    ] {
        let arrived = calm
            .arrives("kind, payload", &format!("'a', {}", literal(text)))
            .await;
        assert!(
            arrived.payload == text.as_bytes(),
            "{}",
            &text[..text.len().min(80)]
        );
    }
    calm.end().await;
}

/// Bytes are bytes, from column to message.
#[tokio::test]
async fn c70_bytes_that_are_no_text_arrive_as_they_are() {
    let mut calm = Calm::new().await;
    let all: Vec<u8> = (0..=255).collect();
    for bytes in [
        &[0, 255, 128][..],
        b"",
        b"null",
        b"\xef\xbb\xbf{}",
        b"\r\nPUB evt.x 0\r\n\r\n",
        &all,
    ] {
        let values = format!("'a', {}, 'application/x-own'", bytea(bytes));
        let arrived = calm
            .arrives("kind, payload_bytes, content_type", &values)
            .await;
        assert_eq!(arrived.payload, bytes);
        assert_eq!(
            arrived.message.header("Content-Type"),
            Some("application/x-own")
        );
    }
    calm.end().await;
}
