//! Typed handles that survive restarts, and tasks that end with their owner.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::FutureExt;
use ractor::{ActorRef, Message};
use tokio::task::JoinHandle;

use crate::source::{SourceError, SourceErrorKind};

/// Where the present incarnation of an actor is found. The parent sets it, everybody else only sends.
#[derive(Debug)]
pub struct Handle<M: Message>(Arc<RwLock<Option<ActorRef<M>>>>);

impl<M: Message> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Message> Default for Handle<M> {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(None)))
    }
}

impl<M: Message> Handle<M> {
    /// The incarnation to send to from now on.
    pub fn set(&self, actor: Option<ActorRef<M>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = actor;
    }

    /// The present incarnation.
    pub fn get(&self) -> Option<ActorRef<M>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sends, if there is someone. False: the message was dropped.
    pub fn send(&self, message: M) -> bool {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match &*guard {
            Some(actor) => actor.cast(message).is_ok(),
            None => false,
        }
    }
}

/// A call to a source whose panic is an error like any other: whoever waits for the answer gets one.
pub(super) async fn guarded<T>(
    call: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    match AssertUnwindSafe(call).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => Err(SourceError::new(
            SourceErrorKind::Unavailable,
            format!("the source panicked: {}", panic_text(&*panic)),
        )),
    }
}

/// The text of a panic, if it has one.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// A spawned task that is aborted when its owner goes.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

impl Task {
    /// Spawns.
    pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
