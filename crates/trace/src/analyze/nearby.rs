//! Binary search that starts at the last result. Successive lookups are close to each other in time. A
//! thread's events in a window take megabytes, so a plain search would miss the cache at each step.

/// Returns the result of [`slice::partition_point`]. The search starts at `hint`, which is set to the result.
/// Takes time logarithmic in the distance.
pub(crate) fn partition_point_from<T>(
    items: &[T],
    hint: &mut usize,
    is_before: impl Fn(&T) -> bool,
) -> usize {
    let mut low = (*hint).min(items.len());
    // Backwards: all items from `high` on are after the point.
    let (mut high, mut step) = (low, 1);
    while low > 0 && !is_before(&items[low - 1]) {
        high = low - 1;
        low = high.saturating_sub(step);
        step *= 2;
    }
    if high == low {
        // Forwards: all items below `low` are before the point.
        high = items.len();
        step = 1;
        while low < items.len() && is_before(&items[(low + step - 1).min(items.len() - 1)]) {
            low = (low + step).min(items.len());
            step *= 2;
        }
        high = high.min(low + step);
    }
    *hint = low + items[low..high].partition_point(is_before);
    *hint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_a_plain_search_finds_wherever_it_begins() {
        let items: Vec<u32> = (0..100).map(|n| n * n / 7).collect();
        for length in [0, 1, 2, 3, 17, 100] {
            for sought in 0..1500 {
                let plain = items[..length].partition_point(|&item| item <= sought);
                for from in (0..=length + 1).step_by(1 + length / 20) {
                    let mut hint = from;
                    let found = partition_point_from(&items[..length], &mut hint, |&item| item <= sought);
                    assert_eq!((found, hint), (plain, plain), "{length} items, {sought} from {from}");
                }
            }
        }
    }
}
