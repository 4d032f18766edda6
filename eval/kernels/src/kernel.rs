//! The programs, by name and size.

use std::fmt;
use std::str::FromStr;

use crate::cluster::{self, Genes};
use crate::himeno::{self, Grid};
use crate::memory::{Memory, OutOfMemory};
use crate::npb::{Class, cg, ft, is, mg, sp};
use crate::verdict::Verdict;

/// A program with its size. Its names are `himeno.xs` to `himeno.l`; `is`, `ft`, `cg`, `mg` and `sp` with
/// `.s`, `.w` or `.a`; and `cluster.` with a number of genes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Jacobi's method for pressure.
    Himeno(Grid),
    /// Hierarchical clustering.
    Cluster(Genes),
    /// Integer sort.
    Is(Class),
    /// Fourier transform.
    Ft(Class),
    /// Conjugate gradient.
    Cg(Class),
    /// Multigrid.
    Mg(Class),
    /// Scalar pentadiagonal solver.
    Sp(Class),
}

impl Kernel {
    /// Returns the paper's programs in a size class, in the order of Fig. 7.
    #[must_use]
    pub fn all(class: Class) -> Vec<Self> {
        let (grid, genes) = match class {
            Class::S => (Grid::Xs, 200),
            Class::W => (Grid::S, 800),
            Class::A => (Grid::M, 3_000),
        };
        vec![
            Self::Himeno(grid),
            Self::Is(class),
            Self::Ft(class),
            Self::Cg(class),
            Self::Mg(class),
            Self::Sp(class),
            Self::Cluster(Genes(genes)),
        ]
    }

    /// Returns the bytes that the program needs.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Himeno(grid) => himeno::bytes(grid),
            Self::Cluster(genes) => cluster::bytes(genes),
            Self::Is(class) => is::bytes(class),
            Self::Ft(class) => ft::bytes(class),
            Self::Cg(class) => cg::bytes(class),
            Self::Mg(class) => mg::bytes(class),
            Self::Sp(class) => sp::bytes(class),
        }
    }

    /// Runs the program and verifies its result.
    ///
    /// # Errors
    ///
    /// If the memory has fewer bytes than [`bytes`](Self::bytes).
    pub fn run<M: Memory>(self, memory: &mut M) -> Result<Verdict, OutOfMemory> {
        match self {
            Self::Himeno(grid) => himeno::run(grid, memory),
            Self::Cluster(genes) => cluster::run(genes, memory),
            Self::Is(class) => is::run(class, memory),
            Self::Ft(class) => ft::run(class, memory),
            Self::Cg(class) => cg::run(class, memory),
            Self::Mg(class) => mg::run(class, memory),
            Self::Sp(class) => sp::run(class, memory),
        }
    }

    fn parts(self) -> (&'static str, String) {
        match self {
            Self::Himeno(grid) => ("himeno", format!("{grid:?}").to_lowercase()),
            Self::Cluster(Genes(genes)) => ("cluster", genes.to_string()),
            Self::Is(class) => ("is", class.to_string()),
            Self::Ft(class) => ("ft", class.to_string()),
            Self::Cg(class) => ("cg", class.to_string()),
            Self::Mg(class) => ("mg", class.to_string()),
            Self::Sp(class) => ("sp", class.to_string()),
        }
    }

    /// Returns the name without the size.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.parts().0
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, size) = self.parts();
        write!(f, "{name}.{size}")
    }
}

/// The error of an unknown program name or size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no program {0:?}: there are himeno.xs, .s, .m, .l; is, ft, cg, mg, sp with .s, .w, .a; cluster. with 2 \
     to 20000 genes"
)]
pub struct ParseKernelError(pub String);

impl FromStr for Kernel {
    type Err = ParseKernelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || ParseKernelError(text.into());
        let (name, size) = text.split_once('.').ok_or_else(unknown)?;
        if name == "cluster" {
            let genes = size.parse().ok().filter(|genes| (2..=20_000).contains(genes));
            return Ok(Self::Cluster(Genes(genes.ok_or_else(unknown)?)));
        }
        let grids = Grid::ALL.into_iter().map(Self::Himeno);
        let of_class = |class| [Self::Is, Self::Ft, Self::Cg, Self::Mg, Self::Sp].map(|kernel| kernel(class));
        grids
            .chain(Class::ALL.into_iter().flat_map(of_class))
            .find(|kernel| kernel.to_string() == text)
            .ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_read_back_from_its_text() {
        for class in Class::ALL {
            for kernel in Kernel::all(class) {
                assert_eq!(kernel.to_string().parse(), Ok(kernel));
            }
        }
        for unknown in ["is", "is.x", "cluster.1", "cluster.-3", "himeno.xl", "lu.s", ""] {
            assert_eq!(unknown.parse::<Kernel>(), Err(ParseKernelError(unknown.into())));
        }
    }
}
