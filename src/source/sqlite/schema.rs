//! Migrations, and the check that a relay can work here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use super::Sqlite;
use super::connection::{FileId, Taken, absent};
use super::error::Failure;
use crate::lease::SHARD_ALGORITHM;
use crate::source::admin::{Migrated, PendingMigration};
use crate::source::{Opened, SourceError, SourceErrorKind};

struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

/// In order; a version is never changed once it was released.
const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "create_outbox",
    sql: include_str!("../../../migrations/sqlite/0001_create_outbox.sql"),
}];

const LATEST: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

impl Migration {
    /// The statements. The number of shards is all that is ever filled in: an integer.
    fn sql(&self, shards: u16) -> String {
        self.sql.replace("{shards}", &shards.to_string())
    }
}

impl Sqlite {
    /// Migrates on a connection of its own, under SQLite's write lock: of many processes one at a time gets
    /// on, and the others then find nothing left to do.
    pub(super) async fn bring_up_to_date(&self) -> Result<Migrated, SourceError> {
        let limit = self.options.statement_timeout;
        let about = format!("database {}: migrate", self.path().display());
        let mut connection = SqliteConnectOptions::new()
            .filename(self.path())
            .create_if_missing(true)
            .busy_timeout(limit)
            .disable_statement_logging()
            .connect()
            .await
            .map_err(|error| Failure::from(error).about(&about))?;
        let result = self.migrate_on(&mut connection).await;
        let _ = tokio::time::timeout(limit, connection.close()).await;
        result.map_err(|failure| failure.about(&about))
    }

    async fn migrate_on(&self, connection: &mut SqliteConnection) -> Result<Migrated, Failure> {
        self.check_encoding(&mut *connection).await?;
        self.set_wal(connection).await?;
        connection.execute("BEGIN IMMEDIATE").await?;
        let from = version(connection).await?;
        self.refuse_newer(from)?;
        for migration in MIGRATIONS.iter().filter(|next| next.version > from) {
            let sql = migration.sql(self.options.shards);
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut *connection)
                .await?;
            sqlx::query(include_str!("sql/insert_migration.sql"))
                .bind(migration.version)
                .bind(migration.name)
                .execute(&mut *connection)
                .await?;
        }
        connection.execute("COMMIT").await?;
        Ok(Migrated { from, to: LATEST })
    }

    /// The mode is stored in the file. SQLite does not wait for other connections here, so we do.
    async fn set_wal(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            let query = sqlx::query_scalar("PRAGMA journal_mode = WAL");
            let answer = query.fetch_one(&mut *connection).await;
            match answer.map_err(Failure::from) {
                Ok::<String, _>(mode) if mode == "wal" => return Ok(()),
                Ok(mode) => {
                    let words = format!(
                        "it stays in {mode} mode and WAL mode is needed; put it on a local disk"
                    );
                    return Err(self.unusable(&words).into());
                }
                Err(failure)
                    if failure.busy() && since.elapsed() < self.options.statement_timeout =>
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// What [`Sqlite::bring_up_to_date`] would run.
    pub(super) async fn pending(&self) -> Result<Vec<PendingMigration>, SourceError> {
        let from = match FileId::of(self.path()) {
            None => 0,
            Some(_) => {
                let read = async {
                    let mut taken = self.reader.take().await?;
                    let from = version(taken.sql()).await?;
                    taken.give_back();
                    Ok(from)
                };
                self.reader.limited("read the schema version", read).await?
            }
        };
        self.refuse_newer(from)?;
        let pending = MIGRATIONS.iter().filter(|next| next.version > from);
        Ok(pending.map(|next| self.announce(next)).collect())
    }

    fn announce(&self, migration: &Migration) -> PendingMigration {
        let wal = match migration.version {
            1 => "PRAGMA journal_mode = WAL;\n",
            _ => "",
        };
        let (version, name) = (migration.version, migration.name);
        let body = migration.sql(self.options.shards);
        let record = include_str!("sql/insert_migration.sql")
            .replace("?1", &version.to_string())
            .replace("?2", &format!("'{name}'"));
        let record: Vec<&str> = record
            .lines()
            .filter(|line| !line.starts_with("--"))
            .collect();
        let record = record.join("\n");
        PendingMigration {
            version,
            name: name.to_owned(),
            sql: format!("{wal}BEGIN IMMEDIATE;\n{body}\n{record}\nCOMMIT;\n"),
        }
    }

    /// Checks that this is an outbox that the relay understands.
    pub(super) async fn check(&self) -> Result<Opened, SourceError> {
        if FileId::of(self.path()).is_none() {
            return Err(absent(self.path()));
        }
        let check = async {
            // On the writer, because it needs rights that the reader does not.
            let mut taken = self.writer.take().await?;
            let opened = self.check_on(&mut taken).await?;
            taken.give_back();
            Ok(opened)
        };
        self.writer.limited("open", check).await
    }

    async fn check_on(&self, taken: &mut Taken<'_>) -> Result<Opened, Failure> {
        self.check_encoding(taken.sql()).await?;
        let version = version(taken.sql()).await?;
        self.refuse_newer(version)?;
        if version < LATEST {
            let words = match version {
                0 => "there is no outbox in it; run `outboxd migrate`".to_owned(),
                _ => format!("its schema has version {version} of {LATEST}; run `outboxd migrate`"),
            };
            return Err(self.unusable(&words).into());
        }
        let query = sqlx::query_scalar("PRAGMA journal_mode");
        let mode: String = query.fetch_one(taken.sql()).await?;
        if mode != "wal" {
            let words =
                format!("it is in {mode} mode and WAL mode is needed; run `outboxd migrate`");
            return Err(self.unusable(&words).into());
        }
        let settings = settings(taken.sql()).await?;
        let algorithm = settings.get("shard_algorithm").map_or("", String::as_str);
        if algorithm != SHARD_ALGORITHM {
            let words = format!(
                "its keys are spread by {algorithm:?} and this version knows {SHARD_ALGORITHM:?}; \
                 run the version that made it"
            );
            return Err(self.unusable(&words).into());
        }
        let query = sqlx::query_as(include_str!("sql/leases.sql"));
        let leases: Vec<(i64, Option<String>, i64, String)> = query.fetch_all(taken.sql()).await?;
        let stored = settings
            .get("shards")
            .and_then(|shards| shards.parse::<u16>().ok());
        let shards = stored.filter(|shards| {
            let rows = leases.iter().map(|lease| lease.0);
            *shards > 0 && rows.eq(0..i64::from(*shards))
        });
        let Some(shards) = shards else {
            let words = format!("its lease rows do not match its setting of {stored:?} shards");
            return Err(self.unusable(&words).into());
        };
        Ok(Opened {
            shards,
            incarnation: incarnation(&settings, taken.file()),
            remarks: Vec::new(),
        })
    }

    async fn check_encoding(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let query = sqlx::query_scalar("PRAGMA encoding");
        let encoding: String = query.fetch_one(connection).await?;
        if encoding != "UTF-8" {
            let words = format!("its text is stored as {encoding}, and an outbox needs UTF-8");
            return Err(self.unusable(&words).into());
        }
        Ok(())
    }

    fn refuse_newer(&self, version: i64) -> Result<(), SourceError> {
        if version > LATEST {
            let words = format!(
                "its schema has version {version}, and this outboxd knows versions up to {LATEST}; \
                 run a newer outboxd"
            );
            return Err(self.unusable(&words));
        }
        Ok(())
    }

    fn unusable(&self, words: &str) -> SourceError {
        let words = format!("database {}: {words}", self.path().display());
        SourceError::new(SourceErrorKind::Unusable, words)
    }
}

/// Version of the schema; 0 where there is none.
async fn version(connection: &mut SqliteConnection) -> Result<i64, Failure> {
    let query = sqlx::query_scalar(include_str!("sql/has_table.sql")).bind("outbox_migration");
    let tables: i64 = query.fetch_one(&mut *connection).await?;
    if tables == 0 {
        return Ok(0);
    }
    let query = sqlx::query_scalar(include_str!("sql/version.sql"));
    Ok(query.fetch_one(connection).await?)
}

/// The facts that the first migration fixed.
pub(super) async fn settings(
    connection: &mut SqliteConnection,
) -> Result<HashMap<String, String>, Failure> {
    let query = sqlx::query_as(include_str!("sql/settings.sql"));
    let settings: Vec<(String, String)> = query.fetch_all(connection).await?;
    Ok(settings.into_iter().collect())
}

/// The identity of the history: the one that the first migration drew, and the file that holds it, because
/// a restored copy carries the same one.
pub(super) fn incarnation(settings: &HashMap<String, String>, file: FileId) -> String {
    let history = settings.get("history").map_or("", String::as_str);
    format!("{history}:{file}")
}
