//! Sums by lock instance, for a bounded number of instances: the row locks of a store may not fit in memory.

use super::quick::QuickMap;
use std::collections::BTreeMap;

/// A site and an object.
pub(crate) type Instance = (u32, u64);

/// Number of instances that are kept when there are too many: the largest ones by [`Size`].
const KEPT: usize = 1 << 15;

/// The size by which instances are kept.
pub(crate) trait Size: Default {
    /// Returns the size; larger instances are kept.
    fn size(&self) -> u64;
}

/// Count and time of an instance; its size is the time.
impl Size for (u64, u64) {
    fn size(&self) -> u64 {
        self.1
    }
}

/// Sums by instance. After [`Bounded::prune`] there are at most twice [`KEPT`] instances. Removed instances
/// are counted by site.
#[derive(Debug, Default)]
pub(crate) struct Bounded<V> {
    map: QuickMap<Instance, V>,
    left_out: BTreeMap<u32, u64>,
}

impl<V: Size> Bounded<V> {
    pub(crate) fn entry(&mut self, instance: Instance) -> &mut V {
        self.map.entry(instance).or_default()
    }

    pub(crate) fn get(&self, instance: &Instance) -> Option<&V> {
        self.map.get(instance)
    }

    /// Returns all instances, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Instance, &V)> {
        self.map.iter()
    }

    /// Returns the number of removed instances of a site. An instance that was added and removed again counts
    /// again.
    pub(crate) fn left_out(&self, site: u32) -> u64 {
        self.left_out.get(&site).copied().unwrap_or(0)
    }

    /// Removes the smallest instances if there are too many.
    pub(crate) fn prune(&mut self) {
        self.prune_to(KEPT);
    }

    fn prune_to(&mut self, kept: usize) {
        if self.map.len() <= 2 * kept {
            return;
        }
        // Ordered by size, then by instance, so that the same trace gives the same report.
        let mut order: Vec<(u64, Instance)> = self.map.iter().map(|(key, v)| (v.size(), *key)).collect();
        let cut = order.len() - kept;
        order.select_nth_unstable(cut);
        for (_, instance) in &order[..cut] {
            self.map.remove(instance);
            *self.left_out.entry(instance.0).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_entries_are_kept_and_the_others_are_counted() {
        let mut sums: Bounded<(u64, u64)> = Bounded::default();
        for object in 0..25 {
            *sums.entry((object as u32 % 2, object)) = (1, object * 7 % 25);
        }
        sums.prune_to(13);
        assert_eq!(sums.iter().count(), 25, "not too many yet");
        sums.prune_to(10);
        let mut sizes: Vec<u64> = sums.iter().map(|(_, v)| v.1).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, (15..25).collect::<Vec<_>>());
        assert_eq!(sums.left_out(0) + sums.left_out(1), 15);
    }
}
