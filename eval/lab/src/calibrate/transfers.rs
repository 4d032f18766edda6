//! Times of this machine to move lines between two of its processors.

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::bound::{join, on, two_processors};
use super::constants::{Line, STRETCHES, circle, each, sorted};

/// Lines that move at a time: some, so that a look at the clock does not count, and few enough for a core's
/// own cache.
const LINES: usize = 256;
/// Additions between two looks at the clock.
const ADDITIONS: usize = 2_000;

/// Lines that two threads change in turn.
struct Changed {
    lines: Box<[Line]>,
    turn: Line,
}

impl Changed {
    /// Waits for the turn, and gives it on when `f` is done.
    fn in_turn(&self, turn: u64, f: impl FnOnce(&[Line])) {
        while self.turn.word().load(Acquire) != turn {
            spin_loop();
        }
        f(&self.lines);
        self.turn.word().store(turn + 1, Release);
    }
}

/// Changes each line of a circle, one after the other: each says where the next is, so none can be asked for
/// before the one before has come.
fn change(lines: &[Line]) {
    // Hidden from the compiler, which makes no atomic instruction of an addition of nothing.
    let nothing = black_box(0);
    let mut at = 0;
    (0..lines.len()).for_each(|_| at = lines[at as usize].word().fetch_add(nothing, AcqRel));
    black_box(at);
}

/// Additional time of an atomic instruction on a line that another core has changed, compared with an own
/// line; 0 if there is no other processor.
///
/// Not half of a word's way there and back: a word that both spin on is in flight already when it is wanted.
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

/// For how long a line is busy with an atomic instruction, when two cores fight for it: both add to one
/// counter as fast as they can.
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
        // Relaxed: it ends a little later.
        while !other.1.load(Relaxed) {
            add(&other.0);
        }
    })?;
    let measured = on(mine, move || {
        let all = sorted(STRETCHES, ADDITIONS, || add(&shared.0));
        shared.1.store(true, Relaxed);
        // The median: the fastest are those in which the other was not there. Each of the two gets half of
        // the additions.
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
