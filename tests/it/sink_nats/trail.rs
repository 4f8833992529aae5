//! Streams are read back whole and in order, with the rights of a reader, and nothing is left behind.

use async_nats::jetstream::stream::Stream;
use outboxd::event::Timestamp;
use outboxd::sink::Sink;
use outboxd::sink::nats::{Nats, Options};
use outboxd::sink::trail::{Held, Readback, Start, Trail};
use outboxd::testing::sink::{delivery, delivery_of};

use super::bench::{SOON, admin, batched, config, create, options};
use crate::support::nats;

/// More than two requests bring.
const MANY: i64 = 2_500;

/// A stream with this many events of source `conformance`, and a message of nobody behind them.
async fn filled(server: &nats::Server, events: i64) -> Stream {
    let stream = create(server, batched()).await;
    let session = Nats::new(options(server.url()))
        .unwrap()
        .open()
        .await
        .unwrap();
    let all: Vec<_> = (1..=events).map(delivery).collect();
    for batch in all.chunks(500) {
        for result in session.publish_batch(batch, SOON, SOON).await {
            result.unwrap();
        }
    }
    session.close().await;
    let context = server.jetstream().await;
    let other = context.publish("evt.other", "{}".into()).await.unwrap();
    other.await.unwrap();
    stream
}

async fn trail(options: Options, source: &str) -> Box<dyn Trail> {
    match Nats::new(options).unwrap().trail(source).await.unwrap() {
        Readback::Trail(trail) => trail,
        Readback::No(why) => panic!("{why}"),
    }
}

async fn rest(trail: &mut dyn Trail) -> Vec<Held> {
    let mut all = Vec::new();
    while let Some(held) = trail.next().await.unwrap() {
        all.extend(held);
    }
    all
}

async fn read(trail: &mut dyn Trail, start: Start) -> Vec<Held> {
    trail.begin(start).await.unwrap();
    rest(trail).await
}

fn places(held: &[Held]) -> Vec<u64> {
    held.iter().map(|held| held.place).collect()
}

#[tokio::test]
async fn a_stream_is_read_from_where_one_wants_to_its_end() {
    let server = nats::Server::start().await;
    let mut stream = filled(&server, MANY).await;
    let mut trail = trail(options(server.url()), "conformance").await;
    let extent = trail.extent().await.unwrap();
    assert_eq!((extent.first, extent.last), (1, MANY as u64 + 1));
    assert_eq!(extent.container, "EVT");
    let all = read(&mut *trail, Start::First).await;
    assert_eq!(places(&all), (1..=MANY as u64).collect::<Vec<_>>());
    for held in &all {
        let event = delivery(held.place as i64).event;
        assert_eq!(
            (held.id, held.seq, held.replay),
            (event.id, Some(event.seq), false)
        );
        assert_eq!(held.ordering_key.as_deref(), event.ordering_key.as_deref());
    }
    assert!(all.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert!(extent.created.unwrap() <= all[0].at && all[0].at <= extent.first_at.unwrap());
    let from = read(&mut *trail, Start::Place(2_400)).await;
    assert_eq!(from, all[2_399..]);
    let middle = all[1_200].at;
    let from = read(&mut *trail, Start::Time(middle)).await;
    let since = all.iter().position(|held| held.at >= middle).unwrap();
    assert_eq!(from, all[since..]);
    assert_eq!(read(&mut *trail, Start::Time(Timestamp::now())).await, []);
    // What comes while it is read is not waited for, and what goes is not.
    trail.begin(Start::First).await.unwrap();
    let mut held = trail.next().await.unwrap().unwrap();
    stream.purge().await.unwrap();
    held.extend(rest(&mut *trail).await);
    assert!(
        held.len() >= 500 && held.len() <= MANY as usize,
        "{}",
        held.len()
    );
    assert_eq!(trail.next().await.unwrap(), None);
    trail.close().await;
    assert_eq!(stream.info().await.unwrap().state.consumer_count, 0);
}

#[tokio::test]
async fn a_consumer_that_goes_is_followed_by_another_that_leaves_nothing_out() {
    let server = nats::Server::start().await;
    let stream = filled(&server, MANY).await;
    let mut trail = trail(options(server.url()), "conformance").await;
    trail.begin(Start::First).await.unwrap();
    let mut held = trail.next().await.unwrap().unwrap();
    use futures_util::TryStreamExt as _;
    let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
    assert!(names[0].starts_with("outboxd-verify-"), "{names:?}");
    stream.delete_consumer(&names[0]).await.unwrap();
    held.extend(rest(&mut *trail).await);
    assert_eq!(places(&held), (1..=MANY as u64).collect::<Vec<_>>());
    trail.close().await;
}

#[tokio::test]
async fn only_the_messages_of_the_source_are_told() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let session = Nats::new(options(server.url()))
        .unwrap()
        .open()
        .await
        .unwrap();
    for (n, source) in [(1, "a"), (2, "a b"), (3, "a"), (4, "a:b")] {
        let mut delivery = delivery_of(n, |event| event.ordering_key = Some("k / ä".into()));
        delivery.source = source.into();
        session.publish(&delivery, SOON).await.unwrap();
    }
    for (source, expected) in [("a", &[1, 3][..]), ("a b", &[2]), ("a:b", &[4]), ("b", &[])] {
        let mut trail = trail(options(server.url()), source).await;
        let held = read(&mut *trail, Start::First).await;
        assert_eq!(places(&held), expected, "{source}");
        assert!(
            held.iter()
                .all(|held| held.ordering_key.as_deref() == Some("k / ä"))
        );
    }
}

/// The rights that the module names, and no others.
const READER: &str = r#"authorization { users: [
    { user: reader, password: "x", permissions: {
        publish: { allow: [
            "$JS.API.STREAM.INFO.EVT", "$JS.API.CONSUMER.CREATE.EVT.*", "$JS.API.CONSUMER.MSG.NEXT.EVT.*",
            "$JS.API.CONSUMER.INFO.EVT.*", "$JS.API.CONSUMER.DELETE.EVT.*" ] },
        subscribe: { allow: ["_INBOX.>"] } } },
    { user: relay, password: "x", permissions: {
        publish: { allow: ["$JS.API.STREAM.INFO.EVT", "evt.>"] }, subscribe: { allow: ["_INBOX.>"] } } },
    { user: admin, password: "x" }
] }"#;

#[tokio::test]
async fn a_readers_rights_are_enough_and_missing_ones_are_told() {
    let server = nats::Server::start_with(READER).await;
    let mut stream = admin(&server).await.create_stream(config()).await.unwrap();
    let as_user = |user| super::bench::as_user(&server, user, "x");
    let session = Nats::new(as_user("relay")).unwrap().open().await.unwrap();
    session.publish(&delivery(1), SOON).await.unwrap();
    let mut reader = trail(as_user("reader"), "conformance").await;
    assert_eq!(read(&mut *reader, Start::First).await.len(), 1);
    reader.close().await;
    assert_eq!(stream.info().await.unwrap().state.consumer_count, 0);

    let mut relay = trail(as_user("relay"), "conformance").await;
    let error = relay.begin(Start::First).await.unwrap_err().message;
    let words = "this user may not publish to $JS.API.CONSUMER.CREATE.EVT.outboxd-verify-";
    assert!(error.contains(words), "{error}");
}

#[tokio::test]
async fn a_stream_that_is_missing_holds_nothing_only_if_it_would_be_made() {
    let server = nats::Server::start().await;
    let missing = Nats::new(options(server.url())).unwrap();
    let error = missing.trail("conformance").await.err().unwrap();
    assert!(error.message.contains("does not exist"), "{error}");
    let made = Options {
        create_stream: true,
        ..options(server.url())
    };
    let mut trail = trail(made, "conformance").await;
    assert_eq!(read(&mut *trail, Start::First).await, []);
    let extent = trail.extent().await.unwrap();
    assert!(extent.first > extent.last);
}
