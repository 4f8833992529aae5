//! What looked wrong at first: looked up, looked for, excused, and only then counted.

use std::collections::HashSet;

use super::super::report::{Finding, Offender, Report};
use super::fate::{self, Fate};
use super::{
    Audit, HELD, HERE, History, JUDGED, MISSING, NAMED, NOWHERE, RECEIPT, RECORDED, Stranger,
    Unsure,
};
use crate::sink::trail::{Extent, Held, Start};
use crate::source::trail::{Delivered, Known, Tally};

impl Audit {
    /// Messages that had no receipt, to be looked up; each goes to [`Audit::know`].
    pub fn take_strangers(&mut self) -> Vec<Stranger> {
        std::mem::take(&mut self.strangers)
    }

    /// What the database knows of a stranger by now. True: nothing, and it should; [`Audit::phantom`] is next.
    pub fn know(&mut self, stranger: &Stranger, known: Option<Known>) -> bool {
        match known {
            Some(Known::Pending) => self.report.in_flight += 1,
            Some(Known::Published) => {}
            Some(Known::Discarded) => self.report.unjudged += 1,
            None if self.remembers(stranger) => return true,
            None => self.report.unjudged += 1,
        }
        false
    }

    /// Would the database remember this message, had it delivered it?
    fn remembers(&self, stranger: &Stranger) -> bool {
        let History {
            kept,
            horizon,
            reaches_back,
        } = self.scope.history;
        let begun = || {
            let known_before = self
                .first_known
                .is_some_and(|(place, _)| place < stranger.place);
            known_before && self.first_receipt.is_some_and(|at| at <= stranger.at)
        };
        kept && horizon <= stranger.at && (reaches_back || begun())
    }

    /// A stranger that the database knows nothing of, unless an operator dropped it.
    pub fn phantom(&mut self, stranger: &Stranger, dropped: bool) {
        if dropped {
            self.report.unjudged += 1;
            return;
        }
        self.report.without_row.add(|| Offender {
            id: stranger.id,
            seq: stranger.seq,
            key: stranger.key.as_deref().map(str::to_owned),
            position: Some(stranger.place),
            why: "neither the outbox nor its history nor the discarded events know it".to_owned(),
        });
    }

    /// Seqs that came behind later ones of their key: were they put back?
    pub fn late(&self) -> Vec<i64> {
        self.late.iter().map(|late| late.seq).collect()
    }

    /// An operator put these back: the stated exception to the order.
    pub fn excuse(&mut self, requeued: &HashSet<i64>) {
        let before = self.late.len();
        self.late.retain(|late| !requeued.contains(&late.seq));
        self.report.requeued += (before - self.late.len()) as u64;
    }

    /// Where the older part of the sink has to be read from, if what looks wrong may be explained there.
    pub fn look_back(&self, extent: &Extent) -> Option<Start> {
        let (first, last) = self.looked_at.unwrap_or((NOWHERE, 0));
        let older = extent.first < first && extent.first <= extent.last;
        let mut from = (older && !self.late.is_empty()).then_some(0);
        for event in self.events.values().filter(|event| event.is_missed()) {
            let place = match event.place {
                NOWHERE if older => 0,
                place if place > extent.last && older => 0,
                NOWHERE => continue,
                place if place < extent.first || place > extent.last => continue,
                place if first <= place && place <= last => continue,
                place => place,
            };
            from = Some(from.map_or(place, |from: u64| from.min(place)));
        }
        from.map(|place| match place {
            0 => Start::First,
            place => Start::Place(place),
        })
    }

    /// A message of the older part.
    pub fn earlier(&mut self, held: &Held) {
        if held.replay {
            self.replayed(held);
            return;
        }
        if let Some(event) = self.events.get_mut(held.id.as_bytes()) {
            event.stamp |= HELD;
        }
        // What looked late is the copy of one that came in time.
        let copies = self
            .late
            .extract_if(.., |late| late.id == held.id && held.place < late.place);
        for late in copies.collect::<Vec<_>>() {
            self.report.duplicated.add(|| Offender {
                id: late.id,
                seq: Some(late.seq),
                key: late.key.map(String::from),
                position: Some(late.place),
                why: format!("it stands at {} already", held.place),
            });
        }
    }

    /// Everything was read, and this is what the sink said afterwards. True: some events are missing, and the
    /// database's trail goes to [`Audit::name`] once more, since their names were not kept.
    pub fn missing(&mut self, extent: Extent) -> bool {
        for late in std::mem::take(&mut self.late) {
            self.report.out_of_order.add(|| Offender {
                id: late.id,
                seq: Some(late.seq),
                key: late.key.map(String::from),
                position: Some(late.place),
                why: format!("it came behind seq {} of its key", late.behind),
            });
        }
        if let Some(why) = &extent.lets_go.any {
            self.report.missing = Finding::not_checked(why);
        }
        let fate = Fate {
            extent: &extent,
            now: self.scope.now,
            first_known: self.first_known.map(|(_, at)| at),
        };
        let (mut found, base) = (false, self.base());
        for event in self.events.values_mut() {
            if event.is(RECORDED | JUDGED) && !event.is(HELD) && !event.is(HERE) {
                self.report.elsewhere += 1;
            }
            if !event.is_missed() {
                continue;
            }
            if fate.is_let_go(event.place, event.at(base)) {
                self.report.aged_out += 1;
            } else if extent.lets_go.any.is_none() {
                event.stamp |= MISSING;
                found = true;
            }
        }
        self.extent = Some(extent);
        found
    }

    /// A delivery by the database's word, once more: is it one of the missing?
    pub fn name(&mut self, delivered: &Delivered<'_>) {
        let Some(event) = self.events.get_mut(delivered.id.as_bytes()) else {
            return;
        };
        if !event.is(MISSING) || event.is(NAMED) {
            return;
        }
        event.stamp |= NAMED;
        let (event, extent) = (*event, self.extent.as_ref());
        if event.is(RECEIPT) {
            self.report.missing.add(|| Offender {
                id: delivered.id,
                seq: Some(delivered.seq),
                key: delivered.ordering_key.map(str::to_owned),
                position: Some(event.place).filter(|place| *place != NOWHERE),
                why: fate::why_missing(event.place, delivered.at, extent),
            });
        } else {
            let key = self.key_kept(self.unsure.len(), delivered.ordering_key);
            self.unsure.push(Unsure {
                seq: delivered.seq,
                id: delivered.id,
                key,
            });
        }
    }

    /// Seqs of events of which there is only a mark: were they put back for another sink, which marks this one done?
    pub fn unsure(&self) -> Vec<i64> {
        self.unsure.iter().map(|unsure| unsure.seq).collect()
    }

    /// An operator put these back.
    pub fn settle_unsure(&mut self, requeued: &HashSet<i64>) {
        for unsure in std::mem::take(&mut self.unsure) {
            if requeued.contains(&unsure.seq) {
                self.report.requeued += 1;
                continue;
            }
            self.report.missing.add(|| Offender {
                id: unsure.id,
                seq: Some(unsure.seq),
                key: unsure.key.map(String::from),
                position: None,
                why: fate::why_missing(NOWHERE, self.scope.now, None),
            });
        }
    }

    /// What came out. `pending` are the events of [`Tally`] that this sink is to have.
    pub fn report(mut self, tally: &Tally, pending: u64) -> Report {
        self.report.pending = pending;
        self.report.discarded = tally.discarded;
        self.report
            .missing
            .first
            .sort_by_key(|offender| offender.seq);
        self.remark();
        let clean = self
            .report
            .findings()
            .iter()
            .all(|(_, found)| found.count == 0);
        self.report.ok = clean;
        self.report
    }

    fn remark(&mut self) {
        let report = &mut self.report;
        let mut say = |words: String| report.remarks.push(words);
        if !self.scope.history.kept {
            say(
                "retention.published_keep is none, so only events that still wait for other sinks were looked for"
                    .to_owned(),
            );
        }
        if report.aged_out > 0
            && self
                .extent
                .as_ref()
                .is_some_and(|extent| extent.lets_go.all)
        {
            say(format!(
                "{} begins after some of these deliveries: what was rotated away was not read",
                self.scope.container
            ));
        }
        if report.elsewhere > 0 {
            say(format!(
                "receipts name another place than {}: it was configured otherwise when they were written",
                self.scope.container
            ));
        }
    }
}
