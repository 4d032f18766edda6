//! Encryption keys: a function that returns the key, and the change of the key.

use std::ffi::{CString, c_char, c_int, c_void};

use azekura::EncryptionKey;

use super::{azk_db, azk_error, azk_status, guarded, null, options, path_of, put_new, shared, text_or_empty};

/// A function that writes the 32 bytes of the key with this id to `key`, and returns 0. Another number is an
/// error, which the message of the failed call contains.
pub type azk_key_source =
    Option<unsafe extern "C" fn(id: *const c_char, key: *mut u8, context: *mut c_void) -> c_int>;

/// The context of a key source.
struct Context(*mut c_void);

// SAFETY: only the key source of `azk_open_with_key_source` reads the pointer, in the thread of that call.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    const fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// Opens a store as `azk_open` does, with the key that `source` returns. An existing store asks for the key
/// with the id in its files, a new store for `id`, which has at most 512 bytes. `source` is called only
/// during this call.
///
/// # Safety
///
/// CAPI-2 holds; `source` may be called with `context` during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_open_with_key_source(
    path: *const c_char,
    options: *const c_char,
    id: *const c_char,
    source: azk_key_source,
    context: *mut c_void,
    db: *mut *mut azk_db,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-2.
        let (path, options) = unsafe { (path_of(path, "path")?, text_or_empty(options, "options")?) };
        // SAFETY: CAPI-2.
        let id = unsafe { text_or_empty(id, "id")? };
        let source = source.ok_or_else(|| null("source"))?;
        let context = Context(context);
        let fetch = move |id: &str| {
            let id = CString::new(id).map_err(|_| "the id contains a zero byte".to_owned())?;
            let mut key = [0; 32];
            // SAFETY: the caller guarantees that `source` may be called; `key` has 32 bytes.
            match unsafe { source(id.as_ptr(), key.as_mut_ptr(), context.pointer()) } {
                0 => Ok(key),
                number => Err(format!("the key source returned {number}")),
            }
        };
        let open =
            || Ok(azk_db { db: options::builder(options)?.encryption_key_source(id, fetch).open(path)? });
        // SAFETY: CAPI-2.
        unsafe { put_new(db, "db", open) }
    })
}

/// Replaces the key of an encrypted store by the 32 bytes at `key`. Later openings need the new key, and ask
/// a key source for `id`, which may be null. The data key of the store stays the same. After an error the
/// old key is still needed, and the call may be repeated.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold; `key` has 32 readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_change_encryption_key(
    db: *mut azk_db,
    key: *const u8,
    id: *const c_char,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (db, id) = unsafe { (shared(db, "db")?, text_or_empty(id, "id")?) };
        // SAFETY: the caller guarantees 32 bytes.
        let key = unsafe { key.cast::<[u8; 32]>().as_ref() }.ok_or_else(|| null("key"))?;
        db.db.change_encryption_key(EncryptionKey::with_id(id, key))
    })
}
