//! A memory that records page accesses.
//!
//! Accesses are counted in epochs of a fixed length. In each epoch the first read and the first write of a
//! page are recorded; further accesses in the same epoch would add no information for a replacement policy.
//! The same program with the same size gives the same recording on every machine.
//!
//! A program with hundreds of time steps repeats itself and could fill any buffer. [`Recorder::limited`] ends
//! the recording early, while the program continues.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::memory::{Array, Memory, Number, OutOfMemory, padded};

/// A recording of a program's page accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Number of accesses in an epoch.
    pub epoch_accesses: u32,
    /// Recorded accesses in order: the page number, and `true` for a write.
    pub touches: Vec<(u32, bool)>,
    /// End of each epoch as an index in `touches`.
    pub epochs: Vec<usize>,
    /// Number of all accesses.
    pub accesses: u64,
    /// The program continued after the end of the recording.
    pub cut: bool,
}

/// A memory on the heap with arrays that record each access.
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
    /// The limit was reached, so no more accesses are recorded.
    full: Cell<bool>,
    /// State of each page. The upper bits are the epoch of its last recorded access; the lowest bit is set if
    /// a write was recorded.
    noted: RefCell<Vec<Cell<u32>>>,
    recording: RefCell<Recording>,
}

impl Recorder {
    /// Returns a recorder with pages of `page_bytes` bytes, a power of two, and epochs of `epoch_accesses`
    /// accesses.
    ///
    /// # Panics
    ///
    /// If `page_bytes` is not a power of two, or either is zero.
    #[must_use]
    pub fn new(page_bytes: usize, epoch_accesses: u32) -> Self {
        Self::limited(page_bytes, epoch_accesses, usize::MAX)
    }

    /// Returns a recorder that ends the recording with the epoch in which it reaches `touches` recorded
    /// accesses.
    ///
    /// # Panics
    ///
    /// As for [`new`](Self::new).
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
        let _ = a.get(0); // the sixth access of the epoch
        let _ = a.get(9);
        a.set(8, 2.0);
        let recording = memory.finish();
        let touches = [(0, false), (1, false), (0, true), (1, false), (1, true)];
        assert_eq!((recording.touches.as_slice(), recording.epochs.as_slice()), (&touches[..], &[3, 5][..]));
        assert_eq!((recording.accesses, a.get(3), a.get(8)), (8, 1.0, 2.0));
    }

    #[test]
    fn a_limited_recording_ends_with_an_epoch_and_the_program_continues() {
        let run = |touches| {
            let mut memory = Recorder::limited(64, 2, touches);
            let mut a = memory.array::<f64>(64).unwrap();
            (0..64).for_each(|at| a.set(at, at as f64));
            (memory.finish(), a.get(63))
        };
        // Each epoch has two accesses and records its page again.
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
