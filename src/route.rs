//! Which events go to which sinks.

use std::sync::Arc;

use crate::retry::Policy;

/// One route: kind patterns to sinks, with the rule for failures.
#[derive(Debug, Clone)]
pub struct Route {
    /// The name from configuration (`routes.NAME`).
    pub name: String,
    /// Exact kinds, or a trailing `*` for a prefix.
    pub kinds: Vec<String>,
    /// Names of the sinks, as every outcome and settlement carries them.
    pub sinks: Arc<[Arc<str>]>,
    /// How failures are tried again.
    pub retry: Policy,
}

impl Route {
    /// How well this route fits `kind`: the length of the matched pattern's fixed part, exact matches first.
    fn fit(&self, kind: &str) -> Option<usize> {
        self.kinds
            .iter()
            .filter_map(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => kind.starts_with(prefix).then_some(prefix.len()),
                None => (pattern == kind).then_some(usize::MAX),
            })
            .max()
    }
}

/// All routes of a relay. An event follows exactly one: the one whose pattern fits best (exact before
/// prefix, longer prefix before shorter, then by name).
#[derive(Debug, Clone, Default)]
pub struct Routes(Arc<[Arc<Route>]>);

impl Routes {
    /// Orders the routes by name, so that ties do not depend on the order of a file.
    pub fn new(mut routes: Vec<Route>) -> Self {
        routes.sort_by(|a, b| a.name.cmp(&b.name));
        Self(routes.into_iter().map(Arc::new).collect())
    }

    /// The route of `kind`; `None` when nothing fits: the event then stays in the outbox.
    pub fn of(&self, kind: &str) -> Option<&Arc<Route>> {
        let mut best: Option<(usize, &Arc<Route>)> = None;
        for route in self.0.iter() {
            if let Some(fit) = route.fit(kind)
                && best.is_none_or(|(other, _)| fit > other)
            {
                best = Some((fit, route));
            }
        }
        best.map(|(_, route)| route)
    }

    /// The route of `kind`, if it leads to `sink`.
    pub fn to_sink(&self, kind: &str, sink: &str) -> Option<&Arc<Route>> {
        self.of(kind)
            .filter(|route| route.sinks.iter().any(|name| &**name == sink))
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(name: &str, kinds: &[&str], sinks: &[&str]) -> Route {
        Route {
            name: name.into(),
            kinds: kinds.iter().map(|k| (*k).into()).collect(),
            sinks: sinks.iter().map(|s| Arc::from(*s)).collect(),
            retry: Policy::default(),
        }
    }

    #[test]
    fn the_best_fit_wins_whatever_the_order() {
        let routes = Routes::new(vec![
            route("all", &["*"], &["a"]),
            route("auth", &["auth.*"], &["b"]),
            route("login", &["auth.login.create"], &["c"]),
        ]);
        let name = |kind: &str| routes.of(kind).map(|r| r.name.clone());
        assert_eq!(name("auth.login.create").as_deref(), Some("login"));
        assert_eq!(name("auth.login.created").as_deref(), Some("auth"));
        assert_eq!(name("orders.paid").as_deref(), Some("all"));
    }

    #[test]
    fn a_kind_without_a_route_has_none() {
        let routes = Routes::new(vec![route("auth", &["auth.*"], &["b"])]);
        assert!(routes.of("orders.paid").is_none());
        assert!(routes.to_sink("auth.x", "a").is_none());
        assert!(routes.to_sink("auth.x", "b").is_some());
    }
}
