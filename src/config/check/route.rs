//! Checks of `[routes.NAME]` and `[retry]`.

use std::time::Duration;

use super::Findings;
use crate::config::{Config, Route, Span};

impl Findings<'_> {
    pub(super) fn route(&mut self, name: &str, route: &Route, config: &Config) {
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
            if !self.broken.spares(&format!("sinks.{sink}")) {
                continue;
            }
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

    pub(super) fn retry(
        &mut self,
        section: &str,
        max_attempts: u32,
        base: Duration,
        max: Duration,
    ) {
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
}
