//! Small files that are read again at each connect: secrets and certificates. Bounded, since a name in a
//! configuration may lead to anything.

use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

/// The longest secret: a URL or a credentials file, with room to spare.
const SECRET: u64 = 64 * 1024;

/// A few certificates or a key.
#[cfg(any(feature = "postgres", feature = "nats"))]
const PEM: u64 = 4 * 1024 * 1024;

/// What a file holds now, if that is at most `limit` bytes.
///
/// # Errors
/// It cannot be read, or is larger.
pub(crate) fn bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    let read = file.take(limit + 1).read_to_end(&mut bytes)?;
    if read as u64 > limit {
        let words = format!("it is larger than {limit} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, words));
    }
    Ok(bytes)
}

/// A secret of one line: the text of a file without the line end that editors put behind it.
///
/// # Errors
/// It cannot be read, is empty, far too large, or no text. The words never hold any of the text.
pub(crate) fn secret(path: &Path) -> io::Result<String> {
    let text = secret_lines(path)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// A secret of several lines, as it stands.
///
/// # Errors
/// As [`secret`].
pub(crate) fn secret_lines(path: &Path) -> io::Result<String> {
    let invalid = |words: &str| io::Error::new(ErrorKind::InvalidData, words);
    let text = String::from_utf8(bounded(path, SECRET)?).map_err(|_| invalid("it is not UTF-8"))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(invalid("it is empty")),
        _ => Ok(text),
    }
}

/// The text of a PEM file that holds at least one `kind`, as it is now.
///
/// # Errors
/// In words, with the name of the file and never its text: it cannot be read, or holds nothing of the kind.
#[cfg(any(feature = "postgres", feature = "nats"))]
pub(crate) fn pem(path: &Path, kind: &str) -> Result<Vec<u8>, (String, io::Error)> {
    let shown = path.display();
    let text =
        bounded(path, PEM).map_err(|error| (format!("{shown} cannot be read: {error}"), error))?;
    // `BEGIN CERTIFICATE`, `BEGIN PRIVATE KEY`, `BEGIN EC PRIVATE KEY`.
    let mark = format!("{}-----", kind.to_uppercase());
    let begins = |line: &[u8]| {
        line.starts_with(b"-----BEGIN ") && line.trim_ascii_end().ends_with(mark.as_bytes())
    };
    if !text.split(|byte| *byte == b'\n').any(begins) {
        let words = format!("{shown} holds no usable {kind} (PEM)");
        return Err((words, ErrorKind::InvalidData.into()));
    }
    Ok(text)
}

/// Runs one of the above where it holds nobody up: a file may lie on a dead network disk.
#[cfg(any(feature = "postgres", feature = "nats"))]
pub(crate) async fn aside<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, io::Error> {
    tokio::task::spawn_blocking(read)
        .await
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_secret_is_a_short_text_without_its_line_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            secret(file.path()).map_err(|error| error.to_string())
        };
        assert_eq!(read(b"p w\t\r\n\n").as_deref(), Ok("p w\t"));
        assert_eq!(read(b"\n").unwrap_err(), "it is empty");
        assert_eq!(read(b"x\xff").unwrap_err(), "it is not UTF-8");
        assert!(read(&vec![b'x'; 65_537]).unwrap_err().contains("larger"));
        assert_eq!(read(&vec![b'x'; 65_536]).map(|text| text.len()), Ok(65_536));
        let endless = secret(Path::new("/dev/zero")).map_err(|error| error.to_string());
        assert!(endless.unwrap_err().contains("larger"));
    }
}
