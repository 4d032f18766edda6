//! The holds of this thread that will be recorded: few at a time, because few are drawn.
//!
//! A hold begins in one hook and ends in another, so its guard waits here, keyed by the lock's address. When
//! there is no room the hold is not recorded. A thread that ends with holds in here leaves them unrecorded.

use crate::sites::SITES;
use azekura_trace::{HoldGuard, HoldMode};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

const ROOM: usize = 16;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static HELD: Held = const { Held(UnsafeCell::new([const { MaybeUninit::uninit() }; ROOM])) };
}

/// The first `COUNT` places are filled. Only its own thread touches it, inside `quietly`, so never twice at
/// once.
struct Held(UnsafeCell<[MaybeUninit<(usize, HoldGuard)>; ROOM]>);

/// The lock at `object` was taken; call inside `quietly`.
#[inline]
pub(crate) fn taken(what: &'static str, from: usize, object: usize, mode: HoldMode) {
    let guard = azekura_trace::hold_at(|| SITES.of(what, from), object, mode);
    if guard.is_recorded() {
        keep(object, guard);
    }
}

#[cold]
fn keep(object: usize, guard: HoldGuard) {
    let count = COUNT.get();
    if count < ROOM {
        // SAFETY: see `Held`; the place is free.
        HELD.with(|held| unsafe { (*held.0.get())[count].write((object, guard)) });
        COUNT.set(count + 1);
    } else {
        std::mem::forget(guard);
    }
}

/// Whether a hold of this thread is to be recorded: the one thing an unlock looks at.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.get() > 0
}

/// The lock at `object` was let go; call inside `quietly`.
#[cold]
pub(crate) fn let_go(object: usize) {
    if let Some(guard) = take_out(object) {
        drop(guard); // records
    }
}

fn take_out(object: usize) -> Option<HoldGuard> {
    let count = COUNT.get();
    HELD.with(|held| {
        // SAFETY: see `Held`: nobody else has a reference, and places below COUNT are filled.
        let places = unsafe { &mut *held.0.get() };
        // SAFETY: as above.
        let index = (0..count).rev().find(|&i| unsafe { places[i].assume_init_ref() }.0 == object)?;
        COUNT.set(count - 1);
        places.swap(index, count - 1);
        // SAFETY: filled, and COUNT no longer counts it.
        Some(unsafe { places[count - 1].assume_init_read() }.1)
    })
}
