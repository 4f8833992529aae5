//! JSON lines on standard output, flushed before they are acknowledged.
//!
//! The lines are those of the sink `file`. A reader that went away (a broken pipe) is a lost connection.

use std::io::{self, Write};
use std::sync::Arc;

use async_trait::async_trait;

use super::lines::{Destination, Failure, Lines};
use super::{Session, Sink, SinkError};

type Open = dyn Fn() -> io::Result<Box<dyn Write + Send>> + Send + Sync;

/// The sink.
pub struct Stdout {
    open: Box<Open>,
}

impl Stdout {
    /// Writes to the standard output of this process.
    pub fn new() -> Self {
        Self::writing_to(|| Ok(Box::new(io::stdout())))
    }

    /// Writes to what `open` gives, for each session anew.
    pub fn writing_to(
        open: impl Fn() -> io::Result<Box<dyn Write + Send>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Box::new(open),
        }
    }
}

impl Default for Stdout {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Sink for Stdout {
    fn kind(&self) -> &'static str {
        "stdout"
    }

    async fn open(&self) -> Result<Arc<dyn Session>, SinkError> {
        let out = (self.open)().map_err(|error| SinkError {
            message: format!("standard output cannot be written to: {error}"),
            source: Some(Box::new(error)),
        })?;
        Ok(Arc::new(Lines::start(Out(out), "stdout".to_owned())?))
    }

    async fn check(&self, _kinds: &[String]) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }
}

struct Out(Box<dyn Write + Send>);

impl Destination for Out {
    fn write(&mut self, group: &[u8]) -> Result<Option<u64>, Failure> {
        // What a pipe took cannot be taken back, so a part of the group may have been read.
        self.0
            .write_all(group)
            .and_then(|()| self.0.flush())
            .map(|()| None)
            .map_err(|error| Failure {
                message: format!("standard output: {error}"),
                perhaps_written: error.kind() != io::ErrorKind::BrokenPipe,
            })
    }
}
