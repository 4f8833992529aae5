//! What the integration tests stand on: real servers, a faulty network, and waiting without sleeping.
//!
//! ```ignore
//! use crate::support::{eventually, nats, postgres, proxy::{Mode, Proxy}};
//!
//! let database = postgres::server().await.database().await;   // a fresh database on the shared server
//! let mut nats = nats::Server::start().await;                 // a nats-server of this test alone
//! let network = Proxy::to(nats.address()).await;              // between the relay and it
//! network.set(Mode::Cut);
//! eventually(Duration::from_secs(10), "the feed is paused", || async { … }).await;
//! ```
//!
//! Everything a test starts ends with it: by `Drop`, or, if the test process is killed, by the guardian
//! that [`process`] puts beside every child.

// Each helper is used by some tests; which ones changes all the time.
#![allow(dead_code)]

pub mod certificates;
pub mod cluster;
mod eventually;
pub mod fake_nats;
pub mod nats;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod roles;
pub mod verified;

pub use eventually::eventually;
