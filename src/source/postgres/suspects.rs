//! Deaths of owners, and what they had in hand.

use sqlx::query;
use uuid::Uuid;

use super::Postgres;
use super::lease::{columns, shard};
use crate::lease::Lease;
use crate::source::{InHand, SourceError, Suspects};

const BURYING: &str = "freeing the shards of a dead incarnation";
const READING: &str = "reading what dead owners had in hand";
const NOTING: &str = "noting what is in hand";

impl Postgres {
    pub(super) async fn bury_leases(&self, instance: Uuid) -> Result<(), SourceError> {
        let call = query(self.sql.lease_bury.text()).bind(instance);
        self.relay.execute(BURYING, call).await?;
        Ok(())
    }

    pub(super) async fn read_suspects(
        &self,
        leases: &[Lease],
    ) -> Result<Vec<Suspects>, SourceError> {
        let (shards, tokens) = columns(leases);
        let call = query(self.sql.lease_suspects.text())
            .bind(shards)
            .bind(tokens);
        let mut suspects = Vec::new();
        for row in self.relay.rows(READING, call).await? {
            let deaths: i32 = self.column(READING, &row, 2)?;
            suspects.push(Suspects {
                lease: Lease {
                    shard: shard(self.column(READING, &row, 0)?),
                    token: self.column(READING, &row, 1)?,
                },
                deaths: deaths.unsigned_abs(),
                seqs: self.column(READING, &row, 3)?,
            });
        }
        Ok(suspects)
    }

    pub(super) async fn note_in_hand(
        &self,
        in_hand: &[InHand],
        alone: bool,
    ) -> Result<(), SourceError> {
        let leases: Vec<Lease> = in_hand.iter().map(|one| one.lease).collect();
        let (shards, tokens) = columns(&leases);
        let of_shard = |one: &InHand| vec![i32::from(one.lease.shard); one.seqs.len()];
        let call = query(self.sql.lease_note.text())
            .bind(shards)
            .bind(tokens)
            .bind(in_hand.iter().flat_map(of_shard).collect::<Vec<_>>())
            .bind(
                in_hand
                    .iter()
                    .flat_map(|one| one.seqs.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(alone);
        self.relay.execute(NOTING, call).await?;
        Ok(())
    }

    pub(super) async fn acquit_leases(&self, leases: &[Lease]) -> Result<(), SourceError> {
        let (shards, tokens) = columns(leases);
        let call = query(self.sql.lease_acquit.text())
            .bind(shards)
            .bind(tokens);
        self.relay.execute(NOTING, call).await?;
        Ok(())
    }
}
