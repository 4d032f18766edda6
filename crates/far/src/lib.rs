//! Far memory: which of a region's pages stay in local memory, and which leave.
//!
//! | module | noun |
//! |---|---|
//! | [`replace`] | [`Replacement`]: who leaves when a page comes; the policies; their replay without real paging |

pub mod replace;

pub use replace::{Access, AccessBits, PageNo, Policy, Replacement, Shape};
