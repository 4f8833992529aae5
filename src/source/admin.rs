//! What commands do to an outbox: migrate it, put events in, look at it, decide about discarded events.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::trail::{Hand, Known, Take, Tally, Window};
use super::waiting::{KeyEvent, KeyName, Pick, Waiting};
use super::{Backlog, LeaseView, Pause, SourceError, Target};

/// The operator's side of a source.
#[async_trait]
pub trait Admin: Send + Sync + 'static {
    /// Brings the schema up to date. Safe to call from many processes at once.
    async fn migrate(&self) -> Result<Migrated, SourceError>;

    /// The SQL that [`Admin::migrate`] would run now, one string per pending migration; needs no rights
    /// beyond reading.
    async fn pending_sql(&self) -> Result<Vec<PendingMigration>, SourceError>;

    /// The SQL that gives these roles the rights they need and no more; `None` where the database knows no
    /// roles. Touches nothing.
    fn grants(&self, roles: &Roles) -> Option<String> {
        let _ = roles;
        None
    }

    /// Inserts events in one transaction, in order; returns their ids.
    async fn publish(&self, events: &[NewEvent]) -> Result<Vec<Uuid>, SourceError>;

    /// What `status` shows about the database itself.
    async fn status(&self) -> Result<Status, SourceError>;

    /// Discarded events, newest first.
    async fn discarded(
        &self,
        filter: &DiscardedFilter,
        limit: u32,
    ) -> Result<Vec<Discarded>, SourceError>;

    /// Puts discarded events back under their own seq, tells the owners, and writes the audit row, all in one
    /// transaction. Returns how many.
    async fn requeue(&self, filter: &DiscardedFilter, by: &Operator) -> Result<u64, SourceError>;

    /// Deletes discarded events for good, with an audit row. Returns how many.
    async fn drop_discarded(
        &self,
        filter: &DiscardedFilter,
        by: &Operator,
    ) -> Result<u64, SourceError>;

    /// What a requeue of these would overtake.
    async fn overtakes(&self, filter: &DiscardedFilter) -> Result<Overtakes, SourceError>;

    /// Everything that is paused.
    async fn pauses(&self) -> Result<Vec<Pause>, SourceError>;

    /// Holds something back, tells the owners, and writes the audit row, all in one transaction. False: it was
    /// held back already, and nothing is changed.
    async fn pause(&self, target: &Target, by: &Operator) -> Result<bool, SourceError>;

    /// Lets it go on, as [`Admin::pause`]. False: it was not paused.
    async fn resume(&self, target: &Target, by: &Operator) -> Result<bool, SourceError>;

    /// Events that wait, at most about `limit`: failed ones, those to be skipped, and delayed heads of keys.
    /// Bounded work, whatever the table holds.
    async fn waiting(&self, sink: Option<&str>, limit: u32) -> Result<Vec<Waiting>, SourceError>;

    /// The first events of a key that this sink is not done with, ascending, at most `limit`.
    async fn key_events(
        &self,
        sink: &str,
        key: &KeyName,
        limit: u32,
    ) -> Result<Vec<KeyEvent>, SourceError>;

    /// Makes events that back off due at once, those that are blocked with a fresh budget, and has the owners
    /// look at all of `picks`; with an audit row. Returns how many were backing off.
    async fn hurry(&self, picks: &[Pick], by: &Operator) -> Result<u64, SourceError>;

    /// Marks pending events to be set aside with reason `operator`, tells the owners, and writes the audit row.
    /// The owner sets an event aside as soon as it is not out. Returns how many were still pending.
    async fn skip(&self, picks: &[Pick], by: &Operator) -> Result<u64, SourceError>;

    /// Distinct kinds among the pending events (a bounded sample), for `check`.
    async fn pending_kinds(&self, limit: u32) -> Result<Vec<String>, SourceError>;

    /// Walks what was delivered to `sink` in this window by the database's word: the history, and marks of events
    /// that are still there. In no particular order, an event perhaps more than once, in statements of bounded work.
    async fn trail(&self, sink: &str, window: Window, take: Take<'_>) -> Result<(), SourceError>;

    /// What else the window holds for `sink`. Walks the pending events, in statements of bounded work.
    async fn tally(&self, sink: &str, window: Window) -> Result<Tally, SourceError>;

    /// What is known of each of these events (seq, where it is known, and id), in their order, as of one moment:
    /// an event that is just being settled is found.
    async fn trace(
        &self,
        events: &[(Option<i64>, Uuid)],
    ) -> Result<Vec<Option<Known>>, SourceError>;

    /// What operators did to these events for `sink`, as far as the audit tells.
    async fn hands(&self, sink: &str, seqs: &[i64]) -> Result<Vec<(i64, Hand)>, SourceError>;
}

/// The roles to grant rights to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    /// Runs the relay: reads, settles, owns nothing.
    pub relay: String,
    /// Inserts events, through the publish functions or by a plain INSERT.
    pub writer: String,
    /// Sees status and discarded events, changes nothing.
    pub viewer: String,
    /// Requeues and drops discarded events, pauses, resumes and skips.
    pub operator: String,
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Migrated {
    /// Version before; 0 when there was nothing.
    pub from: i64,
    /// Version now.
    pub to: i64,
}

/// A migration that has not run yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingMigration {
    /// Version it leads to.
    pub version: i64,
    /// Its name.
    pub name: String,
    /// The statements.
    pub sql: String,
}

/// An event to insert.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewEvent {
    /// Kind.
    pub kind: String,
    /// JSON text, kept byte for byte. Exactly one of this and `payload_bytes`.
    #[serde(default)]
    pub payload: Option<Box<serde_json::value::RawValue>>,
    /// Any bytes.
    #[serde(default, skip)]
    pub payload_bytes: Option<Vec<u8>>,
    /// Content type.
    #[serde(default)]
    pub content_type: Option<String>,
    /// Key.
    #[serde(default)]
    pub ordering_key: Option<String>,
    /// Headers.
    #[serde(default)]
    pub headers: std::collections::BTreeMap<String, String>,
    /// Delay until it is due.
    #[serde(default, with = "humantime_serde::option")]
    pub delay: Option<Duration>,
    /// Identity; made when absent.
    #[serde(default)]
    pub id: Option<Uuid>,
}

/// Selects discarded events. All conditions must hold; an empty filter selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscardedFilter {
    /// These ids.
    pub ids: Vec<Uuid>,
    /// For this sink.
    pub sink: Option<String>,
    /// Of this kind (exact, or a trailing `*`).
    pub kind: Option<String>,
    /// With this ordering key.
    pub ordering_key: Option<String>,
    /// For this reason.
    pub reason: Option<String>,
    /// With this code.
    pub code: Option<String>,
    /// Set aside at least this long ago.
    pub older_than: Option<Duration>,
}

/// What a requeue overtakes: a requeued event keeps its seq, and goes out when it is there again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Overtakes {
    /// Events looked at: the newest that are selected, up to [`Overtakes::LOOKED_AT`].
    pub events: u64,
    /// Keys of theirs that have later events pending.
    pub pending_keys: u64,
    /// Those later events, counted up to [`super::waiting::MAX_BEHIND`] a key: the requeued ones go out before
    /// them, whenever they are not out yet.
    pub pending_events: u64,
    /// Events that come behind a later one of their key that was published already.
    pub late: u64,
    /// The history went on beyond what was looked at: `late` is a floor.
    pub late_bounded: bool,
}

impl Overtakes {
    /// Most events looked at.
    pub const LOOKED_AT: u32 = 10_000;
    /// Most rows of the history looked at.
    pub const HISTORY: u32 = 200_000;
}

impl Operator {
    /// The words that an event to be skipped carries, and later its last error.
    pub(crate) fn skips(&self) -> String {
        match &self.reason {
            Some(reason) => format!("skipped by {}: {reason}", self.name),
            None => format!("skipped by {}", self.name),
        }
    }
}

/// A discarded event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Discarded {
    /// Place it had.
    pub seq: i64,
    /// Identity.
    pub id: Uuid,
    /// For which sink.
    pub sink: String,
    /// Kind.
    pub kind: String,
    /// Key.
    pub ordering_key: Option<String>,
    /// Why.
    pub reason: String,
    /// The sink's word.
    pub code: Option<String>,
    /// The last error.
    pub last_error: String,
    /// Charged failures.
    pub attempts: i64,
    /// When, RFC 3339.
    pub discarded_at: String,
    /// Size of the payload in bytes.
    pub size: u64,
    /// Payload as text: JSON as written, bytes as base64.
    pub payload: Option<String>,
    /// Headers as JSON text.
    pub headers: String,
}

/// Who acts, for the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Name.
    pub name: String,
    /// Reason in words.
    pub reason: Option<String>,
}

/// What the database itself tells about its outbox.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Pending.
    pub backlog: Backlog,
    /// Shards and owners.
    pub leases: Vec<LeaseView>,
    /// Instances with a sign of life in the last minute or so.
    pub instances: Vec<InstanceView>,
    /// Discarded events per sink.
    pub discarded: Vec<SinkCount>,
    /// What operators hold back.
    pub pauses: Vec<Pause>,
}

/// A number per sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SinkCount {
    /// Sink.
    pub sink: String,
    /// Number.
    pub count: u64,
}

/// An instance as the database knows it.
#[derive(Debug, Clone, Serialize)]
pub struct InstanceView {
    /// Identity.
    pub instance: Uuid,
    /// Host.
    pub host: String,
    /// Version.
    pub version: String,
    /// Its wake-up channel is open.
    pub listening: bool,
    /// Seconds since its last sign of life.
    pub seen_s: f64,
    /// Its own report as JSON.
    pub report: serde_json::Value,
}

/// Bytes as text, RFC 4648 with padding: how [`Discarded::payload`] shows what is no JSON.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let index = (bits >> (18 - 6 * at)) & 63;
            match at <= chunk.len() {
                true => text.push(char::from(ALPHABET[index as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_agrees_with_the_vectors_of_rfc_4648() {
        let vectors = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (length, text) in vectors.iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), *text);
        }
    }
}
