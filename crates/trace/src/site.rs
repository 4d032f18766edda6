//! Names of traced objects: sites, at which threads wait, and operations, during which threads wait. Both are
//! `static`s. Each stores the source line that created it, as the paper's probes do (section 3.3: "the
//! position of the structure's creation, file and line"), so two locks of one type are distinct without
//! explicit names. There is no `Default`, which would store the library's own line for every lock.

use crate::probes::Registration;
use std::panic::Location;

/// A lock, latch, queue or device for which threads wait.
///
/// All instances that one line creates share a site; the `object` given to [`wait`](crate::wait)
/// distinguishes them.
///
/// ```
/// use azekura_trace::Site;
/// static PAGE_LATCH: Site = Site::new("page latch");
/// assert_eq!(PAGE_LATCH.name(), "page latch");
/// assert!(PAGE_LATCH.file().ends_with(".rs"));
/// ```
#[derive(Debug)]
pub struct Site(pub(crate) Definition);

/// A kind of work, such as `get`, `commit` or `index_read`. Its waits are reported separately from those of
/// other kinds.
///
/// ```
/// use azekura_trace::Operation;
/// static GET: Operation = Operation::new("get");
/// assert_eq!(GET.name(), "get");
/// ```
#[derive(Debug)]
pub struct Operation(pub(crate) Definition);

/// Constructors and accessors of a type that wraps a [`Definition`].
macro_rules! definition {
    ($type:ident, $what:literal) => {
        impl $type {
            #[doc = concat!("Creates ", $what, " that carries the caller's source line.")]
            #[must_use]
            #[track_caller]
            pub const fn new(name: &'static str) -> Self {
                let place = Location::caller();
                Self(Definition::new(name, place.file(), place.line()))
            }

            #[doc = concat!("Creates ", $what, " of another program, without Rust source.")]
            #[must_use]
            pub const fn at(name: &'static str, file: &'static str, line: u32) -> Self {
                Self(Definition::new(name, file, line))
            }

            /// Returns the name given at creation.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                self.0.name
            }

            /// Returns the source file of the creating line.
            #[must_use]
            pub const fn file(&self) -> &'static str {
                self.0.file
            }

            /// Returns the number of the creating line.
            #[must_use]
            pub const fn line(&self) -> u32 {
                self.0.line
            }
        }
    };
}

definition!(Site, "a site");
definition!(Operation, "an operation");

/// The common part of sites and operations: a name, a source line, and an id that the first recorded event
/// assigns.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
    #[cfg_attr(any(feature = "off", loom), expect(dead_code, reason = "nothing is recorded"))]
    pub(crate) registration: Registration,
}

impl Definition {
    pub(crate) const fn new(name: &'static str, file: &'static str, line: u32) -> Self {
        Self { name, file, line, registration: Registration::new() }
    }
}
