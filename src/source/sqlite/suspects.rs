//! Deaths of owners, and what they had in hand.

use sqlx::Sqlite as Database;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use uuid::Uuid;

use super::lease::pairs;
use super::{Sqlite, json};
use crate::lease::Lease;
use crate::source::{InHand, SourceError, Suspects};

impl Sqlite {
    pub(super) async fn bury_leases(&self, instance: Uuid) -> Result<(), SourceError> {
        let query = sqlx::query(include_str!("sql/bury.sql"));
        self.write_leases(query.bind(instance.hyphenated().to_string()))
            .await
    }

    pub(super) async fn read_suspects(
        &self,
        leases: &[Lease],
    ) -> Result<Vec<Suspects>, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/suspects.sql"));
            let rows: Vec<(i64, i64, i64, String)> = query.fetch_all(taken.sql()).await?;
            taken.give_back();
            Ok(rows)
        };
        let rows = self.reader.limited("read suspects", read).await?;
        let suspects = rows
            .into_iter()
            .map(|(shard, token, deaths, seqs)| Suspects {
                lease: Lease {
                    shard: shard as u16,
                    token,
                },
                deaths: deaths as u32,
                // What nobody can read accuses nobody.
                seqs: serde_json::from_str(&seqs).unwrap_or_default(),
            });
        Ok(suspects.filter(|one| leases.contains(&one.lease)).collect())
    }

    pub(super) async fn note_in_hand(
        &self,
        in_hand: &[InHand],
        alone: bool,
    ) -> Result<(), SourceError> {
        let rows = in_hand
            .iter()
            .map(|one| (one.lease.shard, one.lease.token, &one.seqs));
        let query = sqlx::query(include_str!("sql/note.sql"));
        self.write_leases(query.bind(json(rows.collect::<Vec<_>>())).bind(alone))
            .await
    }

    pub(super) async fn acquit_leases(&self, leases: &[Lease]) -> Result<(), SourceError> {
        let query = sqlx::query(include_str!("sql/acquit.sql"));
        self.write_leases(query.bind(pairs(leases))).await
    }

    async fn write_leases(
        &self,
        query: Query<'_, Database, SqliteArguments>,
    ) -> Result<(), SourceError> {
        let write = async {
            let mut taken = self.writer.take().await?;
            taken.begin(false).await?;
            query.execute(taken.sql()).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(())
        };
        self.writer.limited("note deaths", write).await
    }
}
