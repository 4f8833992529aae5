//! `[routes.NAME]` and `[retry]`: which events go where, and what follows a failure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{self, List, Span};
use crate::retry::{OnExhausted, Policy};

/// One route. An event follows exactly one: the one whose pattern fits best (exact before prefix, longer
/// prefix before shorter, then by name).
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Route {
    /// Kinds: exact, or with a trailing `*` for a prefix. Required.
    pub kinds: List,
    /// Names of sinks. Required.
    pub sinks: List,
    /// What happens to an event whose attempts are used up: `discard` (it is set aside, its key moves on)
    /// or `block` (its key waits for an operator). Default: `discard`.
    #[serde(deserialize_with = "value::word")]
    pub on_exhausted: OnExhausted,
    /// Overrides of `[retry]` for this route.
    pub retry: RouteRetry,
}

/// `[routes.NAME.retry]`: what is absent is taken from `[retry]`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RouteRetry {
    /// Charged failures after which an event is exhausted. Default: `retry.max_attempts`.
    #[serde(deserialize_with = "value::some_number")]
    pub max_attempts: Option<u32>,
    /// Pause after the first charged failure; doubles with each further one. Default: `retry.base`.
    pub base: Option<Span>,
    /// Longest pause. Default: `retry.max`.
    pub max: Option<Span>,
}

/// `[retry]`: how an event that failed by its own fault is tried again. An outage charges nothing.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Charged failures after which an event is exhausted. Default: 50.
    #[serde(deserialize_with = "value::number")]
    pub max_attempts: u32,
    /// Pause after the first charged failure; doubles with each further one. Default: 2 s.
    pub base: Span,
    /// Longest pause. Default: 256 s.
    pub max: Span,
}

impl Default for Retry {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            max_attempts: policy.max_attempts,
            base: Span(policy.base),
            max: Span(policy.max),
        }
    }
}

impl Route {
    /// The rule for this route's failures, with `[retry]` where the route says nothing.
    pub fn policy(&self, general: &Retry) -> Policy {
        Policy {
            max_attempts: self.retry.max_attempts.unwrap_or(general.max_attempts),
            base: self.retry.base.unwrap_or(general.base).0,
            max: self.retry.max.unwrap_or(general.max).0,
            on_exhausted: self.on_exhausted,
        }
    }
}
