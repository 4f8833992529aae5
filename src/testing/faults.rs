//! Sources and sinks that fail on demand, around any others.

mod plan;
mod sink;
mod source;

pub use plan::{Plan, When};
pub use sink::{Call, FaultySink, SinkFaults, SinkOp};
pub use source::{Faults, FaultySource, Op};
