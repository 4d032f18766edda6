//! Fit of the computation between two memory accesses. With the fitted gap, a simulated thread uses the same
//! processor time per operation as the real thread.

/// Longest gap that is tried, in nanoseconds.
const LONGEST: f64 = 256.0;
/// Largest accepted deviation of the simulated time, relative to the real time.
const CLOSE: f64 = 0.005;
/// Largest number of simulations.
const TRIES: usize = 10;

/// Returns the gap in nanoseconds with which an operation takes `real` nanoseconds in the simulation. The
/// simulated time grows nearly linearly with the gap. Each guess is therefore the point where the line
/// through the two best tries meets the real time. Returns 0 if the simulation is slower than `real` even
/// without a gap.
pub(super) fn gap<E>(real: f64, mut simulate: impl FnMut(f64) -> Result<f64, E>) -> Result<f64, E> {
    let mut tries: Vec<(f64, f64)> = Vec::new(); // gaps, and times
    let mut guess = 4.0;
    for _ in 0..TRIES {
        let time = simulate(guess)?;
        tries.push((guess, time));
        tries.sort_by(|a, b| off(real, a.1).total_cmp(&off(real, b.1)));
        if off(real, tries[0].1) <= CLOSE {
            break;
        }
        let next = next(real, &tries).clamp(0.0, LONGEST);
        if tries.iter().any(|&(gap, _)| (gap - next).abs() < 1e-3) {
            break; // no better guess: at an end of the range, or within the noise of the simulation
        }
        guess = next;
    }
    Ok(tries[0].0)
}

fn off(real: f64, simulated: f64) -> f64 {
    (simulated / real - 1.0).abs()
}

fn next(real: f64, tries: &[(f64, f64)]) -> f64 {
    match *tries {
        [(a, a_time), (b, b_time), ..] if a_time != b_time => {
            a + (real - a_time) * (b - a) / (b_time - a_time)
        }
        // After the first try, the second guess moves toward the real time.
        [(a, time), ..] => {
            if time < real {
                2.0 * a
            } else {
                0.0
            }
        }
        [] => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(real: f64, base_ns: f64, accesses: f64) -> (f64, usize) {
        let mut simulated = 0;
        let time = |gap: f64| {
            simulated += 1;
            // Nearly linear: short gaps are hidden behind stores.
            Ok::<f64, ()>(base_ns + accesses * gap + 20.0 * (1.0 - (-gap).exp()))
        };
        let gap = gap(real, time).unwrap_or_default();
        (gap, simulated)
    }

    #[test]
    fn the_gap_is_found_in_a_few_simulations() {
        for (accesses, gap) in [(10.0, 1.5), (130.0, 3.0), (130.0, 40.0), (500.0, 0.3)] {
            let real = 200.0 + accesses * gap + 20.0 * (1.0 - f64::exp(-gap));
            let (found, simulated) = found(real, 200.0, accesses);
            assert!((found - gap).abs() * accesses < 0.02 * real, "{found} instead of {gap}");
            assert!(simulated <= 6, "{simulated}");
        }
    }

    #[test]
    fn where_no_gap_is_short_enough_it_is_none_and_where_none_is_long_enough_the_longest() {
        assert_eq!(found(50.0, 200.0, 10.0).0, 0.0);
        assert_eq!(found(1e6, 200.0, 10.0).0, LONGEST);
    }
}
