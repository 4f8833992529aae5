//! The wake-up channel: opened beside the actor, tested, reopened, and only ever a hint.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use ractor::ActorRef;
use tracing::{debug, error, info, warn};

use super::{Message, Phase, State};
use crate::actor::handle::Task;
use crate::actor::handle::panic_text;
use crate::source::{Listener, Source};

/// Limit for opening the channel.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// How often a silent channel is tested, and how long the answer may take.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBE_LIMIT: Duration = Duration::from_secs(4);
/// Pause before the channel is opened again.
const REOPEN: Duration = Duration::from_secs(1);

impl State {
    /// Starts the channel, once.
    pub(super) fn listen(&mut self) {
        if self.listener.is_none() {
            let channel = Channel {
                database: Arc::clone(&self.arguments.database),
                source: Arc::clone(&self.arguments.source),
                claimer: self.myself.clone(),
                pending: Arc::clone(&self.wake_pending),
                quiet: Arc::clone(&self.quiet),
                lost: std::mem::take(&mut self.channel_lost),
            };
            self.listener = Some(Task::spawn(async move {
                // A panic ends this attempt, not the channel: nobody would open it again.
                while let Err(panic) = AssertUnwindSafe(channel.run()).catch_unwind().await {
                    channel.panicked(panic).await;
                }
            }));
        }
    }

    /// Something was written.
    pub(super) fn wake(&mut self) {
        self.wake_pending.store(false, Ordering::Release);
        let now = self.now();
        match &mut self.phase {
            Phase::Active(active) => active.woken(now),
            Phase::Quiet => {
                info!(database = %self.arguments.database, "woken up");
                self.open(self.epoch);
            }
            _ => {}
        }
    }

    /// The channel opened or was lost.
    pub(super) fn listening(&mut self, open: bool) {
        self.channel_open = open;
        let database = &self.arguments.database;
        self.arguments
            .board
            .database(database, |shown| shown.listening = open);
        match &mut self.phase {
            Phase::Active(active) => active.channel(open),
            // What was written while the channel was down woke nobody.
            Phase::Quiet => self.open(self.epoch),
            _ => {}
        }
    }
}

struct Channel {
    database: Arc<str>,
    source: Arc<dyn Source>,
    claimer: ActorRef<Message>,
    /// A wake-up is in the mailbox already: the mailbox is unbounded, this is its bound.
    pending: Arc<AtomicBool>,
    quiet: Arc<AtomicBool>,
    /// The one before was lost, and said so.
    lost: bool,
}

impl Channel {
    async fn panicked(&self, panic: Box<dyn std::any::Any + Send>) {
        let (database, words) = (&self.database, panic_text(&*panic).to_owned());
        drop(panic);
        error!(%database, panic = words, "wake-up channel panicked; polling until it is open again");
        let _ = self.claimer.cast(Message::Listening(false));
        tokio::time::sleep(REOPEN).await;
    }

    async fn run(&self) {
        let mut failed = self.lost;
        loop {
            let database = &self.database;
            match tokio::time::timeout(OPEN_LIMIT, self.source.listen()).await {
                Ok(Ok(None)) => return,
                Ok(Ok(Some(listener))) => {
                    if failed {
                        info!(%database, "wake-up channel is open again");
                    }
                    let _ = self.claimer.cast(Message::Listening(true));
                    let reason = self.follow(listener).await;
                    warn!(%database, %reason, "wake-up channel lost; polling until it is open again");
                    failed = true;
                    let _ = self.claimer.cast(Message::Listening(false));
                }
                Ok(Err(error)) => debug!(%database, %error, "wake-up channel cannot be opened"),
                Err(_) => debug!(%database, "wake-up channel: no answer"),
            }
            tokio::time::sleep(REOPEN).await;
        }
    }

    /// Passes wake-ups on until the channel breaks; returns why.
    async fn follow(&self, mut listener: Box<dyn Listener>) -> String {
        loop {
            match tokio::time::timeout(PROBE_EVERY, listener.wait()).await {
                Ok(Ok(())) => {
                    if !self.pending.swap(true, Ordering::AcqRel) {
                        let _ = self.claimer.cast(Message::Wake);
                    }
                }
                Ok(Err(error)) => return error.to_string(),
                Err(_) if self.quiet.load(Ordering::Acquire) => {}
                Err(_) => match tokio::time::timeout(PROBE_LIMIT, listener.probe()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return "it does not answer".into(),
                },
            }
        }
    }
}
