//! `outboxd demo`: the first thing anybody runs.

use std::time::{Duration, Instant};

use crate::cli_bin::Workplace;

#[test]
fn the_demo_delivers_everything_but_the_poison_and_checks_it() {
    let place = Workplace::empty();
    let start = Instant::now();
    let ended = place
        .outboxd(&["demo", "--events", "200", "--exit-when-drained"])
        .code(0);
    assert!(start.elapsed() < Duration::from_secs(30));
    let lines: Vec<serde_json::Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 199, "{}", ended.stderr);
    for words in [
        "rolled back: ",
        "is poison",
        "invalid_header",
        "199 delivered, 1 set aside",
        "each in its own order: checked",
        "config/postgres-nats.toml",
    ] {
        assert!(ended.stderr.contains(words), "{words} in {}", ended.stderr);
    }
    // The first event is out within two seconds of the start.
    let first = ended
        .stderr
        .lines()
        .find(|line| line.contains("the first event is out"))
        .unwrap();
    let millis = first.split(", ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(millis.parse::<u64>().unwrap() < 2_000, "{first}");
}

#[test]
fn a_demo_too_short_for_poison_is_right_as_well() {
    let ended = Workplace::empty()
        .outboxd(&[
            "demo",
            "--events",
            "3",
            "--keys",
            "1",
            "--exit-when-drained",
        ])
        .code(0);
    assert_eq!(ended.stdout.lines().count(), 3);
    assert!(
        ended.stderr.contains("3 delivered, 0 set aside"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_demo() {
    let start = Instant::now();
    let ended =
        Workplace::empty().shell("\"$OUTBOXD\" demo --events 500 --exit-when-drained | head -n 3");
    assert_eq!(ended.stdout.lines().count(), 3, "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    assert!(
        ended.stderr.contains("nobody reads standard output"),
        "{ended:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(20), "{ended:?}");
}

#[tokio::test]
async fn ctrl_c_ends_the_demo_in_order() {
    let place = Workplace::empty();
    let mut demo = place.start(&["demo", "--events", "1000"]);
    crate::support::eventually(Duration::from_secs(20), "the first event", || {
        let output = demo.output();
        async move {
            output
                .contains("the first event is out")
                .then_some(())
                .ok_or(output)
        }
    })
    .await;
    demo.signal("INT");
    let ended = demo.wait_async(Duration::from_secs(30)).await;
    let output = demo.output();
    assert!(ended.success(), "{output}");
    assert!(output.contains("SIGINT: ending early"), "{output}");
    assert!(
        output.contains("each in its own order: checked"),
        "{output}"
    );
}
