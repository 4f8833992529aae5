//! Random rows, by a seed: each one that its writer managed to commit arrives byte for byte or is set aside with the
//! code that fits what is wrong with it, and its good neighbours of the same and of another key arrive in order.
//!
//! `OUTBOXD_ROWS` sets how many (300), `OUTBOXD_SEED` which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outboxd::relay::DatabaseOptions;
use outboxd::source::Source;
use outboxd::source::admin::{Admin, DiscardedFilter};
use outboxd::testing::source::Outbox as _;
use sqlx::{PgConnection, SqliteConnection};
use uuid::Uuid;

use super::super::bench::{Heard, LONG, Place, Running};
use crate::core::chaos::dice::Dice;
use crate::postgres_fixture::{another, operator};
use crate::source_conformance::sqlite::SqliteOutbox;
use crate::support::{eventually, nats};

/// What the broker takes; no row comes nearer to it than some kilobytes.
const LIMIT: usize = 64 * 1024;

#[derive(Debug, Clone)]
enum Body {
    Json(String),
    Bytes(Vec<u8>),
}

/// A row with what is wrong with it: one of these codes, or none.
#[derive(Debug, Clone)]
struct Hostile {
    id: Uuid,
    kind: String,
    key: Option<String>,
    body: Body,
    headers: Vec<(String, String)>,
    /// Instead of the headers.
    no_headers: Option<&'static str>,
    content_type: Option<String>,
    codes: BTreeSet<&'static str>,
    /// A database may say no: PostgreSQL has no text with a zero byte, SQLite no JSON deeper than a thousand.
    refusable: bool,
}

const ODD: [char; 16] = [
    'a',
    'Z',
    '0',
    '.',
    '%',
    '/',
    '_',
    ' ',
    '\u{e9}',
    '\u{6f22}',
    '\u{1f600}',
    '\\',
    '"',
    '\'',
    '{',
    '~',
];
const BROKEN: [char; 8] = ['\n', '\r', '\t', '\u{1}', '\u{7f}', '\u{85}', ' ', '*'];

fn text(dice: &mut Dice, most: u64, from: &[char]) -> String {
    let length = dice.below(most + 1);
    (0..length)
        .filter_map(|_| dice.pick(from).copied())
        .collect()
}

impl Hostile {
    fn new(dice: &mut Dice) -> Self {
        let mut row = Self {
            id: Uuid::from_u64_pair(dice.roll(), dice.roll()),
            kind: "a.b".to_owned(),
            key: None,
            body: Body::Json("1".to_owned()),
            headers: Vec::new(),
            no_headers: None,
            content_type: None,
            codes: BTreeSet::new(),
            refusable: false,
        };
        row.with_kind(dice);
        row.key = match dice.below(6) {
            0 => None,
            1 => Some("x".repeat(512)),
            2 => Some(format!("k{}", dice.below(3))),
            _ => Some(format!("{}.", text(dice, 40, &ODD))),
        };
        row.with_body(dice);
        row.with_headers(dice);
        if dice.chance(20) {
            row.content_type = Some("application/x-own; a=\"b\"".to_owned());
        } else if dice.chance(10) {
            row.content_type = Some(format!("text{}x", BROKEN[dice.below(2) as usize]));
            row.codes.insert("invalid_header");
        }
        row
    }

    fn with_kind(&mut self, dice: &mut Dice) {
        match dice.below(8) {
            0 => {
                let odd = dice.pick(&BROKEN).copied().unwrap_or('*');
                self.kind = format!("a{odd}b");
                self.codes.insert("invalid_subject");
            }
            1 => {
                let kinds = [".a", "a.", "a..b", "*", ">", "a.>", "$JS.API.INFO", "$"];
                self.kind = dice
                    .pick(&kinds)
                    .map(|kind| (*kind).to_owned())
                    .unwrap_or_default();
                self.codes.insert("invalid_subject");
            }
            2 => {
                self.kind = "k.".repeat(1 + dice.below(2_000) as usize) + &"x".repeat(1_100);
                self.codes.insert("invalid_subject");
            }
            3 => {
                self.kind = "a\0b".to_owned();
                self.refusable = true;
                self.codes.insert("invalid_subject");
            }
            4 => self.kind = format!("é{}.漢", dice.below(99)),
            _ => self.kind = format!("order.n{}", dice.below(9)),
        }
    }

    fn with_body(&mut self, dice: &mut Dice) {
        self.body = match dice.below(8) {
            0 => Body::Bytes((0..dice.below(400)).map(|_| dice.roll() as u8).collect()),
            1 => Body::Bytes(vec![b'x'; 40_000]),
            2 => {
                self.codes.insert("too_large");
                Body::Bytes(vec![0; LIMIT + 4_000 + dice.below(200_000) as usize])
            }
            3 => {
                let depth = dice.below(1_500) as usize;
                self.refusable |= depth >= 1_000;
                Body::Json(format!(
                    "{}{}",
                    "[".repeat(depth + 1),
                    "]".repeat(depth + 1)
                ))
            }
            _ => Body::Json(json(dice, 4)),
        };
    }

    fn with_headers(&mut self, dice: &mut Dice) {
        if dice.chance(8) {
            let others = [
                "null",
                "7",
                "[]",
                "\"x\"",
                "{\"x\": 1}",
                "{\"x\": null}",
                "{\"x\": []}",
            ];
            self.no_headers = dice.pick(&others).copied();
            self.codes.insert("invalid_header");
            return;
        }
        for n in 0..dice.below(4) {
            let value = format!("v{}v", text(dice, 20, &ODD));
            self.headers.push((format!("x-{n}"), value));
        }
        if dice.chance(15) {
            let prefix = dice.pick(&["nats-", "outbox-"]).copied().unwrap_or("nats-");
            let name: String = prefix
                .chars()
                .chain("Msg-Id".chars())
                .map(|c| {
                    if dice.chance(50) {
                        c.to_ascii_uppercase()
                    } else {
                        c
                    }
                })
                .collect();
            self.headers.push((name, "all".to_owned()));
            self.codes.insert("invalid_header");
        } else if dice.chance(10) {
            let names = ["", "a b", "a:b", "é", "a\r\nb", "(", "a\u{1}"];
            let name = dice.pick(&names).map(|name| (*name).to_owned());
            self.headers
                .push((name.unwrap_or_default(), "v".to_owned()));
            self.codes.insert("invalid_header");
        } else if dice.chance(10) {
            let values = [
                "a\nb",
                "a\r\nNats-Rollup: all",
                " a",
                "a ",
                "\u{1}",
                "a\u{85}b",
            ];
            let value = dice.pick(&values).map(|value| (*value).to_owned());
            self.headers
                .push(("x".to_owned(), value.unwrap_or_default()));
            self.codes.insert("invalid_header");
        }
    }

    fn headers(&self) -> String {
        match self.no_headers {
            Some(other) => other.to_owned(),
            None => {
                let map: serde_json::Map<_, _> = self
                    .headers
                    .iter()
                    .map(|(name, value)| (name.clone(), value.clone().into()))
                    .collect();
                serde_json::Value::Object(map).to_string()
            }
        }
    }

    fn json(&self) -> Option<&str> {
        match &self.body {
            Body::Json(text) => Some(text),
            Body::Bytes(_) => None,
        }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Json(_) => None,
            Body::Bytes(bytes) => Some(bytes),
        }
    }
}

/// A JSON text as nobody would write it.
fn json(dice: &mut Dice, depth: u64) -> String {
    let space = ["", " ", "\n\t", "\r\n  "][dice.below(4) as usize];
    match dice.below(if depth == 0 { 5 } else { 7 }) {
        0 => [
            "null",
            "true",
            "-0.0",
            "1E400",
            "9007199254740993",
            "0.1000",
        ][dice.below(6) as usize]
            .to_owned(),
        1 => format!("{}{}", dice.below(9) + 1, dice.roll()),
        2 => r#""\u00e9\/\ud83d\ude00\\ \u2028""#.to_owned(),
        3 => format!(
            "\"{}\"",
            text(
                dice,
                30,
                &['a', 'é', '漢', '\u{1f600}', '\u{7f}', '\u{2028}', '{']
            )
        ),
        4 => format!("\"{}\"", "x".repeat(dice.below(2_000) as usize)),
        5 => {
            let items: Vec<String> = (0..dice.below(4)).map(|_| json(dice, depth - 1)).collect();
            format!("[{space}{}]{space}", items.join(&format!("{space},")))
        }
        _ => {
            // Names repeat, in no order.
            let item = |dice: &mut Dice| {
                let name = dice.below(3);
                format!("\"{name}\"{space}:{}", json(dice, depth - 1))
            };
            let items: Vec<String> = (0..dice.below(4)).map(|_| item(dice)).collect();
            format!("{space}{{{}{space}}}", items.join(","))
        }
    }
}

/// Where the rows go.
enum Writer {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Writer {
    /// Commits it, unless the database refuses.
    async fn insert(&mut self, row: &Hostile) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(connection) => sqlx::query(
                "insert into outbox.event (id, kind, ordering_key, payload, payload_bytes, headers, content_type)
                 values ($1, $2, $3, $4::json, $5, $6::jsonb, $7)",
            )
            .bind(row.id)
            .bind(&row.kind)
            .bind(&row.key)
            .bind(row.json())
            .bind(row.bytes())
            .bind(row.headers())
            .bind(&row.content_type)
            .execute(connection)
            .await
            .map(drop),
            Self::Sqlite(connection) => sqlx::query(
                "INSERT INTO outbox_event (id, kind, ordering_key, payload, payload_bytes, headers, content_type)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )
            .bind(row.id.hyphenated().to_string())
            .bind(&row.kind)
            .bind(&row.key)
            .bind(row.json())
            .bind(row.bytes())
            .bind(row.headers())
            .bind(&row.content_type)
            .execute(connection)
            .await
            .map(drop),
        }
    }
}

fn number(name: &str, usual: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(usual, |text| text.parse().unwrap())
}

/// A broker with the limit, its stream, and a relay from `source` to it.
async fn place_and_relay(source: impl FnOnce(&Place) -> Arc<dyn Source>) -> (Place, Running) {
    let mut place = Place::new().await;
    place.nats.set_snippet(&format!("max_payload: {LIMIT}"));
    place.nats.restart().await;
    place.heard = Heard::on(&place.nats).await;
    let source = source(&place);
    let relay = place.setup().start_with(|options| {
        options.databases[0] = DatabaseOptions {
            poll_max: std::time::Duration::from_millis(200),
            ..DatabaseOptions::new(source)
        };
    });
    let relay = relay.await;
    (place, relay)
}

/// Writes the rows with their neighbours, waits until nothing is left, and looks at every one of them.
async fn run(place: &Place, relay: &Running, mut writer: Writer, admin: &dyn Admin) {
    let (rows, seed) = (number("OUTBOXD_ROWS", 300), number("OUTBOXD_SEED", 1));
    println!("OUTBOXD_SEED={seed} OUTBOXD_ROWS={rows}");
    let mut dice = Dice::new(seed, 0);
    let mut committed = Vec::new();
    for n in 0..rows {
        let row = Hostile::new(&mut dice);
        match writer.insert(&row).await {
            Ok(()) => committed.push(row.clone()),
            Err(error) => assert!(row.refusable, "{error}: {row:?}"),
        }
        for key in [row.key.clone(), Some("calm".to_owned())] {
            let mut good = Hostile {
                kind: "good".to_owned(),
                key,
                body: Body::Json(format!("{{\"n\":{n}}}")),
                headers: Vec::new(),
                no_headers: None,
                content_type: None,
                codes: BTreeSet::new(),
                refusable: false,
                id: Uuid::from_u64_pair(dice.roll(), dice.roll()),
            };
            good.codes.clear();
            writer.insert(&good).await.unwrap();
            committed.push(good);
        }
    }
    eventually(2 * LONG, "nothing is left", || async {
        let left = admin.status().await.unwrap().backlog.events;
        (left == 0).then_some(()).ok_or(format!("{left} rows"))
    })
    .await;
    let stored = place.nats.stored("EVT").await;
    let discarded: BTreeMap<Uuid, String> = admin
        .discarded(&DiscardedFilter::default(), u32::MAX)
        .await
        .unwrap()
        .into_iter()
        .map(|one| (one.id, one.code.unwrap_or_default()))
        .collect();
    assert_eq!(stored.len() + discarded.len(), committed.len());
    let mut messages: BTreeMap<Uuid, &nats::Stored> = BTreeMap::new();
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for message in &stored {
        let id = message.header("Nats-Msg-Id").unwrap();
        let id = id.split_once(':').unwrap().1.parse().unwrap();
        assert!(messages.insert(id, message).is_none(), "{id} came twice");
        if let Some(key) = message.header("Outbox-Key") {
            let seq: i64 = message.header("Outbox-Seq").unwrap().parse().unwrap();
            let before = last.insert(key, seq);
            assert!(
                before.is_none_or(|before| before < seq),
                "{key} is out of order at {seq}"
            );
        }
    }
    for row in &committed {
        match (messages.get(&row.id), discarded.get(&row.id)) {
            (Some(message), None) => arrived_whole(row, message),
            (None, Some(code)) => assert!(row.codes.contains(code.as_str()), "{code}: {row:?}"),
            other => panic!("{other:?}: {row:?}"),
        }
    }
    for metric in [
        "restarts_total",
        "missed_total",
        "retried_total",
        "lease_lost_total",
        "duplicates_total",
    ] {
        assert_eq!(relay.metric(metric, &[]), 0.0, "{metric}");
    }
}

fn arrived_whole(row: &Hostile, message: &nats::Stored) {
    assert!(row.codes.is_empty(), "it left all the same: {row:?}");
    let body = match &row.body {
        Body::Json(text) => text.as_bytes(),
        Body::Bytes(bytes) => bytes,
    };
    assert!(message.payload == body, "{row:?}");
    assert_eq!(message.header("Outbox-Kind"), Some(row.kind.as_str()));
    let key = message.header("Outbox-Key").map(decoded);
    assert_eq!(key, row.key, "{row:?}");
    assert_eq!(message.header("Content-Type"), row.content_type.as_deref());
    for (name, value) in &row.headers {
        assert_eq!(message.header(name), Some(value.as_str()), "{row:?}");
    }
    let own = message
        .headers
        .iter()
        .filter(|(name, _)| name.to_string().starts_with("x-"));
    assert_eq!(own.count(), row.headers.len());
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        if *first == b'%' {
            let hex = std::str::from_utf8(&more[..2]).unwrap();
            bytes.push(u8::from_str_radix(hex, 16).unwrap());
            rest = &more[2..];
        } else {
            bytes.push(*first);
            rest = more;
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c65_random_rows_of_postgres_leave_whole_or_are_set_aside() {
    let (place, relay) = place_and_relay(|place| Arc::new(another(&place.database, |_| {}))).await;
    let writer = Writer::Postgres(place.database.writer().await);
    run(&place, &relay, writer, &operator(&place.database)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c65_random_rows_of_sqlite_leave_whole_or_are_set_aside() {
    let outbox = SqliteOutbox::new().await;
    let (place, relay) = place_and_relay(|_| outbox.source()).await;
    let writer = Writer::Sqlite(outbox.application().await);
    run(&place, &relay, writer, &*outbox.admin()).await;
}
