//! Housekeeping: signs of life, commands, samples, retention.

use sqlx::query;
use uuid::Uuid;

use super::Postgres;
use super::value::{Moment, clean, micros};
use crate::source::{Backlog, Command, Commands, Heartbeat, Retention, SourceError};

const BEATING: &str = "writing the heartbeat";
const COMMANDS: &str = "reading commands";
const SAMPLING: &str = "sampling the backlog";
const PURGING: &str = "purging";

/// Rows that a backlog sample looks at.
const SAMPLE: i64 = 10_000;

/// Commands read at once; the rest follows with the next poll.
const COMMANDS_AT_ONCE: i64 = 1_000;

impl Postgres {
    pub(super) async fn write_heartbeat(&self, beat: &Heartbeat) -> Result<(), SourceError> {
        let call = query(self.sql.heartbeat.text())
            .bind(beat.instance)
            .bind(clean(&beat.host, 255))
            .bind(beat.version)
            .bind(beat.listening)
            .bind(beat.report.clone());
        self.relay.execute(BEATING, call).await?;
        Ok(())
    }

    pub(super) async fn remove_instance(&self, instance: Uuid) -> Result<(), SourceError> {
        let call = query(self.sql.goodbye.text()).bind(instance);
        self.relay.execute("removing the instance", call).await?;
        Ok(())
    }

    pub(super) async fn read_commands(&self, after: Option<i64>) -> Result<Commands, SourceError> {
        let Some(after) = after else {
            let rows = self
                .relay
                .rows(COMMANDS, query(self.sql.commands_mark.text()))
                .await?;
            return Ok(Commands {
                mark: self.only(COMMANDS, &rows, 0)?,
                items: Vec::new(),
                pauses: Some(self.list_pauses(&self.relay).await?),
            });
        };
        let call = query(self.sql.commands.text())
            .bind(after)
            .bind(COMMANDS_AT_ONCE);
        let mut commands = Commands {
            mark: after,
            items: Vec::new(),
            pauses: None,
        };
        let mut paused = false;
        for row in self.relay.rows(COMMANDS, call).await? {
            commands.mark = self.column(COMMANDS, &row, 0)?;
            let word: String = self.column(COMMANDS, &row, 1)?;
            let payload: String = self.column(COMMANDS, &row, 2)?;
            if word == "pauses" {
                paused = true;
                continue;
            }
            match command(&word, &payload) {
                Some(command) => commands.items.push(command),
                None => tracing::warn!(
                    database = %self.options.name,
                    id = commands.mark,
                    "a command that this version does not know was passed over"
                ),
            }
        }
        if paused {
            commands.pauses = Some(self.list_pauses(&self.relay).await?);
        }
        Ok(commands)
    }

    pub(super) async fn sample_backlog(&self) -> Result<Backlog, SourceError> {
        let call = query(self.sql.backlog.text()).bind(SAMPLE);
        let rows = self.relay.rows(SAMPLING, call).await?;
        let events: i64 = self.only(SAMPLING, &rows, 0)?;
        let oldest: Option<Moment> = self.only(SAMPLING, &rows, 1)?;
        let now: Moment = self.only(SAMPLING, &rows, 2)?;
        Ok(Backlog {
            events: events.unsigned_abs(),
            bounded: events >= SAMPLE,
            oldest_ready_age_s: oldest.map(|at| at.age_s(now).max(0.0)),
        })
    }

    pub(super) async fn purge_past(
        &self,
        retention: &Retention,
        limit: u32,
    ) -> Result<u64, SourceError> {
        let slice = i64::from(limit);
        // Owner-defined, and under locks that may have to wait: the longer limits of the admin side.
        let call = query(self.sql.purge_partitions.text())
            .bind(micros(retention.published))
            .bind(i32::try_from(limit).unwrap_or(i32::MAX));
        let dropped: i64 = self.only(PURGING, &self.admin.rows(PURGING, call).await?, 0)?;
        let mut removed = dropped.unsigned_abs();
        let call = query(self.sql.purge_discarded.text())
            .bind(micros(retention.discarded))
            .bind(slice);
        removed += self.relay.execute(PURGING, call).await?;
        for statement in [
            &self.sql.purge_control,
            &self.sql.purge_instance,
            &self.sql.purge_audit,
            &self.sql.purge_orphans,
        ] {
            let call = query(statement.text()).bind(slice);
            removed += self.relay.execute(PURGING, call).await?;
        }
        Ok(removed)
    }
}

fn command(word: &str, payload: &str) -> Option<Command> {
    #[derive(serde::Deserialize)]
    struct Named {
        seqs: Vec<i64>,
    }
    let seqs = || serde_json::from_str::<Named>(payload).map(|named| named.seqs);
    match word {
        "look" => Some(Command::Look { seqs: seqs().ok()? }),
        "hurry" => Some(Command::Hurry { seqs: seqs().ok()? }),
        _ => None,
    }
}
