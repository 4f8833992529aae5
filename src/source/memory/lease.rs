//! The shards: who has them, who wants them, and what dead owners left.

use std::time::Duration;

use uuid::Uuid;

use super::store::{Held, Member, Store, later};
use crate::event::Timestamp;
use crate::lease::Lease;
use crate::source::{InHand, LeaseView, Members, Suspects};

impl Store {
    pub(super) fn attend(&mut self, instance: Uuid, until: Timestamp, idle: bool, now: Timestamp) {
        let since = self.members.get(&instance);
        let member = Member {
            since: since.map_or(now, |member| member.since),
            until,
            idle,
        };
        self.members.insert(instance, member);
    }

    pub(super) fn members_beside(&self, instance: Uuid, now: Timestamp) -> Members {
        let members = || self.members.iter().filter(|(_, member)| member.until > now);
        let mine = self.members.get(&instance);
        let mine = mine.map(|member| (member.since, instance));
        let others = || members().filter(|(other, _)| **other != instance);
        let before = others().filter(|(other, member)| Some((member.since, **other)) < mine);
        let free = || self.leases.iter().filter(|held| held.is_free(now));
        let since = free().map(|held| held.expires_at).min().unwrap_or(now);
        Members {
            count: members().count() as u32,
            before: before.count() as u32,
            busy: others().filter(|(_, member)| !member.idle).count() as u32,
            free: free().count() as u16,
            free_for: Duration::from_micros(u64::try_from(now.0 - since.0).unwrap_or(0)),
        }
    }

    pub(super) fn acquire(
        &mut self,
        instance: Uuid,
        ttl: Duration,
        most: u16,
        now: Timestamp,
    ) -> Vec<Lease> {
        let own = |held: &Held| held.owner == Some(instance);
        let mut wanted: Vec<usize> = (0..self.leases.len())
            .filter(|shard| own(&self.leases[*shard]) || self.leases[*shard].is_free(now))
            .collect();
        wanted.sort_by_key(|shard| (!own(&self.leases[*shard]), *shard));
        wanted.truncate(usize::from(most));
        let mut leases = Vec::new();
        for (shard, held) in self.leases.iter_mut().enumerate() {
            if !wanted.contains(&shard) {
                if own(held) {
                    held.give_back(now);
                }
                continue;
            }
            if held.owner.is_some() && !own(held) {
                held.died();
            }
            held.put_down();
            held.owner = Some(instance);
            held.token += 1;
            held.expires_at = later(now, ttl);
            leases.push(Lease {
                shard: shard as u16,
                token: held.token,
            });
        }
        leases
    }

    /// The shard of this lease, if it still holds.
    fn held(&mut self, lease: &Lease) -> Option<&mut Held> {
        let held = self.leases.get_mut(usize::from(lease.shard));
        held.filter(|held| held.owner.is_some() && held.token == lease.token)
    }

    pub(super) fn renew(&mut self, leases: &[Lease], until: Timestamp) -> Vec<Lease> {
        let mut renewed = leases.to_vec();
        renewed.retain(|lease| match self.held(lease) {
            Some(held) => {
                held.expires_at = until;
                true
            }
            None => false,
        });
        renewed
    }

    pub(super) fn release(&mut self, leases: &[Lease], now: Timestamp) {
        for lease in leases {
            if let Some(held) = self.held(lease) {
                held.give_back(now);
            }
        }
    }

    pub(super) fn bury(&mut self, instance: Uuid, now: Timestamp) {
        for held in &mut self.leases {
            if held.owner == Some(instance) {
                held.died();
                held.give_back(now);
            }
        }
    }

    pub(super) fn suspects(&mut self, leases: &[Lease]) -> Vec<Suspects> {
        let suspects = leases.iter().filter_map(|lease| {
            let held = self.held(lease)?;
            (held.deaths > 0).then(|| Suspects {
                lease: *lease,
                deaths: held.deaths,
                seqs: held.suspects.clone(),
            })
        });
        suspects.collect()
    }

    pub(super) fn note(&mut self, in_hand: &[InHand], alone: bool) {
        for one in in_hand {
            if let Some(held) = self.held(&one.lease) {
                held.in_hand.clone_from(&one.seqs);
                held.alone = alone;
            }
        }
    }

    pub(super) fn acquit(&mut self, leases: &[Lease]) {
        for lease in leases {
            if let Some(held) = self.held(lease) {
                held.deaths = 0;
                held.suspects.clear();
                held.put_down();
            }
        }
    }

    pub(super) fn lease_views(&self, now: Timestamp) -> Vec<LeaseView> {
        let view = |(shard, held): (usize, &Held)| LeaseView {
            shard: shard as u16,
            owner: held.owner,
            token: held.token,
            expires_in_s: (held.expires_at.0 - now.0) as f64 / 1e6,
        };
        self.leases.iter().enumerate().map(view).collect()
    }
}
