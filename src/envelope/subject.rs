//! The subject of an outgoing event, made from a template that is parsed once.
//!
//! A template is literal text with placeholders: `{kind}`, `{source}`, `{ordering_key}`, `{headers.NAME}`.
//! The kind goes in as it is, dots and all, and must be made of valid tokens. Every other value becomes one
//! token: bytes outside `A-Z a-z 0-9 - _ ~` are written as `%XX`. A value that is absent or empty
//! becomes `_`, so that events without a key still have a subject; the value `_` itself is written
//! `%5F`, so the two differ.

use std::borrow::Cow;

use crate::sink::{Delivery, PublishError};

use super::headers::Header;
use super::{invalid_subject, percent_encoded, shown};

/// Longest subject that is sent. Servers close the connection at 4 KiB of protocol line, reply subject and
/// sizes included, so one long subject would take its neighbours with it.
pub const MAX_SUBJECT_BYTES: usize = 1_024;

/// Stands for a value that an event does not have.
const ABSENT: &str = "_";

/// How the subject of an event is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Kind,
    Source,
    OrderingKey,
    Header(String),
}

/// A template that cannot be used, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("subject template {template:?}: {what}")]
pub struct TemplateError {
    template: String,
    what: String,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// An unknown placeholder, a brace without its partner, or literal text that no subject may hold.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let fail = |what: String| TemplateError {
            template: text.to_owned(),
            what,
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            let (literal, from_brace) = rest.split_at(open);
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            let inside = from_brace
                .strip_prefix('{')
                .and_then(|inside| inside.split_once('}'))
                .ok_or_else(|| fail("a brace without its partner".to_owned()))?;
            parts.push(Part::placeholder(inside.0).map_err(fail)?);
            rest = inside.1;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.to_owned()));
        }
        let template = Self {
            text: text.to_owned(),
            parts,
        };
        // With the plainest values, whatever is wrong now is wrong with the literal text.
        check(&template.filled(|_| "x".into())).map_err(fail)?;
        Ok(template)
    }

    /// The template as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The subject for a delivery whose row has these `headers`.
    ///
    /// # Errors
    /// Rejected as `invalid_subject`: the kind is not made of valid tokens, or the subject is too long.
    pub fn subject(&self, delivery: &Delivery, headers: &[Header]) -> Result<String, PublishError> {
        let event = &*delivery.event;
        if self.parts.contains(&Part::Kind) {
            check_kind(&event.kind)?;
        }
        let subject = self.filled(|part| match part {
            Part::Literal(text) => text.into(),
            Part::Kind => (&event.kind).into(),
            Part::Source => token(Some(&delivery.source)),
            Part::OrderingKey => token(event.ordering_key.as_deref()),
            Part::Header(name) => token(
                headers
                    .iter()
                    .find(|(given, _)| given == name)
                    .map(|(_, value)| value.as_str()),
            ),
        });
        check(&subject).map_err(|what| {
            invalid_subject(format!("subject {} is not valid: {what}", shown(&subject)))
        })?;
        Ok(subject)
    }

    /// A subject that an event of this kind could have, for checks; other placeholders are filled with an
    /// example.
    ///
    /// # Errors
    /// As [`Template::subject`].
    pub fn example(&self, kind: &str) -> Result<String, PublishError> {
        if self.parts.contains(&Part::Kind) {
            check_kind(kind)?;
        }
        let subject = self.filled(|part| match part {
            Part::Literal(text) => text.into(),
            Part::Kind => kind.into(),
            Part::Source | Part::OrderingKey | Part::Header(_) => "example".into(),
        });
        check(&subject).map_err(invalid_subject)?;
        Ok(subject)
    }

    /// The narrowest subject pattern of the form `literal.tokens.>` (or the literal subject) that covers
    /// every subject of this template; `None` when it begins with a placeholder, since nothing but `>` would
    /// then cover it.
    pub fn covering(&self) -> Option<String> {
        let literal = match self.parts.first() {
            Some(Part::Literal(text)) => text,
            _ => return None,
        };
        if self.parts.len() == 1 {
            return Some(literal.clone());
        }
        let whole_tokens = literal.rfind('.')?;
        Some(format!("{}.>", &literal[..whole_tokens]))
    }

    fn filled<'a>(&'a self, value: impl Fn(&'a Part) -> Cow<'a, str>) -> String {
        // Enough for most kinds and keys.
        let mut text = String::with_capacity(self.text.len() + 64);
        for part in &self.parts {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                other => text.push_str(&value(other)),
            }
        }
        text
    }
}

impl Part {
    fn placeholder(name: &str) -> Result<Self, String> {
        match name {
            "kind" => Ok(Self::Kind),
            "source" => Ok(Self::Source),
            "ordering_key" => Ok(Self::OrderingKey),
            other => match other.strip_prefix("headers.") {
                Some(header) if !header.is_empty() => Ok(Self::Header(header.to_owned())),
                _ => Err(format!(
                    "unknown placeholder {{{other}}}; there are {{kind}}, {{source}}, {{ordering_key}} and \
                     {{headers.NAME}}"
                )),
            },
        }
    }
}

/// One token for a value that may hold anything.
fn token(value: Option<&str>) -> Cow<'_, str> {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~');
    match value {
        None | Some("") => ABSENT.into(),
        Some(ABSENT) => percent_encoded(ABSENT, |_| false),
        Some(value) => percent_encoded(value, keep),
    }
}

fn check_kind(kind: &str) -> Result<(), PublishError> {
    check(kind)
        .map_err(|what| invalid_subject(format!("kind {} is not valid: {what}", shown(kind))))
}

/// What NATS takes as a subject to publish to, and a little less: a server stores wildcards, NUL and
/// `$`-subjects without a word, and they then mean something else to whoever reads the stream.
fn check(subject: &str) -> Result<(), String> {
    if subject.is_empty() {
        return Err("it is empty".to_owned());
    }
    if subject.len() > MAX_SUBJECT_BYTES {
        return Err(format!(
            "it has {} bytes, at most {MAX_SUBJECT_BYTES} are allowed",
            subject.len()
        ));
    }
    if subject.starts_with('$') {
        return Err("it begins with $, which is the server's".to_owned());
    }
    if subject.split('.').any(str::is_empty) {
        return Err("it has an empty token".to_owned());
    }
    match subject
        .chars()
        .find(|c| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>'))
    {
        Some(c) if c.is_whitespace() => Err("it has white space".to_owned()),
        Some(c) if c.is_control() => Err("it has a control character".to_owned()),
        Some(_) => Err("it has a wildcard".to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use bytes::Bytes;
    use uuid::Uuid;

    use super::*;
    use crate::event::{Event, Payload, Timestamp};
    use crate::sink::PublishErrorKind;

    fn delivery(kind: &str, key: Option<&str>) -> Delivery {
        Delivery {
            event: Arc::new(Event {
                seq: 1,
                id: Uuid::nil(),
                kind: kind.to_owned(),
                ordering_key: key.map(Into::into),
                payload: Payload::Json(Bytes::new()),
                content_type: None,
                headers: "{}".to_owned(),
                occurred_at: Timestamp(0),
            }),
            source: "orders".into(),
            attempt: 1,
            may_be_repeat: false,
            lease: crate::lease::Lease { shard: 0, token: 1 },
        }
    }

    fn subject(template: &str, kind: &str, key: Option<&str>) -> Result<String, PublishError> {
        let headers = [("tenant".into(), "a.b".to_owned())];
        Template::parse(template)
            .unwrap()
            .subject(&delivery(kind, key), &headers)
    }

    #[test]
    fn the_kind_goes_in_as_it_is_and_everything_else_is_one_token() {
        let all = "events.{source}.{headers.tenant}.{ordering_key}.{kind}";
        assert_eq!(
            subject(all, "auth.login", Some("käse 7.*")).unwrap(),
            "events.orders.a%2Eb.k%C3%A4se%207%2E%2A.auth.login"
        );
        assert_eq!(
            subject("events.{kind}", "événement.créé", None).unwrap(),
            "events.événement.créé"
        );
    }

    #[test]
    fn an_absent_value_is_an_underscore_and_an_underscore_is_not() {
        let at = |key| subject("e.{ordering_key}.{kind}", "k", key).unwrap();
        assert_eq!(at(None), "e._.k");
        assert_eq!(at(Some("")), "e._.k");
        assert_eq!(at(Some("_")), "e.%5F.k");
        assert_eq!(at(Some("_a")), "e._a.k");
        assert_eq!(subject("e.{headers.none}", "k", None).unwrap(), "e._");
    }

    #[test]
    fn kinds_that_are_no_tokens_are_rejected() {
        let long = "a".repeat(MAX_SUBJECT_BYTES);
        let hostile = [
            "",
            "a b",
            "a\nPUB evt.inj 1\nz",
            "a\tb",
            "a\r",
            "a\0b",
            "a\u{a0}b",
            "a\u{2003}b",
            ".a",
            "a.",
            "a..b",
            "*",
            ">",
            "a.*",
            "a.>",
            "a*b",
            "$JS.API.STREAM.DELETE.X",
            "$",
            &long,
        ];
        for kind in hostile {
            let error = subject("events.{kind}", kind, None).expect_err(kind);
            assert_eq!(
                error.kind,
                PublishErrorKind::Rejected {
                    code: "invalid_subject"
                },
                "{kind:?}"
            );
            assert!(!error.message.contains(['\n', '\r', '\0']), "{kind:?}");
        }
        // Encoding triples a long key.
        assert!(subject("e.{ordering_key}", "k", Some(&"/".repeat(400))).is_err());
    }

    #[test]
    fn a_template_without_the_kind_takes_any_kind() {
        assert_eq!(subject("all", "a b", None).unwrap(), "all");
    }

    #[test]
    fn templates_are_refused_with_words() {
        for (template, words) in [
            ("events.{knd}", "unknown placeholder {knd}"),
            ("events.{headers.}", "unknown placeholder {headers.}"),
            ("events.{kind", "brace"),
            ("events.kind}", "brace"),
            ("events.{{kind}}", "unknown placeholder"),
            ("", "empty"),
            ("events..{kind}", "empty token"),
            ("events.{kind}.", "empty token"),
            ("events.*.{kind}", "wildcard"),
            ("my events.{kind}", "white space"),
            ("$JS.{kind}", "begins with $"),
        ] {
            let error = Template::parse(template).expect_err(template).to_string();
            assert!(error.contains(words), "{template}: {error}");
        }
    }

    #[test]
    fn the_covering_pattern_keeps_whole_literal_tokens() {
        let covering = |template| Template::parse(template).unwrap().covering();
        assert_eq!(covering("events.{kind}").as_deref(), Some("events.>"));
        assert_eq!(covering("a.b.{kind}.c").as_deref(), Some("a.b.>"));
        assert_eq!(covering("a.b-{kind}").as_deref(), Some("a.>"));
        assert_eq!(covering("events").as_deref(), Some("events"));
        assert_eq!(covering("events-{kind}"), None);
        assert_eq!(covering("{source}.{kind}"), None);
    }

    #[test]
    fn examples_stand_for_subjects_to_come() {
        let template = Template::parse("e.{ordering_key}.{kind}").unwrap();
        assert_eq!(template.example("a.b").unwrap(), "e.example.a.b");
        assert!(template.example("a b").is_err());
    }
}
