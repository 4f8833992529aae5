//! The wake-up channel.

use std::time::Duration;

use super::*;

pub(super) const CASES: &[Case] = list![
    an_insert_wakes_the_listener,
    a_wait_may_be_abandoned,
    a_requeue_wakes_the_listener,
    a_mark_can_be_set_and_withdrawn,
];

type Listening = Option<Box<dyn crate::source::Listener>>;

async fn listen(outbox: &dyn Outbox) -> Listening {
    let source = outbox.source();
    let mut listener = source.listen().await.expect("listen")?;
    source.set_wake_mark(MARK).await.expect("set the mark");
    listener.probe().await.expect("it answers");
    Some(listener)
}

/// Long enough for a case.
const MARK: Duration = Duration::from_secs(120);

async fn woken(listener: &mut dyn crate::source::Listener) {
    let wait = tokio::time::timeout(PATIENCE, listener.wait()).await;
    wait.expect("woken in time").expect("the channel stands");
}

/// Each commit while the mark is set wakes whoever waits, or will wait next.
async fn an_insert_wakes_the_listener(outbox: &dyn Outbox) {
    let Some(mut listener) = listen(outbox).await else {
        return;
    };
    for n in 0..5 {
        let new = [NewRow::json("a", &n.to_string())];
        let (_, at) = tokio::join!(woken(&mut *listener), outbox.insert(&new));
        let row = row(&*outbox.source(), SINK, at[0].seq).await;
        assert!(row.is_some(), "what woke it can be read");
    }
    outbox
        .insert(&[NewRow::json("a", "\"before the wait\"")])
        .await;
    woken(&mut *listener).await;
    listener.probe().await.expect("it still answers");
}

/// A wait that is dropped half-way loses no wake-up.
async fn a_wait_may_be_abandoned(outbox: &dyn Outbox) {
    let Some(mut listener) = listen(outbox).await else {
        return;
    };
    // Wake-ups of the preparations may still arrive.
    while tokio::time::timeout(Duration::from_millis(300), listener.wait())
        .await
        .is_ok()
    {}
    for n in 0..20 {
        let abandoned = Duration::from_millis(n % 4);
        let _ = tokio::time::timeout(abandoned, listener.wait()).await;
        outbox.insert(&[NewRow::json("a", &n.to_string())]).await;
        for micros in [0, 50, 200] {
            let short = Duration::from_micros(micros);
            if tokio::time::timeout(short, listener.wait()).await.is_ok() {
                // The one insert may have been told; nothing more has to come.
                outbox.insert(&[NewRow::json("a", "\"again\"")]).await;
            }
        }
        woken(&mut *listener).await;
    }
}

/// Operators' commands are found at once.
async fn a_requeue_wakes_the_listener(outbox: &dyn Outbox) {
    let at = outbox.insert(&[NewRow::json("a", "1").key("k")]).await[0];
    let source = outbox.source();
    let held = own(&*source).await;
    settle(
        &*source,
        &[held.outcome(at, Some("k"), &[SINK], discarded())],
    )
    .await;
    let Some(mut listener) = listen(outbox).await else {
        return;
    };
    while tokio::time::timeout(Duration::from_millis(300), listener.wait())
        .await
        .is_ok()
    {}
    let filter = crate::source::admin::DiscardedFilter::default();
    let operator = crate::source::admin::Operator {
        name: "conformance".to_owned(),
        reason: None,
    };
    let admin = outbox.admin();
    let (_, count) = tokio::join!(woken(&mut *listener), admin.requeue(&filter, &operator));
    assert_eq!(count.expect("requeue"), 1);
}

/// Setting and withdrawing the mark is always allowed, also where it means nothing.
async fn a_mark_can_be_set_and_withdrawn(outbox: &dyn Outbox) {
    let source = outbox.source();
    source.set_wake_mark(MARK).await.expect("set");
    source.set_wake_mark(MARK).await.expect("set again");
    source
        .set_wake_mark(Duration::ZERO)
        .await
        .expect("withdraw");
    source
        .set_wake_mark(Duration::ZERO)
        .await
        .expect("withdraw again");
}
