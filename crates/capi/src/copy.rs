//! Backup, restore, and errors.

use std::ffi::{c_char, c_void};
use std::mem;

use azekura::{Backup, Builder, CommitTime, Error, Restore};

use super::{
    azk_db, azk_error, azk_progress, azk_status, free, guarded, options, path_of, shared, text_or_empty,
};

/// Returns the settings of a backup.
///
/// # Safety
///
/// `progress` may be called with `context` while the backup runs.
pub(crate) unsafe fn backup_of<'a>(
    db: &'a azk_db,
    options: &str,
    progress: azk_progress,
    context: *mut c_void,
) -> Result<Backup<'a>, Error> {
    let mut backup = db.db.backup();
    options::each(options, |name, value| {
        let old = mem::replace(&mut backup, db.db.backup());
        backup = match name {
            "rate" => old.rate_limit(options::value(name, value)?),
            "since" => old.since(options::path(name, value)?),
            _ => return Err(options::unknown(name)),
        };
        Ok(())
    })?;
    if let Some(progress) = progress {
        // SAFETY: the caller guarantees that `progress` may be called.
        backup = backup.progress(move |seen| unsafe { progress(seen.rows, seen.bytes, context) });
    }
    Ok(backup)
}

/// Returns the settings of a restore.
pub(crate) fn restore_of(options: &str) -> Result<Restore<'static>, Error> {
    let (mut restore, mut store) = (Restore::new(), Builder::default());
    options::each(options, |name, value| {
        let old = mem::take(&mut restore);
        restore = match name {
            "verify" => old.verify(options::value(name, value)?),
            "page_size" => old.page_size(options::value(name, value)?),
            "base" => old.base(options::path(name, value)?),
            "archive" => old.archive(options::path(name, value)?),
            "to_time_us" => old.to_time(CommitTime::from_micros(options::value(name, value)?)),
            "create" | "read_only" => return Err(options::unknown(name)),
            _ => {
                store = options::set(mem::take(&mut store), name, value)?;
                old
            }
        };
        Ok(())
    })?;
    Ok(restore.builder(store))
}

/// Makes a backup in the new directory `to` while transactions continue. Options: `rate` (bytes per second);
/// `since`, the directory of an earlier backup: the new one then has only the pages that were changed since,
/// and a restore needs both; null for no options. A value with commas is written in double quotes. `progress`
/// may be null.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold; `progress` may be called with `context` during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_backup(
    db: *mut azk_db,
    to: *const c_char,
    options: *const c_char,
    progress: azk_progress,
    context: *mut c_void,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (db, to) = unsafe { (shared(db, "db")?, path_of(to, "to")?) };
        // SAFETY: CAPI-2.
        let options = unsafe { text_or_empty(options, "options")? };
        // SAFETY: the caller guarantees that `progress` may be called.
        unsafe { backup_of(db, options, progress, context)? }.to_directory(to).map(drop)
    })
}

/// Creates a new store at `to` from the backup in directory `from`. Options: `verify`; `base`, once for each
/// earlier backup that an incremental one needs; `archive`, the archive that is replayed after the backup, to
/// its end or to `to_time_us` (microseconds since 1970); and those of `azk_open` for the new store except
/// `create`, `read_only` and `archive`; null for no options.
///
/// # Safety
///
/// CAPI-2 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_restore(
    from: *const c_char,
    to: *const c_char,
    options: *const c_char,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-2.
        let (from, to) = unsafe { (path_of(from, "from")?, path_of(to, "to")?) };
        // SAFETY: CAPI-2.
        let options = unsafe { text_or_empty(options, "options")? };
        restore_of(options)?.from_directory(from, to).map(drop)
    })
}

/// Reads the backup in directory `from` and checks each byte of it; creates no store. An encrypted backup
/// needs the option `encryption_key`; null for no options.
///
/// # Safety
///
/// CAPI-2 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_verify_backup(
    from: *const c_char,
    options: *const c_char,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-2.
        let (from, options) = unsafe { (path_of(from, "from")?, text_or_empty(options, "options")?) };
        restore_of(options)?.verify_directory(from).map(drop)
    })
}

/// Returns the status of an error; `AZK_OK` for null.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_error_status(error: *const azk_error) -> azk_status {
    // SAFETY: CAPI-1.
    unsafe { error.as_ref() }.map_or(azk_status::AZK_OK, |error| error.status)
}

/// Returns the message of an error, in UTF-8. The message is valid until the error is freed.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_error_message(error: *const azk_error) -> *const c_char {
    // SAFETY: CAPI-1.
    unsafe { error.as_ref() }.map_or(c"no error".as_ptr(), |error| error.message.as_ptr())
}

/// Frees an error; null is allowed.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_error_free(error: *mut azk_error) {
    // SAFETY: CAPI-1.
    unsafe { free(error) }
}
