//! The audit of the measurements in benches/ finds what is wrong: a program that measures a relay that loses events
//! would measure nothing.

#[path = "../../benches/relay/audit.rs"]
#[allow(dead_code)]
mod audit;

use audit::{Arrived, findings};

fn message(seq: i64, key: &str) -> Arrived {
    Arrived {
        id: format!("orders:{seq}"),
        seq,
        key: (!key.is_empty()).then(|| key.to_owned()),
        request_id: String::new(),
        stored: seq,
    }
}

fn good() -> Vec<Arrived> {
    // Keys overtake each other, and what has no key overtakes everything.
    [(2, "b"), (1, "a"), (6, ""), (3, "a"), (5, ""), (4, "b")]
        .map(|(seq, key)| message(seq, key))
        .into()
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(findings(&good(), 6), Vec::<String>::new());
}

#[test]
fn a_lost_event_is_found() {
    let mut arrived = good();
    arrived.remove(3);
    assert_eq!(findings(&arrived, 6), ["5 events of 6 arrived"]);
}

#[test]
fn an_event_that_came_twice_is_found_whatever_its_id() {
    let mut arrived = good();
    arrived.push(message(6, ""));
    assert!(findings(&arrived, 6)[0].contains("1 messages are repeated"));
    arrived.last_mut().unwrap().id = "orders:another".to_owned();
    assert!(findings(&arrived, 6)[0].contains("1 messages are repeated"));
    arrived.pop();
    arrived[0].id.clear();
    assert!(findings(&arrived, 6)[0].contains("have no id"));
}

#[test]
fn events_of_a_key_that_changed_places_are_found() {
    let mut arrived = good();
    arrived.swap(1, 3);
    let found = findings(&arrived, 6);
    assert_eq!(found, ["1 messages before an earlier one of their key"]);
}
