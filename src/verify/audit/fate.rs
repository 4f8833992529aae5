//! What may have become of a delivered event that a sink does not hold.

use super::{NOWHERE, slack};
use crate::event::Timestamp;
use crate::sink::trail::Extent;

/// What a sink says about itself, for the question whether it let something go.
pub(super) struct Fate<'a> {
    pub(super) extent: &'a Extent,
    pub(super) now: Timestamp,
    /// When the first message that it holds was written down as delivered.
    pub(super) first_known: Option<Timestamp>,
}

impl Fate<'_> {
    /// Do the sink's own limits explain that it does not hold what was delivered at this moment, at this place?
    pub(super) fn is_let_go(&self, place: u64, at: Timestamp) -> bool {
        let limits = &self.extent.lets_go;
        if let Some(age) = limits.after {
            let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
            let old = |at: Timestamp| {
                let boundary = self.now.0.saturating_sub(age);
                at.0 <= boundary.saturating_add(slack())
            };
            // A settlement may come long after the message was stored; what stands before a first message that is about
            // to go is older than that one.
            let oldest = self.extent.first_at.is_some_and(old);
            if old(at) || oldest && place < self.extent.first {
                return true;
            }
        }
        if limits.all {
            // Receipts of what was rotated away are older than those of what came after it.
            return self.first_known.is_none_or(|first| at <= first);
        }
        let made_since = self
            .extent
            .created
            .is_some_and(|created| created.0 > at.0.saturating_add(slack()));
        limits.oldest
            && !made_since
            && match place {
                NOWHERE => self
                    .extent
                    .first_at
                    .is_none_or(|first| at.0 <= first.0.saturating_add(slack())),
                place => place < self.extent.first,
            }
    }
}

/// Why an event counts as missing, as far as anybody can tell.
pub(super) fn why_missing(place: u64, at: Timestamp, extent: Option<&Extent>) -> String {
    let Some(extent) = extent else {
        return "the sink does not hold it".to_owned();
    };
    let name = &extent.container;
    if extent.created.is_some_and(|created| created > at) {
        format!("{name} was made anew since it was delivered")
    } else if place == NOWHERE {
        format!("it is nowhere in {name}, and its receipt names no place")
    } else if place > extent.last {
        format!("{name} ends before its place: it was made anew")
    } else if place < extent.first {
        format!("{name} begins behind its place, and no limit explains that: it was purged")
    } else {
        "it is gone from its place, and nowhere else".to_owned()
    }
}
