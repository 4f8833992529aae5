//! The reads and looks of an owner: started as tasks, taken in when they return.

use std::ops::RangeInclusive;
use std::sync::Arc;

use tracing::warn;

use super::active::{Active, Slot};
use super::feed::action::{CatchUpPlan, Origin, ReadPlan};
use super::{Look, LookedInto, Message, Seen};
use crate::actor::handle::guarded;
use crate::source::{ReadBounds, Row, Source, SourceError};
use crate::testing::fail_points::fail_point;

/// Most rows of a look into gaps.
const LOOK: u32 = 1_000;
/// Most rows read whole at once.
const FETCH: usize = 100;

impl Slot {
    /// Rows turned up in gaps: their keys wait for them.
    pub(super) fn late(&mut self, pairs: &[(i64, Option<Arc<str>>)], now: u64) {
        let news = self.feed.on_late(pairs, now);
        if !news.is_empty() {
            self.fetches.push_back((news, Origin::Gap));
        }
    }
}

impl Active {
    // ---- forward -----------------------------------------------------------------------------------

    /// Starts a forward read, if one is wanted and there is room for what it may bring.
    pub(super) fn read(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.reading || !slot.want_read {
            return;
        }
        let Some(plan) = slot.feed.plan_read() else {
            return;
        };
        slot.reading = true;
        slot.want_read = false;
        let read = slot.feed.recent_mut().read_began();
        let sink = Arc::clone(slot.feed.sink());
        let gaps = slot.feed.cursor().late_ranges();
        let (source, myself, epoch) = self.task();
        self.tasks.spawn(async move {
            let bounds = ReadBounds {
                rows: u32::try_from(plan.rows).unwrap_or(u32::MAX),
                bodies: u32::try_from(plan.bodies).unwrap_or(u32::MAX),
            };
            let call = source.read(&sink, plan.after, bounds, &plan.bare_keys);
            let result = match guarded(call).await {
                Ok(rows) => seen(&*source, rows, gaps).await,
                Err(error) => Err(error),
            };
            fail_point!(RowsRead if result.as_ref().is_ok_and(|seen| !seen.rows.is_empty()));
            let _ = myself.cast(Message::Read(epoch, index, read, plan, result));
        });
    }

    /// A forward read ended.
    pub(super) fn read_done(
        &mut self,
        index: usize,
        read: u64,
        plan: &ReadPlan,
        result: Result<Seen, SourceError>,
        now: u64,
    ) {
        let slot = &mut self.slots[index];
        slot.reading = false;
        match result {
            // Paused meanwhile: it is read again when it goes on.
            Ok(_) if slot.feed.is_held() => {
                slot.feed.read_failed(plan);
                slot.feed.recent_mut().read_ended(read);
                slot.want_read = true;
            }
            Ok(Seen { rows, late }) => {
                slot.late(&late, now);
                let count = rows.len();
                slot.dry = plan.ran_dry(&rows);
                slot.want_read |= !slot.dry;
                let actions = slot.feed.on_read(plan, rows, now);
                slot.feed.recent_mut().read_ended(read);
                // Every feed reads every row: one of them counts for all.
                if index == 0
                    && let Some((count, kinds)) = slot.feed.unrouted_mut().take_news()
                {
                    let database = &self.env.database;
                    self.env.telemetry.unrouted(database, count);
                    self.env
                        .board
                        .database(database, |shown| shown.unrouted = kinds);
                }
                slot.fetches.extend(slot.feed.take_expected());
                self.actions
                    .extend(actions.into_iter().map(|action| (index, action)));
                self.want_look |= !self.slots[index].feed.cursor().gaps().is_empty();
                self.pulse.polled(count as u64, now);
                if count > 0 {
                    self.active_at(now);
                }
                self.fine();
            }
            Err(error) => {
                slot.feed.read_failed(plan);
                slot.feed.recent_mut().read_ended(read);
                slot.want_read = true;
                self.trouble(&error, now);
            }
        }
    }

    // ---- keys that are behind ------------------------------------------------------------------------

    /// Starts a catch-up read, if keys wait for one.
    pub(super) fn catch_up(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.catching {
            return;
        }
        let Some(plan) = slot.feed.plan_catch_up() else {
            return;
        };
        slot.catching = true;
        let read = slot.feed.recent_mut().read_began();
        let sink = Arc::clone(slot.feed.sink());
        let gaps = slot.feed.cursor().late_ranges();
        let (source, myself, epoch) = self.task();
        self.tasks.spawn(async move {
            let result = async {
                let mut rows = Vec::new();
                if !plan.keys.is_empty() {
                    let per_key = u32::try_from(plan.per_key).unwrap_or(u32::MAX);
                    rows = guarded(source.read_keys(&sink, &plan.keys, per_key)).await?;
                }
                if !plan.alone.is_empty() {
                    rows.extend(guarded(source.read_seqs(&sink, &plan.alone)).await?);
                }
                seen(&*source, rows, gaps).await
            }
            .await;
            let _ = myself.cast(Message::CaughtUp(epoch, index, read, plan, result));
        });
    }

    /// A catch-up read ended.
    pub(super) fn caught_up(
        &mut self,
        index: usize,
        read: u64,
        plan: &CatchUpPlan,
        result: Result<Seen, SourceError>,
        now: u64,
    ) {
        let slot = &mut self.slots[index];
        slot.catching = false;
        match result {
            // Paused meanwhile: it is read again when it goes on.
            Ok(_) if slot.feed.is_held() => {
                slot.feed.catch_up_failed(plan);
                slot.feed.recent_mut().read_ended(read);
            }
            Ok(Seen { rows, late }) => {
                slot.late(&late, now);
                let actions = slot.feed.on_catch_up(plan, rows, now);
                slot.feed.recent_mut().read_ended(read);
                self.actions
                    .extend(actions.into_iter().map(|action| (index, action)));
                self.fine();
            }
            Err(error) => {
                slot.feed.catch_up_failed(plan);
                slot.feed.recent_mut().read_ended(read);
                self.trouble(&error, now);
            }
        }
    }

    // ---- rows by number --------------------------------------------------------------------------------

    /// Starts the next read by number.
    pub(super) fn fetch(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.fetching {
            return;
        }
        let (mut seqs, origin) = loop {
            let Some((seqs, origin)) = slot.fetches.pop_front() else {
                return;
            };
            let seqs = slot.feed.within_reach(seqs, origin);
            if !seqs.is_empty() {
                break (seqs, origin);
            }
        };
        // Large rows come one at a time: each may take the whole budget.
        let most = if origin == Origin::Large { 1 } else { FETCH };
        if seqs.len() > most {
            let rest = seqs.split_off(most);
            slot.fetches.push_front((rest, origin));
        }
        slot.fetching = true;
        if origin.hands_over() {
            slot.feed.fetch(&seqs);
        }
        let read = slot.feed.recent_mut().read_began();
        let sink = Arc::clone(slot.feed.sink());
        let (source, myself, epoch) = self.task();
        self.tasks.spawn(async move {
            let result = guarded(source.read_seqs(&sink, &seqs)).await;
            let _ = myself.cast(Message::Fetched(epoch, index, read, seqs, origin, result));
        });
    }

    /// Rows read by number arrived.
    pub(super) fn fetched(
        &mut self,
        index: usize,
        read: u64,
        seqs: &[i64],
        origin: Origin,
        result: Result<Vec<Row>, SourceError>,
        now: u64,
    ) {
        let slot = &mut self.slots[index];
        slot.fetching = false;
        match result {
            // Paused meanwhile: it is read again when it goes on.
            Ok(_) if slot.feed.is_held() => {
                slot.feed.fetch_failed(seqs, origin);
                slot.feed.recent_mut().read_ended(read);
                if origin != Origin::Large {
                    slot.fetches.push_front((seqs.to_vec(), origin));
                }
            }
            Ok(rows) => {
                let (actions, news) = slot.feed.on_fetched(seqs, rows, origin, now);
                slot.feed.recent_mut().read_ended(read);
                self.actions
                    .extend(actions.into_iter().map(|action| (index, action)));
                if origin == Origin::Sweep && news > 0 {
                    let database = &self.env.database;
                    self.env.telemetry.missed(database, news);
                    warn!(%database, count = news, "the sweep found events that reading forward missed; they are delivered now");
                }
                self.active_at(now);
                self.fine();
            }
            Err(error) => {
                slot.feed.fetch_failed(seqs, origin);
                slot.feed.recent_mut().read_ended(read);
                if origin != Origin::Large {
                    slot.fetches.push_front((seqs.to_vec(), origin));
                }
                self.trouble(&error, now);
            }
        }
    }

    // ---- gaps ---------------------------------------------------------------------------------------------

    /// Starts a look at the writers in flight and into the open gaps.
    pub(super) fn look(&mut self) {
        let gaps: Vec<_> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| !slot.feed.is_held())
            .map(|(index, slot)| (index, slot.feed.cursor().gaps().ranges()))
            .filter(|(_, ranges)| !ranges.is_empty())
            .collect();
        let armed = self.armed && self.pulse.watches();
        if self.looking || !self.want_look || (gaps.is_empty() && !armed) {
            return;
        }
        self.looking = true;
        self.want_look = false;
        let (source, myself, epoch) = self.task();
        self.tasks.spawn(async move {
            // Writers first: a writer seen here may show its row only to a look that begins later.
            let writers = guarded(source.writers()).await;
            let mut found = Vec::new();
            if writers.is_ok() {
                for (feed, asked) in gaps {
                    let pairs = guarded(source.probe(&asked, LOOK)).await;
                    found.push(LookedInto {
                        feed,
                        asked,
                        complete: pairs.as_ref().is_ok_and(|list| list.len() < LOOK as usize),
                        found: pairs,
                    });
                }
            }
            let look = Box::new(Look {
                armed,
                writers,
                gaps: found,
            });
            let _ = myself.cast(Message::Looked(epoch, look));
        });
    }

    /// A look ended.
    pub(super) fn looked(&mut self, look: Look, now: u64) {
        self.looking = false;
        let writers = match look.writers {
            Ok(writers) => writers,
            Err(error) => return self.trouble(&error, now),
        };
        if look.armed {
            self.pulse.observe(writers.as_ref());
        }
        let writers = writers.unwrap_or_default();
        for LookedInto {
            feed,
            asked,
            found,
            complete,
        } in look.gaps
        {
            let slot = &mut self.slots[feed];
            let cursor = slot.feed.cursor_mut();
            cursor.observe(&asked, &writers);
            match found {
                Ok(pairs) => {
                    let seen: Vec<i64> = pairs.iter().map(|(seq, _)| *seq).collect();
                    let closed = cursor.looked(&asked, &seen, complete);
                    let delivers = cursor.delivers_finds();
                    if !seen.is_empty() || closed {
                        slot.want_read |= !delivers;
                    }
                    if delivers {
                        slot.late(&pairs, now);
                    }
                }
                Err(error) => self.trouble(&error, now),
            }
        }
    }

    pub(super) fn task(
        &self,
    ) -> (
        Arc<dyn crate::source::Source>,
        ractor::ActorRef<Message>,
        u64,
    ) {
        (
            Arc::clone(&self.env.source),
            self.myself.clone(),
            self.epoch,
        )
    }
}

/// Looks into the open gaps behind a read that brought rows: what was committed before one of them may
/// stand there, and the read did not see it.
async fn seen(
    source: &dyn Source,
    rows: Vec<Row>,
    mut gaps: Vec<RangeInclusive<i64>>,
) -> Result<Seen, SourceError> {
    let mut late = Vec::new();
    while !rows.is_empty() && !gaps.is_empty() {
        let found = guarded(source.probe(&gaps, LOOK)).await?;
        let last = found.last().map(|(seq, _)| *seq);
        let complete = found.len() < LOOK as usize;
        late.extend(found);
        let Some(last) = last.filter(|_| !complete) else {
            break;
        };
        gaps.retain(|range| *range.end() > last);
        if let Some(first) = gaps.first_mut() {
            *first = (*first.start()).max(last.saturating_add(1))..=*first.end();
        }
    }
    Ok(Seen { rows, late })
}
