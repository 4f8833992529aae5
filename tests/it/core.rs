//! The whole tree over a source and a sink in memory: what real servers cannot be made to do on cue.

mod bench;
pub mod chaos;
mod crash;
mod failures;
mod lanes;
mod life;
mod operate;
mod order;
mod races;
mod routes;
mod sharing;
mod skip;
