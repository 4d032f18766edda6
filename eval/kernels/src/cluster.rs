//! Hierarchical clustering of gene expressions, as in Cluster 3.0: correlations of all pairs, then average
//! linkage, pair by pair.
//!
//! Memory: a triangle of distances. Each join sweeps over it and removes one row, which the last row
//! replaces. The expressions are synthetic: genes follow one of a few random profiles with noise, so the
//! published sample is not needed.
//!
//! Verification: every gene is joined once. With average linkage, no join has a smaller distance than an
//! earlier one. The last joins are those between profiles, so that the tree without them is the set of
//! profiles.

use crate::memory::{Array, Memory, OutOfMemory, padded, with_slack};
use crate::npb::lcg::Lcg;
use crate::verdict::{Check, Verdict};

/// Number of genes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Genes(pub u32);

/// Number of expressions of each gene.
const SAMPLES: usize = 80;
/// Number of profiles that genes follow.
const PROFILES: usize = 8;
/// Amplitude of the noise, relative to that of a profile.
const NOISE: f64 = 0.5;

/// Returns the bytes that the program needs.
#[must_use]
pub fn bytes(Genes(genes): Genes) -> usize {
    let genes = genes as usize;
    let tree = 3 * padded::<u32>(genes) + padded::<f64>(genes);
    with_slack(padded::<f64>(genes * SAMPLES) + padded::<f64>(triangle(genes)) + tree)
}

const fn triangle(rows: usize) -> usize {
    rows * rows.saturating_sub(1) / 2
}

/// Returns the index of the distance between two rows.
fn place(a: usize, b: usize) -> usize {
    triangle(a.max(b)) + a.min(b)
}

/// Builds the tree of clusters, and verifies it.
///
/// # Errors
///
/// If the memory is too small.
pub fn run<M: Memory>(Genes(genes): Genes, memory: &mut M) -> Result<Verdict, OutOfMemory> {
    let genes = genes as usize;
    let mut expressions = memory.array::<f64>(genes * SAMPLES)?;
    let mut distances = memory.array::<f64>(triangle(genes))?;
    let mut tree = Tree::plant(genes, memory)?;
    express(genes, &mut expressions);
    correlate(genes, &expressions, &mut distances);
    for rows in (2..=genes).rev() {
        let (later, earlier, distance) = nearest(rows, &distances);
        let sizes = (f64::from(tree.sizes.get(later)), f64::from(tree.sizes.get(earlier)));
        average(later, earlier, rows, sizes, &mut distances);
        move_last(later, rows, &mut distances);
        tree.join(later, earlier, rows, distance);
    }
    Ok(tree.verdict(genes))
}

/// Computes the expressions of each gene from its profile and noise, scaled so that the scalar product of two
/// genes is their correlation.
fn express(genes: usize, expressions: &mut impl Array<f64>) {
    let mut lcg = Lcg::default();
    let mut centred = |spread: f64| spread * (2.0 * lcg.next_f64() - 1.0);
    let profiles: Vec<f64> = (0..PROFILES * SAMPLES).map(|_| centred(1.0)).collect();
    for gene in 0..genes {
        let profile = &profiles[gene % PROFILES * SAMPLES..][..SAMPLES];
        let noisy: Vec<f64> = profile.iter().map(|value| value + centred(NOISE)).collect();
        let mean = noisy.iter().sum::<f64>() / SAMPLES as f64;
        let spread = noisy.iter().map(|value| (value - mean).powi(2)).sum::<f64>().sqrt();
        for (sample, value) in noisy.iter().enumerate() {
            expressions.set(gene * SAMPLES + sample, (value - mean) / spread);
        }
    }
}

/// Computes the distance of each pair: one minus the correlation.
fn correlate(genes: usize, expressions: &impl Array<f64>, distances: &mut impl Array<f64>) {
    for later in 1..genes {
        for earlier in 0..later {
            let product = |sample| {
                expressions.get(later * SAMPLES + sample) * expressions.get(earlier * SAMPLES + sample)
            };
            distances.set(place(later, earlier), 1.0 - (0..SAMPLES).map(product).sum::<f64>());
        }
    }
}

/// Returns the two nearest rows, and their distance.
fn nearest(rows: usize, distances: &impl Array<f64>) -> (usize, usize, f64) {
    let mut best = (1, 0, f64::INFINITY);
    for later in 1..rows {
        for earlier in 0..later {
            let distance = distances.get(place(later, earlier));
            if distance < best.2 {
                best = (later, earlier, distance);
            }
        }
    }
    best
}

/// Joins the later row into the earlier one; the new distances are averages over the members.
fn average(later: usize, earlier: usize, rows: usize, sizes: (f64, f64), distances: &mut impl Array<f64>) {
    for other in (0..rows).filter(|&other| other != later && other != earlier) {
        let sum =
            distances.get(place(later, other)) * sizes.0 + distances.get(place(earlier, other)) * sizes.1;
        distances.set(place(earlier, other), sum / (sizes.0 + sizes.1));
    }
}

/// Moves the last row to the position of the row that was joined into another one.
fn move_last(to: usize, rows: usize, distances: &mut impl Array<f64>) {
    let last = rows - 1;
    for other in (0..last).filter(|&other| other != to) {
        distances.set(place(to, other), distances.get(place(last, other)));
    }
}

/// Profile of a row with members of different profiles.
const MIXED: u32 = u32::MAX;

/// The sizes and profiles of the rows, and the joins so far.
struct Tree<M: Memory> {
    sizes: M::Array<u32>,
    profiles: M::Array<u32>,
    /// Distance of each join; `pure` tells whether both sides have the same single profile.
    distances: M::Array<f64>,
    pure: M::Array<u32>,
    joins: usize,
}

impl<M: Memory> Tree<M> {
    fn plant(genes: usize, memory: &mut M) -> Result<Self, OutOfMemory> {
        let mut sizes = memory.array(genes)?;
        let mut profiles = memory.array(genes)?;
        for gene in 0..genes {
            sizes.set(gene, 1);
            profiles.set(gene, (gene % PROFILES) as u32);
        }
        Ok(Self { sizes, profiles, distances: memory.array(genes)?, pure: memory.array(genes)?, joins: 0 })
    }

    fn join(&mut self, later: usize, earlier: usize, rows: usize, distance: f64) {
        let same =
            self.profiles.get(later) == self.profiles.get(earlier) && self.profiles.get(later) != MIXED;
        self.distances.set(self.joins, distance);
        self.pure.set(self.joins, u32::from(same));
        self.joins += 1;
        self.sizes.add(earlier, self.sizes.get(later));
        if !same {
            self.profiles.set(earlier, MIXED);
        }
        self.sizes.set(later, self.sizes.get(rows - 1));
        self.profiles.set(later, self.profiles.get(rows - 1));
    }

    fn verdict(&self, genes: usize) -> Verdict {
        let falling =
            (1..self.joins).filter(|&at| self.distances.get(at) < self.distances.get(at - 1) - 1e-12).count();
        let pure = (0..self.joins).take_while(|&at| self.pure.get(at) == 1).count();
        let mixed = (0..self.joins).filter(|&at| self.pure.get(at) == 0).count();
        let profiles = genes.min(PROFILES);
        Verdict {
            checks: vec![
                Check::exact("genes in the last join", self.sizes.get(0) as usize, genes),
                Check::exact("joins nearer than an earlier one", falling, 0),
                Check::exact("joins within profiles before the first between them", pure, genes - profiles),
                Check::exact("joins between profiles", mixed, profiles - 1),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Arena;

    /// The distances of joins agree with the definition of average linkage: the mean distance of all pairs of
    /// members.
    #[test]
    fn distances_of_joins_are_the_mean_over_all_pairs_of_members() {
        const GENES: usize = 24;
        let mut bytes = vec![0; bytes(Genes(GENES as u32))];
        let mut memory = Arena::of_zeroed(&mut bytes);
        let mut expressions = memory.array::<f64>(GENES * SAMPLES).unwrap();
        let mut distances = memory.array::<f64>(triangle(GENES)).unwrap();
        express(GENES, &mut expressions);
        correlate(GENES, &expressions, &mut distances);
        let pairs: Vec<f64> = distances.to_vec();
        let mut members: Vec<Vec<usize>> = (0..GENES).map(|gene| vec![gene]).collect();
        for rows in (2..=GENES).rev() {
            let mean = |a: &[usize], b: &[usize]| {
                let sum: f64 = a
                    .iter()
                    .flat_map(|&x| b.iter().map(move |&y| (x, y)))
                    .map(|(x, y)| pairs[place(x, y)])
                    .sum();
                sum / (a.len() * b.len()) as f64
            };
            let (later, earlier, distance) = nearest(rows, &distances);
            assert!((distance - mean(&members[later], &members[earlier])).abs() < 1e-12);
            let sizes = (members[later].len() as f64, members[earlier].len() as f64);
            average(later, earlier, rows, sizes, &mut distances);
            move_last(later, rows, &mut distances);
            let joined = members.swap_remove(later);
            members[earlier].extend(joined);
        }
        assert_eq!(members[0].len(), GENES);
    }
}
