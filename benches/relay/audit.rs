//! Whether what arrived in the stream is as it should be: every event, once, and each key in its order. Pure;
//! `tests/it/measurements.rs` shows that it finds what is wrong.

use std::collections::{HashMap, HashSet};

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

/// What is wrong with it, if `events` different ones should be there.
pub fn findings(arrived: &[Arrived], events: u64) -> Vec<String> {
    let mut findings = Vec::new();
    let mut ids = HashSet::new();
    let mut seqs = HashSet::new();
    let mut last: HashMap<&str, i64> = HashMap::new();
    let (mut repeated, mut out_of_order) = (0, 0);
    for message in arrived {
        let seen = !seqs.insert(message.seq);
        if seen || message.id.is_empty() || !ids.insert(message.id.as_str()) {
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
        findings.push(format!("{repeated} messages are repeated, or have no id"));
    }
    if out_of_order > 0 {
        findings.push(format!(
            "{out_of_order} messages before an earlier one of their key"
        ));
    }
    findings
}
