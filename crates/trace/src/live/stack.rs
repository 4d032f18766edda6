//! The operations that a thread is in, from the outermost in, and how much of that the ring knows.
//!
//! | levels | state | in the ring |
//! |---|---|---|
//! | below `told` | told | its `Enter` |
//! | at `told`, if it has a begin | held back | nothing yet: if nothing happens inside, one event will do for all of it |
//! | above | not drawn (see `stride`) | nothing, and nothing will be, unless something happens inside |
//!
//! - **STACK-1** Before any other event is pushed all levels are told, from the outermost in. So in the ring every event stands
//!   inside the `Enter`s of all operations that it happened in.
//! - **STACK-2** Before a hold or a release only the level that is held back is told: they carry the operation that they happened in, and
//!   most happen in operations that are not drawn. Events stay in the order of their times.

/// Levels that are kept. What is begun deeper counts as part of the level above.
const DEPTH: usize = 64;

/// One operation that the thread is in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level {
    pub(super) operation: u16,
    /// Flags of its `Enter`.
    pub(super) flags: u8,
    /// Ticks when it began; 0: it was not drawn.
    pub(super) begin: u64,
}

/// A thread's operations.
#[derive(Debug)]
pub(super) struct Stack {
    levels: [Level; DEPTH],
    depth: usize,
    told: usize,
}

impl Stack {
    pub(super) const fn new() -> Self {
        Self { levels: [Level { operation: 0, flags: 0, begin: 0 }; DEPTH], depth: 0, told: 0 }
    }

    /// Operations that the thread is in.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// The innermost one, 0 for none.
    #[inline]
    pub(super) fn innermost(&self) -> u16 {
        match self.depth {
            0 => 0,
            depth => self.levels[(depth - 1) % DEPTH].operation,
        }
    }

    /// Goes in, not drawn. `false`: too deep.
    #[inline]
    pub(super) fn enter(&mut self, operation: u16) -> bool {
        let Some(level) = self.levels.get_mut(self.depth) else { return false };
        *level = Level { operation, flags: 0, begin: 0 };
        self.depth += 1;
        true
    }

    /// The innermost one was drawn and began then.
    #[inline]
    pub(super) fn begin(&mut self, begin: u64, flags: u8) {
        let level = &mut self.levels[(self.depth - 1) % DEPTH];
        (level.begin, level.flags) = (begin.max(1), flags);
    }

    /// Whether the ring knows all of it.
    #[inline]
    pub(super) fn is_told(&self) -> bool {
        self.told == self.depth
    }

    /// The outermost level that is not told, which from now on is.
    pub(super) fn tell(&mut self) -> Option<Level> {
        let level = (self.told < self.depth).then(|| self.levels[self.told])?;
        self.told += 1;
        Some(level)
    }

    /// The level that is held back, if there is one, which from now on is told.
    #[inline]
    pub(super) fn tell_held_back(&mut self) -> Option<Level> {
        let level = (self.told < self.depth).then(|| self.levels[self.told]).filter(|l| l.begin > 0)?;
        self.told += 1;
        Some(level)
    }

    /// Leaves the innermost one at this depth, if it is one that the ring need not know of.
    #[inline]
    pub(super) fn leave_silently(&mut self, depth: usize) -> bool {
        let is_silent =
            depth + 1 == self.depth && self.told <= depth && self.levels[depth % DEPTH].begin == 0;
        if is_silent {
            self.depth = depth;
        }
        is_silent
    }

    /// The level at this depth, and whether it is told; what is further in is gone.
    #[inline]
    pub(super) fn cut_to(&mut self, depth: usize) -> Option<(Level, bool)> {
        if depth >= self.depth {
            return None; // it went with one further out
        }
        self.depth = depth + 1;
        self.told = self.told.min(self.depth);
        Some((self.levels[depth % DEPTH], self.told > depth))
    }

    /// Leaves the innermost one.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
        self.told = self.told.min(self.depth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(stack: &mut Stack) -> Vec<u16> {
        std::iter::from_fn(|| stack.tell()).map(|level| level.operation).collect()
    }

    #[test]
    fn all_are_told_from_the_outermost_in_and_each_once() {
        let mut stack = Stack::new();
        assert!(stack.enter(1) && stack.enter(2));
        stack.begin(50, 0);
        assert!(stack.enter(3));
        assert_eq!((stack.innermost(), told(&mut stack)), (3, vec![1, 2, 3]));
        assert!(stack.is_told() && !stack.leave_silently(2), "its end is to be told");
        stack.leave();
        assert!(stack.enter(4) && !stack.is_told());
        assert!(stack.leave_silently(2), "nobody knows of it");
        assert!(stack.is_told());
        assert!(stack.enter(5));
        assert_eq!(told(&mut stack), [5]);
    }

    #[test]
    fn before_a_hold_only_what_is_held_back_is_told() {
        let mut stack = Stack::new();
        assert!(stack.enter(1));
        stack.begin(50, 0);
        assert!(stack.enter(2));
        let level = stack.tell_held_back().expect("it was drawn");
        assert_eq!((level.operation, level.begin), (1, 50));
        assert!(stack.tell_held_back().is_none() && !stack.is_told(), "the inner one was not drawn");
        assert!(stack.leave_silently(1), "nobody knows of it");
        assert!(stack.is_told() && !stack.leave_silently(0), "its end is to be told");
    }

    #[test]
    fn who_leaves_further_out_leaves_all_inside() {
        let mut stack = Stack::new();
        for operation in 1..5 {
            assert!(stack.enter(operation));
        }
        stack.tell();
        let (level, is_told) = stack.cut_to(1).expect("there");
        assert_eq!((level.operation, is_told, stack.depth()), (2, false, 2));
        stack.leave();
        assert!(stack.cut_to(3).is_none() && stack.cut_to(1).is_none(), "gone with it");
        assert_eq!((stack.innermost(), stack.is_told()), (1, true));
    }

    #[test]
    fn too_deep_is_refused_and_the_rest_stays() {
        let mut stack = Stack::new();
        assert!((0..DEPTH).all(|at| stack.enter(at as u16 + 1)));
        assert!(!stack.enter(99));
        assert_eq!((stack.depth(), usize::from(stack.innermost())), (DEPTH, DEPTH));
    }
}
