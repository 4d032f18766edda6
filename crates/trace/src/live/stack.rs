//! The open operations of a thread, from outermost to innermost, and the part of them that is in the ring.
//!
//! | levels | state | in the ring |
//! |---|---|---|
//! | below `recorded` | recorded | its `Enter` |
//! | at `recorded`, if it has a begin | held back | nothing yet; without inner events, one event at its end |
//! | above | not sampled (see `stride`) | nothing, unless an inner event happens |
//!
//! - **STACK-1** Before any other event is pushed, all levels are recorded, from outermost to innermost. So
//!   in the ring every event is after the `Enter`s of all operations around it.
//! - **STACK-2** Before a hold or a release only the level that is held back is recorded: these events carry
//!   their operation, and most happen in operations that are not sampled. Events stay in the order of their
//!   times.

/// Number of levels. Deeper operations count as part of the deepest level.
const DEPTH: usize = 64;

/// One open operation of the thread.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level {
    pub(super) operation: u16,
    /// Flags of the operation's `Enter`.
    pub(super) flags: u8,
    /// Ticks of the operation's begin; 0 if it was not sampled.
    pub(super) begin: u64,
}

/// The open operations of a thread.
///
/// Most operations are entered and left without an event in the ring. That fast path has few instructions;
/// only the slow paths maintain the other fields.
#[derive(Debug)]
pub(super) struct Stack {
    /// Operations from outermost to innermost, after a zero. So the innermost operation, or 0 for none, is
    /// always at `depth`.
    operations: [u16; DEPTH + 1],
    /// Begin and flags of the levels below `loud`; zero for the levels above.
    begun: [(u64, u8); DEPTH],
    depth: usize,
    recorded: usize,
    /// Levels from here on are neither recorded nor held back.
    loud: usize,
}

impl Stack {
    pub(super) const fn new() -> Self {
        Self { operations: [0; DEPTH + 1], begun: [(0, 0); DEPTH], depth: 0, recorded: 0, loud: 0 }
    }

    /// Returns the number of open operations.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the innermost operation, 0 for none.
    #[inline]
    pub(super) fn innermost(&self) -> u16 {
        self.operations[self.depth.min(DEPTH)]
    }

    /// Enters an operation that is not sampled. Returns `false` if the stack is too deep.
    #[inline]
    pub(super) fn enter(&mut self, operation: u16) -> bool {
        let has_room = self.depth < DEPTH;
        if has_room {
            self.depth += 1;
            self.operations[self.depth] = operation;
        }
        has_room
    }

    /// Records that the innermost operation is sampled, with its begin and flags.
    #[inline]
    pub(super) fn begin(&mut self, begin: u64, flags: u8) {
        self.begun[(self.depth - 1) % DEPTH] = (begin.max(1), flags);
        self.loud = self.depth;
    }

    /// Returns `true` if all levels are in the ring.
    #[inline]
    pub(super) fn is_recorded(&self) -> bool {
        self.recorded == self.depth
    }

    /// Returns the outermost level that is not recorded, and counts it as recorded.
    pub(super) fn tell(&mut self) -> Option<Level> {
        let level = (self.recorded < self.depth).then(|| self.level(self.recorded))?;
        self.recorded += 1;
        self.loud = self.loud.max(self.recorded);
        Some(level)
    }

    /// Returns the level that is held back, if there is one, and counts it as recorded.
    #[inline]
    pub(super) fn tell_held_back(&mut self) -> Option<Level> {
        let level = (self.recorded < self.loud).then(|| self.level(self.recorded))?;
        self.recorded += 1;
        Some(level)
    }

    /// Leaves the innermost operation, at this depth, if it is neither recorded nor held back. Returns
    /// `false` otherwise.
    #[inline]
    pub(super) fn leave_silently(&mut self, depth: usize) -> bool {
        let is_silent = depth + 1 == self.depth && depth >= self.loud;
        if is_silent {
            self.depth = depth;
        }
        is_silent
    }

    /// Removes the levels inside the one at this depth. Returns that level, and `true` if it is recorded.
    #[inline]
    pub(super) fn cut_to(&mut self, depth: usize) -> Option<(Level, bool)> {
        if depth >= self.depth {
            return None; // it was removed together with an outer level
        }
        self.shorten(depth + 1);
        Some((self.level(depth), self.recorded > depth))
    }

    /// Leaves the innermost operation.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.shorten(self.depth - 1);
    }

    fn level(&self, depth: usize) -> Level {
        let (begin, flags) = self.begun[depth % DEPTH];
        Level { operation: self.operations[depth + 1], flags, begin }
    }

    /// Removes all but a number of outermost levels.
    #[inline]
    fn shorten(&mut self, depth: usize) {
        self.depth = depth;
        self.recorded = self.recorded.min(depth);
        while self.loud > depth {
            self.loud -= 1;
            self.begun[self.loud % DEPTH] = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(stack: &mut Stack) -> Vec<u16> {
        std::iter::from_fn(|| stack.tell()).map(|level| level.operation).collect()
    }

    #[test]
    fn open_operations_are_recorded_from_the_outermost_and_once() {
        let mut stack = Stack::new();
        assert!(stack.enter(1) && stack.enter(2));
        stack.begin(50, 0);
        assert!(stack.enter(3));
        assert_eq!((stack.innermost(), recorded(&mut stack)), (3, vec![1, 2, 3]));
        assert!(stack.is_recorded() && !stack.leave_silently(2), "its end is recorded");
        stack.leave();
        assert!(stack.enter(4) && !stack.is_recorded());
        assert!(stack.leave_silently(2), "nobody knows of it");
        assert!(stack.is_recorded());
        assert!(stack.enter(5));
        assert_eq!(recorded(&mut stack), [5]);
    }

    #[test]
    fn a_hold_records_only_deferred_enclosing_operations() {
        let mut stack = Stack::new();
        assert!(stack.enter(1));
        stack.begin(50, 0);
        assert!(stack.enter(2));
        let level = stack.tell_held_back().expect("it was drawn");
        assert_eq!((level.operation, level.begin), (1, 50));
        assert!(stack.tell_held_back().is_none() && !stack.is_recorded(), "the inner one was not drawn");
        assert!(stack.leave_silently(1), "nobody knows of it");
        assert!(stack.is_recorded() && !stack.leave_silently(0), "its end is recorded");
    }

    #[test]
    fn leaving_an_outer_operation_leaves_the_inner_ones() {
        let mut stack = Stack::new();
        for operation in 1..5 {
            assert!(stack.enter(operation));
        }
        stack.tell();
        let (level, is_recorded) = stack.cut_to(1).expect("there");
        assert_eq!((level.operation, is_recorded, stack.depth()), (2, false, 2));
        stack.leave();
        assert!(stack.cut_to(3).is_none() && stack.cut_to(1).is_none(), "gone with it");
        assert_eq!((stack.innermost(), stack.is_recorded()), (1, true));
    }

    #[test]
    fn too_deep_is_refused_and_the_rest_stays() {
        let mut stack = Stack::new();
        assert!((0..DEPTH).all(|at| stack.enter(at as u16 + 1)));
        assert!(!stack.enter(99));
        assert_eq!((stack.depth(), usize::from(stack.innermost())), (DEPTH, DEPTH));
    }

    /// A later operation at the same depth finds no old state, for each level in each state and with every
    /// way of leaving it.
    #[test]
    fn a_left_operation_does_not_affect_the_next_at_its_depth() {
        for states in 0..27_u32 {
            for cut in 0..3 {
                let mut stack = Stack::new();
                for depth in 0..3 {
                    let state = states / 3_u32.pow(depth) % 3;
                    if state == 1 {
                        stack.tell(); // as the recorder does before it samples
                        while stack.tell().is_some() {}
                    }
                    assert!(stack.enter(depth as u16 + 1));
                    match state {
                        1 => stack.begin(50, 7),
                        2 => while stack.tell().is_some() {},
                        _ => (),
                    }
                }
                if !stack.leave_silently(cut) {
                    let (level, _) = stack.cut_to(cut).expect("there");
                    assert_eq!(usize::from(level.operation), cut + 1);
                    stack.leave();
                }
                assert_eq!((stack.depth(), usize::from(stack.innermost())), (cut, cut));
                while stack.tell().is_some() {}
                assert!(stack.enter(9) && !stack.is_recorded() && stack.tell_held_back().is_none());
                let level = stack.tell().expect("it is not recorded");
                assert_eq!((level.operation, level.begin, level.flags), (9, 0, 0), "{states}, {cut}");
            }
        }
    }
}
