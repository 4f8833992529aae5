//! Owning: the feeds, their reads and looks, and the pace of it all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::cancelling::Cancelling;
use super::care::{Care, condemned};
use super::feed::action::{Action, Origin};
use super::feed::{Feed, Limits};
use super::hands::Hands;
use super::history::History;
use super::opening::{Renewer, Start};
use super::pulse::{Mark, Pulse};
use super::walking::{COMMANDS, Walk};
use super::{Arguments, Message};
use crate::actor::handle::guarded;
use crate::actor::sequencer::FeedContext;
use crate::lease::{Deadline, Owned, Ownership};
use crate::retry::back_off;
use crate::source::{Pause, Renewed, SourceError, SweepMark};
use crate::status::DatabaseState;

/// Sequencers without work end after this long, milliseconds; at once when there are too many.
const LINGER: u64 = 200;
const MAX_SEQUENCERS: usize = 4_096;
/// How often idle sequencers are looked for and figures are shown, milliseconds.
const HOUSEKEEPING: u64 = 100;
/// How often one that works with care looks whether anything has ended, milliseconds.
const CAREFUL: u64 = 10;
/// First and longest pause after a failed read.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The state of an owner.
pub struct Active {
    pub(super) env: Arguments,
    pub(super) myself: ActorRef<Message>,
    pub(super) epoch: u64,
    ownership: Arc<Ownership>,
    /// Which shards that are.
    pub(super) owned: Owned,
    renewer: Renewer,
    pub(super) slots: Vec<Slot>,
    pub(super) pulse: Pulse,
    pub(super) tasks: JoinSet<()>,
    pub(super) actions: Vec<(usize, Action)>,
    /// A look is under way, or wanted.
    pub(super) looking: bool,
    pub(super) want_look: bool,
    /// The mark is being written; it is known to be set.
    marking: bool,
    pub(super) armed: bool,
    pub(super) commanding: bool,
    pub(super) want_commands: bool,
    pub(super) commands_at: u64,
    pub(super) command_mark: i64,
    pub(super) cancelling: Cancelling,
    /// What is paused, and with which command that was read.
    pub(super) pauses: Vec<Pause>,
    pub(super) pauses_mark: i64,
    /// Nothing is read before this, after a failure.
    not_before: u64,
    failures: u32,
    /// The last renewal succeeded.
    renewable: bool,
    pub(super) last_activity: u64,
    /// Owners died before this one.
    pub(super) care: Option<Care>,
    /// Another instance has something to do: whoever sleeps could not take over from it.
    pub(super) others_busy: bool,
    housekeeping_at: u64,
    tick_at: Option<u64>,
    history: History,
}

/// One feed with what it has under way.
pub struct Slot {
    /// The decisions.
    pub feed: Feed,
    /// What its sequencers share.
    pub context: Arc<FeedContext>,
    /// Its sequencers.
    pub hands: Hands,
    /// A forward read is under way.
    pub reading: bool,
    /// A forward read is wanted.
    pub want_read: bool,
    /// The last forward read came to the end of the table.
    pub dry: bool,
    /// A catch-up read is under way.
    pub catching: bool,
    /// Rows to read by number, and whether such a read is under way.
    pub fetches: VecDeque<(Vec<i64>, Origin)>,
    /// A read by number is under way.
    pub fetching: bool,
    /// A sweep is under way; where its next slice begins.
    pub sweep: Option<Option<SweepMark>>,
    /// The sweep under way waits for keys that it found to be read.
    pub sweep_rests: bool,
    /// What its feed had forgotten when it began.
    pub sweep_forgettings: u64,
    /// A walk over due times is under way.
    pub walk: Option<Walk>,
}

impl Slot {
    /// The table is being searched for keys that memory dropped.
    pub(super) fn searches(&self) -> bool {
        self.sweep.is_some() && self.feed.has_forgotten()
    }

    /// When the next key is due; what is paused waits for no time.
    pub(super) fn next_due(&self) -> Option<u64> {
        let due = self.feed.parked().next_due();
        due.filter(|_| !self.feed.is_held())
    }
}

impl Active {
    /// An owner that has read nothing yet.
    #[expect(
        clippy::too_many_arguments,
        reason = "called once, by the actor that owns all of it"
    )]
    pub fn new(
        env: &Arguments,
        myself: ActorRef<Message>,
        epoch: u64,
        ownership: Arc<Ownership>,
        renewer: Renewer,
        start: &Start,
        channel_open: bool,
        now: u64,
    ) -> Self {
        let limits = Limits {
            events: env.settings.budget_events,
            bytes: env.settings.budget_bytes,
            parked: env.settings.max_parked,
            guard: env.settings.guard,
            watch_gaps: start.watch_gaps,
        };
        let slots = env
            .sinks
            .iter()
            .enumerate()
            .map(|(index, (sink, publisher))| Slot {
                feed: Feed::new(
                    Arc::clone(sink),
                    env.routes.clone(),
                    limits,
                    start.repeat_below(),
                ),
                context: Arc::new(FeedContext {
                    database: Arc::clone(&env.database),
                    sink: Arc::clone(sink),
                    feed: index,
                    epoch,
                    ownership: Arc::clone(&ownership),
                    publisher: publisher.clone(),
                    settler: env.settler.clone(),
                    claimer: myself.clone(),
                    telemetry: env.telemetry.clone(),
                    tree: env.tree.clone(),
                }),
                hands: Hands::default(),
                reading: false,
                want_read: true,
                dry: false,
                catching: false,
                fetches: VecDeque::new(),
                fetching: false,
                sweep: None,
                sweep_rests: false,
                sweep_forgettings: 0,
                walk: None,
            })
            .collect();
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let mut pulse = Pulse::new(ms(env.settings.poll_max), ms(env.settings.fallback), now);
        pulse.channel(channel_open);
        let mut active = Self {
            env: env.clone(),
            myself,
            epoch,
            owned: ownership.owned(),
            ownership,
            renewer,
            slots,
            pulse,
            tasks: JoinSet::new(),
            actions: Vec::new(),
            looking: false,
            want_look: false,
            marking: false,
            armed: false,
            commanding: false,
            want_commands: false,
            commands_at: 0,
            command_mark: start.commands,
            cancelling: Cancelling::default(),
            pauses: Vec::new(),
            pauses_mark: start.commands,
            not_before: 0,
            failures: 0,
            renewable: true,
            last_activity: now,
            others_busy: start.members.busy > 0,
            care: Care::after(&start.suspects),
            housekeeping_at: 0,
            tick_at: None,
            history: History::new(&start.renewed),
        };
        let feeds = active.slots.len();
        for slot in &mut active.slots {
            slot.feed.own(active.owned.clone());
            slot.feed.condemn(condemned(&start.suspects));
            if let Some(care) = &active.care {
                slot.feed.limit(care.budget(feeds));
            }
        }
        active.pause(start.pauses.clone(), start.commands, now);
        active
    }

    /// What is owned.
    pub fn ownership(&self) -> &Arc<Ownership> {
        &self.ownership
    }

    /// What renews it.
    pub fn renewer(&self) -> &Renewer {
        &self.renewer
    }

    /// Ends: nothing is sent any more, every sequencer goes.
    pub fn end(&mut self) {
        self.ownership.revoke();
        self.tasks.abort_all();
        for slot in &mut self.slots {
            slot.hands.stop_all();
        }
    }

    /// Does a renewal end this ownership? Says why.
    pub fn disowned_by(&mut self, renewed: &Renewed, sent: Deadline) -> Option<&'static str> {
        if renewed.held.len() < self.ownership.leases().len() {
            return Some("a lease was lost to another instance");
        }
        let cursors = self.slots.iter().map(|slot| slot.feed.cursor().at());
        let cursor = cursors.max().unwrap_or(i64::MIN);
        self.history
            .ended_by(renewed, sent, Deadline::now(), cursor)
    }

    // ---- pace ------------------------------------------------------------------------------------

    /// Starts whatever is due now.
    pub fn drive(&mut self, now: u64) {
        while self.tasks.try_join_next().is_some() {}
        let resting = now < self.not_before;
        if !resting && self.next_poll(now) <= now {
            self.begin_poll(now);
        }
        for index in 0..self.slots.len() {
            let held = self.slots[index].feed.is_held();
            if !held {
                self.slots[index].feed.on_time(now);
            }
            let lets = self.care.as_ref().is_none_or(|care| care.lets(index));
            if !resting && !held && lets {
                self.catch_up(index);
                self.read(index);
                self.fetch(index);
                self.walk(index);
                self.sweep_on(index);
            }
        }
        self.pass_turn(now);
        if !resting {
            self.look();
            self.mark(now);
            self.command(now);
            self.cancel();
        }
        if now >= self.housekeeping_at {
            self.housekeeping_at = now + HOUSEKEEPING;
            self.housekeep(now);
        }
    }

    fn next_poll(&self, now: u64) -> u64 {
        let youngest = self
            .slots
            .iter()
            .filter(|slot| !slot.feed.is_held())
            .filter_map(|slot| slot.feed.cursor().gaps().youngest())
            .max();
        self.pulse.next_poll(youngest, now)
    }

    fn begin_poll(&mut self, now: u64) {
        self.pulse.began(now);
        if self.slots.iter().all(|slot| slot.feed.is_held()) {
            // Nothing is read that would tell.
            self.pulse.polled(0, now);
        }
        for slot in &mut self.slots {
            slot.want_read = true;
        }
        self.want_commands = true;
        self.want_look = true;
    }

    /// Something was written: poll at once.
    pub fn wake(&mut self) {
        for slot in &mut self.slots {
            slot.want_read = true;
            slot.dry = false;
        }
        self.want_commands = true;
    }

    /// The channel opened or was lost.
    pub fn channel(&mut self, open: bool) {
        self.armed = false;
        self.pulse.channel(open);
        if open {
            self.renewer.soon();
        }
        self.wake();
    }

    fn mark(&mut self, now: u64) {
        if self.marking {
            return;
        }
        let Some(mark) = self.pulse.mark(now) else {
            return;
        };
        let span = match mark {
            Mark::Set(span) => Duration::from_millis(span),
            Mark::Clear => {
                self.armed = false;
                Duration::ZERO
            }
        };
        self.marking = true;
        let (source, myself) = (Arc::clone(&self.env.source), self.myself.clone());
        let epoch = self.epoch;
        self.tasks.spawn(async move {
            let set = guarded(source.set_wake_mark(span)).await.is_ok();
            let _ = myself.cast(Message::Marked(epoch, set));
        });
    }

    /// The mark was written, or not.
    pub fn marked(&mut self, set: bool, now: u64) {
        self.marking = false;
        if !set {
            self.pulse.mark_failed(now);
        } else if self.pulse.watches() {
            self.armed = true;
            self.want_look = true;
        }
    }

    /// When the actor has to act again, unless a message comes first.
    pub fn next_tick(&mut self, now: u64) -> Option<u64> {
        let mut next = self.next_poll(now).max(self.not_before);
        for slot in &self.slots {
            if let Some(due) = slot.next_due() {
                next = next.min(due);
            }
            if !slot.hands.is_empty() {
                next = next.min(self.housekeeping_at);
            }
        }
        if let Some(at) = self.pulse.renew_at() {
            next = next.min(at.max(self.not_before));
        }
        if self.not_before > now {
            // After a failure there is something to do again.
            next = next.min(self.not_before);
        }
        if self.care.is_some() {
            next = next.min(now + CAREFUL);
        }
        if self.want_commands && !self.commanding {
            next = next.min(self.commands_at + COMMANDS).max(self.not_before);
        }
        if let Some(quiet) = self.env.settings.quiet_after {
            let quiet = u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX);
            let at = self.last_activity.saturating_add(quiet);
            if at > now {
                next = next.min(at);
            }
        }
        let next = next.max(now + 1);
        if self.tick_at.is_some_and(|at| at > now && at <= next) {
            return None;
        }
        self.tick_at = Some(next);
        Some(next)
    }

    fn housekeep(&mut self, now: u64) {
        for slot in &mut self.slots {
            let linger = if slot.hands.len() > MAX_SEQUENCERS {
                0
            } else {
                LINGER
            };
            for key in slot.feed.retire_idle(linger, now) {
                slot.hands.rest(&key);
            }
            slot.hands.thin_out();
            if slot.feed.in_flight() == 0 {
                // The one for events without a key: it has none either.
                slot.hands.retire(None);
            }
        }
        self.show_figures();
    }

    // ---- failures ----------------------------------------------------------------------------------

    /// A call to the database failed: rest, and show it once. A renewal tells whether it is still the same history.
    pub(super) fn trouble(&mut self, error: &SourceError, now: u64) {
        self.renewer.soon();
        self.failures = self.failures.saturating_add(1);
        let pause = back_off(PAUSE, PAUSE_MAX, self.failures, 0.5);
        self.not_before = now + u64::try_from(pause.as_millis()).unwrap_or(1_000);
        let database = &self.env.database;
        let reason = Some(error.to_string());
        if self
            .env
            .board
            .database_state(database, DatabaseState::Waiting, reason)
        {
            warn!(%database, %error, "database cannot be read; trying again");
        }
    }

    /// A renewal failed. Idle or not: an outage shows, and a poll after the next renewal tells when it is over.
    pub(super) fn not_renewed(&mut self, error: &SourceError, now: u64) {
        self.renewable = false;
        self.trouble(error, now);
    }

    /// A renewal succeeded.
    pub(super) fn renewed(&mut self) {
        if !std::mem::replace(&mut self.renewable, true) {
            self.wake();
        }
    }

    /// A call to the database succeeded. While renewals fail that is not the end of the trouble.
    pub(super) fn fine(&mut self) {
        if self.failures > 0 && self.renewable {
            self.failures = 0;
            let database = &self.env.database;
            self.env
                .board
                .database_state(database, DatabaseState::Active, None);
            info!(%database, "database is read again");
            self.renewer.soon();
        }
    }

    /// Something moved: the database is not quiet.
    pub(super) fn active_at(&mut self, now: u64) {
        self.last_activity = now;
    }
}
