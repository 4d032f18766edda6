//! The instance of a site that an event is about.

use azekura_base::sync::machine::simulated;

/// Bits of an address within its cache line.
const WITHIN: usize = (1 << 6) - 1;

/// The number of an object, which is an address as a rule. On a simulated machine its line's number stands in
/// for it, so that recordings are the same wherever the system has put the memory.
#[inline]
pub(super) fn number(object: usize) -> u64 {
    match simulated() {
        // 0: there is but one.
        Some(machine) if object != 0 => ((machine.line(object) as u64 + 1) << 6) | (object & WITHIN) as u64,
        _ => object as u64,
    }
}
