//! Kinds of waits, and the table column of each.

/// Kind of a wait.
///
/// The numbers are part of the trace file's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "analyze", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[repr(u8)]
pub enum WaitKind {
    /// A latch: short, physical, protects bytes in memory.
    Latch = 1,
    /// A transaction's lock: logical, held to its end.
    Lock = 2,
    /// The log: a commit waits for the durable horizon, or a writer for space in a log buffer.
    Log = 3,
    /// Another thread reads the page that this one needs.
    PageIn = 4,
    /// No frame is free yet.
    FreeFrame = 5,
    /// A dirty page is being written.
    WriteBack = 6,
    /// A call of this thread to a storage device.
    Device = 7,
    /// A call of this thread to the network.
    Network = 8,
    /// Admission: a limit on the number of concurrent threads (the paper's `conc_lock`).
    Limit = 9,
    /// Waiting for work: a condition variable, an empty queue. Never counted as contention.
    Idle = 10,
    /// Any other logical resource.
    Other = 11,
    /// A compare-and-swap is repeated because other threads changed the word. No thread holds a resource, and
    /// the processor is busy.
    Retry = 12,
}

/// The column of the report in which a wait counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WaitClass {
    /// A passive resource: locks, latches, contended words, frames, admission.
    Lock,
    /// An active resource that works for the thread: device, network, the log in flight to disk.
    Io,
    /// Waiting for work, which is no bottleneck.
    Idle,
}

impl WaitKind {
    /// All kinds, in order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Latch,
        Self::Lock,
        Self::Log,
        Self::PageIn,
        Self::FreeFrame,
        Self::WriteBack,
        Self::Device,
        Self::Network,
        Self::Limit,
        Self::Idle,
        Self::Other,
        Self::Retry,
    ];

    /// Returns the kind with this number in the file format, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns the column in which waits of this kind count.
    #[must_use]
    pub const fn class(self) -> WaitClass {
        match self {
            Self::Latch | Self::Lock | Self::FreeFrame | Self::Limit | Self::Other | Self::Retry => {
                WaitClass::Lock
            }
            Self::Log | Self::PageIn | Self::WriteBack | Self::Device | Self::Network => WaitClass::Io,
            Self::Idle => WaitClass::Idle,
        }
    }

    /// Returns the kind's name in reports: one or two words in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latch => "latch",
            Self::Lock => "lock",
            Self::Log => "log",
            Self::PageIn => "page-in",
            Self::FreeFrame => "free frame",
            Self::WriteBack => "write-back",
            Self::Device => "device",
            Self::Network => "network",
            Self::Limit => "limit",
            Self::Idle => "idle",
            Self::Other => "other",
            Self::Retry => "retry",
        }
    }
}

/// Mode of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HoldMode {
    /// No other thread may hold the object.
    Exclusive = 0,
    /// Other threads may hold the object in shared mode.
    Shared = 1,
}

/// The number of a thread in traces. A lock may store it beside its word, to name its holder.
///
/// 0 stands for no thread: unknown, or probes compiled out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ThreadTag(pub u32);

impl ThreadTag {
    /// The number that stands for no thread.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_kinds_round_trip_and_others_are_refused() {
        for kind in WaitKind::ALL {
            assert_eq!(WaitKind::from_number(kind as u8), Some(kind));
        }
        assert_eq!(WaitKind::from_number(0), None);
        assert_eq!(WaitKind::from_number(13), None);
    }
}
