//! Whether a single interval is believed: learnt from all pages that had one, by the interval that followed it.

/// The latest so many pages count, roughly.
const MEMORY: f64 = 32.0;

/// The share of first intervals that were borne out by the second, the latest most. None at first: nobody believes before it was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credence(f64);

impl Credence {
    /// A second interval was as long as the first said, or not.
    pub(super) fn learn(&mut self, borne_out: bool) {
        self.0 += (f64::from(borne_out) - self.0) / MEMORY;
    }

    /// Whether most were.
    pub(super) fn holds(self) -> bool {
        self.0 >= 0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_after_two_dozen_pages_that_bore_it_out_and_as_long_as_most_do() {
        let mut credence = Credence::default();
        let needed = (1..100).find(|_| {
            credence.learn(true);
            credence.holds()
        });
        assert_eq!(needed, Some(22));
        // Two of three do, then one of three.
        (0..300).for_each(|page| credence.learn(page % 3 > 0));
        assert!(credence.holds(), "{credence:?}");
        (0..300).for_each(|page| credence.learn(page % 3 == 0));
        assert!(!credence.holds(), "{credence:?}");
    }
}
