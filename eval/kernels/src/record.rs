//! A memory that writes down which pages are touched.
//!
//! Accesses are counted in epochs of a fixed length. In each epoch the first read and the first write of a
//! page are written down; the rest of an epoch would only say that the program still uses what it uses. The
//! same program with the same size gives the same recording on every machine.
//!
//! A program that repeats itself, as one with hundreds of time steps, would fill any tape:
//! [`Recorder::limited`] ends the recording, not the program.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::memory::{Array, Memory, Number, OutOfMemory, padded};

/// The pages that a program touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Accesses of one epoch.
    pub epoch_accesses: u32,
    /// Page number, and whether it was written, in order.
    pub touches: Vec<(u32, bool)>,
    /// The end of each epoch in `touches`.
    pub epochs: Vec<usize>,
    /// Accesses in all.
    pub accesses: u64,
    /// The program went on after the recording had ended.
    pub cut: bool,
}

/// Memory on the heap; its arrays report each access.
#[derive(Debug)]
pub struct Recorder {
    tape: Rc<Tape>,
    used: usize,
}

#[derive(Debug)]
struct Tape {
    page_shift: u32,
    epoch_accesses: u32,
    accesses: Cell<u32>,
    epoch: Cell<u32>,
    limit: usize,
    /// The limit was reached: nothing is written down any more.
    full: Cell<bool>,
    /// Per page: the epoch of its last noted touch, in the upper bits; the lowest says whether a write was
    /// noted.
    noted: RefCell<Vec<Cell<u32>>>,
    recording: RefCell<Recording>,
}

impl Recorder {
    /// Pages of `page_bytes`, a power of two; epochs of `epoch_accesses`.
    ///
    /// # Panics
    ///
    /// If `page_bytes` is not a power of two, or either is zero.
    #[must_use]
    pub fn new(page_bytes: usize, epoch_accesses: u32) -> Self {
        Self::limited(page_bytes, epoch_accesses, usize::MAX)
    }

    /// The same; the recording ends with the epoch in which it reaches so many touches.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[must_use]
    pub fn limited(page_bytes: usize, epoch_accesses: u32, touches: usize) -> Self {
        assert!(page_bytes.is_power_of_two(), "{page_bytes} bytes are no page");
        assert!(epoch_accesses > 0, "an epoch has an access");
        let recording = Recording { page_bytes, epoch_accesses, ..Recording::default() };
        let tape = Tape {
            page_shift: page_bytes.trailing_zeros(),
            epoch_accesses,
            accesses: Cell::new(0),
            epoch: Cell::new(1),
            limit: touches,
            full: Cell::new(false),
            noted: RefCell::default(),
            recording: RefCell::new(recording),
        };
        Self { tape: Rc::new(tape), used: 0 }
    }

    /// Returns the recording so far.
    #[must_use]
    pub fn finish(self) -> Recording {
        self.tape.end_epoch();
        self.tape.recording.take()
    }
}

impl Memory for Recorder {
    type Array<T: Number> = Recorded<T>;

    fn array<T: Number>(&mut self, len: usize) -> Result<Recorded<T>, OutOfMemory> {
        let base = self.used;
        self.used += padded::<T>(len);
        let pages = (self.used >> self.tape.page_shift) + 1;
        self.tape.noted.borrow_mut().resize(pages, Cell::new(0));
        Ok(Recorded { values: vec![T::zeroed(); len], base, tape: Rc::clone(&self.tape) })
    }
}

impl Tape {
    #[inline]
    fn note(&self, address: usize, write: bool) {
        if self.full.get() {
            self.recording.borrow_mut().cut = true;
            return;
        }
        let page = address >> self.page_shift;
        let stamp = self.epoch.get() << 1;
        let noted = self.noted.borrow();
        let seen = noted[page].get();
        if seen < stamp || (write && seen == stamp) {
            noted[page].set(stamp | u32::from(write));
            self.recording.borrow_mut().touches.push((page as u32, write));
        }
        let accesses = self.accesses.get() + 1;
        self.accesses.set(accesses);
        if accesses == self.epoch_accesses {
            self.end_epoch();
        }
    }

    fn end_epoch(&self) {
        let mut recording = self.recording.borrow_mut();
        let end = recording.touches.len();
        recording.epochs.push(end);
        recording.accesses += u64::from(self.accesses.replace(0));
        self.epoch.set(self.epoch.get() + 1);
        self.full.set(end >= self.limit);
    }
}

/// An array of a [`Recorder`].
#[derive(Debug)]
pub struct Recorded<T> {
    values: Vec<T>,
    base: usize,
    tape: Rc<Tape>,
}

impl<T: Number> Array<T> for Recorded<T> {
    fn len(&self) -> usize {
        self.values.len()
    }

    #[inline]
    fn get(&self, at: usize) -> T {
        self.tape.note(self.base + at * size_of::<T>(), false);
        self.values[at]
    }

    #[inline]
    fn set(&mut self, at: usize, value: T) {
        self.tape.note(self.base + at * size_of::<T>(), true);
        self.values[at] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_keeps_the_first_read_and_the_first_write_of_each_page() {
        let mut memory = Recorder::new(64, 6);
        let mut a = memory.array::<f64>(16).unwrap();
        let _ = (a.get(0), a.get(1), a.get(8)); // pages 0, 0, 1
        a.set(2, 1.0); // page 0
        a.set(3, 1.0);
        let _ = a.get(0); // the epoch's sixth
        let _ = a.get(9);
        a.set(8, 2.0);
        let recording = memory.finish();
        let touches = [(0, false), (1, false), (0, true), (1, false), (1, true)];
        assert_eq!((recording.touches.as_slice(), recording.epochs.as_slice()), (&touches[..], &[3, 5][..]));
        assert_eq!((recording.accesses, a.get(3), a.get(8)), (8, 1.0, 2.0));
    }

    #[test]
    fn a_limited_recording_ends_with_an_epoch_and_the_program_goes_on() {
        let run = |touches| {
            let mut memory = Recorder::limited(64, 2, touches);
            let mut a = memory.array::<f64>(64).unwrap();
            (0..64).for_each(|at| a.set(at, at as f64));
            (memory.finish(), a.get(63))
        };
        // Each epoch of two accesses notes its page anew.
        let (cut, last) = run(3);
        assert_eq!((cut.touches.len(), cut.accesses, cut.cut, last), (3, 6, true, 63.0));
        let (whole, _) = run(8);
        assert_eq!((whole.touches.len(), whole.accesses, whole.cut), (8, 16, true));
        assert!(!run(100).0.cut);
    }

    #[test]
    fn a_write_before_a_read_is_one_touch() {
        let mut memory = Recorder::new(4096, 100);
        let mut a = memory.array::<u32>(4).unwrap();
        a.set(0, 1);
        let _ = a.get(0);
        assert_eq!(memory.finish().touches, [(0, true)]);
    }
}
