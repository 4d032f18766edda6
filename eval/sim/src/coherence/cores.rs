//! Sets of cores, such as those that have a copy of a line.

/// A set of cores with numbers below 256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cores([u64; 4]);

impl Cores {
    /// Returns `true` if a core is in the set.
    #[must_use]
    pub const fn has(&self, core: usize) -> bool {
        self.0[core / 64] >> (core % 64) & 1 == 1
    }

    /// Adds a core to the set.
    pub const fn add(&mut self, core: usize) {
        self.0[core / 64] |= 1 << (core % 64);
    }

    /// Returns the set without one core.
    #[must_use]
    pub const fn without(mut self, core: usize) -> Self {
        self.0[core / 64] &= !(1 << (core % 64));
        self
    }

    /// Returns `true` if the two sets have a core in common.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        self.any(|word, mine| mine & other.0[word] != 0)
    }

    /// Returns `true` if a core of the set is in `outer` and not in `inner`.
    #[must_use]
    pub fn meets_between(&self, inner: &Self, outer: &Self) -> bool {
        self.any(|word, mine| mine & outer.0[word] & !inner.0[word] != 0)
    }

    /// Returns `true` if a core of the set is not in `other`.
    #[must_use]
    pub fn exceeds(&self, other: &Self) -> bool {
        self.any(|word, mine| mine & !other.0[word] != 0)
    }

    fn any(&self, is_so: impl Fn(usize, u64) -> bool) -> bool {
        self.0.iter().enumerate().any(|(word, &mine)| is_so(word, mine))
    }
}

impl FromIterator<usize> for Cores {
    fn from_iter<I: IntoIterator<Item = usize>>(cores: I) -> Self {
        let mut set = Self::default();
        cores.into_iter().for_each(|core| set.add(core));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_answer_as_lists_do() {
        let (a, b): (Vec<usize>, Vec<usize>) =
            ((0..256).filter(|n| n % 7 == 3).collect(), (60..70).chain([255]).collect());
        let (set, small): (Cores, Cores) = (a.iter().copied().collect(), b.iter().copied().collect());
        for core in 0..256 {
            assert_eq!((set.has(core), small.has(core)), (a.contains(&core), b.contains(&core)));
            let one: Cores = [core].into_iter().collect();
            assert_eq!(one.meets(&set), a.contains(&core));
            assert_eq!(one.exceeds(&set), !a.contains(&core));
            assert_eq!(one.meets_between(&small, &set), a.contains(&core) && !b.contains(&core));
            assert!(!set.without(core).has(core));
        }
        assert!(!Cores::default().meets(&set) && !Cores::default().exceeds(&Cores::default()));
    }
}
