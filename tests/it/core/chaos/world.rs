//! What happens to a relay in a run: writers, faults, kills, lost leases, operators, sinks that fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use outboxd::actor::restart::Role;
use outboxd::lease::Lease;
use outboxd::relay::Relay;
use outboxd::sink::memory::{Answer, Memory as MemorySink};
use outboxd::sink::{Delivery, Lanes, PublishError};
use outboxd::source::admin::{Admin, DiscardedFilter, Operator};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::source::{INLINE_LIMIT, Source, SourceErrorKind};
use outboxd::testing::faults::{Faults, Op, When};
use outboxd::testing::source::NewRow;

use super::dice::Dice;
use super::ledger::{Ledger, Written};

/// Keys whose writers take turns, and keys whose writers do not.
const SERIAL: u64 = 12;
const WILD: u64 = 4;

/// Everything that the tasks of a run share.
pub struct World {
    pub source: MemorySource,
    pub ledger: Ledger,
    pub locks: Vec<tokio::sync::Mutex<()>>,
    pub until: Instant,
    /// Nothing fails any more.
    pub healed: Arc<AtomicBool>,
}

impl World {
    pub fn new(source: &MemorySource, length: Duration) -> Self {
        Self {
            source: source.clone(),
            ledger: Ledger::default(),
            locks: (0..SERIAL).map(|_| tokio::sync::Mutex::new(())).collect(),
            until: Instant::now() + length,
            healed: Arc::new(AtomicBool::new(false)),
        }
    }

    pub fn over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Random time between two deeds: nothing is waited for.
pub async fn pass(span: Duration) {
    // Time itself is what a random interleaving is made of.
    tokio::time::sleep(span).await;
}

/// Inserts in all ways there are until the time is over.
pub async fn write(world: Arc<World>, mut dice: Dice, busy: u64) {
    while !world.over() {
        let serial = dice.below(SERIAL) as usize;
        // The row lock of an application: held from before the insert until after the commit.
        let (key, lock) = match dice.below(10) {
            0..=6 => (
                Some(format!("s{serial}")),
                Some(world.locks[serial].lock().await),
            ),
            7 => (Some(format!("w{}", dice.below(WILD))), None),
            _ => (None, None),
        };
        let mut tx = world.source.begin();
        let mut rows = Vec::new();
        for _ in 0..=dice.below(3) {
            let kind = ["solo.x", "pair.x", "all.x"][dice.below(3) as usize];
            let text = match dice.chance(1) {
                true => format!("\"{}\"", "x".repeat(INLINE_LIMIT + 10)),
                false => "{}".to_owned(),
            };
            let mut row = NewRow::json(kind, &text);
            row.ordering_key.clone_from(&key);
            if dice.chance(4) {
                row = row.delayed(dice.ms(600));
            }
            let inserted = tx.insert(&row).unwrap();
            rows.push(Written {
                seq: inserted.seq,
                id: inserted.id,
                kind: kind.to_owned(),
            });
        }
        if dice.chance(25) {
            pass(dice.ms(120)).await;
        }
        if dice.chance(8) {
            tx.rollback();
        } else {
            tx.commit();
            world.ledger.committed(rows);
        }
        drop(lock);
        if dice.chance(busy) {
            tokio::task::yield_now().await;
        } else {
            pass(dice.ms(15)).await;
        }
    }
}

/// Calls to the database fail, before or after it did what was asked, or take long.
pub async fn break_source(world: Arc<World>, mut dice: Dice, faults: Faults) {
    const OPS: [Op; 14] = [
        Op::Open,
        Op::Read,
        Op::ReadKeys,
        Op::ReadSeqs,
        Op::Probe,
        Op::Writers,
        Op::Heads,
        Op::Settle,
        Op::DeleteDone,
        Op::Commands,
        Op::Acquire,
        Op::Renew,
        Op::Release,
        Op::SetWakeMark,
    ];
    while !world.over() {
        pass(dice.ms(60)).await;
        let op = *dice.pick(&OPS).unwrap();
        let times = 1 + dice.below(3) as u32;
        match dice.below(12) {
            0..=2 => faults.fail(op, times, SourceErrorKind::Unavailable, When::Before),
            3..=5 => faults.fail(op, times, SourceErrorKind::Unavailable, When::After),
            6 => faults.fail(Op::Settle, times, SourceErrorKind::Refused, When::Before),
            7 => faults.fail(Op::Wait, 1, SourceErrorKind::Unavailable, When::Before),
            8 | 9 => faults.delay(op, dice.ms(40)),
            10 => faults.answer_late(op, dice.ms(40)),
            _ => {
                if dice.chance(20) {
                    faults.outage(SourceErrorKind::Unavailable);
                    pass(dice.ms(300)).await;
                }
                faults.heal();
            }
        }
    }
}

/// Actors die; each but the sequencers a few times, so that nobody's budget is spent.
pub async fn kill(world: Arc<World>, mut dice: Dice, relays: Arc<Vec<Relay>>) {
    let mut killed: HashMap<(usize, Role, String), u32> = HashMap::new();
    while !world.over() {
        pass(dice.ms(150)).await;
        let index = dice.below(relays.len() as u64) as usize;
        let mut members = relays[index].members();
        members.retain(|member| member.role != Role::Supervisor);
        // Sequencers are many: one in two kills is theirs.
        let sequencers = dice.chance(50);
        members.retain(|member| (member.role == Role::Sequencer) == sequencers);
        let Some(victim) = dice.pick(&members) else {
            continue;
        };
        let count = killed
            .entry((index, victim.role, victim.name.clone()))
            .or_default();
        if victim.role == Role::Sequencer || *count < 2 {
            *count += 1;
            world.ledger.killed();
            victim.cell.kill();
        }
    }
}

/// Another owner takes the shards, whoever has them, and gives them back.
pub async fn steal(world: Arc<World>, mut dice: Dice) {
    let thief = Uuid::from_u128(u128::from(dice.roll()));
    while !world.over() {
        pass(Duration::from_millis(300) + dice.ms(1_200)).await;
        let held: Vec<Lease> = world
            .source
            .leases()
            .await
            .unwrap()
            .iter()
            .map(|view| Lease {
                shard: view.shard,
                token: view.token,
            })
            .collect();
        world.source.release(&held).await.unwrap();
        let ttl = Duration::from_secs(60);
        let leases = world.source.acquire(thief, ttl, u16::MAX).await.unwrap();
        pass(dice.ms(300)).await;
        world.source.release(&leases).await.unwrap();
    }
}

/// Operators put back what was set aside.
pub async fn operate(world: Arc<World>, mut dice: Dice) {
    let by = Operator {
        name: "chaos".into(),
        reason: None,
    };
    while !world.over() {
        pass(dice.ms(300)).await;
        let list = world
            .source
            .discarded(&DiscardedFilter::default(), 1_000)
            .await
            .unwrap();
        let mut ids: Vec<Uuid> = list.iter().map(|dead| dead.id).collect();
        ids.retain(|_| dice.chance(30));
        if ids.is_empty() {
            continue;
        }
        world.ledger.requeued(&ids);
        let filter = DiscardedFilter {
            ids,
            ..DiscardedFilter::default()
        };
        world.source.requeue(&filter, &by).await.unwrap();
    }
}

/// With its next session the sink keeps order by itself, or not.
pub fn choose_lanes(dice: &mut Dice, sink: &MemorySink) {
    let lanes = Lanes {
        count: *dice.pick(&[1, 2, 5]).unwrap(),
        events: *dice.pick(&[2, 7, 100]).unwrap(),
        bytes: *dice.pick(&[500, 1 << 20]).unwrap(),
    };
    sink.keep_order(dice.chance(70).then_some(lanes));
}

/// A sink is away for a while, or loses its connections.
pub async fn interrupt(world: Arc<World>, mut dice: Dice, sink: MemorySink) {
    while !world.over() {
        pass(dice.ms(900)).await;
        choose_lanes(&mut dice, &sink);
        if dice.chance(50) {
            sink.lose_sessions();
        } else {
            sink.go_down();
            pass(dice.ms(500)).await;
            sink.come_up();
        }
    }
    sink.come_up();
}

/// What a sink answers: mostly good, sometimes in one of the bad ways.
pub fn script(
    name: &str,
    world: &World,
    mut dice: Dice,
    bad: u64,
) -> impl FnMut(&Delivery) -> Option<Answer> + Send + 'static {
    let (name, ledger) = (name.to_owned(), world.ledger.clone());
    let healed = Arc::clone(&world.healed);
    move |delivery| {
        if healed.load(Ordering::Acquire) {
            return None;
        }
        let id = delivery.event.id;
        if !dice.chance(bad) {
            return dice
                .chance(30)
                .then(|| Answer::Delay(dice.ms(20), Box::new(Answer::Take)));
        }
        Some(match dice.below(20) {
            0..=5 => {
                ledger.failed(&name, id);
                Answer::Fail(PublishError::retryable("not yet"))
            }
            6..=8 => {
                ledger.rejected(&name, id);
                Answer::Fail(PublishError::rejected("refused", "never"))
            }
            9..=11 => {
                ledger.failed(&name, id);
                Answer::Fail(PublishError::unavailable("full"))
            }
            12 => Answer::Fail(PublishError::connection_lost("reset")),
            13 => {
                ledger.panicked(&name, id);
                Answer::Panic
            }
            14 => Answer::LoseSession,
            15 => {
                ledger.failed(&name, id);
                Answer::Hang
            }
            16 | 17 => {
                ledger.failed(&name, id);
                Answer::TakeSilently
            }
            _ => Answer::Delay(dice.ms(150), Box::new(Answer::Take)),
        })
    }
}
