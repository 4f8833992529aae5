//! The last word of a test whose end is known to be good: what the database delivered and what the sink holds fit.

use std::time::Duration;

use outboxd::event::Timestamp;
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::Sink;
use outboxd::source::PublishedKeep;
use outboxd::source::admin::Admin;
use outboxd::source::trail::Window;
use outboxd::verify::{self, Feed, MOST_EVENTS, Report};

/// Compares the last hour of database `orders` with the sink of this name. What happens meanwhile is judged as well.
pub async fn report(admin: &dyn Admin, name: &str, sink: &dyn Sink) -> Report {
    let now = Timestamp::now().0;
    let route = Route {
        name: "all".into(),
        kinds: vec!["*".into()],
        sinks: [name.into()].into(),
        retry: Policy::default(),
    };
    let feed = Feed {
        database: "orders",
        admin,
        name,
        sink,
        routes: &Routes::new(vec![route]),
        window: Window {
            since: Timestamp(now - 3_600_000_000),
            until: Timestamp(now + 3_600_000_000),
        },
        keep: PublishedKeep::Full,
        retention: Duration::from_secs(7 * 86_400),
        most: MOST_EVENTS,
    };
    verify::feed(&feed).await.unwrap()
}

/// Nothing of it is wrong.
#[track_caller]
pub fn assert_fits(report: &Report) {
    let found: Vec<_> = report
        .findings()
        .map(|(sort, found)| (sort, found.count, found.first.first()))
        .into();
    assert!(report.ok && report.read_back, "{found:?} in {report:?}");
}
