//! Backup, restore, and errors.

use std::ffi::{c_char, c_void};

use super::{
    Restore, azk_db, azk_error, azk_progress, azk_status, free, guarded, options, path_of, shared,
    text_or_empty,
};

/// Makes a backup in the new directory `to` while transactions continue. Options: `rate` (bytes per second);
/// null for no options. `progress` may be null.
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
        let mut rate = None;
        options::each(options, |name, value| match name {
            "rate" => options::value(name, value).map(|given| rate = Some(given)),
            _ => Err(options::unknown(name)),
        })?;
        let mut backup = db.db.backup();
        if let Some(rate) = rate {
            backup = backup.rate_limit(rate);
        }
        if let Some(progress) = progress {
            // SAFETY: the caller guarantees that `progress` may be called.
            backup = backup.progress(move |seen| unsafe { progress(seen.rows, seen.bytes, context) });
        }
        backup.to_directory(to).map(drop)
    })
}

/// Creates a new store at `to` from the backup in directory `from`. Options: `verify`, and those of
/// `azk_open` for the new store except `create` and `read_only`; null for no options.
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
        let (mut verify, mut page_size, mut store) = (false, None, String::new());
        options::each(options, |name, value| {
            match name {
                "verify" => verify = options::value(name, value)?,
                "page_size" => page_size = Some(options::value(name, value)?),
                "create" | "read_only" => return Err(options::unknown(name)),
                _ => store += &format!("{name}={value},"),
            }
            Ok(())
        })?;
        let mut restore = Restore::new().builder(options::builder(&store)?).verify(verify);
        if let Some(bytes) = page_size {
            restore = restore.page_size(bytes);
        }
        restore.from_directory(from, to).map(drop)
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
