//! Tests of calls with wrong arguments.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;

use azekura_c::{
    azk_abort, azk_backup, azk_begin, azk_change_encryption_key, azk_close, azk_cursor_close, azk_error,
    azk_error_free, azk_error_message, azk_get, azk_next, azk_open, azk_open_with_key_source, azk_put,
    azk_range, azk_restore, azk_slice, azk_status,
};

const OK: azk_status = azk_status::AZK_OK;

fn slice(bytes: &[u8]) -> azk_slice {
    azk_slice { data: bytes.as_ptr(), len: bytes.len() }
}

#[test]
fn a_refused_call_does_not_move_the_cursor() {
    let scratch = tempfile::tempdir().expect("is made");
    let path = scratch.path().join("db").to_str().map(CString::new).expect("UTF-8").expect("no zero byte");
    let (mut db, mut tx, mut cursor) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (mut key, mut value, mut row) = (slice(b""), slice(b""), 0);
    let error = ptr::null_mut();
    // SAFETY: CAPI-1, CAPI-2: the handles are those of the calls before; null is refused or allowed.
    unsafe {
        assert_eq!(azk_open(path.as_ptr(), ptr::null(), &raw mut db, error), OK);
        assert_eq!(azk_begin(db, &raw mut tx, error), OK);
        for name in [b"a", b"b"] {
            assert_eq!(azk_put(tx, c"t".as_ptr(), slice(name), slice(name), error), OK);
        }
        assert_eq!(azk_range(tx, c"t".as_ptr(), ptr::null(), ptr::null(), 0, &raw mut cursor, error), OK);
        let refused = azk_status::AZK_INVALID;
        assert_eq!(azk_next(cursor, ptr::null_mut(), &raw mut value, &raw mut row, error), refused);
        assert_eq!(azk_next(cursor, &raw mut key, ptr::null_mut(), &raw mut row, error), refused);
        assert_eq!(azk_next(cursor, &raw mut key, &raw mut value, ptr::null_mut(), error), refused);
        for name in [b"a", b"b"] {
            assert_eq!(azk_next(cursor, &raw mut key, &raw mut value, &raw mut row, error), OK);
            assert_eq!((row, key.len, *key.data, *value.data), (1, 1, name[0], name[0]));
        }
        assert_eq!(azk_next(cursor, &raw mut key, &raw mut value, &raw mut row, error), OK);
        assert_eq!(row, 0);
        azk_cursor_close(cursor);
        assert_eq!(azk_abort(tx, error), OK);
        assert_eq!(azk_close(db, error), OK);
    }
}

#[test]
fn a_cursor_of_an_ended_transaction_names_the_reason() {
    let scratch = tempfile::tempdir().expect("is made");
    let path = scratch.path().join("db").to_str().map(CString::new).expect("UTF-8").expect("no zero byte");
    let (mut db, mut tx, mut cursor) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (mut key, mut value, mut row, mut error) = (slice(b""), slice(b""), 0, ptr::null_mut());
    let none = ptr::null_mut();
    // SAFETY: CAPI-1, CAPI-2: the handles are those of the calls before.
    unsafe {
        assert_eq!(azk_open(path.as_ptr(), ptr::null(), &raw mut db, none), OK);
        assert_eq!(azk_begin(db, &raw mut tx, none), OK);
        assert_eq!(azk_range(tx, c"t".as_ptr(), ptr::null(), ptr::null(), 0, &raw mut cursor, none), OK);
        assert_eq!(azk_abort(tx, none), OK);
        let status = azk_next(cursor, &raw mut key, &raw mut value, &raw mut row, &raw mut error);
        assert_eq!(status, azk_status::AZK_CLOSED);
        let message = CStr::from_ptr(azk_error_message(error)).to_str().expect("UTF-8").to_owned();
        assert!(message.contains("the transaction has ended"), "{message}");
        azk_error_free(error);
        azk_cursor_close(cursor);
        assert_eq!(azk_close(db, none), OK);
    }
}

#[test]
fn a_length_that_was_negative_is_refused() {
    let scratch = tempfile::tempdir().expect("is made");
    let path = scratch.path().join("db").to_str().map(CString::new).expect("UTF-8").expect("no zero byte");
    let (mut db, mut tx, mut cursor) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (mut value, mut found, mut error) = (slice(b""), 0, ptr::null_mut());
    let table = c"t".as_ptr();
    // SAFETY: CAPI-1, CAPI-2: the handles are those of the calls before; the wrong lengths are refused.
    unsafe {
        assert_eq!(azk_open(path.as_ptr(), ptr::null(), &raw mut db, ptr::null_mut()), OK);
        assert_eq!(azk_begin(db, &raw mut tx, ptr::null_mut()), OK);
        for len in [usize::MAX, isize::MAX as usize + 1] {
            let wrong = azk_slice { data: b"x".as_ptr(), len };
            let refused = [
                azk_put(tx, table, wrong, slice(b"1"), &raw mut error),
                azk_put(tx, table, slice(b"1"), wrong, ptr::null_mut()),
                azk_get(tx, table, wrong, &raw mut value, &raw mut found, ptr::null_mut()),
                azk_range(tx, table, &raw const wrong, ptr::null(), 0, &raw mut cursor, ptr::null_mut()),
            ];
            assert_eq!(refused, [azk_status::AZK_INVALID; 4]);
            let message = CStr::from_ptr(azk_error_message(error)).to_str().expect("UTF-8").to_owned();
            assert!(message.contains("argument key has a length of"), "{message}");
            azk_error_free(error);
        }
        assert_eq!(azk_abort(tx, ptr::null_mut()), OK);
        assert_eq!(azk_close(db, ptr::null_mut()), OK);
    }
}

/// Returns the key with this id: 32 times its first byte. There is no key "0".
unsafe extern "C" fn key_of(id: *const c_char, key: *mut u8, calls: *mut c_void) -> c_int {
    // SAFETY: the library passes a string, space for 32 bytes, and the context of the test.
    unsafe {
        *calls.cast::<u32>() += 1;
        let first = CStr::from_ptr(id).to_bytes()[0];
        key.write_bytes(first, 32);
        c_int::from(first == b'0') * 7
    }
}

#[test]
fn a_key_source_is_called_with_the_id_in_the_store() {
    let scratch = tempfile::tempdir().expect("is made");
    let path = scratch.path().join("db").to_str().map(CString::new).expect("UTF-8").expect("no zero byte");
    let (mut db, mut error, none, mut calls) = (ptr::null_mut(), ptr::null_mut(), ptr::null(), 0_u32);
    let context = (&raw mut calls).cast::<c_void>();
    // SAFETY: CAPI-1, CAPI-2: the handles are those of the calls before; `key_of` gets its context.
    unsafe {
        let (path, error) = (path.as_ptr(), &raw mut error);
        let id = c"0".as_ptr();
        let status = azk_open_with_key_source(path, none, id, Some(key_of), context, &raw mut db, error);
        assert_eq!(status, azk_status::AZK_OTHER);
        let message = CStr::from_ptr(azk_error_message(*error)).to_str().expect("UTF-8").to_owned();
        assert!(message.contains("the key \"0\"") && message.contains("returned 7"), "{message}");
        azk_error_free(*error);
        *error = ptr::null_mut();
        let status = azk_open_with_key_source(path, none, id, None, context, &raw mut db, ptr::null_mut());
        assert_eq!(status, azk_status::AZK_INVALID);
        let id = c"1".as_ptr();
        let status = azk_open_with_key_source(path, none, id, Some(key_of), context, &raw mut db, error);
        assert_eq!(status, OK);
        assert_eq!(azk_change_encryption_key(db, [b'2'; 32].as_ptr(), c"2".as_ptr(), error), OK);
        assert_eq!(
            azk_change_encryption_key(db, ptr::null(), none, ptr::null_mut()),
            azk_status::AZK_INVALID
        );
        assert_eq!(azk_close(db, error), OK);
        let before = context.cast::<u32>().read();
        let status = azk_open_with_key_source(path, none, none, Some(key_of), context, &raw mut db, error);
        assert_eq!((status, context.cast::<u32>().read()), (OK, before + 1));
        assert_eq!(azk_close(db, error), OK);
        let key = CString::new(format!("encryption_key={}", "32".repeat(32))).expect("no zero byte");
        assert_eq!(azk_open(path, key.as_ptr(), &raw mut db, error), OK); // '2' is 0x32
        assert_eq!(azk_close(db, error), OK);
    }
}

#[test]
fn paths_have_any_bytes() {
    let scratch = tempfile::tempdir().expect("is made");
    let path = |name: &[u8]| {
        let path = scratch.path().join(OsStr::from_bytes(name));
        CString::new(path.into_os_string().into_vec()).expect("no zero byte")
    };
    let (db_path, to, copy) = (path(b"db\xff"), path(b"to\xff"), path(b"copy\xff"));
    let (mut db, none, error) = (ptr::null_mut(), ptr::null(), ptr::null_mut());
    // SAFETY: CAPI-1, CAPI-2: the handles are those of the calls before.
    unsafe {
        assert_eq!(azk_open(db_path.as_ptr(), none, &raw mut db, error), OK);
        assert_eq!(azk_backup(db, to.as_ptr(), none, None, ptr::null_mut(), error), OK);
        assert_eq!(azk_close(db, error), OK);
        assert_eq!(azk_restore(to.as_ptr(), copy.as_ptr(), none, error), OK);
    }
    assert!(scratch.path().join(OsStr::from_bytes(b"copy\xff")).is_dir());
}

#[test]
fn empty_paths_are_refused() {
    let scratch = tempfile::tempdir().expect("is made");
    let path = scratch.path().join("db").to_str().map(CString::new).expect("UTF-8").expect("no zero byte");
    let (mut db, mut error, none, empty) = (ptr::null_mut(), ptr::null_mut(), ptr::null(), c"".as_ptr());
    // SAFETY: CAPI-1, CAPI-2: the handles are those of the calls before; empty paths are refused.
    unsafe {
        let refused = |status: azk_status, error: *mut azk_error, name: &str| {
            assert_eq!(status, azk_status::AZK_INVALID);
            let message = CStr::from_ptr(azk_error_message(error)).to_str().expect("UTF-8").to_owned();
            assert!(message.contains(&format!("argument {name} is an empty path")), "{message}");
            azk_error_free(error);
        };
        let status = azk_open(empty, none, &raw mut db, &raw mut error);
        refused(status, error, "path");
        assert_eq!(azk_open(path.as_ptr(), none, &raw mut db, ptr::null_mut()), OK);
        let status = azk_backup(db, empty, none, None, ptr::null_mut(), &raw mut error);
        refused(status, error, "to");
        assert_eq!(azk_close(db, ptr::null_mut()), OK);
        let status = azk_restore(empty, path.as_ptr(), none, &raw mut error);
        refused(status, error, "from");
        let status = azk_restore(path.as_ptr(), empty, none, &raw mut error);
        refused(status, error, "to");
    }
}
