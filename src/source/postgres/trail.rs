//! What was delivered, for `verify`: the history slice by slice as it lies on the disk, marks and pending events page by
//! page.
//!
//! The history has no index on its times, which would tax every publish. It is partitioned by day and its rows stand
//! in the order in which they came, so a slice of so many blocks of one partition is a sequential read of bounded size.

use std::ops::ControlFlow;

use sqlx::query;
use uuid::Uuid;

use super::Postgres;
use super::value::Moment;
use crate::event::Timestamp;
use crate::source::SourceError;
use crate::source::trail::{Delivered, Hand, Known, Take, Tally, Window};

const WALKING: &str = "walking what was delivered";
const TALLYING: &str = "counting what was not delivered";
const TRACING: &str = "looking events up";

/// Blocks of the history read by one statement: 8 MiB.
const BLOCKS: i64 = 1_024;

/// Rows of other tables read by one statement.
const PAGE: i64 = 20_000;

const DAY_US: i64 = 86_400 * 1_000_000;

/// A partition of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    /// The first moment of its day; `None` for the rest, which takes every day that has no partition.
    day: Option<i64>,
    blocks: i64,
}

/// What is read of one partition: moments that lead there and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    window: Window,
    blocks: i64,
}

impl Postgres {
    pub(super) async fn walk_trail(
        &self,
        sink: &str,
        window: Window,
        take: Take<'_>,
    ) -> Result<(), SourceError> {
        let mut parts = Vec::new();
        for row in self
            .admin
            .rows(WALKING, query(self.sql.trail_parts.text()))
            .await?
        {
            let name: String = self.column(WALKING, &row, 0)?;
            parts.push(Part {
                day: day_of(&name),
                blocks: self.column(WALKING, &row, 1)?,
            });
        }
        for slice in slices(window, &parts) {
            let mut block = 0;
            while block < slice.blocks {
                if self
                    .walk_slice(sink, slice.window, block, take)
                    .await?
                    .is_break()
                {
                    return Ok(());
                }
                block += BLOCKS;
            }
        }
        self.walk_marks(sink, window, take).await
    }

    async fn walk_slice(
        &self,
        sink: &str,
        window: Window,
        block: i64,
        take: Take<'_>,
    ) -> Result<ControlFlow<()>, SourceError> {
        let call = query(self.sql.trail_published.text())
            .bind(sink.to_owned())
            .bind(Moment::from(window.since))
            .bind(Moment::from(window.until))
            .bind(format!("({block},0)"))
            .bind(format!("({},0)", block + BLOCKS));
        for row in self.admin.rows(WALKING, call).await? {
            let at: Moment = self.column(WALKING, &row, 2)?;
            let stream: Option<String> = self.column(WALKING, &row, 3)?;
            let position: Option<i64> = self.column(WALKING, &row, 4)?;
            let key: Option<String> = self.column(WALKING, &row, 5)?;
            let delivered = Delivered {
                seq: self.column(WALKING, &row, 0)?,
                id: self.column(WALKING, &row, 1)?,
                ordering_key: key.as_deref(),
                at: at.timestamp(),
                stream: stream.as_deref(),
                position: position.and_then(|at| u64::try_from(at).ok()),
                receipt: true,
            };
            if take(delivered).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn walk_marks(
        &self,
        sink: &str,
        window: Window,
        take: Take<'_>,
    ) -> Result<(), SourceError> {
        let mut after = i64::MIN;
        loop {
            let call = query(self.sql.trail_marks.text())
                .bind(sink.to_owned())
                .bind(after)
                .bind(PAGE)
                .bind(Moment::from(window.since))
                .bind(Moment::from(window.until));
            let rows = self.admin.rows(WALKING, call).await?;
            for row in &rows {
                after = self.column(WALKING, row, 0)?;
                let counts: bool = self.column(WALKING, row, 4)?;
                let at: Moment = self.column(WALKING, row, 2)?;
                let key: Option<String> = self.column(WALKING, row, 3)?;
                let stream: Option<String> = self.column(WALKING, row, 5)?;
                let position: Option<i64> = self.column(WALKING, row, 6)?;
                let id: Option<Uuid> = self.column(WALKING, row, 1)?;
                let Some(id) = id.filter(|_| counts) else {
                    continue;
                };
                let delivered = Delivered {
                    seq: after,
                    id,
                    ordering_key: key.as_deref(),
                    at: at.timestamp(),
                    stream: stream.as_deref(),
                    position: position.and_then(|at| u64::try_from(at).ok()),
                    receipt: false,
                };
                if take(delivered).is_break() {
                    return Ok(());
                }
            }
            if (rows.len() as i64) < PAGE {
                return Ok(());
            }
        }
    }

    pub(super) async fn count_trail(
        &self,
        sink: &str,
        window: Window,
    ) -> Result<Tally, SourceError> {
        let call = query(self.sql.trail_tally.text())
            .bind(sink.to_owned())
            .bind(Moment::from(window.since))
            .bind(Moment::from(window.until));
        let rows = self.admin.rows(TALLYING, call).await?;
        let discarded: i64 = self.only(TALLYING, &rows, 0)?;
        let mut tally = Tally {
            pending: Vec::new(),
            discarded: discarded.unsigned_abs(),
            reaches_back: self.only(TALLYING, &rows, 1)?,
        };
        let mut after = i64::MIN;
        loop {
            let call = query(self.sql.trail_pending.text())
                .bind(after)
                .bind(PAGE)
                .bind(sink.to_owned())
                .bind(Moment::from(window.since))
                .bind(Moment::from(window.until));
            let mut read = 0;
            for row in self.admin.rows(TALLYING, call).await? {
                let waiting: i64 = self.column(TALLYING, &row, 1)?;
                let (rows, last): (i64, i64) = (
                    self.column(TALLYING, &row, 2)?,
                    self.column(TALLYING, &row, 3)?,
                );
                tally.add(self.column(TALLYING, &row, 0)?, waiting.unsigned_abs());
                read += rows;
                after = after.max(last);
            }
            if read < PAGE {
                return Ok(tally);
            }
        }
    }

    pub(super) async fn look_up(
        &self,
        events: &[(Option<i64>, Uuid)],
    ) -> Result<Vec<Option<Known>>, SourceError> {
        let ids: Vec<Uuid> = events.iter().map(|(_, id)| *id).collect();
        let call = query(self.sql.trace.text()).bind(ids);
        let rows = self.admin.rows(TRACING, call).await?;
        let mut known = Vec::with_capacity(rows.len());
        for row in &rows {
            let is = |place| self.column::<bool>(TRACING, row, place);
            known.push(Known::of(is(0)?, is(1)?, is(2)?));
        }
        Ok(known)
    }

    pub(super) async fn list_hands(
        &self,
        sink: &str,
        seqs: &[i64],
    ) -> Result<Vec<(i64, Hand)>, SourceError> {
        let call = query(self.sql.hands.text())
            .bind(sink.to_owned())
            .bind(seqs.to_vec());
        let mut hands = Vec::new();
        for row in self.admin.rows(TRACING, call).await? {
            let action: String = self.column(TRACING, &row, 1)?;
            if let Some(hand) = Hand::of(&action) {
                hands.push((self.column(TRACING, &row, 0)?, hand));
            }
        }
        Ok(hands)
    }
}

/// The first moment of the day in the name of a partition, as `make_partitions` writes it.
fn day_of(name: &str) -> Option<i64> {
    let digits = name.strip_prefix("published_")?;
    if digits.len() != 8 {
        return None;
    }
    let number = |from: usize, to: usize| digits.get(from..to)?.parse::<u16>().ok();
    let month = time::Month::try_from(u8::try_from(number(4, 6)?).ok()?).ok()?;
    let day = u8::try_from(number(6, 8)?).ok()?;
    let date = time::Date::from_calendar_date(i32::from(number(0, 4)?), month, day).ok()?;
    Some(date.midnight().assume_utc().unix_timestamp() * 1_000_000)
}

/// What to read for a window: of each day's partition its share, and of the rest what lies between those.
fn slices(window: Window, parts: &[Part]) -> Vec<Slice> {
    let mut days: Vec<(i64, i64)> = parts
        .iter()
        .filter_map(|part| Some((part.day?, part.blocks)))
        .collect();
    days.sort_unstable();
    let rest = parts.iter().find(|part| part.day.is_none());
    let rest = rest.map_or(0, |part| part.blocks);
    let mut slices = Vec::new();
    let mut add = |since: i64, until: i64, blocks: i64| {
        let window = Window {
            since: Timestamp(since.max(window.since.0)),
            until: Timestamp(until.min(window.until.0)),
        };
        if window.since < window.until && blocks > 0 {
            slices.push(Slice { window, blocks });
        }
    };
    let mut free = i64::MIN;
    for (day, blocks) in days {
        add(free, day, rest);
        add(day, day + DAY_US, blocks);
        free = day + DAY_US;
    }
    add(free, i64::MAX, rest);
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    const D1: i64 = 20_000 * DAY_US;

    fn part(day: Option<i64>, blocks: i64) -> Part {
        Part { day, blocks }
    }

    fn window(since: i64, until: i64) -> Window {
        Window {
            since: Timestamp(since),
            until: Timestamp(until),
        }
    }

    #[test]
    fn a_partition_is_named_after_its_day() {
        assert_eq!(day_of("published_19700102"), Some(DAY_US));
        assert_eq!(day_of("published_20240229"), Some(19_782 * DAY_US));
        for other in [
            "published_rest",
            "published_20241301",
            "published_2024022",
            "event",
        ] {
            assert_eq!(day_of(other), None, "{other}");
        }
    }

    #[test]
    fn each_moment_of_a_window_is_read_once_in_the_partition_that_takes_it() {
        let parts = [
            part(Some(D1 + DAY_US), 3),
            part(None, 9),
            part(Some(D1), 2),
            part(Some(D1 + 5 * DAY_US), 0),
        ];
        let found = slices(window(D1 - 5, D1 + 3 * DAY_US), &parts);
        let expected = [
            (D1 - 5, D1, 9),
            (D1, D1 + DAY_US, 2),
            (D1 + DAY_US, D1 + 2 * DAY_US, 3),
            (D1 + 2 * DAY_US, D1 + 3 * DAY_US, 9),
        ];
        let expected = expected.map(|(since, until, blocks)| Slice {
            window: window(since, until),
            blocks,
        });
        assert_eq!(found, expected);
        // Within one day, and with nothing in the rest.
        let found = slices(window(D1 + 5, D1 + 6), &[part(None, 0), part(Some(D1), 2)]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].window, window(D1 + 5, D1 + 6));
        // The ends of time, without a partition at all.
        let all = window(i64::MIN, i64::MAX);
        assert_eq!(slices(all, &[part(None, 1)])[0].window, all);
    }
}
