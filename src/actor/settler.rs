//! The settler: one per database. Writes outcomes in batches and tells who waits for them.
//!
//! One transaction at a time; what arrives meanwhile makes the next batch. While the database cannot be
//! reached the outcomes wait (their number is bounded by the feeds' budgets).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef};
use tracing::{error, info, warn};

use self::batch::{Item, Queue};
use super::handle::{Handle, Task, guarded};
use super::restart::Role;
use super::tree::{Place, Tree};
use super::{claimer, keeper, sequencer};
use crate::retry::back_off;
use crate::source::{Outcome, Source, SourceError, SourceErrorKind, Verdict};
use crate::status::Board;
use crate::telemetry::Telemetry;
use crate::testing::fail_points::{fail_point, with_fail_point};

pub mod batch;

/// How long outcomes wait for company: nobody waits for them but the budget. A key that has one event in
/// flight at a time would otherwise cost a transaction for every few events.
const GATHER: Duration = Duration::from_millis(20);
/// First and longest pause after the database could not be reached.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// So many outcomes in a row that are refused by themselves are blamed on their events. When none is taken in between,
/// it is the database that takes nothing, whatever it says.
const BLAMED: u32 = 3;
/// So many failures in a row show.
const SHOWN: u32 = 2;

/// What a settler needs.
#[derive(Clone)]
pub struct Arguments {
    /// The database.
    pub source: Arc<dyn Source>,
    /// Who removes what came too late to be deleted.
    pub keeper: Handle<keeper::Message>,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Where discards and publishes are counted.
    pub board: Arc<Board>,
    /// Where the actor is entered.
    pub tree: Tree,
}

/// Whom to tell when an outcome is committed.
#[derive(Debug, Clone)]
pub struct Tell {
    /// The claimer, always.
    pub claimer: ActorRef<claimer::Message>,
    /// Which incarnation of its state.
    pub epoch: u64,
    /// Which of its feeds.
    pub feed: usize,
    /// The sequencer, when the next event of the key waits for the commit.
    pub sequencer: Option<ActorRef<sequencer::Message>>,
}

/// One settled outcome, for the claimer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Which feed.
    pub feed: usize,
    /// Place.
    pub seq: i64,
    /// The row does not come back for this sink.
    pub done: bool,
    /// False: fenced, or the row was gone.
    pub applied: bool,
    /// The sink took it as new.
    pub new: bool,
    /// The database refuses this outcome: the event has to wait.
    pub refused: bool,
}

/// Messages of a settler.
pub enum Message {
    /// Write these.
    Settle(Vec<Item<Tell>>),
    /// Gathering is over, or the pause after an outage.
    Go,
    /// A transaction ended.
    Ended(Vec<Item<Tell>>, Result<Vec<bool>, SourceError>),
    /// Tell this claimer with this tag once everything that is here now is written.
    Flush(ActorRef<claimer::Message>, u64),
}

#[cfg(feature = "cluster")]
impl ractor::Message for Message {}

/// State of a settler.
pub struct State {
    arguments: Arguments,
    myself: ActorRef<Message>,
    queue: Queue<Tell>,
    /// A transaction is under way.
    writing: Option<Task>,
    /// A `Go` is on its way.
    timed: bool,
    failures: u32,
    /// Outcomes refused by themselves since one was taken.
    refusals: u32,
    accepted: u64,
    written: u64,
    flushes: VecDeque<(u64, ActorRef<claimer::Message>, u64)>,
    _place: Place,
}

/// The actor.
pub struct SettlerActor;

#[ractor::actor(message = Message, state = State, arguments = Arguments)]
impl SettlerActor {
    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let name = arguments.source.name().to_owned();
        // What one before this could not write died with it.
        arguments.board.unwritten(&name, None);
        Ok(State {
            _place: arguments.tree.enter(Role::Settler, name, myself.get_cell()),
            arguments,
            myself,
            queue: Queue::new(),
            writing: None,
            timed: false,
            failures: 0,
            refusals: 0,
            accepted: 0,
            written: 0,
            flushes: VecDeque::new(),
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Settle(items) => state.settle(items),
            Message::Go => state.go(),
            Message::Ended(batch, result) => state.ended(batch, result),
            Message::Flush(claimer, tag) => state.flush(claimer, tag),
        }
        Ok(())
    }
}

impl State {
    fn settle(&mut self, items: Vec<Item<Tell>>) {
        self.accepted += items.len() as u64;
        for item in items {
            self.queue.push(item);
        }
        if self.writing.is_none() && self.failures == 0 {
            self.write_soon();
        }
    }

    /// Writes at once what somebody waits for, or what fills a batch; anything else after a moment.
    fn write_soon(&mut self) {
        if self.queue.is_urgent() || !self.flushes.is_empty() {
            self.write();
        } else if !self.timed && !self.queue.is_empty() {
            self.timed = true;
            self.myself.send_after(GATHER, || Message::Go);
        }
    }

    fn go(&mut self) {
        self.timed = false;
        if self.writing.is_none() {
            self.write();
        }
    }

    fn write(&mut self) {
        let batch = self.queue.next_batch();
        if batch.is_empty() {
            return;
        }
        let source = Arc::clone(&self.arguments.source);
        let myself = self.myself.clone();
        self.writing = Some(Task::spawn(async move {
            let durable = batch.iter().any(|item| batch::is_durable(&item.outcome));
            let (outcomes, tells): (Vec<Outcome>, Vec<Tell>) = batch
                .into_iter()
                .map(|item| (item.outcome, item.tell))
                .unzip();
            fail_point!(Settling);
            let settle = guarded(source.settle(&outcomes, durable));
            let result = with_fail_point!(SettlementSent, settle).await;
            fail_point!(Settled if result.is_ok());
            let batch = outcomes
                .into_iter()
                .zip(tells)
                .map(|(outcome, tell)| Item { outcome, tell })
                .collect();
            let _ = myself.cast(Message::Ended(batch, result));
        }));
    }

    fn ended(&mut self, batch: Vec<Item<Tell>>, result: Result<Vec<bool>, SourceError>) {
        self.writing = None;
        match result {
            Ok(applied) => {
                if self.failures > 0 {
                    let database = self.arguments.source.name();
                    info!(database, "outcomes are written again");
                }
                self.recovered();
                self.refusals = 0;
                self.committed(batch, &applied);
            }
            Err(problem) if problem.kind == SourceErrorKind::Refused => {
                let refused = self.queue.split(batch);
                self.refusals = self.refusals.saturating_add(u32::from(refused.is_some()));
                let blamed = self.refusals <= BLAMED;
                if blamed {
                    // It answered: the outage, if there was one, is over.
                    self.recovered();
                }
                match refused {
                    Some(item) if blamed => self.refused(item, &problem),
                    Some(item) => {
                        // Others are tried before this one is again.
                        self.queue.push(item);
                        return self.pause(&problem, SHOWN);
                    }
                    None => {}
                }
            }
            Err(problem) => {
                if problem.kind == SourceErrorKind::ReadOnly
                    && let Some(Item { tell, .. }) = batch.last()
                {
                    // The latest is of the present incarnation, if any is.
                    let told = claimer::Message::ReadOnly(tell.epoch, problem.to_string());
                    let _ = tell.claimer.cast(told);
                }
                self.queue.put_back(batch);
                return self.pause(&problem, 1);
            }
        }
        self.answer_flushes();
        self.write_soon();
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            let database = self.arguments.source.name();
            self.arguments.board.unwritten(database, None);
        }
    }

    /// Nothing can be written for now: that counts as so many failures at least. Said once, until something is written.
    fn pause(&mut self, problem: &SourceError, failures: u32) {
        let database = self.arguments.source.name();
        let first = self.failures == 0;
        self.failures = self.failures.saturating_add(1).max(failures);
        if first {
            warn!(
                database,
                error = %problem,
                waiting = self.queue.len(),
                "outcomes cannot be written; they wait"
            );
        }
        if self.failures >= SHOWN {
            let words = format!("outcomes cannot be written: {problem}");
            self.arguments.board.unwritten(database, Some(words));
        }
        let pause = back_off(PAUSE, PAUSE_MAX, self.failures, 0.5);
        self.timed = true;
        self.myself.send_after(pause, || Message::Go);
    }

    /// The database refuses this outcome, and takes others.
    fn refused(&mut self, item: Item<Tell>, problem: &SourceError) {
        error!(
            database = self.arguments.source.name(),
            event_id = %item.outcome.id,
            seq = item.outcome.seq,
            error = %problem,
            "the database refuses this event's outcome; the event waits and is tried again"
        );
        self.written += 1;
        if let Some(sequencer) = &item.tell.sequencer {
            // A discard: its key waits for it in the sequencer, which gives everything back.
            let _ = sequencer.cast(sequencer::Message::Kept(item.outcome.seq));
            return;
        }
        let settled = Settled {
            feed: item.tell.feed,
            seq: item.outcome.seq,
            done: false,
            applied: false,
            new: false,
            refused: true,
        };
        let _ = item
            .tell
            .claimer
            .cast(claimer::Message::Settled(item.tell.epoch, vec![settled]));
    }

    fn committed(&mut self, batch: Vec<Item<Tell>>, applied: &[bool]) {
        self.written += batch.len() as u64;
        self.count(&batch, applied);
        let mut news: Option<(ActorRef<claimer::Message>, u64, Vec<Settled>)> = None;
        for (index, item) in batch.into_iter().enumerate() {
            let Item { outcome, tell } = item;
            let applied = applied.get(index).copied().unwrap_or(false);
            if let Some(sequencer) = &tell.sequencer
                && !applied
            {
                // Another owner's now, or gone already: the table knows, and the key is read again.
                let _ = sequencer.cast(sequencer::Message::Kept(outcome.seq));
                continue;
            }
            let settled = Settled {
                feed: tell.feed,
                seq: outcome.seq,
                done: !matches!(outcome.verdict, Verdict::Retried { .. }),
                applied,
                new: matches!(&outcome.verdict, Verdict::Published { receipt, .. } if !receipt.duplicate),
                refused: false,
            };
            if let Some(sequencer) = tell.sequencer {
                let _ = sequencer.cast(sequencer::Message::Closed(outcome.seq));
            }
            match &mut news {
                Some((claimer, epoch, list))
                    if *epoch == tell.epoch && claimer.get_id() == tell.claimer.get_id() =>
                {
                    list.push(settled);
                }
                _ => {
                    send_news(news.take());
                    news = Some((tell.claimer, tell.epoch, vec![settled]));
                }
            }
        }
        send_news(news);
    }

    fn count(&self, batch: &[Item<Tell>], applied: &[bool]) {
        let Arguments {
            source,
            keeper,
            telemetry,
            board,
            ..
        } = &self.arguments;
        let database = source.name();
        let mut lost = 0;
        let mut published: Vec<(&Arc<str>, u64)> = Vec::new();
        for (index, item) in batch.iter().enumerate() {
            if !applied.get(index).copied().unwrap_or(false) {
                lost += 1;
                continue;
            }
            let sink = &item.outcome.sink;
            match &item.outcome.verdict {
                Verdict::Published { .. } => {
                    match published.iter_mut().find(|(name, _)| *name == sink) {
                        Some((_, count)) => *count += 1,
                        None => published.push((sink, 1)),
                    }
                }
                Verdict::Retried { .. } => telemetry.retried(database, sink, 1),
                Verdict::Discarded { reason, .. } => {
                    telemetry.discarded(database, sink, *reason);
                    // A sink that was removed has no feed here.
                    board.known_feed(database, sink, |feed| feed.discarded += 1);
                }
            }
        }
        for (sink, count) in published {
            telemetry.published(database, sink, count);
            board.feed(database, sink, |feed| feed.published += count);
        }
        if lost > 0 {
            // What was published is marked so, and whoever reads that mark takes the event for finished.
            keeper.send(keeper::Message::Leftovers);
            telemetry.lease_lost(database, lost);
            warn!(
                database,
                count = lost,
                "outcomes came too late: the shard has another owner by now, or the rows are gone"
            );
        }
    }

    fn flush(&mut self, claimer: ActorRef<claimer::Message>, tag: u64) {
        self.flushes.push_back((self.accepted, claimer, tag));
        self.answer_flushes();
        if !self.queue.is_empty() && self.writing.is_none() && self.failures == 0 {
            self.write();
        }
    }

    fn answer_flushes(&mut self) {
        while let Some((until, _, _)) = self.flushes.front() {
            if *until > self.written {
                break;
            }
            if let Some((_, claimer, tag)) = self.flushes.pop_front() {
                let _ = claimer.cast(claimer::Message::Flushed(tag));
            }
        }
    }
}

fn send_news(news: Option<(ActorRef<claimer::Message>, u64, Vec<Settled>)>) {
    if let Some((claimer, epoch, list)) = news {
        // A claimer that is gone reads the table again.
        let _ = claimer.cast(claimer::Message::Settled(epoch, list));
    }
}
