//! outboxd: a transactional-outbox relay.
//!
//! Applications insert events into an outbox table inside their own database transaction; the relay
//! delivers each committed event at least once, in order per ordering key, through any crash or outage.
//!
//! The door is [`relay`]; the two seams are [`source::Source`] and [`sink::Sink`].

pub mod actor;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod config;
pub mod envelope;
pub mod event;
#[cfg(any(feature = "cli", feature = "postgres", feature = "nats"))]
mod files;
#[cfg(feature = "cli")]
pub mod http;
pub mod lease;
#[cfg(feature = "cli")]
pub mod logging;
#[cfg(feature = "cli")]
pub mod metrics;
pub mod relay;
pub mod retry;
pub mod route;
pub mod sink;
pub mod source;
pub mod status;
pub mod telemetry;
pub mod testing;
#[cfg(any(feature = "postgres", feature = "nats"))]
mod tls;
pub mod verify;

pub use ractor;
