//! Ordered lanes: what is stored of a batch is a beginning of it, whatever stops it, and the answers say so.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use bytes::Bytes;
use outboxd::event::{Event, Payload};
use outboxd::sink::nats::{Nats, Options};
use outboxd::sink::{Delivery, PublishError, PublishErrorKind, Receipt, Session, Sink};
use outboxd::testing::sink::delivery_of;
use uuid::Uuid;

use super::bench::{
    SOON, UNAVAILABLE, admin, arrived, as_user, batched, create, open, options, rejected,
};
use crate::support::proxy::{Direction, Mode, Proxy};
use crate::support::{eventually, nats};

pub type Results = Vec<Result<Receipt, PublishError>>;

const BEHIND: PublishErrorKind = PublishErrorKind::Behind;

/// Events `from..from + count` over so many keys.
pub fn events(from: i64, count: i64, keys: i64) -> Vec<Delivery> {
    (from..from + count)
        .map(|seq| on_key(seq, keys, |_| ()))
        .collect()
}

fn on_key(seq: i64, keys: i64, change: impl FnOnce(&mut Event)) -> Delivery {
    delivery_of(seq, |event| {
        event.ordering_key = Some(format!("k{}", seq % keys).into());
        change(event);
    })
}

pub async fn publish(session: &Arc<dyn Session>, batch: &[Delivery]) -> Results {
    let results = session.publish_batch(batch, SOON, SOON).await;
    assert_eq!(results.len(), batch.len());
    results
}

/// Ids in the stream, by place.
pub async fn places(stream: &Stream) -> BTreeMap<u64, Uuid> {
    let state = stream.get_info().await.unwrap().state;
    let mut found = BTreeMap::new();
    for place in state.first_sequence..=state.last_sequence {
        let Ok(message) = stream.get_raw_message(place).await else {
            continue;
        };
        // Others have messages there too.
        if message.headers.get("Nats-Msg-Id").is_some() {
            found.insert(place, arrived(&message.headers, message.payload).id);
        }
    }
    found
}

/// The stream holds exactly the events that were answered with `Ok`, once each, and each key in order.
async fn expect_stored(stream: &Stream, batch: &[Delivery], results: &Results) {
    let keys: HashMap<Uuid, _> = batch
        .iter()
        .map(|d| (d.event.id, d.event.ordering_key.clone()))
        .collect();
    let by_key = |ids: Vec<Uuid>| {
        let mut by_key: BTreeMap<_, Vec<Uuid>> = BTreeMap::new();
        for id in ids {
            by_key.entry(keys[&id].clone()).or_default().push(id);
        }
        by_key
    };
    let stored = places(stream).await.into_values();
    let stored = stored.filter(|id| keys.contains_key(id)).collect();
    let ok = batch.iter().zip(results).filter(|(_, r)| r.is_ok());
    let ok = ok.map(|(delivery, _)| delivery.event.id).collect();
    assert_eq!(by_key(stored), by_key(ok));
}

/// The event at `bad` is refused for this reason, and those of its key behind it are not stored; all others are. What
/// was behind is taken afterwards.
async fn costs_its_own_key(
    session: &Arc<dyn Session>,
    stream: &Stream,
    batch: Vec<Delivery>,
    bad: usize,
    reason: &PublishErrorKind,
) {
    let before = std::time::Instant::now();
    let results = publish(session, &batch).await;
    assert!(before.elapsed() < SOON / 4, "only the time told");
    let key = &batch[bad].event.ordering_key;
    let is_behind = |at: usize| at > bad && batch[at].event.ordering_key == *key;
    for (at, result) in results.iter().enumerate() {
        match result.as_ref().map_err(|error| &error.kind) {
            Ok(_) if at != bad && !is_behind(at) => {}
            Err(kind) if at == bad && kind == reason => {}
            Err(kind) if is_behind(at) && *kind == BEHIND => {}
            other => panic!("event {at} of a batch with a bad one at {bad}: {other:?}"),
        }
    }
    expect_stored(stream, &batch, &results).await;
    let behind = (0..batch.len()).filter(|at| is_behind(*at));
    let rest: Vec<Delivery> = behind.map(|at| batch[at].clone()).collect();
    let results = publish(session, &rest).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    expect_stored(stream, &rest, &results).await;
}

const COUNT: i64 = 300;
/// First, second, in the middle, last but one, last.
const PLACES: [usize; 5] = [0, 1, 150, 298, 299];

/// For each place a batch in which the event at this place is changed.
fn with_one_changed(change: impl Fn(&mut Event)) -> Vec<(usize, Vec<Delivery>)> {
    let batches = PLACES.iter().zip(0..).map(|(place, n)| {
        let from = 1 + n * COUNT;
        let mut batch = events(from, COUNT, 7);
        batch[*place] = on_key(from + *place as i64, 7, &change);
        (*place, batch)
    });
    batches.collect()
}

#[tokio::test]
async fn receipts_name_the_stream_and_the_places() {
    let server = nats::Server::start().await;
    let stream = create(&server, batched()).await;
    let session = open(server.url()).await;
    // The second is longer than the server's longest pause between acknowledgements.
    for (from, count) in [(1, 9), (10, 1_700), (2_000, 2), (3_000, 500)] {
        let batch = events(from, count, 3);
        let mut receipts = Vec::new();
        for result in publish(&session, &batch).await {
            let receipt = result.unwrap();
            assert_eq!(receipt.stream.as_deref(), Some("EVT"));
            assert!(!receipt.duplicate);
            receipts.push(receipt.position.unwrap());
        }
        let places = places(&stream).await;
        for (place, delivery) in receipts.iter().zip(&batch) {
            assert_eq!(places.get(place), Some(&delivery.event.id));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_others_on_the_stream_a_receipt_has_no_place_rather_than_a_wrong_one() {
    let server = nats::Server::start().await;
    let stream = create(&server, batched()).await;
    let session = open(server.url()).await;
    let jetstream = server.jetstream().await;
    let other = tokio::spawn(async move {
        loop {
            let sent = jetstream
                .publish("evt.other", Bytes::from_static(b"{}"))
                .await;
            sent.unwrap().await.unwrap();
        }
    });
    let mut batches = Vec::new();
    for round in 0..6 {
        let batch = events(1 + round * 200, 200, 5);
        let results = publish(&session, &batch).await;
        batches.push((batch, results));
    }
    other.abort();
    let places = places(&stream).await;
    let mut without = 0;
    for (batch, results) in batches {
        for (delivery, result) in batch.iter().zip(results) {
            match result.unwrap().position {
                Some(place) => assert_eq!(places.get(&place), Some(&delivery.event.id)),
                None => without += 1,
            }
        }
    }
    assert!(without > 0, "nobody was between");
}

#[tokio::test]
async fn a_message_too_large_for_the_stream_costs_its_own_key_only() {
    let server = nats::Server::start().await;
    let stream = create(
        &server,
        Config {
            max_message_size: 2_000,
            ..batched()
        },
    )
    .await;
    let session = open(server.url()).await;
    for (bad, batch) in with_one_changed(|event| {
        event.payload = Payload::Bytes(Bytes::from(vec![b'x'; 2_001]));
    }) {
        costs_its_own_key(&session, &stream, batch, bad, &rejected("too_large")).await;
    }
}

#[tokio::test]
async fn a_forbidden_subject_costs_its_own_key_only() {
    let server = nats::Server::start_with(super::bench::PERMISSIONS).await;
    let stream = admin(&server).await.create_stream(batched()).await.unwrap();
    let options = as_user(&server, "relay", "p@ss/w?rd#%:&");
    let session = Nats::new(options).unwrap().open().await.unwrap();
    for (bad, batch) in with_one_changed(|event| event.kind = "secret.key".to_owned()) {
        costs_its_own_key(&session, &stream, batch, bad, &UNAVAILABLE).await;
    }
}

/// A session whose kinds are its subjects, on stream `EVT`, next to `OTHER` with `other.>`.
async fn beside(other: Config) -> (nats::Server, Stream, Stream, Arc<dyn Session>) {
    let server = nats::Server::start().await;
    let stream = create(&server, batched()).await;
    let other = create(&server, other).await;
    let options = Options {
        subject: "{kind}".to_owned(),
        ..options(server.url())
    };
    let session = Nats::new(options).unwrap().open().await.unwrap();
    (server, stream, other, session)
}

async fn led_astray(kind: &'static str, batched: bool) {
    let other = Config {
        name: "OTHER".to_owned(),
        subjects: vec!["other.>".to_owned()],
        allow_batch_publish: batched,
        ..Config::default()
    };
    let (_server, stream, other, session) = beside(other).await;
    for (bad, mut batch) in with_one_changed(|event| event.kind = kind.to_owned()) {
        for delivery in &mut batch {
            let mut event = Event::clone(&delivery.event);
            if event.kind != kind {
                event.kind = "evt.a".to_owned();
            }
            delivery.event = Arc::new(event);
        }
        costs_its_own_key(&session, &stream, batch, bad, &UNAVAILABLE).await;
    }
    assert_eq!(other.get_info().await.unwrap().state.messages, 0);
    assert_eq!(session.mode(), "lane");
}

#[tokio::test]
async fn a_subject_that_no_stream_has_costs_its_own_key_only() {
    led_astray("nowhere.a", false).await;
}

#[tokio::test]
async fn a_subject_that_another_stream_has_costs_its_own_key_only() {
    led_astray("other.a", false).await;
}

#[tokio::test]
async fn a_subject_that_another_stream_with_batches_has_costs_its_own_key_only() {
    led_astray("other.a", true).await;
}

#[tokio::test]
async fn a_stream_that_is_full_takes_a_beginning() {
    let server = nats::Server::start().await;
    for room in [0, 1, 150, 299] {
        let stream = create(
            &server,
            Config {
                max_messages: 10 + room,
                discard: DiscardPolicy::New,
                ..batched()
            },
        )
        .await;
        let session = open(server.url()).await;
        let before = events(1, 10, 7);
        assert!(publish(&session, &before).await.iter().all(Result::is_ok));
        let batch = events(11, COUNT, 7);
        let results = publish(&session, &batch).await;
        let kinds = results
            .iter()
            .map(|r| r.as_ref().map(drop).map_err(|e| e.kind.clone()));
        for (at, kind) in kinds.enumerate() {
            let room = room as usize;
            match kind {
                Ok(()) => assert!(at < room),
                Err(kind) if at == room => assert_eq!(kind, PublishErrorKind::Full),
                Err(kind) => assert!(at > room && kind == BEHIND, "{at}: {kind:?}"),
            }
        }
        expect_stored(&stream, &batch, &results).await;
        stream.purge().await.unwrap();
        let rest = &batch[room as usize..];
        let rest = &rest[..rest.len().min(10)];
        let results = publish(&session, rest).await;
        expect_stored(&stream, rest, &results).await;
        server.jetstream().await.delete_stream("EVT").await.unwrap();
    }
}

#[tokio::test]
async fn what_the_stream_knew_before_a_batch_is_told_apart_from_what_it_stored() {
    let server = nats::Server::start().await;
    let stream = create(&server, batched()).await;
    let session = open(server.url()).await;
    let everywhere: Vec<usize> = (0..COUNT as usize).collect();
    let known: [&[usize]; 6] = [&[0], &[150], &[299], &[0, 1, 2], &[298, 299], &everywhere];
    for (round, known) in (0..).zip(known) {
        let batch = events(1 + round * COUNT, COUNT, 7);
        for at in known {
            session.publish(&batch[*at], SOON).await.unwrap();
        }
        let results = publish(&session, &batch).await;
        let places = places(&stream).await;
        for (at, result) in results.iter().enumerate() {
            let receipt = result.as_ref().unwrap();
            assert_eq!(
                receipt.duplicate,
                known.contains(&at),
                "{at} in round {round}"
            );
            let id = batch[at].event.id;
            assert_eq!(places.get(&receipt.position.unwrap()), Some(&id));
            assert_eq!(places.values().filter(|stored| **stored == id).count(), 1);
        }
    }
    let state = stream.get_info().await.unwrap().state;
    assert_eq!(state.messages, 6 * COUNT as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sessions_share_a_stream() {
    const ROUNDS: i64 = 6;
    let server = nats::Server::start().await;
    create(&server, batched()).await;
    let publishing = |half: i64| {
        let url = server.url();
        async move {
            let session = open(url).await;
            for round in 0..ROUNDS {
                let from = 1 + half * 100_000 + round * 500;
                let mut batch = events(from, 500, 4);
                for delivery in &mut batch {
                    let mut event = Event::clone(&delivery.event);
                    event.ordering_key = Some(format!("{half}-{}", event.seq % 4).into());
                    delivery.event = Arc::new(event);
                }
                for result in publish(&session, &batch).await {
                    result.unwrap();
                }
            }
        }
    };
    let before = std::time::Instant::now();
    let both = async { tokio::join!(publishing(0), publishing(1)) };
    tokio::time::timeout(SOON, both).await.unwrap();
    assert!(before.elapsed() < SOON / 2, "{:?}", before.elapsed());
    let stored = server.stored("EVT").await;
    assert_eq!(stored.len() as i64, 2 * ROUNDS * 500);
    let mut keys: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for message in &stored {
        let seq = message.header("Outbox-Seq").unwrap().parse().unwrap();
        let key = message.header("Outbox-Key").unwrap().to_owned();
        keys.entry(key).or_default().push(seq);
    }
    assert_eq!(keys.len(), 8);
    assert!(keys.values().all(|seqs| seqs.is_sorted()));
}

#[tokio::test]
async fn a_stream_that_allows_no_batches_any_more_asks_for_a_new_session() {
    let server = nats::Server::start().await;
    create(&server, batched()).await;
    let session = open(server.url()).await;
    let batch = events(1, 100, 3);
    assert!(publish(&session, &batch).await.iter().all(Result::is_ok));
    let jetstream = server.jetstream().await;
    jetstream
        .update_stream(super::bench::config())
        .await
        .unwrap();
    let batch = events(101, 100, 3);
    let results = publish(&session, &batch).await;
    assert!(results[0].as_ref().unwrap_err().is_connection_lost());
    for result in &results[1..] {
        assert_eq!(result.as_ref().unwrap_err().kind, BEHIND);
    }
    let session = open(server.url()).await;
    assert_eq!((session.mode(), session.lanes()), ("single", None));
    for delivery in &batch {
        let receipt = session.publish(delivery, SOON).await.unwrap();
        assert!(!receipt.duplicate);
    }
}

#[tokio::test]
async fn a_batch_under_way_ends_at_once_when_the_stream_allows_none_any_more() {
    let server = nats::Server::start().await;
    let stream = create(&server, batched()).await;
    let network = Proxy::to(server.address()).await;
    let session = open(format!("nats://{}", network.address())).await;
    network.set_after(40_000, Direction::ToServer, Mode::Hold);
    let batch = events(1, 500, 3);
    let change = async {
        let held = eventually(SOON, "some of it is stored", || async {
            let stored = stream.get_info().await.unwrap().state.messages;
            (stored > 10).then_some(()).ok_or(stored.to_string())
        });
        held.await;
        let jetstream = server.jetstream().await;
        let now = super::bench::config();
        jetstream.update_stream(now).await.unwrap();
        network.set(Mode::Pass);
    };
    let before = std::time::Instant::now();
    let (results, ()) = tokio::join!(publish(&session, &batch), change);
    assert!(before.elapsed() < SOON / 4, "only the time told");
    // How far the batch came was not said; what came afterwards was refused.
    let kinds = results.into_iter().map(|result| result.unwrap_err().kind);
    let kinds: Vec<_> = kinds.collect();
    let unknown = kinds
        .iter()
        .filter(|kind| **kind == PublishErrorKind::Unknown);
    let unknown = unknown.count();
    assert!(
        kinds[..unknown]
            .iter()
            .all(|kind| *kind == PublishErrorKind::Unknown)
    );
    assert!(kinds[unknown..].iter().all(|kind| *kind == BEHIND));
    let stored = places(&stream).await.len();
    assert!(
        10 < stored && stored <= unknown && unknown < 500,
        "{stored} of {unknown}"
    );
    // Whoever goes on with it is sent to a new session.
    let results = publish(&session, &batch).await;
    assert!(results[0].as_ref().unwrap_err().is_connection_lost());
}

#[tokio::test]
async fn a_stream_that_was_made_anew_is_no_reason_for_a_wrong_place() {
    let server = nats::Server::start().await;
    create(&server, batched()).await;
    let session = open(server.url()).await;
    let before = events(1, 300, 3);
    assert!(publish(&session, &before).await.iter().all(Result::is_ok));
    server.jetstream().await.delete_stream("EVT").await.unwrap();
    let stream = create(&server, batched()).await;
    let batch = events(301, 100, 3);
    let results = publish(&session, &batch).await;
    expect_stored(&stream, &batch, &results).await;
    for result in results {
        assert_eq!(result.unwrap().position, None);
    }
}

#[tokio::test]
async fn the_mode_is_what_the_stream_allows_of_what_is_wished() {
    use outboxd::sink::nats::Mode;
    let server = nats::Server::start().await;
    for (batches, atomic, [auto, lane, whole]) in [
        (false, false, ["single", "single", "single"]),
        (false, true, ["atomic", "single", "atomic"]),
        (true, false, ["lane", "lane", "single"]),
        (true, true, ["lane", "lane", "atomic"]),
    ] {
        let allowed = Config {
            allow_batch_publish: batches,
            allow_atomic_publish: atomic,
            ..super::bench::config()
        };
        create(&server, allowed).await;
        for (mode, shown) in [
            (Mode::Auto, auto),
            (Mode::Lane, lane),
            (Mode::Atomic, whole),
            (Mode::Single, "single"),
        ] {
            let options = Options {
                mode,
                ..options(server.url())
            };
            let session = Nats::new(options).unwrap().open().await.unwrap();
            let allowed = format!("{mode:?} with batches {batches}, atomic {atomic}");
            assert_eq!(session.mode(), shown, "{allowed}");
            assert_eq!(session.lanes().is_some(), shown != "single", "{allowed}");
        }
        server.jetstream().await.delete_stream("EVT").await.unwrap();
    }
}
