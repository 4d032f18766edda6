//! The instance of a site in an event.

use azekura_base::sync::machine::simulated;

/// Mask of the bits of an address within its cache line.
const WITHIN: usize = (1 << 6) - 1;

/// Returns the number of an object, which is usually its address. On a simulated machine the number of its
/// cache line replaces the address, so that recordings do not depend on the place of the memory.
#[inline]
pub(super) fn number(object: usize) -> u64 {
    match simulated() {
        // 0 stands for the only instance.
        Some(machine) if object != 0 => ((machine.line(object) as u64 + 1) << 6) | (object & WITHIN) as u64,
        _ => object as u64,
    }
}
