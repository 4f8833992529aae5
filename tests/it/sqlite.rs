//! What only SQLite can do wrong.

mod hostile;
mod locks;
mod measure;
mod plans;
mod schema;
mod waking;
