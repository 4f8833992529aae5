//! One database and one sink: reads both trails, in the order that makes no false report.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::Duration;

use uuid::Uuid;

use super::SLACK;
use super::audit::{Audit, History, Scope, Stranger, TooMany};
use super::report::{Finding, Report};
use crate::event::Timestamp;
use crate::route::Routes;
use crate::sink::trail::{Readback, Start, Trail};
use crate::sink::{Sink, SinkError};
use crate::source::admin::Admin;
use crate::source::trail::{Hand, Tally, Window};
use crate::source::{PublishedKeep, SourceError};

/// Events looked up by one statement.
const PAGE: usize = 2_000;

/// Events asked for in the audit by one statement, which walks it.
const AUDIT_PAGE: usize = 100_000;

/// What is compared.
pub struct Feed<'a> {
    /// Name of the database, as message ids carry it.
    pub database: &'a str,
    /// The database.
    pub admin: &'a dyn Admin,
    /// Name of the sink, as the database knows it.
    pub name: &'a str,
    /// The sink.
    pub sink: &'a dyn Sink,
    /// Which pending events are for it.
    pub routes: &'a Routes,
    /// What is judged.
    pub window: Window,
    /// What the relay keeps of published events.
    pub keep: PublishedKeep,
    /// How long it keeps that.
    pub retention: Duration,
    /// Most events; [`MOST_EVENTS`](super::MOST_EVENTS) unless a test says less.
    pub most: usize,
}

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The sink could not be read, though it can be in principle.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The window is too large.
    #[error(transparent)]
    TooMany(#[from] TooMany),
}

/// Compares what a database delivered to a sink with what the sink holds.
///
/// Changes nothing, at either. Dropping the future ends it; a consumer that was reading a stream is then forgotten by
/// its server within half a minute.
///
/// # Errors
/// [`Error`]: either could not be read, or the window holds too much.
pub async fn feed(feed: &Feed<'_>) -> Result<Report, Error> {
    let tally = feed.admin.tally(feed.name, feed.window).await?;
    let mut trail = match feed.sink.trail(feed.database).await? {
        Readback::Trail(trail) => trail,
        Readback::No(why) => return feed.alone(&tally, &why).await,
    };
    let compared = feed.compare(&mut *trail, &tally).await;
    trail.close().await;
    compared
}

impl Feed<'_> {
    async fn compare(&self, trail: &mut dyn Trail, tally: &Tally) -> Result<Report, Error> {
        let extent = trail.extent().await?;
        let mut audit = Audit::new(
            self.scope(extent.container, tally),
            self.database,
            self.name,
        );
        self.record(&mut audit).await?;
        let slack = SLACK.as_micros() as i64;
        let read = self.window.widened(slack);
        trail.begin(Start::Time(read.since)).await?;
        'reading: while let Some(messages) = trail.next().await? {
            for held in &messages {
                if extent.in_time_order && held.at >= read.until {
                    break 'reading;
                }
                audit.message(held)?;
            }
        }
        self.look_up(&mut audit).await?;
        let late = self.hands(&audit.late(), Hand::Requeued).await?;
        audit.excuse(&late);
        let extent = trail.extent().await?;
        if let Some(start) = audit.look_back(&extent) {
            trail.begin(start).await?;
            while let Some(messages) = trail.next().await? {
                messages.iter().for_each(|held| audit.earlier(held));
            }
        }
        if audit.missing(trail.extent().await?) {
            self.walk(&mut |delivered| {
                audit.name(&delivered);
                ControlFlow::Continue(())
            })
            .await?;
            let requeued = self.hands(&audit.unsure(), Hand::Requeued).await?;
            audit.settle_unsure(&requeued);
        }
        Ok(audit.report(tally, self.pending(tally)))
    }

    /// The sink cannot be read: only the database's word is told.
    async fn alone(&self, tally: &Tally, why: &str) -> Result<Report, Error> {
        let mut audit = Audit::new(self.scope(String::new(), tally), self.database, self.name);
        self.record(&mut audit).await?;
        let mut report = audit.report(tally, self.pending(tally));
        report.read_back = false;
        for found in [
            &mut report.missing,
            &mut report.without_row,
            &mut report.duplicated,
            &mut report.out_of_order,
        ] {
            *found = Finding::not_checked(why);
        }
        report.remarks = vec![format!("{why}; only the database was checked")];
        Ok(report)
    }

    fn scope(&self, container: String, tally: &Tally) -> Scope {
        let now = Timestamp::now();
        // What is about to be purged may be purged while this looks.
        let kept = self.retention.saturating_sub(SLACK);
        let kept = i64::try_from(kept.as_micros()).unwrap_or(i64::MAX);
        Scope {
            window: self.window,
            now,
            container,
            history: History {
                kept: self.keep != PublishedKeep::None,
                horizon: Timestamp(now.0.saturating_sub(kept)),
                reaches_back: tally.reaches_back,
            },
            most: self.most,
        }
    }

    async fn record(&self, audit: &mut Audit) -> Result<(), Error> {
        let mut full = None;
        self.walk(&mut |delivered| match audit.record(&delivered) {
            Ok(()) => ControlFlow::Continue(()),
            Err(too_many) => {
                full = Some(too_many);
                ControlFlow::Break(())
            }
        })
        .await?;
        full.map_or(Ok(()), |too_many| Err(too_many.into()))
    }

    async fn walk(&self, take: crate::source::trail::Take<'_>) -> Result<(), SourceError> {
        let read = self.window.widened(SLACK.as_micros() as i64);
        self.admin.trail(self.name, read, take).await
    }

    /// Looks up messages without a receipt, after they were read: whatever was stored has its row by then, in the
    /// outbox, the history or the discarded events.
    async fn look_up(&self, audit: &mut Audit) -> Result<(), SourceError> {
        let mut unknown: Vec<Stranger> = Vec::new();
        for page in audit.take_strangers().chunks(PAGE) {
            let events: Vec<(Option<i64>, Uuid)> = page
                .iter()
                .map(|stranger| (stranger.seq, stranger.id))
                .collect();
            let known = self.admin.trace(&events).await?;
            for (stranger, known) in page.iter().zip(known) {
                if audit.know(stranger, known) {
                    unknown.push(stranger.clone());
                }
            }
        }
        let seqs: Vec<i64> = unknown.iter().filter_map(|stranger| stranger.seq).collect();
        let dropped = self.hands(&seqs, Hand::Dropped).await?;
        for stranger in &unknown {
            let was_dropped = stranger.seq.is_some_and(|seq| dropped.contains(&seq));
            audit.phantom(stranger, was_dropped);
        }
        Ok(())
    }

    /// To which of these events operators did this.
    async fn hands(&self, seqs: &[i64], hand: Hand) -> Result<HashSet<i64>, SourceError> {
        let mut found = HashSet::new();
        for page in seqs.chunks(AUDIT_PAGE) {
            let hands = self.admin.hands(self.name, page).await?;
            let of_this = hands.into_iter().filter(|(_, done)| *done == hand);
            found.extend(of_this.map(|(seq, _)| seq));
        }
        Ok(found)
    }

    /// Pending events that a route leads to this sink.
    fn pending(&self, tally: &Tally) -> u64 {
        let own = tally.pending.iter();
        let own = own.filter(|(kind, _)| self.routes.to_sink(kind, self.name).is_some());
        own.map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests;
