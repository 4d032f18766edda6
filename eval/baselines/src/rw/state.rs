//! The state of a reader–writer latch and its transitions: seven members in InnoDB 5.0 (Fig. 7 of the paper),
//! packed into one word by the paper (Fig. 8).
//!
//! | bits | member in InnoDB | meaning |
//! |---|---|---|
//! | 0..13 | `reader_count` | shared holders, at most 8,191 |
//! | 13..15 | `writer`, `writer_is_wait_ex` | no writer; one waits for the readers to leave; one holds |
//! | 15 | `waiters` | threads sleep |
//! | 32..64 | `writer_thread` | the writer's thread, which the trace reports for waits |
//!
//! Omitted: `writer_count` (a holder never locks again) and `pass` (no thread unlocks for another).

use azekura_trace::ThreadTag;

/// Largest number of shared holders: 13 bits, as in the paper (section 5.1).
pub const MOST_READERS: u32 = (1 << 13) - 1;

const WRITER_SHIFT: u32 = 13;
const WAITERS: u64 = 1 << 15;
const THREAD_SHIFT: u32 = 32;

/// State of the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writer {
    /// `RW_LOCK_NOT_LOCKED`.
    #[default]
    None,
    /// `RW_LOCK_WAIT_EX`: the writer has claimed the next turn, which excludes new readers.
    Waiting,
    /// `RW_LOCK_EX`.
    Holding,
}

/// The state of a reader–writer latch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    readers: u32,
    writer: Writer,
    has_waiters: bool,
    writer_thread: ThreadTag,
}

/// The result of an attempt to lock exclusively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The calling thread holds the latch.
    Mine,
    /// The calling thread has the next turn, when the readers have left.
    Next,
    /// Another writer holds the latch or has the next turn.
    Another,
}

impl State {
    /// Packs the state into one word.
    #[must_use]
    pub fn pack(self) -> u64 {
        let waiters = if self.has_waiters { WAITERS } else { 0 };
        let writer = (self.writer as u64) << WRITER_SHIFT;
        u64::from(self.readers) | writer | waiters | u64::from(self.writer_thread.0) << THREAD_SHIFT
    }

    /// Unpacks the state from one word.
    #[must_use]
    pub fn unpack(word: u64) -> Self {
        let writer = match word >> WRITER_SHIFT & 3 {
            0 => Writer::None,
            1 => Writer::Waiting,
            _ => Writer::Holding,
        };
        Self {
            readers: (word & u64::from(MOST_READERS)) as u32,
            writer,
            has_waiters: word & WAITERS != 0,
            writer_thread: ThreadTag((word >> THREAD_SHIFT) as u32),
        }
    }

    /// Returns the number of shared holders.
    #[must_use]
    pub fn readers(&self) -> u32 {
        self.readers
    }

    /// Returns the state of the writer.
    #[must_use]
    pub fn writer(&self) -> Writer {
        self.writer
    }

    /// Returns the thread of the writer; the empty tag if there is none.
    #[must_use]
    pub fn writer_thread(&self) -> ThreadTag {
        self.writer_thread
    }

    /// Enters shared if no writer holds or waits, and returns `true` then: `rw_lock_s_lock_low`.
    pub fn enter_shared(&mut self) -> bool {
        let enters = self.writer == Writer::None && self.readers < MOST_READERS;
        self.readers += u32::from(enters);
        enters
    }

    /// Enters exclusively, or claims the next turn: `rw_lock_x_lock_low`. `claimed` is set if the calling
    /// thread already has the next turn.
    pub fn enter_exclusive(&mut self, claimed: bool, me: ThreadTag) -> Turn {
        if self.writer != Writer::None && !claimed {
            return Turn::Another;
        }
        self.writer_thread = me;
        if self.readers == 0 {
            self.writer = Writer::Holding;
            Turn::Mine
        } else {
            self.writer = Writer::Waiting;
            Turn::Next
        }
    }

    /// Leaves; returns `true` if sleepers must be woken.
    pub fn leave_shared(&mut self) -> bool {
        debug_assert!(self.readers > 0, "released without being held");
        self.readers -= 1;
        self.readers == 0 && std::mem::take(&mut self.has_waiters)
    }

    /// Leaves; returns `true` if sleepers must be woken.
    pub fn leave_exclusive(&mut self) -> bool {
        debug_assert!(self.writer == Writer::Holding, "released without being held");
        self.writer = Writer::None;
        self.writer_thread = ThreadTag::NONE;
        std::mem::take(&mut self.has_waiters)
    }

    /// Records that a thread is about to sleep.
    pub fn note_waiter(&mut self) {
        self.has_waiters = true;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ME: ThreadTag = ThreadTag(77);

    #[test]
    fn packing_keeps_every_member() {
        for readers in [0, 1, MOST_READERS] {
            for writer in [Writer::None, Writer::Waiting, Writer::Holding] {
                for has_waiters in [false, true] {
                    for thread in [0, 1, u32::MAX] {
                        let state = State { readers, writer, has_waiters, writer_thread: ThreadTag(thread) };
                        assert_eq!(State::unpack(state.pack()), state);
                    }
                }
            }
        }
    }

    #[test]
    fn a_waiting_writer_keeps_new_readers_out_and_enters_after_the_last_old_one() {
        let mut state = State::default();
        assert!(state.enter_shared() && state.enter_shared());
        assert_eq!(state.enter_exclusive(false, ME), Turn::Next);
        assert!(!state.enter_shared());
        assert_eq!(state.enter_exclusive(false, ThreadTag(5)), Turn::Another);
        assert_eq!(state.writer_thread(), ME);
        state.note_waiter();
        assert!(!state.leave_shared(), "a reader is still in");
        assert_eq!(state.enter_exclusive(true, ME), Turn::Next);
        assert!(state.leave_shared(), "the last one wakes");
        assert_eq!(state.enter_exclusive(true, ME), Turn::Mine);
        assert!(!state.leave_exclusive(), "they were woken already");
        assert_eq!(state, State::default());
    }

    #[test]
    fn one_reader_too_many_is_refused() {
        let mut state = State { readers: MOST_READERS, ..State::default() };
        assert!(!state.enter_shared());
        assert_eq!(state.readers(), MOST_READERS);
    }
}
