//! Seeded chaos over the whole tree: everything that can go wrong does, and at the end nothing may be
//! missing, out of order, stuck or left over.
//!
//! One seed again: `OUTBOXD_CHAOS_SEED=7 cargo test --test it chaos::some`. The long campaign:
//! `OUTBOXD_CHAOS_SEEDS=200 cargo test --test it chaos::many -- --ignored`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use outboxd::metrics::Metrics;
use outboxd::relay::{self, DatabaseOptions, GapGuard, Options, Relay, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::memory::Memory as MemorySink;
use outboxd::source::admin::{Admin, DiscardedFilter};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::source::{ReadBounds, Source};
use outboxd::testing::faults::{Faults, FaultySource};

use self::dice::Dice;
use self::ledger::Ledger;
use self::world::World;

pub mod dice;
mod hand;
mod ledger;
mod world;

const SINKS: [&str; 3] = ["one", "two", "three"];
const MAX_ATTEMPTS: u32 = 6;
/// After everything is healed: the longest uncharged pause (15 s and a quarter), and something.
const HEALING: Duration = Duration::from_secs(40);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// The sinks that a kind goes to.
fn sinks_of(kind: &str) -> &'static [&'static str] {
    match kind {
        "solo.x" => &SINKS[..1],
        "pair.x" => &SINKS[..2],
        _ => &SINKS,
    }
}

fn routes() -> Routes {
    let route = |kind: &str| Route {
        name: kind.trim_end_matches(".x").to_owned(),
        kinds: vec![kind.to_owned()],
        sinks: sinks_of(kind).iter().map(|name| Arc::from(*name)).collect(),
        retry: Policy {
            max_attempts: MAX_ATTEMPTS,
            base: Duration::from_millis(20),
            max: Duration::from_millis(100),
            ..Policy::default()
        },
    };
    Routes::new(vec![route("solo.x"), route("pair.x"), route("all.x")])
}

/// One run: what it is made of follows from the seed.
#[derive(Clone)]
struct Run {
    seed: u64,
    source: MemorySource,
    sinks: Vec<MemorySink>,
    metrics: Arc<Metrics>,
    guard: GapGuard,
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            source: MemorySource::new("orders", 16),
            sinks: SINKS.iter().map(|_| MemorySink::new()).collect(),
            metrics: Arc::new(Metrics::new().unwrap()),
            guard: match seed % 2 {
                0 => GapGuard::Off,
                _ => GapGuard::Hold,
            },
        }
    }

    async fn relay(&self, dice: &mut Dice, faults: &Faults) -> Relay {
        let faulty = FaultySource::new(Arc::new(self.source.clone()), faults.clone());
        let mut database = DatabaseOptions::new(Arc::new(faulty));
        database.gap_guard = self.guard;
        database.sweep_every = Duration::from_millis(100 + dice.below(300));
        database.budget_events = *dice.pick(&[16, 100, 1_000, 4_096]).unwrap();
        database.budget_bytes = *dice.pick(&[20_000, 1 << 20, 32 << 20]).unwrap();
        database.max_parked = *dice.pick(&[2, 20, 100_000]).unwrap();
        database.poll_max = Duration::from_millis(200);
        if dice.chance(20) {
            database.quiet_after = Some(Duration::from_millis(200));
        }
        let sinks = SINKS.iter().zip(&self.sinks).map(|(name, sink)| {
            let mut options = SinkOptions::new(*name, Arc::new(sink.clone()));
            options.publish_timeout = Duration::from_millis(200);
            options.max_in_flight = *dice.pick(&[2, 16, 2_048]).unwrap();
            options
        });
        let sinks = sinks.collect();
        let mut options = Options::new(vec![database], sinks, routes());
        options.lease_ttl = Duration::from_millis(2_400);
        options.grace = Duration::from_secs(5);
        options.telemetry = self.metrics.telemetry();
        relay::start(options).await.unwrap()
    }

    async fn go(&self, length: Duration) {
        let mut dice = Dice::new(self.seed, 0);
        let instances = *dice.pick(&[1, 1, 1, 2, 2, 3, 4]).unwrap();
        let faults: Vec<Faults> = (0..instances).map(|_| Faults::default()).collect();
        let world = Arc::new(World::new(&self.source, length));
        for (index, (name, sink)) in SINKS.iter().zip(&self.sinks).enumerate() {
            let bad = *dice.pick(&[0, 3, 10, 25]).unwrap();
            world::choose_lanes(&mut Dice::new(self.seed, 60 + index as u64), sink);
            let own = Dice::new(self.seed, 10 + index as u64);
            sink.on(world::script(name, &world, own, bad));
        }
        let mut relays = Vec::new();
        for faults in &faults {
            relays.push(self.relay(&mut dice, faults).await);
        }
        let relays = Arc::new(relays);
        let mut tasks = JoinSet::new();
        let busy = dice.below(90);
        for writer in 0..6 {
            let own = Dice::new(self.seed, 20 + writer);
            tasks.spawn(world::write(Arc::clone(&world), own, busy));
        }
        let own = |stream| Dice::new(self.seed, stream);
        if dice.chance(70) {
            for (index, faults) in faults.iter().enumerate() {
                let own = own(30 + index as u64);
                tasks.spawn(world::break_source(Arc::clone(&world), own, faults.clone()));
            }
        }
        if dice.chance(60) {
            tasks.spawn(world::kill(
                Arc::clone(&world),
                own(40),
                Arc::clone(&relays),
            ));
        }
        if dice.chance(40) {
            tasks.spawn(self.clone().come_and_go(Arc::clone(&world), own(45)));
        }
        let stolen = dice.chance(30);
        if stolen {
            tasks.spawn(world::steal(Arc::clone(&world), own(41)));
        }
        if dice.chance(50) {
            tasks.spawn(world::operate(Arc::clone(&world), own(42)));
        }
        if dice.chance(50) {
            tasks.spawn(hand::pause(Arc::clone(&world), own(43)));
            tasks.spawn(hand::pause(Arc::clone(&world), own(44)));
        }
        if dice.chance(50) {
            tasks.spawn(hand::skip(Arc::clone(&world), own(46)));
        }
        for (index, sink) in self.sinks.iter().enumerate() {
            if dice.chance(40) {
                let own = own(50 + index as u64);
                tasks.spawn(world::interrupt(Arc::clone(&world), own, sink.clone()));
            }
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        world.healed.store(true, Ordering::Release);
        faults.iter().for_each(Faults::heal);
        self.judge(&world.ledger, &relays).await;
        // Whoever steals a lease that stands breaks the rules, and its owner cannot know it at once.
        if !stolen {
            self.tokens(&relays);
        }
        let relays = Arc::into_inner(relays).unwrap();
        for relay in relays {
            self.stopped(relay).await;
        }
    }

    /// Further instances join, and leave or vanish.
    async fn come_and_go(self, world: Arc<World>, mut dice: Dice) {
        while !world.over() {
            world::pass(dice.ms(400)).await;
            let relay = self.relay(&mut dice, &Faults::default()).await;
            world::pass(dice.ms(900)).await;
            if dice.chance(50) {
                self.stopped(relay).await;
            } else {
                world.ledger.killed();
            }
        }
    }

    /// Waits until all is delivered, and looks at how.
    async fn judge(&self, ledger: &Ledger, relays: &[Relay]) {
        let deadline = Instant::now() + HEALING;
        loop {
            let wrong = match self.unfinished(ledger, relays).await {
                None => break,
                Some(wrong) => wrong,
            };
            if Instant::now() > deadline {
                self.fail(&wrong, relays);
            }
            // A pause in time between two looks; the deadline is above.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.order(ledger, relays);
        for dead in self.discarded().await {
            if !ledger.excuses(&dead, MAX_ATTEMPTS) {
                self.fail(&format!("discarded without a reason: {dead:?}"), relays);
            }
        }
        let metrics = self.metrics.render().unwrap();
        let missed = metrics
            .lines()
            .find(|line| line.starts_with("event_outbox_missed_total"))
            .unwrap();
        if !missed.ends_with(" 0") {
            self.fail(missed, relays);
        }
    }

    async fn discarded(&self) -> Vec<outboxd::source::admin::Discarded> {
        let all = DiscardedFilter::default();
        self.source.discarded(&all, 1_000_000).await.unwrap()
    }

    /// What is left, as each sink sees it.
    async fn pending(&self) -> String {
        let mut text = String::new();
        for sink in SINKS {
            let bounds = ReadBounds::rows(3);
            for row in self.source.read(sink, 0, bounds, &[]).await.unwrap() {
                let (key, due, attempts) = (row.ordering_key, row.due_in, row.attempts);
                text += &format!(
                    "\n{sink}: {} {} of {key:?}, done {}, due in {due:?}, {attempts} attempts",
                    row.seq, row.kind, row.done
                );
            }
        }
        text
    }

    async fn unfinished(&self, ledger: &Ledger, relays: &[Relay]) -> Option<String> {
        let pending = self.source.pending();
        if pending > 0 {
            return Some(format!(
                "{pending} rows are still pending: {}",
                self.pending().await
            ));
        }
        for feed in relays
            .iter()
            .flat_map(|relay| relay.board().snapshot().feeds)
        {
            if feed.in_flight > 0 || feed.parked > 0 {
                return Some(format!("something is left: {feed:?}"));
            }
        }
        let dead: HashSet<_> = self
            .discarded()
            .await
            .into_iter()
            .map(|dead| (dead.sink, dead.id))
            .collect();
        for (name, sink) in SINKS.iter().zip(&self.sinks) {
            let received = sink.received();
            let taken: HashSet<_> = received.iter().map(|item| item.delivery.event.id).collect();
            let lost = ledger.written().into_iter().find(|row| {
                sinks_of(&row.kind).contains(name)
                    && !taken.contains(&row.id)
                    && !dead.contains(&((*name).to_owned(), row.id))
            });
            if let Some(lost) = lost {
                return Some(format!("lost for {name}: {lost:?}"));
            }
        }
        None
    }

    /// First deliveries of a key follow its seqs; nothing arrives that was not committed.
    fn order(&self, ledger: &Ledger, relays: &[Relay]) {
        let committed: HashSet<_> = ledger.written().iter().map(|row| row.id).collect();
        for (name, sink) in SINKS.iter().zip(&self.sinks) {
            let mut last: BTreeMap<String, i64> = BTreeMap::new();
            let mut seen = HashSet::new();
            for item in sink.received() {
                let event = &item.delivery.event;
                if !committed.contains(&event.id) {
                    self.fail(&format!("never committed: {event:?}"), relays);
                }
                let Some(key) = event.ordering_key.as_deref() else {
                    continue;
                };
                let kept = key.starts_with('s') || self.guard == GapGuard::Hold;
                if !kept || !seen.insert(event.id) || ledger.was_requeued(event.id) {
                    continue;
                }
                let before = last.entry(key.to_owned()).or_insert(i64::MIN);
                if *before > event.seq {
                    let (seq, before) = (event.seq, *before);
                    self.fail(&format!("{name}: {key} got {seq} after {before}"), relays);
                }
                *before = event.seq;
            }
        }
    }

    /// Nothing of a shard is handed over under an old lease once something was under a newer one.
    fn tokens(&self, relays: &[Relay]) {
        for (name, sink) in SINKS.iter().zip(&self.sinks) {
            let mut highest: BTreeMap<u16, i64> = BTreeMap::new();
            for item in sink.handed_over() {
                let lease = item.delivery.lease;
                let before = highest.entry(lease.shard).or_insert(lease.token);
                if lease.token < *before {
                    let words = format!("{name}: {lease:?} after token {before}: {item:?}");
                    self.fail(&words, relays);
                }
                *before = lease.token;
            }
        }
    }

    async fn stopped(&self, relay: Relay) {
        let (board, tree) = (relay.board(), relay.tree());
        let began = Instant::now();
        let result = relay.shutdown().await;
        let mut left = tree.members();
        while !left.is_empty() && began.elapsed() < Duration::from_secs(4) {
            // Out of the tree when the state is dropped, a moment after the end is known.
            tokio::task::yield_now().await;
            left = tree.members();
        }
        if result.is_err() || !left.is_empty() || began.elapsed() > Duration::from_secs(4) {
            panic!(
                "seed {}: shutdown took {:?}: {result:?}; left: {left:?}; {:?}",
                self.seed,
                began.elapsed(),
                board.snapshot()
            );
        }
    }

    fn fail(&self, wrong: &str, relays: &[Relay]) -> ! {
        let shown: Vec<_> = relays
            .iter()
            .map(|relay| relay.board().snapshot())
            .collect();
        panic!(
            "OUTBOXD_CHAOS_SEED={} ({:?}): {wrong}\n{shown:#?}",
            self.seed, self.guard
        );
    }
}

async fn seeds(first: u64, count: u64, length: Duration) {
    let (first, count) = match number("OUTBOXD_CHAOS_SEED", u64::MAX) {
        u64::MAX => (first, count),
        one => (one, 1),
    };
    for seed in first..first + count {
        Run::new(seed).go(length).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn some_seeds_of_chaos_lose_nothing_and_keep_order() {
    seeds(1, 10, Duration::from_secs(2)).await;
}

/// Minutes to hours: for whoever changes the core.
#[ignore = "a long campaign; see the top of the file"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_seeds_of_chaos_lose_nothing_and_keep_order() {
    let first = number("OUTBOXD_CHAOS_FIRST", 1_000);
    let seconds = Duration::from_secs(number("OUTBOXD_CHAOS_SECONDS", 3));
    seeds(first, number("OUTBOXD_CHAOS_SEEDS", 200), seconds).await;
}
