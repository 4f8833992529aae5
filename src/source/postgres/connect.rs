//! How to reach the server: options from configuration, secrets from their files at each connect.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use secrecy::ExposeSecret;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, Row};

use super::error::{self, failure};
use super::tls::{self, UrlSays};
use super::{Options, Pooler};
use crate::files;
use crate::source::{SourceError, SourceErrorKind};

/// Limit for one attempt to connect, greeting and first question included.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// What a connection is for, which decides about its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The relay's statements.
    Relay,
    /// Operators' and writers' statements: longer, and planned as the server likes.
    Admin,
    /// LISTEN.
    Listen,
}

/// A connection with what was found at its greeting.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) connection: PgConnection,
    /// The server's system identifier; empty where it may not be read.
    pub(super) system: String,
    /// Which server it is, and which part of its history; asked for the relay's statements only.
    pub(super) place: Option<String>,
}

/// Refuses options that can never work. No part of a URL is repeated: it may hold a password.
pub(super) fn check(options: &Options) -> Result<(), SourceError> {
    let name = &options.name;
    let refuse = |words: String| Err(SourceError::new(SourceErrorKind::Unusable, words));
    if let Some(url) = &options.url {
        parse(name, url.expose_secret())?;
    }
    if options.url.is_some() && options.url_file.is_some() {
        return refuse(format!("database {name}: give url or url_file, not both"));
    }
    if options.password.is_some() && options.password_file.is_some() {
        return refuse(format!(
            "database {name}: give password or password_file, not both"
        ));
    }
    tls::check(options)?;
    if options.max_connections == 0 {
        return refuse(format!(
            "database {name}: max_connections must be at least 1"
        ));
    }
    if options.shards == 0 {
        return refuse(format!("database {name}: shards must be at least 1"));
    }
    if options.statement_timeout.as_millis() == 0 {
        return refuse(format!(
            "database {name}: statement_timeout must be at least 1ms"
        ));
    }
    Ok(())
}

fn parse(name: &str, url: &str) -> Result<PgConnectOptions, SourceError> {
    let invalid = || {
        SourceError::new(
            SourceErrorKind::Unusable,
            format!(
                "invalid url for database {name}: write postgres://user@host:port/dbname, with special \
                 characters percent-encoded, or use the separate fields"
            ),
        )
    };
    let url = url.trim();
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(invalid());
    }
    // The driver would pass over a word that it does not know, and write its value into the log.
    if words(url).any(|word| !KNOWN.contains(&word) && !word.starts_with("options[")) {
        return Err(SourceError::new(
            SourceErrorKind::Unusable,
            format!(
                "invalid url for database {name}: a word after `?` is not known; there is {}",
                KNOWN.join(", ")
            ),
        ));
    }
    // The parser's own error is dropped: it may quote what it did not understand.
    PgConnectOptions::from_str(url).map_err(|_| invalid())
}

/// What the driver understands after the `?` of a URL and what makes sense here.
const KNOWN: [&str; 17] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// The words after the `?` of a URL.
fn words(url: &str) -> impl Iterator<Item = &str> {
    let query = url.split('#').next().and_then(|url| url.split_once('?'));
    let query = query.map_or("", |(_, query)| query);
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').map_or(pair, |(word, _)| word))
}

/// What a URL says about encryption.
pub(super) fn says(url: &str) -> UrlSays {
    let any = |known: &[&str]| words(url.trim()).any(|word| known.contains(&word));
    UrlSays {
        mode: any(&["sslmode", "ssl-mode"]),
        authority: any(&["sslrootcert", "ssl-root-cert", "ssl-ca"]),
    }
}

/// Settings of the relay's sessions beside their time limits.
///
/// Every statement here is meant to walk an index, and a plan made while a table was empty or never
/// analysed must not turn that into a scan of everything; nor may a plan be kept from such a time.
const PLANNER: [(&str, &str); 6] = [
    ("enable_seqscan", "off"),
    // Neither of these stops at a limit.
    ("enable_bitmapscan", "off"),
    ("enable_sort", "off"),
    // Would walk all marks of a sink beside a few events.
    ("enable_mergejoin", "off"),
    ("plan_cache_mode", "force_custom_plan"),
    ("jit", "off"),
];

/// The session settings for a purpose.
pub(super) fn settings(options: &Options, purpose: Purpose) -> Vec<(&'static str, String)> {
    let statement = statement_limit(options, purpose);
    let lock = match purpose {
        Purpose::Relay => statement.min(Duration::from_secs(2)),
        Purpose::Admin | Purpose::Listen => statement,
    };
    let mut settings = vec![
        // Names of functions and operators mean the catalogue's, whatever is planted in front of it.
        ("search_path", "pg_catalog, pg_temp".to_owned()),
        ("statement_timeout", milliseconds(statement)),
        ("lock_timeout", milliseconds(lock)),
        (
            "idle_in_transaction_session_timeout",
            milliseconds(statement),
        ),
    ];
    if purpose == Purpose::Relay {
        settings.extend(PLANNER.map(|(key, value)| (key, value.to_owned())));
    }
    settings
}

/// Limit for one statement of this purpose, as the server counts it.
pub(super) fn statement_limit(options: &Options, purpose: Purpose) -> Duration {
    match purpose {
        Purpose::Relay | Purpose::Listen => options.statement_timeout,
        Purpose::Admin => options.statement_timeout.max(Duration::from_secs(60)),
    }
}

fn milliseconds(span: Duration) -> String {
    span.as_millis().clamp(1, i32::MAX as u128).to_string()
}

/// Options for one connect, with secrets as their files have them now.
pub(super) async fn options(
    options: &Options,
    purpose: Purpose,
) -> Result<PgConnectOptions, SourceError> {
    let name = &options.name;
    let text = match (&options.url, &options.url_file) {
        (Some(url), _) => Some(url.clone()),
        (None, Some(file)) => Some(secret(name, "url_file", file).await?.into()),
        (None, None) => None,
    };
    let (mut connect, url) = match &text {
        Some(text) => {
            let text = text.expose_secret();
            (parse(name, text)?, says(text))
        }
        None => (PgConnectOptions::new_without_pgpass(), UrlSays::default()),
    };
    if let Some(host) = &options.host {
        connect = connect.host(host);
    }
    if let Some(port) = options.port {
        connect = connect.port(port);
    }
    if let Some(user) = &options.user {
        connect = connect.username(user);
    }
    if let Some(password) = &options.password {
        connect = connect.password(password.expose_secret());
    }
    if let Some(file) = &options.password_file {
        connect = connect.password(&secret(name, "password_file", file).await?);
    }
    if let Some(dbname) = &options.dbname {
        connect = connect.database(dbname);
    }
    // Of a URL the driver keeps the brackets, and would look for a certificate with them.
    let host = connect.get_host().to_owned();
    if let Some(address) = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        connect = connect.host(address);
    }
    connect = tls::apply(options, url, connect).await?;
    connect = connect
        .application_name("outboxd")
        // Never needed here, and a pooler refuses to be told.
        .extra_float_digits(None)
        .disable_statement_logging();
    if options.pooler == Pooler::None {
        connect = connect.options(settings(options, purpose)).options([
            // The server notices that we are gone even in the middle of a statement.
            ("client_connection_check_interval", "2s"),
            // Resting is what these connections do.
            ("idle_session_timeout", "0"),
        ]);
    }
    Ok(connect)
}

async fn secret(name: &str, what: &str, file: &Path) -> Result<String, SourceError> {
    let path = file.to_owned();
    let read = files::aside(move || files::secret(&path)).await;
    read.flatten().map_err(|cause| {
        SourceError::new(
            SourceErrorKind::Unusable,
            format!(
                "database {name}: {what} {} cannot be read: {cause}",
                file.display()
            ),
        )
    })
}

/// Connects and asks the server two questions: are my settings in force, and who are you?
pub(super) async fn connect(options: &Options, purpose: Purpose) -> Result<Connected, SourceError> {
    let name = &options.name;
    let what = "connecting";
    let connect = self::options(options, purpose).await?;
    let address = format!("{}:{}", connect.get_host(), connect.get_port());
    let attempt = async {
        let mut connection = PgConnection::connect_with(&connect).await?;
        let answer = greet(&mut connection).await?;
        let place = match purpose {
            Purpose::Relay => Some(place(&mut connection).await?),
            Purpose::Admin | Purpose::Listen => None,
        };
        Ok::<_, sqlx::Error>((connection, answer, place))
    };
    let (connection, (statement_ms, system), place) =
        match tokio::time::timeout(CONNECT_LIMIT, attempt).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(cause)) => return Err(failure(name, what, cause).error),
            Err(_) => {
                return Err(SourceError::new(
                    SourceErrorKind::Unavailable,
                    format!(
                        "database {name}: no answer from {address} within {} s",
                        CONNECT_LIMIT.as_secs()
                    ),
                ));
            }
        };
    let asked = statement_limit(options, purpose).as_millis();
    if options.pooler == Pooler::None && u128::try_from(statement_ms) != Ok(asked) {
        return Err(SourceError::new(
            SourceErrorKind::Unusable,
            format!("database {name}: {}", error::POOLER),
        ));
    }
    Ok(Connected {
        connection,
        system,
        place,
    })
}

async fn place(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    let row = sqlx::raw_sql(include_str!("sql/greet_place.sql"))
        .fetch_one(connection)
        .await?;
    row.try_get(0)
}

/// The statement timeout in force, in milliseconds, and the system identifier.
///
/// Both in the simple protocol: one message each, so that a pooler cannot tear them apart.
async fn greet(connection: &mut PgConnection) -> Result<(i64, String), sqlx::Error> {
    let row = sqlx::raw_sql(include_str!("sql/greet.sql"))
        .fetch_one(&mut *connection)
        .await?;
    let statement_ms: i64 = row.try_get(0)?;
    if !row.try_get::<bool, _>(1)? {
        return Ok((statement_ms, String::new()));
    }
    let row = sqlx::raw_sql(include_str!("sql/greet_system.sql"))
        .fetch_one(&mut *connection)
        .await?;
    Ok((statement_ms, row.try_get(0)?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Options without an address.
    pub(in super::super) fn options() -> Options {
        Options::new("orders", None)
    }

    #[test]
    fn a_bad_url_is_refused_without_a_word_of_it() {
        for url in [
            "mysql://u:hunter2@h/d",
            "postgres://u:hunter2@h:notaport/d",
            "hunter2",
            "",
            "postgres://u:p@h/d?sslmode=hunter2",
            "postgres://u:p@h/d?pasword=hunter2",
            "postgres://u:p@h/d?hunter2",
        ] {
            let refused = parse("orders", url).err().map(|e| format!("{e} {e:?}"));
            let words = refused.unwrap_or_default();
            assert!(
                words.starts_with("invalid url for database orders"),
                "{url}: {words}"
            );
            assert!(!words.contains("hunter2"), "{words}");
        }
    }
}
