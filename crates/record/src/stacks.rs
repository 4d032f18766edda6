//! The stacks of a trace: the marks before a wait, which have the addresses of the callers, become one event
//! with the number of a stack. Stacks and frames with the same names share a number.

use crate::frames::{self, Stack};
use crate::name::{CALLER, Called, before};
use crate::symbols::Symbols;
use azekura_trace::event::{Event, EventKind, SWITCHED};
use azekura_trace::file::{Name, ThreadTrace, Trace};
use std::collections::HashMap;

/// The stacks found so far.
pub(crate) struct Stacks<'s> {
    symbols: &'s Symbols,
    /// Numbers of stacks, by addresses.
    known: HashMap<Stack, u32>,
    /// Numbers of stacks, by numbers of frames.
    stacks: HashMap<Vec<u32>, u32>,
    frames: HashMap<Name, u32>,
}

impl<'s> Stacks<'s> {
    pub(crate) fn new(symbols: &'s Symbols) -> Self {
        Self { symbols, known: HashMap::new(), stacks: HashMap::new(), frames: HashMap::new() }
    }

    /// Replaces the thread's marks of callers by stacks, and removes the marks of other calls. Call before
    /// the sites are renumbered.
    pub(crate) fn replace_marks(&mut self, thread: &mut ThreadTrace, calls: &HashMap<u32, Called>) {
        let mut callers: Stack = Vec::new();
        let mut events = Vec::with_capacity(thread.events.len());
        let mut switched = 0;
        for mut event in std::mem::take(&mut thread.events) {
            match (event.kind, calls.get(&event.site)) {
                (EventKind::Mark, Some(called)) => {
                    if called.what == CALLER {
                        callers.push(called.address);
                    }
                    switched |= event.flags & SWITCHED; // as in `keep`
                    continue;
                }
                (EventKind::WaitBegin, Some(called)) if !callers.is_empty() => {
                    let stack = std::iter::once(called.address).chain(callers.drain(..)).collect();
                    event.flags |= std::mem::take(&mut switched);
                    let argument = self.number(stack).into();
                    let first = before(&mut event, EventKind::Stack, 0);
                    events.push(Event { argument, site: 0, object: 0, ..first });
                }
                // A hold may have been inserted between the marks and their wait.
                (EventKind::Hold | EventKind::Release | EventKind::Anchor, _) => {}
                _ => callers.clear(),
            }
            event.flags |= std::mem::take(&mut switched);
            events.push(event);
        }
        thread.events = events;
    }

    fn number(&mut self, stack: Stack) -> u32 {
        if let Some(number) = self.known.get(&stack) {
            return *number;
        }
        let mut ids = Vec::new();
        for place in frames::of(&stack, self.symbols) {
            let next = self.frames.len() as u32 + 1;
            let name = Name { name: place.function, file: place.file, line: place.line };
            ids.push(*self.frames.entry(name).or_insert(next));
        }
        let next = self.stacks.len() as u32 + 1;
        let number = *self.stacks.entry(ids).or_insert(next);
        self.known.insert(stack, number);
        number
    }

    /// Adds the stacks and frames to the trace.
    pub(crate) fn add_to(self, trace: &mut Trace) {
        trace.stacks = self.stacks.into_iter().map(|(frames, id)| (id, frames)).collect();
        trace.frames = self.frames.into_iter().map(|(name, id)| (id, name)).collect();
    }
}
