//! Ownership: the file lock decides, the lease rows fence and show.

use std::time::Duration;

use tracing::debug;
use uuid::Uuid;

use super::decode::{self, later};
use super::schema::{incarnation, settings};
use super::{Sqlite, json};
use crate::event::Timestamp;
use crate::lease::Lease;
use crate::source::{LeaseView, Renewed, SourceError};

/// How long a renewal waits for the write lock.
const EXPIRY: Duration = Duration::from_secs(1);

impl Sqlite {
    /// Takes the lock if it is free or already this instance's, and then every shard.
    pub(super) async fn take_leases(
        &self,
        instance: Uuid,
        ttl: Duration,
    ) -> Result<Vec<Lease>, SourceError> {
        let mut slot = self.lock.held.lock().await;
        // Whoever removed the lock file made room for another holder: start again from the file.
        let current = slot.take().filter(|held| held.stands());
        let mut held = match current {
            Some(held) if held.instance != instance => {
                *slot = Some(held);
                return Ok(Vec::new());
            }
            Some(held) => held,
            None => match self.lock.try_take(instance)? {
                Some(held) => held,
                None => return Ok(Vec::new()),
            },
        };
        let leases = self.writer.limited("acquire leases", async {
            let mut taken = self.writer.take().await?;
            taken.begin(false).await?;
            let expiry = later(Timestamp::now(), ttl).to_string();
            let query = sqlx::query_as(include_str!("sql/acquire.sql"))
                .bind(instance.hyphenated().to_string())
                .bind(expiry);
            let rows: Vec<(i64, i64)> = query.fetch_all(taken.sql()).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(leases(rows))
        });
        // An error or an abandoned call drops the lock: nobody may rely on tokens that nobody has seen.
        let leases = leases.await?;
        held.tokens = leases
            .iter()
            .map(|lease| (lease.shard, lease.token))
            .collect();
        *slot = Some(held);
        Ok(leases)
    }

    pub(super) async fn renew_leases(
        &self,
        leases: &[Lease],
        ttl: Duration,
    ) -> Result<Renewed, SourceError> {
        let mut slot = self.lock.held.lock().await;
        if slot.as_ref().is_some_and(|held| !held.stands()) {
            *slot = None;
        }
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/tokens.sql"));
            let tokens: Vec<(i64, i64)> = query.fetch_all(taken.sql()).await?;
            let query = sqlx::query_scalar(include_str!("sql/sequence.sql")).bind("outbox_event");
            let last_seq: Option<i64> = query.fetch_optional(taken.sql()).await?;
            let settings = settings(taken.sql()).await?;
            let incarnation = incarnation(&settings, taken.file());
            taken.give_back();
            Ok((tokens, last_seq.unwrap_or(0), incarnation))
        };
        let (tokens, last_seq, incarnation) = self.reader.limited("renew leases", read).await?;
        let mut held = leases.to_vec();
        held.retain(|lease| {
            slot.is_some() && tokens.contains(&(i64::from(lease.shard), lease.token))
        });
        if !held.is_empty() {
            self.write_expiry(&held, ttl).await;
        }
        Ok(Renewed {
            held,
            incarnation,
            last_seq,
        })
    }

    /// The expiry only shows: the file lock decides who owns, so an application that keeps the write lock busy
    /// must not end an ownership. What cannot be written now is written with the next renewal.
    async fn write_expiry(&self, held: &[Lease], ttl: Duration) {
        let write = async {
            let mut taken = self.writer.take().await?;
            taken.begin(false).await?;
            let query = sqlx::query(include_str!("sql/renew.sql"))
                .bind(pairs(held))
                .bind(later(Timestamp::now(), ttl).to_string());
            query.execute(taken.sql()).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(())
        };
        let patience = EXPIRY.min(ttl / 6);
        let write = self.writer.limited("write the expiry of leases", write);
        match tokio::time::timeout(patience, write).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "the expiry of the leases is not written"),
            Err(_) => debug!("the database is busy: the expiry of the leases is not written"),
        }
    }

    /// Frees the shards; with the last of them the lock.
    pub(super) async fn give_leases(&self, leases: &[Lease]) -> Result<(), SourceError> {
        if leases.is_empty() {
            return Ok(());
        }
        let mut slot = self.lock.held.lock().await;
        let give = async {
            let mut taken = self.writer.take().await?;
            taken.begin(false).await?;
            let query = sqlx::query(include_str!("sql/release.sql"))
                .bind(pairs(leases))
                .bind(Timestamp::now().to_string());
            query.execute(taken.sql()).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(())
        };
        self.writer.limited("release leases", give).await?;
        if let Some(held) = slot.as_mut() {
            let given = |shard: &u16, token: &i64| {
                leases
                    .iter()
                    .any(|lease| lease.shard == *shard && lease.token == *token)
            };
            held.tokens.retain(|shard, token| !given(shard, token));
            if held.tokens.is_empty() {
                *slot = None;
            }
        }
        Ok(())
    }

    pub(super) async fn show_leases(&self) -> Result<Vec<LeaseView>, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/leases.sql"));
            let rows: Vec<(i64, Option<String>, i64, String)> =
                query.fetch_all(taken.sql()).await?;
            taken.give_back();
            Ok(rows)
        };
        let rows = self.reader.limited("read leases", read).await?;
        let now = Timestamp::now();
        let view = |(shard, owner, token, expiry): (i64, Option<String>, i64, String)| {
            let expiry = decode::moment(expiry.as_bytes()).unwrap_or(Timestamp(0));
            LeaseView {
                shard: shard as u16,
                owner: owner.map(|owner| decode::id(owner.as_bytes())),
                token,
                expires_in_s: -decode::seconds_since(expiry, now),
            }
        };
        Ok(rows.into_iter().map(view).collect())
    }
}

pub(super) fn pairs(leases: &[Lease]) -> String {
    let pairs: Vec<(u16, i64)> = leases
        .iter()
        .map(|lease| (lease.shard, lease.token))
        .collect();
    json(pairs)
}

fn leases(rows: Vec<(i64, i64)>) -> Vec<Lease> {
    let rows = rows.into_iter();
    let mut leases: Vec<Lease> = rows
        .map(|(shard, token)| Lease {
            shard: shard as u16,
            token,
        })
        .collect();
    leases.sort_by_key(|lease| lease.shard);
    leases
}
