//! The whole store: statistics, check, compaction, checkpoint, archive.

use std::ffi::{CString, c_char, c_void};

use azekura::Error;

use super::{
    azk_db, azk_error, azk_progress, azk_snapshot, azk_status, free, guarded, handle, options, path_of, put,
    put_new, shared, text_or_empty,
};

/// A report of a call, as JSON. Free it with `azk_report_free`.
#[derive(Debug)]
pub struct azk_report {
    json: CString,
}

/// A function that is called while a check runs, with the numbers of checked pages and of all pages.
pub type azk_check_progress = Option<unsafe extern "C" fn(checked: u64, pages: u64, context: *mut c_void)>;

/// Stores a report, unless `to` is null.
unsafe fn put_report(to: *mut *mut azk_report, report: &impl serde::Serialize) -> Result<(), Error> {
    if to.is_null() {
        return Ok(());
    }
    let json = serde_json::to_string(report).map_err(Error::other)?;
    let json = CString::new(json).map_err(Error::other)?; // JSON escapes zero bytes
    // SAFETY: CAPI-2.
    unsafe { put_new(to, "report", || Ok(azk_report { json })) }
}

/// Returns a report as a JSON object. The text is valid until the report is freed.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_report_json(report: *const azk_report) -> *const c_char {
    // SAFETY: CAPI-1.
    unsafe { report.as_ref() }.map_or(c"{}".as_ptr(), |report| report.json.as_ptr())
}

/// Frees a report; null is allowed.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_report_free(report: *mut azk_report) {
    // SAFETY: CAPI-1.
    unsafe { free(report) }
}

/// Opens an empty store in memory, for tests. Options are those of `azk_open`; null for no options.
///
/// # Safety
///
/// CAPI-2 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_open_in_memory(
    options: *const c_char,
    db: *mut *mut azk_db,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-2.
        let options = unsafe { text_or_empty(options, "options")? };
        // SAFETY: CAPI-2.
        unsafe { put_new(db, "db", || Ok(azk_db { db: options::builder(options)?.open_in_memory()? })) }
    })
}

/// Sets `bytes` to the length of the longest possible key, which depends on the page size of the store.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_max_key_bytes(
    db: *mut azk_db,
    bytes: *mut usize,
    error: *mut *mut azk_error,
) -> azk_status {
    // SAFETY: CAPI-1, CAPI-2.
    guarded(error, || unsafe { put(bytes, shared(db, "db")?.db.max_key_bytes(), "bytes") })
}

/// Returns counters and sizes of an open store.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_stats(
    db: *mut azk_db,
    report: *mut *mut azk_report,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let stats = unsafe { shared(db, "db")? }.db.stats();
        // SAFETY: CAPI-2.
        unsafe { put_report(report, &stats) }
    })
}

/// Reads every page of the store and checks it while transactions continue. Sets `findings` to the number of
/// findings of damage. The member `findings` of the report has all of them; `report` may be null. The option
/// `repair=true` also frees leaked pages, which are marked as used although nothing refers to them; null for
/// no options. `progress` may be null.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold; `progress` may be called with `context` during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_check(
    db: *mut azk_db,
    options: *const c_char,
    progress: azk_check_progress,
    context: *mut c_void,
    findings: *mut u64,
    report: *mut *mut azk_report,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (db, options) = unsafe { (shared(db, "db")?, text_or_empty(options, "options")?) };
        let mut repair = false;
        options::each(options, |name, value| match name {
            "repair" => options::value(name, value).map(|given| repair = given),
            _ => Err(options::unknown(name)),
        })?;
        let mut show = |checked, pages| {
            if let Some(progress) = progress {
                // SAFETY: the caller guarantees that `progress` may be called.
                unsafe { progress(checked, pages, context) }
            }
        };
        // SAFETY: CAPI-2.
        unsafe { put(findings, 0, "findings")? };
        let found = if repair { db.db.repair(&mut show) } else { db.db.check(&mut show) }?;
        // SAFETY: CAPI-2.
        unsafe {
            put(findings, found.findings.len() as u64, "findings")?;
            put_report(report, &found)
        }
    })
}

/// Copies all tables as they are now into a new store in the directory `to`, while transactions continue. The
/// new store has full pages and no free ones. Options: `page_size` and `encryption_key` (64 hexadecimal
/// digits) of the new store, by default those of this one; null for no options. `progress` and `report` may
/// be null.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold; `progress` may be called with `context` during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_compact_into(
    db: *mut azk_db,
    to: *const c_char,
    options: *const c_char,
    progress: azk_progress,
    context: *mut c_void,
    report: *mut *mut azk_report,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (db, to) = unsafe { (shared(db, "db")?, path_of(to, "to")?) };
        // SAFETY: CAPI-2.
        let options = unsafe { text_or_empty(options, "options")? };
        let (mut page_size, mut key) = (None, None);
        options::each(options, |name, value| match name {
            "page_size" => options::value(name, value).map(|given| page_size = Some(given)),
            "encryption_key" => options::key(value).map(|given| key = Some(given)),
            _ => Err(options::unknown(name)),
        })?;
        let mut compaction = db.db.compaction();
        if let Some(bytes) = page_size {
            compaction = compaction.page_size(bytes);
        }
        if let Some(key) = &key {
            compaction = compaction.encryption_key(key);
        }
        if let Some(progress) = progress {
            // SAFETY: the caller guarantees that `progress` may be called.
            compaction = compaction.progress(move |seen| unsafe { progress(seen.rows, seen.bytes, context) });
        }
        let made = compaction.into_directory(to)?;
        // SAFETY: CAPI-2.
        unsafe { put_report(report, &made) }
    })
}

/// Copies all commits that have returned to the archive of the store (option `archive` of `azk_open`). Sets
/// `time_us` to a time, in microseconds since 1970, that separates them from later commits. A restore with
/// the option `to_time_us` has exactly these commits.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_archive_log(
    db: *mut azk_db,
    time_us: *mut u64,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let time = unsafe { shared(db, "db")? }.db.archive_log()?;
        // SAFETY: CAPI-2.
        unsafe { put(time_us, time.as_micros(), "time_us") }
    })
}

/// Waits until every transaction that a snapshot has read is durable.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_wait_durable(
    snapshot: *mut azk_snapshot,
    error: *mut *mut azk_error,
) -> azk_status {
    // SAFETY: CAPI-1.
    guarded(error, || unsafe { handle(snapshot, "snapshot")? }.snapshot.wait_durable())
}

/// Writes changed pages to the disk, so that a later opening has less to recover.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_checkpoint(db: *mut azk_db, error: *mut *mut azk_error) -> azk_status {
    // SAFETY: CAPI-1.
    guarded(error, || unsafe { shared(db, "db")? }.db.checkpoint())
}
