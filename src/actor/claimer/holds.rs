//! What operators hold back, as one feed sees it.

use std::collections::HashSet;

use crate::source::{Pause, Target};

/// The pauses that concern one feed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holds {
    /// The source, or the sink: nothing moves.
    all: bool,
    routes: HashSet<String>,
    keys: HashSet<String>,
}

impl Holds {
    /// Those of `pauses` that concern the feed to `sink`.
    pub fn of(pauses: &[Pause], sink: &str) -> Self {
        let mut holds = Self::default();
        for pause in pauses {
            match &pause.target {
                Target::Source => holds.all = true,
                Target::Sink { name } => holds.all |= name == sink,
                Target::Route { name } => {
                    holds.routes.insert(name.clone());
                }
                Target::Key { name, sink: of } => {
                    if of.as_deref().is_none_or(|of| of == sink) {
                        holds.keys.insert(name.clone());
                    }
                }
            }
        }
        holds
    }

    /// Nothing of the feed moves.
    pub fn all(&self) -> bool {
        self.all
    }

    /// Something is held back.
    pub fn any(&self) -> bool {
        self.all || !self.routes.is_empty() || !self.keys.is_empty()
    }

    /// Does an event of this key, on this route, have to wait?
    pub fn hold(&self, key: Option<&str>, route: &str) -> bool {
        // Nearly always both are empty.
        (!self.routes.is_empty() && self.routes.contains(route))
            || key.is_some_and(|key| !self.keys.is_empty() && self.keys.contains(key))
    }

    /// Compared with `before`: may events of any key have to wait now that had not to?
    pub fn widen(&self, before: &Self) -> bool {
        (self.all && !before.all) || !self.routes.is_subset(&before.routes)
    }

    /// Compared with `before`: does this key have to wait now, and had not to?
    pub fn add(&self, before: &Self, key: &str) -> bool {
        self.keys.contains(key) && !before.keys.contains(key)
    }

    /// Compared with `before`: may something go on?
    pub fn release(&self, before: &Self) -> bool {
        (before.all && !self.all)
            || !before.routes.is_subset(&self.routes)
            || !before.keys.is_subset(&self.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(target: Target) -> Pause {
        Pause {
            target,
            by: "op".into(),
            since: "now".into(),
            reason: None,
        }
    }

    fn key(name: &str, sink: Option<&str>) -> Pause {
        pause(Target::Key {
            name: name.into(),
            sink: sink.map(str::to_owned),
        })
    }

    #[test]
    fn a_feed_sees_what_concerns_it() {
        let pauses = [
            pause(Target::Sink { name: "b".into() }),
            pause(Target::Route { name: "r".into() }),
            key("k", None),
            key("l", Some("b")),
        ];
        let (a, b) = (Holds::of(&pauses, "a"), Holds::of(&pauses, "b"));
        assert!(!a.all() && b.all());
        assert!(a.hold(None, "r") && a.hold(Some("k"), "x") && !a.hold(Some("l"), "x"));
        assert!(b.hold(Some("l"), "x") && !b.hold(None, "x"));
        assert!(Holds::of(&[pause(Target::Source)], "a").all());
        assert!(!Holds::default().any() && a.any());
    }

    #[test]
    fn changes_are_told_apart() {
        let none = Holds::default();
        let route = Holds::of(&[pause(Target::Route { name: "r".into() })], "a");
        let one = Holds::of(&[key("k", None)], "a");
        assert!(route.widen(&none) && !one.widen(&none) && !none.widen(&route));
        assert!(one.add(&none, "k") && !one.add(&one, "k") && !one.add(&none, "l"));
        assert!(none.release(&route) && none.release(&one) && !route.release(&none));
        assert!(one.release(&route) && one.add(&route, "k"));
    }
}
