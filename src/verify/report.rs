//! What came out: numbers, and the first few offenders of each sort.

use serde::Serialize;
use uuid::Uuid;

/// Offenders that are named of each sort; the totals are complete.
pub const SHOWN: usize = 20;

/// What was found about one database and one sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Name of the database.
    pub database: String,
    /// Name of the sink.
    pub sink: String,
    /// Nothing is wrong, as far as it was checked.
    pub ok: bool,
    /// The sink was read back. Otherwise only the database was looked at.
    pub read_back: bool,
    /// Events of the window that were delivered, by the database's word.
    pub delivered: u64,
    /// Messages of the window that the sink holds.
    pub held: u64,
    /// Events of the window that wait.
    pub pending: u64,
    /// Events set aside in the window.
    pub discarded: u64,
    /// Messages whose events still wait in the outbox: their settlement is on its way, or other sinks wait for them.
    pub in_flight: u64,
    /// Delivered events that the sink has let go since, by its own limits.
    pub aged_out: u64,
    /// Delivered events whose receipt names another stream or file than the one configured now.
    pub elsewhere: u64,
    /// Events that came behind later ones of their key because an operator had put them back, and marks of events that
    /// were put back, of which nobody knows whether this sink had them.
    pub requeued: u64,
    /// Messages that cannot be judged: of events that were set aside all the same, that an operator dropped, that were
    /// replayed, or that are older than the history.
    pub unjudged: u64,
    /// Delivered events that the sink does not hold, though it should.
    pub missing: Finding,
    /// Messages whose event the database knows nothing of.
    pub without_row: Finding,
    /// Events that the sink holds more than once: the further copies.
    pub duplicated: Finding,
    /// Events that came, for the first time, behind a later one of their key.
    pub out_of_order: Finding,
    /// What is worth knowing, one sentence each.
    pub remarks: Vec<String>,
}

/// One sort of trouble.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Why it was not looked for; `None`: it was.
    pub not_checked: Option<String>,
    /// How many.
    pub count: u64,
    /// The first of them, at most [`SHOWN`].
    pub first: Vec<Offender>,
}

/// One event, or message, that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offender {
    /// The event's identity.
    pub id: Uuid,
    /// Its place in the outbox.
    pub seq: Option<i64>,
    /// Its key.
    pub key: Option<String>,
    /// Its place in the sink, or the one that its receipt names.
    pub position: Option<u64>,
    /// What is wrong with it, in words.
    pub why: String,
}

impl Finding {
    /// It could not be looked for.
    pub(super) fn not_checked(why: &str) -> Self {
        Self {
            not_checked: Some(why.to_owned()),
            ..Self::default()
        }
    }

    /// One more; who it is matters for the first few only.
    pub(super) fn add(&mut self, offender: impl FnOnce() -> Offender) {
        self.count += 1;
        if self.first.len() < SHOWN {
            self.first.push(offender());
        }
    }
}

impl Report {
    /// Everything that may be wrong, with a name for each sort.
    pub fn findings(&self) -> [(&'static str, &Finding); 4] {
        [
            ("missing", &self.missing),
            ("without a row", &self.without_row),
            ("duplicated", &self.duplicated),
            ("out of order", &self.out_of_order),
        ]
    }
}
