//! Reads the stream.

use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt;

use crate::audit::Arrived;
use crate::stage::Stage;

/// Everything in the stream, in its order.
pub async fn arrived(stage: &Stage) -> Vec<Arrived> {
    let stream = stage
        .nats
        .jetstream()
        .await
        .get_stream("EVENTS")
        .await
        .unwrap();
    let total = stream.cached_info().state.messages;
    let mut arrived = Vec::with_capacity(usize::try_from(total).unwrap());
    if total == 0 {
        return arrived;
    }
    let config = OrderedConfig {
        headers_only: true,
        ..OrderedConfig::default()
    };
    let consumer = stream.create_consumer(config).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    for _ in 0..total {
        let message = messages.next().await.unwrap().unwrap();
        let stored = message.info().unwrap().published.unix_timestamp_nanos();
        let headers = message.headers.as_ref().unwrap();
        let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
        arrived.push(Arrived {
            id: header("Nats-Msg-Id").unwrap_or_default(),
            seq: header("Outbox-Seq").unwrap().parse().unwrap(),
            key: header("Outbox-Key"),
            request_id: header("request_id").unwrap_or_default(),
            stored: i64::try_from(stored).unwrap(),
        });
    }
    arrived
}
