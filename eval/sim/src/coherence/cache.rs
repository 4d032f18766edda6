//! The set of lines in a cache, as sets of ways. The least recently used way is evicted.

/// The tags of a cache. The state of its lines is in the [`Directory`](super::Directory).
#[derive(Clone, Debug)]
pub struct Cache {
    ways: usize,
    /// Line numbers plus one, most recently used first; 0 is an empty way. Allocated at first use, because
    /// most processors of a machine may never be used.
    tags: Vec<u32>,
    sets: u32,
}

impl Cache {
    /// Returns a cache for this number of lines, in sets of `ways`.
    #[must_use]
    pub fn new(lines: usize, ways: usize) -> Self {
        let ways = ways.max(1);
        Self { ways, tags: Vec::new(), sets: u32::try_from(lines / ways).unwrap_or(u32::MAX).max(1) }
    }

    /// Returns `true` if the line is cached; makes it the most recently used one.
    pub fn touch(&mut self, line: u32) -> bool {
        if self.tags.is_empty() {
            self.tags = vec![0; self.sets as usize * self.ways];
        }
        // Lines are numbered in the order of their first access. Consecutive lines are in consecutive sets.
        let set = (line % self.sets) as usize * self.ways;
        let ways = &mut self.tags[set..set + self.ways];
        if ways[0] == line + 1 {
            return true;
        }
        let found = ways.iter().position(|&tag| tag == line + 1);
        let last = found.unwrap_or(ways.len() - 1);
        ways.copy_within(..last, 1);
        ways[0] = line + 1;
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_line_of_a_set_is_evicted() {
        let mut cache = Cache::new(4, 2); // two sets
        assert!(!cache.touch(0) && !cache.touch(2) && cache.touch(0));
        assert!(!cache.touch(4), "2 goes");
        assert!(cache.touch(0) && cache.touch(4) && !cache.touch(2));
        assert!(!cache.touch(1) && cache.touch(4), "the other set");
    }
}
