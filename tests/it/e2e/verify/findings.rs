//! Each thing that can be wrong, made wrong by real means.

use std::time::Duration;

use async_nats::jetstream::stream::Config;
use uuid::Uuid;

use super::*;

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["events.>".to_owned()],
        allow_batch_publish: true,
        ..Config::default()
    };
    change(&mut config);
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_deleted_is_missing() {
    let (bench, written) = delivered(&["a"], 20).await;
    let stream = stream(&bench).await;
    for place in [1, 7] {
        stream.delete_message(place).await.unwrap();
    }
    let (feed, ended) = wrong(&bench);
    assert_eq!(counts(&feed), [2, 0, 0, 0], "{feed}");
    let missing = feed["missing"]["first"].as_array().unwrap();
    for (missing, place) in missing.iter().zip([1, 7]) {
        let event = &written[place - 1];
        assert_eq!(missing["id"], event.id.to_string());
        assert_eq!(missing["seq"], event.seq);
        assert_eq!(missing["key"], event.key);
        assert_eq!(missing["position"], place);
    }
    // The first message, too: no limit of the stream explains that it begins later.
    assert!(
        missing[0]["why"].as_str().unwrap().contains("purged"),
        "{feed}"
    );
    assert!(
        missing[1]["why"]
            .as_str()
            .unwrap()
            .contains("gone from its place"),
        "{feed}"
    );
    let words =
        "orders -> events: 2 missing: delivered by the database's word, and not in the sink";
    assert!(ended.stderr.contains(words), "{ended:?}");
    assert!(
        ended.stdout.contains(&written[6].id.to_string()),
        "{ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_purged_lost_what_it_held() {
    let (bench, _) = delivered(&["a", "b"], 20).await;
    stream(&bench).await.purge().await.unwrap();
    let (feed, ended) = wrong(&bench);
    assert_eq!(counts(&feed), [40, 0, 0, 0], "{feed}");
    assert_eq!(feed["missing"]["first"].as_array().unwrap().len(), 20);
    assert_eq!(feed["aged_out"], 0);
    assert!(
        ended
            .stdout
            .contains("no limit explains that: it was purged"),
        "{ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_made_anew_lost_everything_before() {
    let (bench, _) = delivered(&["a", "b"], 20).await;
    let context = bench.nats.jetstream().await;
    context.delete_stream(STREAM).await.unwrap();
    let (feed, _) = wrong(&bench);
    assert_eq!(counts(&feed), [40, 0, 0, 0], "without a stream: {feed}");
    context.create_stream(config(|_| ())).await.unwrap();
    // Other events stand where those did.
    bench.insert(&["c"], 30).await;
    deliver(&bench).await;
    let (feed, ended) = wrong(&bench);
    assert_eq!(counts(&feed), [40, 0, 0, 0], "{feed}");
    assert_eq!(
        (&feed["delivered"], &feed["held"]),
        (&70.into(), &30.into())
    );
    assert!(
        ended
            .stdout
            .contains("was made anew since it was delivered"),
        "{ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_nobody_has_no_row() {
    let (bench, _) = delivered(&["a"], 3).await;
    let id = Uuid::now_v7();
    assert!(!send(&bench, &id.to_string(), 99, "a%2F").await);
    // Messages of others in the same stream are none of ours.
    let context = bench.nats.jetstream().await;
    let other = context.publish("events.other", "{}".into()).await.unwrap();
    other.await.unwrap();
    let (feed, ended) = wrong(&bench);
    assert_eq!(counts(&feed), [0, 1, 0, 0], "{feed}");
    assert_eq!((&feed["delivered"], &feed["held"]), (&3.into(), &4.into()));
    let first = &feed["without_row"]["first"][0];
    assert_eq!(first["id"], id.to_string());
    assert_eq!((&first["seq"], &first["position"]), (&99.into(), &4.into()));
    assert_eq!(first["key"], "a/");
    let words = "1 without a row: in the sink, and unknown to the database";
    assert!(ended.stderr.contains(words), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_is_stored_twice_is_duplicated() {
    let bench = Bench::new(&[]).await;
    let context = bench.nats.jetstream().await;
    let forgetful = config(|config| config.duplicate_window = Duration::from_millis(100));
    context.create_stream(forgetful).await.unwrap();
    let written = bench.insert(&["a"], 5).await;
    deliver(&bench).await;
    let second = &written[1];
    sent_again(&bench, &second.id.to_string(), second.seq, "a").await;
    let (feed, ended) = wrong(&bench);
    assert_eq!(
        counts(&feed),
        [0, 0, 1, 0],
        "a copy is not out of order: {feed}"
    );
    let first = &feed["duplicated"]["first"][0];
    assert_eq!(first["id"], second.id.to_string());
    assert_eq!(
        (&first["seq"], &first["position"]),
        (&second.seq.into(), &6.into())
    );
    assert_eq!(first["why"], "it stands at 2 already");
    let words = "1 duplicated: copies of messages that the sink holds already";
    assert!(ended.stderr.contains(words), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_came_behind_a_later_one_of_its_key_is_out_of_order() {
    let bench = Bench::new(&[]).await;
    let context = bench.nats.jetstream().await;
    context.create_stream(config(|_| ())).await.unwrap();
    let written = bench.insert(&["a", "b"], 3).await;
    // Somebody else sends two of them first, the wrong way round; the relay's copies are dropped.
    for place in [2, 0] {
        let event = &written[place];
        assert!(!send(&bench, &event.id.to_string(), event.seq, &event.key).await);
    }
    deliver(&bench).await;
    let (feed, ended) = wrong(&bench);
    assert_eq!(counts(&feed), [0, 0, 0, 1], "{feed}");
    let first = &feed["out_of_order"]["first"][0];
    assert_eq!(first["id"], written[0].id.to_string());
    assert_eq!(
        (&first["seq"], &first["key"]),
        (&written[0].seq.into(), &"a".into())
    );
    assert_eq!(first["position"], 2);
    assert_eq!(first["why"], "it came behind seq 3 of its key");
    let words = "1 out of order: for the first time behind a later event of their key";
    assert!(ended.stderr.contains(words), "{ended:?}");
    assert!(
        ended.stderr.contains("with gap_guard = \"off\""),
        "{ended:?}"
    );
}
