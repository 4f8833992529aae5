//! The live tree: who runs now. Kept per relay, never in a process-wide registry, so that relays do not meet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ractor::{ActorCell, ActorId};

use super::restart::Role;

/// A running actor.
#[derive(Debug, Clone)]
pub struct Member {
    /// Role.
    pub role: Role,
    /// What it is for: a sink, a database, a key.
    pub name: String,
    /// The actor.
    pub cell: ActorCell,
}

/// The running actors of one relay.
#[derive(Debug, Clone, Default)]
pub struct Tree(Arc<Mutex<BTreeMap<ActorId, Member>>>);

impl Tree {
    /// Enters an actor; it leaves when the returned place is dropped with the actor's state.
    pub fn enter(&self, role: Role, name: impl Into<String>, cell: ActorCell) -> Place {
        let id = cell.get_id();
        let member = Member {
            role,
            name: name.into(),
            cell,
        };
        self.lock().insert(id, member);
        Place {
            tree: self.clone(),
            id,
        }
    }

    /// Everyone who runs now.
    pub fn members(&self) -> Vec<Member> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ActorId, Member>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An actor's entry in the tree.
#[derive(Debug)]
pub struct Place {
    tree: Tree,
    id: ActorId,
}

impl Place {
    /// The actor is for something else from now on.
    pub fn rename(&self, name: &str) {
        if let Some(member) = self.tree.lock().get_mut(&self.id) {
            member.name.clear();
            member.name.push_str(name);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.tree.lock().remove(&self.id);
    }
}
