//! Asynchronous transfers: the kernel reads and writes memory of the program after the call that queues the
//! transfer has returned. The mechanism that moves pages needs no more, because the kernel refuses to move a
//! page that a device uses. With the mechanisms that copy pages, the memory leaves far memory first:
//!
//! | interface | memory that leaves |
//! |---|---|
//! | `io_submit` | the buffers of the requests |
//! | `aio_read`, `aio_write`, `lio_listio` | the buffers of the requests |
//! | `io_uring_setup`, liburing | all far memory: a request is queued without a call |
//! | `send` with `MSG_ZEROCOPY` | the message |
//!
//! A program with a statically linked liburing makes the system calls by its own instructions. It is refused
//! before `main` (`session::surroundings`). A library that contains liburing is not recognized.

use super::given::{self, Given};
use super::kernel::{always, each_part};
use crate::next::Next;
use crate::session::{end_far, is_unserved, pins_pages, unmanage};
use libc::{aiocb, c_long, iocb, iovec, msghdr};
use std::ffi::{CStr, c_int, c_void};
use std::{mem, ptr};

/// Operation codes of transfers with one buffer, and with a list of buffers.
const ON_BUFFER: [u16; 2] = [0, 1];
const ON_LIST: [u16; 2] = [7, 8];
/// Largest number of requests of one call that are examined.
const MOST_REQUESTS: usize = 1 << 16;
/// Size of `struct io_event`.
const EVENT: usize = 32;
const SYS_IO_PGETEVENTS: c_long = if cfg!(target_arch = "x86_64") { 333 } else { 292 };
/// Size of a request of `getaddrinfo_a`, with its reserved words.
const REQUEST: usize = 64;

/// Passes the requests of `io_submit` and their buffers to the kernel.
///
/// # Safety
///
/// `requests` points to `count` pointers to requests.
unsafe fn before_submit(count: usize, requests: *const *const iocb) {
    if pins_pages() || requests.is_null() || count > MOST_REQUESTS {
        return;
    }
    unmanage(requests as usize, count * size_of::<*const iocb>());
    for i in 0..count {
        // SAFETY: the requests are those of the caller, which the kernel would read in the same way.
        unsafe {
            let at = *requests.add(i);
            let Some(request) = at.as_ref() else { continue };
            unmanage(at as usize, size_of::<iocb>());
            let buffer = ptr::with_exposed_provenance::<iovec>(request.aio_buf as usize);
            if ON_BUFFER.contains(&request.aio_lio_opcode) {
                unmanage(buffer as usize, request.aio_nbytes as usize);
            } else if ON_LIST.contains(&request.aio_lio_opcode) {
                unmanage(buffer as usize, (request.aio_nbytes as usize).saturating_mul(size_of::<iovec>()));
                each_part(buffer, request.aio_nbytes as usize, always);
            }
        }
    }
}

/// Executes these calls by their system call numbers. Returns `None` for other numbers.
///
/// # Safety
///
/// The contract of the system call with this number.
pub(super) unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let [_, count, list, events, ..] = arguments;
    match number {
        // SAFETY: the caller keeps this function's contract.
        libc::SYS_io_submit => unsafe { before_submit(count, ptr::with_exposed_provenance(list)) },
        libc::SYS_io_getevents | SYS_IO_PGETEVENTS if !pins_pages() => {
            unmanage(events, list.saturating_mul(EVENT));
        }
        libc::SYS_io_uring_setup => before_rings("io_uring_setup"),
        _ => (),
    }
    None
}

/// Ends far memory, unless the kernel refuses to move pages that a device uses.
fn before_rings(call: &str) {
    if !pins_pages() {
        end_far(
            call,
            "from then on the kernel accesses memory at any time, and only userfault-move allows this",
        );
    }
}

/// Returns the function of liburing with this name, which may be loaded for a library only.
fn of_liburing(name: &CStr) -> *mut c_void {
    // SAFETY: the names end in NUL.
    unsafe {
        let mut found = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        for library in [c"liburing.so.2", c"liburing.so.1"] {
            if found.is_null() {
                let loaded = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if !loaded.is_null() {
                    found = libc::dlsym(loaded, name.as_ptr());
                }
            }
        }
        found
    }
}

macro_rules! rings {
    ($($name:ident, $symbol:literal;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of liburing's function, which has at most five arguments.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize) -> c_int {
                before_rings(stringify!($name));
                let found = of_liburing($symbol);
                if found.is_null() {
                    return -libc::ENOSYS;
                }
                // SAFETY: the address of liburing's function; the caller keeps its contract.
                unsafe {
                    let call: unsafe extern "C" fn(usize, usize, usize, usize, usize) -> c_int =
                        mem::transmute(found);
                    call(a, b, c, d, e)
                }
            }
        )+
    };
}

rings! {
    io_uring_queue_init, c"io_uring_queue_init";
    io_uring_queue_init_params, c"io_uring_queue_init_params";
    io_uring_queue_init_mem, c"io_uring_queue_init_mem";
    io_uring_setup, c"io_uring_setup";
}

/// Makes a system call as libaio does: returns the negative number of an error, and keeps `errno`.
///
/// # Safety
///
/// The contract of the system call with this number.
unsafe fn as_libaio(number: c_long, arguments: [usize; 6]) -> c_int {
    let kept = super::errno();
    // SAFETY: the caller keeps this function's contract.
    let done = unsafe {
        by_number(number, arguments);
        given::asked(&arguments.map(Given::Any), || azekura_far::sys::call(number, arguments)) as c_int
    };
    let result = if done < 0 { -super::errno() } else { done };
    super::fail(kept);
    result
}

/// # Safety
///
/// The contract of libaio's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn io_submit(context: usize, count: c_long, requests: *mut c_void) -> c_int {
    // SAFETY: the caller keeps the contract of the function.
    unsafe { as_libaio(libc::SYS_io_submit, [context, count as usize, requests as usize, 0, 0, 0]) }
}

/// # Safety
///
/// The contract of libaio's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn io_getevents(
    context: usize,
    least: c_long,
    most: c_long,
    events: *mut c_void,
    time: *mut c_void,
) -> c_int {
    let arguments = [context, least as usize, most as usize, events as usize, time as usize, 0];
    // SAFETY: the caller keeps the contract of the function.
    unsafe { as_libaio(libc::SYS_io_getevents, arguments) }
}

/// # Safety
///
/// The contract of libaio's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn io_setup(count: c_int, context: *mut c_void) -> c_int {
    // SAFETY: the caller keeps the contract of the function.
    unsafe { as_libaio(libc::SYS_io_setup, [count as usize, context as usize, 0, 0, 0, 0]) }
}

/// Passes the buffer of a request of `aio_read` or `aio_write` to the kernel.
///
/// # Safety
///
/// The request is null or that of the caller.
unsafe fn before_request(request: *const aiocb) {
    // SAFETY: the caller keeps this function's contract.
    if let Some(request) = unsafe { request.as_ref() }.filter(|_| !pins_pages()) {
        unmanage(ptr::from_ref(request) as usize, size_of::<aiocb>());
        unmanage(request.aio_buf as usize, request.aio_nbytes);
    }
}

/// A request of `getaddrinfo_a`: the name, the service, the hints, the result, and the state.
type NameRequest = [usize; 5];

static GETADDRINFO_A: Next<
    unsafe extern "C" fn(c_int, *const *mut NameRequest, c_int, *mut c_void) -> c_int,
> = Next::new(c"getaddrinfo_a");

/// # Safety
///
/// The contract of the C library's function. Its threads block all signals, so they cannot access far memory
/// with the mechanism that uses SIGSEGV.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn getaddrinfo_a(
    mode: c_int,
    list: *const *mut NameRequest,
    count: c_int,
    event: *mut c_void,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let count_examined = if list.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
        for i in 0..count_examined {
            let at = *list.add(i);
            if let Some(&[name, service, hints, ..]) = at.as_ref() {
                Given::Text(name).leave();
                Given::Text(service).leave();
                given::reads(
                    ptr::with_exposed_provenance::<libc::addrinfo>(hints),
                    size_of::<libc::addrinfo>(),
                )
                .leave();
                given::reads(at, REQUEST).leave();
            }
        }
        GETADDRINFO_A.get()(mode, list, count, event)
    }
}

type OfRequest = unsafe extern "C" fn(*mut aiocb) -> c_int;
type List = unsafe extern "C" fn(c_int, *const *mut aiocb, c_int, *mut c_void) -> c_int;

macro_rules! requests {
    (
        $($name:ident, $next:ident, $symbol:literal;)+
        [$($list:ident, $next_list:ident, $symbol_list:literal;)+]
    ) => {
        $(
            static $next: Next<OfRequest> = Next::new($symbol);

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(request: *mut aiocb) -> c_int {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe {
                    before_request(request);
                    $next.get()(request)
                }
            }
        )+
        $(
            static $next_list: Next<List> = Next::new($symbol_list);

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $list(
                mode: c_int,
                list: *const *mut aiocb,
                count: c_int,
                event: *mut c_void,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe {
                    if !list.is_null() {
                        (0..usize::try_from(count).unwrap_or(0)).for_each(|i| before_request(*list.add(i)));
                    }
                    $next_list.get()(mode, list, count, event)
                }
            }
        )+

        /// Finds the C library's functions.
        pub(super) fn resolve() {
            $($next.resolve();)+
            $($next_list.resolve();)+
            GETADDRINFO_A.resolve();
            AIO_FSYNC.resolve();
            AIO_FSYNC64.resolve();
        }
    };
}

requests! {
    aio_read, AIO_READ, c"aio_read";
    aio_read64, AIO_READ64, c"aio_read64";
    aio_write, AIO_WRITE, c"aio_write";
    aio_write64, AIO_WRITE64, c"aio_write64";
    [
        lio_listio, LIO_LISTIO, c"lio_listio";
        lio_listio64, LIO_LISTIO64, c"lio_listio64";
    ]
}

type OfFile = unsafe extern "C" fn(c_int, *mut aiocb) -> c_int;

static AIO_FSYNC: Next<OfFile> = Next::new(c"aio_fsync");
static AIO_FSYNC64: Next<OfFile> = Next::new(c"aio_fsync64");

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn aio_fsync(how: c_int, request: *mut aiocb) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        given::reads(request, size_of::<aiocb>()).leave();
        AIO_FSYNC.get()(how, request)
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn aio_fsync64(how: c_int, request: *mut aiocb) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        given::reads(request, size_of::<aiocb>()).leave();
        AIO_FSYNC64.get()(how, request)
    }
}

/// Passes a message that the kernel sends from the program's memory to the kernel: a bounce buffer would be
/// reused too early.
///
/// # Safety
///
/// The message is null or that of the caller.
pub(super) unsafe fn before_message(message: *const msghdr, flags: c_int) {
    // SAFETY: the caller keeps this function's contract.
    if let Some(known) = unsafe { message.as_ref() }.filter(|_| flags & libc::MSG_ZEROCOPY != 0)
        && !pins_pages()
    {
        unmanage(message as usize, size_of::<msghdr>());
        unmanage(known.msg_name as usize, known.msg_namelen as usize);
        unmanage(known.msg_control as usize, known.msg_controllen);
        unmanage(known.msg_iov as usize, known.msg_iovlen.saturating_mul(size_of::<iovec>()));
        // SAFETY: as above.
        unsafe { each_part(known.msg_iov, known.msg_iovlen, is_unserved) };
    }
}

/// Passes the bytes of a message to the kernel, as [`before_message`] does.
pub(super) fn before_bytes(at: *const c_void, bytes: usize, flags: c_int) {
    if flags & libc::MSG_ZEROCOPY != 0 && is_unserved(at as usize, bytes) {
        unmanage(at as usize, bytes);
    }
}
