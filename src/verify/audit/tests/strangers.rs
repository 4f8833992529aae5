//! Messages without a receipt.

use super::*;

#[test]
fn a_message_that_nobody_knows_is_without_a_row() {
    let mut audit = audit();
    read(&mut audit, &[delivered(1)], &[held(1), held(5)]);
    let report = end(audit, &[], None, &[], extent(1, 5));
    assert_eq!(counts(&report), [0, 1, 0, 0]);
    let first = &report.without_row.first[0];
    assert_eq!((first.seq, first.position), (Some(5), Some(5)));
    assert_eq!(first.key.as_deref(), Some("k"));
}

#[test]
fn a_message_whose_event_is_known_by_now_is_on_its_way() {
    for (known, in_flight, unjudged) in [
        (Known::Pending, 1, 0),
        (Known::Published, 0, 0),
        (Known::Discarded, 0, 1),
    ] {
        let mut audit = audit();
        read(&mut audit, &[], &[held(5)]);
        let report = end(audit, &[], Some(known), &[], extent(1, 5));
        assert!(report.ok, "{known:?}");
        assert_eq!((report.in_flight, report.unjudged), (in_flight, unjudged));
    }
}

#[test]
fn a_dropped_event_is_no_phantom() {
    let mut audit = audit();
    read(&mut audit, &[], &[held(5)]);
    let strangers = audit.take_strangers();
    assert!(audit.know(&strangers[0], None));
    audit.phantom(&strangers[0], true);
    let report = end(audit, &[], None, &[], extent(1, 5));
    assert_eq!((report.unjudged, report.ok), (1, true));
}

#[test]
fn what_is_older_than_the_history_is_not_judged() {
    let unjudged = |history, records: &[Delivered<'_>], messages: &[Held]| {
        let mut audit = audit_with(history);
        read(&mut audit, records, messages);
        let report = end(audit, records, None, &[], extent(1, 9));
        (report.unjudged, report.without_row.count)
    };
    let young = History {
        reaches_back: false,
        ..KEPT
    };
    assert_eq!(
        unjudged(young, &[], &[held(5)]),
        (1, 0),
        "no receipt at all"
    );
    assert_eq!(
        unjudged(young, &[delivered(6)], &[held(5), held(6)]),
        (1, 0)
    );
    assert_eq!(
        unjudged(young, &[delivered(4)], &[held(4), held(5)]),
        (0, 1)
    );
    let purged = History {
        horizon: Timestamp(SINCE + 6 * SECOND),
        ..KEPT
    };
    assert_eq!(unjudged(purged, &[], &[held(5)]), (1, 0));
    assert_eq!(unjudged(purged, &[], &[held(7)]), (0, 1));
}

#[test]
fn without_receipts_nobody_is_a_stranger() {
    let none = History {
        kept: false,
        ..KEPT
    };
    let mut audit = audit_with(none);
    let mark = Delivered {
        receipt: false,
        stream: None,
        position: None,
        ..delivered(2)
    };
    read(&mut audit, &[mark], &[held(1), held(3), held_at(2, 4)]);
    let report = end(audit, &[mark], None, &[], extent(1, 4));
    assert!(report.without_row.not_checked.is_some());
    assert_eq!(
        counts(&report),
        [0, 0, 0, 1],
        "order is looked at all the same"
    );
    assert!(report.remarks[0].contains("published_keep is none"));
}
