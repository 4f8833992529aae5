//! The wake-up channel: LISTEN on a connection of its own.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Executor as _, Row as _, query};
use tokio::time::timeout;

use super::connect::{self, Purpose};
use super::error::failure;
use super::{Pooler, Postgres};
use crate::source::{Listener, SourceError, SourceErrorKind};

const LISTENING: &str = "listening for wake-ups";

/// Limit for connecting, and for an answer to a probe.
const LIMIT: Duration = Duration::from_secs(5);

impl Postgres {
    pub(super) async fn open_listener(&self) -> Result<Option<Box<dyn Listener>>, SourceError> {
        if !self.options.listen || self.options.pooler == Pooler::Transaction {
            return Ok(None);
        }
        // The listener's own pool tells a failure to connect only by its time limit; a connection
        // made by hand says at once what is wrong. Its work is the name of the channel.
        let connect = connect::connect(&self.options, Purpose::Listen);
        let mut first = self.dial.connect(connect).await?;
        let ask = async {
            let row = query(self.sql.channel.text())
                .fetch_one(&mut first.connection)
                .await?;
            row.try_get::<String, _>(0)
        };
        let channel = self.limited(ask).await?;
        drop(first);
        let options = connect::options(&self.options, Purpose::Listen).await?;
        let start = async {
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .acquire_timeout(LIMIT)
                .connect_with(options)
                .await?;
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.eager_reconnect(false);
            listener.ignore_pool_close_event(true);
            listener.listen(&channel).await?;
            Ok(listener)
        };
        let listener = self.limited(start).await?;
        Ok(Some(Box::new(Channel {
            database: self.options.name.clone(),
            listener: Some(listener),
        })))
    }

    async fn limited<T>(
        &self,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, SourceError> {
        match timeout(LIMIT, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(cause)) => Err(failure(&self.options.name, LISTENING, cause).error),
            Err(_) => Err(lost(&self.options.name, "no answer in time")),
        }
    }

    pub(super) async fn write_wake_mark(&self, span: Duration) -> Result<(), SourceError> {
        // A part of a second is a whole one: the mark must not end before it was asked to.
        let seconds =
            i64::try_from(span.as_millis().div_ceil(1_000)).unwrap_or(i64::from(u32::MAX));
        let call = query(self.sql.wake_mark.text()).bind(seconds.min(i64::from(u32::MAX)));
        self.relay.rows("setting the wake-up mark", call).await?;
        Ok(())
    }

    pub(super) async fn notify_instances(&self) -> Result<(), SourceError> {
        let call = query(self.sql.wake_instances.text());
        self.relay.rows("waking other instances", call).await?;
        Ok(())
    }
}

struct Channel {
    database: String,
    /// `None` once the connection was found broken: what was missed since must be polled for.
    listener: Option<PgListener>,
}

#[async_trait]
impl Listener for Channel {
    async fn wait(&mut self) -> Result<(), SourceError> {
        let Some(listener) = &mut self.listener else {
            return Err(lost(&self.database, "the connection was lost"));
        };
        let error = match listener.try_recv().await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => lost(&self.database, "the connection was lost"),
            Err(cause) => failure(&self.database, LISTENING, cause).error,
        };
        self.listener = None;
        Err(error)
    }

    async fn probe(&mut self) -> Result<(), SourceError> {
        let Some(mut listener) = self.listener.take() else {
            return Err(lost(&self.database, "the connection was lost"));
        };
        match timeout(LIMIT, listener.execute("select 1")).await {
            Ok(Ok(_)) => {
                self.listener = Some(listener);
                Ok(())
            }
            Ok(Err(cause)) => Err(failure(&self.database, LISTENING, cause).error),
            Err(_) => Err(lost(&self.database, "the connection does not answer")),
        }
    }
}

fn lost(database: &str, reason: &str) -> SourceError {
    SourceError::new(
        SourceErrorKind::Unavailable,
        format!("database {database}: {LISTENING}: {reason}"),
    )
}
