//! Properties of the process and of its program that far memory depends on: a tracer, valgrind, sanitizers,
//! system calls for an io_uring.

use std::ffi::{CStr, c_char};
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Returns `true` if the program runs under valgrind, which preloads libraries with this name.
pub(super) fn is_under_valgrind() -> bool {
    let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    preloaded.to_string_lossy().contains("vgpreload_")
}

/// Returns `true` if another process traces this one and the threads that it creates (`strace -f`, gdb). A
/// tracer of only the main thread does not stop the threads of the layer.
pub(super) fn traces_threads() -> bool {
    is_thread_traced() && std::thread::spawn(is_thread_traced).join().unwrap_or(true)
}

/// Returns `true` if a process traces this thread. Without `/proc` the tracer is unknown.
fn is_thread_traced() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|process| process.trim() != "0")
}

/// Names of which the dynamic symbol table of a program has one if the program is linked to a sanitizer, or
/// exports the functions of one that it contains.
const OF_SANITIZERS: [&CStr; 5] =
    [c"__asan_init", c"__tsan_init", c"__msan_init", c"__lsan_init", c"__hwasan_init"];
/// Names that the table has if the program contains a sanitizer and exports only replaced functions: a
/// function of all sanitizers, and one that those of memory and threads replace.
const OF_CONTAINED: [&CStr; 2] = [c"__sanitizer_symbolize_code", c"__libc_memalign"];

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Ends the process if the program contains a sanitizer, which replaces the same functions as this library.
/// The sanitizer may not be initialized yet, so the check calls no function that a sanitizer replaces.
pub(crate) fn refuse_sanitizers() {
    static CHECKED: AtomicBool = AtomicBool::new(false);
    // Relaxed: two threads may both check.
    if CHECKED.swap(true, Relaxed) {
        return;
    }
    // SAFETY: the name ends in NUL. The C library has no environment yet if a sanitizer is initialized first.
    let is_launched =
        || unsafe { environ.is_null() || !libc::getenv(c"AZEKURA_FAR_SERVERS".as_ptr()).is_null() };
    if has_symbol_of_sanitizer() && is_launched() {
        super::end::lost(
            "azekura far: this program contains a sanitizer (address, thread, memory or leak), which \
             replaces the same functions as far memory: build it without that sanitizer, or run it without \
             far memory\n",
        );
    }
}

/// Returns the headers of the program, and the difference between its addresses and those in the headers.
fn program() -> Option<(&'static [libc::Elf64_Phdr], usize)> {
    // SAFETY: the kernel passes the address and the number of the program's headers, all of which are in
    // memory until the process ends.
    let headers = unsafe {
        let at = ptr::with_exposed_provenance::<libc::Elf64_Phdr>(libc::getauxval(libc::AT_PHDR) as usize);
        if at.is_null() {
            return None;
        }
        std::slice::from_raw_parts(at, libc::getauxval(libc::AT_PHNUM) as usize)
    };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR)?;
    Some((headers, (headers.as_ptr() as usize).wrapping_sub(own.p_vaddr as usize)))
}

/// Searches the names of the dynamic symbols of the program.
fn has_symbol_of_sanitizer() -> bool {
    const DT_STRTAB: usize = 5;
    const DT_STRSZ: usize = 10;
    let Some((headers, base)) = program() else { return false };
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return false };
    // SAFETY: the dynamic section is in memory and ends with a null tag, and the loader has replaced the
    // address of the names by their address in memory.
    unsafe {
        let start = base.wrapping_add(dynamic.p_vaddr as usize);
        let mut entry = ptr::with_exposed_provenance::<[usize; 2]>(start);
        let (mut names, mut bytes) = (ptr::null(), 0);
        while (*entry)[0] != 0 {
            match *entry {
                [DT_STRTAB, address] => names = ptr::with_exposed_provenance::<u8>(address),
                [DT_STRSZ, length] => bytes = length,
                _ => (),
            }
            entry = entry.add(1);
        }
        let names: &[u8] = if names.is_null() { &[] } else { std::slice::from_raw_parts(names, bytes) };
        let has = |known: &CStr| names.split(|&byte| byte == 0).any(|name| known.to_bytes().iter().eq(name));
        OF_SANITIZERS.into_iter().any(has) || OF_CONTAINED.into_iter().all(has)
    }
}

/// Instructions that load the number of `io_uring_setup` (425) for a system call.
#[cfg(target_arch = "x86_64")]
const NUMBERS: &[&[u8]] = &[b"\xb8\xa9\x01\0\0"];
#[cfg(target_arch = "aarch64")]
const NUMBERS: &[&[u8]] = &[b"\x28\x35\x80\x52", b"\x28\x35\x80\xd2"];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const NUMBERS: &[&[u8]] = &[];
/// The instruction of a system call.
const CALL: &[u8] =
    if cfg!(target_arch = "x86_64") { b"\x0f\x05".as_slice() } else { b"\x01\0\0\xd4".as_slice() };
/// Largest number of bytes between the two: a compiler places the loads of the arguments there.
const BETWEEN: usize = 24;

/// Returns `true` if the program contains the instructions that create an io_uring without the C library, as
/// a statically linked liburing does. No hook sees such a call.
pub(super) fn makes_rings() -> bool {
    let Some((headers, base)) = program() else { return false };
    let readable_code = libc::PF_R | libc::PF_X;
    headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & readable_code == readable_code)
        .any(|header| {
            let at = ptr::with_exposed_provenance::<u8>(base.wrapping_add(header.p_vaddr as usize));
            // SAFETY: the loader has mapped these bytes of the program, and the program can read them.
            makes_ring(unsafe { std::slice::from_raw_parts(at, header.p_filesz as usize) })
        })
}

fn makes_ring(code: &[u8]) -> bool {
    NUMBERS.iter().any(|number| {
        let mut rest = code;
        while let Some(at) = find(rest, number) {
            rest = &rest[at + number.len()..];
            let near = &rest[..rest.len().min(BETWEEN + CALL.len())];
            if near.windows(CALL.len()).any(|bytes| bytes == CALL) {
                return true;
            }
        }
        false
    })
}

/// Returns the offset of the first occurrence of `part`.
fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    // SAFETY: both ranges are those of slices.
    let at = unsafe { libc::memmem(bytes.as_ptr().cast(), bytes.len(), part.as_ptr().cast(), part.len()) };
    (!at.is_null()).then(|| at as usize - bytes.as_ptr() as usize)
}
