//! The sink `nats` against real servers, and against a scripted one for what real servers rarely do.

mod atomic;
pub mod bench;
mod cut;
mod fake;
mod lane;
mod limits;
mod logins;
mod loss;
mod opening;
mod patience;
mod throughput;
mod tls;
mod trail;
