//! The tables, and what reading them means.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::event::{Payload, Timestamp};
use crate::sink::Receipt;
use crate::source::admin::{Discarded, base64};
use crate::source::settlement::{Mark, Marked, clean};
use crate::source::trail::Hand;
use crate::source::{
    Body, Heartbeat, INLINE_LIMIT, Outcome, Pause, PublishedKeep, Row, Share, SourceError,
    SourceErrorKind, Target, Verdict,
};
use crate::testing::source::{Kept, NewRow};

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) seq: i64,
    pub(super) id: Uuid,
    pub(super) kind: String,
    pub(super) ordering_key: Option<Arc<str>>,
    pub(super) available_at: Timestamp,
    pub(super) body: Body,
}

#[derive(Debug, Clone)]
pub(super) struct Delivery {
    pub(super) mark: Mark,
    pub(super) attempts: u32,
    pub(super) next_at: Option<Timestamp>,
    pub(super) last_error: Option<String>,
    pub(super) failed_at: Option<Timestamp>,
    /// When this was written.
    pub(super) at: Timestamp,
    /// An operator's word that the sink shall not get it.
    pub(super) skip: Option<String>,
    pub(super) route: Arc<[Arc<str>]>,
    /// The acknowledgement of a publish.
    pub(super) receipt: Option<Receipt>,
    /// A publish that the history lacks: it must have it before the row goes.
    pub(super) owed: Option<(u32, Receipt)>,
}

#[derive(Debug)]
pub(super) struct History {
    pub(super) at: Timestamp,
    pub(super) key: Option<Arc<str>>,
    pub(super) kept: Kept,
}

#[derive(Debug)]
pub(super) struct Dead {
    pub(super) at: Timestamp,
    pub(super) shown: Discarded,
    pub(super) row: Stored,
    pub(super) route: Arc<[Arc<str>]>,
}

#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) owner: Option<Uuid>,
    pub(super) token: i64,
    pub(super) expires_at: Timestamp,
    pub(super) in_hand: Vec<i64>,
    pub(super) alone: bool,
    pub(super) deaths: u32,
    pub(super) suspects: Vec<i64>,
}

impl Held {
    /// Its owner did not give it back.
    pub(super) fn died(&mut self) {
        self.deaths = match (self.in_hand.is_empty(), self.alone) {
            (true, _) => 1,
            (false, false) => 2,
            (false, true) => 3,
        };
        self.suspects = std::mem::take(&mut self.in_hand);
    }

    /// Nothing is in hand.
    pub(super) fn put_down(&mut self) {
        self.in_hand.clear();
        self.alone = false;
    }

    /// Nobody's any more.
    pub(super) fn give_back(&mut self, now: Timestamp) {
        self.put_down();
        self.owner = None;
        self.expires_at = now;
    }

    /// Nobody owns it, or its lease is over.
    pub(super) fn is_free(&self, now: Timestamp) -> bool {
        self.owner.is_none() || self.expires_at <= now
    }
}

/// What owners are told.
#[derive(Debug)]
pub(super) enum Told {
    Look(Vec<i64>),
    Hurry(Vec<i64>),
    PausesChanged,
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) keep: PublishedKeep,
    pub(super) incarnation: u64,
    pub(super) last_seq: i64,
    pub(super) last_tx: u64,
    pub(super) rows: BTreeMap<i64, Stored>,
    /// The index that a database has on (ordering_key, seq).
    by_key: HashMap<Arc<str>, BTreeSet<i64>>,
    pub(super) open: BTreeMap<u64, Vec<Stored>>,
    pub(super) deliveries: BTreeMap<(i64, String), Delivery>,
    pub(super) published: Vec<History>,
    pub(super) discarded: Vec<Dead>,
    pub(super) leases: Vec<Held>,
    /// Who wants a share of them.
    pub(super) members: BTreeMap<Uuid, Member>,
    pub(super) instances: HashMap<Uuid, (Heartbeat, Timestamp)>,
    pub(super) commands: Vec<Told>,
    pub(super) pauses: BTreeMap<Target, Pause>,
    /// What operators did to which event, for which sink.
    pub(super) hands: Vec<(String, i64, Hand)>,
}

/// An instance that wants a share of the shards.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
    pub(super) idle: bool,
}

impl Store {
    pub(super) fn new(shards: u16) -> Self {
        let free = Held {
            owner: None,
            token: 0,
            expires_at: Timestamp(0),
            in_hand: Vec::new(),
            alone: false,
            deaths: 0,
            suspects: Vec::new(),
        };
        Self {
            keep: PublishedKeep::Full,
            incarnation: 1,
            last_seq: 0,
            last_tx: 0,
            rows: BTreeMap::new(),
            by_key: HashMap::new(),
            open: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            published: Vec::new(),
            discarded: Vec::new(),
            leases: vec![free; usize::from(shards)],
            members: BTreeMap::new(),
            instances: HashMap::new(),
            commands: Vec::new(),
            pauses: BTreeMap::new(),
            hands: Vec::new(),
        }
    }

    /// A row with a seq of its own, or the words of a broken constraint: as strict as a database.
    pub(super) fn stored(&mut self, row: &NewRow, now: Timestamp) -> Result<Stored, SourceError> {
        let refuse = |words: &str| SourceError::new(SourceErrorKind::Refused, words);
        let bytes = row.ordering_key.as_deref().map(str::len);
        if bytes.is_some_and(|bytes| bytes == 0 || bytes > 512) {
            return Err(refuse("an ordering key has 1 to 512 bytes"));
        }
        if let Payload::Json(text) = &row.payload
            && serde_json::from_slice::<&serde_json::value::RawValue>(text).is_err()
        {
            return Err(refuse("the payload is no JSON"));
        }
        let id = row.id.unwrap_or_else(Uuid::now_v7);
        let mut others = self.rows.values().chain(self.open.values().flatten());
        // An id made here is new.
        if row.id.is_some() && others.any(|other| other.id == id) {
            return Err(refuse("the id is already in the outbox"));
        }
        self.last_seq += 1;
        Ok(Stored {
            seq: self.last_seq,
            id,
            kind: row.kind.clone(),
            ordering_key: row.ordering_key.as_deref().map(Arc::from),
            available_at: later(now, row.delay),
            body: Body {
                payload: row.payload.clone(),
                content_type: row.content_type.clone(),
                headers: row.headers.clone().unwrap_or_else(|| "{}".to_owned()),
                occurred_at: now,
            },
        })
    }

    /// Makes a row visible.
    pub(super) fn show(&mut self, row: Stored) {
        if let Some(key) = &row.ordering_key {
            self.by_key
                .entry(Arc::clone(key))
                .or_default()
                .insert(row.seq);
        }
        self.rows.insert(row.seq, row);
    }

    /// The rows of a key from `from` on, ascending.
    pub(super) fn run(&self, key: &Arc<str>, from: i64) -> impl Iterator<Item = &Stored> {
        let seqs = self.by_key.get(key);
        let seqs = seqs.into_iter().flat_map(move |seqs| seqs.range(from..));
        seqs.filter_map(|seq| self.rows.get(seq))
    }

    pub(super) fn delivery(&self, seq: i64, sink: &str) -> Option<&Delivery> {
        self.deliveries.get(&(seq, sink.to_owned()))
    }

    pub(super) fn done(&self, seq: i64, sink: &str) -> bool {
        self.delivery(seq, sink)
            .is_some_and(|delivery| delivery.mark.done())
    }

    /// When the row falls due for this sink.
    pub(super) fn due(&self, row: &Stored, sink: &str) -> Timestamp {
        let delivery = self.delivery(row.seq, sink);
        if delivery.is_some_and(|delivery| delivery.skip.is_some()) {
            return Timestamp(i64::MIN);
        }
        let next = delivery.and_then(|delivery| delivery.next_at);
        next.map_or(row.available_at, |next| next.max(row.available_at))
    }

    /// The row as the feed sees it, with its body if `wanted` and it would be used.
    pub(super) fn view(&self, row: &Stored, sink: &str, now: Timestamp, body: Want) -> Row {
        let delivery = self.delivery(row.seq, sink);
        let due_in = until(self.due(row, sink), now);
        let done = self.done(row.seq, sink);
        let size = row.body.payload.as_bytes().len();
        let wanted = match body {
            Want::Always => true,
            Want::Never => false,
            Want::IfUsed => !done && due_in.is_zero() && size <= INLINE_LIMIT,
        };
        Row {
            seq: row.seq,
            id: row.id,
            kind: row.kind.clone(),
            ordering_key: row.ordering_key.clone(),
            due_in,
            attempts: delivery.map_or(0, |delivery| delivery.attempts),
            done,
            skip: delivery.and_then(|delivery| delivery.skip.clone()),
            size,
            body: wanted.then(|| row.body.clone()),
        }
    }

    pub(super) fn remember(&mut self, marked: &Marked<'_>, now: Timestamp) {
        let outcome = marked.outcome;
        let (attempts, next_at, last_error, receipt) = match &outcome.verdict {
            Verdict::Published { attempts, receipt } => {
                (*attempts, None, None, Some(receipt.clone()))
            }
            Verdict::Retried {
                attempts,
                retry_in,
                error,
            } => (
                *attempts,
                Some(later(now, *retry_in)),
                Some(clean(error)),
                None,
            ),
            Verdict::Discarded { attempts, .. } => (*attempts, None, None, None),
        };
        let owed = receipt.clone().filter(|_| !marked.kept);
        let at = (outcome.seq, outcome.sink.to_string());
        let delivery = Delivery {
            mark: marked.mark,
            attempts,
            next_at,
            failed_at: last_error.is_some().then_some(now),
            at: now,
            last_error,
            skip: self
                .deliveries
                .get(&at)
                .and_then(|before| before.skip.clone()),
            route: outcome.route.clone(),
            owed: owed.map(|receipt| (attempts, receipt)),
            receipt,
        };
        self.deliveries.insert(at, delivery);
    }

    /// Sinks of the routes written beside a row's marks that are not through with it.
    pub(super) fn open_shares(&self, seq: i64) -> Vec<Share> {
        let marks = || self.deliveries.iter().filter(|((at, _), _)| *at == seq);
        let sinks: BTreeSet<Arc<str>> = marks()
            .flat_map(|((_, sink), delivery)| {
                let route = delivery.route.iter().cloned();
                route.chain([Arc::from(sink.as_str())])
            })
            .collect();
        let left = sinks.into_iter().filter(|sink| !self.done(seq, sink));
        left.map(|sink| {
            let known = self.delivery(seq, &sink);
            Share {
                attempts: known.map_or(0, |delivery| delivery.attempts),
                last_error: known.and_then(|delivery| delivery.last_error.clone()),
                sink,
            }
        })
        .collect()
    }

    pub(super) fn keep_history(&mut self, seq: i64, sink: &str, receipt: &Receipt, at: Timestamp) {
        let Some(row) = self
            .rows
            .get(&seq)
            .filter(|_| self.keep != PublishedKeep::None)
        else {
            return;
        };
        let full = self.keep == PublishedKeep::Full;
        let kept = Kept {
            seq,
            id: row.id,
            sink: sink.to_owned(),
            stream: receipt.stream.clone(),
            position: receipt.position.and_then(|at| i64::try_from(at).ok()),
            payload: full.then(|| row.body.payload.as_bytes().to_vec()),
        };
        let key = row.ordering_key.clone();
        self.published.push(History { at, key, kept });
    }

    pub(super) fn set_aside(&mut self, outcome: &Outcome, at: Timestamp) {
        let Verdict::Discarded {
            reason,
            code,
            attempts,
            error,
        } = &outcome.verdict
        else {
            return;
        };
        let Some(row) = self.rows.get(&outcome.seq).cloned() else {
            return;
        };
        let payload = match &row.body.payload {
            Payload::Json(text) => String::from_utf8_lossy(text).into_owned(),
            Payload::Bytes(bytes) => base64(bytes),
        };
        let shown = Discarded {
            seq: row.seq,
            id: row.id,
            sink: outcome.sink.to_string(),
            kind: row.kind.clone(),
            ordering_key: row.ordering_key.as_deref().map(str::to_owned),
            reason: reason.as_str().to_owned(),
            code: code.map(str::to_owned),
            last_error: clean(error),
            attempts: i64::from(*attempts),
            discarded_at: at.to_string(),
            size: row.body.payload.as_bytes().len() as u64,
            payload: Some(payload),
            headers: row.body.headers.clone(),
        };
        let route = outcome.route.clone();
        self.discarded.push(Dead {
            at,
            shown,
            row,
            route,
        });
    }

    pub(super) fn delete(&mut self, seq: i64) {
        if let Some(row) = self.rows.remove(&seq)
            && let Some(key) = row.ordering_key
            && let Some(seqs) = self.by_key.get_mut(&key)
        {
            seqs.remove(&seq);
            if seqs.is_empty() {
                self.by_key.remove(&key);
            }
        }
        let from = (seq, String::new());
        let marks = self.deliveries.range(from..);
        let marks: Vec<_> = marks
            .take_while(|((at, _), _)| *at == seq)
            .map(|(key, _)| key.clone())
            .collect();
        for key in marks {
            self.deliveries.remove(&key);
        }
    }
}

/// Which rows come with their body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Always,
    Never,
    IfUsed,
}

pub(super) fn later(at: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp(at.0.saturating_add(micros))
}

pub(super) fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros(at.0.saturating_sub(now.0).max(0) as u64)
}
