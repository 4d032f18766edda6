//! A filter for the request rate that detects lasting changes.

/// Factor beyond which a new rate is *far* from the known rate. On machines with other programs, rates of an
/// unchanged load differ by less from one moment to the next.
const FAR: f64 = 1.6;

/// A filtered rate. Rates are positive.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownRate {
    value: Option<f64>,
    /// Number of consecutive far values, and the number of them that counts as a change.
    far: u32,
    far_limit: u32,
    /// Weight of a new value that is not far.
    weight: f64,
}

impl KnownRate {
    /// Creates a filter without a known rate. `far_limit` far values in a row count as a change; every other
    /// value enters the known rate with `weight`.
    pub(super) const fn new(far_limit: u32, weight: f64) -> Self {
        Self { value: None, far: 0, far_limit, weight }
    }

    /// Sets the known rate.
    pub(super) const fn set(&mut self, value: f64) {
        (self.value, self.far) = (Some(value), 0);
    }

    /// Records a measured rate. Returns `true` if the rate has changed for good; the known rate is then
    /// `value`.
    pub(super) fn note(&mut self, value: f64) -> bool {
        let known = *self.value.get_or_insert(value);
        if value <= FAR * known && value * FAR >= known {
            self.set(known + self.weight * (value - known));
            return false;
        }
        self.far += 1;
        let has_changed = self.far >= self.far_limit;
        if has_changed {
            self.set(value);
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_distant_values_in_a_row_set_the_known_rate() {
        let mut known = KnownRate::new(3, 0.25);
        let noted = [100.0, 200.0, 200.0, 110.0, 200.0, 40.0, 200.0, 210.0].map(|value| known.note(value));
        assert_eq!(noted, [false, false, false, false, false, false, true, false]);
        assert!(!known.note(150.0) && !known.note(400.0) && !known.note(400.0) && known.note(400.0));
    }

    #[test]
    fn a_close_value_moves_the_known_rate_by_its_weight() {
        let follows = |weight| {
            let mut known = KnownRate::new(1, weight);
            (0..40).map(|n| f64::from(n).mul_add(5.0, 100.0)).filter(|&value| known.note(value)).count()
        };
        assert_eq!(follows(0.25), 0, "slowly enough");
        assert_eq!(follows(0.0), 2, "away from what it was");
    }
}
