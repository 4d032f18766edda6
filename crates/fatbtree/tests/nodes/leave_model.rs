//! Model of a node's decommission (`node::leave`): three PEs, one key, and every order of moves, of the last
//! PE's departure, of lost and reordered messages and a crash. Route entries are for single keys and the
//! newer one wins, so one key is enough. Each deliberate fault, one at a time, must violate an invariant, and
//! the checker must report it.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// The node that may leave.
const LEAVER: u8 = 2;
const PES: u8 = 3;

/// A deliberate fault of the protocol, which the checker must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hole {
    /// LEAVE-1: the node leaves after a single other node has stored its decommission message.
    TellsOneOnly,
    /// LEAVE-1: the content of a decommission message is stored in memory only.
    KeepsInMemory,
    /// LEAVE-2: the node accepts leaves while it is leaving.
    TakesWhileLeaving,
    /// LEAVE-2: the node ignores staged leaves without a decision.
    ForgetsWhatCame,
    /// LEAVE-3: any acknowledgment counts, even for a decommission message of an earlier start.
    CountsOldAnswers,
    /// LEAVE-4: the departure is lost in a crash.
    LeavesInMemory,
    /// LEAVE-6: the node leaves while its own moves are open.
    LeavesWithOpenMoves,
}

const HOLES: [Hole; 7] = [
    Hole::TellsOneOnly,
    Hole::KeepsInMemory,
    Hole::TakesWhileLeaving,
    Hole::ForgetsWhatCame,
    Hole::CountsOldAnswers,
    Hole::LeavesInMemory,
    Hole::LeavesWithOpenMoves,
];

/// A route entry: at this version the key belonged to that PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct RouteEntry {
    version: u8,
    pe: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Move {
    id: u8,
    from: u8,
    to: u8,
    version: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pe {
    // Durable fields.
    /// Version of the PE's leaf, if it owns the key.
    owns: Option<u8>,
    forwarding: RouteEntry,
    staged: Option<Move>,
    decided: Option<Move>,
    has_left: bool,
    start: u8,
    // Fields that are lost in a crash.
    moving: Option<Move>,
    /// The route entry of a decommission message, if the planted fault uses it.
    heard: Option<RouteEntry>,
    /// While the PE is leaving: the nodes that have stored its decommission message, as bits.
    kept: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Stage(Move),
    Kept(Move),
    Install(Move),
    Installed(Move),
    Ask(Move),
    Abort(Move),
    Decommission { to: u8, start: u8, route_entry: RouteEntry },
    DecommissionAcknowledged { from: u8, start: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    pes: Vec<Pe>,
    network: Vec<Message>,
    next_id: u8,
    crashes: u8,
    /// Number of canceled decommissions.
    stops: u8,
    /// `true` once the PE has left; used only by the properties.
    has_ever_left: bool,
}

impl State {
    fn send(&mut self, message: Message) {
        if let Err(place) = self.network.binary_search(&message) {
            self.network.insert(place, message);
        }
    }

    fn pe(&mut self, pe: u8) -> &mut Pe {
        &mut self.pes[usize::from(pe)]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Move { from: u8, to: u8 },
    GiveUp { pe: u8 },
    Remind { pe: u8 },
    BeginToLeave,
    StopLeaving,
    SendDecommission { to: u8 },
    Leave,
    Crash { pe: u8 },
    Deliver(Message),
    Lose(Message),
}

struct Leaving {
    hole: Option<Hole>,
    moves: u8,
    messages: usize,
}

impl Leaving {
    fn has(&self, hole: Hole) -> bool {
        self.hole == Some(hole)
    }

    /// Returns `true` if the PE owns nothing and nothing can arrive (LEAVE-2).
    fn is_clear(&self, pe: &Pe) -> bool {
        pe.owns.is_none()
            && (pe.staged.is_none() || self.has(Hole::ForgetsWhatCame))
            && (pe.decided.is_none() || self.has(Hole::LeavesWithOpenMoves))
            && pe.moving.is_none()
    }

    fn deliver(&self, state: &mut State, message: Message) {
        match message {
            Message::Stage(it) => {
                let pe = state.pe(it.to);
                let takes = pe.kept.is_none() || self.has(Hole::TakesWhileLeaving);
                if takes && !pe.has_left && pe.staged.is_none() {
                    pe.staged = Some(it);
                    state.send(Message::Kept(it));
                }
            }
            Message::Kept(it) => {
                let pe = state.pe(it.from);
                if pe.moving == Some(it) {
                    pe.moving = None;
                    pe.owns = None;
                    pe.forwarding = RouteEntry { version: it.version + 1, pe: it.to };
                    pe.decided = Some(it);
                    state.send(Message::Install(it));
                }
            }
            Message::Install(it) => {
                let pe = state.pe(it.to);
                if pe.staged == Some(it) {
                    pe.staged = None;
                    pe.owns = Some(it.version + 1);
                }
                state.send(Message::Installed(it));
            }
            Message::Installed(it) => {
                let pe = state.pe(it.from);
                pe.decided = pe.decided.filter(|decided| *decided != it);
            }
            Message::Ask(it) => {
                let pe = state.pe(it.from);
                if pe.decided == Some(it) {
                    state.send(Message::Install(it));
                } else if pe.moving != Some(it) {
                    state.send(Message::Abort(it));
                }
            }
            Message::Abort(it) => {
                let pe = state.pe(it.to);
                pe.staged = pe.staged.filter(|staged| *staged != it);
            }
            Message::Decommission { to, start, route_entry } => {
                let in_memory = self.has(Hole::KeepsInMemory);
                let pe = state.pe(to);
                if pe.forwarding.version < route_entry.version {
                    if in_memory {
                        pe.heard = Some(route_entry);
                    } else {
                        pe.forwarding = route_entry;
                    }
                }
                state.send(Message::DecommissionAcknowledged { from: to, start });
            }
            Message::DecommissionAcknowledged { from, start } => {
                let counts_all = self.has(Hole::CountsOldAnswers);
                let pe = state.pe(LEAVER);
                // LEAVE-3.
                if start == pe.start || counts_all {
                    pe.kept = pe.kept.map(|kept| kept | 1 << from);
                }
            }
        }
    }
}

impl Model for Leaving {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // PE 0 owns the key.
        let pe = |number| Pe {
            owns: (number == 0).then_some(1),
            forwarding: RouteEntry { version: 1, pe: 0 },
            staged: None,
            decided: None,
            has_left: false,
            start: 1,
            moving: None,
            heard: None,
            kept: None,
        };
        vec![State {
            pes: (0..PES).map(pe).collect(),
            network: vec![],
            next_id: 1,
            crashes: 0,
            stops: 0,
            has_ever_left: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for message in &state.network {
            actions.extend([Action::Deliver(*message), Action::Lose(*message)]);
        }
        let has_room = state.network.len() < self.messages;
        for (number, pe) in (0..).zip(&state.pes) {
            if state.next_id <= self.moves && has_room && pe.owns.is_some() && pe.moving.is_none() {
                actions
                    .extend((0..PES).filter(|to| *to != number).map(|to| Action::Move { from: number, to }));
            }
            if pe.moving.is_some() {
                actions.push(Action::GiveUp { pe: number });
            }
            if has_room && (pe.staged.is_some() || pe.decided.is_some()) {
                actions.push(Action::Remind { pe: number });
            }
            if state.crashes == 0 {
                actions.push(Action::Crash { pe: number });
            }
        }
        let leaver = &state.pes[usize::from(LEAVER)];
        match leaver.kept {
            _ if leaver.has_left => {}
            None => actions.push(Action::BeginToLeave),
            Some(_) => {
                actions.push(Action::Leave);
                if state.stops == 0 {
                    actions.push(Action::StopLeaving);
                }
                if has_room && self.is_clear(leaver) {
                    actions.extend((0..LEAVER).map(|to| Action::SendDecommission { to }));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Move { from, to } => {
                let it = Move { id: next.next_id, from, to, version: next.pe(from).owns? };
                next.next_id += 1;
                next.pe(from).moving = Some(it);
                next.send(Message::Stage(it));
            }
            Action::GiveUp { pe } => next.pe(pe).moving = None,
            Action::Remind { pe } => {
                let (staged, decided) = (next.pe(pe).staged, next.pe(pe).decided);
                staged.into_iter().for_each(|it| next.send(Message::Ask(it)));
                decided.into_iter().for_each(|it| next.send(Message::Install(it)));
            }
            Action::BeginToLeave => next.pe(LEAVER).kept = Some(0),
            // The next decommission message has another id. The model represents that by a new start.
            Action::StopLeaving => {
                next.stops += 1;
                let leaver = next.pe(LEAVER);
                (leaver.kept, leaver.start) = (None, leaver.start + 1);
            }
            Action::SendDecommission { to } => {
                let (start, route_entry) = (next.pe(LEAVER).start, next.pe(LEAVER).forwarding);
                next.send(Message::Decommission { to, start, route_entry });
            }
            Action::Leave => {
                let leaver = next.pe(LEAVER).clone();
                let all = if self.has(Hole::TellsOneOnly) { 0b10 } else { 0b11 };
                if !self.is_clear(&leaver) || leaver.kept.is_none_or(|kept| kept & all != all) {
                    return None;
                }
                next.pe(LEAVER).has_left = true;
                next.has_ever_left = true;
            }
            Action::Crash { pe } => {
                next.crashes += 1;
                let keeps = !self.has(Hole::LeavesInMemory);
                let pe = next.pe(pe);
                (pe.moving, pe.heard, pe.kept) = (None, None, None);
                pe.start += 3;
                pe.has_left &= keeps;
            }
            Action::Deliver(message) => {
                next.network.retain(|other| *other != message);
                self.deliver(&mut next, message);
            }
            Action::Lose(message) => next.network.retain(|other| *other != message),
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I1: the key has one owner, or is on its way to one", |_, state: &State| {
                let owned = state.pes.iter().filter(|pe| pe.owns.is_some()).count();
                let is_decided = |it: &Move| state.pes[usize::from(it.from)].decided == Some(*it);
                owned + state.pes.iter().filter(|pe| pe.staged.as_ref().is_some_and(is_decided)).count() == 1
            }),
            Property::always("who has left owns nothing, and nothing of it is open", |_, state: &State| {
                let leaver = &state.pes[usize::from(LEAVER)];
                let is_open = leaver.owns.is_some() || leaver.staged.is_some() || leaver.decided.is_some();
                !(leaver.has_left && is_open)
            }),
            Property::always("LEAVE-1: nothing that is kept leads to who has left", |_, state: &State| {
                let has_left = state.pes[usize::from(LEAVER)].has_left;
                let leads_there =
                    |pe: &Pe| pe.heard.unwrap_or(pe.forwarding).pe == LEAVER && pe.owns.is_none();
                !has_left || !state.pes[..usize::from(LEAVER)].iter().any(leads_there)
            }),
            Property::always("LEAVE-4: who has left does not come back", |_, state: &State| {
                state.pes[usize::from(LEAVER)].has_left || !state.has_ever_left
            }),
            Property::sometimes("it leaves after it has had the key", |_, state: &State| {
                let leaver = &state.pes[usize::from(LEAVER)];
                leaver.has_left && leaver.forwarding.version > 2
            }),
        ]
    }
}

/// Limit of the visited states. No check may reach it.
const ENOUGH: usize = 4_000_000;

fn check(hole: Option<Hole>) -> (usize, Vec<&'static str>) {
    let model = Leaving { hole, moves: 2, messages: 2 };
    let is_always = |name: &&str| !name.starts_with("it leaves");
    let until = if hole.is_some() { HasDiscoveries::AnyFailures } else { HasDiscoveries::All };
    let checker = model.checker().target_state_count(ENOUGH).finish_when(until).spawn_bfs().join();
    let (broken, seen): (Vec<_>, Vec<_>) = checker.discoveries().into_keys().partition(is_always);
    assert!(hole.is_some() || !seen.is_empty(), "nobody leaves: the bounds say nothing");
    (checker.unique_state_count(), broken)
}

#[test]
fn a_decommission_leaves_no_keys_behind_in_any_order_of_events() {
    let (states, broken) = check(None);
    println!("{states} states");
    assert!(broken.is_empty(), "broken: {broken:?}");
    assert!((1_000..ENOUGH).contains(&states), "{states} states: the bounds say little or nothing");
}

#[test]
fn each_fault_in_a_decommission_is_noticed() {
    for hole in HOLES {
        let (states, broken) = check(Some(hole));
        println!("{hole:?}: {states} states, {broken:?}");
        assert!(!broken.is_empty(), "{hole:?} does no harm: the model is blind to it");
    }
}
