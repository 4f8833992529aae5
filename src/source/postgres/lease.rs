//! Ownership of shards: single statements, the database's clock, tokens that only grow.

use std::time::Duration;

use sqlx::query;
use uuid::Uuid;

use super::Postgres;
use super::open::incarnation;
use super::value::micros;
use crate::lease::Lease;
use crate::source::{LeaseView, Members, Renewed, SourceError};

const ACQUIRING: &str = "taking leases";
const RENEWING: &str = "renewing leases";
const ATTENDING: &str = "telling who shares the shards";
const RELEASING: &str = "releasing leases";
const LISTING: &str = "listing leases";

impl Postgres {
    pub(super) async fn acquire_leases(
        &self,
        instance: Uuid,
        ttl: Duration,
        most: u16,
    ) -> Result<Vec<Lease>, SourceError> {
        let call = query(self.sql.lease_acquire.text())
            .bind(instance)
            .bind(micros(ttl))
            .bind(i32::from(most));
        let mut leases = Vec::new();
        for row in self.relay.rows(ACQUIRING, call).await? {
            leases.push(Lease {
                shard: shard(self.column(ACQUIRING, &row, 0)?),
                token: self.column(ACQUIRING, &row, 1)?,
            });
        }
        leases.sort_by_key(|lease| lease.shard);
        let (shards, _) = columns(&leases);
        let call = query(self.sql.lease_surplus.text())
            .bind(instance)
            .bind(shards);
        self.relay.execute(RELEASING, call).await?;
        Ok(leases)
    }

    pub(super) async fn write_attendance(
        &self,
        instance: Uuid,
        ttl: Duration,
        idle: bool,
    ) -> Result<(), SourceError> {
        let call = query(self.sql.attend.text())
            .bind(instance)
            .bind(micros(ttl))
            .bind(idle);
        self.relay.execute(ATTENDING, call).await?;
        Ok(())
    }

    pub(super) async fn read_members(&self, instance: Uuid) -> Result<Members, SourceError> {
        let call = query(self.sql.members.text()).bind(instance);
        let rows = self.relay.rows(ATTENDING, call).await?;
        let count = |column| {
            let number: i64 = self.only(ATTENDING, &rows, column)?;
            Ok(u32::try_from(number).unwrap_or(u32::MAX))
        };
        let seconds: f64 = self.only(ATTENDING, &rows, 3)?;
        Ok(Members {
            count: count(0)?,
            before: count(1)?,
            busy: count(4)?,
            free: u16::try_from(count(2)?).unwrap_or(u16::MAX),
            free_for: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        })
    }

    pub(super) async fn renew_leases(
        &self,
        leases: &[Lease],
        ttl: Duration,
    ) -> Result<Renewed, SourceError> {
        let (shards, tokens) = columns(leases);
        let call = query(self.sql.lease_renew.text())
            .bind(shards)
            .bind(tokens)
            .bind(micros(ttl));
        let mut session = self.relay.session(RENEWING).await?;
        let rows = session.rows(RENEWING, call).await?;
        let system = session.system().to_owned();
        session.finish(RENEWING).await?;
        let shards: Vec<i32> = self.only(RENEWING, &rows, 0)?;
        let tokens: Vec<i64> = self.only(RENEWING, &rows, 1)?;
        let timeline: String = self.only(RENEWING, &rows, 2)?;
        let table: i64 = self.only(RENEWING, &rows, 3)?;
        Ok(Renewed {
            held: shards
                .into_iter()
                .zip(tokens)
                .map(|(number, token)| Lease {
                    shard: shard(number),
                    token,
                })
                .collect(),
            incarnation: incarnation(&system, &timeline, table),
            last_seq: self.only(RENEWING, &rows, 4)?,
        })
    }

    pub(super) async fn release_leases(&self, leases: &[Lease]) -> Result<(), SourceError> {
        let (shards, tokens) = columns(leases);
        let call = query(self.sql.lease_release.text())
            .bind(shards)
            .bind(tokens);
        self.relay.execute(RELEASING, call).await?;
        Ok(())
    }

    pub(super) async fn list_leases(&self) -> Result<Vec<LeaseView>, SourceError> {
        let rows = self
            .relay
            .rows(LISTING, query(self.sql.lease_list.text()))
            .await?;
        rows.iter()
            .map(|row| {
                Ok(LeaseView {
                    shard: shard(self.column(LISTING, row, 0)?),
                    owner: self.column(LISTING, row, 1)?,
                    token: self.column(LISTING, row, 2)?,
                    expires_in_s: self.column(LISTING, row, 3)?,
                })
            })
            .collect()
    }
}

pub(super) fn columns(leases: &[Lease]) -> (Vec<i32>, Vec<i64>) {
    leases
        .iter()
        .map(|lease| (i32::from(lease.shard), lease.token))
        .unzip()
}

/// The table's check keeps shards within 16 bits.
pub(super) fn shard(number: i32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}
