//! Times to move cache lines between two processors of this machine.

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::bound::{join, on, two_processors};
use super::constants::{Line, STRETCHES, circle, each, sorted};

/// Cache lines that move in one turn: enough that the clock read does not matter, and few enough for a core's
/// own cache.
const LINES: usize = 256;
/// Additions between two clock reads.
const ADDITIONS: usize = 2_000;

/// Cache lines that two threads change in turn.
struct Changed {
    lines: Box<[Line]>,
    turn: Line,
}

impl Changed {
    /// Waits for the turn, runs `f`, and passes the turn to the other thread.
    fn in_turn(&self, turn: u64, f: impl FnOnce(&[Line])) {
        while self.turn.word().load(Acquire) != turn {
            spin_loop();
        }
        f(&self.lines);
        self.turn.word().store(turn + 1, Release);
    }
}

/// Changes each line of a cycle, one after the other. Each line contains the index of the next, so that a
/// line cannot be requested before the previous one has arrived.
fn change(lines: &[Line]) {
    // Hides the zero from the compiler, which would otherwise replace the addition by a plain load.
    let nothing = black_box(0);
    let mut at = 0;
    (0..lines.len()).for_each(|_| at = lines[at as usize].word().fetch_add(nothing, AcqRel));
    black_box(at);
}

/// Measures the additional time of an atomic instruction on a line that another core has changed, compared
/// with a line in the core's own cache. Returns 0 if there is only one processor.
///
/// Half of the round trip of a single word would be too short: a line that both cores spin on is already in
/// flight when it is needed.
pub(super) fn transfer() -> io::Result<f64> {
    let [mine, theirs] = two_processors()?;
    if mine == theirs {
        return Ok(0.0);
    }
    let shared = Arc::new(Changed { lines: circle(LINES), turn: Line::default() });
    let other = Arc::clone(&shared);
    let turns = || (0..2 * STRETCHES as u64).step_by(2);
    let other = on(theirs, move || turns().for_each(|turn| other.in_turn(turn, change)))?;
    let measured = on(mine, move || {
        let (mut from_there, mut own) = (Vec::new(), Vec::new());
        for turn in turns() {
            shared.in_turn(turn + 1, |lines| {
                from_there.push(each(1, LINES, || change(lines)));
                own.push(each(1, LINES, || change(lines)));
            });
        }
        fastest_fifth(from_there) - fastest_fifth(own)
    })?;
    let more = join(measured)?;
    join(other)?;
    Ok(more.max(0.0))
}

fn fastest_fifth(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 5).copied().unwrap_or(0.0)
}

/// Measures for how long an atomic instruction occupies a contended line: two cores add to one counter as
/// fast as they can.
pub(super) fn contended() -> io::Result<f64> {
    let [mine, theirs] = two_processors()?;
    let shared = Arc::new((Line::default(), AtomicBool::new(false)));
    let other = Arc::clone(&shared);
    let add = |counter: &Line| {
        (0..ADDITIONS).for_each(|_| {
            counter.word().fetch_add(1, AcqRel);
        });
    };
    let other = on(theirs, move || {
        // Relaxed: the flag only ends the loop and may be noticed late.
        while !other.1.load(Relaxed) {
            add(&other.0);
        }
    })?;
    let measured = on(mine, move || {
        let all = sorted(STRETCHES, ADDITIONS, || add(&shared.0));
        shared.1.store(true, Relaxed);
        // The median, because the other thread was not running in the fastest intervals. Each of the two
        // threads does half of the additions.
        all[STRETCHES / 2] / 2.0
    })?;
    let of_one = join(measured)?;
    join(other)?;
    Ok(of_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_measurements_end_and_give_a_time() {
        assert!(transfer().expect("threads start") >= 0.0);
        assert!(contended().expect("threads start") > 0.0);
    }
}
