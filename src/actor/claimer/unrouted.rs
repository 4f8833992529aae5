//! Events that no route takes, as far as reading forward has seen them since the shards were taken.

use std::collections::BTreeSet;

use crate::route::Routes;

/// Kinds remembered; there may be any number.
const KINDS: usize = 16;
/// Characters of a kind that are remembered: it may be any text.
const CHARS: usize = 200;

/// What stays in the outbox because nothing says where to.
#[derive(Debug, Default)]
pub struct Unrouted {
    kinds: BTreeSet<String>,
    news: u64,
}

impl Unrouted {
    /// Takes a row into account that is not for the sink of a feed.
    pub fn see(&mut self, kind: &str, routes: &Routes) {
        if routes.of(kind).is_some() {
            return;
        }
        self.news += 1;
        if self.kinds.len() < KINDS {
            self.kinds.insert(kind.chars().take(CHARS).collect());
        }
    }

    /// Their number since the last call, and their kinds: at most a few.
    pub fn take_news(&mut self) -> Option<(u64, Vec<String>)> {
        let news = std::mem::take(&mut self.news);
        (news > 0).then(|| (news, self.kinds.iter().cloned().collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::retry::Policy;
    use crate::route::Route;

    #[test]
    fn another_sinks_events_have_a_route_and_kinds_are_bounded() {
        let routes = Routes::new(vec![Route {
            name: "a".to_owned(),
            kinds: vec!["a.*".to_owned()],
            sinks: Arc::from([Arc::from("elsewhere")]),
            retry: Policy::default(),
        }]);
        let mut unrouted = Unrouted::default();
        unrouted.see("a.b", &routes);
        assert_eq!(unrouted.take_news(), None);
        for n in 0..100 {
            unrouted.see(&format!("b.{n}{}", "x".repeat(1_000)), &routes);
        }
        let (count, kinds) = unrouted.take_news().unwrap_or_default();
        assert_eq!((count, kinds.len()), (100, KINDS));
        assert!(kinds.iter().all(|kind| kind.len() <= CHARS));
        assert_eq!(unrouted.take_news(), None, "told once");
    }
}
