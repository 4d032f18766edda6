//! Actions and invariants of the model.

use stateright::{Model, Property};

use super::state::{KEYS, Leaf, Message, Moving, PES, Pe, Route, Search, Staged, State, learn};

/// A deliberate fault of the protocol, which the checker must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// The receiver owns a leaf as soon as it has received it.
    InstallsBeforeTheDecision,
    /// The source forgets the receiver of a leaf.
    ForgetsWhomItGave,
    /// A leaf answers for keys outside its fences.
    AnswersBeyondItsFences,
    /// The source decides by any answer, even for an aborted move.
    DecidesWhatItGaveUp,
    /// A move does not increase the version.
    MovesKeepTheVersion,
    /// A split does not increase the version of either half.
    SplitsKeepTheVersion,
    /// A merged leaf gets the version of the left leaf only.
    MergesTakeTheLeftVersion,
    /// A write does not wait for a leaf in flight.
    WritesToALeafThatMoves,
    /// Staged leaves are lost in a crash.
    StagesInMemory,
    /// Decisions are lost in a crash.
    DecidesInMemory,
    /// The latest route entry replaces a newer one.
    BelievesTheLatestMessage,
}

impl Hole {
    pub(crate) const ALL: [Self; 11] = [
        Self::InstallsBeforeTheDecision,
        Self::ForgetsWhomItGave,
        Self::AnswersBeyondItsFences,
        Self::DecidesWhatItGaveUp,
        Self::MovesKeepTheVersion,
        Self::SplitsKeepTheVersion,
        Self::MergesTakeTheLeftVersion,
        Self::WritesToALeafThatMoves,
        Self::StagesInMemory,
        Self::DecidesInMemory,
        Self::BelievesTheLatestMessage,
    ];

    /// Returns bounds within which the fault violates an invariant.
    pub(crate) const fn bounds(self) -> Bounds {
        match self {
            Self::BelievesTheLatestMessage => Bounds::CHANGES,
            _ => Bounds::CRASH,
        }
    }
}

/// Bounds of a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) changes: u8,
    pub(crate) crashes: u8,
    pub(crate) writes: u8,
    pub(crate) searches: u8,
    pub(crate) messages: usize,
}

impl Bounds {
    /// Crashes at any point of up to two changes.
    pub(crate) const CRASH: Self = Self { changes: 2, crashes: 1, writes: 1, searches: 1, messages: 3 };
    /// Longer sequences of changes.
    pub(crate) const CHANGES: Self = Self { changes: 4, crashes: 0, writes: 0, searches: 1, messages: 2 };
}

#[derive(Debug)]
pub(crate) struct Protocol {
    pub(crate) hole: Option<Hole>,
    pub(crate) bounds: Bounds,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Split {
        pe: u8,
        page: u8,
        at: u8,
    },
    Merge {
        pe: u8,
        left: u8,
        right: u8,
    },
    Move {
        pe: u8,
        page: u8,
    },
    /// The source aborts a move after its timeout.
    GiveUp {
        pe: u8,
    },
    /// The receiver asks for the decision of a move, and the source repeats the decision.
    Remind {
        pe: u8,
        id: u8,
    },
    Deliver(Message),
    Lose(Message),
    Crash {
        pe: u8,
    },
    Write {
        key: u8,
    },
    Search {
        key: u8,
        at: u8,
    },
    Step,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // PE 0 has keys 0 and 1 in one leaf; PE 1 has the last key in another leaf.
        let first = Leaf { page: 1, low: 0, high: 2, right: None, version: 1 };
        let last = Leaf { page: 1, low: 2, high: 3, right: None, version: 1 };
        let routes = [0, 0, 1].map(|pe| Route { version: 1, pe, page: 1 });
        let pe = |leaf| Pe {
            leaves: vec![leaf],
            values: [0; KEYS],
            forwarding: routes,
            staged: vec![],
            decided: vec![],
            next_page: 2,
            routes,
            moving: None,
        };
        vec![State {
            pes: [pe(first), pe(last)],
            network: vec![],
            search: None,
            acked: [0; KEYS],
            next_id: 1,
            changes: 0,
            crashes: 0,
            writes: 0,
            searches: 0,
            lied: false,
            lost: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let bounds = self.bounds;
        for message in &state.network {
            actions.push(Action::Deliver(*message));
            actions.push(Action::Lose(*message));
        }
        let has_room = state.network.len() < bounds.messages;
        for (number, pe) in (0..).zip(&state.pes) {
            if state.changes < bounds.changes && has_room {
                changes(number, pe, actions);
            }
            if state.crashes < bounds.crashes {
                actions.push(Action::Crash { pe: number });
            }
            if pe.moving.is_some() {
                actions.push(Action::GiveUp { pe: number });
            }
            if has_room {
                let staged = pe.staged.iter().map(|staged| staged.id);
                actions.extend(
                    staged.chain(pe.decided.iter().copied()).map(|id| Action::Remind { pe: number, id }),
                );
            }
        }
        for key in 0..KEYS as u8 {
            if state.writes < bounds.writes {
                actions.push(Action::Write { key });
            }
            if state.search.is_none() && state.searches < bounds.searches {
                actions.extend((0..PES as u8).map(|at| Action::Search { key, at }));
            }
        }
        if state.search.is_some() {
            actions.push(Action::Step);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Split { pe, page, at } => self.split(&mut next, pe, page, at),
            Action::Merge { pe, left, right } => self.merge(&mut next, pe, left, right),
            Action::Move { pe, page } => begin_move(&mut next, pe, page),
            Action::GiveUp { pe } => next.pes[pe as usize].moving = None,
            Action::Remind { pe, id } => remind(&mut next, pe, id),
            Action::Deliver(message) => {
                next.network.retain(|other| *other != message);
                self.deliver(&mut next, message);
            }
            Action::Lose(message) => next.network.retain(|other| *other != message),
            Action::Crash { pe } => self.crash(&mut next, pe),
            Action::Write { key } => self.write(&mut next, key),
            Action::Search { key, at } => {
                next.searches += 1;
                next.search = Some(Search { key, at, page: None, floor: 0 });
            }
            Action::Step => self.step(&mut next),
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I1: the live leaves partition the keys", |_, state: &State| {
                (0..KEYS as u8).all(|key| live_leaves(state, key) == 1)
            }),
            Property::always("I2: what is known of a key was true at its version", |_, state: &State| {
                (0..KEYS as u8).all(|key| facts_are_true(state, key))
            }),
            Property::always("I3: who is asked in vain knows better", |_, state: &State| {
                !state.lost && (0..PES as u8).all(|pe| (0..KEYS as u8).all(|key| leads_on(state, pe, key)))
            }),
            Property::always("a search tells what was acknowledged", |_, state: &State| !state.lied),
        ]
    }
}

fn changes(number: u8, pe: &Pe, actions: &mut Vec<Action>) {
    for leaf in pe.leaves.iter().filter(|leaf| !pe.is_latched(leaf.page)) {
        actions.extend((leaf.low + 1..leaf.high).map(|at| Action::Split { pe: number, page: leaf.page, at }));
        if let Some(right) = pe.leaf_of(leaf.high).filter(|right| !pe.is_latched(right.page)) {
            actions.push(Action::Merge { pe: number, left: leaf.page, right: right.page });
        }
        if pe.moving.is_none() {
            actions.push(Action::Move { pe: number, page: leaf.page });
        }
    }
}

impl Protocol {
    fn has(&self, hole: Hole) -> bool {
        self.hole == Some(hole)
    }

    fn split(&self, state: &mut State, number: u8, page: u8, at: u8) {
        state.changes += 1;
        let pe = &mut state.pes[number as usize];
        let right_page = pe.next_page;
        pe.next_page += 1;
        let Some(left) = pe.leaves.iter_mut().find(|leaf| leaf.page == page) else { return };
        let version = left.version + u8::from(!self.has(Hole::SplitsKeepTheVersion));
        let right = Leaf { page: right_page, low: at, high: left.high, right: left.right, version };
        *left = Leaf { high: at, right: Some(right_page), version, ..*left };
        let left = *left;
        pe.leaves.push(right);
        pe.leaves.sort_unstable();
        tell(state, number, left);
        tell(state, number, right);
    }

    fn merge(&self, state: &mut State, number: u8, left: u8, right: u8) {
        state.changes += 1;
        let pe = &mut state.pes[number as usize];
        let (Some(&left), Some(&right)) = (pe.leaf(left), pe.leaf(right)) else { return };
        let newest = if self.has(Hole::MergesTakeTheLeftVersion) {
            left.version
        } else {
            left.version.max(right.version)
        };
        let merged = Leaf { high: right.high, right: right.right, version: newest + 1, ..left };
        pe.leaves.retain(|leaf| *leaf != left && *leaf != right);
        pe.leaves.push(merged);
        pe.leaves.sort_unstable();
        tell(state, number, merged);
    }

    fn deliver(&self, state: &mut State, message: Message) {
        match message {
            Message::Stage { to, staged } => self.stage(state, to, staged),
            Message::Staged { to, id, page } => self.decide(state, to, id, page),
            Message::Install { to, id } => {
                let from = 1 - to;
                self.install(state, to, id);
                state.send(Message::Installed { to: from, id });
            }
            Message::Installed { to, id } => state.pes[to as usize].decided.retain(|other| *other != id),
            Message::Ask { to, id } => {
                let pe = &state.pes[to as usize];
                if pe.decided.contains(&id) {
                    state.send(Message::Install { to: 1 - to, id });
                } else if pe.moving.is_none_or(|moving| moving.id != id) {
                    state.send(Message::Abort { to: 1 - to, id });
                }
            }
            Message::Abort { to, id } => state.pes[to as usize].staged.retain(|staged| staged.id != id),
            Message::RouteEntry { to, low, high, route } => {
                let pe = &mut state.pes[to as usize];
                if self.has(Hole::BelievesTheLatestMessage) {
                    pe.routes[low as usize..high as usize].fill(route);
                } else {
                    pe.learn(low, high, route);
                }
            }
        }
    }

    fn stage(&self, state: &mut State, to: u8, mut staged: Staged) {
        let pe = &mut state.pes[to as usize];
        staged.leaf.page = pe.next_page;
        pe.next_page += 1;
        pe.staged.push(staged);
        state.send(Message::Staged { to: staged.from, id: staged.id, page: staged.leaf.page });
        if self.has(Hole::InstallsBeforeTheDecision) {
            self.install(state, to, staged.id);
        }
    }

    /// Decides a move: the source's step that makes the receiver the owner.
    fn decide(&self, state: &mut State, number: u8, id: u8, page: u8) {
        let pe = &mut state.pes[number as usize];
        let moving = match pe.moving {
            Some(moving) if moving.id == id => moving,
            _ if self.has(Hole::DecidesWhatItGaveUp) && !pe.decided.contains(&id) => {
                let Some(leaf) = pe.leaves.first() else { return };
                Moving { id, page: leaf.page }
            }
            _ => return,
        };
        let Some(&leaf) = pe.leaf(moving.page) else { return };
        pe.moving = None;
        pe.leaves.retain(|other| *other != leaf);
        let version = leaf.version + u8::from(!self.has(Hole::MovesKeepTheVersion));
        let route = Route { version, pe: 1 - number, page };
        if !self.has(Hole::ForgetsWhomItGave) {
            learn(&mut pe.forwarding, leaf.low, leaf.high, route);
            pe.learn(leaf.low, leaf.high, route);
        }
        pe.decided.push(id);
        state.send(Message::Install { to: 1 - number, id });
    }

    fn install(&self, state: &mut State, to: u8, id: u8) {
        let pe = &mut state.pes[to as usize];
        let Some(place) = pe.staged.iter().position(|staged| staged.id == id) else { return };
        let staged = pe.staged.remove(place);
        let version = staged.leaf.version + u8::from(!self.has(Hole::MovesKeepTheVersion));
        let leaf = Leaf { right: None, version, ..staged.leaf };
        for key in leaf.low..leaf.high {
            pe.values[key as usize] = staged.values[key as usize];
        }
        pe.leaves.push(leaf);
        pe.leaves.sort_unstable();
        pe.learn(leaf.low, leaf.high, Route { version, pe: to, page: leaf.page });
    }

    fn crash(&self, state: &mut State, number: u8) {
        state.crashes += 1;
        let pe = &mut state.pes[number as usize];
        pe.moving = None;
        if self.has(Hole::StagesInMemory) {
            pe.staged.clear();
        }
        if self.has(Hole::DecidesInMemory) {
            pe.decided.clear();
        }
        // The index is rebuilt from the leaves and the forwarding table.
        pe.routes = pe.forwarding;
        for leaf in pe.leaves.clone() {
            pe.learn(leaf.low, leaf.high, Route { version: leaf.version, pe: number, page: leaf.page });
        }
    }

    fn write(&self, state: &mut State, key: u8) {
        let latched = self.has(Hole::WritesToALeafThatMoves);
        for pe in &mut state.pes {
            if let Some(leaf) = pe.leaf_of(key)
                && (latched || !pe.is_latched(leaf.page))
            {
                pe.values[key as usize] += 1;
                state.acked[key as usize] = pe.values[key as usize];
                state.writes += 1;
                return;
            }
        }
    }

    fn step(&self, state: &mut State) {
        let Some(search) = state.search else { return };
        let Search { key, at, page, floor } = search;
        let pe = &state.pes[at as usize];
        // Begins at the page to which the search was forwarded, if that page exists and does not begin beyond
        // the key. Otherwise begins at this PE's own index.
        let sent = page.and_then(|page| pe.leaf(page)).filter(|leaf| leaf.low <= key);
        let own = Some(pe.routes[key as usize]).filter(|route| route.pe == at);
        let found = sent.or_else(|| own.and_then(|route| pe.leaf(route.page)).filter(|leaf| leaf.low <= key));
        if let Some(leaf) = found {
            if leaf.covers(key) || self.has(Hole::AnswersBeyondItsFences) {
                state.lied |= pe.values[key as usize] != state.acked[key as usize];
                state.search = None;
                return;
            }
            if let Some(right) = leaf.right.and_then(|page| pe.leaf(page)).filter(|right| right.low <= key) {
                state.search = Some(Search { page: Some(right.page), ..search });
                return;
            }
            if sent.is_some() {
                state.search = Some(Search { page: None, ..search });
                return;
            }
        }
        if pe.staged.iter().any(|staged| staged.leaf.covers(key)) {
            return; // the search waits: the leaf will be installed here, or dropped
        }
        let route = pe.routes[key as usize];
        if route.pe == at || route.version <= floor {
            state.lost = true;
            return;
        }
        state.search = Some(Search { key, at: route.pe, page: Some(route.page), floor: route.version });
    }
}

fn tell(state: &mut State, number: u8, leaf: Leaf) {
    let route = Route { version: leaf.version, pe: number, page: leaf.page };
    state.pes[number as usize].learn(leaf.low, leaf.high, route);
    state.send(Message::RouteEntry { to: 1 - number, low: leaf.low, high: leaf.high, route });
}

fn begin_move(state: &mut State, number: u8, page: u8) {
    state.changes += 1;
    let id = state.next_id;
    state.next_id += 1;
    let pe = &mut state.pes[number as usize];
    let Some(&leaf) = pe.leaf(page) else { return };
    pe.moving = Some(Moving { id, page });
    let staged = Staged { id, from: number, leaf, values: pe.values };
    state.send(Message::Stage { to: 1 - number, staged });
}

fn remind(state: &mut State, number: u8, id: u8) {
    let to = 1 - number;
    if state.pes[number as usize].decided.contains(&id) {
        state.send(Message::Install { to, id });
    } else {
        state.send(Message::Ask { to, id });
    }
}

/// Returns the number of leaves that own `key`, including decided moves that are not installed yet.
fn live_leaves(state: &State, key: u8) -> usize {
    let owned = state.pes.iter().flat_map(|pe| &pe.leaves).filter(|leaf| leaf.covers(key)).count();
    owned + on_the_way(state, key).count()
}

fn on_the_way(state: &State, key: u8) -> impl Iterator<Item = (u8, &Staged)> {
    (0..).zip(&state.pes).flat_map(move |(number, pe)| {
        let source = &state.pes[1 - number as usize];
        let decided = move |staged: &&Staged| source.decided.contains(&staged.id) && staged.leaf.covers(key);
        pe.staged.iter().filter(decided).map(move |staged| (number, staged))
    })
}

/// Checks all route entries for `key` that are stored or in flight, with the live leaf's own entry last.
fn facts_are_true(state: &State, key: u8) -> bool {
    let mut route_entries = Vec::new();
    for pe in &state.pes {
        route_entries.extend([pe.routes[key as usize], pe.forwarding[key as usize]]);
    }
    for message in &state.network {
        if let Message::RouteEntry { low, high, route, .. } = message
            && (*low..*high).contains(&key)
        {
            route_entries.push(*route);
        }
    }
    for (number, pe) in (0..).zip(&state.pes) {
        route_entries.extend(pe.leaf_of(key).map(|leaf| Route {
            version: leaf.version,
            pe: number,
            page: leaf.page,
        }));
    }
    // At one version a key is in one leaf.
    route_entries
        .iter()
        .all(|one| route_entries.iter().all(|other| one.version != other.version || one == other))
}

/// Checks I3: a PE that receives a request for `key` owns the key, will own it, or has a newer route entry
/// than any that leads to this PE.
fn leads_on(state: &State, pe: u8, key: u8) -> bool {
    let route = state.pes[pe as usize].routes[key as usize];
    let named = &state.pes[route.pe as usize];
    named.leaf_of(key).is_some()
        || named.staged.iter().any(|staged| staged.leaf.covers(key))
        || (route.pe != pe && named.routes[key as usize].version > route.version)
}
