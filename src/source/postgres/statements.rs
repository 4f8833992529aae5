//! The SQL texts, with the schema's name put in once.
//!
//! One file per statement under `sql/`. Three placeholders exist: `{schema}`, the quoted identifier;
//! `{schema_text}`, the same inside a string literal; `{schema_name}`, the bare name inside one. Data
//! never comes this way, only as parameters.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

/// A statement's text, cheap to hand over.
#[derive(Clone, Debug)]
pub(super) struct Statement(Arc<str>);

impl Statement {
    /// For `sqlx::query`: the text came from a file of this crate and a quoted identifier.
    pub(super) fn text(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.0))
    }
}

/// A schema's name, ready for SQL.
#[derive(Clone, Debug)]
pub(super) struct Schema {
    /// As it is.
    pub(super) name: String,
    /// As an identifier: `"My-App"`.
    pub(super) quoted: String,
}

impl Schema {
    /// Checks and quotes the name: PostgreSQL takes anything of 1 to 63 bytes without a zero byte.
    pub(super) fn new(name: &str) -> Result<Self, &'static str> {
        if name.is_empty() {
            return Err("is empty");
        }
        if name.len() > 63 {
            return Err("is longer than 63 bytes");
        }
        if name.contains('\0') || name.contains("$outboxd$") {
            return Err("holds what no schema name may hold here (a zero byte, or $outboxd$)");
        }
        Ok(Self {
            name: name.to_owned(),
            quoted: quote(name),
        })
    }

    /// Fills a template. In one pass, so that a name that looks like a placeholder stays a name.
    pub(super) fn fill(&self, template: &str, more: &[(&str, &str)]) -> String {
        let in_text = self.quoted.replace('\'', "''");
        let as_text = self.name.replace('\'', "''");
        let mut filled = String::with_capacity(template.len() * 2);
        let mut rest = template;
        while let Some(at) = rest.find('{') {
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            let found = [
                ("{schema}", &*self.quoted),
                ("{schema_text}", &*in_text),
                ("{schema_name}", &*as_text),
            ]
            .into_iter()
            .chain(more.iter().copied())
            .find(|(placeholder, _)| rest.starts_with(placeholder));
            let taken = match found {
                Some((placeholder, value)) => {
                    filled.push_str(value);
                    placeholder.len()
                }
                None => {
                    filled.push('{');
                    1
                }
            };
            rest = &rest[taken..];
        }
        filled.push_str(rest);
        filled
    }

    fn statement(&self, template: &str) -> Statement {
        // The comments are for readers of the files; the server need not parse them with each call.
        let text: Vec<&str> = template
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"))
            .collect();
        Statement(self.fill(&text.join("\n"), &[]).into())
    }
}

/// The one place where an identifier is quoted.
pub(super) fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// Every statement, filled for one schema.
        #[derive(Debug)]
        pub(super) struct Statements { $(pub(super) $name: Statement),* }

        impl Statements {
            pub(super) fn new(schema: &Schema) -> Self {
                Self {
                    $($name: schema.statement(include_str!(
                        concat!("sql/", stringify!($name), ".sql")
                    ))),*
                }
            }
        }
    };
}

statements!(
    attend,
    audit,
    backlog,
    begun,
    channel,
    commands,
    commands_mark,
    control_look,
    control_pauses,
    delete_done,
    discarded_counts,
    discarded_drop,
    discarded_list,
    discarded_requeue,
    due_after,
    goodbye,
    hands,
    heads_keyless,
    heads_keys,
    heartbeat,
    instances,
    key_event_alone,
    key_events,
    lease_acquire,
    lease_acquit,
    lease_bury,
    lease_list,
    lease_note,
    lease_release,
    lease_renew,
    lease_surplus,
    lease_suspects,
    members,
    migration_version,
    open_check,
    open_place,
    open_rights,
    overtakes,
    pause_clear,
    pause_held,
    pause_list,
    pause_set,
    pending_kinds,
    pick_hurry,
    pick_lock,
    pick_skip,
    probe,
    publish,
    purge_audit,
    purge_control,
    purge_discarded,
    purge_instance,
    purge_orphans,
    purge_partitions,
    read,
    read_keys,
    read_seqs,
    requeue_strangers,
    settle_copies,
    settle_delete,
    settle_discards,
    settle_done,
    settle_leases,
    settle_lock,
    settle_marks,
    settle_published,
    settle_published_full,
    settle_published_receipt,
    settle_receipts,
    settle_retries,
    trace,
    trail_marks,
    trail_parts,
    trail_pending,
    trail_published,
    trail_tally,
    waiting,
    wake_instances,
    wake_mark,
    writers,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_name_is_quoted_wherever_it_stands() {
        let schema = Schema::new(r#"it's "My-App""#).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            schema.fill(
                "select * from {schema}.event, '{schema_text}.event'::regclass",
                &[]
            ),
            r#"select * from "it's ""My-App""".event, '"it''s ""My-App""".event'::regclass"#
        );
    }

    #[test]
    fn a_schema_named_like_a_placeholder_stays_a_name() {
        let schema = Schema::new("{schema_text}").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            schema.fill("{schema}.event {8}", &[]),
            r#""{schema_text}".event {8}"#
        );
    }

    #[test]
    fn impossible_schema_names_are_refused() {
        assert!(Schema::new("").is_err());
        assert!(Schema::new(&"x".repeat(64)).is_err());
        assert!(Schema::new("a\0b").is_err());
    }

    #[test]
    fn every_statement_says_what_it_guarantees() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/source/postgres/sql");
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            assert!(text.starts_with("-- "), "{}", entry.path().display());
        }
    }
}
