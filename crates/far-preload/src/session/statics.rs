//! Static arrays: the zeroed data (`.bss`) of the program, where it is large. That of libraries stays
//! ordinary memory: an allocator's state may lie there, which our own threads would touch (FAR-1); and so
//! does the program's if it has an allocator in itself.
//!
//! The linker puts what the C library shares with the program (`environ`, `stdout`) at the beginning of the
//! program's `.bss`; our own threads may come to read that, so a little at the beginning stays ordinary
//! memory (FAR-1).

use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Bytes at the beginning that stay ordinary memory.
const BEGINNING: usize = 64 << 10;
const PIECE: usize = 4096;

/// Returns the addresses of static arrays of at least `least` bytes.
pub(super) fn find(least: usize) -> Vec<Range<usize>> {
    let mut found: (Vec<Range<usize>>, usize) = (Vec::new(), least);
    // SAFETY: the name ends in NUL; the callback gets our vector, which outlives the call.
    let malloc = unsafe {
        libc::dl_iterate_phdr(Some(look), (&raw mut found).cast());
        libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr())
    };
    // The first that is found is the program's, else it is ours.
    if malloc as usize == crate::hooks::malloc_address() { found.0 } else { Vec::new() }
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes an object with this number of headers, and our own data.
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
    1 // the program itself is the first; no others
}
