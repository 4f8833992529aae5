//! URLs of databases and brokers: what they are, and the secrets in them. No message here repeats any
//! part of a URL.

use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::Database;
use crate::envelope::decoded;

/// What a database URL leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DatabaseAddress {
    /// PostgreSQL.
    Postgres {
        /// The URL itself holds a password.
        with_password: bool,
        /// The URL itself says something about encryption (`sslmode`, `sslrootcert`, …).
        with_tls: bool,
    },
    /// SQLite, this file.
    Sqlite(PathBuf),
}

impl DatabaseAddress {
    /// Reads a URL. The error is the rest of a sentence that names the database.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("sqlite:") {
            return sqlite(path.strip_prefix("//").unwrap_or(path)).map(Self::Sqlite);
        }
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err("invalid url: it starts with neither postgres:// nor sqlite://");
        }
        let url = Url::parse(text).map_err(
            |_| "invalid url (a password with special characters needs percent-encoding, or the key `password`)",
        )?;
        Ok(Self::Postgres {
            with_password: url.password().is_some_and(|p| !p.is_empty())
                || url.query_pairs().any(|(key, _)| key == "password"),
            with_tls: url.query_pairs().any(|(key, _)| key.starts_with("ssl")),
        })
    }
}

fn sqlite(path: &str) -> Result<PathBuf, &'static str> {
    if path.contains('?') {
        return Err("invalid url: an sqlite url takes no options after `?`");
    }
    if path.is_empty() || path.contains(":memory:") {
        return Err("invalid url: an sqlite outbox is a file, as in sqlite://path/to/file.db");
    }
    decoded(path)
        .map(PathBuf::from)
        .ok_or("invalid url: bad percent-encoding")
}

impl Database {
    /// The database URL, from the key or the file; `None` for an address by fields.
    pub(super) fn url_text(&self) -> Result<Option<SecretString>, String> {
        match (&self.url, &self.url_file) {
            (Some(url), _) => Ok(Some(url.0.clone())),
            (None, Some(path)) => crate::files::secret(path)
                .map(|text| Some(text.trim().to_owned().into()))
                .map_err(|error| format!("cannot read {}: {error}", path.display())),
            (None, None) => Ok(None),
        }
    }

    /// One name for the place of the outbox, however it is written: two sections with the same one are one
    /// outbox. `None` when that cannot be told.
    pub(super) fn place(&self) -> Option<String> {
        let Some(text) = self.url_text().ok()? else {
            let host = self.host.as_deref()?;
            let dbname = self.dbname.as_deref().or(self.user.as_deref());
            return Some(postgres_place(host, self.port, dbname, &self.schema));
        };
        match DatabaseAddress::parse(text.expose_secret()).ok()? {
            DatabaseAddress::Sqlite(path) => Some(path.display().to_string()),
            DatabaseAddress::Postgres { .. } => {
                let url = Url::parse(text.expose_secret().trim()).ok()?;
                let word = |key: &str| {
                    let found = url.query_pairs().find(|(word, _)| word == key);
                    found.map(|(_, value)| value.into_owned())
                };
                let host = word("hostaddr").or_else(|| word("host"));
                let host = host.or_else(|| decoded(url.host_str()?))?;
                let port = word("port").and_then(|port| port.parse().ok());
                let path = Some(url.path().trim_start_matches('/')).filter(|path| !path.is_empty());
                let user = word("user").unwrap_or_else(|| url.username().to_owned());
                let dbname = word("dbname").or_else(|| decoded(path?));
                Some(postgres_place(
                    &host,
                    port.or(url.port()),
                    dbname.as_deref().or(Some(&user)),
                    &self.schema,
                ))
            }
        }
    }

    /// Where this database is. The error is the rest of a sentence that names the database.
    pub(super) fn address(&self) -> Result<DatabaseAddress, String> {
        match self.url_text()? {
            Some(url) => DatabaseAddress::parse(url.expose_secret()).map_err(str::to_owned),
            None => Ok(DatabaseAddress::Postgres {
                with_password: false,
                with_tls: false,
            }),
        }
    }
}

fn postgres_place(host: &str, port: Option<u16>, dbname: Option<&str>, schema: &str) -> String {
    let port = port.unwrap_or(5_432);
    format!(
        "{}:{port}/{} {schema}",
        one_name(host),
        dbname.unwrap_or_default()
    )
}

/// A host's name, the loopback's names as one.
fn one_name(host: &str) -> String {
    match host.to_ascii_lowercase().as_str() {
        "localhost" | "[::1]" | "::1" => "127.0.0.1".to_owned(),
        other => other.to_owned(),
    }
}

/// A broker's URLs, and the credentials that were in them.
#[derive(Debug, Clone, Default)]
pub(super) struct NatsAddress {
    /// Comma separated, without user information.
    pub(super) servers: String,
    /// User, if the URL has one with a password.
    pub(super) user: Option<String>,
    /// Password.
    pub(super) password: Option<SecretString>,
    /// Token: user information without a colon.
    pub(super) token: Option<SecretString>,
    /// A URL asks for TLS by its scheme.
    pub(super) tls: bool,
}

impl NatsAddress {
    /// Reads a comma separated list. The error is the rest of a sentence that names the sink.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        const INVALID: &str = "invalid url (expected nats://host:port or tls://host:port; a password with special \
                               characters needs percent-encoding, or the key `password`)";
        let mut found = Self::default();
        let mut servers = Vec::new();
        for part in text.split(',').map(str::trim) {
            let part = if part.contains("://") {
                part.to_owned()
            } else {
                format!("nats://{part}")
            };
            let mut url = Url::parse(&part).map_err(|_| INVALID)?;
            let plain_path = matches!(url.path(), "" | "/") && url.query().is_none();
            if !matches!(url.scheme(), "nats" | "tls") || url.host_str().is_none() || !plain_path {
                return Err(INVALID);
            }
            found.tls |= url.scheme() == "tls";
            found.take_credentials(&url).ok_or(INVALID)?;
            url.set_username("").map_err(|()| INVALID)?;
            url.set_password(None).map_err(|()| INVALID)?;
            servers.push(url.as_str().trim_end_matches('/').to_owned());
        }
        found.servers = servers.join(",");
        Ok(found)
    }

    /// Its servers, each by one name: host and port, the loopback's names as one.
    pub(super) fn hosts(&self) -> impl Iterator<Item = String> {
        let host = |url: &str| {
            let url = Url::parse(url).ok()?;
            let host = one_name(url.host_str()?);
            Some(format!("{host}:{}", url.port().unwrap_or(4_222)))
        };
        self.servers.split(',').filter_map(host)
    }

    /// Takes the credentials of the first URL that has some. `None` when they cannot be decoded.
    fn take_credentials(&mut self, url: &Url) -> Option<()> {
        if self.user.is_some() || self.token.is_some() {
            return Some(());
        }
        let user = decoded(url.username())?;
        match url.password() {
            Some(password) => {
                self.user = Some(user);
                self.password = Some(decoded(password)?.into());
            }
            None if !user.is_empty() => self.token = Some(user.into()),
            None => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outbox_has_one_place_however_it_is_written() {
        let by_url = |url: &str| Database {
            url: Some(crate::config::Secret(url.to_owned().into())),
            ..Database::default()
        };
        let by_fields = Database {
            host: Some("LOCALHOST".into()),
            user: Some("app".into()),
            ..Database::default()
        };
        let same = Some("127.0.0.1:5432/app outbox".to_owned());
        assert_eq!(by_fields.place(), same);
        for url in [
            "postgres://app@localhost",
            "postgres://u:p@127.0.0.1:5432/app?sslmode=disable",
            "postgresql://u@[::1]/%61pp",
            "postgres://u@x:1/y?host=localhost&port=5432&dbname=app",
        ] {
            assert_eq!(by_url(url).place(), same, "{url}");
        }
        for url in [
            "postgres://u@localhost/other",
            "postgres://u@db/app",
            "postgres://u@localhost:1/app",
        ] {
            assert_ne!(by_url(url).place(), same, "{url}");
        }
        assert_eq!(by_url("sqlite:x").place(), by_url("sqlite://x").place());
    }

    #[test]
    fn database_urls_lead_to_their_database() {
        let postgres = |with_password| {
            Ok(DatabaseAddress::Postgres {
                with_password,
                with_tls: false,
            })
        };
        let sqlite = |path: &str| Ok(DatabaseAddress::Sqlite(path.into()));
        let parse = DatabaseAddress::parse;
        assert_eq!(
            parse("postgres://relay@127.0.0.1:5432/app"),
            postgres(false)
        );
        assert_eq!(parse("postgresql://relay:x@[::1]/app"), postgres(true));
        assert_eq!(parse("sqlite://orders.db"), sqlite("orders.db"));
        assert_eq!(
            parse("sqlite:///var/lib/a%20b.db"),
            sqlite("/var/lib/a b.db")
        );
        assert_eq!(parse("sqlite:orders.db"), sqlite("orders.db"));
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_them() {
        for bad in [
            "postgres://u:s3cret/x@host:port/db",
            "mysql://u:s3cret@host/db",
            "s3cret",
            "",
            "sqlite::memory:",
            "sqlite://x?mode=s3cret",
        ] {
            let error = DatabaseAddress::parse(bad).expect_err(bad);
            assert!(error.starts_with("invalid url"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn broker_urls_give_up_their_credentials() {
        let found = NatsAddress::parse("nats://us%65r:p%40ss%2Fw@a:4222, tls://b").expect("parses");
        assert_eq!(found.servers, "nats://a:4222,tls://b");
        assert_eq!(found.user.as_deref(), Some("user"));
        assert_eq!(found.password.expect("password").expose_secret(), "p@ss/w");
        assert!(found.tls && found.token.is_none());
        let token = NatsAddress::parse("nats://t0ken@a:4222").expect("parses");
        assert_eq!(token.token.expect("token").expose_secret(), "t0ken");
        assert!(NatsAddress::parse("http://a:4222").is_err());
        assert!(NatsAddress::parse("nats://u:p/a@b:4222").is_err());
    }
}
