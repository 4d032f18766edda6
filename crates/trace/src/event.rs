//! The event: four words, 32 bytes. Probes write only events.
//!
//! | kind | `object` | `argument` |
//! |---|---|---|
//! | `Enter`, `Exit` | – | – |
//! | `Ran` | – | ticks from enter to exit |
//! | `WaitBegin` | instance | [`WaitKind`](crate::WaitKind); holder: bit 8 operation, bit 32 tag |
//! | `WaitEnd` | instance waited for | – |
//! | `Hold` | instance held, until now | ticks of the hold |
//! | `Release` | instance released while others waited | – |
//! | `Anchor` | CPU time of the thread, ns | – |
//! | `Mark` | value given by the program | – |
//! | `Lost` | number of events lost just before this one | – |
//! | `Stack` | – | stack of the thread's next `WaitBegin` |
//!
//! Short operations are sampled (see `live/stride.rs`): an `Enter` then represents the number of executions
//! in its flags, and an [`UNTIMED`] `Enter` represents none. Waits inside are recorded in all executions.
//!
//! In the words of the paper's framework (section 3.2): `WaitBegin` is *Request & Wait*, `WaitEnd` is
//! *Accept*, `Release` and the end of a `Hold` are *Finish*; `Enter` and `Exit` are *Accept* and *Finish* of
//! the thread that serves the operation. An uncontended acquisition, *Request* and *Accept* at once, is not
//! recorded.

/// Kind of an event. The numbers are part of the trace file's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// An operation begins.
    Enter = 1,
    /// The operation ends.
    Exit = 2,
    /// A contended wait begins.
    WaitBegin = 3,
    /// The wait ends: the thread has the resource.
    WaitEnd = 4,
    /// A hold ends; its length is the argument.
    Hold = 5,
    /// A resource for which others wait was released.
    Release = 6,
    /// The thread's CPU time at this instant.
    Anchor = 7,
    /// The program marks this instant.
    Mark = 8,
    /// Events were lost between the last event and the next.
    Lost = 9,
    /// An operation without inner events, recorded at its end. Only in rings; in files it is an `Enter` and
    /// an `Exit`.
    Ran = 10,
    /// The stack of the thread's next wait. Only in files: recorders record the frames as marks.
    Stack = 11,
}

impl EventKind {
    /// Returns the kind with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Enter,
            2 => Self::Exit,
            3 => Self::WaitBegin,
            4 => Self::WaitEnd,
            5 => Self::Hold,
            6 => Self::Release,
            7 => Self::Anchor,
            8 => Self::Mark,
            9 => Self::Lost,
            10 => Self::Ran,
            11 => Self::Stack,
            _ => return None,
        })
    }
}

/// Flag: the thread left its CPU at least once between the previous event and this one.
pub const SWITCHED: u8 = 1;
/// Flag: the event was sampled at random: a `Hold`, regardless of an earlier wait, or the `Enter` of an
/// operation.
pub const SAMPLED: u8 = 2;
/// Flag of a `Hold`: shared with others.
pub const SHARED: u8 = 4;
/// Flag of an `Enter` of an execution that was not sampled. The event is recorded only because of the events
/// inside, some time after the execution began.
pub const UNTIMED: u8 = 4;
/// Flag of a `Hold` that followed a wait of its thread for the same object. All such holds are recorded.
pub const WAITED: u8 = 8;

/// Flag of a `WaitEnd` without a wake-up: the time limit passed, or the wait did not begin.
pub const UNWOKEN: u8 = 16;

/// Flag of a `Release` before a wake-up of a waiter. The object need not be a lock; its holds, if any, are
/// recorded separately.
pub const WOKE: u8 = 32;

/// Flag of a `Lost` event that a reader inserts for the events in a damaged part of the file.
pub const DAMAGED: u8 = 64;

/// One event of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Time by the trace's clock; [`Calibration`](crate::file::Calibration) converts it to nanoseconds.
    pub ticks: u64,
    /// Kind of the event.
    pub kind: EventKind,
    /// [`SWITCHED`], [`SAMPLED`], [`SHARED`], [`WAITED`], [`UNWOKEN`], [`WOKE`], [`DAMAGED`]; see also
    /// [`Event::stands_for`].
    pub flags: u8,
    /// The innermost operation of the thread (for `Enter` and `Exit`: the operation itself); 0 for none.
    pub operation: u16,
    /// The site; 0 for none.
    pub site: u32,
    /// The object; see the table at the head of the module.
    pub object: u64,
    /// The argument; see the table at the head of the module.
    pub argument: u64,
}

impl Event {
    /// Returns an event with only a time and a kind.
    #[must_use]
    pub const fn new(ticks: u64, kind: EventKind) -> Self {
        Self { ticks, kind, flags: 0, operation: 0, site: 0, object: 0, argument: 0 }
    }

    /// Returns the event as the four words of a ring's slot.
    #[inline]
    #[must_use]
    pub const fn to_words(self) -> [u64; 4] {
        let packed = self.kind as u64
            | (self.flags as u64) << 8
            | (self.operation as u64) << 16
            | (self.site as u64) << 32;
        [self.ticks, packed, self.object, self.argument]
    }

    /// Returns the event of four words; `None` if the kind's number is unknown.
    #[must_use]
    pub const fn from_words(words: [u64; 4]) -> Option<Self> {
        let Some(kind) = EventKind::from_number(words[1] as u8) else { return None };
        Some(Self {
            ticks: words[0],
            kind,
            flags: (words[1] >> 8) as u8,
            operation: (words[1] >> 16) as u16,
            site: (words[1] >> 32) as u32,
            object: words[2],
            argument: words[3],
        })
    }

    /// Returns the number of holds, or executions, that this event represents. The number is 1 if all events
    /// of its kind are recorded (holds that followed a wait, long operations). Otherwise the event was
    /// sampled, and the upper four bits of the flags are the logarithm of the number.
    #[must_use]
    pub const fn stands_for(&self) -> u32 {
        if self.flags & (SAMPLED | WAITED) == SAMPLED { 1 << (self.flags >> 4) } else { 1 }
    }

    /// Returns the number of executions that this `Enter` represents; 0 if it was not sampled.
    #[must_use]
    pub const fn executions(&self) -> u32 {
        if self.flags & UNTIMED != 0 { 0 } else { self.stands_for() }
    }

    /// Returns `true` if the thread left its CPU since its previous event.
    #[must_use]
    pub const fn is_switched(&self) -> bool {
        self.flags & SWITCHED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_32_bytes_and_survives_the_packing() {
        assert_eq!(size_of::<Event>(), 32);
        for number in 0..=u8::MAX {
            let Some(kind) = EventKind::from_number(number) else { continue };
            assert_eq!(kind as u8, number);
            let event = Event {
                ticks: u64::MAX - 1,
                kind,
                flags: 0xa5,
                operation: 0xbeef,
                site: 0xdead_beef,
                object: 3,
                argument: u64::MAX,
            };
            assert_eq!(Event::from_words(event.to_words()), Some(event));
        }
        assert_eq!(Event::from_words([0; 4]), None);
    }

    #[test]
    fn a_sampled_hold_is_scaled_unless_all_of_its_kind_are_recorded() {
        let hold = |flags| Event { flags, ..Event::new(0, EventKind::Hold) }.stands_for();
        assert_eq!((hold(SAMPLED | 6 << 4), hold(SAMPLED), hold(WAITED)), (64, 1, 1));
        assert_eq!(hold(SAMPLED | WAITED | 6 << 4), 1, "it would be counted twice");
    }
}
