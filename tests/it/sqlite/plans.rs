//! Every statement over the large tables is a search by index, whatever the tables hold.

use std::path::Path;

use sqlx::Row as _;

use crate::source_conformance::sqlite::SqliteOutbox;

/// Statements that walk a table on purpose, and how far.
const WALKS: &[(&str, &str)] = &[
    ("backlog_count.sql", "SCAN outbox_event"), // bounded by LIMIT
    ("backlog_oldest.sql", "SCAN outbox_event"), // bounded by LIMIT, by seq and by due time
    ("pending_kinds.sql", "SCAN outbox_event"), // bounded by LIMIT
    ("discarded.sql", "SCAN outbox_discarded"), // an operator's question
    ("discarded_numbers.sql", "SCAN outbox_discarded"), // an operator's command
    ("discarded_counts.sql", "SCAN outbox_discarded"), // an operator's question
    ("trail_discarded.sql", "SCAN outbox_discarded"), // an operator's question
    ("overtakes.sql", "SCAN outbox_discarded"), // an operator's question, bounded by LIMIT
    ("overtakes.sql", "SCAN outbox_published"), // the same
    (
        "waiting_failed.sql",
        "SCAN d USING INDEX outbox_delivery_next",
    ), // what has failed, bounded by LIMIT
    ("pauses.sql", "SCAN outbox_pause"),        // small
    ("insert_pause.sql", "SCAN outbox_pause"),  // small
    ("purge_published.sql", "SCAN outbox_published"), // bounded by LIMIT
    ("purge_discarded.sql", "SCAN outbox_discarded"), // bounded by LIMIT
    ("purge_control.sql", "SCAN outbox_control"), // small
    ("purge_instances.sql", "SCAN outbox_instance"), // small
    ("tokens.sql", "SCAN outbox_lease"),        // small
    ("leases.sql", "SCAN outbox_lease"),        // small
    ("acquire.sql", "SCAN outbox_lease"),       // small
    ("renew.sql", "SCAN outbox_lease"),         // small
    ("release.sql", "SCAN outbox_lease"),       // small
    ("bury.sql", "SCAN outbox_lease"),          // small
    ("suspects.sql", "SCAN outbox_lease"),      // small
    ("instances.sql", "SCAN outbox_instance"),  // small
    ("settings.sql", "SCAN outbox_setting"),    // small
];

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_walks_a_large_table() {
    let outbox = SqliteOutbox::new().await;
    let mut connection = outbox.application().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source/sqlite/sql");
    let mut findings = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let sql = std::fs::read_to_string(&path).unwrap();
        let body = sql
            .lines()
            .filter(|line| !line.starts_with("--"))
            .collect::<Vec<_>>()
            .join("\n");
        let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {body}"));
        let plan = sqlx::query(explain).fetch_all(&mut connection).await;
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
        count += 1;
        for row in plan {
            let step: String = row.get(3);
            let allowed = WALKS
                .iter()
                .any(|(file, walk)| *file == name && step.starts_with(walk));
            // json_each, sub-selects and the WITH of a statement have short names here.
            let aliases = [
                "SCAN e",
                "SCAN r",
                "SCAN d",
                "SCAN m",
                "SCAN x",
                "SCAN o",
                "SCAN first",
            ];
            let alias = aliases.contains(&step.split(" USING").next().unwrap_or_default());
            let walk = step.starts_with("SCAN outbox_") || alias;
            if walk && !allowed {
                findings.push(format!("{name}: {step}"));
            }
        }
    }
    assert!(count > 40, "the statements were found");
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
