//! What cannot work, and what is probably not meant. Every check runs, so that one look shows all of it.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::ExposeSecret;

use super::address::{DatabaseAddress, NatsAddress};
use super::{Config, Database, Route, Sink, SinkType, Span, Wake};
use crate::lease::SAFETY_MARGIN;

/// Shortest lease: below it the margin of the owner's own clock leaves no time to work.
const SHORTEST_TTL: Duration = Duration::from_secs(3);

/// Everything that cannot work. `given` are the keys that were written down, with their origin.
pub(super) fn problems(config: &Config, given: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Findings {
        given,
        problems: Vec::new(),
    };
    for (name, database) in &config.databases {
        found.database(name, database);
    }
    found.same_outbox_twice(config);
    for (name, sink) in &config.sinks {
        found.sink(name, sink, config);
    }
    found.same_destination_twice(config);
    for (name, route) in &config.routes {
        found.route(name, route, config);
    }
    found.service(config);
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
    problems: Vec<String>,
}

impl Findings<'_> {
    fn add(&mut self, key: &str, words: impl std::fmt::Display) {
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

    fn database(&mut self, name: &str, database: &Database) {
        let section = format!("databases.{name}");
        self.exclusive(&section, &["url", "url_file"], "keep one");
        self.exclusive(&section, &["password", "password_file"], "keep one");
        let by_url = database.url.is_some() || database.url_file.is_some();
        if by_url {
            let fields = ["host", "port", "user", "dbname"];
            for key in fields
                .iter()
                .filter(|key| self.is_given(&section, key))
                .copied()
                .collect::<Vec<_>>()
            {
                self.add(
                    &format!("{section}.{key}"),
                    "a database is given either by its url or by host, port, user and dbname, not by both",
                );
            }
        } else if database.host.is_none() {
            self.add(&section, "no address: set `url`, `url_file` or `host`");
            return;
        }
        match database.address() {
            Err(words) => {
                let key = if database.url.is_some() {
                    "url"
                } else {
                    "url_file"
                };
                let words = match words.strip_prefix("invalid url") {
                    Some(rest) => format!("invalid url for database {name}{rest}"),
                    None => words,
                };
                self.add(&format!("{section}.{key}"), words);
            }
            Ok(DatabaseAddress::Sqlite(_)) if !cfg!(feature = "sqlite") => {
                self.add(&section, "this build has no sqlite source");
            }
            Ok(DatabaseAddress::Postgres { .. }) if !cfg!(feature = "postgres") => {
                self.add(&section, "this build has no postgres source");
            }
            Ok(DatabaseAddress::Sqlite(_)) => self.sqlite(&section),
            Ok(DatabaseAddress::Postgres {
                with_password,
                with_tls,
            }) => self.postgres(&section, database, with_password, with_tls),
        }
        self.spans(
            &section,
            &[
                ("poll_max", database.poll_max),
                ("quiet_after", database.quiet_after),
                ("sweep_every", Some(database.sweep_every)),
                ("statement_timeout", Some(database.statement_timeout)),
            ],
        );
    }

    /// Keys that an SQLite file has no use for.
    fn sqlite(&mut self, section: &str) {
        const NOT_FOR_SQLITE: [&str; 9] = [
            "password",
            "password_file",
            "tls",
            "ca_file",
            "schema",
            "gap_guard",
            "wake",
            "pooler",
            "max_connections",
        ];
        for key in NOT_FOR_SQLITE {
            if self.is_given(section, key) {
                self.add(
                    &format!("{section}.{key}"),
                    "an sqlite database has no such key; it belongs to postgres",
                );
            }
        }
    }

    fn postgres(
        &mut self,
        section: &str,
        database: &Database,
        with_password: bool,
        with_tls: bool,
    ) {
        for key in ["password", "password_file"] {
            if with_password && self.is_given(section, key) {
                self.add(
                    &format!("{section}.{key}"),
                    "the url holds a password already; keep one",
                );
            }
        }
        for key in ["tls", "ca_file"] {
            if with_tls && self.is_given(section, key) {
                self.add(
                    &format!("{section}.{key}"),
                    "the url says something about encryption already; keep one",
                );
            }
        }
        if database.schema.is_empty()
            || database.schema.len() > 63
            || database.schema.contains('\0')
        {
            self.add(
                &format!("{section}.schema"),
                "a schema's name has 1 to 63 bytes",
            );
        }
        if database.max_connections < 2 {
            self.add(
                &format!("{section}.max_connections"),
                "at least 2: leases are renewed while a statement runs",
            );
        }
        if database.quiet_after.is_some() && !database.listens() {
            let other = if database.wake == Wake::Poll {
                "wake = \"poll\""
            } else {
                "a pooler"
            };
            self.add(
                &format!("{section}.quiet_after"),
                format_args!(
                    "with {other} nothing would wake a quiet database; it needs wake = \"auto\" and pooler = \
                     \"none\""
                ),
            );
        }
    }

    fn sink(&mut self, name: &str, sink: &Sink, config: &Config) {
        let section = format!("sinks.{name}");
        let Some(kind) = sink.kind else {
            self.add(&section, "no type: set `type` to nats, file or stdout");
            return;
        };
        let strangers: Vec<(String, SinkType)> = self
            .given
            .keys()
            .filter_map(|key| key.strip_prefix(&format!("{section}.")))
            .filter_map(|key| SinkType::owner_of(key).map(|owner| (key.to_owned(), owner)))
            .filter(|(_, owner)| *owner != kind)
            .collect();
        for (key, owner) in strangers {
            self.add(
                &format!("{section}.{key}"),
                format_args!(
                    "a {} sink has no such key; it belongs to type {}",
                    kind.as_str(),
                    owner.as_str()
                ),
            );
        }
        match kind {
            SinkType::Nats => self.nats(&section, name, sink),
            SinkType::File if sink.path.as_ref().is_none_or(|p| p.as_os_str().is_empty()) => {
                self.add(&section, "a file sink needs `path`");
            }
            SinkType::File | SinkType::Stdout => {}
        }
        self.limits(&section, sink, config);
    }

    fn limits(&mut self, section: &str, sink: &Sink, config: &Config) {
        self.spans(section, &[("publish_timeout", Some(sink.publish_timeout))]);
        let longest = config.lease.ttl.0.saturating_sub(SAFETY_MARGIN);
        if config.lease.ttl.0 >= SHORTEST_TTL && sink.publish_timeout.0 >= longest {
            self.add(
                &format!("{section}.publish_timeout"),
                format_args!(
                    "{} is too long for `lease.ttl` = {}: it must be below {}, or an answer could come after \
                     ownership has ended",
                    sink.publish_timeout,
                    config.lease.ttl,
                    Span(longest)
                ),
            );
        }
        if sink.max_in_flight == 0 {
            self.add(&format!("{section}.max_in_flight"), "at least 1");
        }
        if sink.max_in_flight_bytes.0 == 0 {
            self.add(&format!("{section}.max_in_flight_bytes"), "at least 1B");
        }
    }

    fn nats(&mut self, section: &str, name: &str, sink: &Sink) {
        if !cfg!(feature = "nats") {
            self.add(section, "this build has no nats sink");
        }
        self.exclusive(section, &["password", "password_file"], "keep one");
        self.exclusive(section, &["token", "token_file"], "keep one");
        for (user, other) in [
            ("user", "token"),
            ("user", "token_file"),
            ("user", "creds_file"),
        ] {
            self.exclusive(section, &[user, other], "keep one way to log in");
        }
        let has_password =
            self.is_given(section, "password") || self.is_given(section, "password_file");
        if has_password && sink.user.is_none() {
            self.add(section, "a password without `user`");
        }
        if sink.stream.as_deref().is_none_or(str::is_empty) {
            self.add(section, "a nats sink needs `stream`");
        }
        if sink.subject.trim().is_empty() {
            self.add(&format!("{section}.subject"), "it is empty");
        }
        let Some(url) = &sink.url else {
            self.add(section, "a nats sink needs `url`");
            return;
        };
        match NatsAddress::parse(url.expose_secret()) {
            Err(words) => {
                let words = words.strip_prefix("invalid url").unwrap_or(words);
                self.add(
                    &format!("{section}.url"),
                    format_args!("invalid url for sink {name}{words}"),
                );
            }
            Ok(address) if address.user.is_some() || address.token.is_some() => {
                for key in ["user", "token", "token_file", "creds_file"] {
                    if self.is_given(section, key) {
                        self.add(
                            &format!("{section}.{key}"),
                            "the url holds a login already; keep one",
                        );
                    }
                }
            }
            Ok(_) => {}
        }
    }

    fn route(&mut self, name: &str, route: &Route, config: &Config) {
        let section = format!("routes.{name}");
        if route.kinds.is_empty() {
            self.add(&section, "no kinds: set `kinds`, for example to [\"*\"]");
        }
        for kind in route.kinds.iter() {
            let fixed = kind.strip_suffix('*').unwrap_or(kind);
            if kind.is_empty() || fixed.contains('*') {
                self.add(
                    &format!("{section}.kinds"),
                    format_args!("`{kind}`: a kind is exact, or ends in one `*`"),
                );
            }
        }
        if route.sinks.is_empty() {
            self.add(&section, "no sinks: set `sinks`");
        }
        for (index, sink) in route.sinks.iter().enumerate() {
            if !config.sinks.contains_key(sink) {
                let known: Vec<&str> = config.sinks.keys().map(String::as_str).collect();
                let known = match known.as_slice() {
                    [] => "there are none".to_owned(),
                    known => format!("there is {}", known.join(", ")),
                };
                self.add(
                    &format!("{section}.sinks"),
                    format_args!("there is no sink `{sink}`; {known}"),
                );
            } else if route.sinks[..index].contains(sink) {
                self.add(
                    &format!("{section}.sinks"),
                    format_args!("`{sink}` is listed twice"),
                );
            }
        }
        let policy = route.policy(&config.retry);
        if self.given.contains_key(&format!("{section}.retry")) {
            self.retry(
                &format!("{section}.retry"),
                policy.max_attempts,
                policy.base,
                policy.max,
            );
        }
    }

    fn retry(&mut self, section: &str, max_attempts: u32, base: Duration, max: Duration) {
        if max_attempts == 0 {
            self.add(&format!("{section}.max_attempts"), "at least 1");
        }
        if base.is_zero() {
            self.add(&format!("{section}.base"), "longer than 0s");
        }
        if max < base {
            self.add(
                &format!("{section}.max"),
                format_args!("{} is less than base = {}", Span(max), Span(base)),
            );
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

    /// Two names for one outbox: the two would take each other's leases for ever.
    fn same_outbox_twice(&mut self, config: &Config) {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for (name, database) in &config.databases {
            let address = match (database.url_text(), &database.host) {
                (Ok(Some(url)), _) => url.expose_secret().to_owned(),
                (_, Some(host)) => {
                    format!("{host} {:?} {:?}", database.port, database.dbname)
                }
                _ => continue,
            };
            let outbox = format!("{address} {}", database.schema);
            if let Some(first) = seen.insert(outbox, name) {
                self.add(
                    &format!("databases.{name}"),
                    format_args!("the same outbox as `databases.{first}`; keep one"),
                );
            }
        }
    }

    /// Two sinks into one stream: the message ids are the same, so the second copy is dropped as a
    /// duplicate. Two into one file: lines in the middle of lines.
    fn same_destination_twice(&mut self, config: &Config) {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for (name, sink) in &config.sinks {
            let destination = match (sink.kind, &sink.url, &sink.stream, &sink.path) {
                (Some(SinkType::Nats), Some(url), Some(stream), _) => {
                    match NatsAddress::parse(url.expose_secret()) {
                        Ok(address) => format!("{} {stream}", address.servers),
                        Err(_) => continue,
                    }
                }
                (Some(SinkType::File), _, _, Some(path)) => path.display().to_string(),
                (Some(SinkType::Stdout), ..) => "standard output".to_owned(),
                _ => continue,
            };
            if let Some(first) = seen.insert(destination, name) {
                self.add(
                    &format!("sinks.{name}"),
                    format_args!(
                        "the same destination as `sinks.{first}`: the second copy of an event would be dropped \
                         as a duplicate, or mixed up with the first; keep one"
                    ),
                );
            }
        }
    }
}
