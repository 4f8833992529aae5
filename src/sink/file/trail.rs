//! Reading a file back, line by line.
//!
//! A line tells which event it holds and when that occurred, not when it was written. A file that was rotated away is
//! not followed: what stood in it is let go as far as this sink knows.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde::Deserialize;
use uuid::Uuid;

use super::{SinkError, blocking};
use crate::event::Timestamp;
use crate::sink::trail::{Extent, Held, LetsGo, Start, Trail};

/// Lines in a piece.
const LINES: usize = 2_000;

/// The file, and how far it is read.
pub(super) struct FileTrail {
    path: PathBuf,
    source: String,
    reader: Option<Reader>,
}

struct Reader {
    lines: BufReader<File>,
    at: u64,
    end: u64,
}

/// What is read of a line; its payload is passed over.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    source: Cow<'a, str>,
    seq: i64,
    id: Uuid,
    #[serde(borrow)]
    ordering_key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    occurred_at: Cow<'a, str>,
}

impl FileTrail {
    pub(super) fn new(path: PathBuf, source: String) -> Self {
        Self {
            path,
            source,
            reader: None,
        }
    }
}

#[async_trait]
impl Trail for FileTrail {
    async fn extent(&mut self) -> Result<Extent, SinkError> {
        let path = self.path.clone();
        let length = blocking(move || length(&path)).await?;
        Ok(Extent {
            container: self.path.display().to_string(),
            first: 0,
            last: length,
            in_time_order: false,
            first_at: None,
            created: None,
            lets_go: LetsGo {
                all: true,
                ..LetsGo::default()
            },
        })
    }

    /// Lines have no order that a place or a moment could be looked up by: a moment means the beginning.
    async fn begin(&mut self, start: Start) -> Result<(), SinkError> {
        let path = self.path.clone();
        let at = match start {
            Start::Place(place) => place,
            Start::First | Start::Time(_) => 0,
        };
        self.reader =
            blocking(move || Reader::open(&path, at).map_err(|error| refusal(&path, error)))
                .await?;
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Vec<Held>>, SinkError> {
        let Some(mut reader) = self.reader.take() else {
            return Ok(None);
        };
        let (path, source) = (self.path.clone(), self.source.clone());
        let read = move || {
            let held = reader
                .piece(&source)
                .map_err(|error| refusal(&path, error))?;
            Ok((held, reader))
        };
        let (held, reader) = blocking(read).await?;
        self.reader = held.is_some().then_some(reader);
        Ok(held)
    }

    async fn close(&mut self) {
        self.reader = None;
    }
}

impl Reader {
    /// `None` when there is no file.
    fn open(path: &Path, at: u64) -> io::Result<Option<Self>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(at))?;
        Ok(Some(Self {
            lines: BufReader::new(file),
            at,
            end,
        }))
    }

    fn piece(&mut self, source: &str) -> io::Result<Option<Vec<Held>>> {
        let mut held = Vec::new();
        let mut text = Vec::new();
        for _ in 0..LINES {
            if self.at >= self.end {
                break;
            }
            text.clear();
            let length = self.lines.read_until(b'\n', &mut text)?;
            // A line without its end is being written, or was never acknowledged.
            if text.last() != Some(&b'\n') {
                self.at = self.end;
                break;
            }
            held.extend(line(&text, source, self.at));
            self.at += length as u64;
        }
        // Nothing of a piece need be the source's: the end is where nothing is left.
        Ok((!held.is_empty() || self.at < self.end).then_some(held))
    }
}

fn line(text: &[u8], source: &str, place: u64) -> Option<Held> {
    let line: Line<'_> = serde_json::from_slice(text).ok()?;
    (line.source == source).then(|| Held {
        place,
        at: Timestamp::parse(&line.occurred_at).unwrap_or(Timestamp(i64::MIN)),
        id: line.id,
        replay: false,
        seq: Some(line.seq),
        ordering_key: line.ordering_key.map(Cow::into_owned),
    })
}

fn length(path: &Path) -> Result<u64, SinkError> {
    match std::fs::metadata(path) {
        Ok(there) => Ok(there.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(refusal(path, error)),
    }
}

fn refusal(path: &Path, error: io::Error) -> SinkError {
    SinkError {
        message: format!("file {} cannot be read: {error}", path.display()),
        source: Some(Box::new(error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn a_line(source: &str, seq: i64, key: &str) -> String {
        let id = Uuid::from_u128(seq as u128);
        format!(
            "{{\"source\":\"{source}\",\"seq\":{seq},\"id\":\"{id}\",\"kind\":\"a\",\"ordering_key\":{key},\
             \"content_type\":null,\"headers\":{{}},\"occurred_at\":\"2023-11-14T22:13:20.000007Z\",\
             \"attempt\":1,\"payload\":\"{{}}\"}}\n"
        )
    }

    async fn read(trail: &mut FileTrail, start: Start) -> Vec<Held> {
        trail.begin(start).await.unwrap();
        let mut all = Vec::new();
        while let Some(held) = trail.next().await.unwrap() {
            all.extend(held);
        }
        all
    }

    #[tokio::test]
    async fn lines_of_the_source_are_read_with_their_places() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut trail = FileTrail::new(path.clone(), "orders".to_owned());
        assert_eq!(read(&mut trail, Start::First).await, []);
        assert_eq!(trail.extent().await.unwrap().last, 0);

        let first = a_line("orders", 1, "\"k \\\"1\\\"\"");
        let text = format!(
            "{first}{}not ours\n{}{{\"source\":\"orders\",\"seq\":9",
            a_line("others", 2, "null"),
            a_line("orders", 3, "null")
        );
        std::fs::write(&path, &text).unwrap();
        let held = read(&mut trail, Start::Time(Timestamp(0))).await;
        let seqs: Vec<_> = held.iter().map(|held| held.seq).collect();
        assert_eq!(seqs, [Some(1), Some(3)]);
        assert_eq!(held[0].ordering_key.as_deref(), Some("k \"1\""));
        assert_eq!(held[0].at, Timestamp(1_700_000_000_000_007));
        assert_eq!(held[1].id, Uuid::from_u128(3));
        let third = a_line("orders", 3, "null");
        assert!(text[held[1].place as usize..].starts_with(&third));
        assert_eq!(
            read(&mut trail, Start::Place(held[1].place)).await,
            held[1..]
        );
        // More than a piece, none of it in the first one.
        let others = a_line("others", 1, "null").repeat(LINES);
        std::fs::write(&path, others + &first).unwrap();
        assert_eq!(read(&mut trail, Start::First).await.len(), 1);
    }
}
