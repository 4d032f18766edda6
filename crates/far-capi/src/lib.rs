//! The C interface of far memory, declared in `include/azekura_far.h`. Functions report an error by a null
//! pointer, and [`azekura_far_error`] returns its text.

use azekura_far::{AuthKey, FarMemory, Mechanism, Policy};
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Settings of far memory. Zeros and null pointers select the defaults, which the header file lists.
#[repr(C)]
#[derive(Debug)]
pub struct Options {
    /// Size of the region in bytes.
    pub bytes: usize,
    /// Largest number of bytes that may be local.
    pub local_bytes: usize,
    /// Page size in bytes.
    pub page_bytes: usize,
    /// Memory servers, as `host:port`, separated by commas.
    pub servers: *const c_char,
    /// Number of servers that store each page.
    pub copies: usize,
    /// Path of a spill file, which also stores each page.
    pub spill: *const c_char,
    /// Path of the file with the servers' authentication key.
    pub auth_key: *const c_char,
    /// Name of the replacement policy.
    pub policy: *const c_char,
    /// Name of the paging mechanism.
    pub mechanism: *const c_char,
}

unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Box<dyn Error>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller passed a string that ends in NUL.
    Ok(Some(unsafe { CStr::from_ptr(text) }.to_str()?))
}

unsafe fn build(options: &Options) -> Result<FarMemory, Box<dyn Error>> {
    let mut setting = FarMemory::builder().bytes(options.bytes);
    if options.local_bytes > 0 {
        setting = setting.local(options.local_bytes);
    }
    if options.page_bytes > 0 {
        setting = setting.page(options.page_bytes);
    }
    if options.copies > 0 {
        setting = setting.copies(options.copies);
    }
    // SAFETY: the caller passed strings that end in NUL, or null pointers.
    unsafe {
        if let Some(servers) = text(options.servers)? {
            setting = setting.servers(servers.split(',').filter(|server| !server.is_empty()));
        }
        if let Some(path) = text(options.spill)? {
            setting = setting.spill(path);
        }
        if let Some(path) = text(options.auth_key)? {
            setting = setting.auth_key(AuthKey::read(Path::new(path))?);
        }
        if let Some(name) = text(options.policy)? {
            setting = setting.policy(name.parse::<Policy>()?);
        }
        if let Some(name) = text(options.mechanism)? {
            setting = setting.mechanism(name.parse::<Mechanism>()?);
        }
    }
    Ok(setting.build()?)
}

/// Creates far memory. Returns null on failure; see [`azekura_far_error`].
///
/// # Safety
///
/// `options` points to options. Their strings end in NUL or are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_open(options: *const Options) -> *mut FarMemory {
    // SAFETY: the caller keeps this function's contract.
    match unsafe { build(&*options) } {
        Ok(memory) => Box::into_raw(Box::new(memory)),
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(reason) = cause {
                text += &format!(": {reason}");
                cause = reason.source();
            }
            text.retain(|c| c != '\0');
            ERROR.set(CString::new(text).unwrap_or_default());
            ptr::null_mut()
        }
    }
}

/// Returns the reason why this thread's last `azekura_far_open` failed. The string is valid until this
/// thread's next call of `azekura_far_open`.
#[unsafe(no_mangle)]
pub extern "C" fn azekura_far_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}

/// Returns the address of the memory's first byte.
///
/// # Safety
///
/// `memory` came from [`azekura_far_open`] and is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_bytes(memory: *const FarMemory) -> *mut u8 {
    // SAFETY: the caller keeps this function's contract.
    unsafe { (*memory).as_ptr() }
}

/// Discards the whole pages within a range: they read as zeros. Returns 0, or -1 if the range is not inside
/// the memory.
///
/// # Safety
///
/// The contract of [`azekura_far_bytes`]; in addition, no thread uses the range during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_discard(memory: *const FarMemory, offset: usize, bytes: usize) -> i32 {
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        let memory = &*memory;
        match offset.checked_add(bytes) {
            Some(end) if end <= memory.len() => memory.discard_shared(offset..end),
            _ => return -1,
        }
    }
    0
}

/// Writes the number of pages that were paged in because of a fault, and the number of pages that were sent
/// to replicas.
///
/// # Safety
///
/// The contract of [`azekura_far_bytes`]; in addition, both counters can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_swaps(memory: *const FarMemory, came: *mut u64, went: *mut u64) {
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        let stats = (*memory).stats();
        (*came, *went) = (stats.swap_ins, stats.swap_outs);
    }
}

/// Closes the far memory and discards its bytes. Ignores a null pointer.
///
/// # Safety
///
/// The contract of [`azekura_far_bytes`], except that null is allowed; in addition, no thread uses the memory
/// any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_close(memory: *mut FarMemory) {
    if !memory.is_null() {
        // SAFETY: the pointer came from `azekura_far_open`.
        drop(unsafe { Box::from_raw(memory) });
    }
}
