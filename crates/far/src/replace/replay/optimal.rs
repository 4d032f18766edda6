//! Belady's bound: the victim is the page with the latest next touch.

use std::collections::BinaryHeap;

use super::Trace;

/// Returns the number of swap-ins of the optimal policy, which uses future references. No policy needs fewer.
/// First touches, which transfer nothing, are not counted.
#[must_use]
pub fn optimal_swap_ins(trace: &Trace, frames: u32) -> u64 {
    let next = next_touches(trace);
    // Entries are never removed. The entry of a page that was touched since, or has left, is detected when it
    // is popped.
    let mut by_next = BinaryHeap::new();
    let mut awaited = vec![None; trace.pages() as usize];
    let mut seen = vec![false; trace.pages() as usize];
    let (mut resident, mut swap_ins) = (0, 0);
    for ((page, _), &next) in trace.touches().zip(&next) {
        if awaited[page.index()].is_none() {
            swap_ins += u64::from(std::mem::replace(&mut seen[page.index()], true));
            resident += 1;
            while resident > frames {
                let Some((at, leaving)): Option<(usize, usize)> = by_next.pop() else { break };
                if awaited[leaving] == Some(at) {
                    awaited[leaving] = None;
                    resident -= 1;
                }
            }
        }
        awaited[page.index()] = Some(next);
        by_next.push((next, page.index()));
    }
    swap_ins
}

/// Returns, for each touch, the index of the next touch of the same page.
fn next_touches(trace: &Trace) -> Vec<usize> {
    let mut next = vec![usize::MAX; trace.touches().len()];
    let mut later = vec![usize::MAX; trace.pages() as usize];
    for (at, (page, _)) in trace.touches().enumerate().rev() {
        next[at] = std::mem::replace(&mut later[page.index()], at);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replace::PageNo;
    use crate::replace::rng::Rng;

    /// Computes the least number of swap-ins by trying every choice of victim.
    fn exhaustive(touches: &[u32], at: usize, resident: &mut Vec<u32>, seen: u32, frames: usize) -> u64 {
        let Some(&page) = touches.get(at) else { return 0 };
        if resident.contains(&page) {
            return exhaustive(touches, at + 1, resident, seen, frames);
        }
        let cost = u64::from(seen & (1 << page) != 0);
        let seen = seen | 1 << page;
        if resident.len() < frames {
            resident.push(page);
            let rest = exhaustive(touches, at + 1, resident, seen, frames);
            resident.retain(|&p| p != page);
            return cost + rest;
        }
        let rest = (0..frames).map(|place| {
            let leaving = std::mem::replace(&mut resident[place], page);
            let rest = exhaustive(touches, at + 1, resident, seen, frames);
            resident[place] = leaving;
            rest
        });
        cost + rest.min().expect("there are frames")
    }

    #[test]
    fn no_choice_of_victims_is_better() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let touches: Vec<u32> = (0..12).map(|_| rng.below(6)).collect();
            let trace = Trace::of_reads(touches.iter().map(|&page| PageNo(page)));
            for frames in 1..=3 {
                let least = exhaustive(&touches, 0, &mut Vec::new(), 0, frames);
                assert_eq!(optimal_swap_ins(&trace, frames as u32), least, "seed {seed}, {frames} frames");
            }
        }
    }
}
