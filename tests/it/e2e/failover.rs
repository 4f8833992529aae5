//! A database that fails over to its standby: what the new primary holds is delivered, and soon; a server that takes no
//! writes delivers nothing.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::bench::Bench;
use crate::cli_run::get;
use crate::support::postgres::{Database, Server};
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::roles::Role;
use crate::support::{eventually, nats};

mod demoted;
mod moves;
mod starts;

/// An outage shows within this.
const SHOWN: Duration = Duration::from_secs(10);

/// It does so within this when nothing is answered and nothing refused: renewals begin every third of the lease and wait
/// for half of it.
const MISSED: Duration = Duration::from_secs(13);

/// A new event is sent within this, counted from when the new primary takes writes.
const RESUMED: Duration = Duration::from_secs(10);

/// A primary, its standby, and the name under which relay and writers find whichever is in charge.
struct Pair {
    old: Server,
    new: Server,
    replication: Proxy,
    /// The network in front of the old primary.
    way: Proxy,
    /// As the relay sees it.
    name: Proxy,
    /// As writers see it.
    writers: Proxy,
    bench: Bench,
    copy: Database,
}

impl Pair {
    async fn new(synchronous: bool, settings: &[(&str, &str)]) -> Self {
        let old = Server::start_own(&[]).await;
        let database = old.database().await;
        let replication = Proxy::to(old.address()).await;
        let new = old.standby(replication.port()).await;
        if synchronous {
            old.commits_wait_for_a_standby().await;
        }
        let copy = new.copy_of(&database);
        let way = Proxy::to(old.address()).await;
        let name = Proxy::to(way.address().to_string()).await;
        let writers = Proxy::to(way.address().to_string()).await;
        let url = database.url_through(name.port());
        let bench = Bench::over(database, nats::Server::start().await, &[]).await;
        let bench = bench.with(&[("databases.orders.url", &url)]).with(settings);
        Self {
            old,
            new,
            replication,
            way,
            name,
            writers,
            bench,
            copy,
        }
    }

    /// Where writers write, by name.
    fn writers_url(&self) -> String {
        let url = self.bench.database.url_of(Role::Writer);
        let own = format!(":{}/", self.old.port());
        url.replacen(&own, &format!(":{}/", self.writers.port()), 1)
    }

    /// The standby takes over; what it has had of the outbox until then.
    async fn promote(&mut self) -> HashSet<Uuid> {
        self.new.promote().await;
        self.bench.database = self.copy.clone();
        events_in(&self.copy).await
    }
}

/// Every event that a database knows: pending and published ones.
async fn events_in(database: &Database) -> HashSet<Uuid> {
    let ids: Vec<Uuid> =
        sqlx::query_scalar("select id from outbox.event union select id from outbox.published")
            .fetch_all(&mut database.connect().await)
            .await
            .unwrap();
    ids.into_iter().collect()
}

fn lines(service: &Process) -> usize {
    service.output().lines().count()
}

/// Waits until the service says that it is not ready, and this as the reason.
async fn unready(url: &str, why: &str) {
    eventually(SHOWN, "readiness says why not", || async {
        let answer = get(url, "/readyz").await?;
        let said = answer.starts_with("HTTP/1.1 503") && answer.contains(why);
        said.then_some(()).ok_or(answer)
    })
    .await;
}

async fn says(service: &Process, what: &str) {
    eventually(SHOWN, "the program says it", || {
        let output = service.output();
        async move { output.contains(what).then_some(()).ok_or(output) }
    })
    .await;
}

/// Looks all the time for so long.
async fn stays(span: Duration, look: impl Fn()) {
    let end = Instant::now() + span;
    eventually(2 * span, "the time is over", || {
        look();
        let over = Instant::now() >= end;
        async move { over.then_some(()).ok_or("not yet".to_owned()) }
    })
    .await;
}
