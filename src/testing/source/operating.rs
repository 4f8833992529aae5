//! Migration, publishing by command, retention.

use std::time::Duration;

use super::*;
use crate::source::admin::{DiscardedFilter, NewEvent};
use crate::source::{PublishedKeep, Retention, SourceErrorKind};

pub(super) const CASES: &[Case] = list![
    a_migrated_outbox_has_nothing_to_migrate,
    events_are_published_in_order,
    a_bad_event_stops_its_whole_batch,
    pending_kinds_are_told_once_each,
    purging_goes_by_age_and_in_slices,
    purging_touches_nothing_pending,
];

fn event(kind: &str, payload: &str) -> NewEvent {
    let json = serde_json::json!({ "kind": kind });
    let mut event: NewEvent = serde_json::from_value(json).expect("an event");
    let raw = serde_json::value::RawValue::from_string(payload.to_owned());
    event.payload = Some(raw.expect("JSON"));
    event
}

/// A second migration does nothing; what would run is told without running it.
async fn a_migrated_outbox_has_nothing_to_migrate(outbox: &dyn Outbox) {
    let admin = outbox.admin();
    assert!(admin.pending_sql().await.expect("pending sql").is_empty());
    let (first, second) = tokio::join!(admin.migrate(), admin.migrate());
    let (first, second) = (first.expect("migrate"), second.expect("migrate"));
    assert!(first.from == first.to && first.to > 0, "{first:?}");
    assert_eq!(first, second);
}

/// One transaction, in order, with everything an event can carry.
async fn events_are_published_in_order(outbox: &dyn Outbox) {
    let mut full = event("a.b", "{ \"n\": 1 }");
    full.ordering_key = Some("k".to_owned());
    full.headers = [("request_id".to_owned(), "r \"1\"".to_owned())].into();
    full.content_type = Some("application/json".to_owned());
    full.delay = Some(Duration::from_secs(3_600));
    full.id = Some(Uuid::from_u128(0x77));
    let mut bytes = event("bytes", "null");
    bytes.payload = None;
    bytes.payload_bytes = Some(b"\x00\xff".to_vec());
    let admin = outbox.admin();
    let ids = admin
        .publish(&[full, bytes, event("c", "3")])
        .await
        .expect("publish");
    assert_eq!(ids[0], Uuid::from_u128(0x77));
    let source = outbox.source();
    let rows = read_all(&*source, SINK).await;
    let read: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    assert_eq!(read, ids, "in order");
    assert!(rows[0].due_in > Duration::from_secs(3_500), "delayed");
    assert_eq!(rows[0].ordering_key.as_deref(), Some("k"));
    let all = source.read_seqs(SINK, &[rows[0].seq, rows[1].seq]).await;
    let mut all = all.expect("read seqs");
    all.sort_by_key(|row| row.seq);
    let first = all[0].clone().into_event().expect("a body");
    assert_eq!(&first.payload.as_bytes()[..], b"{ \"n\": 1 }");
    let headers: serde_json::Value = serde_json::from_str(&first.headers).expect("JSON");
    assert_eq!(headers, serde_json::json!({"request_id": "r \"1\""}));
    let second = all[1].clone().into_event().expect("a body");
    assert_eq!(
        second.payload,
        Payload::Bytes(Bytes::from_static(b"\x00\xff"))
    );
    assert!(admin.publish(&[]).await.expect("nothing").is_empty());
}

/// All or nothing, and the database's own word: refused.
async fn a_bad_event_stops_its_whole_batch(outbox: &dyn Outbox) {
    let admin = outbox.admin();
    let mut bad = Vec::new();
    for key in [String::new(), "ü".repeat(257)] {
        let mut event = event("a", "1");
        event.ordering_key = Some(key);
        bad.push(event);
    }
    let mut nothing = event("a", "1");
    nothing.payload = None;
    bad.push(nothing);
    let mut both = event("a", "1");
    both.payload_bytes = Some(vec![1]);
    bad.push(both);
    let mut known = event("a", "1");
    known.id = Some(
        admin
            .publish(&[event("first", "1")])
            .await
            .expect("publish")[0],
    );
    bad.push(known);
    for bad in bad {
        let words = format!("{bad:?}");
        let error = admin.publish(&[event("a", "1"), bad]).await;
        let error = error.expect_err(&words);
        assert_eq!(error.kind, SourceErrorKind::Refused, "{words}: {error}");
    }
    let rows = read_all(&*outbox.source(), SINK).await;
    assert_eq!(rows.len(), 1, "nothing else was inserted");
}

/// For `check`: which kinds are waiting.
async fn pending_kinds_are_told_once_each(outbox: &dyn Outbox) {
    outbox
        .insert(&["a", "b", "a", "c"].map(|kind| NewRow::json(kind, "1")))
        .await;
    let mut kinds = outbox.admin().pending_kinds(10).await.expect("kinds");
    kinds.sort();
    assert_eq!(kinds, ["a", "b", "c"]);
    assert_eq!(
        outbox.admin().pending_kinds(2).await.expect("kinds").len(),
        2
    );
}

/// What is past its age goes, at most `limit` rows of a table at a time; what is not stays.
async fn purging_goes_by_age_and_in_slices(outbox: &dyn Outbox) {
    let rows = [1, 2, 3, 4, 5].map(|n| NewRow::json("a", &n.to_string()).key("k"));
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let held = own(&*source).await;
    let dead = [0, 1, 2].map(|n| held.outcome(at[n], Some("k"), &[SINK], discarded()));
    settle(&*source, &dead).await;
    let done = [3, 4].map(|n| held.outcome(at[n], Some("k"), &[SINK], published()));
    settle(&*source, &done).await;
    let filter = DiscardedFilter::default();
    let dead = async || {
        let listed = outbox.admin().discarded(&filter, 10).await;
        listed.expect("discarded").len()
    };
    let mut retention = Retention {
        published: Duration::from_secs(7 * 86_400),
        keep: PublishedKeep::Full,
        discarded: Duration::from_secs(90 * 86_400),
    };
    assert_eq!(source.purge(&retention, 100).await.expect("purge"), 0);
    assert_eq!((dead().await, outbox.history().await.len()), (3, 2));
    retention.discarded = Duration::ZERO;
    assert_eq!(source.purge(&retention, 2).await.expect("purge"), 2);
    assert_eq!(source.purge(&retention, 2).await.expect("purge"), 1);
    assert_eq!((dead().await, outbox.history().await.len()), (0, 2));
}

/// Retention is about what is finished, however short it is.
async fn purging_touches_nothing_pending(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("k"),
            NewRow::json("a", "2").key("k"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let half = held.outcome(at[0], Some("k"), &[SINK, "hooks"], published());
    let failed = held.outcome(
        at[1],
        Some("k"),
        &[SINK],
        retried(3, Duration::from_secs(60)),
    );
    assert_eq!(settle(&*source, &[half, failed]).await, [true, true]);
    let retention = Retention {
        published: Duration::ZERO,
        keep: PublishedKeep::Full,
        discarded: Duration::ZERO,
    };
    source.purge(&retention, 100).await.expect("purge");
    let rows = read_all(&*source, SINK).await;
    assert_eq!(seqs(&rows), places(&at));
    assert_eq!((rows[0].done, rows[1].attempts), (true, 3));
}
