//! The connections: few, each used by one call at a time, thrown away at the first doubt.
//!
//! A dropped future does not stop what the server does, so a connection whose call was cut short (time
//! limit, cancellation, error inside a transaction) is closed and never used again. A pool of our own,
//! because connecting must read secrets anew and must tell its error at once, and because a round trip
//! before each use would double the latency of a poll.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection, Postgres};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::connect::{self, Connected, Purpose};
use super::dial::Dial;
use super::error::failure;
use super::{Options, Pooler};
use crate::source::{SourceError, SourceErrorKind};

/// How much longer than the server we wait for its answer.
const MARGIN: Duration = Duration::from_secs(2);

/// Age at which a connection is replaced, so that one that a load balancer has moved away from goes.
const LIFETIME: Duration = Duration::from_secs(30 * 60);

/// A statement with its parameters.
pub(super) type Call = Query<'static, Postgres, PgArguments>;

/// Connections for one purpose.
#[derive(Debug)]
pub(super) struct Pool {
    options: Arc<Options>,
    purpose: Purpose,
    dial: Arc<Dial>,
    permits: Semaphore,
    idle: Mutex<Vec<Idle>>,
    /// Where the outbox was opened last.
    home: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Idle {
    connected: Connected,
    since: Instant,
}

/// One connection in use. Dropping it before [`Session::finish`] closes the connection.
#[derive(Debug)]
pub(super) struct Session<'p> {
    pool: &'p Pool,
    idle: Option<Idle>,
    explicit: bool,
    _permit: SemaphorePermit<'p>,
}

impl Pool {
    pub(super) fn new(
        options: Arc<Options>,
        purpose: Purpose,
        connections: u32,
        dial: Arc<Dial>,
    ) -> Self {
        Self {
            options,
            purpose,
            dial,
            permits: Semaphore::new(connections as usize),
            idle: Mutex::default(),
            home: Mutex::default(),
        }
    }

    /// Runs one statement, in a transaction of its own.
    pub(super) async fn rows(&self, what: &str, call: Call) -> Result<Vec<PgRow>, SourceError> {
        let mut session = self.session(what).await?;
        let rows = session.rows(what, call).await?;
        session.finish(what).await?;
        Ok(rows)
    }

    /// Runs one statement, in a transaction of its own, where the outbox was opened and nowhere else. A connection
    /// made since may lead to a server with another history, in which what was read so far means nothing, or to one
    /// that takes no writes.
    pub(super) async fn rows_at_home(
        &self,
        what: &str,
        call: Call,
    ) -> Result<Vec<PgRow>, SourceError> {
        let mut session = self.session(what).await?;
        if !self.is_home(session.place()) {
            self.idle().clear();
            return Err(SourceError::new(
                SourceErrorKind::Unavailable,
                format!(
                    "database {}: {what}: the server was restarted, or is another one than before",
                    self.options.name
                ),
            ));
        }
        let rows = session.rows(what, call).await?;
        session.finish(what).await?;
        Ok(rows)
    }

    fn is_home(&self, place: Option<&str>) -> bool {
        let home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        home.as_deref().is_none_or(|home| place == Some(home))
    }

    /// Runs one statement for its effect; returns the number of rows it touched.
    pub(super) async fn execute(&self, what: &str, call: Call) -> Result<u64, SourceError> {
        let mut session = self.session(what).await?;
        let touched = session.execute(what, call).await?;
        session.finish(what).await?;
        Ok(touched)
    }

    /// A connection on which each statement commits by itself, or, behind a pooler, all of them with
    /// [`Session::finish`].
    pub(super) async fn session(&self, what: &str) -> Result<Session<'_>, SourceError> {
        let mut session = self.take(what).await?;
        if self.options.pooler == Pooler::Transaction {
            session.begin(what, "").await?;
        }
        Ok(session)
    }

    /// A connection inside a transaction that [`Session::finish`] commits. `durable` waits for the disk.
    pub(super) async fn transaction(
        &self,
        what: &str,
        durable: bool,
    ) -> Result<Session<'_>, SourceError> {
        let mut session = self.take(what).await?;
        let commit = if durable { "on" } else { "off" };
        session
            .begin(what, &format!("; set local synchronous_commit = {commit}"))
            .await?;
        Ok(session)
    }

    async fn take(&self, what: &str) -> Result<Session<'_>, SourceError> {
        let name = &self.options.name;
        let wait = connect::statement_limit(&self.options, self.purpose) + MARGIN;
        let permit = match timeout(wait, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => {
                return Err(SourceError::new(
                    SourceErrorKind::Unavailable,
                    format!("database {name}: {what}: its connections were closed"),
                ));
            }
            Err(_) => {
                return Err(SourceError::new(
                    SourceErrorKind::Unavailable,
                    format!("database {name}: {what}: no connection was free for {wait:?}"),
                ));
            }
        };
        let rested = self.rested();
        let idle = match rested {
            Some(idle) => idle,
            None => Idle {
                connected: self
                    .dial
                    .connect(connect::connect(&self.options, self.purpose))
                    .await?,
                since: Instant::now(),
            },
        };
        Ok(Session {
            pool: self,
            idle: Some(idle),
            explicit: false,
            _permit: permit,
        })
    }

    /// The connection used last, so that surplus ones grow old and go.
    fn rested(&self) -> Option<Idle> {
        let mut idle = self.idle();
        idle.retain(|one| one.since.elapsed() < LIFETIME);
        idle.pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every idle connection, and every other one when its call ends; later calls fail.
    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        for one in idle {
            // A polite goodbye, but not at any price.
            let _ = timeout(Duration::from_millis(500), one.connected.connection.close()).await;
        }
    }
}

impl Session<'_> {
    /// The server's system identifier.
    pub(super) fn system(&self) -> &str {
        self.idle.as_ref().map_or("", |idle| &idle.connected.system)
    }

    fn place(&self) -> Option<&str> {
        self.idle.as_ref()?.connected.place.as_deref()
    }

    /// The outbox was opened here, at this place.
    pub(super) fn is_home(&mut self, place: &str) {
        if let Some(idle) = &mut self.idle {
            // A standby may have been promoted since the greeting.
            idle.connected.place = Some(place.to_owned());
        }
        let home = &self.pool.home;
        *home.lock().unwrap_or_else(PoisonError::into_inner) = Some(place.to_owned());
    }

    /// Runs a statement and gives its rows.
    pub(super) async fn rows(&mut self, what: &str, call: Call) -> Result<Vec<PgRow>, SourceError> {
        let persistent = self.pool.options.pooler == Pooler::None;
        self.run(what, async |connection| {
            call.persistent(persistent).fetch_all(connection).await
        })
        .await
    }

    /// Runs a statement and gives the number of rows it touched.
    pub(super) async fn execute(&mut self, what: &str, call: Call) -> Result<u64, SourceError> {
        let persistent = self.pool.options.pooler == Pooler::None;
        self.run(what, async |connection| {
            Ok(call
                .persistent(persistent)
                .execute(connection)
                .await?
                .rows_affected())
        })
        .await
    }

    /// Runs statements without parameters, as one message.
    pub(super) async fn script(&mut self, what: &str, sql: String) -> Result<(), SourceError> {
        self.run(what, async |connection| {
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(connection)
                .await
                .map(drop)
        })
        .await
    }

    async fn begin(&mut self, what: &str, more: &str) -> Result<(), SourceError> {
        let mut sql = "begin".to_owned();
        if self.pool.options.pooler == Pooler::Transaction {
            // The session is another one each time: settings live as long as the transaction.
            for (key, value) in connect::settings(&self.pool.options, self.pool.purpose) {
                sql.push_str(&format!("; set local {key} = {value}"));
            }
        }
        sql.push_str(more);
        self.script(what, sql).await?;
        self.explicit = true;
        Ok(())
    }

    /// Commits and gives the connection back.
    pub(super) async fn finish(mut self, what: &str) -> Result<(), SourceError> {
        if self.explicit {
            self.script(what, "commit".to_owned()).await?;
        }
        if let Some(idle) = self.idle.take()
            && !self.pool.permits.is_closed()
        {
            self.pool.idle().push(idle);
        }
        Ok(())
    }

    /// Runs `work` with the time limit. Until it has come back the connection is not the session's: a future
    /// that is dropped half way takes it along.
    async fn run<T>(
        &mut self,
        what: &str,
        work: impl AsyncFnOnce(&mut sqlx::PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, SourceError> {
        let name = &self.pool.options.name;
        let limit = connect::statement_limit(&self.pool.options, self.pool.purpose) + MARGIN;
        let Some(mut idle) = self.idle.take() else {
            return Err(SourceError::new(
                SourceErrorKind::Unavailable,
                format!("database {name}: {what}: the connection was lost before"),
            ));
        };
        match timeout(limit, work(&mut idle.connected.connection)).await {
            Ok(Ok(value)) => {
                self.idle = Some(idle);
                Ok(value)
            }
            Ok(Err(cause)) => {
                let failure = failure(name, what, cause);
                if failure.all_broken {
                    self.pool.idle().clear();
                }
                // In a transaction the rest is void: closing the connection rolls it back.
                if !failure.broken && !self.explicit {
                    self.pool.idle().push(idle);
                }
                Err(failure.error)
            }
            Err(_) => Err(SourceError::new(
                SourceErrorKind::Unavailable,
                format!("database {name}: {what}: no answer within {limit:?}"),
            )),
        }
    }
}
