//! What cannot work, and what is probably not meant. Every check runs, so that one look shows all of it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::load::Broken;
use super::{Config, Span};

mod database;
mod route;
mod sink;

/// Shortest lease: below it the margin of the owner's own clock leaves no time to work.
const SHORTEST_TTL: Duration = Duration::from_secs(3);

/// Everything that cannot work. `given` are the keys that were written down, with their origin.
/// In a section with a mistake in it already, only what is there is judged.
pub(super) fn problems(
    config: &Config,
    given: &BTreeMap<String, String>,
    broken: &Broken,
) -> Vec<String> {
    let mut found = Findings {
        given,
        broken,
        sound: true,
        problems: Vec::new(),
    };
    found.service(config);
    // What a source or a sink would say of itself may follow from these.
    found.sound =
        found.problems.is_empty() && ["lease", "retention"].iter().all(|one| broken.spares(one));
    for (name, database) in &config.databases {
        found.database(name, database, config);
    }
    found.same_outbox_twice(config);
    for (name, sink) in &config.sinks {
        found.sink(name, sink, config);
    }
    found.same_destination_twice(config);
    for (name, route) in &config.routes {
        found.route(name, route, config);
    }
    found.problems
}

/// What is allowed but probably not meant.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.sinks.is_empty() {
        warnings.push("no sinks are configured: every event stays pending".to_owned());
    } else if config.routes.is_empty() {
        warnings.push("no routes are configured: every event stays pending".to_owned());
    }
    for name in config.sinks.keys() {
        let used = config
            .routes
            .values()
            .any(|route| route.sinks.contains(name));
        if !used && !config.routes.is_empty() {
            warnings.push(format!("`sinks.{name}` is in no route: it gets no events"));
        }
    }
    let mut patterns: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, route) in &config.routes {
        for kind in route.kinds.iter() {
            if let Some(first) = patterns.insert(kind, name) {
                patterns.insert(kind, first);
                warnings.push(format!(
                    "`routes.{first}` and `routes.{name}` both take the kinds `{kind}`: events go by \
                     `routes.{first}` only"
                ));
            }
        }
    }
    warnings
}

struct Findings<'a> {
    given: &'a BTreeMap<String, String>,
    broken: &'a Broken,
    /// The sections of the service are free of mistakes.
    sound: bool,
    problems: Vec<String>,
}

impl Findings<'_> {
    fn add(&mut self, key: &str, words: impl std::fmt::Display) {
        // What is missing in such a section may stand there under another name; what is there is judged.
        let path: Vec<&str> = key.split('.').collect();
        let section = super::keys::section_of(&path);
        let is_there = key != section && self.given.contains_key(key);
        if !self.broken.spares(&section) && !is_there {
            return;
        }
        let origin = self
            .given
            .get(key)
            .filter(|origin| !origin.is_empty())
            .map_or_else(String::new, |origin| format!(" ({origin})"));
        self.problems.push(format!("`{key}`{origin}: {words}"));
    }

    fn is_given(&self, section: &str, key: &str) -> bool {
        self.given.contains_key(&format!("{section}.{key}"))
    }

    /// At most one of these keys may be given; names those that are.
    fn exclusive(&mut self, section: &str, keys: &[&str], why: &str) {
        let both: Vec<&str> = keys
            .iter()
            .copied()
            .filter(|key| self.is_given(section, key))
            .collect();
        if both.len() > 1 {
            let list = both.join("` and `");
            self.add(section, format_args!("`{list}` are both set; {why}"));
        }
    }

    /// Neither of these keys makes sense without the other.
    fn pair(&mut self, section: &str, one: &str, other: &str) {
        for (given, missing) in [(one, other), (other, one)] {
            if self.is_given(section, given) && !self.is_given(section, missing) {
                self.add(
                    &format!("{section}.{given}"),
                    format_args!("it needs `{missing}` beside it"),
                );
            }
        }
    }

    fn service(&mut self, config: &Config) {
        let retry = &config.retry;
        self.retry("retry", retry.max_attempts, retry.base.0, retry.max.0);
        if config.lease.ttl.0 < SHORTEST_TTL {
            self.add("lease.ttl", "at least 3s");
        }
        if !(1..=1_024).contains(&config.lease.shards) {
            self.add("lease.shards", "from 1 to 1024");
        }
        self.spans(
            "retention",
            &[
                ("published", Some(config.retention.published)),
                ("discarded", Some(config.retention.discarded)),
            ],
        );
        if crate::logging::filter(&config.log.level).is_err() {
            self.add(
                "log.level",
                "expected error, warn, info, debug or trace, with exceptions such as info,sqlx=debug",
            );
        }
    }

    /// Spans of no length at all make loops without a pause.
    fn spans(&mut self, section: &str, spans: &[(&str, Option<Span>)]) {
        for (key, span) in spans {
            if span.is_some_and(|span| span.0.is_zero()) {
                self.add(&format!("{section}.{key}"), "longer than 0s");
            }
        }
    }
}
