//! Memory for this library, requested from the system by system calls and allocated without a lock (FAR-5).
//!
//! A pool has *segments* of 4 MiB, divided into *units* of 64 bytes. A block is a run of units, of one of the
//! size classes. Free blocks of a class are a stack, linked through a table at the start of each segment: one
//! link for each unit, used if a block begins there. The memory of a class is reused by that class only.
//!
//! | word of a class | meaning |
//! |---|---|
//! | low 32 bits | first unit of the top free block; 0 if there is none |
//! | high 32 bits | number of removals so far: a removal fails if another one came between |
//!
//! - **POOL-1** The links of free blocks are read and written as atomics, and never lie in a block. A removal
//!   may read a link that is already out of date; then the number of removals has changed.
//! - **POOL-2** A segment is never unmapped, and a unit never belongs to blocks of two classes.

use azekura_far::sys;
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Bytes of a unit. Every block is aligned to it.
pub(crate) const UNIT: usize = 64;
/// Size and alignment of a segment in bytes.
const SEGMENT: usize = 4 << 20;
/// Units of a segment. The first of them, [`LINKS`], have the links.
const UNITS: usize = SEGMENT / UNIT;
const LINKS: usize = UNITS * size_of::<AtomicU32>() / UNIT;
/// Size in bytes of the largest block: a directory buffer of the C library has 1 MiB and a header.
const MOST: usize = 1280 << 10;
/// Largest alignment in bytes: the smallest page of the system.
pub(crate) const PAGE: usize = 4096;
/// Number of size classes: multiples of a unit up to `SINGLE` units, then four for each power of two.
const CLASSES: usize = 53;
const SINGLE: usize = 8;

/// A size class of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    index: usize,
    /// Size of the blocks.
    pub(crate) units: usize,
}

impl Class {
    /// Returns the class for a block; `None` if no class has blocks of this size and alignment.
    pub(crate) fn of(bytes: usize, align: usize) -> Option<Self> {
        // The start of a block is aligned to the power of two that divides its size.
        let bytes = if align <= UNIT { bytes } else { bytes.max(align).checked_next_power_of_two()? };
        if bytes > MOST || align > PAGE {
            return None;
        }
        let units = bytes.div_ceil(UNIT).max(1);
        if units <= SINGLE {
            return Some(Self { index: units - 1, units });
        }
        let power = (units - 1).ilog2() as usize;
        let (base, step) = (1 << power, 1 << (power - 2));
        let units = units.next_multiple_of(step);
        let index = SINGLE + (power - SINGLE.ilog2() as usize) * 4 + (units - base) / step - 1;
        Some(Self { index, units })
    }
}

/// The start of a segment: the links of its units. The first one, which no block uses, is the segment's
/// number.
#[repr(C)]
struct Segment {
    links: [AtomicU32; UNITS],
}

/// A pool of at most `N` segments; see the [module](self).
pub(crate) struct Pool<const N: usize> {
    segments: [AtomicPtr<Segment>; N],
    /// The first unit that was never allocated, counted from the start of the first segment.
    fresh: AtomicU32,
    free: [AtomicU64; CLASSES],
    /// Addresses between which all segments are.
    low: AtomicUsize,
    high: AtomicUsize,
}

impl<const N: usize> Pool<N> {
    pub(crate) const fn new() -> Self {
        const { assert!(N * UNITS < u32::MAX as usize && MOST <= (UNITS - LINKS) * UNIT) };
        Self {
            segments: [const { AtomicPtr::new(ptr::null_mut()) }; N],
            fresh: AtomicU32::new(0),
            free: [const { AtomicU64::new(0) }; CLASSES],
            low: AtomicUsize::new(usize::MAX),
            high: AtomicUsize::new(0),
        }
    }

    /// Allocates a block; null if the system has no memory. Its bytes are arbitrary.
    pub(crate) fn take(&self, class: Class) -> *mut u8 {
        let unit = self.remove(class).or_else(|| self.carve(class));
        unit.map_or(ptr::null_mut(), |unit| {
            let (segment, unit) = (unit as usize / UNITS, unit as usize % UNITS);
            self.segment(segment).cast::<u8>().wrapping_add(unit * UNIT)
        })
    }

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// The block is from `take` with the same class, and is not used any more.
    pub(crate) unsafe fn give(&self, class: Class, block: *mut u8) {
        let segment = ptr::with_exposed_provenance::<Segment>(block as usize / SEGMENT * SEGMENT);
        // SAFETY: by the contract, the block is in a segment of this pool (POOL-2), which begins there.
        // Relaxed: written before the segment was published.
        let number = unsafe { (*segment).links[0].load(Relaxed) };
        let unit = number * UNITS as u32 + (block as usize % SEGMENT / UNIT) as u32;
        let top = &self.free[class.index];
        let mut seen = top.load(Relaxed); // Relaxed: the exchange below decides
        loop {
            self.link(unit).store(seen as u32, Relaxed); // Relaxed: published by the exchange
            let new = seen >> 32 << 32 | u64::from(unit);
            // Release: pairs with Acquire in `remove`, so the link is visible, and the accesses of this owner
            // come before those of the next one.
            match top.compare_exchange_weak(seen, new, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns `true` if an address is in a segment of this pool.
    #[inline]
    pub(crate) fn owns(&self, address: usize) -> bool {
        // Relaxed: the address of a block is known only after its segment was published.
        self.low.load(Relaxed) <= address && address < self.high.load(Relaxed) && self.finds(address)
    }

    #[cold]
    fn finds(&self, address: usize) -> bool {
        let start = address / SEGMENT * SEGMENT;
        let known = self.segments.iter().map(|segment| segment.load(Relaxed) as usize); // Relaxed: as above
        known.take_while(|&segment| segment != 0).any(|segment| segment == start)
    }

    /// Removes the top free block of a class and returns its first unit.
    fn remove(&self, class: Class) -> Option<u32> {
        let top = &self.free[class.index];
        // Acquire, here and below: pairs with Release in `give`.
        let mut seen = top.load(Acquire);
        loop {
            let unit = seen as u32;
            if unit == 0 {
                return None;
            }
            let next = self.link(unit).load(Relaxed); // Relaxed: POOL-1
            let new = (seen >> 32).wrapping_add(1) << 32 | u64::from(next);
            match top.compare_exchange_weak(seen, new, Acquire, Acquire) {
                Ok(_) => return Some(unit),
                Err(now) => seen = now,
            }
        }
    }

    /// Allocates a block that was never allocated before, and returns its first unit. A block is in one
    /// segment; the units that remain of the segment before it are never used.
    fn carve(&self, class: Class) -> Option<u32> {
        let align = 1 << class.units.trailing_zeros().min((PAGE / UNIT).ilog2());
        let mut seen = self.fresh.load(Relaxed); // Relaxed, here and below: only a number
        loop {
            let (mut segment, unit) = (seen as usize / UNITS, seen as usize % UNITS);
            let mut start = unit.max(LINKS).next_multiple_of(align);
            if start + class.units > UNITS {
                (segment, start) = (segment + 1, LINKS);
            }
            self.map_segment(segment)?;
            let first = segment * UNITS + start;
            let (first, end) = (first as u32, (first + class.units) as u32);
            match self.fresh.compare_exchange_weak(seen, end, Relaxed, Relaxed) {
                Ok(_) => return Some(first),
                Err(now) => seen = now,
            }
        }
    }

    /// Maps a segment unless it is mapped. Returns `None` if the system or the pool has no memory left.
    fn map_segment(&self, number: usize) -> Option<()> {
        let place = self.segments.get(number)?;
        if !place.load(Acquire).is_null() {
            return Some(());
        }
        let segment = new_segment()?;
        // SAFETY: the mapping was just made, and is zeroed: its links are valid. Relaxed, here and below:
        // published by the exchange.
        unsafe { (*segment).links[0].store(number as u32, Relaxed) };
        self.low.fetch_min(segment as usize, Relaxed);
        self.high.fetch_max(segment as usize + SEGMENT, Relaxed);
        // Release: pairs with Acquire in `segment` and above.
        if place.compare_exchange(ptr::null_mut(), segment, Release, Relaxed).is_err() {
            // SAFETY: another thread has mapped this segment, and has no pointer to this mapping.
            unsafe { unmap(segment.cast(), SEGMENT) };
        }
        Some(())
    }

    fn segment(&self, number: usize) -> *mut Segment {
        // Acquire: pairs with Release in `map_segment`.
        self.segments[number].load(Acquire)
    }

    fn link(&self, unit: u32) -> &AtomicU32 {
        let (segment, unit) = (unit as usize / UNITS, unit as usize % UNITS);
        // SAFETY: a unit that was allocated, so its segment is mapped, and stays mapped (POOL-2).
        unsafe { &(*self.segment(segment)).links[unit] }
    }
}

/// Maps memory at an address that is a multiple of the size of a segment.
fn new_segment() -> Option<*mut Segment> {
    let at = map(2 * SEGMENT);
    if at.is_null() {
        return None;
    }
    let head = (at as usize).next_multiple_of(SEGMENT) - at as usize;
    let start = at.wrapping_add(head);
    // SAFETY: both parts are in the new mapping, and begin and end at page boundaries. The advice changes no
    // bytes; a huge page would be resident for the first block in it.
    unsafe {
        if head > 0 {
            unmap(at, head);
        }
        unmap(start.wrapping_add(SEGMENT), SEGMENT - head);
        sys::call(libc::SYS_madvise, [start as usize, SEGMENT, libc::MADV_NOHUGEPAGE as usize, 0, 0, 0]);
    }
    Some(ptr::with_exposed_provenance_mut(start as usize))
}

/// Maps private zeroed memory; null if the system has none.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let arguments = [0, bytes, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping at an address that the system chooses.
    address(unsafe { sys::call(libc::SYS_mmap, arguments) })
}

/// Changes the size of a mapping, which may move; null if the system has no memory. The mapping is then
/// unchanged.
///
/// # Safety
///
/// The mapping is from [`map`] with this size, and the caller uses only the returned address afterward.
pub(crate) unsafe fn remap(at: *mut u8, bytes: usize, new: usize) -> *mut u8 {
    let arguments = [at as usize, bytes, new, libc::MREMAP_MAYMOVE as usize, 0, 0];
    // SAFETY: the caller keeps this function's contract.
    address(unsafe { sys::call(libc::SYS_mremap, arguments) })
}

/// Unmaps memory.
///
/// # Safety
///
/// The range is a part of a mapping from [`map`], and no pointer to it is used any more.
pub(crate) unsafe fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: the caller keeps this function's contract.
    unsafe { sys::call(libc::SYS_munmap, [at as usize, bytes, 0, 0, 0, 0]) };
}

fn address(result: isize) -> *mut u8 {
    if result < 0 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(result.cast_unsigned()) }
}
