//! `outboxd publish`: put events into an outbox, from arguments or from JSON lines.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Global;
use super::failure::{Code, Failure, about, in_words};
use super::output::{Output, print};
use super::target::{self, Target};
use crate::source::admin::NewEvent;

/// Events per transaction with `--stdin`.
const CHUNK: usize = 500;

/// Longest ordering key, in bytes, as the table has it.
const MAX_KEY: usize = 512;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outboxd publish auth.login.create --key user-7 --payload '{\"user\": 7}'
  outboxd publish report.ready --payload-file report.pdf --content-type application/pdf
  outboxd publish reminder.due --payload '{}' --delay 2h
  outboxd publish --stdin < events.jsonl

Each line of --stdin is an object with kind, payload and, as needed, ordering_key, headers, content_type,
delay, id. Lines are inserted 500 to a transaction.")]
pub(super) struct PublishArgs {
    /// What happened, for example auth.login.create.
    #[arg(required_unless_present = "stdin")]
    kind: Option<String>,
    /// Ordering key: events of one key are delivered in the order they were inserted.
    #[arg(long, value_name = "KEY", conflicts_with = "stdin")]
    key: Option<String>,
    /// The body: JSON, sent byte for byte (any text with a --content-type that is not JSON).
    #[arg(long, value_name = "JSON", conflicts_with_all = ["payload_file", "stdin"], allow_hyphen_values = true)]
    payload: Option<String>,
    /// The body from a file; any bytes with a --content-type that is not JSON.
    #[arg(long, value_name = "FILE", conflicts_with = "stdin")]
    payload_file: Option<PathBuf>,
    /// Content type. Without it: JSON.
    #[arg(long, value_name = "TYPE", conflicts_with = "stdin")]
    content_type: Option<String>,
    /// A header, NAME=VALUE; may be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header, conflicts_with = "stdin")]
    headers: Vec<(String, String)>,
    /// Deliver no earlier than after this time, for example 90s or 2h.
    #[arg(long, value_name = "TIME", value_parser = delay, conflicts_with = "stdin")]
    delay: Option<Duration>,
    /// Identity of the event. Without it: a new one.
    #[arg(long, value_name = "UUID", conflicts_with = "stdin")]
    id: Option<Uuid>,
    /// Read events from standard input, one JSON object per line.
    #[arg(long, conflicts_with = "kind")]
    stdin: bool,
    /// Which database (a name from the configuration). Not needed when there is only one.
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

pub(super) fn delay(text: &str) -> Result<Duration, String> {
    humantime_serde::re::humantime::parse_duration(text)
        .map_err(|_| "expected a length of time with its unit, such as 90s or 2h".to_owned())
}

pub(super) async fn run(global: &Global, args: &PublishArgs, out: &Output) -> Result<(), Failure> {
    // Before the configuration, so that a slip at the prompt is told first.
    let event = args
        .kind
        .as_deref()
        .map(|kind| event(kind, args))
        .transpose()?;
    let loaded = global.load_for_command()?;
    let target = target::one(&loaded.config, args.database.as_deref())?;
    let ids = match event {
        Some(event) => target::patiently(target.admin.publish(std::slice::from_ref(&event)))
            .await
            .map_err(|error| Failure::database(&target.name, &error))?,
        None => lines(&target, out).await?,
    };
    if args.stdin && !out.is_json() {
        return Ok(());
    }
    out.write(&json!({ "database": target.name, "ids": ids }), |_| {
        in_lines(&ids)
    })
}

fn in_lines(ids: &[Uuid]) -> String {
    ids.iter().map(|id| format!("{id}\n")).collect()
}

fn event(kind: &str, args: &PublishArgs) -> Result<NewEvent, Failure> {
    let body = match (&args.payload, &args.payload_file) {
        (Some(text), _) => text.clone().into_bytes(),
        (None, Some(path)) => std::fs::read(path)
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?,
        (None, None) => {
            return Err(Failure::usage(
                "no body: pass --payload '{…}' or --payload-file FILE",
            ));
        }
    };
    let mut event = NewEvent {
        kind: kind.to_owned(),
        payload: None,
        payload_bytes: None,
        content_type: args.content_type.clone(),
        ordering_key: args.key.clone(),
        headers: args.headers.iter().cloned().collect::<BTreeMap<_, _>>(),
        delay: args.delay,
        id: args.id,
    };
    if args.content_type.as_deref().is_none_or(is_json) {
        event.payload = Some(json_body(body).map_err(Failure::usage)?);
    } else {
        event.payload_bytes = Some(body);
    }
    sound(&event).map_err(Failure::usage)?;
    Ok(event)
}

/// `application/json`, `application/cloudevents+json; charset=utf-8`, …
fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json") || kind.to_ascii_lowercase().ends_with("+json")
}

fn json_body(body: Vec<u8>) -> Result<Box<RawValue>, String> {
    let text = String::from_utf8(body)
        .map_err(|_| "the payload is not UTF-8; bytes need a --content-type".to_owned())?;
    RawValue::from_string(text).map_err(|error| {
        format!(
            "the payload is not JSON: {error} (text in quotes is: --payload '\"text\"'; for anything else give \
             a --content-type)"
        )
    })
}

/// What the table would refuse, told in words and with the line.
fn sound(event: &NewEvent) -> Result<(), String> {
    if event.kind.is_empty() {
        return Err("the kind is empty".to_owned());
    }
    match event.ordering_key.as_deref() {
        Some("") => {
            return Err(
                "the ordering key is empty; leave it out for an event without order".into(),
            );
        }
        Some(key) if key.len() > MAX_KEY => {
            return Err(format!("the ordering key has more than {MAX_KEY} bytes"));
        }
        _ => {}
    }
    if event.payload.is_none() && event.payload_bytes.is_none() {
        return Err("no payload".to_owned());
    }
    Ok(())
}

/// Publishes standard input chunk by chunk; prints ids as their transaction is committed.
async fn lines(target: &Target, out: &Output) -> Result<Vec<Uuid>, Failure> {
    let mut ids = Vec::new();
    let mut first = 1;
    let mut next = 1;
    loop {
        let so_far = match first {
            1 => "nothing was published".to_owned(),
            _ => format!("lines 1 to {} were published, none after them", first - 1),
        };
        let chunk = tokio::task::block_in_place(|| read_chunk(&mut next))
            .map_err(|words| Failure::failed(format!("{words}; {so_far}")))?;
        if chunk.is_empty() {
            return Ok(ids);
        }
        let new = target::patiently(target.admin.publish(&chunk))
            .await
            .map_err(|error| {
                let words = format!(
                    "lines {first} to {}: {}; {so_far}",
                    next - 1,
                    about("database", &target.name, &in_words(&error))
                );
                Failure::new(Code::of(&error), words)
            })?;
        if out.is_json() {
            ids.extend(new);
        } else {
            print(&in_lines(&new))?;
        }
        first = next;
    }
}

/// Reads up to a chunk of events; `next` is the number of the next line.
fn read_chunk(next: &mut usize) -> Result<Vec<NewEvent>, String> {
    let mut chunk = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let number = *next;
        *next += 1;
        let line = line.map_err(|error| format!("line {number}: {error}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let event: NewEvent =
            serde_json::from_str(&line).map_err(|error| format!("line {number}: {error}"))?;
        sound(&event).map_err(|words| format!("line {number}: {words}"))?;
        chunk.push(event);
        if chunk.len() == CHUNK {
            break;
        }
    }
    Ok(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types_that_are_json() {
        for json in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/x+json",
        ] {
            assert!(is_json(json), "{json}");
        }
        assert!(!is_json("text/plain") && !is_json("application/jsonl"));
    }

    #[test]
    fn json_bodies_keep_every_byte() {
        let raw = json_body(b"{ \"a\" : 1.0e2 }".to_vec()).expect("json");
        assert_eq!(raw.get(), "{ \"a\" : 1.0e2 }");
        assert!(json_body(b"{'a': 1}".to_vec()).is_err());
        assert!(json_body(vec![0xff]).is_err());
    }
}
