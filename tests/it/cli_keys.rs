//! `outboxd keys`, `pause`, `resume`, and what `discarded` tells before it acts: exit codes, words, data.

use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::cli_bin::Workplace;
use crate::support::postgres;
use crate::support::roles::Role;

/// A key that a terminal must not be shown, and that a shell must be kept from.
const HOSTILE: &str = "a\u{1b}[2Jb\n'c\" $(d)";
const ENCODED: &str = "a%1B%5B2Jb%0A%27c%22%20%24%28d%29";

fn publish(place: &Workplace, key: &str, more: &[&str]) {
    let mut args = vec!["publish", "order.made", "--payload", "1", "--key", key];
    args.extend(more);
    place.outboxd(&args).code(0);
}

fn json_of(place: &Workplace, args: &[&str]) -> Value {
    let mut args = args.to_vec();
    args.extend(["--output", "json"]);
    place.outboxd(&args).code(0).json()
}

/// The life of keys as commands see it; `failed` makes the event at a seq back off.
fn keys_at_the_prompt(place: &Workplace, failed: impl Fn(i64)) {
    place.outboxd(&["migrate"]).code(0);
    let nothing = place.outboxd(&["keys", "show", "k"]).code(0);
    assert!(nothing.stdout.contains("nothing is pending"), "{nothing:?}");
    assert!(nothing.stderr.contains("no instance"), "{nothing:?}");
    place.outboxd(&["keys", "skip", "k"]).code(1);

    publish(place, "k", &[]);
    publish(place, "k", &[]);
    publish(place, "slow", &["--delay", "1h"]);
    publish(place, HOSTILE, &[]);
    let long = "x".repeat(512);
    publish(place, &long, &["--delay", "1h"]);
    let head = json_of(place, &["keys", "show", "k"])["sinks"][0].clone();
    assert_eq!(
        (&head["state"], &head["behind"]),
        (&json!("ready"), &json!(1))
    );
    failed(head["head"]["seq"].as_i64().unwrap());
    let words = place.outboxd(&["keys", "show", "k"]).code(0);
    assert!(words.stdout.contains("backs off until 2"), "{words:?}");
    assert!(
        words.stdout.contains("3 times, last at") && words.stdout.contains("no \u{fffd}[2J"),
        "errors are printed safely: {words:?}"
    );

    let list = json_of(place, &["keys", "list"]);
    let states: Vec<(&str, &str)> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            (
                line["state"].as_str().unwrap(),
                line["key"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(states.len(), 3, "{list}");
    assert_eq!(states[0], ("backing_off", "k"));
    assert!(list[0]["since"].as_str().unwrap().ends_with('Z'), "{list}");
    assert!(states.contains(&("delayed", "slow")) && states.contains(&("delayed", &long)));
    let bounded = place.outboxd(&["keys", "list", "--limit", "1"]).code(0);
    assert!(bounded.stderr.contains("raise --limit"), "{bounded:?}");
    assert_eq!(bounded.stdout.lines().count(), 2, "{bounded:?}");

    // Addressed as it is, and as it is printed.
    let paused = json_of(
        place,
        &["keys", "pause", HOSTILE, "--reason", "\u{1b}[2Jodd"],
    );
    assert_eq!(
        (&paused["paused"], &paused["target"]["name"]),
        (&json!(true), &json!(HOSTILE))
    );
    let again = place
        .outboxd(&["keys", "pause", "--encoded", ENCODED])
        .code(0);
    assert!(again.stderr.contains("paused already"), "{again:?}");
    let list = place.outboxd(&["keys", "list"]).code(0);
    assert!(
        list.stdout.contains(&format!("--encoded {ENCODED}")),
        "{list:?}"
    );
    assert!(!list.stdout.contains('\u{1b}'), "{list:?}");
    let shown = json_of(place, &["keys", "show", "--encoded", ENCODED]);
    assert_eq!(shown["key"], HOSTILE);
    assert_eq!(shown["sinks"][0]["state"], "paused");
    assert_eq!(shown["sinks"][0]["pauses"][0]["by"], "tester");
    let words = place
        .outboxd(&["keys", "show", "--encoded", ENCODED])
        .code(0);
    assert!(
        words.stdout.contains("is paused by tester since"),
        "{words:?}"
    );
    assert!(!words.stdout.contains('\u{1b}'), "{words:?}");
    let resumed = json_of(place, &["keys", "resume", "--encoded", ENCODED]);
    assert_eq!(resumed["resumed"], 1);
    let again = place.outboxd(&["keys", "resume", HOSTILE]).code(0);
    assert!(again.stderr.contains("was not paused"), "{again:?}");

    // For one sink only.
    place
        .outboxd(&["keys", "pause", "k", "--sink", "log"])
        .code(0);
    let resumed = json_of(place, &["keys", "resume", "k"]);
    assert_eq!(
        (&resumed["resumed"], &resumed["retried"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        json_of(place, &["keys", "show", "k"])["sinks"][0]["state"],
        "ready"
    );

    // Nothing runs: what is skipped is set aside when something does.
    let plan = json_of(place, &["keys", "skip", "k", "--dry-run"]);
    assert_eq!(
        (&plan["skipped"], &plan["dry_run"]),
        (&json!(0), &json!(true))
    );
    let skipped = json_of(place, &["keys", "skip", "k", "--reason", "it is broken"]);
    assert_eq!(
        (&skipped["skipped"], &skipped["events"][0]["done"]),
        (&json!(1), &json!(false))
    );
    let shown = place.outboxd(&["keys", "show", "k"]).code(0);
    assert!(
        shown.stdout.contains("skipped by tester: it is broken"),
        "{shown:?}"
    );
    let late = place.outboxd(&["keys", "resume", "slow"]).code(0);
    assert!(late.stderr.contains("delayed by its writer"), "{late:?}");
    place.outboxd(&["pause", "sink", "log"]).code(0);
    let ended = place.outboxd(&["run", "--once"]).code(0);
    assert!(
        ended.stderr.contains("sink log is paused by tester"),
        "{ended:?}"
    );
    assert!(place.lines("events.jsonl").is_empty());
    place.outboxd(&["resume", "sink", "log"]).code(0);
    place.outboxd(&["run", "--once"]).code(0);
    assert_eq!(place.lines("events.jsonl").len(), 2);
    discarded_at_the_prompt(place);
}

/// The skipped head of `k`, whose next event went out meanwhile.
fn discarded_at_the_prompt(place: &Workplace) {
    let list = json_of(place, &["discarded", "list", "--cause", "operator"]);
    assert_eq!(list[0]["last_error"], "skipped by tester: it is broken");
    assert_eq!(list.as_array().unwrap().len(), 1);
    publish(place, "k", &[]);
    publish(place, "k", &["--delay", "1h"]);
    let plan = place
        .outboxd(&["discarded", "requeue", "--key", "k", "--dry-run"])
        .code(0);
    assert!(plan.stdout.starts_with("1 would be put back\n"), "{plan:?}");
    assert!(
        plan.stderr
            .contains("in front of 2 pending events of 1 keys"),
        "{plan:?}"
    );
    assert!(
        plan.stderr.contains("1 of them come behind later events"),
        "{plan:?}"
    );
    let plan = json_of(place, &["discarded", "drop", "--all", "--dry-run"]);
    assert_eq!(
        (&plan["dropped"], &plan["dry_run"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(plan["events"][0]["key"], "k");
    let young = json_of(place, &["discarded", "list", "--older-than", "1h"]);
    assert_eq!(young, json!([]));
    let code = json_of(place, &["discarded", "list", "--code", "too_large"]);
    assert_eq!(code, json!([]));
    let list = json_of(place, &["discarded", "list"]);
    assert_eq!(list.as_array().unwrap().len(), 1, "nothing was changed");
    place
        .outboxd(&["discarded", "requeue", "--key", "k"])
        .code(1);
    let back = json_of(place, &["discarded", "requeue", "--key", "k", "--force"]);
    assert_eq!(back["requeued"], 1);
    assert_eq!(back["overtakes"]["late"], 1);
    place.outboxd(&["run", "--once"]).code(0);
    assert_eq!(place.lines("events.jsonl").len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_an_sqlite_outbox_at_the_prompt() {
    let place = Workplace::sqlite_to_file("");
    let path = place.path("orders.db").display().to_string();
    keys_at_the_prompt(&place, |seq| {
        let path = path.clone();
        let fail = async move {
            let mut connection = sqlx::SqliteConnection::connect(&format!("sqlite://{path}"))
                .await
                .unwrap();
            let sql = "INSERT INTO outbox_delivery (seq, sink, state, attempts, next_at, last_error) VALUES \
                       (?1, 'log', 'retry', 3, '2050-01-01T00:00:00.000Z', 'no ' || char(27) || '[2J')";
            let query = sqlx::query(sql).bind(seq);
            query.execute(&mut connection).await.unwrap();
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(fail));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_postgres_outbox_at_the_prompt() {
    let database = postgres::server().await.database().await;
    let place = Workplace::new(&format!(
        "[databases.orders]\nurl = \"{}\"\nschema = \"My Outbox\"\n[sinks.log]\ntype = \"file\"\npath = \
         \"events.jsonl\"\n[routes.all]\nkinds = [\"*\"]\nsinks = [\"log\"]\n",
        database.url_of(Role::Owner)
    ));
    keys_at_the_prompt(&place, |seq| {
        let sql = format!(
            "insert into \"My Outbox\".delivery (seq, sink, state, attempts, next_at, last_error) values \
             ({seq}, 'log', 'retry', 3, now() + interval '1 hour', 'no ' || chr(27) || '[2J')"
        );
        let fail = async { database.execute(&sql).await };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(fail));
    });
}

#[test]
fn a_slip_is_told_and_changes_nothing() {
    let place = Workplace::sqlite_to_file("[databases.other]\nurl = \"sqlite://other.db\"\n");
    place.outboxd(&["migrate"]).code(0);
    let cases: [(&[&str], &str); 12] = [
        (&["pause", "sink", "log"], "--database: orders, other"),
        (
            &["pause", "sink", "lgo", "--database", "other"],
            "there is no sink `lgo`; there is log",
        ),
        (
            &["pause", "route", "x", "--database", "other"],
            "there is no route `x`; there is all",
        ),
        (
            &["resume", "route", "x", "--database", "other"],
            "there is no route `x`",
        ),
        (
            &["pause", "source", "nobody"],
            "there is no database `nobody`",
        ),
        (
            &["pause", "source", "other", "--database", "orders"],
            "without --database",
        ),
        (&["pause", "moon", "x"], "invalid value 'moon'"),
        (&["keys", "show", "--database", "other"], "<KEY>"),
        (
            &["keys", "pause", "", "--database", "other"],
            "1 to 512 bytes",
        ),
        (
            &["keys", "pause", "--seq", "7", "--database", "other"],
            "cannot be paused by itself",
        ),
        (
            &["keys", "list", "--sink", "lgo", "--database", "other"],
            "there is no sink `lgo`",
        ),
        (
            &["keys", "list", "--limit", "0", "--database", "other"],
            "0",
        ),
    ];
    for (args, words) in cases {
        let ended = place.outboxd(args).code(2);
        assert!(ended.stderr.contains(words), "{words} in {ended:?}");
        assert_eq!(ended.stdout, "");
    }
    let again = place.outboxd(&["resume", "source", "other"]).code(0);
    assert!(
        again.stderr.contains("is not paused; nothing is changed"),
        "{again:?}"
    );
    place.outboxd(&["pause", "source", "other"]).code(0);
    let again = place.outboxd(&["pause", "source", "other"]).code(0);
    assert!(again.stderr.contains("is paused already"), "{again:?}");
    let status = json_of(&place, &["status"]);
    assert_eq!(
        status["databases"][0]["paused"],
        json!([]),
        "the other one is"
    );
    assert_eq!(status["databases"][1]["paused"][0]["scope"], "source");
    for command in ["keys", "pause", "resume"] {
        let help = place.outboxd(&[command, "--help"]).code(0);
        assert!(help.stdout.contains("Usage:"), "{command}");
    }
}
