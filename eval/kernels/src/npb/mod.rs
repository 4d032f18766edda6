//! Some of the NAS Parallel Benchmarks, from their specification (NAS Technical Report RNR-94-007 and NPB
//! 2.3's classes), serial.
//!
//! | module | program |
//! |---|---|
//! | [`is`] | integer sort by counting |
//! | [`ft`] | three-dimensional Fourier transform |
//! | [`cg`] | conjugate gradient on a random sparse matrix |
//! | [`mg`] | multigrid V-cycles |
//! | [`sp`] | time steps of a flow, pentadiagonal systems along every line |
//! | [`lcg`] | their random numbers |

pub mod cg;
pub mod ft;
pub mod is;
pub mod lcg;
pub mod mg;
pub mod sp;

use std::fmt;

/// Problem sizes, small to large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Sample: for tests.
    S,
    /// Workstation.
    W,
    /// The smallest real one.
    A,
}

impl Class {
    /// All of them.
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
