//! Commands, signs of life, retention.

use std::time::Duration;

use uuid::Uuid;

use super::Sqlite;
use super::decode::earlier;
use crate::event::Timestamp;
use crate::source::{Command, Commands, Heartbeat, Retention, SourceError};

/// Commands and silent instances are kept this long.
const DAY: Duration = Duration::from_secs(86_400);

impl Sqlite {
    pub(super) async fn read_commands(&self, after: Option<i64>) -> Result<Commands, SourceError> {
        /// Commands in one answer; the mark then leads to the rest.
        const LIMIT: i64 = 1_000;
        let read = async {
            let mut taken = self.reader.take().await?;
            // The mark first: a command that comes in between is above it and is told next time.
            let query = sqlx::query_scalar(include_str!("sql/sequence.sql")).bind("outbox_control");
            let mark: Option<i64> = query.fetch_optional(taken.sql()).await?;
            let mark = mark.unwrap_or(0);
            let rows: Vec<(i64, String, Option<String>)> = match after {
                Some(after) if after < mark => {
                    let query = sqlx::query_as(include_str!("sql/commands.sql"));
                    query.bind(after).bind(LIMIT).fetch_all(taken.sql()).await?
                }
                _ => Vec::new(),
            };
            // After the commands: what they changed is in it.
            let paused = after.is_none() || rows.iter().any(|(_, verb, _)| verb == "pauses");
            let pauses = match paused {
                true => Some(super::operate::pauses(&mut taken).await?),
                false => None,
            };
            taken.give_back();
            Ok((mark, rows, pauses))
        };
        let (mark, rows, pauses) = self.reader.limited("read commands", read).await?;
        let last = rows.last().map(|(number, ..)| *number);
        let mark = match last {
            Some(last) if rows.len() as i64 == LIMIT => last,
            Some(last) => last.max(mark),
            None => mark,
        };
        let items = rows.into_iter().filter_map(|(_, verb, seqs)| {
            let seqs = serde_json::from_str(seqs.as_deref().unwrap_or("[]")).unwrap_or_default();
            match &*verb {
                "look" => Some(Command::Look { seqs }),
                "hurry" => Some(Command::Hurry { seqs }),
                _ => None,
            }
        });
        Ok(Commands {
            mark,
            items: items.collect(),
            pauses,
        })
    }

    pub(super) async fn write_heartbeat(&self, beat: &Heartbeat) -> Result<(), SourceError> {
        let write = async {
            let mut taken = self.writer.take().await?;
            taken.begin(false).await?;
            let query = sqlx::query(include_str!("sql/upsert_instance.sql"))
                .bind(beat.instance.hyphenated().to_string())
                .bind(&beat.host)
                .bind(beat.version)
                .bind(beat.listening)
                .bind(&beat.report)
                .bind(Timestamp::now().to_string());
            query.execute(taken.sql()).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(())
        };
        self.writer.limited("write the heartbeat", write).await
    }

    pub(super) async fn remove_instance(&self, instance: Uuid) -> Result<(), SourceError> {
        let write = async {
            let mut taken = self.writer.take().await?;
            taken.begin(false).await?;
            let query = sqlx::query(include_str!("sql/delete_instance.sql"));
            let query = query.bind(instance.hyphenated().to_string());
            query.execute(taken.sql()).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(())
        };
        self.writer.limited("say goodbye", write).await
    }

    /// One short transaction a table, so that writers get in between.
    pub(super) async fn remove_old(
        &self,
        retention: &Retention,
        limit: u32,
    ) -> Result<u64, SourceError> {
        let now = Timestamp::now();
        let published = include_str!("sql/purge_published.sql");
        let discarded = include_str!("sql/purge_discarded.sql");
        let control = include_str!("sql/purge_control.sql");
        let instances = include_str!("sql/purge_instances.sql");
        let mut removed = 0;
        for (statement, keep, counts) in [
            (published, retention.published, true),
            (discarded, retention.discarded, true),
            (control, DAY, false),
            (instances, DAY, false),
        ] {
            let remove = async {
                let mut taken = self.writer.take().await?;
                taken.begin(false).await?;
                let query = sqlx::query(statement).bind(earlier(now, keep).to_string());
                let query = query.bind(i64::from(limit));
                let done = query.execute(taken.sql()).await?;
                taken.commit().await?;
                taken.give_back();
                Ok(done.rows_affected())
            };
            let rows = self.writer.limited("purge", remove).await?;
            removed += if counts { rows } else { 0 };
        }
        Ok(removed)
    }
}
