//! Fast-ingest batches (nats-server 2.14, streams with `allow_batched`): messages are stored as they come, in their
//! order and without a hole, and acknowledged together.
//!
//! ```text
//!   first message ──> flow word ──> the other messages ··> flow words ──> last message ──> end, with a count
//!                                         └─ one is refused or missing ──────────────────> end before it
//! ```
//!
//! Always in gap mode `fail`, in which a batch ends before the first message that is not stored: what is stored is
//! a beginning of what was sent. Source: NATS ADR-50, "Fast-ingest Batch Publishing"; tried against 2.15.1, servers
//! that were killed and clusters that changed their leader included.

use std::time::Duration;

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use tokio::time::Instant;

use super::answer::{self, Ack};
use super::batch::Answers;
use super::inbox::Batch;
use super::session::{Message, NatsSession, forbidden, no_responders};
use super::time::Time;
use crate::sink::{PublishError, PublishErrorKind, Receipt};

pub(super) mod word;

use word::{Operation, Word, reply_to};

/// Messages of one batch, at most. A server words its flow at most this far apart.
pub(super) const MESSAGES: usize = 500;
/// Flow words that may be outstanding.
const OUTSTANDING: u64 = 2;
/// Messages that may be outstanding from the start. A server that has a batch under way grants the next one a single
/// message, and twice as many with each word: a round trip each time. All lanes together stay below what a client without
/// batches has waiting at its best.
const AHEAD: u64 = MESSAGES as u64 / 2;
/// After this much silence the server is asked how far it is.
const SILENCE: Duration = Duration::from_secs(1);
/// To tell the server that a batch is over, when nothing is heard of it any more.
const FAREWELL: Duration = Duration::from_millis(50);

/// "Batch publish ID is unknown".
const UNKNOWN_BATCH: u32 = 10_208;
/// "Batch publish not enabled on stream".
const NOT_ENABLED: u32 = 10_205;

/// A batch on its way.
struct Sending<'a> {
    session: &'a NatsSession,
    time: &'a Time,
    /// The next word is late after this.
    answer_by: Instant,
    batch: Batch,
    address: String,
    /// What was not sent yet.
    messages: std::vec::IntoIter<Message>,
    /// Of all messages, in their order.
    subjects: Vec<Subject>,
    flow: u16,
    /// Messages sent.
    sent: u64,
    /// Messages known to be stored.
    stored: u64,
    /// Messages between flow words; 0: the server has not answered yet.
    every: u64,
    /// The first message that was refused.
    refused: Option<Refusal>,
    /// One is missing: nothing more is taken.
    over: bool,
    /// The server knows the batch no longer, and says nothing more about it.
    forgotten: bool,
    ended: Option<(u64, Ack)>,
}

/// A message that was not taken.
struct Refusal {
    /// Its place in the batch.
    seq: u64,
    error: PublishError,
    /// Nobody takes the subject, or somebody else does.
    of_subject: bool,
    /// It is known to be this one, so neither it nor one behind it is stored, however the batch ends.
    certain: bool,
}

impl Refusal {
    /// Does it say something about this message or its subject, so that others need not fail with it?
    fn is_its_own(&self) -> bool {
        match self.error.kind {
            PublishErrorKind::Unavailable { .. } => self.of_subject,
            PublishErrorKind::Retryable
            | PublishErrorKind::Panicked
            | PublishErrorKind::Rejected { .. } => true,
            PublishErrorKind::Full | PublishErrorKind::Unknown | PublishErrorKind::Behind => false,
        }
    }
}

/// What became of a batch.
pub(super) struct Outcome {
    pub(super) answers: Answers,
    /// So many of the first messages are stored, or known to the stream.
    pub(super) stored: usize,
    /// Some of those were passed over: the stream grew by fewer, or names no place.
    pub(super) passed_over: bool,
    /// The message that ended the batch, when it was this message's own fault.
    pub(super) refused: Option<usize>,
}

/// Why a batch is not waited for any longer.
enum Cut {
    /// The connection was lost.
    Lost,
    /// The time was over.
    Late,
}

impl NatsSession {
    /// Publishes messages as one batch. `before` is the stream's highest place that was heard of until now.
    pub(super) async fn publish_fast(
        &self,
        messages: Vec<Message>,
        before: u64,
        time: &Time,
    ) -> Outcome {
        let behind = || Err(PublishError::behind());
        let batch = match self.link().inbox().begin_batch() {
            Ok(batch) => batch,
            Err(reason) => {
                let mut answers = vec![Err(PublishError::connection_lost(reason))];
                answers.resize_with(messages.len(), behind);
                return Outcome {
                    answers,
                    stored: 0,
                    passed_over: false,
                    refused: None,
                };
            }
        };
        let mut sending = Sending {
            session: self,
            time,
            answer_by: time.answer_by(),
            address: batch.address(),
            batch,
            flow: u16::try_from(messages.len()).unwrap_or(u16::MAX),
            subjects: messages.iter().map(|one| one.subject.clone()).collect(),
            messages: messages.into_iter(),
            sent: 0,
            stored: 0,
            every: 0,
            refused: None,
            over: false,
            forgotten: false,
            ended: None,
        };
        let cut = sending.run().await.err();
        if matches!(cut, Some(Cut::Late)) {
            sending.give_up().await;
        }
        sending.judge(cut, before)
    }
}

impl Sending<'_> {
    async fn run(&mut self) -> Result<(), Cut> {
        let asked = Instant::now();
        self.send_next().await?;
        while self.every == 0 && !self.is_over() {
            self.hear().await?;
        }
        if self.every > 0 {
            self.session.round_trip().heard(asked.elapsed());
        }
        while !self.is_over() && self.messages.len() > 0 {
            while let Some(word) = self.batch.word_at_once() {
                self.take(word);
            }
            if self.is_over() {
                break;
            }
            let ahead = (OUTSTANDING * self.every).max(AHEAD);
            if self.sent >= self.stored + ahead {
                self.hear().await?;
            } else {
                self.send_next().await?;
            }
        }
        let first = self.refused.as_ref().filter(|refusal| refusal.certain);
        if first.is_some_and(|refusal| refusal.seq == 1) {
            // A batch whose first message is refused has not begun.
            return Ok(());
        }
        if self.is_over() {
            // Before the last message, or because of it: what was stored until then is worth knowing.
            self.control(self.sent + 1, Operation::End).await?;
        }
        while self.ended.is_none() && !self.forgotten {
            self.hear().await?;
        }
        Ok(())
    }

    /// No word came in time. Whatever of it arrives still, the batch is over with it.
    async fn give_up(&mut self) {
        if self.every == 0 && self.sent == 1 {
            self.session.was_silent(self.subject(1));
        }
        let farewell = self.control(self.sent + 1, Operation::End);
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }

    /// Nothing more has to be sent.
    fn is_over(&self) -> bool {
        self.over || self.forgotten || self.refused.is_some() || self.ended.is_some()
    }

    async fn send_next(&mut self) -> Result<(), Cut> {
        let Some(message) = self.messages.next() else {
            return Ok(());
        };
        let seq = self.sent + 1;
        let operation = if self.messages.len() == 0 {
            Operation::Commit
        } else if seq == 1 {
            Operation::Start
        } else {
            Operation::Append
        };
        let reply = reply_to(&self.address, self.flow, seq, operation);
        match self.session.send(message, reply, self.time).await {
            Ok(()) => self.sent = seq,
            Err(_) if self.time.is_over() => return Err(Cut::Late),
            Err(error) if error.is_connection_lost() => return Err(Cut::Lost),
            Err(error) => self.refuse_message(seq, error),
        }
        Ok(())
    }

    /// Sends a word about the batch that is no message of it.
    async fn control(&mut self, seq: u64, operation: Operation) -> Result<(), Cut> {
        let Some(subject) = self.subjects.first() else {
            return Ok(());
        };
        let reply = reply_to(&self.address, self.flow, seq, operation);
        let word = Message {
            subject: subject.clone(),
            headers: HeaderMap::new(),
            payload: Bytes::new(),
        };
        let sent = self.session.send(word, reply, self.time).await;
        sent.map_err(|error| {
            if error.is_connection_lost() {
                Cut::Lost
            } else {
                Cut::Late
            }
        })
    }

    /// Waits for the next word; after some silence, asks for one.
    async fn hear(&mut self) -> Result<(), Cut> {
        let deadline = self.answer_by;
        let silence = deadline.min(Instant::now() + SILENCE);
        match tokio::time::timeout_at(silence, self.batch.word()).await {
            Ok(Some(word)) => {
                self.take(word);
                Ok(())
            }
            Ok(None) => Err(Cut::Lost),
            Err(_) if silence == deadline => Err(Cut::Late),
            // A first message that nobody answered may have been lost, and with it the batch.
            Err(_) if self.every == 0 => Ok(()),
            Err(_) if self.is_over() => self.control(self.sent + 1, Operation::End).await,
            Err(_) => self.control(self.sent, Operation::Ping).await,
        }
    }

    fn take(&mut self, word: Word) {
        self.answer_by = self.time.answer_by();
        match word {
            Word::Flow { seq, every } => {
                self.stored = self.stored.max(seq);
                self.every = every.max(1);
            }
            Word::Gap => self.over = true,
            Word::Ended { count, ack } => {
                self.stored = self.stored.max(count);
                if let Some(error) = ack.error() {
                    let error = error.clone();
                    self.refused_by_server(count + 1, &error);
                }
                self.ended = Some((count, ack));
            }
            Word::Refused { seq, error } => self.refused_by_server(seq, &error),
            Word::Answer { seq, ack } => self.take_answer(seq, ack),
            // The stream may get a leader yet; the word is said again.
            Word::NoResponders { seq: 0 } => {}
            Word::NoResponders { seq } => {
                let error = no_responders(self.session.stream(), self.subject(seq));
                self.refuse_subject(seq, error, true);
            }
            Word::Forbidden => {
                let inbox = self.session.link().inbox();
                let open = self.stored + 1..=self.sent;
                let found = open
                    .into_iter()
                    .find(|seq| inbox.is_forbidden(self.subject(*seq)));
                if let Some(seq) = found {
                    // The server does not say which message it meant.
                    let certain = self.sent == 1;
                    self.refuse_subject(seq, forbidden(self.subject(seq)), certain);
                }
            }
        }
    }

    fn take_answer(&mut self, seq: u64, ack: Ack) {
        let stream = self.session.stream();
        let error = match ack.error() {
            None => match ack.judge(stream, self.subject(seq)) {
                Err(error) if seq > 0 => return self.refuse_subject(seq, error, true),
                _ => return,
            },
            Some(error) => error.clone(),
        };
        // A stream to which a subject leads by mistake knows nothing of the batch.
        if ack.is_not_of(stream) {
            let error = answer::belongs_elsewhere(&error, stream, self.subject(seq));
            return match seq {
                0 => self.forgotten = true,
                _ => self.refuse_subject(seq, error, true),
            };
        }
        match error.err_code {
            UNKNOWN_BATCH => self.forgotten = true,
            NOT_ENABLED => {
                self.forgotten = true;
                // Whoever opens the next session sees what the stream allows now.
                let words = format!("the stream takes no batches any more: {error}");
                let seq = if seq == 0 { self.sent + 1 } else { seq };
                self.refuse_message(seq, PublishError::connection_lost(words));
            }
            _ if seq == 0 => self.over = true,
            _ => self.refused_by_server(seq, &error),
        }
    }

    fn refused_by_server(&mut self, seq: u64, error: &answer::ApiError) {
        let elsewhere = answer::is_elsewhere(error);
        let error = answer::refused(error, self.session.stream(), self.subject(seq));
        match elsewhere {
            true => self.refuse_subject(seq, error, true),
            false => self.refuse_message(seq, error),
        }
    }

    /// The first refusal is the one that ended the batch; what follows from it is no news.
    fn refuse(&mut self, refusal: Refusal) {
        if self
            .refused
            .as_ref()
            .is_none_or(|first| refusal.seq < first.seq)
        {
            self.refused = Some(refusal);
        }
    }

    /// Nobody takes the subject of this message, or somebody else does.
    fn refuse_subject(&mut self, seq: u64, error: PublishError, certain: bool) {
        self.refuse(Refusal {
            seq,
            error,
            of_subject: true,
            certain,
        });
    }

    fn refuse_message(&mut self, seq: u64, error: PublishError) {
        self.refuse(Refusal {
            seq,
            error,
            of_subject: false,
            certain: true,
        });
    }

    fn subject(&self, seq: u64) -> &str {
        let index = (seq as usize).checked_sub(1);
        let subject = index.and_then(|index| self.subjects.get(index));
        subject.map_or("", |subject| subject.as_str())
    }

    /// What became of each message.
    fn judge(mut self, cut: Option<Cut>, before: u64) -> Outcome {
        let total = self.subjects.len();
        let stored = usize::try_from(self.stored).unwrap_or(total).min(total);
        let passed_over = self.passed_over(stored, before);
        let mut results: Vec<_> = self.receipts(stored, before).into_iter().map(Ok).collect();
        let mut refused = None;
        let is_next = |refusal: &mut Refusal| refusal.seq == self.stored + 1;
        if self.ended.is_some() {
            let next = self.refused.take_if(is_next);
            // One that went astray says as little about the others as one that was refused.
            let own = next.as_ref().is_none_or(Refusal::is_its_own);
            refused = (stored < total && own).then_some(stored);
            if stored < total {
                results.push(Err(next.map_or_else(
                    || {
                        PublishError::unavailable(format!(
                            "the event did not reach stream {}: its leader may have changed",
                            self.session.stream()
                        ))
                    },
                    |refusal| refusal.error,
                )));
            }
        } else {
            let certain = self.refused.take_if(|refusal| refusal.certain);
            let sent = certain.as_ref().map_or(self.sent, |refusal| {
                // Without it, nothing behind it either.
                self.sent.min(refusal.seq.saturating_sub(1))
            });
            let sent = usize::try_from(sent).unwrap_or(total).min(total);
            let lost = matches!(cut, Some(Cut::Lost));
            let words = match cut {
                Some(Cut::Lost) => self.session.why_lost(),
                Some(Cut::Late) => format!("no acknowledgement within {:?}", self.time.timeout),
                None => "the server forgot the batch".to_owned(),
            };
            while results.len() < sent {
                results.push(Err(PublishError::unknown(words.clone())));
            }
            if results.len() < total && sent <= stored {
                // Nothing of it is in doubt: it was refused, or about to be sent.
                let own = certain.as_ref().filter(|refusal| refusal.is_its_own());
                refused = own.map(|_| results.len());
                results.push(Err(match certain {
                    Some(refusal) => refusal.error,
                    None if lost => PublishError::connection_lost(words),
                    None => PublishError::unavailable(words),
                }));
            }
        }
        results.resize_with(total, || Err(PublishError::behind()));
        Outcome {
            answers: results,
            stored,
            passed_over,
            refused,
        }
    }

    /// Place of the last message that the batch stored; `Some(0)`: it ended, and stored none.
    fn last(&self) -> Option<u64> {
        self.ended.as_ref().map(|(_, ack)| ack.place())
    }

    /// Were some of the first `stored` messages not stored by this batch? Seen only while nobody else writes to the
    /// stream, or when it passed all of them over.
    fn passed_over(&self, stored: usize, before: u64) -> bool {
        let Some(last) = self.last().filter(|_| stored > 0) else {
            return false;
        };
        // A stream that was made anew counts from the beginning.
        let grown = last.checked_sub(before);
        last == 0 || grown.is_some_and(|grown| grown < stored as u64)
    }

    /// Receipts for those that are stored. Their places in the stream are known when nobody else's message can have
    /// come between them: as many were stored as the stream grew by since the batch began.
    fn receipts(&self, stored: usize, before: u64) -> Vec<Receipt> {
        let stream = self.session.stream();
        let last = self.last().filter(|last| *last > 0 && stored > 0);
        if let Some(last) = last {
            self.session.saw_place(last);
        }
        // A stream that was made anew counts from the beginning.
        let grown = last.and_then(|last| last.checked_sub(before));
        let duplicate = stored == 1
            && self
                .ended
                .as_ref()
                .is_some_and(|(_, ack)| ack.is_duplicate());
        let first = match (last, grown) {
            (Some(last), _) if stored == 1 => Some(last),
            (Some(last), Some(grown)) if grown == stored as u64 => Some(last + 1 - grown),
            _ => None,
        };
        (0..stored as u64)
            .map(|index| Receipt {
                stream: Some(stream.to_owned()),
                position: first.map(|first| first + index),
                duplicate,
            })
            .collect()
    }
}
