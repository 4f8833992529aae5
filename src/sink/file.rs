//! JSON lines appended to a file, on disk before they are acknowledged.
//!
//! **Every line is whole.** A group that was written in part (a full disk) is cut off again before anyone
//! hears of the failure. A torn last line that a crash left behind was never acknowledged: it is cut off
//! when the file is opened, or, if only its line end is missing, completed. Both happen under an
//! advisory lock on the file, and so does each group, so that two processes may append to one file.
//!
//! **Rotation.** Before each group the path is looked at: when it no longer leads to the open file (renamed
//! or removed), the path is opened anew. A file that was truncated in place is simply appended to.
//!
//! A path that is no regular file (a pipe, a device) is written without lock, cut and position.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::lines::Lines;
use super::trail::Readback;
use super::{Session, Sink, SinkError};

mod append;
mod trail;

use append::Appender;
use trail::FileTrail;

/// Where the lines go.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file; it is created when it is missing, its directory is not.
    pub path: PathBuf,
}

/// The sink.
#[derive(Debug)]
pub struct File {
    options: Options,
}

impl File {
    /// No I/O happens before [`Sink::open`].
    pub fn new(options: Options) -> Self {
        Self { options }
    }
}

#[async_trait]
impl Sink for File {
    fn kind(&self) -> &'static str {
        "file"
    }

    async fn open(&self) -> Result<Arc<dyn Session>, SinkError> {
        let path = self.options.path.clone();
        let appender = blocking(move || Appender::open(path)).await?;
        let container = self.options.path.display().to_string();
        Ok(Arc::new(Lines::start(appender, container)?))
    }

    /// Opens the file as a session would, and leaves it as it is.
    async fn check(&self, _kinds: &[String]) -> Result<Vec<String>, SinkError> {
        let path = self.options.path.clone();
        blocking(move || append::probe(&path)).await?;
        Ok(Vec::new())
    }

    /// Reads the file from its beginning. A file that is not there holds nothing; a pipe or a device cannot be read.
    async fn trail(&self, source: &str) -> Result<Readback, SinkError> {
        let (path, source) = (self.options.path.clone(), source.to_owned());
        blocking(move || {
            if std::fs::metadata(&path).is_ok_and(|there| !there.is_file()) {
                let words = format!(
                    "{} is no regular file and cannot be read back",
                    path.display()
                );
                return Ok(Readback::No(words));
            }
            Ok(Readback::Trail(Box::new(FileTrail::new(path, source))))
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SinkError> + Send + 'static,
) -> Result<T, SinkError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(SinkError {
            message: "the file could not be opened".to_owned(),
            source: Some(Box::new(error)),
        }),
    }
}
