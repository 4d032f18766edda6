//! WiredTiger: B-tree table, snapshot isolation, log synced at each commit, one session and cursor per
//! thread.
//!
//! A point read outside of a transaction is a transaction of its own; several reads are not one snapshot.
//!
//! - **WT-1** A connection outlives its sessions, which borrow the store. A session outlives its cursor,
//!   because closing the session closes the cursor.
//! - **WT-2** A session and its cursor are used only by the thread that opened them: [`Session`] is not
//!   `Send`.
//! - **WT-3** The bytes that a cursor returns are valid until the next call with it; they are used before
//!   that.

use super::described;
use azekura_lab::engine::{ReadWork, WriteWork, retry_conflicts};
use azekura_lab::{Engine, EngineError, EngineSettings, Reader, Session, Sink, Store, Writer};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// The engine.
#[derive(Debug)]
pub(crate) struct WiredTiger;

/// Opaque handles of the library.
#[repr(C)]
struct Connection(c_void);
#[repr(C)]
struct WtSession(c_void);
#[repr(C)]
struct Cursor(c_void);

// The functions in shim/wiredtiger.c.
unsafe extern "C" {
    fn azb_wt_open(home: *const c_char, config: *const c_char, connection: *mut *mut Connection) -> c_int;
    fn azb_wt_close(connection: *mut Connection) -> c_int;
    fn azb_wt_create_table(connection: *mut Connection) -> c_int;
    fn azb_wt_session(c: *mut Connection, session: *mut *mut WtSession, cursor: *mut *mut Cursor) -> c_int;
    fn azb_wt_session_close(session: *mut WtSession) -> c_int;
    fn azb_wt_begin(session: *mut WtSession) -> c_int;
    fn azb_wt_commit(session: *mut WtSession) -> c_int;
    fn azb_wt_rollback(session: *mut WtSession) -> c_int;
    fn azb_wt_put(
        c: *mut Cursor,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> c_int;
    fn azb_wt_remove(c: *mut Cursor, key: *const u8, key_len: usize) -> c_int;
    fn azb_wt_get(
        c: *mut Cursor,
        key: *const u8,
        key_len: usize,
        value: *mut *const u8,
        value_len: *mut usize,
    ) -> c_int;
    fn azb_wt_seek(cursor: *mut Cursor, key: *const u8, key_len: usize) -> c_int;
    fn azb_wt_item(
        c: *mut Cursor,
        key: *mut *const u8,
        key_len: *mut usize,
        value: *mut *const u8,
        value_len: *mut usize,
    ) -> c_int;
    fn azb_wt_next(cursor: *mut Cursor) -> c_int;
    fn azb_wt_prev(cursor: *mut Cursor) -> c_int;
    fn azb_wt_reset(cursor: *mut Cursor) -> c_int;
    fn azb_wt_error(code: c_int) -> *const c_char;
    fn azb_wt_version() -> *const c_char;
}

const NOT_FOUND: c_int = 1;
const ROLLBACK: c_int = 2;

fn check(doing: &'static str, code: c_int) -> Result<(), EngineError> {
    match code {
        0 => Ok(()),
        ROLLBACK => Err(EngineError::conflict(doing, "lost against another transaction")),
        NOT_FOUND => Err(EngineError::failed(doing, "not found")),
        // SAFETY: the library returns a static or thread-local text that ends with a zero.
        code => Err(EngineError::failed(
            doing,
            unsafe { CStr::from_ptr(azb_wt_error(code)) }.to_string_lossy().into_owned(),
        )),
    }
}

impl Engine for WiredTiger {
    fn name(&self) -> &str {
        "wiredtiger"
    }

    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        // SAFETY: the library returns a static text that ends with a zero.
        let version = unsafe { CStr::from_ptr(azb_wt_version()) }.to_string_lossy().into_owned();
        described([("version", version), ("config", config(settings))])
    }

    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let invalid = |e| EngineError::failed("opening", e);
        let home = CString::new(dir.as_os_str().as_bytes()).map_err(invalid)?;
        let config = CString::new(config(settings)).map_err(invalid)?;
        let mut connection = ptr::null_mut();
        // SAFETY: both texts end with a zero and outlive the call. The connection is valid if the call
        // returns 0.
        check("opening", unsafe { azb_wt_open(home.as_ptr(), config.as_ptr(), &raw mut connection) })?;
        let store = Box::new(WtStore { connection });
        // SAFETY: the connection is open.
        check("creating the table", unsafe { azb_wt_create_table(connection) })?;
        Ok(store)
    }
}

fn config(settings: &EngineSettings) -> String {
    // Without this setting, WiredTiger uses its default.
    let cache = settings.cache_bytes.map_or_else(String::new, |b| format!(",cache_size={}", b.max(1 << 20)));
    format!(
        "create{cache},session_max={},log=(enabled=true),transaction_sync=(enabled=true,method=fsync){}",
        settings.sessions + 16,
        if settings.bypass_page_cache { ",direct_io=[data]" } else { "" }
    )
}

struct WtStore {
    /// Null after the connection was closed.
    connection: *mut Connection,
}

// SAFETY: a WiredTiger connection may be used by several threads at once. A session may not, and stays on its
// thread (WT-2).
unsafe impl Send for WtStore {}
// SAFETY: a WiredTiger connection may be used by several threads at once.
unsafe impl Sync for WtStore {}

impl WtStore {
    fn shut(&mut self) -> Result<(), EngineError> {
        let connection = std::mem::replace(&mut self.connection, ptr::null_mut());
        if connection.is_null() {
            return Ok(());
        }
        // SAFETY: WT-1: no session exists; the pointer is not used again.
        check("closing", unsafe { azb_wt_close(connection) })
    }
}

impl Drop for WtStore {
    fn drop(&mut self) {
        // An error cannot be returned here; `close` returns it.
        let _ = self.shut();
    }
}

impl Store for WtStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        let (mut session, mut cursor) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the connection is open: it is closed only by value or on drop.
        check("opening a session", unsafe {
            azb_wt_session(self.connection, &raw mut session, &raw mut cursor)
        })?;
        Ok(Box::new(WtHandle { session, cursor, _store: self }))
    }

    fn close(mut self: Box<Self>) -> Result<(), EngineError> {
        self.shut()
    }
}

struct WtHandle<'s> {
    session: *mut WtSession,
    cursor: *mut Cursor,
    _store: &'s WtStore,
}

impl Drop for WtHandle<'_> {
    fn drop(&mut self) {
        // SAFETY: WT-1, WT-2; neither pointer is used again. An error cannot be returned here.
        let _ = unsafe { azb_wt_session_close(self.session) };
    }
}

impl WtHandle<'_> {
    fn attempt(&mut self, work: &mut WriteWork<'_>) -> Result<(), EngineError> {
        // SAFETY: WT-1, WT-2.
        check("beginning", unsafe { azb_wt_begin(self.session) })?;
        if let Err(error) = work(self) {
            // SAFETY: WT-1, WT-2; a transaction is running.
            check("rolling back", unsafe { azb_wt_rollback(self.session) })?;
            return Err(error);
        }
        // SAFETY: WT-1, WT-2; a transaction is running; a failed commit ends it too.
        check("committing", unsafe { azb_wt_commit(self.session) })
    }
}

impl Session for WtHandle<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        work(self)?;
        // SAFETY: WT-1, WT-2. Releases the page under the cursor.
        check("resetting the cursor", unsafe { azb_wt_reset(self.cursor) })?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        Ok(retry_conflicts(|| self.attempt(work))?.1)
    }
}

impl Reader for WtHandle<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        let (mut value, mut len) = (ptr::null(), 0);
        // SAFETY: WT-1, WT-2; the key is valid during the call.
        let code = unsafe { azb_wt_get(self.cursor, key.as_ptr(), key.len(), &raw mut value, &raw mut len) };
        if code == NOT_FOUND {
            return Ok(false);
        }
        check("reading", code)?;
        // SAFETY: WT-3: the call returned 0, so it wrote a value of that length.
        sink.add(key, unsafe { bytes(value, len) });
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        // SAFETY: WT-1, WT-2; the key is valid during the call.
        let code = unsafe { azb_wt_seek(self.cursor, from.as_ptr(), from.len()) };
        // SAFETY: WT-1, WT-2.
        self.walk(code, limit, sink, |cursor| unsafe { azb_wt_next(cursor) })
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        // SAFETY: WT-1, WT-2. After a reset, moving the cursor backward begins at the last record.
        let code = unsafe {
            check("resetting the cursor", azb_wt_reset(self.cursor))?;
            azb_wt_prev(self.cursor)
        };
        // SAFETY: WT-1, WT-2.
        self.walk(code, limit, sink, |cursor| unsafe { azb_wt_prev(cursor) })
    }
}

impl WtHandle<'_> {
    /// Passes up to `limit` records to the sink, from the cursor's record on, if `code` says that the cursor
    /// is on one.
    fn walk(
        &mut self,
        mut code: c_int,
        limit: u64,
        sink: &mut Sink,
        step: impl Fn(*mut Cursor) -> c_int,
    ) -> Result<(), EngineError> {
        let mut left = limit;
        while code == 0 && left > 0 {
            let (mut key, mut key_len, mut value, mut value_len) = (ptr::null(), 0, ptr::null(), 0);
            // SAFETY: WT-1, WT-2; the cursor is on a record, because the last move returned 0.
            check("scanning", unsafe {
                azb_wt_item(self.cursor, &raw mut key, &raw mut key_len, &raw mut value, &raw mut value_len)
            })?;
            // SAFETY: WT-3: the call returned 0, so it wrote key and value of those lengths.
            unsafe { sink.add(bytes(key, key_len), bytes(value, value_len)) };
            left -= 1;
            code = step(self.cursor);
        }
        if code == NOT_FOUND { Ok(()) } else { check("scanning", code) }
    }
}

impl Writer for WtHandle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        // SAFETY: WT-1, WT-2; key and value are valid during the call, which copies them.
        check("writing", unsafe {
            azb_wt_put(self.cursor, key.as_ptr(), key.len(), value.as_ptr(), value.len())
        })
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        // SAFETY: WT-1, WT-2; the key is valid during the call, which copies it.
        check("removing", unsafe { azb_wt_remove(self.cursor, key.as_ptr(), key.len()) })
    }
}

/// Returns the bytes that the library returned.
///
/// # Safety
///
/// `data` points to `len` bytes that do not change during `'a`, or `len` is 0.
unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by the caller's contract.
    unsafe { std::slice::from_raw_parts(data, len) }
}
