//! Ownership: leases, tokens, takeover, instances.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::lease::Lease;
use crate::source::Heartbeat;

pub(super) const CASES: &[Case] = list![
    one_instance_takes_all_shards_and_the_next_none,
    what_is_released_is_free_at_once,
    an_instance_takes_its_own_shards_again_under_new_tokens,
    a_renewal_tells_where_the_database_stands,
    a_token_that_lost_neither_renews_nor_releases,
    part_of_the_shards_can_be_given_back,
    an_instance_takes_no_more_than_its_share_and_its_own_first,
    members_are_those_who_said_so_lately,
    an_expired_lease_is_taken_over,
    leases_are_shown_with_their_owner,
    instances_show_and_leave,
];

const MINUTE: Duration = Duration::from_secs(60);

async fn acquire(source: &dyn Source, instance: Uuid) -> Vec<Lease> {
    let mut leases = source
        .acquire(instance, MINUTE, u16::MAX)
        .await
        .expect("acquire");
    leases.sort_by_key(|lease| lease.shard);
    leases
}

/// All shards or, while they are held, none; also when both ask at once.
async fn one_instance_takes_all_shards_and_the_next_none(outbox: &dyn Outbox) {
    let source = outbox.source();
    let other = outbox.another().await;
    other.open().await.expect("open");
    let (mine, theirs) = tokio::join!(
        acquire(&*source, Uuid::now_v7()),
        acquire(&*other, Uuid::now_v7())
    );
    let shards: BTreeSet<u16> = mine.iter().chain(&theirs).map(|l| l.shard).collect();
    assert_eq!(shards.len(), usize::from(SHARDS), "every shard is held");
    assert_eq!(
        mine.len() + theirs.len(),
        usize::from(SHARDS),
        "by one of them"
    );
    assert!(acquire(&*other, Uuid::now_v7()).await.is_empty() || mine.is_empty());
    other.close().await;
}

/// A clean shutdown costs no waiting; tokens only grow.
async fn what_is_released_is_free_at_once(outbox: &dyn Outbox) {
    let source = outbox.source();
    let other = outbox.another().await;
    other.open().await.expect("open");
    let mine = acquire(&*source, Uuid::now_v7()).await;
    assert!(mine.iter().all(Lease::is_first), "{mine:?}");
    assert!(acquire(&*other, Uuid::now_v7()).await.is_empty());
    source.release(&mine).await.expect("release");
    let theirs = acquire(&*other, Uuid::now_v7()).await;
    assert_eq!(theirs.len(), mine.len());
    assert!(mine.iter().zip(&theirs).all(|(a, b)| b.token > a.token));
    assert!(acquire(&*source, Uuid::now_v7()).await.is_empty());
    other.close().await;
}

/// A claimer that crashed inside a living process: its successor does not wait, and its late outcomes are
/// fenced.
async fn an_instance_takes_its_own_shards_again_under_new_tokens(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1").key("k")]).await[0];
    let source = outbox.source();
    let instance = Uuid::now_v7();
    let old = Held(acquire(&*source, instance).await);
    let new = Held(acquire(&*source, instance).await);
    assert_eq!(new.0.len(), old.0.len());
    assert!(old.0.iter().zip(&new.0).all(|(a, b)| b.token > a.token));
    let late = old.outcome(at, Some("k"), &[SINK], retried(1, MINUTE));
    assert_eq!(settle(&*source, &[late]).await, [false]);
    let now = new.outcome(at, Some("k"), &[SINK], published());
    assert_eq!(settle(&*source, &[now]).await, [true]);
}

/// Leases that hold, the history's identity, the highest seq taken.
async fn a_renewal_tells_where_the_database_stands(outbox: &dyn Outbox) {
    let source = outbox.source();
    let opened = source.open().await.expect("open");
    let leases = acquire(&*source, Uuid::now_v7()).await;
    let empty = source.renew(&leases, MINUTE).await.expect("renew");
    let at = outbox
        .insert(&[NewRow::json("a", "1"), NewRow::json("a", "2")])
        .await;
    let renewed = source.renew(&leases, MINUTE).await.expect("renew");
    let mut held = renewed.held;
    held.sort_by_key(|lease| lease.shard);
    assert_eq!(held, leases);
    assert_eq!(renewed.incarnation, opened.incarnation);
    assert!(empty.last_seq < at[0].seq, "nothing was taken yet");
    assert!(renewed.last_seq >= at[1].seq);

    let gone = [0, 1].map(|n| Held(leases.clone()).outcome(at[n], None, &[SINK], published()));
    assert_eq!(settle(&*source, &gone).await, [true, true]);
    let after = source.renew(&leases, MINUTE).await.expect("renew");
    assert!(
        after.last_seq >= at[1].seq,
        "an empty table does not start again"
    );
}

/// Tokens of the past change nothing.
async fn a_token_that_lost_neither_renews_nor_releases(outbox: &dyn Outbox) {
    let source = outbox.source();
    let other = outbox.another().await;
    other.open().await.expect("open");
    let instance = Uuid::now_v7();
    let old = acquire(&*source, instance).await;
    let new = acquire(&*source, instance).await;
    let renewed = source.renew(&old, MINUTE).await.expect("renew");
    assert!(renewed.held.is_empty());
    source
        .release(&old)
        .await
        .expect("a release of nothing is fine");
    assert!(
        acquire(&*other, Uuid::now_v7()).await.is_empty(),
        "still held"
    );
    let renewed = source.renew(&new, MINUTE).await.expect("renew");
    assert_eq!(renewed.held.len(), new.len());
    other.close().await;
}

/// A released shard no longer renews; the rest is not touched.
async fn part_of_the_shards_can_be_given_back(outbox: &dyn Outbox) {
    let source = outbox.source();
    let leases = acquire(&*source, Uuid::now_v7()).await;
    let (given, kept) = leases.split_at(5);
    source.release(given).await.expect("release");
    let renewed = source.renew(&leases, MINUTE).await.expect("renew");
    let mut held = renewed.held;
    held.sort_by_key(|lease| lease.shard);
    assert_eq!(held, kept);
}

/// What is beyond the share is free for others at once.
async fn an_instance_takes_no_more_than_its_share_and_its_own_first(outbox: &dyn Outbox) {
    if !outbox.leases_expire() {
        return;
    }
    let source = outbox.source();
    let other = outbox.another().await;
    other.open().await.expect("open");
    let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
    let take = async |source: &dyn Source, instance, most| {
        let taken = source.acquire(instance, MINUTE, most).await;
        let shards = taken.expect("acquire").into_iter().map(|l| l.shard);
        shards.collect::<BTreeSet<u16>>()
    };
    assert_eq!(take(&*source, first, SHARDS).await.len(), 16);
    assert!(take(&*other, second, 10).await.is_empty(), "all are owned");
    let mine = take(&*source, first, 6).await;
    assert_eq!(mine.len(), 6);
    let free = source.members(first).await.expect("members").free;
    assert_eq!(free, 10, "the surplus is given up with the same call");
    let theirs = take(&*other, second, 8).await;
    assert_eq!(theirs.len(), 8);
    assert!(mine.is_disjoint(&theirs));
    assert!(take(&*source, first, 6).await.is_superset(&mine));
    let all = take(&*source, first, SHARDS).await;
    assert_eq!(all.len(), 8, "its own and what was free");
    assert!(all.is_superset(&mine) && all.is_disjoint(&theirs));
    other.close().await;
}

/// Who wants a share is known for as long as it said, by the database's clock, and decides nothing.
async fn members_are_those_who_said_so_lately(outbox: &dyn Outbox) {
    if !outbox.leases_expire() {
        return;
    }
    let source = outbox.source();
    // Those who were there first come first, whatever their names.
    let ids = [Uuid::from_u128(8), Uuid::from_u128(3), Uuid::from_u128(5)];
    let look = async |instance| source.members(instance).await.expect("members");
    assert_eq!(look(ids[0]).await.count, 0);
    for instance in ids {
        source
            .attend(instance, MINUTE, false)
            .await
            .expect("attend");
    }
    for (before, instance) in ids.into_iter().enumerate() {
        let members = look(instance).await;
        assert_eq!((members.count, members.before), (3, before as u32));
        assert_eq!((members.free, members.busy), (SHARDS, 2));
    }
    source.attend(ids[2], MINUTE, true).await.expect("idle");
    assert_eq!((look(ids[0]).await.busy, look(ids[2]).await.busy), (1, 2));
    source
        .attend(ids[1], Duration::ZERO, false)
        .await
        .expect("leave");
    assert_eq!(
        (look(ids[2]).await.count, look(ids[2]).await.before),
        (2, 1)
    );
    source.goodbye(ids[2]).await.expect("goodbye");
    assert_eq!(look(ids[0]).await.count, 1);

    let (short, started) = (Duration::from_millis(300), tokio::time::Instant::now());
    source.attend(ids[0], short, false).await.expect("attend");
    while look(ids[1]).await.count > 0 {
        assert!(started.elapsed() < PATIENCE, "it is forgotten");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(started.elapsed() > short / 2, "not before its time");

    // How long a shard has been free, so that somebody takes what nobody comes for.
    let leases = acquire(&*source, ids[0]).await;
    assert_eq!(look(ids[0]).await.free, 0);
    source.release(&leases[..3]).await.expect("release");
    assert_eq!(look(ids[0]).await.free, 3);
    let started = tokio::time::Instant::now();
    while look(ids[0]).await.free_for < short {
        assert!(started.elapsed() < PATIENCE, "it grows");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(look(ids[0]).await.free_for < Duration::from_secs(30));
}

/// Without renewals the lease runs out by the database's clock; the old owner then has nothing.
async fn an_expired_lease_is_taken_over(outbox: &dyn Outbox) {
    if !outbox.leases_expire() {
        return;
    }
    let source = outbox.source();
    let other = outbox.another().await;
    other.open().await.expect("open");
    let ttl = Duration::from_millis(400);
    let old = source
        .acquire(Uuid::now_v7(), ttl, u16::MAX)
        .await
        .expect("acquire");
    let (successor, started) = (Uuid::now_v7(), tokio::time::Instant::now());
    let new = loop {
        let new = acquire(&*other, successor).await;
        if !new.is_empty() {
            break new;
        }
        assert!(started.elapsed() < PATIENCE, "it expires");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(started.elapsed() > ttl / 2, "not before its time");
    assert_eq!(new.len(), old.len());
    let renewed = source.renew(&old, ttl).await.expect("renew");
    assert!(renewed.held.is_empty());
    other.close().await;
}

/// `status` sees every shard, free or held.
async fn leases_are_shown_with_their_owner(outbox: &dyn Outbox) {
    let source = outbox.source();
    let free = source.leases().await.expect("leases");
    assert_eq!(free.len(), usize::from(SHARDS));
    assert!(free.iter().all(|view| view.owner.is_none()));
    let instance = Uuid::now_v7();
    let leases = acquire(&*source, instance).await;
    let mut views = source.leases().await.expect("leases");
    views.sort_by_key(|view| view.shard);
    for (view, lease) in views.iter().zip(&leases) {
        assert_eq!((view.shard, view.token), (lease.shard, lease.token));
        assert_eq!(view.owner, Some(instance));
        assert!((30.0..61.0).contains(&view.expires_in_s), "{view:?}");
    }
    source.release(&leases).await.expect("release");
    let free = source.leases().await.expect("leases");
    assert!(free.iter().all(|view| view.owner.is_none()));
}

/// A heartbeat is seen by `status` until the goodbye, and the last one counts.
async fn instances_show_and_leave(outbox: &dyn Outbox) {
    let source = outbox.source();
    let mut beat = Heartbeat {
        instance: Uuid::now_v7(),
        host: "host-1".to_owned(),
        version: "0.1.0",
        listening: false,
        report: r#"{"feeds":[]}"#.to_owned(),
    };
    source.heartbeat(&beat).await.expect("heartbeat");
    beat.listening = true;
    source.heartbeat(&beat).await.expect("heartbeat");
    let status = outbox.admin().status().await.expect("status");
    assert_eq!(status.instances.len(), 1);
    let seen = &status.instances[0];
    assert_eq!(
        (seen.instance, &*seen.host, &*seen.version),
        (beat.instance, "host-1", "0.1.0")
    );
    assert!(seen.listening && seen.seen_s < 60.0);
    assert_eq!(seen.report, serde_json::json!({"feeds": []}));
    assert_eq!(status.leases.len(), usize::from(SHARDS));
    source.goodbye(beat.instance).await.expect("goodbye");
    source.goodbye(beat.instance).await.expect("twice is fine");
    let status = outbox.admin().status().await.expect("status");
    assert!(status.instances.is_empty());
}
