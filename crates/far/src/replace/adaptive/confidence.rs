//! Confidence in a predictor, from the share of its recent predictions that were right.

/// Approximate number of recent predictions that count.
const MEMORY: f64 = 32.0;

/// Moving average of the share of right predictions. Recent predictions have the largest weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Confidence(f64);

impl Confidence {
    /// Initial value that does not hold before several right predictions.
    pub(super) const NONE: Self = Self(0.0);
    /// Initial value that holds until the first wrong prediction.
    pub(super) const EVEN: Self = Self(0.5);

    /// Records a right or wrong prediction.
    pub(super) fn learn(&mut self, borne_out: bool) {
        self.0 += (f64::from(borne_out) - self.0) / MEMORY;
    }

    /// Returns `true` if most recent predictions were right.
    pub(super) fn holds(self) -> bool {
        self.0 >= 0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_holds_after_22_right_predictions_while_most_are_right() {
        let mut confidence = Confidence::NONE;
        let needed = (1..100).find(|_| {
            confidence.learn(true);
            confidence.holds()
        });
        assert_eq!(needed, Some(22));
        // Two of three predictions are right, then one of three.
        (0..300).for_each(|case| confidence.learn(case % 3 > 0));
        assert!(confidence.holds(), "{confidence:?}");
        (0..300).for_each(|case| confidence.learn(case % 3 == 0));
        assert!(!confidence.holds(), "{confidence:?}");
    }

    #[test]
    fn even_confidence_holds_until_a_wrong_prediction() {
        let mut confidence = Confidence::EVEN;
        assert!(confidence.holds());
        confidence.learn(false);
        assert!(!confidence.holds());
    }
}
