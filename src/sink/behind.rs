//! Which events of a batch stand behind one that failed.

use std::collections::HashSet;
use std::sync::Arc;

use super::PublishError;
use crate::event::Event;

/// The keys of a batch of which an event has failed.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    keys: HashSet<Arc<str>>,
}

impl Behind {
    /// Tries something for an event, unless one of its key failed before.
    ///
    /// # Errors
    /// What `attempt` says, or [`PublishErrorKind::Behind`](super::PublishErrorKind::Behind).
    pub(crate) fn unless<T>(
        &mut self,
        event: &Event,
        attempt: impl FnOnce() -> Result<T, PublishError>,
    ) -> Result<T, PublishError> {
        // Nearly always nothing has failed.
        if !self.keys.is_empty() && self.includes(event) {
            return Err(PublishError::behind());
        }
        let result = attempt();
        if result.is_err() {
            self.add(event);
        }
        result
    }

    /// An event of its key has failed.
    pub(crate) fn includes(&self, event: &Event) -> bool {
        let key = event.ordering_key.as_ref();
        key.is_some_and(|key| self.keys.contains(key))
    }

    /// This event has failed.
    pub(crate) fn add(&mut self, event: &Event) {
        self.keys.extend(event.ordering_key.clone());
    }
}
