//! How a session ends: once, with a reason, seen by everyone.

use tokio::sync::watch;

/// The end of a session. The first reason stays.
#[derive(Debug)]
pub(crate) struct Lost(watch::Sender<Option<String>>);

impl Lost {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Ends the session; `false` when it had ended before.
    pub(crate) fn set(&self, reason: impl Into<String>) -> bool {
        self.0.send_if_modified(|slot| {
            let first = slot.is_none();
            if first {
                *slot = Some(reason.into());
            }
            first
        })
    }

    /// The reason, once it has ended.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// Resolves when it ends. Cancel-safe.
    pub(crate) async fn wait(&self) -> String {
        let mut changes = self.0.subscribe();
        loop {
            if let Some(reason) = changes.borrow_and_update().clone() {
                return reason;
            }
            if changes.changed().await.is_err() {
                // The sender is `self`, so it is alive; waiting on is the only honest answer.
                std::future::pending::<()>().await;
            }
        }
    }
}
