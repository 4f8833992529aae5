//! Working with care after owners died: an event that kills whoever handles it has to be found.
//!
//! A death does not tell which event it was, and most deaths are no event's doing. So whoever takes over notes in the leases
//! what it has in hand, before it hands it over; first by the bundle, for as many events as the dead one may have had. If it
//! dies too, the next takes one event at a time. If that one dies with a single event in hand, it is the one.
//!
//! ```text
//!   deaths   in hand at most   then
//!   1        a bundle          2, with the bundle as suspects
//!   2        one event         3, with one suspect
//!   3        a bundle          the suspect is set aside, the deaths count from the start
//! ```
//!
//! What is out for longer than [`FRESH`] has not killed anybody, and is not noted any more: a process that is killed while
//! a broker is silent accuses no event.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::active::Active;
use super::feed::action::Action;
use super::{Message, Phase, State};
use crate::actor::handle::guarded;
use crate::source::{InHand, Suspects};
use crate::testing::fail_points::fail_point;

/// Events that an owner hands over with care after one death: about what the dead one may have had in hand.
const BUNDLED: usize = 8_192;
/// Most events in hand of one feed meanwhile, shared by the feeds.
const BUNDLE: usize = 64;
/// Events that go singly after two: those of the bundle, and a few between them. The longer it takes, the more easily a
/// death for another reason accuses somebody.
const SINGLE: usize = BUNDLE + BUNDLE / 2;
/// What kills its owner does so within this long, milliseconds.
const FRESH: u64 = 1_000;
/// Limit for writing a note.
const LIMIT: Duration = Duration::from_secs(5);

/// How much may be in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Portion {
    Bundle,
    One,
}

/// Careful work under way.
#[derive(Debug)]
pub struct Care {
    portion: Portion,
    /// Events to go.
    left: usize,
    /// What the leases say is in hand, and since when.
    noted: BTreeSet<i64>,
    noted_at: u64,
    /// With one event in hand: the feed whose turn it is.
    turn: usize,
    /// What goes on when the leases say so.
    writing: Option<Writing>,
}

/// What the leases are about to say.
#[derive(Debug)]
struct Writing {
    /// What is done then.
    actions: Vec<(usize, Action)>,
    /// What is in hand then, if that changes.
    note: Option<BTreeSet<i64>>,
    /// Nothing more is noted from then on.
    over: bool,
}

impl Care {
    /// What these deaths ask for.
    pub fn after(suspects: &[Suspects]) -> Option<Self> {
        let (portion, left) = match suspects.iter().map(|one| one.deaths).max()? {
            0 => return None,
            2 => (Portion::One, SINGLE),
            _ => (Portion::Bundle, BUNDLED),
        };
        Some(Self {
            portion,
            left,
            noted: BTreeSet::new(),
            noted_at: 0,
            turn: 0,
            writing: None,
        })
    }

    /// Most events in hand of each of so many feeds.
    pub fn budget(&self, feeds: usize) -> usize {
        match self.portion {
            Portion::Bundle => (BUNDLE / feeds.max(1)).max(1),
            Portion::One => 1,
        }
    }

    /// May this feed read?
    pub fn lets(&self, feed: usize) -> bool {
        self.portion == Portion::Bundle || feed == self.turn
    }

    /// What has to be noted before these are handed over, if it changes: everything that will be in hand.
    fn next_note(
        &mut self,
        handed: &BTreeSet<i64>,
        out: &BTreeSet<i64>,
        now: u64,
    ) -> Option<BTreeSet<i64>> {
        let note = match (handed.is_empty(), self.portion) {
            (false, Portion::Bundle) => out.clone(),
            (false, Portion::One) => handed.clone(),
            (true, _) => {
                let stands = self.is_fresh(now) && !self.noted.is_disjoint(out);
                if stands || self.noted.is_empty() {
                    return None;
                }
                BTreeSet::new()
            }
        };
        self.left = self.left.saturating_sub(handed.len());
        (note != self.noted).then_some(note)
    }

    fn is_fresh(&self, now: u64) -> bool {
        now < self.noted_at.saturating_add(FRESH)
    }
}

/// The events that three deaths accuse.
pub fn condemned(suspects: &[Suspects]) -> impl Iterator<Item = i64> {
    let proven = suspects.iter().filter(|one| one.deaths >= 3);
    proven
        .filter(|one| one.seqs.len() == 1)
        .flat_map(|one| one.seqs.iter().copied())
}

impl Active {
    /// With one event in hand: the next feed's turn, once nothing of this one's may kill.
    pub(super) fn pass_turn(&mut self, now: u64) {
        let feeds = self.slots.len();
        let Some(care) = &mut self.care else { return };
        let Some(slot) = self.slots.get(care.turn) else {
            return;
        };
        let reads = slot.reading || slot.catching || slot.fetching || !slot.fetches.is_empty();
        let fresh =
            care.is_fresh(now) && slot.feed.outstanding().any(|seq| care.noted.contains(&seq));
        if !reads && !fresh {
            care.turn = (care.turn + 1) % feeds;
        }
    }

    fn out(&self) -> BTreeSet<i64> {
        let feeds = self.slots.iter().map(|slot| &slot.feed);
        feeds.flat_map(|feed| feed.outstanding()).collect()
    }

    /// What is noted of each shard.
    fn in_hand(&self, seqs: &BTreeSet<i64>) -> Vec<InHand> {
        let leases = self.ownership().leases();
        let mut in_hand: Vec<InHand> = leases
            .into_iter()
            .map(|lease| InHand {
                lease,
                seqs: Vec::new(),
            })
            .collect();
        for seq in seqs {
            let key = self.slots.iter().find_map(|slot| slot.feed.key_of(*seq));
            let Some(key) = key else { continue };
            let lease = self.ownership().lease_for(key.as_deref(), *seq);
            if let Some(one) = in_hand.iter_mut().find(|one| one.lease == lease) {
                one.seqs.push(*seq);
            }
        }
        in_hand
    }

    /// What is to be handed over once it is noted: it is in no hand yet.
    pub(super) fn withheld(&mut self) -> Vec<(usize, Action)> {
        let writing = self.care.as_mut().and_then(|care| care.writing.take());
        writing.map(|writing| writing.actions).unwrap_or_default()
    }

    /// The leases are being told what is in hand: nothing is handed over before they know.
    pub(super) fn is_noting(&self) -> bool {
        self.care
            .as_ref()
            .is_some_and(|care| care.writing.is_some())
    }
}

impl State {
    /// Notes what these actions will put in hand, before they do. Gives back what may be done at once.
    pub(super) fn note(&mut self, actions: Vec<(usize, Action)>) -> Vec<(usize, Action)> {
        let (now, epoch) = (self.now(), self.epoch);
        let Phase::Active(active) = &mut self.phase else {
            return actions;
        };
        if active.care.is_none() {
            return actions;
        }
        let (out, caught_up) = (active.out(), active.caught_up_now());
        let Some(care) = &mut active.care else {
            return actions;
        };
        let handed = actions
            .iter()
            .flat_map(|(_, action)| action.seqs())
            .collect();
        let note = care.next_note(&handed, &out, now);
        let over = care.left == 0 || caught_up;
        if note.is_none() && !over {
            return actions;
        }
        care.writing = Some(Writing {
            actions,
            note: note.clone(),
            over,
        });
        let in_hand = note.map(|note| (active.in_hand(&note), note.len() == 1));
        let leases = active.ownership().leases();
        let (source, myself) = (Arc::clone(&self.arguments.source), self.myself.clone());
        active.tasks.spawn(async move {
            let write = async {
                if let Some((in_hand, alone)) = in_hand {
                    source.note(&in_hand, alone).await?;
                }
                match over {
                    true => source.acquit(&leases).await,
                    false => Ok(()),
                }
            };
            let written = tokio::time::timeout(LIMIT, guarded(write)).await;
            let _ = myself.cast(Message::Noted(epoch, matches!(written, Ok(Ok(())))));
        });
        Vec::new()
    }

    /// The leases know, or could not be told: then the claimer begins anew.
    pub(super) async fn noted(&mut self, epoch: u64, written: bool) {
        let now = self.now();
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if epoch != self.epoch {
            return;
        }
        if !written {
            return self.reset("what is in hand could not be noted");
        }
        let Some(care) = &mut active.care else { return };
        let Some(writing) = care.writing.take() else {
            return;
        };
        if let Some(note) = writing.note {
            (care.noted, care.noted_at) = (note, now);
        }
        if writing.over {
            active.care = None;
            for slot in &mut active.slots {
                slot.feed.limit(usize::MAX);
            }
            info!(database = %self.arguments.database, "nothing died: working as usual again");
        }
        fail_point!(Noted if !writing.actions.is_empty());
        self.perform(writing.actions).await;
    }

    /// Says what the deaths before mean.
    pub(super) fn tell_deaths(&self, suspects: &[Suspects]) {
        let Some(deaths) = suspects.iter().map(|one| one.deaths).max() else {
            return;
        };
        let database = &self.arguments.database;
        warn!(
            %database,
            deaths,
            shards = suspects.len(),
            "an owner before this one ended without giving its shards back; working with care for a while"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;

    fn suspects(deaths: u32, seqs: &[i64]) -> Suspects {
        Suspects {
            lease: Lease { shard: 0, token: 1 },
            deaths,
            seqs: seqs.to_vec(),
        }
    }

    fn set(seqs: &[i64]) -> BTreeSet<i64> {
        seqs.iter().copied().collect()
    }

    #[test]
    fn the_more_deaths_the_less_is_in_hand_until_one_is_proven() {
        assert!(Care::after(&[]).is_none());
        let budget = |deaths| Care::after(&[suspects(deaths, &[7])]).map(|care| care.budget(2));
        assert_eq!(
            [budget(1), budget(2), budget(3)],
            [Some(32), Some(1), Some(32)]
        );
        assert_eq!(condemned(&[suspects(2, &[7])]).count(), 0);
        assert_eq!(condemned(&[suspects(3, &[7, 8])]).count(), 0);
        assert_eq!(condemned(&[suspects(3, &[7])]).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_note_names_all_that_is_out_and_goes_with_the_last_of_it() {
        let mut care = Care::after(&[suspects(1, &[])]).unwrap_or_else(|| panic!("care"));
        let note = care.next_note(&set(&[1, 2]), &set(&[1, 2]), 0);
        assert_eq!(note, Some(set(&[1, 2])));
        care.noted = set(&[1, 2]);
        assert_eq!(care.next_note(&set(&[]), &set(&[2]), 5), None);
        let note = care.next_note(&set(&[3]), &set(&[2, 3]), 5);
        assert_eq!(note, Some(set(&[2, 3])));
        care.noted = set(&[2, 3]);
        assert_eq!(care.next_note(&set(&[]), &set(&[]), 5), Some(set(&[])));
        assert_eq!(care.left, BUNDLED - 3);
    }

    #[test]
    fn what_is_out_for_long_is_no_longer_noted() {
        let mut care = Care::after(&[suspects(2, &[1])]).unwrap_or_else(|| panic!("care"));
        assert_eq!(care.next_note(&set(&[1]), &set(&[1]), 0), Some(set(&[1])));
        care.noted = set(&[1]);
        assert_eq!(care.next_note(&set(&[]), &set(&[1]), FRESH - 1), None);
        assert_eq!(care.next_note(&set(&[]), &set(&[1]), FRESH), Some(set(&[])));
    }
}
