//! From nothing to owning: opening, standing by, renewing, resetting, falling quiet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tracing::{error, info, warn};
use uuid::Uuid;

use super::active::Active;
use super::sharing::{Aim, Attendance};
use super::{Arguments, Message, Phase, State, Tag};
use crate::actor::handle::{Task, guarded};
use crate::actor::keeper;
use crate::lease::{Deadline, Lease, Ownership};
use crate::retry::{back_off, jitter};
use crate::source::{
    Members, Opened, Pause, Renewed, Source, SourceError, SourceErrorKind, Suspects,
};
use crate::status::{DatabaseState, HeldLease};
use crate::testing::fail_points::{fail_point, with_fail_point};

/// First and longest pause after a failure: at most one attempt a second in an outage.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a standby asks for free shards.
const STANDBY: Duration = Duration::from_millis(500);
/// How long opening waits for outcomes of an earlier incarnation to be written.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// How often a quiet database is looked at, in case a wake-up was lost.
const QUIET_LOOK: Duration = Duration::from_secs(15 * 60);

/// What an owner begins with.
#[derive(Debug)]
pub struct Start {
    /// What opening found.
    pub opened: Opened,
    /// This instance's share of the shards.
    pub leases: Vec<Lease>,
    /// Who else wants one.
    pub members: Members,
    /// What is known of owners that died before.
    pub suspects: Vec<Suspects>,
    /// How long they are trusted.
    pub deadline: Deadline,
    /// Commands up to here are older than this incarnation.
    pub commands: i64,
    /// What is paused.
    pub pauses: Vec<Pause>,
    /// Commits may become visible out of order.
    pub watch_gaps: bool,
    /// Where the database stands.
    pub renewed: Renewed,
}

impl Start {
    /// Rows up to here may have been handed over by an owner before this one.
    pub fn repeat_below(&self) -> i64 {
        match self.leases.iter().all(Lease::is_first) {
            true => i64::MIN,
            false => self.renewed.last_seq,
        }
    }
}

/// What renews the leases, and asks with that whether the database's history is still the same.
pub struct Renewer {
    soon: Arc<Notify>,
    attendance: Arc<Attendance>,
    _task: Task,
    _look: Task,
}

impl Renewer {
    /// Renew now: a connection was lost and is there again, so the server may be another, or have forgotten
    /// something.
    pub fn soon(&self) {
        self.soon.notify_one();
    }

    /// What is told to those who share the shards.
    pub fn attendance(&self) -> &Attendance {
        &self.attendance
    }
}

impl State {
    /// Opens once the settler has written what an earlier incarnation left.
    pub(super) fn flush_and_open(&mut self) {
        self.epoch += 1;
        self.phase = Phase::Opening;
        self.show_nothing_owned();
        let epoch = self.epoch;
        self.flush(Tag::Open(epoch));
        self.myself
            .send_after(FLUSH_LIMIT, move || Message::Open(epoch));
    }

    /// Tries to open, or to take the shards.
    pub(super) fn open(&mut self, epoch: u64) {
        if epoch != self.epoch
            || !matches!(self.phase, Phase::Opening | Phase::Standby | Phase::Quiet)
        {
            return;
        }
        // One attempt per epoch: a second request of the same epoch finds it taken.
        self.epoch += 1;
        let epoch = self.epoch;
        if !matches!(self.phase, Phase::Standby) {
            self.phase = Phase::Opening;
        }
        self.quiet.store(false, Ordering::Release);
        let source = Arc::clone(&self.arguments.source);
        let (instance, ttl) = (
            self.arguments.settings.instance,
            self.arguments.settings.ttl,
        );
        let myself = self.myself.clone();
        let aim = std::mem::take(&mut self.aim);
        let stands_by = matches!(self.phase, Phase::Standby);
        let first = !std::mem::replace(&mut self.buried, true);
        self.tasks.clear();
        self.tasks.push(Task::spawn(async move {
            let result = guarded(start(&*source, instance, ttl, aim, stands_by, first)).await;
            let _ = myself.cast(Message::Opened(epoch, result));
        }));
    }

    /// Opening ended: owner, standby, or later.
    pub(super) fn opened(&mut self, epoch: u64, result: Result<Option<Box<Start>>, SourceError>) {
        if epoch != self.epoch {
            return;
        }
        self.tasks.clear();
        if matches!(self.phase, Phase::Draining(_)) {
            let leases = result.ok().flatten().map(|start| start.leases);
            return self.opened_draining(leases.unwrap_or_default());
        }
        if !matches!(self.phase, Phase::Opening | Phase::Standby) {
            return;
        }
        match result {
            Ok(Some(start)) => self.activate(*start),
            Ok(None) => {
                self.failures = 0;
                self.kept.clear();
                self.phase = Phase::Standby;
                // The owner shows what is paused.
                let board = &self.arguments.board;
                board.database(&self.arguments.database, |shown| shown.paused.clear());
                self.show(DatabaseState::Standby, None);
                self.tell_keeper(keeper::Mode::Standby);
                let spread = jitter(self.arguments.settings.instance, self.epoch as u32);
                self.open_after(STANDBY.mul_f64(0.75 + spread / 4.0));
            }
            Err(error) => {
                self.phase = Phase::Opening;
                self.fail(&error);
                let pause = self.pause();
                self.open_after(pause);
            }
        }
    }

    fn open_after(&self, pause: Duration) {
        let epoch = self.epoch;
        self.myself.send_after(pause, move || Message::Open(epoch));
    }

    fn pause(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let spread = jitter(Uuid::new_v4(), self.failures);
        // Jitter shortens below the bound of one attempt a second only in the first steps.
        back_off(PAUSE, PAUSE_MAX, self.failures, spread)
    }

    fn fail(&self, error: &SourceError) {
        if self.show(DatabaseState::Waiting, Some(error.to_string())) {
            let database = &self.arguments.database;
            if error.kind == SourceErrorKind::Unusable {
                error!(%database, %error, "database cannot be used; an operator has to act");
            } else {
                warn!(%database, %error, "database cannot be reached; trying again");
            }
        }
    }

    fn activate(&mut self, start: Start) {
        self.failures = 0;
        self.kept.clear();
        let ownership = Arc::new(Ownership::new(
            start.opened.shards,
            &start.leases,
            start.deadline,
        ));
        let database = Arc::clone(&self.arguments.database);
        for remark in &start.opened.remarks {
            warn!(%database, "{remark}");
        }
        info!(
            %database,
            shards = start.leases.len(),
            of = start.opened.shards,
            instances = start.members.count,
            "database is relayed by this instance"
        );
        self.tell_deaths(&start.suspects);
        self.show(DatabaseState::Active, None);
        self.arguments.board.database(&database, |shown| {
            shown.leases = start
                .leases
                .iter()
                .map(|lease| HeldLease {
                    shard: lease.shard,
                    token: lease.token,
                })
                .collect();
        });
        self.tell_keeper(keeper::Mode::Active);
        let renewer = self.renewer(Arc::clone(&ownership), start.leases.clone());
        let now = self.now();
        let active = Active::new(
            &self.arguments,
            self.myself.clone(),
            self.epoch,
            ownership,
            renewer,
            &start,
            self.channel_open,
            now,
        );
        self.phase = Phase::Active(Box::new(active));
        self.look_if_shared(&start.members);
        self.listen();
        let _ = self.myself.cast(Message::Tick(self.epoch));
    }

    /// Renews on its own task, whatever the actor is doing.
    fn renewer(&self, ownership: Arc<Ownership>, leases: Vec<Lease>) -> Renewer {
        let soon = Arc::new(Notify::new());
        let asked = Arc::clone(&soon);
        let source = Arc::clone(&self.arguments.source);
        let myself = self.myself.clone();
        let (ttl, epoch) = (self.arguments.settings.ttl, self.epoch);
        let instance = self.arguments.settings.instance;
        let attendance = Arc::new(Attendance::default());
        let attends = Arc::clone(&attendance);
        let task = Task::spawn(async move {
            let mut pause = ttl / 3;
            let mut failed = false;
            loop {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    // One that failed is tried again at its own pace, whoever hurries.
                    () = asked.notified(), if !failed => {}
                }
                fail_point!(RenewalDue);
                let sent = Deadline::now();
                let renewal = renew(&*source, &leases, ttl);
                let result = with_fail_point!(RenewalSent, renewal).await;
                fail_point!(Renewed);
                let members = match result.is_ok() {
                    true => guarded(attends.tell(&*source, instance, ttl)).await.ok(),
                    false => None,
                };
                failed = result
                    .as_ref()
                    .map_or(true, |renewed| renewed.held.len() < leases.len());
                pause = if failed {
                    PAUSE_MAX.min(ttl / 3)
                } else {
                    ownership.extend(sent.trusting(ttl));
                    ttl / 3
                };
                if myself.cast(Message::Renewed(epoch, sent, result)).is_err() {
                    return;
                }
                if let Some(members) = members {
                    let _ = myself.cast(Message::Members(epoch, members));
                }
            }
        });
        Renewer {
            soon,
            _look: self.look(Arc::clone(&attendance)),
            attendance,
            _task: task,
        }
    }

    /// A renewal ended: are the leases held, and is it still the same history?
    pub(super) fn renewed(
        &mut self,
        epoch: u64,
        sent: Deadline,
        result: Result<Renewed, SourceError>,
    ) {
        let now = self.now();
        if epoch != self.epoch {
            return;
        }
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let reason = match &result {
            Ok(renewed) => {
                active.renewed();
                active.disowned_by(renewed, sent).map(str::to_owned)
            }
            // Whoever cannot renew for that reason cannot settle either.
            Err(error) if error.kind == SourceErrorKind::ReadOnly => Some(error.to_string()),
            Err(_) if active.ownership().time_left().is_zero() => {
                Some("leases could not be renewed in time".to_owned())
            }
            Err(error) => {
                active.not_renewed(error, now);
                None
            }
        };
        if let Some(reason) = reason {
            self.reset(&reason);
        }
    }

    /// The settler cannot write an outcome, and not because the database is away: what would be sent now could not
    /// be settled either.
    pub(super) fn read_only(&mut self, epoch: u64, reason: &str) {
        if epoch == self.epoch && matches!(self.phase, Phase::Active(_)) {
            self.reset(reason);
        }
    }

    /// Throws the state away and begins again from the table.
    pub(super) fn reset(&mut self, reason: &str) {
        let database = &self.arguments.database;
        warn!(%database, reason, "starting again from the table under fresh leases");
        self.leave_active();
        // The channel may lead to where the leases were and writers no longer are.
        self.channel_lost |= self.listener.take().is_some() && !self.channel_open;
        self.listening(false);
        self.show(DatabaseState::Starting, Some(reason.to_owned()));
        self.flush_and_open();
    }

    /// Ends the active state: nothing may be sent in its name any more.
    fn leave_active(&mut self) {
        if let Phase::Active(active) = &mut self.phase {
            active.end();
        }
        self.arguments.caught_up.send_replace(false);
        self.phase = Phase::Opening;
        self.show_nothing_owned();
    }

    /// Without ownership nothing is in flight or parked here; an earlier incarnation may have left its figures.
    fn show_nothing_owned(&self) {
        let Arguments {
            database,
            board,
            sinks,
            ..
        } = &self.arguments;
        board.database(database, |shown| {
            shown.leases.clear();
            shown.unrouted.clear();
        });
        for (sink, _) in sinks {
            board.feed(database, sink, |shown| {
                (shown.in_flight, shown.parked) = (0, 0);
            });
        }
    }

    /// Nothing happened for long: release the leases and stop every statement but the channel's.
    pub(super) fn fall_quiet(&mut self, next_due: Option<Duration>) {
        let Phase::Active(active) = &self.phase else {
            return;
        };
        let leases = active.ownership().leases();
        let instance = self.arguments.settings.instance;
        self.leave_active();
        self.epoch += 1;
        self.phase = Phase::Quiet;
        self.quiet.store(true, Ordering::Release);
        self.tell_keeper(keeper::Mode::Quiet);
        self.show(DatabaseState::Quiet, None);
        self.arguments.caught_up.send_replace(true);
        info!(database = %self.arguments.database, "database is quiet; waiting for a wake-up");
        let source = Arc::clone(&self.arguments.source);
        self.tasks.clear();
        let (myself, epoch) = (self.myself.clone(), self.epoch);
        // The mark first: a writer that commits after the leases are free must still wake somebody. Without
        // it there is no sleep.
        self.tasks.push(Task::spawn(async move {
            if guarded(source.set_wake_mark(2 * QUIET_LOOK)).await.is_err() {
                let _ = myself.cast(Message::Open(epoch));
                return;
            }
            let _ = guarded(source.attend(instance, Duration::ZERO, true)).await;
            let _ = guarded(source.release(&leases)).await;
        }));
        self.open_after(next_due.map_or(QUIET_LOOK, |due| due.min(QUIET_LOOK)));
    }

    pub(super) fn tell_keeper(&self, mode: keeper::Mode) {
        self.arguments.keeper.send(keeper::Message::Mode(mode));
    }

    /// Shows the database's state; true when it changed.
    pub(super) fn show(&self, state: DatabaseState, reason: Option<String>) -> bool {
        let database = &self.arguments.database;
        self.arguments.board.database_state(database, state, reason)
    }
}

/// Renews. What is not answered by half of the lease's time is not waited for: a link that is dead on the other side is
/// to show while there is time for another attempt.
async fn renew(
    source: &dyn Source,
    leases: &[Lease],
    ttl: Duration,
) -> Result<Renewed, SourceError> {
    let limit = ttl / 2;
    let call = tokio::time::timeout(limit, guarded(source.renew(leases, ttl)));
    call.await.unwrap_or_else(|_| {
        Err(SourceError::new(
            SourceErrorKind::Unavailable,
            format!("renewing leases: no answer within {limit:?}"),
        ))
    })
}

/// Opens, takes what this instance is to have of the shards, and learns where the database stands. `None`: others own
/// all of them.
async fn start(
    source: &dyn Source,
    instance: Uuid,
    ttl: Duration,
    aim: Aim,
    stands_by: bool,
    first: bool,
) -> Result<Option<Box<Start>>, SourceError> {
    let opened = source.open().await?;
    if first {
        // What this instance has already is an earlier incarnation's, which cannot give it back any more.
        source.bury(instance).await?;
    }
    source.attend(instance, ttl, stands_by).await?;
    let members = source.members(instance).await?;
    let most = match aim {
        Aim::Beyond => opened.shards,
        Aim::Begin | Aim::Share => members.share(opened.shards),
    };
    let sent = Deadline::now();
    let leases = source.acquire(instance, ttl, most).await?;
    if leases.is_empty() {
        return Ok(None);
    }
    fail_point!(Acquired);
    if aim == Aim::Begin {
        // Whoever sleeps could not take over from this one.
        source.wake_instances().await?;
    }
    let suspects = source.suspects(&leases).await?;
    let commands = source.commands(None).await?;
    let watch_gaps = source.writers().await?.is_some();
    let renewed = source.renew(&leases, ttl).await?;
    Ok(Some(Box::new(Start {
        opened,
        leases,
        members,
        suspects,
        deadline: sent.trusting(ttl),
        commands: commands.mark,
        pauses: commands.pauses.unwrap_or_default(),
        watch_gaps,
        renewed,
    })))
}
