//! Can this outbox be relayed? Asked at start and after every outage.

use sqlx::postgres::PgRow;
use sqlx::query;

use super::{Postgres, migrate};
use crate::lease::SHARD_ALGORITHM;
use crate::source::{Opened, SourceError, SourceErrorKind};

const WHAT: &str = "opening the outbox";

impl Postgres {
    pub(super) async fn open_outbox(&self) -> Result<Opened, SourceError> {
        let mut session = self.relay.session(WHAT).await?;
        let version = session
            .rows(WHAT, query(self.sql.migration_version.text()))
            .await
            .map_err(|error| self.not_migrated(error))?;
        let version: i64 = self.only(WHAT, &version, 0)?;
        self.check_version(version)?;
        let missing = session
            .rows(WHAT, query(self.sql.open_rights.text()))
            .await?;
        let missing = missing
            .iter()
            .map(|row| self.column::<String>(WHAT, row, 0))
            .collect::<Result<Vec<_>, _>>()?;
        if !missing.is_empty() {
            return Err(self.unusable(format!(
                "the relay's role has no {} in schema {}: grant it, see `outboxd migrate --print-grants`",
                missing.join(", no "),
                self.schema.quoted
            )));
        }
        let found = session
            .rows(WHAT, query(self.sql.open_check.text()))
            .await?;
        let Some(found) = found.first() else {
            return Err(self.unusable(format!(
                "table {}.settings is empty: it holds one row from the first migration on",
                self.schema.quoted
            )));
        };
        let (shards, remarks) = self.judge(found)?;
        let place = session
            .rows(WHAT, query(self.sql.open_place.text()))
            .await?;
        let timeline: String = self.only(WHAT, &place, 0)?;
        let table: i64 = self.only(WHAT, &place, 1)?;
        session.is_home(&timeline);
        let incarnation = incarnation(session.system(), &timeline, table);
        session.finish(WHAT).await?;
        Ok(Opened {
            shards,
            incarnation,
            remarks,
        })
    }

    /// A schema older or newer than this program is not touched.
    fn check_version(&self, version: i64) -> Result<(), SourceError> {
        let ours = migrate::latest();
        if version < ours {
            return Err(self.unusable(format!(
                "schema {} is at version {version} and this outboxd needs {ours}: run `outboxd migrate`",
                self.schema.quoted
            )));
        }
        if version > ours {
            return Err(self.unusable(self.newer(version)));
        }
        Ok(())
    }

    pub(super) fn newer(&self, version: i64) -> String {
        format!(
            "schema {} is at version {version}, newer than this outboxd knows ({}): use a newer outboxd",
            self.schema.quoted,
            migrate::latest()
        )
    }

    fn not_migrated(&self, error: SourceError) -> SourceError {
        if error.kind != SourceErrorKind::Unusable || !error.message.contains("does not exist") {
            return error;
        }
        self.unusable(format!(
            "there is no outbox in schema {}: run `outboxd migrate`",
            self.schema.quoted
        ))
    }

    /// Shards, and what an operator may want to know.
    fn judge(&self, found: &PgRow) -> Result<(u16, Vec<String>), SourceError> {
        let shards: i32 = self.column(WHAT, found, 0)?;
        let algorithm: String = self.column(WHAT, found, 1)?;
        let cache: i64 = self.column(WHAT, found, 2)?;
        let read_only: bool = self.column(WHAT, found, 3)?;
        let row_security: bool = self.column(WHAT, found, 4)?;
        let encoding: String = self.column(WHAT, found, 5)?;
        let wakes: Option<bool> = self.column(WHAT, found, 6)?;
        let unlogged: bool = self.column(WHAT, found, 7)?;
        if algorithm != SHARD_ALGORITHM {
            return Err(self.unusable(format!(
                "keys are spread over the shards by {algorithm} and this outboxd knows {SHARD_ALGORITHM}: \
                 use the version that made the outbox"
            )));
        }
        if cache != 1 {
            return Err(self.unusable(format!(
                "the identity of {}.event has cache {cache}, which shows low numbers late: \
                 alter table {}.event alter column seq set cache 1",
                self.schema.quoted, self.schema.quoted
            )));
        }
        let shards = u16::try_from(shards)
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| self.unusable(format!("{shards} shards are stored, which cannot be")))?;
        if read_only {
            return Err(SourceError::new(
                SourceErrorKind::ReadOnly,
                format!(
                    "database {}: the server is read-only (a standby, or an old primary?)",
                    self.options.name
                ),
            ));
        }
        let mut remarks = Vec::new();
        if shards != self.options.shards {
            remarks.push(format!(
                "the outbox was made with {shards} shards; the configured {} are ignored",
                self.options.shards
            ));
        }
        if row_security {
            remarks.push(
                "row security applies to the relay's role: events it hides will never leave"
                    .to_owned(),
            );
        }
        if encoding != "UTF8" {
            remarks.push(format!(
                "the database's encoding is {encoding}: text that is not valid UTF-8 cannot be read"
            ));
        }
        if unlogged {
            remarks
                .push("the event table is unlogged: a crash of the server empties it".to_owned());
        }
        if wakes != Some(true) && self.options.listen {
            remarks.push(
                "the wake trigger is missing or disabled: events are found by polling".to_owned(),
            );
        }
        Ok((shards, remarks))
    }
}

/// Names the history that seqs belong to: another cluster, a promotion, or a table restored from a dump
/// changes it.
pub(super) fn incarnation(system: &str, timeline: &str, table: i64) -> String {
    format!("{system}/{timeline}/{table}")
}
