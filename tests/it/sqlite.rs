//! What only SQLite can do wrong.

pub mod hostile;
mod locks;
mod measure;
mod plans;
mod schema;
mod waking;
