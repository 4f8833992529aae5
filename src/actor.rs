//! The tree: who lives, who restarts whom, and what runs between them.
//!
//! ```text
//! supervisor                       one per relay
//! ├── publisher "events"           one per sink
//! └── database "orders"            one per source
//!     ├── settler                  writes outcomes
//!     ├── keeper                   housekeeping
//!     └── claimer                  owns shards, reads
//!         ├── sequencer "42"       one per ordering key with work
//!         └── sequencer "77"
//! ```
//!
//! Policies, budgets and what a failure loses stand in [`restart::TABLE`].

pub mod claimer;
pub mod database;
pub mod handle;
pub mod keeper;
pub mod permits;
pub mod publisher;
pub mod restart;
pub mod sequencer;
pub mod settler;
pub mod supervisor;
pub mod tree;
