//! Serial versions of some of the NAS Parallel Benchmarks, written from their specification (NAS Technical
//! Report RNR-94-007, and the classes of NPB 2.3).
//!
//! | module | program |
//! |---|---|
//! | [`is`] | integer sort by counting |
//! | [`ft`] | three-dimensional Fourier transform |
//! | [`cg`] | conjugate gradient on a random sparse matrix |
//! | [`mg`] | multigrid V-cycles |
//! | [`sp`] | time steps of a flow, with pentadiagonal systems along every line |
//! | [`lcg`] | random numbers of the benchmarks |

pub mod cg;
pub mod ft;
pub mod is;
pub mod lcg;
pub mod mg;
pub mod sp;

use std::fmt;

/// Problem sizes, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Sample size, for tests.
    S,
    /// Workstation size.
    W,
    /// The smallest of the benchmarks' regular sizes.
    A,
}

impl Class {
    /// All sizes.
    pub const ALL: [Self; 3] = [Self::S, Self::W, Self::A];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::S => "s",
            Self::W => "w",
            Self::A => "a",
        })
    }
}
