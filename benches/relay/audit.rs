//! What arrived in the stream: every event, once, and each key in its order.

use std::collections::{HashMap, HashSet};

use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt;

use crate::stage::Stage;

/// One message of the stream, by its headers.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// `Nats-Msg-Id`.
    pub id: String,
    /// `Outbox-Seq`.
    pub seq: i64,
    /// `Outbox-Key`.
    pub key: Option<String>,
    /// `request_id`, a header of the event itself.
    pub request_id: String,
    /// When it was stored, by the stream's word: nanoseconds since 1970.
    pub stored: i64,
}

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

/// What is wrong with it, if `events` different ones should be there.
pub fn findings(arrived: &[Arrived], events: u64) -> Vec<String> {
    let mut findings = Vec::new();
    let mut ids = HashSet::new();
    let mut seqs = HashSet::new();
    let mut last: HashMap<&str, i64> = HashMap::new();
    let (mut repeated, mut out_of_order) = (0, 0);
    for message in arrived {
        seqs.insert(message.seq);
        if message.id.is_empty() || !ids.insert(message.id.as_str()) {
            repeated += 1;
            continue;
        }
        let Some(key) = &message.key else { continue };
        let before = last.insert(key, message.seq);
        if before.is_some_and(|before| before >= message.seq) {
            out_of_order += 1;
        }
    }
    if seqs.len() as u64 != events {
        findings.push(format!("{} events of {events} arrived", seqs.len()));
    }
    if repeated > 0 {
        findings.push(format!(
            "{repeated} messages without an id or with one seen before"
        ));
    }
    if out_of_order > 0 {
        findings.push(format!(
            "{out_of_order} messages before an earlier one of their key"
        ));
    }
    findings
}
