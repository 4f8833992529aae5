//! Owners that die: what the one after them knows.

use super::*;
use crate::source::{InHand, Suspects};

pub(super) const CASES: &[Case] = list![
    an_owner_that_dies_leaves_what_it_had_in_hand,
    an_orderly_end_leaves_nothing,
    an_owner_of_the_past_notes_nothing,
    a_lease_that_ran_out_was_left_by_a_death,
];

const MINUTE: Duration = Duration::from_secs(60);

async fn acquire(source: &dyn Source, instance: Uuid) -> Vec<Lease> {
    let leases = source.acquire(instance, MINUTE, u16::MAX).await;
    let mut leases = leases.expect("acquire");
    leases.sort_by_key(|lease| lease.shard);
    leases
}

async fn suspects(source: &dyn Source, leases: &[Lease]) -> Vec<Suspects> {
    let mut suspects = source.suspects(leases).await.expect("suspects");
    suspects.sort_by_key(|one| one.lease.shard);
    suspects
}

async fn note(source: &dyn Source, lease: Lease, seqs: &[i64], alone: bool) {
    let seqs = seqs.to_vec();
    let in_hand = [InHand { lease, seqs }];
    source.note(&in_hand, alone).await.expect("note");
}

/// From one death to the next it becomes clearer which event it is.
async fn an_owner_that_dies_leaves_what_it_had_in_hand(outbox: &dyn Outbox) {
    let source = outbox.source();
    let instance = Uuid::now_v7();
    source.bury(instance).await.expect("nothing to bury");
    let first = acquire(&*source, instance).await;
    assert!(suspects(&*source, &first).await.is_empty());

    source.bury(instance).await.expect("bury");
    let renewed = source.renew(&first, MINUTE).await.expect("renew");
    assert!(renewed.held.is_empty(), "what died owns nothing");
    let second = acquire(&*source, instance).await;
    assert_eq!(second.len(), usize::from(SHARDS));
    for (one, lease) in suspects(&*source, &second).await.iter().zip(&second) {
        let Suspects { deaths, seqs, .. } = one;
        assert_eq!((&one.lease, *deaths, &seqs[..]), (lease, 1, &[][..]));
    }
    note(&*source, second[3], &[5, 6, i64::MAX], false).await;

    source.bury(instance).await.expect("bury");
    let third = acquire(&*source, instance).await;
    let found = suspects(&*source, &third).await;
    assert_eq!(found.len(), usize::from(SHARDS));
    assert_eq!(found[3].seqs, [5, 6, i64::MAX]);
    let deaths: Vec<u32> = found.iter().map(|one| one.deaths).collect();
    assert_eq!(
        (deaths[3], deaths[4]),
        (2, 1),
        "the other shards had nothing in hand"
    );
    note(&*source, third[3], &[6], true).await;

    source.bury(instance).await.expect("bury");
    let fourth = acquire(&*source, instance).await;
    let found = suspects(&*source, &fourth).await;
    assert_eq!((found[3].deaths, &found[3].seqs[..]), (3, &[6][..]));
    source.acquit(&fourth).await.expect("acquit");
    assert!(suspects(&*source, &fourth).await.is_empty());
}

/// What is given back accuses nobody, and neither does a lease that its own instance takes again.
async fn an_orderly_end_leaves_nothing(outbox: &dyn Outbox) {
    let source = outbox.source();
    let instance = Uuid::now_v7();
    let leases = acquire(&*source, instance).await;
    note(&*source, leases[0], &[1], true).await;
    let again = acquire(&*source, instance).await;
    assert!(suspects(&*source, &again).await.is_empty());
    note(&*source, again[0], &[1], true).await;
    source.release(&again).await.expect("release");
    let other = acquire(&*source, Uuid::now_v7()).await;
    assert_eq!(other.len(), usize::from(SHARDS));
    assert!(suspects(&*source, &other).await.is_empty());
}

/// Tokens of the past change nothing.
async fn an_owner_of_the_past_notes_nothing(outbox: &dyn Outbox) {
    let source = outbox.source();
    let instance = Uuid::now_v7();
    let old = acquire(&*source, instance).await;
    source.bury(instance).await.expect("bury");
    let new = acquire(&*source, instance).await;
    note(&*source, old[0], &[1], true).await;
    source.acquit(&old).await.expect("acquit");
    assert!(suspects(&*source, &old).await.is_empty());
    assert_eq!(suspects(&*source, &new).await.len(), usize::from(SHARDS));
    note(&*source, new[1], &[2], true).await;
    note(&*source, new[1], &[], false).await;
    source.bury(instance).await.expect("bury");
    let last = acquire(&*source, instance).await;
    let found = suspects(&*source, &last).await;
    assert!(found.iter().all(|one| one.deaths == 1), "{found:?}");
}

/// A process that was killed gives nothing back.
async fn a_lease_that_ran_out_was_left_by_a_death(outbox: &dyn Outbox) {
    if !outbox.leases_expire() {
        return;
    }
    let source = outbox.source();
    let other = outbox.another().await;
    other.open().await.expect("open");
    let ttl = Duration::from_millis(300);
    let old = source.acquire(Uuid::now_v7(), ttl, u16::MAX).await;
    let old = old.expect("acquire");
    note(&*source, old[2], &[8], false).await;
    let started = tokio::time::Instant::now();
    let new = loop {
        let new = acquire(&*other, Uuid::now_v7()).await;
        if !new.is_empty() {
            break new;
        }
        assert!(started.elapsed() < PATIENCE, "it expires");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let found = suspects(&*other, &new).await;
    let of_old = found.iter().find(|one| one.lease.shard == old[2].shard);
    let of_old = of_old.expect("left by a death");
    assert_eq!((of_old.deaths, &of_old.seqs[..]), (2, &[8][..]));
    other.close().await;
}
