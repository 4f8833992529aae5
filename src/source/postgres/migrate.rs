//! Bringing the schema up to date.
//!
//! A runner of our own: bookkeeping stands in the outbox's schema, so that an application's migrations and
//! ours never see each other; one transaction per migration; a transaction-level advisory lock that a
//! killed migrator cannot leave behind; a connection that is closed afterwards, whatever happened.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};
use tokio::time::timeout;

use super::Postgres;
use super::connect::{self, Purpose};
use super::error::failure;
use super::statements::quote;
use crate::lease::{SHARD_ALGORITHM, fnv1a64};
use crate::source::admin::{Migrated, PendingMigration, Roles};
use crate::source::{SourceError, SourceErrorKind};

const MIGRATING: &str = "migrating";

/// Time for one migration, waiting for other migrators included.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Whoever runs a migration, with whatever search_path: names mean what they mean in the catalogue.
const SEARCH_PATH: &str = "set local search_path = pg_catalog, pg_temp";

/// A migration as it stands in the repository.
struct Migration {
    name: &'static str,
    template: &'static str,
}

macro_rules! migrations {
    ($($name:literal),* $(,)?) => {
        /// Ascending and without holes: number n stands at place n - 1.
        const MIGRATIONS: &[Migration] = &[$(Migration {
            name: $name,
            template: include_str!(concat!("../../../migrations/postgres/", $name, ".sql")),
        }),*];
    };
}

migrations!(
    "0001_create_event",
    "0002_create_delivery",
    "0003_create_lease",
    "0004_create_wake",
);

/// The version this program works with.
pub(super) fn latest() -> i64 {
    MIGRATIONS.len() as i64
}

/// What is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    schema: bool,
    version: i64,
}

impl Postgres {
    pub(super) async fn migrate_schema(&self) -> Result<Migrated, SourceError> {
        let mut connection = self.migration_connection().await?;
        let outcome = self.limited_migration(&mut connection).await;
        // Closed in any case: nothing of a failed migration stays with a connection that somebody else uses.
        let _ = timeout(Duration::from_secs(1), connection.close()).await;
        outcome
    }

    async fn limited_migration(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Migrated, SourceError> {
        let before = self.standing(connection).await?;
        if before.version > latest() {
            return Err(self.unusable(self.newer(before.version)));
        }
        // What others apply meanwhile was not applied by us.
        let mut from = None;
        for _ in before.version..latest() {
            let step = timeout(LIMIT, self.step(connection));
            let Ok(step) = step.await else {
                return Err(SourceError::new(
                    SourceErrorKind::Unavailable,
                    format!(
                        "database {}: migrating took longer than {LIMIT:?}",
                        self.options.name
                    ),
                ));
            };
            let (found, done) = step?;
            from.get_or_insert(found);
            if done {
                break;
            }
        }
        Ok(Migrated {
            from: from.unwrap_or(before.version),
            to: latest(),
        })
    }

    /// Applies the next migration, if there is one, under the lock. Returns the version found and whether
    /// nothing is left to do.
    async fn step(&self, connection: &mut PgConnection) -> Result<(i64, bool), SourceError> {
        let lock = format!(
            "begin; {}; select pg_advisory_xact_lock({})",
            self.migration_settings(),
            self.lock_key()
        );
        self.run(connection, &lock).await?;
        let standing = self.standing(connection).await?;
        if standing.version > latest() {
            return Err(self.unusable(self.newer(standing.version)));
        }
        if standing.version == latest() {
            self.run(connection, "commit").await?;
            return Ok((standing.version, true));
        }
        let sql = self.migration_sql(standing, standing.version);
        self.run(connection, &sql).await?;
        self.run(connection, "commit").await?;
        Ok((standing.version, standing.version + 1 == latest()))
    }

    pub(super) async fn pending_migrations(&self) -> Result<Vec<PendingMigration>, SourceError> {
        let mut connection = self.migration_connection().await?;
        let standing = self.standing(&mut connection).await;
        let _ = timeout(Duration::from_secs(1), connection.close()).await;
        let mut standing = standing?;
        if standing.version > latest() {
            return Err(self.unusable(self.newer(standing.version)));
        }
        let mut pending = Vec::new();
        for version in standing.version..latest() {
            pending.push(PendingMigration {
                version: version + 1,
                name: migration(version).name.to_owned(),
                sql: format!(
                    "begin;\n{SEARCH_PATH};\n{}\ncommit;\n",
                    self.migration_sql(standing, version)
                ),
            });
            standing.schema = true;
        }
        Ok(pending)
    }

    /// The statements that lead from `version` to the next, bookkeeping included.
    fn migration_sql(&self, standing: Standing, version: i64) -> String {
        let next = migration(version);
        let number = (version + 1).to_string();
        let shards = self.options.shards.to_string();
        let values = [
            ("{shards}", &*shards),
            ("{algorithm}", SHARD_ALGORITHM),
            ("{number}", &*number),
            ("{name}", next.name),
        ];
        let mut parts = Vec::new();
        if !standing.schema {
            parts.push(include_str!("sql/migration_schema.sql"));
        }
        if version == 0 {
            parts.push(include_str!("sql/migration_table.sql"));
        }
        parts.push(next.template);
        parts.push(include_str!("sql/migration_record.sql"));
        self.schema.fill(&parts.join("\n"), &values)
    }

    async fn standing(&self, connection: &mut PgConnection) -> Result<Standing, SourceError> {
        let sql = self
            .schema
            .fill(include_str!("sql/migration_standing.sql"), &[]);
        let row = raw_sql(AssertSqlSafe(sql))
            .fetch_one(&mut *connection)
            .await
            .map_err(|cause| failure(&self.options.name, MIGRATING, cause).error)?;
        let schema: bool = self.column(MIGRATING, &row, 0)?;
        let version = if self.column(MIGRATING, &row, 1)? {
            let sql = self
                .schema
                .fill(include_str!("sql/migration_version.sql"), &[]);
            let row = raw_sql(AssertSqlSafe(sql))
                .fetch_one(connection)
                .await
                .map_err(|cause| failure(&self.options.name, MIGRATING, cause).error)?;
            self.column(MIGRATING, &row, 0)?
        } else {
            0
        };
        Ok(Standing { schema, version })
    }

    async fn migration_connection(&self) -> Result<PgConnection, SourceError> {
        Ok(connect::connect(&self.options, Purpose::Admin)
            .await?
            .connection)
    }

    async fn run(&self, connection: &mut PgConnection, sql: &str) -> Result<(), SourceError> {
        raw_sql(AssertSqlSafe(sql))
            .execute(connection)
            .await
            .map(drop)
            .map_err(|cause| failure(&self.options.name, MIGRATING, cause).error)
    }

    /// Waiting for another migrator is normal; waiting for somebody's open transaction is not, and
    /// meanwhile every writer would queue behind us.
    fn migration_settings(&self) -> String {
        format!(
            "set local statement_timeout = {0}; set local lock_timeout = '60s'; \
             set local idle_in_transaction_session_timeout = '60s'; \
             {SEARCH_PATH}",
            LIMIT.as_millis()
        )
    }

    /// Advisory locks belong to one database already; the schema keeps outboxes in it apart.
    fn lock_key(&self) -> i64 {
        let name = format!("outboxd migrate {}", self.schema.name);
        i64::from_be_bytes(fnv1a64(name.as_bytes()).to_be_bytes())
    }

    /// The rights of every role, as SQL.
    pub(super) fn all_grants(&self, roles: &Roles) -> String {
        [
            self.grant(include_str!("sql/grants_relay.sql"), &roles.relay),
            self.grant(include_str!("sql/grants_writer.sql"), &roles.writer),
            self.grant(include_str!("sql/grants_viewer.sql"), &roles.viewer),
            // An operator sees what a viewer sees.
            self.grant(include_str!("sql/grants_viewer.sql"), &roles.operator),
            self.grant(include_str!("sql/grants_operator.sql"), &roles.operator),
        ]
        .join("\n")
    }

    fn grant(&self, template: &str, role: &str) -> String {
        self.schema.fill(template, &[("{role}", &quote(role))])
    }
}

fn migration(version: i64) -> &'static Migration {
    &MIGRATIONS[version as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_without_holes_and_match_their_place() {
        for (place, migration) in MIGRATIONS.iter().enumerate() {
            assert!(
                migration.name.starts_with(&format!("{:04}_", place + 1)),
                "{}",
                migration.name
            );
        }
    }

    #[test]
    fn every_migration_in_the_folder_is_known() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres");
        let files = std::fs::read_dir(directory)
            .map(Iterator::count)
            .unwrap_or_default();
        assert_eq!(files, MIGRATIONS.len());
    }
}
