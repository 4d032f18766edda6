//! Blocks that the C library or the loader allocates for itself.
//!
//! The C library passes some of its own buffers to the kernel (directories, names), and the kernel may not
//! wait for far memory (F1). The loader's tables are read by every thread, including those of this library
//! (FAR-1). Such blocks are ordinary memory if they are small. The return address of `malloc` determines the
//! caller.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;

/// Size in bytes above which a block is neither a buffer of the C library for the kernel nor a table of the
/// loader.
const OWN: usize = 1 << 20;

/// Address ranges of the code of the loader and of the C library.
static LIBRARIES: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// Returns `true` if a block of this size stays ordinary memory because of its caller.
#[inline]
pub(super) fn keeps(size: usize, caller: usize) -> bool {
    let is_theirs = |libraries: &Vec<Range<usize>>| libraries.iter().any(|library| library.contains(&caller));
    size < OWN && LIBRARIES.get().is_some_and(is_theirs)
}

/// Finds the code of both before `main`.
pub(super) fn resolve() {
    let mut found: Vec<Range<usize>> = Vec::new();
    // SAFETY: the callback gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    let _ = LIBRARIES.set(found);
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes an object with this number of headers, and the pointer to `found`. The
    // auxiliary vector belongs to this process.
    let (base, headers, found, loader) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let found = &mut *data.cast::<Vec<Range<usize>>>();
        (info.dlpi_addr as usize, headers, found, libc::getauxval(libc::AT_BASE) as usize)
    };
    let parts = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let end = parts.map(|header| (header.p_vaddr + header.p_memsz) as usize).max().unwrap_or(0);
    let library = base..base + end;
    let of_c = libc::gnu_get_libc_version as *const () as usize;
    if base == loader || library.contains(&of_c) {
        found.push(library);
    }
    0
}

/// Defines functions of the C library that pass the address of their caller as an additional argument.
macro_rules! with_caller {
    ($($name:ident($($argument:ident: $kind:ty),+) = $to:ident, $x86:literal, $arm:literal;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name($($argument: $kind),+) -> *mut c_void {
                std::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {to}", to = sym $to)
            }

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name($($argument: $kind),+) -> *mut c_void {
                std::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {to}", to = sym $to)
            }

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name($($argument: $kind),+) -> *mut c_void {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe { $to($($argument,)+ 0) }
            }
        )+
    };
}
pub(super) use with_caller;
