//! The interface for C, declared in `include/azekura_far.h`. Functions report an error by a null pointer and
//! [`azekura_far_error`].

use crate::{AuthKey, FarMemory, Mechanism, Policy};
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Settings of far memory; zeros and null pointers select the defaults that the header names.
#[repr(C)]
#[derive(Debug)]
pub struct Options {
    /// Size of the region.
    pub bytes: usize,
    /// Most bytes of it that may be local.
    pub local_bytes: usize,
    /// The unit of transfer.
    pub page_bytes: usize,
    /// Memory servers, separated by commas.
    pub servers: *const c_char,
    /// Number of servers that have each page.
    pub copies: usize,
    /// A file that has each page, too.
    pub spill: *const c_char,
    /// Path of the file with the servers' key.
    pub auth_key: *const c_char,
    /// Replacement policy.
    pub policy: *const c_char,
    /// Name of the paging mechanism.
    pub mechanism: *const c_char,
}

unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Box<dyn Error>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller gave a string that ends in NUL.
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
    // SAFETY: the caller's strings.
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

/// Makes far memory; null if it cannot be made, see [`azekura_far_error`].
///
/// # Safety
///
/// `options` points to options with strings that end in NUL or are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_open(options: *const Options) -> *mut FarMemory {
    // SAFETY: the caller's.
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

/// Returns the reason that this thread's last `azekura_far_open` failed. Valid until its next call.
#[unsafe(no_mangle)]
pub extern "C" fn azekura_far_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}

/// The memory's first byte.
///
/// # Safety
///
/// `memory` came from [`azekura_far_open`] and is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_bytes(memory: *const FarMemory) -> *mut u8 {
    // SAFETY: the caller's.
    unsafe { (*memory).as_ptr() }
}

/// Gives the whole pages within a range back: they are zeros. Returns 0, or -1 if the range does not lie
/// within.
///
/// # Safety
///
/// As for [`azekura_far_bytes`]; also, no thread uses the range during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_discard(memory: *const FarMemory, offset: usize, bytes: usize) -> i32 {
    // SAFETY: the caller's.
    unsafe {
        let memory = &*memory;
        match offset.checked_add(bytes) {
            Some(end) if end <= memory.len() => memory.discard_shared(offset..end),
            _ => return -1,
        }
    }
    0
}

/// Swaps until now: pages that came because they were touched, and pages that were sent away.
///
/// # Safety
///
/// As [`azekura_far_bytes`]; both places can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_swaps(memory: *const FarMemory, came: *mut u64, went: *mut u64) {
    // SAFETY: the caller's.
    unsafe {
        let stats = (*memory).stats();
        (*came, *went) = (stats.swap_ins, stats.swap_outs);
    }
}

/// Ends the far memory and discards its bytes.
///
/// # Safety
///
/// As for [`azekura_far_bytes`]; also, no thread uses it any more. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azekura_far_close(memory: *mut FarMemory) {
    if !memory.is_null() {
        // SAFETY: it came from `azekura_far_open`.
        drop(unsafe { Box::from_raw(memory) });
    }
}
