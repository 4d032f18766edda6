//! The sizes of an area: the number of its thread slots, and the sizes of their rings.

use super::{MOST_SLOTS, PAGE, SLOT_HEAD, SLOTS_AT};
use crate::ring::Slot;

/// Sizes of an area. The recorder uses its own copy, which no program can change.
///
/// The first slots have rings of the full size, 1,008 slots with the default size. All later slots have rings
/// of an eighth of it: with so many threads, each one has few events between two drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of events of a ring of full size.
    pub ring_events: usize,
    /// Number of slots.
    pub slots: usize,
}

impl Layout {
    /// Address space of the slots with full rings and of the later slots, in bytes.
    const FULL_BYTES: usize = 256 << 20;
    const LATER_BYTES: usize = 576 << 20;
    const LEAST_FULL: usize = 16;
    /// The ratio of the sizes of full and later rings.
    const LATER_PART: usize = 8;

    /// Returns the layout with the largest number of slots for rings of this size.
    #[must_use]
    pub fn new(ring_events: usize) -> Self {
        let ring_events = ring_events.clamp(2, 1 << 24).next_power_of_two();
        let layout = Self { ring_events, slots: MOST_SLOTS };
        let later = Self::LATER_BYTES / slot_bytes(layout.ring_events_of(MOST_SLOTS));
        Self { slots: (layout.full_slots() + later).min(MOST_SLOTS), ..layout }
    }

    /// Returns the number of slots that take at most this number of bytes.
    #[must_use]
    pub fn slots_within(self, bytes: usize) -> usize {
        let (full, later) = (slot_bytes(self.ring_events), slot_bytes(self.ring_events_of(MOST_SLOTS)));
        let first = (bytes / full).min(self.full_slots());
        let rest = if first < self.full_slots() { 0 } else { (bytes - first * full) / later };
        self.slots.min(first + rest)
    }

    /// Returns the number of slots of a process with a limited address space: they take at most a sixteenth
    /// of the limit.
    #[must_use]
    pub fn slots_of_limited(self, limit: usize) -> usize {
        self.slots_within(limit / 16)
    }

    /// Returns the layout with the slots of a process with this limit of its address space.
    pub(super) fn limited_to(self, limit: usize) -> Self {
        Self { slots: self.slots_of_limited(limit), ..self }
    }

    /// Returns the number of slots with full rings: by the size of a ring only, because processes with
    /// different limits of their address space map the same file.
    fn full_slots(self) -> usize {
        (Self::FULL_BYTES / slot_bytes(self.ring_events)).clamp(Self::LEAST_FULL, MOST_SLOTS)
    }

    /// Returns the number of events of a slot's ring.
    pub(super) fn ring_events_of(self, slot: usize) -> usize {
        let later = (self.ring_events / Self::LATER_PART).max(2);
        if slot < self.full_slots() { self.ring_events } else { later }
    }

    /// Returns the number of bytes of an area with this number of slots.
    pub(super) fn bytes(self, slots: usize) -> usize {
        let full = slots.min(self.full_slots());
        let later = slot_bytes(self.ring_events_of(MOST_SLOTS));
        SLOTS_AT + full * slot_bytes(self.ring_events) + (slots - full) * later
    }
}

/// Returns the number of bytes of a slot with a ring of this number of events.
const fn slot_bytes(ring_events: usize) -> usize {
    (SLOT_HEAD + ring_events * size_of::<Slot>()).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_slots_have_smaller_rings_and_no_slot_overlaps_another() {
        for ring_events in [2, 8, 1024, 8192, 1 << 16, 1 << 24] {
            let layout = Layout::new(ring_events);
            let limited = Layout { slots: 20, ..layout };
            for slot in 0..layout.slots {
                let end = layout.bytes(slot) + SLOT_HEAD + layout.ring_events_of(slot) * size_of::<Slot>();
                assert!(end <= layout.bytes(slot + 1), "slot {slot} of {layout:?}");
                assert!(layout.ring_events_of(slot).is_power_of_two());
            }
            assert_eq!(limited.bytes(20), layout.bytes(20), "one file for both");
            for slots in [0, 1, 20, layout.full_slots(), layout.full_slots() + 7, layout.slots] {
                let slots = slots.min(layout.slots);
                assert_eq!(layout.slots_within(layout.bytes(slots) - SLOTS_AT), slots, "{layout:?}");
            }
        }
        let default = Layout::new(8192);
        assert!(default.slots >= 10_000 && default.bytes(10_000) < 640 << 20);
    }
}
