//! What a server says about a fast-ingest batch: reply subjects and bodies. Pure.
//!
//! Source: NATS ADR-50, "Fast-ingest Batch Publishing".

use std::fmt::Write as _;

use async_nats::{Message, StatusCode};
use serde::Deserialize;

use crate::sink::nats::answer::{Ack, ApiError};

/// The end of every reply subject of a batch.
const SUFFIX: &str = ".$FI";

/// What a message does to its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sink::nats) enum Operation {
    /// The first message.
    Start = 0,
    /// One more.
    Append = 1,
    /// The last message: the batch ends with it.
    Commit = 2,
    /// No message: the batch ends.
    End = 3,
    /// No message: how far is it?
    Ping = 4,
}

/// The reply subject that tells the server what a message is: `<address>.<flow>.fail.<seq>.<operation>.$FI`. `fail`:
/// the batch ends before the first message that is missing.
pub(super) fn reply_to(address: &str, flow: u16, seq: u64, operation: Operation) -> String {
    let mut text = String::with_capacity(address.len() + 32);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "{address}.{flow}.fail.{seq}.{}{SUFFIX}",
        operation as u8
    );
    text
}

/// A word about a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink::nats) enum Word {
    /// Everything up to `seq` is stored, and the next word of this kind comes `every` messages later.
    Flow {
        /// Place in the batch, from 1; 0: nothing yet.
        seq: u64,
        /// Messages.
        every: u64,
    },
    /// The message at this place was refused, so the batch ends before it.
    Refused {
        /// Place in the batch.
        seq: u64,
        /// Why.
        error: ApiError,
    },
    /// A message did not arrive, so the batch ends before it.
    Gap,
    /// The batch has ended with this many messages; `ack` tells the rest.
    Ended {
        /// Stored, or known already.
        count: u64,
        /// Stream, and place of the last of them.
        ack: Ack,
    },
    /// The answer to the message at this place, as a publish would have had it.
    Answer {
        /// Place in the batch; 0: it is about a word that was no message.
        seq: u64,
        /// The answer.
        ack: Ack,
    },
    /// Nobody listens on the subject of the message at this place.
    NoResponders {
        /// Place in the batch; 0: it is about a word that was no message.
        seq: u64,
    },
    /// The server forbade a message, of this batch or another.
    Forbidden,
}

/// The batch's number and the word, if the message is about one.
pub(in crate::sink::nats) fn read(message: &Message) -> Option<(u64, Word)> {
    let (number, seq) = place(&message.subject)?;
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Some((number, Word::NoResponders { seq }));
    }
    Some((number, understand(&message.payload, seq)?))
}

/// From a reply subject: the number behind the batch's name, and the message's place (0: it was none).
fn place(subject: &str) -> Option<(u64, u64)> {
    let mut tokens = subject.strip_suffix(SUFFIX)?.rsplit('.');
    let operation: u8 = tokens.next()?.parse().ok()?;
    let seq = tokens.next()?.parse().ok()?;
    let seq = if operation >= Operation::End as u8 {
        0
    } else {
        seq
    };
    let (_gap, _flow) = (tokens.next()?, tokens.next()?);
    let (_, number) = tokens.next()?.rsplit_once('-')?;
    Some((number.parse().ok()?, seq))
}

fn understand(body: &[u8], about: u64) -> Option<Word> {
    #[derive(Deserialize)]
    struct Typed {
        #[serde(default, rename = "type")]
        kind: Option<String>,
        #[serde(default)]
        seq: u64,
        #[serde(default)]
        msgs: u64,
        #[serde(default)]
        count: Option<u64>,
        #[serde(default)]
        error: Option<ApiError>,
    }
    let typed: Typed = serde_json::from_slice(body).ok()?;
    match (typed.kind.as_deref(), typed.error) {
        (Some("ack"), _) => Some(Word::Flow {
            seq: typed.seq,
            every: typed.msgs,
        }),
        (Some("gap"), _) => Some(Word::Gap),
        (Some("err"), Some(error)) => Some(Word::Refused {
            seq: typed.seq,
            error,
        }),
        (Some(_), _) => None,
        (None, _) if typed.count.is_some() => Some(Word::Ended {
            count: typed.count?,
            ack: Ack::read(body)?,
        }),
        (None, _) => Some(Word::Answer {
            seq: about,
            ack: Ack::read(body)?,
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::Bytes;

    use super::*;

    fn message(subject: &str, body: &'static str) -> Message {
        Message {
            subject: subject.into(),
            reply: None,
            payload: Bytes::from_static(body.as_bytes()),
            headers: None,
            status: body.is_empty().then_some(StatusCode::NO_RESPONDERS),
            description: None,
            length: 0,
        }
    }

    #[test]
    fn a_reply_subject_tells_batch_and_place() {
        let subject = reply_to("_INBOX.ab.ab-17", 500, 9, Operation::Commit);
        assert_eq!(subject, "_INBOX.ab.ab-17.500.fail.9.2.$FI");
        assert_eq!(place(&subject), Some((17, 9)));
        for no_message in [Operation::End, Operation::Ping] {
            let subject = reply_to("_INBOX.ab.ab-17", 500, 9, no_message);
            assert_eq!(place(&subject), Some((17, 0)));
        }
        for other in ["_INBOX.ab.17", "_INBOX.ab.17.$FI", "$FI", ""] {
            assert_eq!(place(other), None, "{other}");
        }
    }

    #[test]
    fn each_word_is_understood() {
        let word = |body| {
            let subject = reply_to("_INBOX.ab.ab-17", 500, 9, Operation::Append);
            read(&message(&subject, body)).map(|(number, word)| {
                assert_eq!(number, 17);
                word
            })
        };
        assert_eq!(
            word(r#"{"type":"ack","seq":4,"msgs":2}"#),
            Some(Word::Flow { seq: 4, every: 2 })
        );
        assert_eq!(
            word(r#"{"type":"gap","last_seq":4,"seq":9}"#),
            Some(Word::Gap)
        );
        let refused = word(r#"{"type":"err","seq":8,"error":{"code":400,"err_code":10071}}"#);
        assert!(matches!(refused, Some(Word::Refused { seq: 8, .. })));
        let ended = word(r#"{"stream":"E","seq":77,"batch":"x","count":5}"#);
        assert!(matches!(ended, Some(Word::Ended { count: 5, .. })));
        for answer in [
            r#"{"error":{"code":400,"err_code":10054},"stream":"E","seq":0}"#,
            r#"{"stream":"E","seq":77}"#,
        ] {
            assert!(matches!(word(answer), Some(Word::Answer { seq: 9, .. })));
        }
        assert_eq!(word(""), Some(Word::NoResponders { seq: 9 }));
        for foreign in ["pong", "{}", r#"{"type":"new"}"#, "[]"] {
            assert_eq!(word(foreign), None, "{foreign}");
        }
    }
}
