//! Sharing the shards with other instances: what is this one's share, and how it comes to another one.
//!
//! ```text
//!   active ──it has too many, or too few and some are free──> draining ──> opening, for its share
//! ```
//!
//! An owner changes its shards as it would end and begin again: it sends nothing more, what is out ends, everything is
//! settled; then it takes its share under fresh tokens and reads from the table's first row. So no rule of an owner has
//! to hold for shards that come and go under it, and a gained shard is read from its first row like any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::info;
use uuid::Uuid;

use super::draining::Then;
use super::{Message, Phase, State};
use crate::actor::handle::{Task, guarded};
use crate::source::{Members, Source, SourceError};

/// How often it is looked at who shares the shards, while somebody does.
const LOOK: Duration = Duration::from_millis(400);

/// What an opening is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aim {
    /// To begin: others may sleep, and have to know that somebody is there.
    #[default]
    Begin,
    /// To have the share, after a change of it.
    Share,
    /// To have all that nobody else takes.
    Beyond,
}

/// What this instance says of itself to those who share the shards, and how often it looks at them.
#[derive(Debug, Default)]
pub struct Attendance {
    shared: AtomicBool,
    idle: AtomicBool,
    /// What was said last.
    told_idle: AtomicBool,
}

impl Attendance {
    /// Others have a share, or may want one.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// There is nothing to do, or there is.
    pub fn show_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Relaxed);
    }

    /// Asks for a share, and tells who else does.
    pub async fn tell(
        &self,
        source: &dyn Source,
        instance: Uuid,
        ttl: Duration,
    ) -> Result<Members, SourceError> {
        let idle = self.idle.load(Ordering::Relaxed);
        source.attend(instance, ttl, idle).await?;
        self.told_idle.store(idle, Ordering::Relaxed);
        source.members(instance).await
    }

    fn is_news(&self) -> bool {
        self.idle.load(Ordering::Relaxed) != self.told_idle.load(Ordering::Relaxed)
    }
}

/// What an owner of `held` of `shards` has to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing.
    Stay,
    /// Take the share.
    Share,
    /// Take what nobody takes: whoever it is meant for does not come.
    Beyond,
}

impl State {
    /// Looks often at who shares the shards, as long as somebody does.
    pub(super) fn look(&self, attendance: Arc<Attendance>) -> Task {
        let source = Arc::clone(&self.arguments.source);
        let (myself, epoch) = (self.myself.clone(), self.epoch);
        let settings = &self.arguments.settings;
        let (instance, ttl) = (settings.instance, settings.ttl);
        Task::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                if !attendance.is_shared() {
                    continue;
                }
                let members = match attendance.is_news() {
                    true => guarded(attendance.tell(&*source, instance, ttl)).await,
                    false => guarded(source.members(instance)).await,
                };
                // What cannot be read is seen by the next renewal.
                if let Ok(members) = members
                    && myself.cast(Message::Members(epoch, members)).is_err()
                {
                    return;
                }
            }
        })
    }

    /// Looks often while others want a share, or have one; tells how many shards are owned, of how many.
    pub(super) fn look_if_shared(&mut self, members: &Members) -> Option<(u16, u16)> {
        let Phase::Active(active) = &mut self.phase else {
            return None;
        };
        active.others_are_busy(members.busy > 0);
        let shards = active.ownership().shards();
        let held = active.ownership().leases().len() as u16;
        let attendance = active.renewer().attendance();
        let shared = members.count > 1 || held < shards;
        attendance.shared.store(shared, Ordering::Relaxed);
        Some((held, shards))
    }

    /// Who wants a share was looked at.
    pub(super) fn told(&mut self, epoch: u64, members: Members) {
        if epoch != self.epoch {
            return;
        }
        let Some((held, shards)) = self.look_if_shared(&members) else {
            return;
        };
        let step = step(held, shards, &members, self.arguments.settings.ttl);
        if step == Step::Stay {
            return;
        }
        self.aim = match step {
            Step::Beyond => Aim::Beyond,
            _ => Aim::Share,
        };
        info!(
            database = %self.arguments.database,
            held,
            share = members.share(shards),
            free = members.free,
            instances = members.count,
            "the shards are shared anew"
        );
        self.begin_drain(Then::Share, self.arguments.settings.ttl);
    }
}

fn step(held: u16, shards: u16, members: &Members, ttl: Duration) -> Step {
    let share = members.share(shards);
    if held < share && members.free > 0 {
        return Step::Share;
    }
    if members.free > 0 {
        // Free for longer than anybody needs who is there.
        return match members.free_for > ttl {
            true => Step::Beyond,
            false => Step::Stay,
        };
    }
    match held > share {
        true => Step::Share,
        false => Step::Stay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn members(count: u32, before: u32, free: u16, free_for: u64) -> Members {
        Members {
            count,
            before,
            busy: 0,
            free,
            free_for: Duration::from_secs(free_for),
        }
    }

    #[test]
    fn shares_are_equal_but_for_one_and_make_up_the_whole() {
        for shards in [1, 2, 16, 61] {
            for count in 1..20 {
                let shares = (0..count).map(|before| members(count, before, 0, 0).share(shards));
                let shares: Vec<u16> = shares.collect();
                assert_eq!(shares.iter().sum::<u16>(), shards);
                let (least, most) = (shares.iter().min(), shares.iter().max());
                assert!(
                    most.zip(least)
                        .is_some_and(|(most, least)| most - least <= 1)
                );
            }
        }
    }

    #[test]
    fn an_owner_gives_up_what_is_too_much_only_when_nothing_else_is_free() {
        assert_eq!(step(16, 16, &members(1, 0, 0, 0), TTL), Step::Stay);
        assert_eq!(step(16, 16, &members(2, 0, 0, 0), TTL), Step::Share);
        assert_eq!(step(8, 16, &members(2, 0, 8, 1), TTL), Step::Stay);
        assert_eq!(step(10, 16, &members(2, 0, 6, 1), TTL), Step::Stay);
    }

    #[test]
    fn what_is_free_is_taken_up_to_the_share_at_once_and_beyond_it_when_nobody_comes() {
        assert_eq!(step(8, 16, &members(1, 0, 8, 0), TTL), Step::Share);
        assert_eq!(step(8, 16, &members(1, 0, 0, 0), TTL), Step::Stay);
        assert_eq!(step(8, 16, &members(2, 0, 8, 16), TTL), Step::Beyond);
    }
}
