//! Who does what with an outbox in PostgreSQL: everybody has the rights that `outboxd migrate --print-grants` prints,
//! and nobody is a superuser.

use std::time::Duration;

use outboxd::source::Source;
use outboxd::source::admin::{Admin, Roles};
use outboxd::source::postgres::{Options, Postgres};

use super::postgres::Database;

/// Who does what with an outbox. What the four last may do is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// May create a schema: migrates, and looks at everything.
    Owner,
    /// Runs the relay.
    Relay,
    /// Inserts events.
    Writer,
    /// Looks.
    Viewer,
    /// Pauses, skips, requeues and drops.
    Operator,
}

impl Role {
    pub const ALL: [Self; 5] = [
        Self::Owner,
        Self::Relay,
        Self::Writer,
        Self::Viewer,
        Self::Operator,
    ];

    /// Its name, the same on every server.
    pub fn name(self) -> &'static str {
        match self {
            Self::Owner => "test_owner",
            Self::Relay => "test_relay",
            Self::Writer => "test_writer",
            Self::Viewer => "test_viewer",
            Self::Operator => "test_operator",
        }
    }
}

/// Options for a URL, as configuration would fill them in.
pub fn options(url: &str) -> Options {
    Options {
        max_connections: 4,
        statement_timeout: Duration::from_secs(5),
        ..Options::new("orders", Some(url.to_owned().into()))
    }
}

/// Creates the outbox as its owner, and gives every role what it needs.
pub async fn migrate(database: &Database) {
    migrate_in(database, "outbox", 16).await;
}

/// The same in this schema.
pub async fn migrate_in(database: &Database, schema: &str, shards: u16) {
    let mut options = options(&database.url_of(Role::Owner));
    options.schema = schema.into();
    options.shards = shards;
    let owner = Postgres::new(options).unwrap();
    owner.migrate().await.unwrap();
    database.execute(&grants(&owner)).await;
    owner.close().await;
}

/// The printed grants, for the roles of the tests.
pub fn grants(source: &Postgres) -> String {
    let roles = Roles {
        relay: Role::Relay.name().into(),
        writer: Role::Writer.name().into(),
        viewer: Role::Viewer.name().into(),
        operator: Role::Operator.name().into(),
    };
    source.grants(&roles).unwrap()
}
