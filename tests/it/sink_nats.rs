//! The sink `nats` against real servers, and against a scripted one for what real servers rarely do.

mod bench;
mod fake;
mod limits;
mod loss;
mod opening;
mod throughput;
mod tls;
