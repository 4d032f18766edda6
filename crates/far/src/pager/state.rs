//! States of a page, and the data kept for each page.

use crate::digest::Digest;
use crate::replace::Access;
use std::time::Instant;

/// A set of replicas: bit *n* is replica *n*.
pub(super) type Replicas = u16;

/// State of a page:
///
/// | state | bytes are | counts as | next state |
/// |---|---|---|---|
/// | `Empty` | all zeros, not stored | – | a touch → `Resident` |
/// | `Open` | in the region, or zeros (`core::open`) | local | memory is short → `Resident` or `Empty` |
/// | `Away` | at the holders | – | a touch or a prediction → `Coming` |
/// | `Compressed` | in the tier (`core::tier`) | its bytes: `limit` is smaller | a touch → `Resident` |
/// | `Coming` | at the holders, in flight | local | arrival → `Resident`, `Staged`; no holder → `Lost` |
/// | `Staged` | in the frame | local | a touch → `Resident`; memory is needed → `Away` |
/// | `Resident` | in the region | local | the policy → `Leaving`, `Away`, `Empty`; a cleared bit → `Armed` |
/// | `Armed` | in the frame, or protected in the region | local | a touch → `Resident`; the policy's choice |
/// | `Leaving` | in the frame, in flight | slack | all replied → `Away`; touched → `Resident` |
/// | `Unmanaged` | ordinary memory | unmanaged: `limit` is smaller by it | never (`core::unmanaged`) |
/// | `Lost` | not available | – | none: a touch ends the program |
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

/// Action when a page arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The page is for a thread that has touched it or is expected to.
    Use,
    /// The page is copied to one more replica.
    Recopy,
    /// The program has discarded the page since the request.
    Discard,
}

/// An access by a thread that waits for the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub(super) access: Access,
    pub(super) since: Instant,
}

impl Touch {
    pub(super) fn now(access: Access) -> Self {
        Self { access, since: Instant::now() }
    }

    /// Combines two waiting accesses: a write if either of them is a write, and the earlier time.
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
    /// Replicas that have not replied.
    pub(super) open: Replicas,
    /// Replicas that stored the page.
    pub(super) got: Replicas,
    /// Replicas to which the page was sent.
    pub(super) tried: Replicas,
}

/// A page of the region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// Digest of the bytes that were last paged out; initially that of zeros.
    pub(super) digest: Digest,
    /// Replicas that store bytes with this digest.
    pub(super) holders: Replicas,
    /// For a resident page: the page that represents it in the policy (RUN-2).
    pub(super) lead: u32,
}
