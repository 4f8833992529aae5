//! Streaming standbys: a copy that follows its primary, that commits may wait for, and that can take the primary's place.
//!
//! ```ignore
//! let old = Server::start_own(&[]).await;
//! let database = old.database().await;
//! let new = old.standby(old.port()).await;        // or the port of a proxy, to hold replication up
//! old.commits_wait_for_a_standby().await;
//! old.kill9().await;
//! new.promote().await;
//! let database = new.copy_of(&database);
//! ```

use std::path::Path;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::super::eventually;
use super::{Database, Directory, Server, url};

/// What takes a moment on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

impl Server {
    /// A standby of the server behind this port, made from a backup of it; it follows by the same way, and answers
    /// questions. Its settings are those of `self`.
    pub async fn standby(&self, port: u16) -> Self {
        let directory = Directory::new("outboxd-pg-");
        let backup = self.programs.join("pg_basebackup");
        let from = format!("host=127.0.0.1 port={port} user=postgres");
        // Beside the runtime, on which the way may have to be kept open.
        let made = tokio::task::spawn_blocking(move || {
            let arguments = ["-d", &from, "-R", "-X", "stream", "-c", "fast", "--no-sync"];
            directory.fill_by(&backup, &arguments);
            directory
        });
        let directory = made.await.unwrap();
        let mut standby = Self {
            directory,
            programs: self.programs.clone(),
            settings: self.settings.clone(),
            port: 0,
            process: None,
        };
        standby.launch_on_a_free_port().await;
        standby.caught_up_with(self).await;
        standby
    }

    /// Waits until this standby shows everything that the primary has written so far.
    pub async fn caught_up_with(&self, primary: &Self) {
        // Behind what was committed without waiting for the disk.
        primary
            .execute("select pg_logical_emit_message(true, 'here', '')")
            .await;
        let end: String = primary.answer("pg_current_wal_flush_lsn()::text").await;
        let behind = format!("pg_last_wal_replay_lsn() >= '{end}'::pg_lsn");
        eventually(LONG, "the standby has caught up", || async {
            let done: bool = self.answer(&behind).await;
            done.then_some(()).ok_or(format!("not at {end} yet"))
        })
        .await;
    }

    /// From now on a commit is answered, and shown to others, when a standby has it.
    pub async fn commits_wait_for_a_standby(&self) {
        self.execute("alter system set synchronous_standby_names = '*'")
            .await;
        self.execute("select pg_reload_conf()").await;
        let waits = "exists (select from pg_stat_replication where sync_state = 'sync')";
        eventually(LONG, "commits wait for the standby", || async {
            let waits: bool = self.answer(waits).await;
            waits.then_some(()).ok_or("not yet".to_owned())
        })
        .await;
    }

    /// A standby becomes a primary, with a history of its own; returns when it takes writes.
    pub async fn promote(&self) {
        let promoted: bool = self.answer("pg_promote()").await;
        assert!(promoted, "{}", self.log());
    }

    /// A server that is down comes back as one whose transactions are read-only unless they say otherwise.
    pub async fn restart_read_only(&mut self) {
        self.settings
            .push(("default_transaction_read_only".into(), "on".into()));
        // Whoever followed it does no longer.
        self.settings
            .push(("synchronous_standby_names".into(), String::new()));
        self.restart().await;
    }

    /// It comes back as a standby, which reads and writes nothing, until [`Self::promote`].
    pub async fn restart_as_standby(&mut self) {
        self.stop_fast().await;
        let signal = Path::new(&self.directory.data()).join("standby.signal");
        std::fs::write(&signal, "").unwrap();
        if let Some((uid, gid)) = self.directory.user {
            std::os::unix::fs::chown(&signal, Some(uid), Some(gid)).unwrap();
        }
        self.restart().await;
    }

    /// What this server has of another server's database.
    pub fn copy_of(&self, database: &Database) -> Database {
        let other = format!(":{}/", database.port);
        let own = format!(":{}/", self.port);
        Database {
            url: database.url.replacen(&other, &own, 1),
            name: database.name.clone(),
            port: self.port,
        }
    }

    /// One value, asked as superuser in the database `postgres`.
    async fn answer<T>(&self, expression: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        let mut connection = PgConnection::connect(&url(self.port, "postgres", None, "postgres"))
            .await
            .unwrap();
        let value = sqlx::query_scalar(AssertSqlSafe(format!("select {expression}")))
            .fetch_one(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        value
    }
}
