//! Hit ratios of two oracles that use future references, for comparison.

use std::collections::{BTreeSet, HashMap};

/// Returns the hit ratio of the best static choice under independent references (A0): the hottest pages,
/// which have the lowest numbers, are always resident.
#[must_use]
pub fn a0(references: &[u64], frames: usize) -> f64 {
    let hits = references.iter().filter(|&&page| page < frames as u64).count();
    hits as f64 / references.len() as f64
}

/// Returns the hit ratio of Belady's MIN, which evicts the page that is used again last, over the references
/// from `measured_from` on.
#[must_use]
pub fn belady(references: &[u64], frames: usize, measured_from: usize) -> f64 {
    // Index of the next use of each reference's page. Pages that are never used again get distinct larger
    // numbers.
    let mut next = vec![0; references.len()];
    let mut last_seen: HashMap<u64, usize> = HashMap::new();
    for (at, &page) in references.iter().enumerate().rev() {
        next[at] = last_seen.insert(page, at).unwrap_or(references.len() + at);
    }
    let (mut resident, mut by_next_use) = (HashMap::new(), BTreeSet::new());
    let mut hits = 0;
    for (at, &page) in references.iter().enumerate() {
        if let Some(used_at) = resident.insert(page, next[at]) {
            by_next_use.remove(&(used_at, page));
            hits += usize::from(at >= measured_from);
        }
        by_next_use.insert((next[at], page));
        if by_next_use.len() > frames
            && let Some((_, latest)) = by_next_use.pop_last()
        {
            resident.remove(&latest);
        }
    }
    hits as f64 / (references.len() - measured_from) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn belady_keeps_what_is_used_soonest() {
        // With two frames: 1 and 2 miss; 3 misses and is not kept; 1 and 2 hit; 3 misses; 1 hits.
        assert!((belady(&[1, 2, 3, 1, 2, 3, 1], 2, 0) - 3.0 / 7.0).abs() < 1e-9);
        assert!((belady(&[1, 1, 1, 1], 1, 2) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn no_policy_beats_belady() {
        use crate::lab::nb_gclock::cache::Kind;
        use crate::lab::nb_gclock::device::Device;
        use crate::lab::nb_gclock::zipf::{References, Skew};
        let trace: Vec<u64> = References::new(20_000, Skew::NAMED_80_20, 5).take(20_000).collect();
        let best = belady(&trace, 300, 0);
        for kind in Kind::ALL {
            let cache = kind.build(300, Device::memory());
            trace.iter().for_each(|&page| assert_eq!(cache.visit(page), page));
            let ratio = 1.0 - cache.tally().misses as f64 / trace.len() as f64;
            assert!(ratio <= best, "{}: {ratio} against {best}", kind.name());
        }
    }
}
