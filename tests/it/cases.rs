//! Failures that others have reported of their outboxes, queues and relays, one test each: what went wrong there
//! must not go wrong here. Each test says in a sentence why it cannot.

mod bench;
mod configuration;
mod duplicates;
mod lanes;
mod loss;
mod observability;
mod order;
mod owners;
mod performance;
mod rights;
mod rows;
mod shutdown;
mod stuck;
mod tenants;
mod wakeup;
