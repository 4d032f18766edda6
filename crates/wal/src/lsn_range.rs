//! Ranges of LSNs: one write to the shared counter serves many records of a log buffer.
//!
//! The counter is one cache line, and every record of every log buffer needs a number from it. So a log
//! buffer draws a *range* when a record needs an LSN and uses it up record by record, under its buffer latch.
//! An LSN that was drawn ahead is smaller than LSNs that other log buffers have drawn since. This must not
//! cause a page LSN that decreases (W7), a durable transaction without a transaction that it depends on, or
//! an unused LSN that holds the durable horizon down.
//!
//! 1. A record with a [predecessor](Order::After) takes the next LSN of the open range if that LSN is above
//!    the record's **floor**; see RANGE-3.
//! 2. Otherwise the rest of the range becomes a [gap](crate::lsn_gap), and a new range is drawn. Its LSNs are
//!    above all LSNs drawn before, and so above every floor.
//! 3. When a flush takes the buffer, the rest of the range becomes a gap. The batch carries its gaps to disk.
//!
//! | a drawn LSN is | changed by |
//! |---|---|
//! | open: in the range, above the last record | an append: to used or gap; a flush: to gap |
//! | used by a record, or in a gap | nothing; both become durable with the batch |
//!
//! - **RANGE-1** A log buffer with an open range has a record in its buffer that is below the range: a range
//!   is drawn for a record, and ends when a flush takes the buffer. So the log buffer's mark (HORIZON-1) is
//!   below each open LSN, and only records that are not durable hold the horizon down. A log buffer with
//!   nothing to log has no range (W1).
//! - **RANGE-2** LSNs of one log buffer increase from record to record. Those of a later batch are above the
//!   counter's value when the earlier batch was taken. So BUFFER-2 holds, and the field `complete_below` of a
//!   chunk's header is true.
//! - **RANGE-3** A record's LSN is above its floor. The floor is the largest of two kinds of LSNs: those of
//!   the pages that the record changes, read under their latches; and the commit LSNs that the lock table,
//!   with locks released early, has passed to transactions of the log buffer (W8). So page LSNs never
//!   decrease, and a transaction comes in the log after the commits that it depends on. The part of the log
//!   up to the horizon depends on nothing above it.
//! - **RANGE-4** A record without a floor draws [a new LSN](Order::Newest): it takes, frees or formats pages
//!   and cannot see the earlier content of those pages. Its LSN is above all LSNs drawn before, so above the
//!   last changes of that content.
//! - **RANGE-5** The counter is above every LSN drawn so far, but it is no lower bound of future LSNs. By
//!   RANGE-1, the durable horizon plus one is a lower bound
//!   ([`lsn_bound`](azekura_base::DurableLog::lsn_bound)). A counter value becomes a lower bound once
//!   everything below it is durable.
//! - **RANGE-6** Every LSN up to the horizon is a record or in a gap on disk, so a recovery that counts gaps
//!   as present finds the cut at the first LSN that is neither (W5).
//!
//! Readers of the counter, by RANGE-5:
//!
//! | reader | needs a value | uses |
//! |---|---|---|
//! | `make_durable`, tickets, `close`, an epoch's end, a flush's `covers` | above all drawn | the counter |
//! | a page that becomes dirty, the active list | below all future LSNs | horizon + 1 |
//! | the image of a page in flight | below later changes of the page | max(horizon, page LSN) + 1 |
//! | a checkpoint's begin | below all future LSNs | horizon + 1, once all drawn LSNs are durable |
//! | a checkpoint's end, the target of a restart's length | above all drawn | the counter |
//! | a page that was to be formatted and is not | above its earlier content | the counter |
//! | an idle buffer's first mark | below its own future LSNs | the counter: its range is drawn later |
//!
//! A record that is appended later, with an LSN below an epoch's boundary, belongs to that epoch.
//!
//! Limit: a crash may lose the earlier and keep the later of two commits in different buffers that do not
//! depend on each other and are not acknowledged.
//!
//! *Length of a range.* The number of records that the buffer's last batch had, less the number in the
//! current batch. If the current batch has reached the last one: the number of records in the current batch.
//! Ranges are broken off if other log buffers change the same pages. The next range is then at most as long
//! as the last one served records; the limit doubles after each range that is used up. A gap costs a few
//! bytes of log, so the length affects speed only.
//!
//! Model: `tests/loom_range.rs`.

use azekura_base::Lsn;

use crate::lsn_gap::LsnGap;

/// The required place of a record in the order of LSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Above every LSN drawn so far: draws a new one.
    Newest,
    /// Above this LSN, and above the [floor](crate::log_buffer::LogBuffer::raise_floor) of its buffer.
    After(Lsn),
}

/// Most LSNs that may be drawn at once.
pub const MAX_RANGE: u32 = 1 << 16;

/// A log buffer's open range, and the state that determines the length of the next one. Protected by the log
/// buffer's latch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LsnRange {
    /// First open LSN. The open LSNs end before `end`.
    next: u64,
    end: u64,
    /// Number of LSNs in the last range, open or ended. `served` is the number of records that got one of
    /// them.
    count: u64,
    served: u64,
    /// Largest number of LSNs to draw at once.
    most: u64,
    /// Estimate of the records that a range serves before it is broken off.
    reach: u64,
    /// Number of records in the last batch.
    usual: u64,
}

impl LsnRange {
    /// Returns the state without an open range. No range will be longer than `most` LSNs.
    pub(crate) const fn new(most: u64) -> Self {
        Self { next: 0, end: 0, count: 0, served: 0, most, reach: most, usual: 0 }
    }

    /// Returns `true` if an LSN is left.
    pub(crate) const fn is_open(&self) -> bool {
        self.next < self.end
    }

    /// Takes the next LSN of the range, if it is above `floor`.
    pub(crate) fn take(&mut self, floor: u64) -> Option<u64> {
        if !self.is_open() || self.next <= floor {
            return None;
        }
        self.next += 1;
        self.served += 1;
        Some(self.next - 1)
    }

    /// Ends the range because its next LSN is not above a record's floor. Returns the unused LSNs as a gap.
    pub(crate) fn break_off(&mut self) -> Option<LsnGap> {
        let gap = self.close();
        if gap.is_some() {
            self.reach = self.served;
        } else if self.served == self.count {
            self.reach = (self.reach * 2).min(self.most);
        }
        gap
    }

    /// Ends the range. Returns the unused LSNs as a gap.
    pub(crate) fn close(&mut self) -> Option<LsnGap> {
        let gap = self.is_open().then(|| LsnGap { first: self.next, last: self.end - 1 });
        self.next = self.end;
        gap
    }

    /// Ends the range because a flush takes a batch of `records` records. Returns the unused LSNs as a gap.
    pub(crate) fn end_batch(&mut self, records: u64) -> Option<LsnGap> {
        self.usual = records;
        self.close()
    }

    /// Returns the number of LSNs to draw for a buffer that has `records` records.
    pub(crate) fn wanted(&self, records: u64) -> u64 {
        let more = if records < self.usual { self.usual - records } else { records };
        more.min(self.reach).clamp(1, self.most)
    }

    /// Opens a drawn range; a record uses the first LSN.
    pub(crate) const fn open(&mut self, first: u64, count: u64) {
        self.next = first + 1;
        self.end = first + count;
        (self.count, self.served) = (count, 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_range_serves_those_whose_floor_is_below_it_and_what_is_left_is_a_gap() {
        let mut range = LsnRange::new(64);
        assert_eq!((range.take(0), range.close()), (None, None), "none is open");
        range.open(10, 4);
        assert_eq!(
            [range.take(0), range.take(11), range.take(13)],
            [Some(11), Some(12), None],
            "13 is a page's"
        );
        range.open(20, 4);
        assert_eq!((range.take(21), range.break_off()), (None, Some(LsnGap { first: 21, last: 23 })));
        assert_eq!((range.take(0), range.close()), (None, None));
    }

    #[test]
    fn a_range_is_as_long_as_the_last_batch_predicts() {
        let mut range = LsnRange::new(64);
        assert_eq!([0, 1, 2, 40, 100].map(|records| range.wanted(records)), [1, 1, 2, 40, 64]);
        range.end_batch(11);
        assert_eq!([0, 1, 10, 11, 22].map(|records| range.wanted(records)), [11, 10, 1, 11, 22]);
        range.end_batch(1000);
        assert_eq!(range.wanted(0), 64);
        assert_eq!(LsnRange::new(1).wanted(500), 1);
    }

    #[test]
    fn ranges_that_are_broken_off_get_short_and_those_used_up_get_long_again() {
        let mut range = LsnRange::new(64);
        range.end_batch(64);
        range.open(1, 64);
        assert!((0..4).all(|_| range.take(0).is_some()));
        assert!(range.break_off().is_some());
        assert_eq!(range.wanted(0), 5, "what the last one served");
        range.open(100, 1);
        assert_eq!(range.break_off(), None);
        assert_eq!(range.wanted(0), 10);
        range.open(200, 10);
        assert!(range.close().is_some(), "for a flush, or a record that draws afresh");
        assert_eq!(range.wanted(0), 10);
    }
}
