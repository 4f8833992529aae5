//! Who waits for which answer on one connection.
//!
//! A session has one inbox with a wildcard; each question gets a number in it as reply subject, and each batch a
//! name, below which its messages have theirs. An entry goes when its answer comes, when whoever asked stops waiting, and
//! when the connection is lost, so nothing leaks.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{Message, StatusCode, Subject};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::answer::Ack;
use super::fast::{
    self,
    word::{self, Word},
};
use crate::sink::lost::Lost;

/// Subjects remembered as forbidden; beyond it the memory starts anew.
const FORBIDDEN: usize = 1_024;

/// Words that wait for a batch, at most: more than one for each of its messages.
const WORDS: usize = 2 * fast::MESSAGES;

/// An answer.
#[derive(Debug)]
pub(super) enum Reply {
    /// A stream's word on a publish.
    Ack(Ack),
    /// The body of any other answer.
    Body(Bytes),
    /// Nobody listens on the subject: no stream has it.
    NoResponders,
    /// The server forbids publishing to the subject.
    Forbidden,
}

/// What kind of answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// A publish; only a stream can answer it.
    Publish,
    /// A request.
    Request,
}

/// All who wait on one connection.
#[derive(Debug)]
pub(super) struct Inbox {
    prefix: String,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiter>>,
    /// Batches under way, by number.
    batches: Mutex<HashMap<u64, mpsc::Sender<Word>>>,
    forbidden: Mutex<HashSet<String>>,
    pub(super) lost: Lost,
}

#[derive(Debug)]
struct Waiter {
    subject: Subject,
    question: Question,
    /// Somebody answered who is no stream.
    foreign: bool,
    answer: oneshot::Sender<Reply>,
}

impl Inbox {
    /// An inbox below `prefix`, which nobody else may use.
    pub(super) fn new(prefix: String) -> Self {
        Self {
            prefix,
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            batches: Mutex::default(),
            forbidden: Mutex::default(),
            lost: Lost::new(),
        }
    }

    /// The pattern to subscribe to.
    pub(super) fn pattern(&self) -> String {
        format!("{}.>", self.prefix)
    }

    /// Registers a batch before it begins.
    ///
    /// # Errors
    /// The reason for which the connection was lost.
    pub(super) fn begin_batch(self: &Arc<Self>) -> Result<Batch, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (said, words) = mpsc::channel(WORDS);
        lock(&self.batches).insert(number, said);
        let batch = Batch {
            inbox: Arc::clone(self),
            number,
            words,
        };
        // Looked at after the entry is in, as for a question.
        match self.lost.reason() {
            Some(reason) => Err(reason),
            None => Ok(batch),
        }
    }

    /// Registers a question before it is sent.
    ///
    /// # Errors
    /// The reason for which the connection was lost.
    pub(super) fn expect(
        self: &Arc<Self>,
        subject: impl Into<Subject>,
        question: Question,
    ) -> Result<Expected, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, reply) = oneshot::channel();
        let waiter = Waiter {
            subject: subject.into(),
            question,
            foreign: false,
            answer,
        };
        self.waiting().insert(number, waiter);
        let expected = Expected {
            inbox: Arc::clone(self),
            number,
            reply,
            done: false,
        };
        // Looked at after the entry is in: whoever loses the connection from now on finds it there.
        match self.lost.reason() {
            Some(reason) => Err(reason),
            None => Ok(expected),
        }
    }

    /// Passes an answer on to whoever waits for it.
    pub(super) fn answered(&self, message: Message) {
        if let Some((number, word)) = word::read(&message) {
            if let Some(batch) = lock(&self.batches).get(&number) {
                // What does not fit is asked for again.
                let _ = batch.try_send(word);
            }
            return;
        }
        let Some(number) = number_of(&message.subject) else {
            return;
        };
        let mut waiting = self.waiting();
        let Some(waiter) = waiting.get_mut(&number) else {
            // It came too late.
            return;
        };
        let reply = if message.status == Some(StatusCode::NO_RESPONDERS) {
            Reply::NoResponders
        } else if waiter.question == Question::Request {
            Reply::Body(message.payload)
        } else if let Some(ack) = Ack::read(&message.payload) {
            Reply::Ack(ack)
        } else {
            // A subscriber that answers everything it hears; the stream's own answer may still come.
            waiter.foreign = true;
            return;
        };
        if let Some(waiter) = waiting.remove(&number) {
            drop(waiting);
            self.allow(&waiter.subject);
            let _ = waiter.answer.send(reply);
        }
    }

    /// The server said that `subject` may not be published to, without saying which message it meant.
    pub(super) fn forbid(&self, subject: &str) {
        let mut forbidden = lock(&self.forbidden);
        if forbidden.len() >= FORBIDDEN {
            forbidden.clear();
        }
        forbidden.insert(subject.to_owned());
        drop(forbidden);
        let refused = self
            .waiting()
            .extract_if(|_, waiter| &*waiter.subject == subject)
            .collect::<Vec<_>>();
        for (_, waiter) in refused {
            let _ = waiter.answer.send(Reply::Forbidden);
        }
        for batch in lock(&self.batches).values() {
            let _ = batch.try_send(Word::Forbidden);
        }
    }

    /// Was `subject` forbidden, and nothing heard about it since?
    pub(super) fn is_forbidden(&self, subject: &str) -> bool {
        lock(&self.forbidden).contains(subject)
    }

    fn allow(&self, subject: &str) {
        let mut forbidden = lock(&self.forbidden);
        if !forbidden.is_empty() {
            forbidden.remove(subject);
        }
    }

    /// The connection is gone: nobody will get an answer any more.
    pub(super) fn lose(&self, reason: impl Into<String>) {
        self.lost.set(reason);
        self.waiting().clear();
        lock(&self.batches).clear();
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Waiter>> {
        lock(&self.waiting)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number_of(subject: &str) -> Option<u64> {
    subject.rsplit_once('.')?.1.parse().ok()
}

/// A batch that was registered; dropping it forgets it.
#[derive(Debug)]
pub(super) struct Batch {
    inbox: Arc<Inbox>,
    number: u64,
    words: mpsc::Receiver<Word>,
}

impl Batch {
    /// What the reply subjects of its messages begin with: the inbox and the batch's name, which no other batch has,
    /// of whomever.
    pub(super) fn address(&self) -> String {
        let prefix = &self.inbox.prefix;
        let unique = prefix.rsplit('.').next().unwrap_or_default();
        format!("{prefix}.{unique}-{}", self.number)
    }

    /// The next word about it; `None` when the connection was lost. Cancel-safe.
    pub(super) async fn word(&mut self) -> Option<Word> {
        self.words.recv().await
    }

    /// A word that is there already.
    pub(super) fn word_at_once(&mut self) -> Option<Word> {
        self.words.try_recv().ok()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        lock(&self.inbox.batches).remove(&self.number);
    }
}

/// A question that was registered; dropping it forgets it.
#[derive(Debug)]
pub(super) struct Expected {
    inbox: Arc<Inbox>,
    number: u64,
    reply: oneshot::Receiver<Reply>,
    /// Nothing is registered any more.
    done: bool,
}

impl Expected {
    /// The reply subject to send with the question.
    pub(super) fn reply_to(&self) -> String {
        let prefix = &self.inbox.prefix;
        let mut text = String::with_capacity(prefix.len() + 1 + u64::MAX.ilog10() as usize + 1);
        // Writing to a String cannot fail.
        let _ = write!(text, "{prefix}.{}", self.number);
        text
    }

    /// Waits for the answer; `None` when the connection was lost. Cancel-safe.
    pub(super) async fn reply(&mut self) -> Option<Reply> {
        let reply = (&mut self.reply).await.ok();
        self.done = true;
        reply
    }

    /// Did somebody answer who is no stream?
    pub(super) fn is_foreign(&self) -> bool {
        let waiting = self.inbox.waiting();
        waiting
            .get(&self.number)
            .is_some_and(|waiter| waiter.foreign)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        if !self.done {
            self.inbox.waiting().remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn inbox() -> Arc<Inbox> {
        Arc::new(Inbox::new("_INBOX.x".to_owned()))
    }

    fn message(subject: String, payload: &'static str) -> Message {
        Message {
            subject: subject.into(),
            reply: None,
            payload: Bytes::from_static(payload.as_bytes()),
            headers: None,
            status: payload.is_empty().then_some(StatusCode::NO_RESPONDERS),
            description: None,
            length: 0,
        }
    }

    #[tokio::test]
    async fn each_answer_finds_its_question_and_nothing_is_kept() {
        let inbox = inbox();
        let mut first = inbox.expect("a", Question::Publish).unwrap();
        let mut second = inbox.expect("a", Question::Publish).unwrap();
        let forgotten = inbox.expect("a", Question::Publish).unwrap();
        let late = forgotten.reply_to();
        drop(forgotten);
        inbox.answered(message(second.reply_to(), ""));
        inbox.answered(message(first.reply_to(), r#"{"stream":"S","seq":1}"#));
        inbox.answered(message(late, r#"{"stream":"S","seq":2}"#));
        assert!(matches!(first.reply().await, Some(Reply::Ack(_))));
        assert!(matches!(second.reply().await, Some(Reply::NoResponders)));
        assert!(inbox.waiting().is_empty());
    }

    #[tokio::test]
    async fn an_answer_from_no_stream_is_noted_and_passed_over() {
        let inbox = inbox();
        let mut expected = inbox.expect("a", Question::Publish).unwrap();
        inbox.answered(message(expected.reply_to(), "pong"));
        assert!(expected.is_foreign());
        inbox.answered(message(expected.reply_to(), r#"{"stream":"S","seq":1}"#));
        assert!(matches!(expected.reply().await, Some(Reply::Ack(_))));
    }

    #[tokio::test]
    async fn a_forbidden_subject_ends_its_questions_only() {
        let inbox = inbox();
        let mut refused = inbox.expect("a", Question::Publish).unwrap();
        let mut other = inbox.expect("b", Question::Publish).unwrap();
        inbox.forbid("a");
        assert!(matches!(refused.reply().await, Some(Reply::Forbidden)));
        assert!(inbox.is_forbidden("a") && !inbox.is_forbidden("b"));
        inbox.answered(message(other.reply_to(), ""));
        assert!(matches!(other.reply().await, Some(Reply::NoResponders)));
    }

    #[tokio::test]
    async fn a_lost_connection_ends_every_question() {
        let inbox = inbox();
        let mut expected = inbox.expect("a", Question::Publish).unwrap();
        inbox.lose("gone");
        assert!(expected.reply().await.is_none());
        assert_eq!(inbox.expect("a", Question::Publish).unwrap_err(), "gone");
        assert!(inbox.waiting().is_empty());
    }
}
