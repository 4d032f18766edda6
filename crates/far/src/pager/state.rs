//! States of a page, and the data kept for each page.

use crate::digest::Digest;
use crate::replace::Access;
use std::time::Instant;

/// Replicas as a set: bit *n* is replica *n*.
pub(super) type Replicas = u16;

/// | state | bytes are | counts as | leaves it by |
/// |---|---|---|---|
/// | `Empty` | all zeros, nowhere | – | a touch → `Resident` |
/// | `Open` | in the region, or zeros (`core::open`) | local | memory is short → `Resident` or `Empty` |
/// | `Away` | at the holders | – | a touch or a guess → `Coming` |
/// | `Compressed` | in the tier (`core::tier`) | its bytes: `limit` is smaller | a touch → `Resident` |
/// | `Coming` | at the holders, in flight | local | arrival → `Resident`, `Staged`; no holder → `Lost` |
/// | `Staged` | in the frame | local | a touch → `Resident`; room is needed → `Away` |
/// | `Resident` | in the region | local | the policy → `Leaving`, `Away`, `Empty`; a cleared bit → `Armed` |
/// | `Armed` | in the frame, or protected in the region | local | a touch → `Resident`; the policy's choice |
/// | `Leaving` | in the frame, in flight | slack | all have answered → `Away`; touched → `Resident` |
/// | `Unmanaged` | ordinary memory | unmanaged: `limit` is smaller by it | never (`core::unmanaged`) |
/// | `Lost` | nowhere any more | – | never: a touch stops the program |
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Empty,
    Open,
    Away,
    Compressed,
    Coming { frame: u32, touch: Option<Touch>, then: Then },
    Staged { frame: u32 },
    Resident { writable: bool, dirty: bool },
    Armed { frame: Option<u32>, dirty: bool },
    Leaving { frame: u32, touch: Option<Touch>, out: Out, discard: bool },
    Lost,
    Unmanaged,
}

/// Action after a page has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// A thread touched the page, or will.
    Use,
    /// The page is copied to one more replica.
    Recopy,
    /// The program discarded the page meanwhile.
    Discard,
}

/// A thread waits for the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub(super) access: Access,
    pub(super) since: Instant,
}

impl Touch {
    pub(super) fn now(access: Access) -> Self {
        Self { access, since: Instant::now() }
    }

    /// Both wait: a write if one of them writes.
    pub(super) fn join(touch: Option<Self>, later: Self) -> Self {
        match touch {
            Some(Self { access: Access::Read, since }) => Self { access: later.access, since },
            Some(touch) => touch,
            None => later,
        }
    }
}

/// A page that is being paged out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Out {
    /// Replicas that have not answered.
    pub(super) open: Replicas,
    /// Replicas that have it.
    pub(super) got: Replicas,
    /// Replicas that it was sent to.
    pub(super) tried: Replicas,
}

/// A page of the region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// Of its bytes when they last left, or of zeros.
    pub(super) digest: Digest,
    /// Replicas that have bytes with this digest.
    pub(super) holders: Replicas,
    /// Of a resident page: the page that stands for it in the policy (RUN-2).
    pub(super) lead: u32,
}
