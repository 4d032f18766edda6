//! Static arrays: the zeroed data (`.bss`) of the program, if it is large. The data of libraries stay
//! ordinary memory, because they may contain the state of an allocator, which threads of this library would
//! touch (FAR-1). For the same reason the program's data stay ordinary memory if the program contains an
//! allocator.
//!
//! The linker places variables that the C library shares with the program (`environ`, `stdout`) at the
//! beginning of the program's `.bss`. Threads of this library may read them, so some bytes at the beginning
//! stay ordinary memory (FAR-1).

use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Number of bytes at the beginning of `.bss` that stay ordinary memory.
const BEGINNING: usize = 64 << 10;
const PIECE: usize = 4096;

/// Returns the addresses of static arrays of at least `least` bytes.
pub(super) fn find(least: usize) -> Vec<Range<usize>> {
    let mut found: (Vec<Range<usize>>, usize) = (Vec::new(), least);
    // SAFETY: the name ends in NUL. The callback gets a pointer to `found`, which outlives the call.
    let malloc = unsafe {
        libc::dl_iterate_phdr(Some(look), (&raw mut found).cast());
        libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr())
    };
    // The search finds the program's `malloc` if it has one, and otherwise the hook of this library.
    if malloc as usize == crate::hooks::malloc_address() { found.0 } else { Vec::new() }
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes an object with this number of headers, and the pointer to `found`.
    let (info, headers, (found, least)) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        (info, headers, &mut *data.cast::<(Vec<Range<usize>>, usize)>())
    };
    let writable = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0 && header.p_memsz > header.p_filesz
    };
    for header in headers.iter().filter(writable) {
        let start = info.dlpi_addr as usize + header.p_vaddr as usize;
        let from = (start + header.p_filesz as usize + BEGINNING).next_multiple_of(PIECE);
        let to = (start + header.p_memsz as usize) / PIECE * PIECE;
        if to.saturating_sub(from) >= *least {
            found.push(from..to);
        }
    }
    1 // stops after the first object, which is the program
}
