//! Failures that others have reported of their outboxes, queues and relays, one test each: what went wrong there
//! must not go wrong here. Each test says in a sentence why it cannot.

mod bench;
mod configuration;
mod duplicates;
mod loss;
mod order;
mod shutdown;
mod stuck;
mod wakeup;
