//! Every finding and every exception, on trails that are written down here.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::sink::trail::{LetsGo, Start};
use crate::source::trail::{Known, Tally};

mod strangers;

const SECOND: i64 = 1_000_000;
/// The window is the hour from here.
const SINCE: i64 = 1_700_000_000 * SECOND;
const HOUR: i64 = 3_600 * SECOND;

const KEPT: History = History {
    kept: true,
    horizon: Timestamp(SINCE - 100 * HOUR),
    reaches_back: true,
};

fn audit_with(history: History) -> Audit {
    let scope = Scope {
        window: Window {
            since: Timestamp(SINCE),
            until: Timestamp(SINCE + HOUR),
        },
        now: Timestamp(SINCE + HOUR),
        container: "E".to_owned(),
        history,
        most: 1_000,
    };
    Audit::new(scope, "orders", "events")
}

fn audit() -> Audit {
    audit_with(KEPT)
}

/// Event `n` of key `k`, delivered `n` seconds into the window, with place `n`.
fn delivered(n: i64) -> Delivered<'static> {
    Delivered {
        seq: n,
        id: Uuid::from_u128(n as u128),
        ordering_key: Some("k"),
        at: Timestamp(SINCE + n * SECOND),
        stream: Some("E"),
        position: u64::try_from(n).ok(),
        receipt: true,
    }
}

/// The message of event `n` at this place, stored so many seconds into the window.
fn held_at(n: i64, place: u64) -> Held {
    Held {
        place,
        at: Timestamp(SINCE + place as i64 * SECOND),
        id: Uuid::from_u128(n as u128),
        replay: false,
        seq: Some(n),
        ordering_key: Some("k".to_owned()),
    }
}

fn held(n: i64) -> Held {
    held_at(n, n as u64)
}

fn extent(first: u64, last: u64) -> Extent {
    Extent {
        container: "E".to_owned(),
        first,
        last,
        in_time_order: true,
        first_at: Some(Timestamp(SINCE + first as i64 * SECOND)),
        created: Some(Timestamp(SINCE - HOUR)),
        lets_go: LetsGo::default(),
    }
}

/// Records and messages, and nothing known of strangers.
fn read(audit: &mut Audit, records: &[Delivered<'_>], messages: &[Held]) {
    for record in records {
        audit.record(record).unwrap();
    }
    for message in messages {
        audit.message(message).unwrap();
    }
}

/// The rest of the way, with a database that knows `known` of every stranger and requeues of `requeued`.
fn end(
    mut audit: Audit,
    records: &[Delivered<'_>],
    known: Option<Known>,
    requeued: &[i64],
    extent: Extent,
) -> Report {
    let requeued: HashSet<i64> = requeued.iter().copied().collect();
    for stranger in audit.take_strangers() {
        if audit.know(&stranger, known) {
            audit.phantom(&stranger, false);
        }
    }
    audit.excuse(&requeued);
    if audit.missing(extent) {
        for record in records {
            audit.name(record);
        }
        audit.settle_unsure(&requeued);
    }
    audit.report(&Tally::default(), 0)
}

fn counts(report: &Report) -> [u64; 4] {
    report.findings().map(|(_, found)| found.count)
}

#[test]
fn what_fits_has_no_findings() {
    let mut audit = audit();
    let records: Vec<_> = (1..=9).map(delivered).collect();
    let messages: Vec<_> = (1..=9).map(held).collect();
    read(&mut audit, &records, &messages);
    assert_eq!(audit.look_back(&extent(1, 9)), None);
    let report = end(audit, &records, None, &[], extent(1, 9));
    assert!(report.ok, "{report:?}");
    assert_eq!((report.delivered, report.held), (9, 9));
}

#[test]
fn an_event_that_is_gone_from_its_place_is_missing_and_named() {
    let mut audit = audit();
    let records = [delivered(1), delivered(2), delivered(3)];
    read(&mut audit, &records, &[held(1), held(3)]);
    assert_eq!(audit.look_back(&extent(1, 3)), None, "its place was read");
    let report = end(audit, &records, None, &[], extent(1, 3));
    assert_eq!(counts(&report), [1, 0, 0, 0]);
    assert!(!report.ok);
    let missing = &report.missing.first[0];
    assert_eq!((missing.seq, missing.position), (Some(2), Some(2)));
    assert_eq!(missing.key.as_deref(), Some("k"));
    assert!(missing.why.contains("gone from its place"), "{missing:?}");
}

#[test]
fn a_thousand_missing_events_are_counted_and_the_first_are_named() {
    let mut audit = audit();
    let records: Vec<_> = (1..=900).map(delivered).collect();
    read(&mut audit, &records, &[]);
    let report = end(audit, &records, None, &[], extent(901, 900));
    assert_eq!(report.missing.count, 900);
    assert_eq!(report.missing.first.len(), super::super::SHOWN);
    assert!(report.missing.first[0].why.contains("purged"), "{report:?}");
}

#[test]
fn what_a_limit_of_the_sink_explains_is_aged_out() {
    let records = [delivered(1), delivered(2), delivered(3_000)];
    let limits = [
        LetsGo {
            after: Some(Duration::from_secs(1_200)),
            ..LetsGo::default()
        },
        LetsGo {
            oldest: true,
            ..LetsGo::default()
        },
    ];
    for limit in limits {
        let mut audit = audit();
        read(&mut audit, &records, &[held(3_000)]);
        let mut extent = extent(3_000, 3_000);
        extent.lets_go = limit.clone();
        let report = end(audit, &records, None, &[], extent);
        assert_eq!((counts(&report), report.aged_out), ([0; 4], 2), "{limit:?}");
        assert!(report.ok);
    }
    // What was settled long after it was stored is as old as its place says.
    let mut audit = audit();
    let late = Delivered {
        position: Some(7),
        ..delivered(3_000)
    };
    read(&mut audit, &[late], &[]);
    let mut aging = extent(10, 3_000);
    aging.lets_go.after = Some(Duration::from_secs(3_500));
    assert_eq!(end(audit, &[late], None, &[], aging).aged_out, 1);
    // A limit that is not reached explains nothing, and neither does one of a stream that was made later.
    let mut audit = audit_with(KEPT);
    read(&mut audit, &records, &[held(3_000)]);
    let mut young = extent(3_000, 3_000);
    young.lets_go.oldest = true;
    young.created = Some(Timestamp(SINCE + 2_900 * SECOND));
    let report = end(audit, &records, None, &[], young);
    assert_eq!((report.missing.count, report.aged_out), (2, 0));
    assert!(report.missing.first[0].why.contains("made anew"));
}

#[test]
fn a_stream_that_was_made_anew_lost_everything_before() {
    let records = [delivered(7), delivered(8)];
    let mut audit = audit();
    // Another event stands at place 1, and the stream ends there.
    let mut other = held_at(9, 1);
    other.seq = None;
    read(&mut audit, &records, &[other]);
    let report = end(audit, &records, Some(Known::Pending), &[], extent(1, 1));
    assert_eq!(report.missing.count, 2);
    assert!(
        report.missing.first[0].why.contains("made anew"),
        "{report:?}"
    );
    assert_eq!(report.in_flight, 1);
}

#[test]
fn single_messages_that_a_sink_lets_go_make_missing_ones_unknowable() {
    let records = [delivered(1), delivered(2)];
    let mut audit = audit();
    read(&mut audit, &records, &[held(2)]);
    let mut extent = extent(1, 2);
    extent.lets_go.any = Some("it is a queue".to_owned());
    let report = end(audit, &records, None, &[], extent);
    assert_eq!(report.missing.not_checked.as_deref(), Some("it is a queue"));
    assert!(report.ok);
}

#[test]
fn what_was_rotated_away_is_older_than_what_is_there() {
    let records = [delivered(1), delivered(2), delivered(3), delivered(4)];
    let mut rotated = extent(0, 500);
    rotated.lets_go.all = true;
    let mut audit = audit();
    read(&mut audit, &records, &[held_at(2, 0), held_at(4, 100)]);
    let report = end(audit, &records, None, &[], rotated.clone());
    assert_eq!((report.aged_out, report.missing.count), (1, 1));
    assert_eq!(report.missing.first[0].seq, Some(3));
    assert_eq!(report.remarks.len(), 1);
    // Nothing at all may be an hour that begins.
    let mut audit = audit_with(KEPT);
    read(&mut audit, &records, &[]);
    let report = end(audit, &records, None, &[], rotated);
    assert_eq!((report.aged_out, report.ok), (4, true));
}

#[test]
fn receipts_of_another_place_are_counted_apart() {
    let mut record = delivered(1);
    record.stream = Some("OLD");
    let mut audit = audit();
    read(&mut audit, &[record], &[]);
    let report = end(audit, &[record], None, &[], extent(1, 5));
    assert_eq!((report.elsewhere, report.ok), (1, true));
    assert!(report.remarks[0].contains("receipts name another place"));
}

#[test]
fn only_the_window_is_judged_and_its_surroundings_explain() {
    let mut early = delivered(1);
    early.at = Timestamp(SINCE - 60 * SECOND);
    let mut late = delivered(2);
    late.at = Timestamp(SINCE + HOUR + 60 * SECOND);
    let mut message = held(2);
    message.at = Timestamp(SINCE + HOUR - 1);
    let mut audit = audit();
    read(&mut audit, &[early, late], &[message]);
    assert!(audit.take_strangers().is_empty(), "its receipt is known");
    let report = end(audit, &[early, late], None, &[], extent(1, 2));
    assert_eq!((report.delivered, report.held), (0, 1));
    assert!(report.ok);
    // What lies far away takes no room, unless the database knows it.
    let far = |n: i64, place| Held {
        at: Timestamp(SINCE + 100 * HOUR),
        ..held_at(n, place)
    };
    let mut audit = audit_with(KEPT);
    read(
        &mut audit,
        &[delivered(1)],
        &[far(7, 1), far(8, 2), far(1, 3)],
    );
    assert_eq!(audit.events.len(), 1);
    let report = end(audit, &[], None, &[], extent(1, 3));
    assert_eq!((report.delivered, report.held, report.ok), (1, 0, true));
    // A copy, a stranger and an inversion outside of the window are nobody's business.
    let mut audit = audit_with(KEPT);
    let outside = |n: i64, place| Held {
        at: Timestamp(SINCE - 60 * SECOND),
        ..held_at(n, place)
    };
    let messages = [outside(2, 1), outside(1, 2), outside(1, 3), outside(8, 4)];
    read(&mut audit, &[delivered(1), delivered(2)], &messages);
    let report = end(audit, &[], None, &[], extent(1, 4));
    assert_eq!(counts(&report), [0; 4]);
}

#[test]
fn copies_are_counted_and_do_not_count_for_the_order() {
    let mut audit = audit();
    let records = [delivered(1), delivered(2)];
    let messages = [held(1), held(2), held_at(1, 3), held_at(1, 4)];
    read(&mut audit, &records, &messages);
    let report = end(audit, &records, None, &[], extent(1, 4));
    assert_eq!(counts(&report), [0, 0, 2, 0]);
    assert_eq!(report.duplicated.first[0].position, Some(3));
    assert!(report.duplicated.first[0].why.contains("stands at 1"));
}

#[test]
fn first_deliveries_behind_a_later_one_of_their_key_are_out_of_order() {
    let messages = [held_at(2, 1), held_at(3, 2), held_at(1, 3), held_at(4, 4)];
    let records: Vec<_> = (1..=4).map(delivered).collect();
    let mut audit = audit();
    read(&mut audit, &records, &messages);
    assert_eq!(audit.late(), [1]);
    let report = end(audit, &records, None, &[], extent(1, 4));
    assert_eq!(counts(&report), [0, 0, 0, 1]);
    let first = &report.out_of_order.first[0];
    assert_eq!((first.seq, first.position), (Some(1), Some(3)));
    assert!(first.why.contains("behind seq 3"), "{first:?}");

    let mut audit = audit_with(KEPT);
    read(&mut audit, &records, &messages);
    let report = end(audit, &records, None, &[1], extent(1, 4));
    assert_eq!(
        (report.requeued, report.ok),
        (1, true),
        "a requeue is the exception"
    );

    let turned = [held_at(3, 1), held_at(1, 2), held_at(2, 3)];
    let mut audit = audit_with(KEPT);
    read(&mut audit, &records, &turned);
    assert_eq!(audit.late(), [1, 2], "both came behind the third");

    let mut audit = audit_with(KEPT);
    let mut apart = messages.clone();
    apart[2].ordering_key = Some("other".to_owned());
    read(&mut audit, &records, &apart);
    assert!(audit.late().is_empty(), "keys do not wait for each other");
    apart[2].ordering_key = None;
    let mut audit = audit_with(KEPT);
    read(&mut audit, &records, &apart);
    assert!(audit.late().is_empty(), "without a key there is no order");
}

#[test]
fn messages_of_an_outbox_that_is_gone_do_not_count_for_the_order() {
    let mut audit = audit();
    // Of a table that was made anew: its numbers began again.
    let mut old = held_at(500, 1);
    old.at = Timestamp(SINCE - 60 * SECOND);
    read(&mut audit, &[delivered(2)], &[old, held(2)]);
    assert!(audit.late().is_empty());
}

#[test]
fn what_looks_wrong_may_be_explained_by_the_older_part() {
    let mut audit = audit();
    let records = [delivered(20), delivered(21), delivered(22)];
    // 20 was stored long before it could be settled; 21 is a copy of one that came in time.
    read(&mut audit, &records, &[held_at(22, 30), held_at(21, 31)]);
    assert_eq!(audit.late(), [21]);
    assert_eq!(audit.look_back(&extent(1, 31)), Some(Start::First));
    for message in [
        held_at(20, 5),
        held_at(21, 6),
        held_at(22, 30),
        held_at(21, 31),
    ] {
        audit.earlier(&message);
    }
    let report = end(audit, &records, None, &[], extent(1, 31));
    assert_eq!(counts(&report), [0, 0, 1, 0]);
    assert_eq!(report.duplicated.first[0].position, Some(31));
}

#[test]
fn the_older_part_is_read_from_where_it_can_help() {
    let look_back = |records: &[Delivered<'_>], messages: &[Held], extent: Extent| {
        let mut audit = audit();
        read(&mut audit, records, messages);
        audit.look_back(&extent)
    };
    let nowhere = |n| Delivered {
        position: None,
        ..delivered(n)
    };
    let (records, messages) = ([delivered(5), delivered(30)], [held(30)]);
    assert_eq!(
        look_back(&records, &messages, extent(1, 30)),
        Some(Start::Place(5))
    );
    assert_eq!(
        look_back(&records, &messages, extent(6, 30)),
        None,
        "it is not there"
    );
    assert_eq!(look_back(&records, &messages, extent(30, 30)), None);
    let records = [nowhere(5), delivered(30)];
    assert_eq!(
        look_back(&records, &messages, extent(1, 30)),
        Some(Start::First)
    );
    assert_eq!(
        look_back(&records, &messages, extent(30, 30)),
        None,
        "all was read"
    );
    let beyond = [delivered(99), delivered(30)];
    assert_eq!(
        look_back(&beyond, &messages, extent(1, 30)),
        Some(Start::First)
    );
}

#[test]
fn a_mark_that_a_requeue_left_is_not_judged() {
    let mark = |n| Delivered {
        receipt: false,
        stream: None,
        position: None,
        ..delivered(n)
    };
    let records = [mark(1), mark(2)];
    let mut audit = audit();
    read(&mut audit, &records, &[]);
    let report = end(audit, &records, None, &[1], extent(1, 0));
    assert_eq!((report.requeued, report.missing.count), (1, 1));
    assert_eq!(report.missing.first[0].seq, Some(2));
}

#[test]
fn a_receipt_beside_a_mark_is_one_event() {
    let mark = Delivered {
        receipt: false,
        stream: None,
        position: None,
        ..delivered(1)
    };
    let mut audit = audit();
    read(&mut audit, &[delivered(1), mark], &[held(1)]);
    let report = end(audit, &[], None, &[], extent(1, 1));
    assert_eq!((report.delivered, report.ok), (1, true));
}

#[test]
fn a_replay_makes_up_for_what_was_lost_and_is_no_copy() {
    let mut audit = audit();
    let replay = |n| Held {
        replay: true,
        ..held_at(n, 9)
    };
    let records = [delivered(1), delivered(3)];
    let messages = [replay(1), held(1), held(2), replay(3)];
    read(&mut audit, &records, &messages);
    assert!(audit.late().is_empty());
    let report = end(audit, &records, Some(Known::Published), &[], extent(1, 9));
    assert_eq!((report.unjudged, report.ok), (2, true), "{report:?}");
}

#[test]
fn a_window_with_too_much_is_refused_in_words() {
    let mut audit = audit();
    audit.scope.most = 2;
    read(&mut audit, &[delivered(1)], &[held(2)]);
    audit.record(&delivered(1)).unwrap();
    audit.message(&held(1)).unwrap();
    let error = audit.record(&delivered(3)).unwrap_err();
    assert_eq!(audit.message(&held(3)), Err(error));
    assert!(error.to_string().contains("more than 2 events: narrow it"));
}
