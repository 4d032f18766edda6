//! State of the PEs, and messages in flight between them.

pub(crate) const PES: usize = 2;
pub(crate) const KEYS: usize = 3;

/// A leaf, authoritative for the keys from `low` (inclusive) to `high` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Leaf {
    pub(crate) page: u8,
    pub(crate) low: u8,
    pub(crate) high: u8,
    pub(crate) right: Option<u8>,
    pub(crate) version: u8,
}

impl Leaf {
    pub(crate) const fn covers(&self, key: u8) -> bool {
        self.low <= key && key < self.high
    }
}

/// The owner of a key, at a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Route {
    pub(crate) version: u8,
    pub(crate) pe: u8,
    pub(crate) page: u8,
}

/// Route entries of a PE, key by key.
pub(crate) type Routes = [Route; KEYS];

/// A received leaf, not owned before its source has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Staged {
    pub(crate) id: u8,
    pub(crate) from: u8,
    pub(crate) leaf: Leaf,
    pub(crate) values: [u8; KEYS],
}

/// A move that its source has begun and not decided. A crash of the source aborts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Moving {
    pub(crate) id: u8,
    pub(crate) page: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pe {
    // Durable fields.
    pub(crate) leaves: Vec<Leaf>,
    pub(crate) values: [u8; KEYS],
    pub(crate) forwarding: Routes,
    pub(crate) staged: Vec<Staged>,
    /// Decided moves that the destination has not confirmed yet.
    pub(crate) decided: Vec<u8>,
    pub(crate) next_page: u8,
    // Fields that are lost in a crash.
    pub(crate) routes: Routes,
    pub(crate) moving: Option<Moving>,
}

impl Pe {
    pub(crate) fn leaf_of(&self, key: u8) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.covers(key))
    }

    pub(crate) fn leaf(&self, page: u8) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.page == page)
    }

    pub(crate) fn is_latched(&self, page: u8) -> bool {
        self.moving.is_some_and(|moving| moving.page == page)
    }

    pub(crate) fn learn(&mut self, low: u8, high: u8, route: Route) {
        learn(&mut self.routes, low, high, route);
    }
}

/// Adds a route entry. The newest version of each key wins, so entries may arrive in any order, twice, or not
/// at all.
pub(crate) fn learn(routes: &mut Routes, low: u8, high: u8, route: Route) {
    for known in &mut routes[low as usize..high as usize] {
        if known.version < route.version {
            *known = route;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Message {
    Stage { to: u8, staged: Staged },
    Staged { to: u8, id: u8, page: u8 },
    Install { to: u8, id: u8 },
    Installed { to: u8, id: u8 },
    Ask { to: u8, id: u8 },
    Abort { to: u8, id: u8 },
    RouteEntry { to: u8, low: u8, high: u8, route: Route },
}

/// A search for `key`, at PE `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Search {
    pub(crate) key: u8,
    pub(crate) at: u8,
    /// The page to which the search was forwarded, if it was.
    pub(crate) page: Option<u8>,
    /// Version of the route entry by which it was forwarded.
    pub(crate) floor: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) pes: [Pe; PES],
    pub(crate) network: Vec<Message>,
    pub(crate) search: Option<Search>,
    /// Last acknowledged value of each key.
    pub(crate) acked: [u8; KEYS],
    pub(crate) next_id: u8,
    pub(crate) changes: u8,
    pub(crate) crashes: u8,
    pub(crate) writes: u8,
    pub(crate) searches: u8,
    /// `true` if a search returned another value than the acknowledged one.
    pub(crate) lied: bool,
    /// `true` if a search ended at a node without a newer route entry than the sender's.
    pub(crate) lost: bool,
}

impl State {
    pub(crate) fn send(&mut self, message: Message) {
        if let Err(place) = self.network.binary_search(&message) {
            self.network.insert(place, message);
        }
    }
}
