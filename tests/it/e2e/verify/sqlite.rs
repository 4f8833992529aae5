//! From SQLite to a file, and to standard output.

use serde_json::Value;

use crate::cli_bin::Workplace;

fn publish(place: &Workplace, keys: &[&str]) {
    let line = |key: &&str| {
        format!("{{\"kind\":\"order.made\",\"ordering_key\":\"{key}\",\"payload\":{{}}}}\n")
    };
    let lines: String = keys.iter().map(line).collect();
    place
        .outboxd_reading(&["publish", "--stdin"], &lines)
        .code(0);
    place.outboxd(&["run", "--once"]).code(0);
}

fn feed(place: &Workplace, code: i32) -> Value {
    let ended = place.outboxd(&["verify", "--output", "json"]).code(code);
    ended.json()["feeds"][0].clone()
}

fn counts(feed: &Value) -> [u64; 4] {
    super::counts(feed)
}

#[test]
fn a_file_is_read_back_line_by_line() {
    let place = Workplace::sqlite_to_file("");
    place.outboxd(&["migrate"]).code(0);
    let empty = feed(&place, 0);
    assert_eq!(
        (&empty["delivered"], &empty["held"]),
        (&0.into(), &0.into())
    );
    publish(&place, &["a"]);
    publish(&place, &["a", "a", "a", "a"]);
    let found = feed(&place, 0);
    assert_eq!(
        (&found["delivered"], &found["held"]),
        (&5.into(), &5.into())
    );

    let file = place.path("events.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let write = |lines: &[&str]| std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    // When an event occurred is its writer's word: it may be far away, and says nothing of the lines behind it.
    let year = lines[1].find("\"occurred_at\":\"").unwrap() + 15;
    let late = format!("{}2090{}", &lines[1][..year], &lines[1][year + 4..]);
    write(&[lines[0], &late, lines[2], lines[3], lines[4]]);
    assert_eq!(feed(&place, 0)["held"], 4);
    // One is gone, one stands twice.
    write(&[lines[0], lines[1], lines[2], lines[4], lines[4]]);
    let found = feed(&place, 3);
    assert_eq!(counts(&found), [1, 0, 1, 0], "{found}");
    assert_eq!(found["missing"]["first"][0]["seq"], 4);
    assert_eq!(found["missing"]["first"][0]["key"], "a");
    // Two of a key are turned round; a line of nobody.
    let stranger = lines[4].replace("\"id\":\"0", "\"id\":\"f");
    write(&[lines[0], lines[1], lines[2], lines[4], lines[3], &stranger]);
    let found = feed(&place, 3);
    assert_eq!(counts(&found), [0, 1, 0, 1], "{found}");
    assert_eq!(found["out_of_order"]["first"][0]["seq"], 4);
}

#[test]
fn what_was_rotated_away_is_not_missing() {
    let place = Workplace::sqlite_to_file("");
    place.outboxd(&["migrate"]).code(0);
    publish(&place, &["a", "b"]);
    std::fs::rename(place.path("events.jsonl"), place.path("events.jsonl.1")).unwrap();
    assert_eq!(feed(&place, 0)["aged_out"], 2);
    publish(&place, &["a", "b", "c"]);
    let found = feed(&place, 0);
    let numbers = ["delivered", "held", "aged_out"].map(|name| found[name].as_u64().unwrap());
    assert_eq!(numbers, [5, 3, 2], "{found}");
    assert!(
        found["remarks"][0]
            .as_str()
            .unwrap()
            .contains("rotated away"),
        "{found}"
    );
}

#[test]
fn standard_output_cannot_be_read_back_and_that_is_said() {
    let place = Workplace::sqlite_to_file("").env("OUTBOXD__SINKS__LOG__TYPE", "stdout");
    let place = Workplace::new(
        &std::fs::read_to_string(place.path("outboxd.toml"))
            .unwrap()
            .replace(
                "type = \"file\"\npath = \"events.jsonl\"",
                "type = \"stdout\"",
            ),
    );
    place.outboxd(&["migrate"]).code(0);
    publish(&place, &["a", "b"]);
    let ended = place.outboxd(&["verify"]).code(0);
    let words = "a sink of type stdout cannot be read back; only the database was checked";
    assert!(ended.stderr.contains(words), "{ended:?}");
    let found = feed(&place, 0);
    assert_eq!(
        (&found["delivered"], &found["read_back"]),
        (&2.into(), &false.into())
    );
}
