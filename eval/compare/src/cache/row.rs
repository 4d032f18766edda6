//! One row: the result of each cache, and the row's goals.

use serde::Serialize;

use super::peers::Which;

/// One row of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// Name of the row in the table of goals.
    pub(super) row: &'static str,
    pub(super) what: String,
    pub(super) unit: &'static str,
    pub(super) results: Vec<Measured>,
    pub(super) goals: Vec<Goal>,
    /// Set if the threads got less than 90 % of the processor time that they could have used. Other programs
    /// ran then, and the rates are not reliable.
    pub(super) is_disturbed: bool,
}

/// The result of one cache.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) cache: &'static str,
    pub(super) value: f64,
    /// (Highest − lowest) / median of the runs.
    pub(super) spread: f64,
}

/// A goal, and whether it was reached.
#[derive(Debug, Serialize)]
pub(super) struct Goal {
    /// Name of the value that is compared with the bounds.
    pub(super) measure: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) must: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) moonshot: Option<f64>,
    pub(super) measured: f64,
    /// Set if smaller values are better.
    pub(super) is_upper_bound: bool,
    pub(super) reached: Reached,
}

/// The degree to which a goal is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reached {
    /// Not reached.
    Nothing,
    /// The must bound is reached, but not the moonshot.
    Must,
    Moonshot,
}

impl Reached {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Nothing => "NOT reached",
            Self::Must => "must reached",
            Self::Moonshot => "moonshot reached",
        }
    }
}

impl Goal {
    /// Creates a goal: `measured` must be at least `must`, and should be at least `moonshot`.
    pub(super) fn at_least(
        measure: impl Into<String>,
        measured: f64,
        must: Option<f64>,
        moonshot: Option<f64>,
    ) -> Self {
        Self::new(measure.into(), measured, must, moonshot, false)
    }

    /// Creates a goal: `measured` must be at most `must`, and should be at most `moonshot`.
    pub(super) fn at_most(
        measure: impl Into<String>,
        measured: f64,
        must: Option<f64>,
        moonshot: Option<f64>,
    ) -> Self {
        Self::new(measure.into(), measured, must, moonshot, true)
    }

    fn new(
        measure: String,
        measured: f64,
        must: Option<f64>,
        moonshot: Option<f64>,
        is_upper_bound: bool,
    ) -> Self {
        let holds = |bound: f64| if is_upper_bound { measured <= bound } else { measured >= bound };
        let reached = match (must, moonshot) {
            (_, Some(moonshot)) if holds(moonshot) => Reached::Moonshot,
            (Some(must), _) if !holds(must) => Reached::Nothing,
            (Some(_), None) => Reached::Must,
            (Some(_), Some(_)) => Reached::Must,
            (None, _) => Reached::Nothing,
        };
        Self { measure, must, moonshot, measured, is_upper_bound, reached }
    }
}

impl Row {
    /// Creates a row without results and goals.
    pub(super) fn new(row: &'static str, what: impl Into<String>, unit: &'static str) -> Self {
        Self { row, what: what.into(), unit, results: Vec::new(), goals: Vec::new(), is_disturbed: false }
    }

    pub(super) fn result(&mut self, cache: &'static str, (value, spread): (f64, f64)) {
        self.results.push(Measured { cache, value, spread });
    }

    /// Returns the value of a cache; 0 if it was not measured.
    pub(super) fn of(&self, cache: &str) -> f64 {
        self.results.iter().find(|result| result.cache == cache).map_or(0.0, |result| result.value)
    }

    /// Returns the highest value of the selected caches.
    pub(super) fn best(&self, among: impl Fn(Which) -> bool) -> f64 {
        let names: Vec<_> = Which::ALL.into_iter().filter(|&which| among(which)).map(Which::name).collect();
        let values = self.results.iter().filter(|result| names.contains(&result.cache));
        values.map(|result| result.value).fold(0.0, f64::max)
    }

    pub(super) fn best_of_ours(&self) -> f64 {
        self.best(Which::is_ours)
    }

    pub(super) fn best_rival(&self) -> f64 {
        self.best(|which| !which.is_ours())
    }
}

/// Returns the median, and (highest − lowest) / median.
pub(super) fn median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    let span = values[values.len() - 1] - values[0];
    (median, if median > 0.0 { span / median } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_lab::lab::nb_gclock::cache::Kind;

    #[test]
    fn a_goal_says_how_far_it_was_reached() {
        let at_least = |measured| Goal::at_least("", measured, Some(2.0), Some(3.0)).reached;
        assert_eq!([1.9, 2.0, 3.0].map(at_least), [Reached::Nothing, Reached::Must, Reached::Moonshot]);
        let at_most = |measured| Goal::at_most("", measured, Some(0.1), Some(0.01)).reached;
        assert_eq!([0.2, 0.1, 0.0].map(at_most), [Reached::Nothing, Reached::Must, Reached::Moonshot]);
        assert_eq!(Goal::at_least("", 5.0, Some(2.0), None).reached, Reached::Must);
        assert_eq!(Goal::at_least("", 5.0, None, Some(6.0)).reached, Reached::Nothing);
    }

    #[test]
    fn a_row_knows_the_best_of_ours_and_of_the_rivals() {
        let mut row = Row::new("a1", "", "");
        for (which, value) in [
            (Which::General, 5.0),
            (Which::Lab(Kind::TwoRings), 4.0),
            (Which::Moka, 1.0),
            (Which::QuickCache, 2.0),
        ] {
            row.result(which.name(), (value, 0.0));
        }
        row.result("a0 (oracle)", (9.0, 0.0));
        assert_eq!((row.best_of_ours(), row.best_rival(), row.of("a0 (oracle)")), (5.0, 2.0, 9.0));
    }

    #[test]
    fn a_median_comes_with_its_spread() {
        assert_eq!(median(vec![4.0, 1.0, 2.0]), (2.0, 1.5));
    }
}
