//! Calls by which the program reads and writes its own memory as if it were that of another process:
//! transfers of `/proc/self/mem`, `process_vm_readv`, `process_vm_writev`. No mechanism makes the kernel wait
//! for a page in all of these calls, so the range leaves far memory before the call.
//!
//! An offset in `/proc/self/mem` is an address. Other files have no data at the addresses of far memory, so
//! the offset decides, and no descriptor is examined.

use super::given::{asked, reads};
use super::kernel::{always, each_part};
use crate::next::Next;
use crate::session::{is_unserved, unmanage};
use azekura_far::sys;
use libc::{c_ulong, iovec, off_t, pid_t, ssize_t};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Seek = unsafe extern "C" fn(c_int, off_t, c_int) -> off_t;
type Transfer = unsafe extern "C" fn(pid_t, *const iovec, c_ulong, *const iovec, c_ulong, c_ulong) -> ssize_t;

static LSEEK: Next<Seek> = Next::new(c"lseek64");
static READV: Next<Transfer> = Next::new(c"process_vm_readv");
static WRITEV: Next<Transfer> = Next::new(c"process_vm_writev");

/// Least offset that may be the address of far memory: mappings and programs are above it.
const LEAST: off_t = 1 << 36;
/// Set once a descriptor was positioned at such an offset.
static IS_POSITIONED: AtomicBool = AtomicBool::new(false);

/// Prepares a transfer of a file at an offset; -1 is the file's position.
#[inline]
pub(super) fn before_transfer_at(fd: c_int, offset: off_t, bytes: impl FnOnce() -> usize) {
    if offset >= LEAST {
        unmanage(offset as usize, bytes());
    } else if offset == -1 {
        before_transfer(fd, bytes);
    }
}

/// Prepares a transfer of a file at its position.
#[inline]
pub(super) fn before_transfer(fd: c_int, bytes: impl FnOnce() -> usize) {
    // Relaxed: set by the thread that positions the descriptor, before it or another thread uses it.
    if IS_POSITIONED.load(Relaxed) && !super::thread::is_ours() {
        let kept = super::errno();
        // SAFETY: the call accesses no memory of this process.
        let offset = unsafe { sys::call(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0]) }
            as off_t;
        super::fail(kept);
        if offset >= LEAST {
            unmanage(offset as usize, bytes());
        }
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: the caller keeps the contract of the C function.
    let reached = unsafe { LSEEK.get()(fd, offset, whence) };
    after_seek(reached);
    reached
}

/// Records that a descriptor was positioned at an offset.
pub(super) fn after_seek(reached: off_t) {
    if reached >= LEAST {
        IS_POSITIONED.store(true, Relaxed); // Relaxed: see `before_transfer`
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { lseek64(fd, offset, whence) }
}

/// Makes a transfer between this process and another one, or itself. The kernel may transfer only a part
/// before it reports a page that it cannot access, so such pages leave far memory first.
///
/// # Safety
///
/// The contract of the C library's function.
unsafe fn transferred(
    call: Transfer,
    process: pid_t,
    [own, others]: [*const iovec; 2],
    [count, number]: [c_ulong; 2],
    flags: c_ulong,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if is_own(process) {
            each_part(others, number as usize, always);
        }
        each_part(own, count as usize, is_unserved);
        let lists = [reads(own, count as usize * 16), reads(others, number as usize * 16)];
        asked(&lists, || call(process, own, count, others, number, flags))
    }
}

/// Returns `true` if a number is that of this process or of one of its threads.
fn is_own(process: pid_t) -> bool {
    let kept = super::errno();
    // SAFETY: the calls access no memory of this process, and no signal is sent.
    let done =
        unsafe { sys::call(libc::SYS_tgkill, [libc::getpid() as usize, process as usize, 0, 0, 0, 0]) };
    super::fail(kept);
    done == 0
}

macro_rules! transfers {
    ($($name:ident, $next:ident;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                process: pid_t,
                own: *const iovec,
                count: c_ulong,
                others: *const iovec,
                number: c_ulong,
                flags: c_ulong,
            ) -> ssize_t {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe { transferred($next.get(), process, [own, others], [count, number], flags) }
            }
        )+
    };
}

transfers! {
    process_vm_readv, READV;
    process_vm_writev, WRITEV;
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    LSEEK.resolve();
    READV.resolve();
    WRITEV.resolve();
}
