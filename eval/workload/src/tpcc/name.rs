//! Last names (clause 4.3.2.3): three syllables, one for each digit of a number below 1,000.

const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// Returns the last name for a number; only its last three digits matter.
///
/// ```
/// assert_eq!(azekura_workload::tpcc::name::last_name(371), "PRICALLYOUGHT");
/// ```
#[must_use]
pub fn last_name(number: u32) -> String {
    [number / 100, number / 10, number].map(|digit| SYLLABLES[(digit % 10) as usize]).concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_names_of_the_specifications_examples_come_out() {
        assert_eq!(
            [0, 371, 40, 999].map(last_name),
            ["BARBARBAR", "PRICALLYOUGHT", "BARPRESBAR", "EINGEINGEING"]
        );
    }

    #[test]
    fn a_thousand_numbers_have_a_thousand_names_of_at_most_sixteen_letters() {
        let names: HashSet<String> = (0..1_000).map(last_name).collect();
        assert_eq!(names.len(), 1_000);
        assert!(names.iter().all(|name| name.len() <= 16));
    }
}
