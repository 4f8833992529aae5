//! The broker fails.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, DiscardPolicy};
use serde_json::json;
use tokio::time::Instant;

use super::super::bench::STREAM;
use super::{Bench, SHOWN, SHOWN_HALF_OPEN, Scene, lasts};
use crate::support::cluster::Cluster;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{nats, postgres};

/// How soon after a link is mended, or somebody's doing undone, events are published, and the rate is that of before.
const FIRST: Duration = Duration::from_secs(2);
const FULL: Duration = Duration::from_secs(10);
/// The default.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(4);

/// A relay that reaches its broker by way of a proxy.
async fn behind_a_proxy() -> (Scene, Proxy) {
    let bench = Bench::new(&[]).await;
    let network = Proxy::to(bench.nats.address()).await;
    let url = format!("nats://{}", network.address());
    let bench = bench.with(&[("sinks.events.url", &url)]);
    (Scene::new(bench).await, network)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_refuses_connections() {
    const OUTAGE: Duration = Duration::from_secs(12);
    let (scene, network) = behind_a_proxy().await;
    network.set(Mode::Cut);
    let outage = scene.shows("sink", "", SHOWN).await;
    let before = network.accepted();
    lasts(&outage, OUTAGE).await;
    let attempts = network.accepted() - before;
    assert!(attempts <= OUTAGE.as_secs() as usize, "{attempts} attempts");
    network.set(Mode::Pass);
    scene.recovers("refused", outage, FIRST, FULL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_to_the_broker_on_which_nothing_passes() {
    let (scene, network) = behind_a_proxy().await;
    network.set(Mode::Hole);
    let outage = scene.shows("sink", "", SHOWN_HALF_OPEN).await;
    lasts(&outage, Duration::from_secs(20)).await;
    network.set(Mode::Pass);
    scene.recovers("half-open", outage, FIRST, FULL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_to_the_broker_that_carries_no_answers() {
    let (scene, network) = behind_a_proxy().await;
    network.set(Mode::Mute);
    let outage = scene.shows("sink", "", SHOWN_HALF_OPEN).await;
    lasts(&outage, Duration::from_secs(20)).await;
    network.set(Mode::Pass);
    scene.recovers("no answers", outage, FIRST, FULL).await;
}

/// The server itself is gone, and comes back with what it had stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed() {
    let mut scene = Scene::new(Bench::new(&[]).await).await;
    scene.bench.nats.kill9();
    let outage = scene.shows("sink", "", SHOWN).await;
    lasts(&outage, Duration::from_secs(12)).await;
    scene.bench.nats.restart().await;
    scene.recovers("killed broker", outage, FIRST, FULL).await;
}

async fn configuration(scene: &Scene) -> (Context, Config) {
    let context = scene.bench.nats.jetstream().await;
    let mut stream = context.get_stream(STREAM).await.unwrap();
    let config = stream.info().await.unwrap().config.clone();
    (context, config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_full() {
    let scene = Scene::new(Bench::new(&[]).await).await;
    let (context, config) = configuration(&scene).await;
    let full = Config {
        max_messages: scene.bench.count().await as i64,
        discard: DiscardPolicy::New,
        ..config.clone()
    };
    context.update_stream(full).await.unwrap();
    let outage = scene.shows("sink", "", SHOWN).await;
    lasts(&outage, Duration::from_secs(12)).await;
    context.update_stream(config).await.unwrap();
    scene.recovers("full stream", outage, FIRST, FULL).await;
}

/// Whoever deletes a stream takes what it held; what comes later waits until there is one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_deleted() {
    let bench = Bench::new(&[("sinks.events.create_stream", "false")]).await;
    let config = json!({"name": STREAM, "subjects": ["events.>"], "allow_batched": true});
    bench.nats.create_stream(config).await;
    let scene = Scene::new(bench).await;
    let (context, config) = configuration(&scene).await;
    context.delete_stream(STREAM).await.unwrap();
    let outage = scene.shows("sink", "", SHOWN).await;
    lasts(&outage, Duration::from_secs(12)).await;
    context.create_stream(config).await.unwrap();
    scene
        .recovers_elsewhere("deleted stream", outage, FIRST, FULL)
        .await;
}

/// Nobody may publish any more, and then again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_takes_its_permission_back() {
    let users = |denied: &str| {
        format!(
            "no_auth_user: everybody
             authorization {{ users: [
               {{ user: relay, password: \"x\", permissions: {{ publish: {{ deny: [{denied}] }} }} }}
               {{ user: everybody, password: \"y\" }}
             ] }}"
        )
    };
    let database = postgres::server().await.database().await;
    let server = nats::Server::start_with(&users("")).await;
    let bench = Bench::over(database, server, &[]).await;
    let bench = bench.with(&[
        ("sinks.events.user", "relay"),
        ("sinks.events.password", "x"),
    ]);
    let mut scene = Scene::new(bench).await;
    scene.bench.nats.reload(&users("\"events.>\""));
    let outage = scene.shows("sink", "", SHOWN).await;
    lasts(&outage, Duration::from_secs(12)).await;
    scene.bench.nats.reload(&users(""));
    scene.recovers("no permission", outage, FIRST, FULL).await;
}

/// Two of three nodes are gone: the one that is left takes connections, and stores nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_a_leader() {
    let mut cluster = Cluster::start().await;
    let subjects = json!({"subjects": ["events.>"], "allow_batched": true});
    cluster.create_stream(STREAM, subjects).await;
    cluster.healthy(STREAM).await;
    let urls = cluster.urls();
    let database = postgres::server().await.database().await;
    let mut bench = Bench::over(database, nats::Server::start().await, &[]).await;
    std::mem::swap(&mut bench.nats, cluster.node(0));
    let bench = bench.with(&[("sinks.events.url", urls.as_str())]);
    let scene = Scene::new(bench).await;
    for node in [1, 2] {
        cluster.node(node).kill9();
    }
    let outage = scene.shows("sink", "", SHOWN_HALF_OPEN).await;
    lasts(&outage, Duration::from_secs(20)).await;
    for node in [1, 2] {
        cluster.node(node).restart().await;
    }
    cluster.healthy(STREAM).await;
    // What was sent to nobody in the last moment is waited for.
    let first = FIRST + PUBLISH_TIMEOUT;
    scene.recovers("no leader", outage, first, FULL).await;
}

/// Slow is not broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_slow() {
    let (scene, network) = behind_a_proxy().await;
    network.set(Mode::Lag(Duration::from_millis(250)));
    let began = Instant::now();
    // The link itself.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let rate = scene.sent.since(began) as f64 / began.elapsed().as_secs_f64();
    println!(
        "half a second for an answer: {rate:.0} of {:.0} events a second",
        scene.rate
    );
    assert!(rate > scene.rate * 0.8, "{rate} of {}", scene.rate);
    assert!(scene.running.relay.board().ready().is_empty());
    network.set(Mode::Pass);
    let outage = super::Outage {
        began,
        shown: Duration::ZERO,
    };
    scene.recovers("slow", outage, FIRST, FULL).await;
}
