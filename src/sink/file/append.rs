//! Appending groups of lines to a file so that the file always consists of whole lines.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::SinkError;
use crate::sink::lines::{Destination, Failure};

/// Bytes looked at in one step when searching backwards for a line end.
const STEP: u64 = 64 << 10;

/// An open file.
pub(super) struct Appender {
    path: PathBuf,
    file: File,
    regular: bool,
}

impl Appender {
    /// Opens `path`, creating it when it is missing, and mends its last line.
    pub(super) fn open(path: PathBuf) -> Result<Self, SinkError> {
        Self::try_open(&path).map_err(|error| refusal(&path, error))
    }

    fn try_open(path: &Path) -> io::Result<Self> {
        let there = fs::metadata(path).ok();
        let created = there.is_none();
        // A pipe that we held open for reading ourselves would never break.
        let regular = there.is_none_or(|there| there.is_file());
        let file = OpenOptions::new()
            .read(regular)
            .append(true)
            .create(true)
            .open(path)?;
        let mut appender = Self {
            path: path.to_owned(),
            file,
            regular,
        };
        if regular {
            if created {
                sync_directory(path)?;
            }
            lock(&appender.file)?;
            let mended = appender.mend();
            let _ = appender.file.unlock();
            mended?;
        }
        Ok(appender)
    }

    /// Completes or cuts a last line that has no line end; the file's length afterwards.
    fn mend(&mut self) -> io::Result<u64> {
        let length = self.file.metadata()?.len();
        let torn_at = last_line_start(&mut self.file, length)?;
        if torn_at == length {
            return Ok(length);
        }
        let mut torn = Vec::new();
        self.file.seek(SeekFrom::Start(torn_at))?;
        (&self.file).take(length - torn_at).read_to_end(&mut torn)?;
        if serde_json::from_slice::<serde::de::IgnoredAny>(&torn).is_ok() {
            self.file.write_all(b"\n")?;
        } else {
            tracing::warn!(
                path = %self.path.display(),
                bytes = torn.len(),
                "cut off an unfinished last line, which was never acknowledged"
            );
            self.file.set_len(torn_at)?;
        }
        self.file.sync_data()?;
        Ok(self.file.metadata()?.len())
    }

    /// Follows the path to a new file after a rotation. Leaves the file locked.
    fn lock_what_the_path_names(&mut self) -> io::Result<()> {
        loop {
            lock(&self.file)?;
            let open = self.file.metadata()?;
            match fs::metadata(&self.path) {
                Ok(named) if same_file(&open, &named) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            // Dropping the old file releases its lock.
            *self = Self::try_open(&self.path)?;
            if !self.regular {
                return Ok(());
            }
        }
    }

    fn append(&mut self, group: &[u8]) -> Result<Option<u64>, Failure> {
        // Another process that appends to this file may have died in the middle of a line.
        let path = self.path.clone();
        let nothing_written = |error| failure(&path, &error, false);
        let start = self.mend().map_err(nothing_written)?;
        let written = self
            .file
            .write_all(group)
            .and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => Ok(Some(start)),
            Err(error) => {
                let cut = self
                    .file
                    .set_len(start)
                    .and_then(|()| self.file.sync_data());
                Err(failure(&self.path, &error, cut.is_err()))
            }
        }
    }
}

impl Destination for Appender {
    fn write(&mut self, group: &[u8]) -> Result<Option<u64>, Failure> {
        if self.regular {
            let path = self.path.clone();
            self.lock_what_the_path_names()
                .map_err(|error| failure(&path, &error, false))?;
        }
        if self.regular {
            let result = self.append(group);
            // The lock also goes with the file; a failure to release it shows with the next group.
            let _ = self.file.unlock();
            result
        } else {
            // What a pipe took cannot be taken back.
            self.file
                .write_all(group)
                .map(|()| None)
                .map_err(|error| failure(&self.path, &error, true))
        }
    }
}

/// File systems without locks are used without: one process alone needs none.
fn lock(file: &File) -> io::Result<()> {
    match file.lock() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        other => other,
    }
}

/// Can the file be appended to? Leaves nothing behind that was not there.
pub(super) fn probe(path: &Path) -> Result<(), SinkError> {
    let existed = path.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|file| {
            if existed || file.metadata()?.len() > 0 {
                return Ok(());
            }
            fs::remove_file(path)
        })
        .map_err(|error| refusal(path, error))
}

/// Where the last line begins: `length` when the file ends with a line end or is empty.
fn last_line_start(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut buffer = Vec::new();
    // Nearly always the last byte is a line end, so the first step is one byte.
    let mut step = 1;
    while end > 0 {
        let start = end.saturating_sub(step);
        step = STEP;
        buffer.clear();
        file.seek(SeekFrom::Start(start))?;
        (&*file).take(end - start).read_to_end(&mut buffer)?;
        if let Some(at) = buffer.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(unix)]
fn same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Without inodes a rotation is noticed only by the file being gone.
#[cfg(not(unix))]
fn same_file(_: &Metadata, _: &Metadata) -> bool {
    true
}

/// A new file survives a crash only when its directory's entry does.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if cfg!(unix) {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

fn refusal(path: &Path, error: io::Error) -> SinkError {
    SinkError {
        message: format!("file {} cannot be appended to: {error}", path.display()),
        source: Some(Box::new(error)),
    }
}

fn failure(path: &Path, error: &io::Error, perhaps_written: bool) -> Failure {
    Failure {
        message: format!("file {}: {error}", path.display()),
        perhaps_written,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn mended(content: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, content).unwrap();
        Appender::open(path.clone()).unwrap();
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_torn_last_line_is_cut_and_one_without_line_end_is_completed() {
        let long = "x".repeat(3 * STEP as usize);
        assert_eq!(mended(""), "");
        assert_eq!(mended("{\"a\":1}\n"), "{\"a\":1}\n");
        assert_eq!(mended("{\"a\":1}\n{\"b\""), "{\"a\":1}\n");
        assert_eq!(mended("{\"a\":1}\n{\"b\":2}"), "{\"a\":1}\n{\"b\":2}\n");
        assert_eq!(mended("{\"b\""), "");
        assert_eq!(mended(&format!("{{}}\n{{\"{long}")), "{}\n");
        let whole = format!("{{}}\n{{\"{long}\":1}}");
        assert_eq!(mended(&whole), format!("{whole}\n"));
    }

    #[test]
    fn a_failed_group_leaves_whole_lines_and_the_probe_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        probe(&path).unwrap();
        assert!(!path.exists());
        assert!(probe(&directory.path().join("none/f")).is_err());
        let mut appender = Appender::open(path.clone()).unwrap();
        assert_eq!(appender.write(b"{}\n").ok(), Some(Some(0)));
        assert_eq!(appender.write(b"[]\n").ok(), Some(Some(3)));
        // Somebody else dies in the middle of a line.
        let mut other = OpenOptions::new().append(true).open(&path).unwrap();
        other.write_all(b"{\"tor").unwrap();
        assert_eq!(appender.write(b"1\n").ok(), Some(Some(6)));
        assert_eq!(fs::read(&path).unwrap(), b"{}\n[]\n1\n");
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut appender = Appender::open(path.clone()).unwrap();
        appender.write(b"1\n").ok().unwrap();
        fs::rename(&path, directory.path().join("f.1")).unwrap();
        appender.write(b"2\n").ok().unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"0\n").unwrap();
        assert_eq!(appender.write(b"3\n").ok(), Some(Some(2)));
        assert_eq!(fs::read(&path).unwrap(), b"0\n3\n");
        assert_eq!(fs::read(directory.path().join("f.1")).unwrap(), b"1\n");
    }
}
