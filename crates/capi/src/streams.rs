//! Backups to and from file descriptors, such as pipes and sockets.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::BufReader;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use azekura::Error;

use super::copy::{backup_of, restore_of};
use super::{azk_db, azk_error, azk_progress, azk_status, guarded, path_of, shared, text_or_empty};

/// Borrows a file descriptor of the caller.
unsafe fn file(fd: c_int) -> Result<ManuallyDrop<File>, Error> {
    if fd < 0 {
        return Err(Error::Invalid(format!("{fd} is no file descriptor")));
    }
    // SAFETY: the descriptor is the caller's, is open during the call (CAPI-2), and is not closed here.
    Ok(ManuallyDrop::new(unsafe { File::from_raw_fd(fd) }))
}

/// Writes a backup to the file descriptor `fd`, such as a pipe, as `azk_backup` does to a directory. Does not
/// sync or close `fd`.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold; `fd` is open; `progress` may be called with `context` during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_backup_to_fd(
    db: *mut azk_db,
    fd: c_int,
    options: *const c_char,
    progress: azk_progress,
    context: *mut c_void,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (db, options) = unsafe { (shared(db, "db")?, text_or_empty(options, "options")?) };
        // SAFETY: `fd` is open, and `progress` may be called.
        let (to, backup) = unsafe { (file(fd)?, backup_of(db, options, progress, context)?) };
        backup.to_writer(&*to).map(drop)
    })
}

/// Creates a new store at `to` from a backup that is read from the file descriptor `fd`, as `azk_restore`
/// does from a directory. Reads `fd` to its end; bytes after the backup are an error. Does not close `fd`.
///
/// # Safety
///
/// CAPI-2 holds; `fd` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_restore_from_fd(
    fd: c_int,
    to: *const c_char,
    options: *const c_char,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-2.
        let (to, options) = unsafe { (path_of(to, "to")?, text_or_empty(options, "options")?) };
        // SAFETY: `fd` is open.
        let from = unsafe { file(fd)? };
        restore_of(options)?.from_reader(BufReader::with_capacity(256 << 10, &*from), to).map(drop)
    })
}
