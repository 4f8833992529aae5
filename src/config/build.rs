//! From configuration to the things themselves: sources, sinks, the relay's options.

use std::path::PathBuf;
use std::sync::Arc;

use uuid::Uuid;

use super::address::DatabaseAddress;
use super::{Config, ConfigError, Database, Sink, SinkType};
use crate::relay;
use crate::route::{self, Routes};
use crate::source::admin::Admin;
use crate::source::{self, Source};
use crate::telemetry::Telemetry;

/// Everything that [`relay::start`] takes.
///
/// # Errors
/// Something that only shows when it is built: a file that cannot be read, a type this build lacks.
pub fn options(config: &Config, telemetry: Telemetry) -> Result<relay::Options, ConfigError> {
    let mut databases = Vec::new();
    for (name, database) in &config.databases {
        databases.push(database_options(name, database, config)?);
    }
    let mut sinks = Vec::new();
    for (name, sink) in &config.sinks {
        sinks.push(sink_options(name, sink, config)?);
    }
    Ok(relay::Options {
        databases,
        sinks,
        routes: routes(config),
        lease_ttl: config.lease.ttl.0,
        retention: retention(config),
        grace: config.shutdown.grace.0,
        telemetry,
        instance: Uuid::new_v4(),
    })
}

/// One outbox, as the relay and as the operator see it.
#[derive(Clone)]
pub struct Outbox {
    /// The relay's side.
    pub source: Arc<dyn Source>,
    /// The operator's side.
    pub admin: Arc<dyn Admin>,
}

/// The outbox of one section.
///
/// # Errors
/// As [`options`].
pub fn outbox(name: &str, database: &Database, config: &Config) -> Result<Outbox, ConfigError> {
    open(name, source_options(name, database, config)?)
}

/// The sink of one section.
///
/// # Errors
/// As [`options`].
pub fn sink(
    name: &str,
    sink: &Sink,
    config: &Config,
) -> Result<Arc<dyn crate::sink::Sink>, ConfigError> {
    match sink.kind {
        Some(SinkType::File) => {
            let path = sink.path.clone().unwrap_or_default();
            let options = crate::sink::file::Options { path };
            Ok(Arc::new(crate::sink::file::File::new(options)))
        }
        Some(SinkType::Stdout) => Ok(Arc::new(crate::sink::stdout::Stdout::new())),
        Some(SinkType::Nats) => nats(name, sink, config),
        None => Err(ConfigError::one(format!("`sinks.{name}`: no type"))),
    }
}

/// All routes with their retry rules.
pub fn routes(config: &Config) -> Routes {
    let route = |(name, route): (&String, &super::Route)| route::Route {
        name: name.clone(),
        kinds: route.kinds.to_vec(),
        sinks: route
            .sinks
            .iter()
            .map(|sink| Arc::from(sink.as_str()))
            .collect(),
        retry: route.policy(&config.retry),
    };
    Routes::new(config.routes.iter().map(route).collect())
}

fn retention(config: &Config) -> source::Retention {
    source::Retention {
        published: config.retention.published.0,
        keep: config.retention.published_keep,
        discarded: config.retention.discarded.0,
    }
}

fn database_options(
    name: &str,
    database: &Database,
    config: &Config,
) -> Result<relay::DatabaseOptions, ConfigError> {
    let options = source_options(name, database, config)?;
    Ok(relay::DatabaseOptions {
        gap_guard: database.gap_guard,
        poll_max: database.poll_max.0,
        fallback: database.fallback_poll.0,
        quiet_after: database.quiet_after.map(|span| span.0),
        sweep_every: database.sweep_every.0,
        ..relay::DatabaseOptions::new(open(name, options)?.source)
    })
}

fn sink_options(
    name: &str,
    options: &Sink,
    config: &Config,
) -> Result<relay::SinkOptions, ConfigError> {
    Ok(relay::SinkOptions {
        name: name.to_owned(),
        sink: sink(name, options, config)?,
        publish_timeout: options.publish_timeout.0,
        max_in_flight: options.max_in_flight,
        max_in_flight_bytes: usize::try_from(options.max_in_flight_bytes.0).unwrap_or(usize::MAX),
    })
}

/// What a source is made of.
#[derive(Debug)]
enum SourceOptions {
    #[cfg(feature = "postgres")]
    Postgres(Box<source::postgres::Options>),
    #[cfg(feature = "sqlite")]
    Sqlite(source::sqlite::Options),
}

fn source_options(
    name: &str,
    database: &Database,
    config: &Config,
) -> Result<SourceOptions, ConfigError> {
    let address = database
        .address()
        .map_err(|words| ConfigError::one(format!("`databases.{name}`: {words}")))?;
    match address {
        DatabaseAddress::Postgres { .. } => postgres(name, database, config),
        DatabaseAddress::Sqlite(path) => sqlite(name, path, database, config),
    }
}

#[cfg(feature = "postgres")]
fn postgres(
    name: &str,
    database: &Database,
    config: &Config,
) -> Result<SourceOptions, ConfigError> {
    use super::{Pooler, Tls};
    use source::postgres as pg;

    Ok(SourceOptions::Postgres(Box::new(pg::Options {
        name: name.to_owned(),
        url: database.url.as_ref().map(|url| url.0.clone()),
        url_file: database.url_file.clone(),
        host: database.host.clone(),
        port: database.port,
        user: database.user.clone(),
        password: database.password.as_ref().map(|secret| secret.0.clone()),
        password_file: database.password_file.clone(),
        dbname: database.dbname.clone(),
        tls: database.tls.map(|tls| match tls {
            Tls::Disable => pg::Tls::Disable,
            Tls::Prefer => pg::Tls::Prefer,
            Tls::Require => pg::Tls::Require,
            Tls::VerifyCa => pg::Tls::VerifyCa,
            Tls::VerifyFull => pg::Tls::VerifyFull,
        }),
        ca_file: database.ca_file.clone(),
        client_cert_file: database.client_cert_file.clone(),
        client_key_file: database.client_key_file.clone(),
        schema: database.schema.clone(),
        pooler: match database.pooler {
            Pooler::None => pg::Pooler::None,
            Pooler::Transaction => pg::Pooler::Transaction,
        },
        listen: database.listens(),
        keep: config.retention.published_keep,
        shards: config.lease.shards,
        max_connections: database.max_connections,
        statement_timeout: database.statement_timeout.0,
    })))
}

#[cfg(not(feature = "postgres"))]
fn postgres(name: &str, _: &Database, _: &Config) -> Result<SourceOptions, ConfigError> {
    let words = format!("`databases.{name}`: this build has no postgres source");
    Err(ConfigError::one(words))
}

#[cfg(feature = "sqlite")]
fn sqlite(
    name: &str,
    path: PathBuf,
    database: &Database,
    config: &Config,
) -> Result<SourceOptions, ConfigError> {
    Ok(SourceOptions::Sqlite(source::sqlite::Options {
        name: name.to_owned(),
        path,
        keep: config.retention.published_keep,
        shards: config.lease.shards,
        statement_timeout: database.statement_timeout.0,
    }))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(name: &str, _: PathBuf, _: &Database, _: &Config) -> Result<SourceOptions, ConfigError> {
    let words = format!("`databases.{name}`: this build has no sqlite source");
    Err(ConfigError::one(words))
}

fn open(name: &str, options: SourceOptions) -> Result<Outbox, ConfigError> {
    let refused =
        |error: source::SourceError| ConfigError::one(format!("`databases.{name}`: {error}"));
    match options {
        #[cfg(feature = "postgres")]
        SourceOptions::Postgres(options) => source::postgres::Postgres::new(*options)
            .map(both_sides)
            .map_err(refused),
        #[cfg(feature = "sqlite")]
        SourceOptions::Sqlite(options) => source::sqlite::Sqlite::new(options)
            .map(both_sides)
            .map_err(refused),
    }
}

fn both_sides<T: Source + Admin>(source: T) -> Outbox {
    let source = Arc::new(source);
    Outbox {
        source: source.clone(),
        admin: source,
    }
}

#[cfg(feature = "nats")]
fn nats(
    name: &str,
    sink: &Sink,
    config: &Config,
) -> Result<Arc<dyn crate::sink::Sink>, ConfigError> {
    let options = nats_options(name, sink, config)?;
    match crate::sink::nats::Nats::new(options) {
        Ok(sink) => Ok(Arc::new(sink)),
        Err(error) => Err(ConfigError::one(format!("`sinks.{name}`: {error}"))),
    }
}

#[cfg(not(feature = "nats"))]
fn nats(name: &str, _: &Sink, _: &Config) -> Result<Arc<dyn crate::sink::Sink>, ConfigError> {
    let words = format!("`sinks.{name}`: this build has no nats sink");
    Err(ConfigError::one(words))
}

#[cfg(feature = "nats")]
fn nats_options(
    name: &str,
    sink: &Sink,
    config: &Config,
) -> Result<crate::sink::nats::Options, ConfigError> {
    use secrecy::ExposeSecret;

    use super::Mode;
    use super::address::NatsAddress;
    use crate::sink::nats;

    let url = sink.url.as_ref().map_or("", |url| url.expose_secret());
    let address = NatsAddress::parse(url)
        .map_err(|words| ConfigError::one(format!("`sinks.{name}.url`: {words}")))?;
    Ok(nats::Options {
        name: name.to_owned(),
        url: address.servers,
        user: address.user.or_else(|| sink.user.clone()),
        password: address
            .password
            .or_else(|| sink.password.as_ref().map(|secret| secret.0.clone())),
        password_file: sink.password_file.clone(),
        token: address
            .token
            .or_else(|| sink.token.as_ref().map(|secret| secret.0.clone())),
        token_file: sink.token_file.clone(),
        creds_file: sink.creds_file.clone(),
        tls: sink.tls,
        ca_file: sink.ca_file.clone(),
        client_cert_file: sink.client_cert_file.clone(),
        client_key_file: sink.client_key_file.clone(),
        stream: sink.stream.clone().unwrap_or_default(),
        create_stream: sink.create_stream,
        subject: sink.subject.clone(),
        mode: match sink.mode {
            Mode::Auto => nats::Mode::Auto,
            Mode::Lane => nats::Mode::Lane,
            Mode::Atomic => nats::Mode::Atomic,
            Mode::Single => nats::Mode::Single,
        },
        repeats_within: relay::repeats_within(config.lease.ttl.0, sink.publish_timeout.0),
    })
}

#[cfg(all(test, feature = "postgres", feature = "sqlite", feature = "nats"))]
mod tests;
