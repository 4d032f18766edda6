//! The consolidation array (Aether, section 5.2): threads that find the log buffer latched join into groups,
//! and only the first member of each group takes the latch, once, for all.
//!
//! 1. **Join**: a thread finds an open slot and adds its record and the record's bytes, by one exchange. The
//!    first member leads.
//! 2. **Close**: the leader takes the buffer's latch, then the slot's content. Later threads use other slots.
//! 3. **Announce**: the leader reserves LSNs and bytes for the group, releases the latch, and announces the
//!    reserved space.
//! 4. **Copy**: each member copies into its own part of the group's space, all at the same time.
//! 5. **Leave**: the last member adds the group's bytes to the filled bytes, and opens the slot again.
//!
//! | slot word | verdict | state | left by |
//! |---|---|---|---|
//! | 0 | none | open and empty | any thread, which joins and leads |
//! | records, bytes | none | open, forming a group | any thread, which joins; the leader, which closes |
//! | `CLOSED` | none | closed, the leader reserves | the leader, which announces |
//! | `CLOSED` | placed or refused | members copy and leave | the last member, which opens the slot |
//!
//! - **SLOT-1** A group has one leader: the slot is open and empty again only after every member has left.
//! - **SLOT-2** A member's place in its group is fixed by its exchange. Places do not overlap, and together
//!   they fill the space that the leader reserves.
//! - **SLOT-3** No thread joins between closing and opening, so the leader reserves for exactly the members
//!   that wait for it.
//! - **SLOT-4** The verdict and its numbers change only between closing and the last leave, so a member reads
//!   those of its own group.
//!
//! Aether replaces a closed slot with a fresh one from a pool, so that the next group can form at once. Here
//! a thread that finds a closed slot tries the next slot, so no pool is needed.
//!
//! Model: `tests/loom_consolidation.rs`.

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use azekura_base::{Backoff, CachePadded, striped};
use azekura_trace::{Site, WaitKind};

use super::Space;
use crate::log_buffer::Refused;

static GROUP_WAIT: Site = Site::new("wal insertion group");

const CLOSED: u64 = u64::MAX;

/// Verdicts. `NONE`: no verdict, and no sleeping thread. `AWAITED`: no verdict, and threads may sleep.
const NONE: u32 = 0;
const AWAITED: u32 = 1;
const PLACED: u32 = 2;
const NO_ROOM: u32 = 3;
const NOT_ADMITTING: u32 = 4;

/// The records and bytes of the members that have joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) records: u32,
    pub(super) bytes: u32,
}

impl Group {
    const fn pack(self) -> u64 {
        (self.records as u64) << 32 | self.bytes as u64
    }

    const fn unpack(word: u64) -> Self {
        Self { records: (word >> 32) as u32, bytes: word as u32 }
    }
}

#[derive(Debug)]
struct Slot {
    word: AtomicU64,
    verdict: WaitWord,
    /// Number of members that have not left. Set by the leader, before the verdict.
    members: AtomicU32,
    /// Bytes of the group. Set by the leader, read by the last member.
    bytes: AtomicU32,
    /// First LSN of the group's space, or of the full buffer.
    lsn: AtomicU64,
    /// Offset and half of the group's space, or the argument of `wait_for_space`.
    place: AtomicU64,
}

/// The slots of the array, and the size limit of groups.
#[derive(Debug)]
pub(super) struct ConsolidationArray {
    slots: Box<[CachePadded<Slot>]>,
    /// Largest size of a group in bytes.
    max_bytes: u32,
}

impl ConsolidationArray {
    pub(super) fn new(slots: usize, max_bytes: usize) -> Self {
        let empty = || Slot {
            word: AtomicU64::new(0),
            verdict: WaitWord::new(NONE),
            members: AtomicU32::new(0),
            bytes: AtomicU32::new(0),
            lsn: AtomicU64::new(0),
            place: AtomicU64::new(0),
        };
        Self { slots: (0..slots).map(|_| CachePadded::new(empty())).collect(), max_bytes: max_bytes as u32 }
    }

    /// Returns the size of the longest record that may join.
    pub(super) const fn max_bytes(&self) -> usize {
        self.max_bytes as usize
    }

    /// Joins a group with a record of `len` bytes, `max_bytes` at most; `None` if no slot has room now.
    pub(super) fn join(&self, len: usize) -> Option<Member<'_>> {
        let first = striped::thread_stripe();
        (0..self.slots.len())
            .find_map(|i| self.slots[(first + i) % self.slots.len()].join(len as u32, self.max_bytes))
    }
}

impl Slot {
    fn join(&self, len: u32, max_bytes: u32) -> Option<Member<'_>> {
        // Relaxed: a guess; the exchange decides.
        let mut seen = self.word.load(Relaxed);
        loop {
            let group = Group::unpack(seen);
            if seen == CLOSED || group.bytes + len > max_bytes {
                return None;
            }
            let joined = Group { records: group.records + 1, bytes: group.bytes + len };
            // Acquire: pairs with the Release in `open`; the last group's verdict is cleared (SLOT-4).
            // Relaxed on failure: the loop reads the word again.
            match self.word.compare_exchange_weak(seen, joined.pack(), Acquire, Relaxed) {
                Ok(_) => return Some(Member { slot: self, index: group.records, offset: group.bytes }),
                Err(now) => seen = now,
            }
        }
    }
}

/// A member of a group, from joining to leaving: the place of its record.
#[derive(Debug)]
#[must_use = "a group stays closed until its members leave"]
pub(super) struct Member<'a> {
    slot: &'a Slot,
    /// Number of records before this one in the group.
    pub(super) index: u32,
    /// Bytes before this record in the group.
    pub(super) offset: u32,
}

impl Member<'_> {
    /// Returns `true` if this member leads the group (SLOT-1).
    pub(super) const fn leads(&self) -> bool {
        self.index == 0
    }

    /// Closes the slot to further members. The leader calls this function once, while it holds the buffer's
    /// latch.
    pub(super) fn close(&self) -> Group {
        // Relaxed: members pass only numbers to the leader, and these are in the word.
        let group = Group::unpack(self.slot.word.swap(CLOSED, Relaxed));
        self.slot.members.store(group.records, Relaxed);
        self.slot.bytes.store(group.bytes, Relaxed);
        group
    }

    /// Announces the group's space, or the refusal; the leader calls it once.
    pub(super) fn announce(&self, verdict: Result<Space, Refused>) {
        let (code, lsn, place) = match verdict {
            Ok(space) => (PLACED, space.first_lsn, (space.offset as u64) << 1 | space.half as u64),
            Err(Refused::NoSpace { first_lsn, taken }) => (NO_ROOM, first_lsn, taken.into()),
            Err(Refused::NotAdmitting) => (NOT_ADMITTING, 0, 0),
        };
        self.slot.lsn.store(lsn, Relaxed);
        self.slot.place.store(place, Relaxed);
        // Release: pairs with the Acquire in `verdict`; the numbers above are visible.
        if self.slot.verdict.word().swap(code, Release) == AWAITED {
            self.slot.verdict.wake_all();
        }
    }

    /// Waits for the leader's announcement and returns it.
    pub(super) fn verdict(&self) -> Result<Space, Refused> {
        let code = self.await_verdict();
        // Relaxed: ordered by the Acquire of the verdict.
        let (lsn, place) = (self.slot.lsn.load(Relaxed), self.slot.place.load(Relaxed));
        match code {
            PLACED => Ok(Space { half: (place & 1) as usize, offset: (place >> 1) as usize, first_lsn: lsn }),
            NO_ROOM => Err(Refused::NoSpace { first_lsn: lsn, taken: place as u32 }),
            _ => Err(Refused::NotAdmitting),
        }
    }

    fn await_verdict(&self) -> u32 {
        let word = self.slot.verdict.word();
        let mut backoff = Backoff::new();
        loop {
            // Acquire: pairs with the Release in `announce`.
            let seen = word.load(Acquire);
            if seen > AWAITED {
                return seen;
            }
            if !cfg!(loom) && !backoff.is_exhausted() {
                backoff.pause();
                continue;
            }
            // Relaxed: only requests a wake-up; an earlier verdict makes the exchange fail.
            if seen == AWAITED || word.compare_exchange(NONE, AWAITED, Relaxed, Relaxed).is_ok() {
                let _wait =
                    azekura_trace::wait(&GROUP_WAIT, std::ptr::from_ref(self.slot).addr(), WaitKind::Latch);
                self.slot.verdict.wait(AWAITED, None);
            }
        }
    }

    /// Leaves, after the copy. Runs `last` with the group's bytes if this is the last member, then opens the
    /// slot.
    pub(super) fn leave(self, last: impl FnOnce(usize)) {
        // AcqRel: Release makes all copies visible to the last member (FILL-2), and orders a member's reads
        // of the numbers before the next change (SLOT-4). Acquire is for the last member.
        if self.slot.members.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        last(self.slot.bytes.load(Relaxed) as usize);
        self.slot.verdict.word().store(NONE, Relaxed);
        // Release: pairs with the Acquire in `join`.
        self.slot.word.store(0, Release);
    }
}
