//! A database and a sink that go on between any two steps of a comparison.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::*;
use crate::lease::{Lease, shard_of};
use crate::retry::Policy;
use crate::route::Route;
use crate::sink::trail::{Extent, Held, LetsGo};
use crate::sink::{Receipt, Session};
use crate::source::memory::Memory;
use crate::source::{Outcome, Source as _, Verdict};
use crate::testing::source::{Inserted, NewRow};

const SHARDS: u16 = 4;

/// Messages of a piece.
const PIECE: usize = 3;

/// Both ends of a feed.
struct Ends {
    memory: Memory,
    leases: Vec<Lease>,
    stored: Mutex<Vec<Held>>,
    /// Stored and not settled yet.
    under_way: Mutex<Vec<Outcome>>,
}

impl Ends {
    async fn new() -> Arc<Self> {
        let memory = Memory::new("orders", SHARDS);
        let instance = Uuid::from_u128(1);
        let leases = memory
            .acquire(instance, Duration::from_secs(3_600), u16::MAX)
            .await;
        Arc::new(Self {
            memory,
            leases: leases.unwrap(),
            stored: Mutex::default(),
            under_way: Mutex::default(),
        })
    }

    fn insert(&self, key: &str) -> Inserted {
        let row = NewRow::json("order.made", "{}").key(key);
        self.memory.insert(&[row]).unwrap()[0]
    }

    /// The sink takes an event; it is not settled yet.
    fn store(&self, at: Inserted, key: &str) {
        let mut stored = self.stored.lock().unwrap();
        let place = stored.len() as u64 + 1;
        stored.push(Held {
            place,
            at: Timestamp::now(),
            id: at.id,
            replay: false,
            seq: Some(at.seq),
            ordering_key: Some(key.to_owned()),
        });
        let shard = shard_of(Some(key), at.seq, SHARDS);
        self.under_way.lock().unwrap().push(Outcome {
            seq: at.seq,
            id: at.id,
            sink: Arc::from("events"),
            route: Arc::from([Arc::from("events")]),
            lease: *self
                .leases
                .iter()
                .find(|lease| lease.shard == shard)
                .unwrap(),
            verdict: Verdict::Published {
                attempts: 0,
                receipt: Receipt {
                    stream: Some("E".to_owned()),
                    position: Some(place),
                    duplicate: false,
                },
            },
        });
    }

    async fn settle(&self, outcomes: Vec<Outcome>) {
        let settled = self.memory.settle(&outcomes, true).await.unwrap();
        assert!(settled.iter().all(|settled| *settled));
    }

    /// Settles all that is under way, and then stores two events and settles the first; the second stays under way, and
    /// a third waits.
    async fn go_on(&self) {
        let before = std::mem::take(&mut *self.under_way.lock().unwrap());
        self.settle(before).await;
        for key in ["a", "b"] {
            let at = self.insert(key);
            self.store(at, key);
        }
        let first = self.under_way.lock().unwrap().remove(0);
        self.settle(vec![first]).await;
        self.insert("c");
    }
}

/// The sink: whatever it is asked, everything has gone on when it answers.
struct Busy(Arc<Ends>);

struct BusyTrail {
    ends: Arc<Ends>,
    next: usize,
    last: usize,
}

#[async_trait]
impl Sink for Busy {
    fn kind(&self) -> &'static str {
        "busy"
    }

    async fn open(&self) -> Result<Arc<dyn Session>, SinkError> {
        Err(SinkError::new("only to be read"))
    }

    async fn check(&self, _kinds: &[String]) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }

    async fn trail(&self, _source: &str) -> Result<Readback, SinkError> {
        self.0.go_on().await;
        Ok(Readback::Trail(Box::new(BusyTrail {
            ends: Arc::clone(&self.0),
            next: 0,
            last: 0,
        })))
    }
}

#[async_trait]
impl Trail for BusyTrail {
    async fn extent(&mut self) -> Result<Extent, SinkError> {
        let last = self.ends.stored.lock().unwrap().len() as u64;
        self.ends.go_on().await;
        Ok(Extent {
            container: "E".to_owned(),
            first: 1,
            last,
            in_time_order: true,
            first_at: None,
            created: None,
            lets_go: LetsGo::default(),
        })
    }

    async fn begin(&mut self, _start: Start) -> Result<(), SinkError> {
        (self.next, self.last) = (0, self.ends.stored.lock().unwrap().len());
        self.ends.go_on().await;
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Vec<Held>>, SinkError> {
        let end = self.last.min(self.next + PIECE);
        let piece = self.ends.stored.lock().unwrap()[self.next..end].to_vec();
        self.next = end;
        self.ends.go_on().await;
        Ok((!piece.is_empty()).then_some(piece))
    }

    async fn close(&mut self) {}
}

async fn compare(ends: &Arc<Ends>) -> Report {
    let route = Route {
        name: "all".to_owned(),
        kinds: vec!["*".to_owned()],
        sinks: Arc::from([Arc::from("events")]),
        retry: Policy::default(),
    };
    let (sink, routes) = (Busy(Arc::clone(ends)), Routes::new(vec![route]));
    let now = Timestamp::now().0;
    let hour = 3_600 * 1_000_000;
    let feed = Feed {
        database: "orders",
        admin: &ends.memory,
        name: "events",
        sink: &sink,
        routes: &routes,
        window: Window {
            since: Timestamp(now - hour),
            until: Timestamp(now + hour),
        },
        keep: PublishedKeep::Full,
        retention: Duration::from_secs(86_400),
        most: 10_000,
    };
    super::feed(&feed).await.unwrap()
}

#[tokio::test]
async fn whatever_happens_between_two_steps_nothing_is_reported() {
    let ends = Ends::new().await;
    for _ in 0..20 {
        ends.go_on().await;
    }
    for _ in 0..5 {
        let report = compare(&ends).await;
        assert!(report.ok, "{report:#?}");
        assert!(report.delivered > 40 && report.held > 40, "{report:#?}");
        assert_eq!(report.unjudged, 0, "{report:#?}");
        assert!(report.pending > 20);
    }
}

#[tokio::test]
async fn what_is_wrong_is_reported_all_the_same() {
    let ends = Ends::new().await;
    for _ in 0..20 {
        ends.go_on().await;
    }
    // Places count from 1, and every other message is of key "a".
    let lost = {
        let mut stored = ends.stored.lock().unwrap();
        let lost = stored[2].id;
        stored[2].id = Uuid::from_u128(99);
        let put = |held: &Held, place| Held {
            place,
            ..held.clone()
        };
        (stored[4], stored[6]) = (put(&stored[6], 5), put(&stored[4], 7));
        let again = put(&stored[0], stored.len() as u64 + 1);
        stored.push(again);
        lost
    };
    let report = compare(&ends).await;
    let counts = report.findings().map(|(_, found)| found.count);
    assert_eq!(counts, [1; 4], "{report:#?}");
    assert_eq!(report.missing.first[0].id, lost);
    assert_eq!(report.without_row.first[0].position, Some(3));
    assert_eq!(report.out_of_order.first[0].position, Some(7));
}
