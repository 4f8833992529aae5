//! Typed handles that survive restarts, and tasks that end with their owner.

use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};

use ractor::{ActorRef, Message};
use tokio::task::JoinHandle;

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
