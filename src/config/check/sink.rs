//! Checks of `[sinks.NAME]`.

use std::collections::BTreeMap;

use secrecy::ExposeSecret;

use super::{Findings, SHORTEST_TTL};
use crate::config::address::NatsAddress;
use crate::config::{Config, Sink, SinkType, Span, build};
use crate::lease::SAFETY_MARGIN;

impl Findings<'_> {
    pub(super) fn sink(&mut self, name: &str, sink: &Sink, config: &Config) {
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
        let before = self.problems.len();
        match kind {
            SinkType::Nats => self.nats(&section, name, sink),
            SinkType::File if sink.path.as_ref().is_none_or(|p| p.as_os_str().is_empty()) => {
                self.add(&section, "a file sink needs `path`");
            }
            SinkType::File | SinkType::Stdout => {}
        }
        // What the sink itself refuses (a bad stream name, a bad subject), once the fields are all there.
        if self.problems.len() == before
            && self.sound
            && self.broken.spares(&section)
            && let Err(refusal) = build::sink(name, sink, config)
        {
            self.problems.extend(refusal.problems);
        }
        self.limits(&section, sink, config);
    }

    fn limits(&mut self, section: &str, sink: &Sink, config: &Config) {
        self.spans(section, &[("publish_timeout", Some(sink.publish_timeout))]);
        let longest = config.lease.ttl.0.saturating_sub(SAFETY_MARGIN);
        let sound = self.broken.spares("lease") && config.lease.ttl.0 >= SHORTEST_TTL;
        if sound && sink.publish_timeout.0 >= longest {
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
        self.pair(section, "client_cert_file", "client_key_file");
        for key in ["ca_file", "client_cert_file"] {
            if sink.tls == Some(false) && self.is_given(section, key) {
                self.add(
                    &format!("{section}.{key}"),
                    "with tls = false everything goes in plain text; set tls = true, or leave it out",
                );
            }
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
            Ok(address) if address.tls && sink.tls == Some(false) => {
                self.add(
                    &format!("{section}.tls"),
                    "the url asks for encryption (tls://) and this refuses it; keep one",
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

    /// Two sinks into one stream: the message ids are the same, so the second copy is dropped as a
    /// duplicate. Two into one file: lines in the middle of lines.
    pub(super) fn same_destination_twice(&mut self, config: &Config) {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for (name, sink) in &config.sinks {
            let mut first = None;
            for destination in destinations(sink) {
                first = first.or(seen.insert(destination, name));
            }
            if let Some(first) = first {
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

/// What a sink writes to, by each of its names: one stream is reached through any of its servers.
fn destinations(sink: &Sink) -> Vec<String> {
    match (sink.kind, &sink.url, &sink.stream, &sink.path) {
        (Some(SinkType::Nats), Some(url), Some(stream), _) => {
            match NatsAddress::parse(url.expose_secret()) {
                Ok(address) => address
                    .hosts()
                    .map(|host| format!("{host} {stream}"))
                    .collect(),
                Err(_) => Vec::new(),
            }
        }
        (Some(SinkType::File), _, _, Some(path)) => vec![path.display().to_string()],
        (Some(SinkType::Stdout), ..) => vec!["standard output".to_owned()],
        _ => Vec::new(),
    }
}
