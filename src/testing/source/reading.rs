//! Reading forward, by key, by seq: what a row carries and what is left out.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::source::{INLINE_LIMIT, ReadBounds};

pub(super) const CASES: &[Case] = list![
    opening_tells_shards_and_a_stable_incarnation,
    a_row_comes_out_as_it_was_written,
    a_plain_row_gets_sound_defaults,
    reading_goes_forward_and_keeps_to_its_limit,
    many_rows_come_in_pages_without_a_hole,
    bodies_are_left_out_where_they_would_not_be_used,
    rows_and_bodies_are_bounded_by_themselves,
    a_delayed_row_tells_when_it_is_due,
    keys_are_read_in_runs,
    any_text_is_a_key,
    rows_are_read_by_seq_with_bodies_of_any_size,
    empty_questions_have_empty_answers,
];

/// [`Source::open`] tells the stored shard count, and an incarnation that only changes with the database's
/// history.
async fn opening_tells_shards_and_a_stable_incarnation(outbox: &dyn Outbox) {
    let first = outbox.source().open().await.expect("open");
    assert_eq!(first.shards, SHARDS);
    assert!(!first.incarnation.is_empty());
    let again = outbox.source().open().await.expect("open again");
    assert_eq!(first.incarnation, again.incarnation, "one history");
    let other = outbox.another().await;
    let other = other.open().await.expect("open from elsewhere");
    assert_eq!(first.incarnation, other.incarnation, "one history for all");
}

/// Every column comes out as the writer stored it; JSON byte for byte.
async fn a_row_comes_out_as_it_was_written(outbox: &dyn Outbox) {
    let json = "{ \"b\":1.10,\n \"a\": 123456789012345678901234567890, \"b\": \"\\u00e4 ü\" }";
    let mut text = NewRow::json("auth.login.create", json).key("user 7");
    text.content_type = Some("application/json; v=2".to_owned());
    text.headers = Some(r#"{"request_id": "r-1", "traceparent": "00-ab-cd-01"}"#.to_owned());
    text.id = Some(Uuid::from_u128(0x0123_4567_89ab_4cde_8f01_2345_6789_abcd));
    let bytes = NewRow::bytes("image.made", b"\x00\xff\x80'\\");
    let empty = NewRow::bytes("nothing", b"");
    let before = crate::event::Timestamp::now().0;
    let at = outbox.insert(&[text.clone(), bytes.clone(), empty]).await;

    let rows = read_all(&*outbox.source(), SINK).await;
    assert_eq!(seqs(&rows), places(&at));
    let first = rows[0].clone().into_event().expect("the body");
    assert_eq!(Some(first.id), text.id);
    assert_eq!(first.kind, text.kind);
    assert_eq!(first.ordering_key.as_deref(), Some("user 7"));
    assert_eq!(first.payload, text.payload, "byte for byte");
    assert_eq!(first.content_type, text.content_type);
    let headers: serde_json::Value = serde_json::from_str(&first.headers).expect("JSON");
    let written = text.headers.as_deref().unwrap_or_default();
    let written: serde_json::Value = serde_json::from_str(written).expect("JSON");
    assert_eq!(headers, written);
    let off = (first.occurred_at.0 - before).abs();
    assert!(
        off < 60_000_000,
        "occurred_at is the present, not {off} µs away"
    );
    assert_eq!(
        (rows[0].size, rows[0].attempts, rows[0].done),
        (json.len(), 0, false)
    );
    assert_eq!(rows[0].due_in, Duration::ZERO);

    let second = rows[1].clone().into_event().expect("the body");
    assert_eq!(second.payload, bytes.payload);
    assert_eq!(second.ordering_key, None);
    let third = rows[2]
        .clone()
        .into_event()
        .expect("an empty body is a body");
    assert_eq!(third.payload, Payload::Bytes(Bytes::new()));
}

/// Kind and payload are all a writer has to give: the id is unique and set, the headers are an empty
/// object, the row is due.
async fn a_plain_row_gets_sound_defaults(outbox: &dyn Outbox) {
    let at = outbox
        .insert(&[NewRow::json("a", "1"), NewRow::json("a", "2")])
        .await;
    assert!(at[0].seq < at[1].seq, "seq grows");
    assert_ne!(at[0].id, at[1].id, "ids are unique");
    let rows = read_all(&*outbox.source(), SINK).await;
    assert_eq!(rows[0].id, at[0].id);
    assert!(!rows[0].id.is_nil());
    assert_eq!(rows[0].id.get_version_num(), 7, "time-ordered by default");
    let body = rows[0].body.as_ref().expect("a body");
    assert_eq!(body.headers.trim(), "{}");
    assert_eq!(body.content_type, None);
    assert_eq!(rows[0].due_in, Duration::ZERO);
}

/// [`Source::read`] gives rows above `after`, ascending, at most `limit`.
async fn reading_goes_forward_and_keeps_to_its_limit(outbox: &dyn Outbox) {
    let rows: Vec<NewRow> = (0..5).map(|n| NewRow::json("a", &n.to_string())).collect();
    let at = places(&outbox.insert(&rows).await);
    let source = outbox.source();
    let read = source
        .read(SINK, at[0], ReadBounds::rows(2), &[])
        .await
        .expect("read");
    assert_eq!(seqs(&read), at[1..3]);
    let read = source
        .read(SINK, at[2], ReadBounds::rows(100), &[])
        .await
        .expect("read");
    assert_eq!(seqs(&read), at[3..]);
    let read = source
        .read(SINK, at[4], ReadBounds::rows(100), &[])
        .await
        .expect("read");
    assert!(read.is_empty());
    let read = source
        .read(SINK, i64::MAX, ReadBounds::rows(100), &[])
        .await
        .expect("read");
    assert!(read.is_empty(), "nothing is above the highest number");
}

/// Paging through a larger table reports every row once.
async fn many_rows_come_in_pages_without_a_hole(outbox: &dyn Outbox) {
    let rows: Vec<NewRow> = (0..2_500)
        .map(|n| NewRow::json("a", "{}").key(&format!("k{}", n % 50)))
        .collect();
    let at = places(&outbox.insert(&rows).await);
    let source = outbox.source();
    let mut seen = Vec::new();
    loop {
        let after = seen.last().copied().unwrap_or(0);
        let page = source
            .read(SINK, after, ReadBounds::rows(1_000), &[])
            .await
            .expect("read");
        if page.is_empty() {
            break;
        }
        seen.extend(seqs(&page));
    }
    assert_eq!(seen, at);
}

/// Parked keys, rows not yet due and large payloads cost no body; the row itself is reported with its size.
async fn bodies_are_left_out_where_they_would_not_be_used(outbox: &dyn Outbox) {
    let large = format!("\"{}\"", "x".repeat(INLINE_LIMIT));
    let limit = format!("\"{}\"", "x".repeat(INLINE_LIMIT - 2));
    outbox
        .insert(&[
            NewRow::json("a", "1").key("parked"),
            NewRow::json("a", "2").key("free"),
            NewRow::json("a", "3").delayed(Duration::from_secs(3_600)),
            NewRow::json("a", &large).key("free"),
            NewRow::json("a", &limit).key("free"),
        ])
        .await;
    let bare = [Arc::from("parked"), Arc::from("another")];
    let read = outbox
        .source()
        .read(SINK, 0, ReadBounds::rows(10), &bare)
        .await
        .expect("read");
    let bodies: Vec<bool> = read.iter().map(|row| row.body.is_some()).collect();
    assert_eq!(bodies, [false, true, false, false, true]);
    assert_eq!(read[0].ordering_key.as_deref(), Some("parked"));
    assert_eq!((read[0].size, read[3].size), (1, large.len()));
}

/// Rows without a body count against the rows, others against both; the row that fills a bound is the last.
async fn rows_and_bodies_are_bounded_by_themselves(outbox: &dyn Outbox) {
    let keys = ["free", "parked", "parked", "free", "parked", "free", "free"];
    let rows = keys.map(|key| NewRow::json("a", "1").key(key));
    let at = places(&outbox.insert(&rows).await);
    let source = outbox.source();
    let bare = [Arc::from("parked")];
    for (rows, bodies, count) in [
        (7, 7, 7),
        (5, 7, 5),
        (7, 1, 1),
        (7, 2, 4),
        (4, 2, 4),
        (3, 2, 3),
    ] {
        let bounds = ReadBounds { rows, bodies };
        let read = source.read(SINK, 0, bounds, &bare).await.expect("read");
        assert_eq!(seqs(&read), at[..count], "{bounds:?}");
    }
}

/// `due_in` counts down to the writer's time.
async fn a_delayed_row_tells_when_it_is_due(outbox: &dyn Outbox) {
    let hour = Duration::from_secs(3_600);
    let at = outbox.insert(&[NewRow::json("a", "1").delayed(hour)]).await;
    let row = row(&*outbox.source(), SINK, at[0].seq)
        .await
        .expect("visible");
    assert!(
        row.due_in <= hour && row.due_in > hour - Duration::from_secs(60),
        "due in {:?}",
        row.due_in
    );
    let soon = Duration::from_millis(1);
    let at = outbox.insert(&[NewRow::json("a", "2").delayed(soon)]).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let row = super::row(&*outbox.source(), SINK, at[0].seq).await;
        let row = row.expect("visible");
        if row.due_in.is_zero() {
            assert!(row.body.is_some(), "a due row comes with its body");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "it falls due");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// [`Source::read_keys`] gives each key's rows from its seq on, at most `per_key`, rows done for the sink
/// left out, bodies as in a forward read.
async fn keys_are_read_in_runs(outbox: &dyn Outbox) {
    let large = format!("\"{}\"", "x".repeat(INLINE_LIMIT));
    let at = outbox
        .insert(&[
            NewRow::json("a", "1").key("a"),
            NewRow::json("a", "2").key("b"),
            NewRow::json("a", "3").key("a"),
            NewRow::json("a", "4"),
            NewRow::json("a", "5").key("a"),
            NewRow::json("a", &large).key("b"),
            NewRow::json("a", "7").key("a"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let done = held.outcome(at[2], Some("a"), &[SINK, "other"], published());
    assert_eq!(settle(&*source, &[done]).await, [true]);

    let keys = [
        (Arc::from("a"), at[0].seq),
        (Arc::from("b"), at[2].seq),
        (Arc::from("nobody"), 0),
    ];
    let read = source.read_keys(SINK, &keys, 2).await.expect("read keys");
    let of = |key: &str| -> Vec<i64> {
        let rows = read
            .iter()
            .filter(|row| row.ordering_key.as_deref() == Some(key));
        rows.map(|row| row.seq).collect()
    };
    assert_eq!(of("a"), [at[0].seq, at[4].seq], "the done row is left out");
    assert_eq!(of("b"), [at[5].seq], "from its seq on");
    assert_eq!(read.len(), 3, "nothing else");
    let body = |seq: i64| read.iter().any(|row| row.seq == seq && row.body.is_some());
    assert!(body(at[0].seq) && body(at[4].seq) && !body(at[5].seq));
    let grouped: Vec<_> = read.iter().map(|row| row.ordering_key.clone()).collect();
    let changes = grouped.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(changes, 1, "rows of one key stand together");

    let other = source
        .read_keys("other", &keys[..1], 10)
        .await
        .expect("read keys");
    assert_eq!(seqs(&other), [at[0].seq, at[2].seq, at[4].seq, at[6].seq]);
}

/// Keys are data: quotes, separators, braces, line ends and any language come through every call.
async fn any_text_is_a_key(outbox: &dyn Outbox) {
    let long = "ü".repeat(256);
    let keys = [
        "a,b", "{a}", "\"a\"", "it's", "\\", "a\nb", "\t", " ", "NULL", "null", "%", "🦀", "1",
        &long,
    ];
    let rows: Vec<NewRow> = keys
        .iter()
        .map(|key| NewRow::json("a", "1").key(key))
        .collect();
    let at = outbox.insert(&rows).await;
    let source = outbox.source();
    let read = read_all(&*source, SINK).await;
    let seen: Vec<&str> = read
        .iter()
        .filter_map(|row| row.ordering_key.as_deref())
        .collect();
    assert_eq!(seen, keys);

    let wanted: Vec<(Arc<str>, i64)> = keys.iter().map(|key| (Arc::from(*key), 0)).collect();
    let mut runs = source
        .read_keys(SINK, &wanted, 10)
        .await
        .expect("read keys");
    runs.sort_by_key(|row| row.seq);
    assert_eq!(seqs(&runs), places(&at));

    let bare: Vec<Arc<str>> = keys.iter().map(|key| Arc::from(*key)).collect();
    let read = source
        .read(SINK, 0, ReadBounds::rows(100), &bare)
        .await
        .expect("read");
    assert!(read.iter().all(|row| row.body.is_none()), "all are named");
}

/// [`Source::read_seqs`] fetches what was left out, and leaves out what is gone or done.
async fn rows_are_read_by_seq_with_bodies_of_any_size(outbox: &dyn Outbox) {
    let large = format!("\"{}\"", "x".repeat(3 * INLINE_LIMIT));
    let at = outbox
        .insert(&[
            NewRow::json("a", &large),
            NewRow::bytes("a", &vec![7; 2 * INLINE_LIMIT]),
            NewRow::json("a", "3"),
            NewRow::json("a", "4"),
        ])
        .await;
    let source = outbox.source();
    let held = own(&*source).await;
    let done = held.outcome(at[2], None, &[SINK, "other"], published());
    assert_eq!(settle(&*source, &[done]).await, [true]);
    let wanted = [
        at[3].seq,
        at[0].seq,
        at[1].seq,
        at[2].seq,
        at[3].seq + 1_000,
    ];
    let mut read = source.read_seqs(SINK, &wanted).await.expect("read seqs");
    read.sort_by_key(|row| row.seq);
    assert_eq!(seqs(&read), [at[0].seq, at[1].seq, at[3].seq]);
    let event = read[0]
        .clone()
        .into_event()
        .expect("the body, whatever its size");
    assert_eq!(event.payload.as_bytes().len(), large.len());
    assert!(read[1].body.is_some());
}

/// Nothing asked, nothing told, no error.
async fn empty_questions_have_empty_answers(outbox: &dyn Outbox) {
    outbox.insert(&[NewRow::json("a", "1").key("a")]).await;
    let source = outbox.source();
    assert!(
        source
            .read_keys(SINK, &[], 10)
            .await
            .expect("read keys")
            .is_empty()
    );
    assert!(
        source
            .read_seqs(SINK, &[])
            .await
            .expect("read seqs")
            .is_empty()
    );
    assert!(source.probe(&[], 10).await.expect("probe").is_empty());
    assert!(settle(&*source, &[]).await.is_empty());
    let renewed = source
        .renew(&[], Duration::from_secs(5))
        .await
        .expect("renew");
    assert!(renewed.held.is_empty());
    source.release(&[]).await.expect("release");
}
