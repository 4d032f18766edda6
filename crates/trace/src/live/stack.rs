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

/// Levels that are kept. What is begun deeper counts as part of the level above.
const DEPTH: usize = 48;

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
