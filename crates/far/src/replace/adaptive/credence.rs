//! Whether something is believed, by how often it was right lately: a single interval, by the one that
//! followed it; forecasts, by who was used again first.

/// The latest so many cases count, roughly.
const MEMORY: f64 = 32.0;

/// The share of cases that were borne out, the latest most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credence(f64);

impl Credence {
    /// Nobody believes before it was seen.
    pub(super) const NONE: Self = Self(0.0);
    /// Believed until it is seen to be wrong.
    pub(super) const EVEN: Self = Self(0.5);

    /// It was as it was said to be, or not.
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
    fn it_holds_after_two_dozen_cases_that_bore_it_out_and_as_long_as_most_do() {
        let mut credence = Credence::NONE;
        let needed = (1..100).find(|_| {
            credence.learn(true);
            credence.holds()
        });
        assert_eq!(needed, Some(22));
        // Two of three do, then one of three.
        (0..300).for_each(|case| credence.learn(case % 3 > 0));
        assert!(credence.holds(), "{credence:?}");
        (0..300).for_each(|case| credence.learn(case % 3 == 0));
        assert!(!credence.holds(), "{credence:?}");
    }

    #[test]
    fn an_even_one_holds_until_it_is_wrong() {
        let mut credence = Credence::EVEN;
        assert!(credence.holds());
        credence.learn(false);
        assert!(!credence.holds());
    }
}
