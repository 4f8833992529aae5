//! Encryption of the connection: what is demanded when nothing is said, and the files that belong to it.

use std::path::Path;

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::{Options, Tls};
use crate::files;
use crate::source::{SourceError, SourceErrorKind};

/// What a URL says about encryption.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UrlSays {
    /// `sslmode`.
    pub(super) mode: bool,
    /// `sslrootcert`.
    pub(super) authority: bool,
}

/// Options that contradict one another.
pub(super) fn check(options: &Options) -> Result<(), SourceError> {
    let refuse = |words: &str| {
        let words = format!("database {}: {words}", options.name);
        Err(SourceError::new(SourceErrorKind::Unusable, words))
    };
    if options.client_cert_file.is_some() != options.client_key_file.is_some() {
        return refuse("client_cert_file and client_key_file belong together: one is missing");
    }
    let unchecked = matches!(options.tls, Some(Tls::Disable | Tls::Prefer | Tls::Require));
    if unchecked && options.ca_file.is_some() {
        return refuse("ca_file has no use unless tls is verify-ca or verify-full");
    }
    if options.tls == Some(Tls::Disable) && options.client_cert_file.is_some() {
        return refuse("client_cert_file has no use with tls = disable");
    }
    Ok(())
}

/// The mode and the certificates for one connect. The mode is always set: the driver's own default would
/// fall back to plain text, and it takes one from the environment.
pub(super) async fn apply(
    options: &Options,
    url: UrlSays,
    mut connect: PgConnectOptions,
) -> Result<PgConnectOptions, SourceError> {
    let mode = mode(options, url, &connect);
    connect = connect.ssl_mode(mode);
    let name = &options.name;
    match &options.ca_file {
        Some(file) => {
            let text = pem(name, "ca_file", file, "certificate").await?;
            connect = connect.ssl_root_cert_from_pem(text);
        }
        None if url.authority => {}
        // Whom to trust is not for the environment to say.
        None => connect = connect.ssl_root_cert_from_pem(Vec::new()),
    }
    if let (Some(certificate), Some(key)) = (&options.client_cert_file, &options.client_key_file) {
        let text = pem(name, "client_cert_file", certificate, "certificate").await?;
        connect = connect.ssl_client_cert_from_pem(text);
        let text = pem(name, "client_key_file", key, "private key").await?;
        connect = connect.ssl_client_key_from_pem(text);
    }
    Ok(connect)
}

fn mode(options: &Options, url: UrlSays, connect: &PgConnectOptions) -> PgSslMode {
    let by_file = options.ca_file.is_some() || options.client_cert_file.is_some();
    match (options.tls, connect.get_ssl_mode()) {
        (Some(Tls::Disable), _) => PgSslMode::Disable,
        (Some(Tls::Prefer), _) => PgSslMode::Prefer,
        (Some(Tls::Require), _) => PgSslMode::Require,
        (Some(Tls::VerifyCa), _) => PgSslMode::VerifyCa,
        (Some(Tls::VerifyFull), _) => PgSslMode::VerifyFull,
        // As libpq does; the driver would leave the authority unused.
        (None, PgSslMode::Require) if url.mode && url.authority => PgSslMode::VerifyCa,
        (None, said) if url.mode => said,
        (None, _) if by_file || url.authority || !stays_here(connect) => PgSslMode::VerifyFull,
        (None, _) => PgSslMode::Prefer,
    }
}

/// A Unix socket, or the loopback.
fn stays_here(connect: &PgConnectOptions) -> bool {
    let host = connect.get_host();
    connect.get_socket().is_some() || host.starts_with('/') || crate::tls::is_loopback(host)
}

async fn pem(
    name: &str,
    key: &str,
    file: &Path,
    kind: &'static str,
) -> Result<Vec<u8>, SourceError> {
    let path = file.to_owned();
    let read = files::aside(move || files::pem(&path, kind)).await;
    let read = read.unwrap_or_else(|error| Err((error.to_string(), error)));
    read.map_err(|(words, cause)| {
        let words = format!("database {name}: {key} {words}");
        SourceError::new(SourceErrorKind::Unusable, words).caused_by(cause)
    })
}

/// Words for what went wrong with encryption, if that is what went wrong.
pub(super) fn refusal(error: &sqlx::Error) -> Option<String> {
    let words = match error {
        sqlx::Error::Tls(cause) => cause.to_string(),
        sqlx::Error::Io(cause) => cause.to_string(),
        _ => return None,
    };
    if words.contains("does not support TLS") {
        return Some(
            "the server offers no TLS, so nothing was sent: turn ssl on at the server, or set tls = \"disable\" \
             to send everything, the password too, in plain text"
                .to_owned(),
        );
    }
    if words.contains("invalid peer certificate") {
        let mend = crate::tls::mend(&words);
        return Some(format!(
            "the server's certificate is not accepted: {words}{mend}"
        ));
    }
    if words.contains("received fatal alert") {
        return Some(format!(
            "the server refused the TLS handshake (does it ask for a certificate? set client_cert_file and \
             client_key_file): {words}"
        ));
    }
    match error {
        sqlx::Error::Tls(_) => Some(format!("encryption failed: {words}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::super::connect::tests::options;
    use super::*;

    fn mode_of(url: &str, change: fn(&mut Options)) -> PgSslMode {
        let mut options = options();
        change(&mut options);
        let connect = PgConnectOptions::from_str(url).unwrap_or_else(|error| panic!("{error}"));
        mode(&options, super::super::connect::says(url), &connect)
    }

    #[test]
    fn plain_text_leaves_the_machine_only_when_that_is_said() {
        use PgSslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
        for (url, expected) in [
            ("postgres://u@127.0.0.1/d", Prefer),
            ("postgres://u@localhost/d", Prefer),
            ("postgres://u@[::1]/d", Prefer),
            ("postgres://u@%2Frun%2Fpostgresql/d", Prefer),
            ("postgres://u@x/d?host=/run/postgresql", Prefer),
            ("postgres://u@db/d", VerifyFull),
            ("postgres://u@10.0.0.7/d", VerifyFull),
            ("postgres://u@localhost/d?host=db", VerifyFull),
            ("postgres://u@localhost/d?hostaddr=10.0.0.7", VerifyFull),
            ("postgres://u@db/d?sslmode=disable", Disable),
            ("postgres://u@db/d?sslmode=prefer", Prefer),
            ("postgres://u@db/d?sslmode=require", Require),
            ("postgres://u@db/d?sslmode=require&sslrootcert=ca", VerifyCa),
            ("postgres://u@localhost/d?sslrootcert=ca", VerifyFull),
        ] {
            let found = mode_of(url, |_| ());
            assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{url}");
        }
        let of = |change| format!("{:?}", mode_of("postgres://u@localhost/d", change));
        assert_eq!(
            of(|options| options.ca_file = Some("x".into())),
            "VerifyFull"
        );
        assert_eq!(of(|options| options.tls = Some(Tls::Require)), "Require");
        let plain = mode_of("postgres://u@db/d", |options| {
            options.tls = Some(Tls::Disable)
        });
        assert_eq!(format!("{plain:?}"), "Disable");
    }
}
