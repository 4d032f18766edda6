//! Transactions: options, retries, asynchronous commits, savepoints.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use azekura::{CommitTicket, Database, Error, Savepoint, Transaction};
use rustix::event::{EventfdFlags, eventfd};

use super::{
    azk_db, azk_error, azk_error_free, azk_slice, azk_status, azk_tx, free, guarded, handle, null, options,
    put, put_new, read_row, shared, take, text_or_empty, with_tx,
};

/// Largest number of times that `azk_retry` runs its function, and the time after which no run begins: the
/// defaults of `Builder::retry_limit`. After the last run it returns the conflict.
const MOST_RUNS: u64 = 10_000;
const RETRY_TIME: Duration = Duration::from_secs(30);

/// A commit that may not be durable yet. Free it with `azk_ticket_free`.
#[derive(Debug)]
pub struct azk_ticket {
    ticket: CommitTicket,
    /// A copy of the ticket, kept while it will write to `event`.
    waiting: Option<CommitTicket>,
    event: Option<Arc<Event>>,
}

/// A state of a transaction that a rollback can restore. Free it with `azk_savepoint_free`.
#[derive(Debug)]
pub struct azk_savepoint {
    savepoint: Savepoint,
}

/// A function that `azk_retry` runs with a transaction. To commit, the function returns `AZK_OK`. Otherwise
/// it returns the status of the failed call, and stores the error of that call in `error`. The function does
/// not end the transaction: a commit or a rollback of it fails with `AZK_INVALID`.
pub type azk_body = Option<
    unsafe extern "C" fn(tx: *mut azk_tx, context: *mut c_void, error: *mut *mut azk_error) -> azk_status,
>;

fn begin(db: &Database, given: &str) -> Result<azk_tx, Error> {
    let (mut is_durable, mut lock_timeout, mut nowait) = (None, None, false);
    options::each(given, |name, value| {
        match name {
            "durable" => is_durable = Some(options::value(name, value)?),
            "nowait" => nowait = options::value(name, value)?,
            "lock_timeout_ms" => lock_timeout = Some(options::time(name, value)?),
            _ => return Err(options::unknown(name)),
        }
        Ok(())
    })?;
    let tx = db.begin()?;
    if let Some(is_durable) = is_durable {
        tx.set_durability(options::durability(is_durable));
    }
    if lock_timeout.is_some() {
        tx.set_lock_timeout(lock_timeout)?;
    }
    if nowait {
        tx.set_nowait(true)?;
    }
    let tx = Arc::new(Mutex::new(Some(tx)));
    Ok(azk_tx { tx, is_of_retry: false, key: Vec::new(), value: Vec::new() })
}

/// Declares that another thread may continue and end a transaction. Without this declaration, a call fails
/// with `AZK_INVALID` if it would wait for a transaction that the same thread used last, because the wait
/// would not end. A call waits for a detached transaction.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_detach_from_thread(tx: *mut azk_tx, error: *mut *mut azk_error) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let tx = unsafe { handle(tx, "tx")? };
        with_tx(&tx.tx, Transaction::detach_from_thread)
    })
}

/// Runs `body` with a transaction and commits it. After a conflict, runs `body` again, at most 10,000 times
/// and no later than 30 seconds after the first run; then the conflict is returned. This is also done if
/// `body` ignores the conflict and returns another status. Otherwise, if `body` returns a status other than
/// `AZK_OK`, the transaction is rolled back and this status is returned.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold, also in the calls of `body`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_retry(
    db: *mut azk_db,
    body: azk_body,
    context: *mut c_void,
    error: *mut *mut azk_error,
) -> azk_status {
    let began = Instant::now();
    let mut failed = ptr::null_mut();
    let mut status = azk_status::AZK_INVALID;
    for run in 1..=MOST_RUNS {
        // SAFETY: CAPI-1: the error of an earlier run belongs to this function.
        unsafe { azk_error_free(failed) };
        failed = ptr::null_mut();
        let mut of_body = azk_status::AZK_OK;
        let mut by_body = ptr::null_mut();
        let ended = guarded(&raw mut failed, || {
            // SAFETY: CAPI-1.
            let db = unsafe { shared(db, "db")? };
            let body = body.ok_or_else(|| null("body"))?;
            let begun = azk_tx { is_of_retry: true, ..begin(&db.db, "")? };
            let tx = Box::into_raw(Box::new(begun));
            // SAFETY: CAPI-1: the handle belongs to this function; `take` refuses to end it for `body`.
            of_body = unsafe { body(tx, context, &raw mut by_body) };
            // SAFETY: as above.
            unsafe { handle(tx, "tx")? }.is_of_retry = false;
            // SAFETY: CAPI-1: the handle ends here.
            let tx = unsafe { take(tx)? };
            if of_body == azk_status::AZK_OK {
                return tx.commit();
            }
            if tx.is_over() {
                // If a conflict has rolled the transaction back, the commit returns the conflict, and `body`
                // runs again. Another error of `body` is more informative than that of the commit.
                return tx.commit().or_else(|error| if error.is_retryable() { Err(error) } else { Ok(()) });
            }
            tx.abort()
        });
        if ended == azk_status::AZK_OK && of_body != azk_status::AZK_OK {
            failed = by_body; // returned to the caller
        } else {
            // SAFETY: CAPI-1: null, or an error of `body` that the caller does not get.
            unsafe { azk_error_free(by_body) };
        }
        status = if ended == azk_status::AZK_OK { of_body } else { ended };
        if status != azk_status::AZK_CONFLICT || began.elapsed() >= RETRY_TIME {
            break;
        }
        thread::sleep(Duration::from_micros(run.min(100) * 50));
    }
    if error.is_null() {
        // SAFETY: CAPI-1: the caller does not get this error.
        unsafe { azk_error_free(failed) };
    } else if status != azk_status::AZK_OK {
        // SAFETY: CAPI-2. Null if `body` has stored no error.
        unsafe { error.write(failed) };
    }
    status
}

/// Begins a transaction with options; null for no options. With `durable=false` a commit does not wait for
/// the disk, and a crash of the process or a power loss may lose the last commits. `lock_timeout_ms` is the
/// longest wait for a lock. With `nowait=true` a call that would wait for a lock fails with `AZK_BUSY`.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_begin_with(
    db: *mut azk_db,
    options: *const c_char,
    tx: *mut *mut azk_tx,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (db, options) = unsafe { (shared(db, "db")?, text_or_empty(options, "options")?) };
        // SAFETY: CAPI-2.
        unsafe { put_new(tx, "tx", || begin(&db.db, options)) }
    })
}

/// Commits a transaction and returns at once with a ticket. The transaction's handle is also freed on an
/// error.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_commit_async(
    tx: *mut azk_tx,
    ticket: *mut *mut azk_ticket,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let open = unsafe { take(tx)? };
        let make = || Ok(azk_ticket { ticket: open.commit_async()?, waiting: None, event: None });
        // SAFETY: CAPI-2.
        unsafe { put_new(ticket, "ticket", make) }
    })
}

/// Blocks until the commit is durable.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_ticket_wait(ticket: *mut azk_ticket, error: *mut *mut azk_error) -> azk_status {
    // SAFETY: CAPI-1.
    guarded(error, || unsafe { handle(ticket, "ticket")? }.ticket.clone().wait())
}

/// Sets `durable` to 1 if the commit is durable already, otherwise to 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_ticket_durable(
    ticket: *mut azk_ticket,
    durable: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let is_durable = unsafe { handle(ticket, "ticket")? }.ticket.is_durable()?;
        // SAFETY: CAPI-2.
        unsafe { put(durable, c_int::from(is_durable), "durable") }
    })
}

/// Sets `fd` to an eventfd for `poll` or `epoll`. The eventfd becomes readable when the commit is durable or
/// the log has failed; `azk_ticket_durable` returns which. The ticket owns the eventfd.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_ticket_fd(
    ticket: *mut azk_ticket,
    fd: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let ticket = unsafe { handle(ticket, "ticket")? };
        let event = match &ticket.event {
            Some(event) => Arc::clone(event),
            None => {
                let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(|error| Error::other(format!("no eventfd can be made: {error}")))?;
                let event = Arc::new(Event(made));
                let mut waiting = ticket.ticket.clone();
                let waker = Waker::from(Arc::clone(&event));
                match Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(_) => event.signal(),
                    // Dropping the ticket would drop its waker.
                    Poll::Pending => ticket.waiting = Some(waiting),
                }
                ticket.event = Some(Arc::clone(&event));
                event
            }
        };
        // SAFETY: CAPI-2.
        unsafe { put(fd, event.0.as_raw_fd(), "fd") }
    })
}

/// Frees a ticket and closes its eventfd; null is allowed. The commit continues.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_ticket_free(ticket: *mut azk_ticket) {
    // SAFETY: CAPI-1.
    unsafe { free(ticket) }
}

/// An eventfd as a waker; writing to the eventfd does not block.
#[derive(Debug)]
struct Event(OwnedFd);

impl Event {
    fn signal(&self) {
        // The write fails if the counter is full. The eventfd is then readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Wake for Event {
    fn wake(self: Arc<Self>) {
        self.signal();
    }
}

/// Sets a savepoint at the present state of a transaction.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_savepoint_set(
    tx: *mut azk_tx,
    savepoint: *mut *mut azk_savepoint,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let tx = unsafe { handle(tx, "tx")? };
        let make = || Ok(azk_savepoint { savepoint: with_tx(&tx.tx, |open| open.savepoint())? });
        // SAFETY: CAPI-2.
        unsafe { put_new(savepoint, "savepoint", make) }
    })
}

/// Undoes every change of a transaction since the savepoint. The locks are kept.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_rollback_to(
    tx: *mut azk_tx,
    savepoint: *mut azk_savepoint,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let (tx, savepoint) = unsafe { (handle(tx, "tx")?, handle(savepoint, "savepoint")?) };
        with_tx(&tx.tx, |open| open.rollback_to(savepoint.savepoint))
    })
}

/// Frees a savepoint; null is allowed. The transaction is unchanged.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_savepoint_free(savepoint: *mut azk_savepoint) {
    // SAFETY: CAPI-1.
    unsafe { free(savepoint) }
}

/// Reads the value at a key as `azk_get` does, and locks the row for an update.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_get_for_update(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    value: *mut azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    // SAFETY: CAPI-1, CAPI-2.
    unsafe { read_row(tx, table, key, value, found, error, |table, key| table.get_for_update(key)) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use azekura::TableDefinition;

    use super::*;
    use crate::{azk_abort, azk_put, fail, slice_of};

    thread_local! {
        /// Number of errors that this thread has freed.
        static FREED: Cell<usize> = const { Cell::new(0) };
    }

    impl Drop for azk_error {
        fn drop(&mut self) {
            FREED.set(FREED.get() + 1);
        }
    }

    /// Returns an error, and takes the transaction, so that its rollback fails.
    unsafe extern "C" fn fails_with_the_rollback(
        tx: *mut azk_tx,
        _context: *mut c_void,
        error: *mut *mut azk_error,
    ) -> azk_status {
        // SAFETY: CAPI-1: the handle is that of `azk_retry`.
        let open = unsafe { &*tx }.tx.lock().map(|mut tx| tx.take());
        drop(open);
        fail(error, azk_status::AZK_OTHER, "the body failed".into())
    }

    unsafe extern "C" fn fails_without_an_error(
        _tx: *mut azk_tx,
        _context: *mut c_void,
        _error: *mut *mut azk_error,
    ) -> azk_status {
        azk_status::AZK_OTHER
    }

    /// State of [`hides_a_conflict`].
    struct Hides {
        /// Holds the lock of the row until the first run has met it.
        holder: *mut azk_tx,
        runs: u32,
        /// Result of a run that has met the conflict.
        returns: azk_status,
    }

    /// Writes a row. If that is a conflict, ends the transaction that holds the lock, and hides the conflict.
    unsafe extern "C" fn hides_a_conflict(
        tx: *mut azk_tx,
        context: *mut c_void,
        _error: *mut *mut azk_error,
    ) -> azk_status {
        let (key, value) = (slice_of(b"key"), slice_of(b"new"));
        // SAFETY: CAPI-1, CAPI-2: the context and the handles are those of the test.
        unsafe {
            let hides = &mut *context.cast::<Hides>();
            hides.runs += 1;
            if azk_put(tx, c"t".as_ptr(), key, value, ptr::null_mut()) == azk_status::AZK_OK {
                return azk_status::AZK_OK;
            }
            azk_abort(hides.holder, ptr::null_mut());
            hides.returns
        }
    }

    #[test]
    fn a_body_that_hides_a_conflict_runs_again() {
        let opened = Database::builder().lock_timeout(Duration::from_millis(1)).open_in_memory();
        let mut db = azk_db { db: opened.expect("opens") };
        for returns in [azk_status::AZK_OK, azk_status::AZK_OTHER] {
            let mut holder = ptr::null_mut();
            let (none, ok) = (ptr::null_mut(), azk_status::AZK_OK);
            // SAFETY: CAPI-1, CAPI-2: the handles are those of this test.
            let (status, runs) = unsafe {
                assert_eq!(azk_begin_with(&raw mut db, ptr::null(), &raw mut holder, none), ok);
                assert_eq!(azk_detach_from_thread(holder, none), ok);
                let (key, value) = (slice_of(b"key"), slice_of(b"old"));
                assert_eq!(azk_put(holder, c"t".as_ptr(), key, value, none), ok);
                let mut hides = Hides { holder, runs: 0, returns };
                let body: azk_body = Some(hides_a_conflict);
                (azk_retry(&raw mut db, body, (&raw mut hides).cast(), none), hides.runs)
            };
            assert_eq!((status, runs), (azk_status::AZK_OK, 2), "{returns:?}");
        }
        let rows = db.db.transact(|tx| tx.table(&TableDefinition::<[u8], [u8]>::raw("t"))?.get(b"key"));
        assert_eq!(rows.expect("reads"), Some(b"new".to_vec()));
        db.db.close().expect("closes");
    }

    #[test]
    fn a_body_without_an_error_leaves_no_error_of_an_earlier_call() {
        let mut db = azk_db { db: Database::in_memory().expect("opens") };
        let mut error = ptr::dangling_mut();
        // SAFETY: CAPI-1, CAPI-2: the handle is that of this test, and the error is only written.
        let status = unsafe {
            let body: azk_body = Some(fails_without_an_error);
            azk_retry(&raw mut db, body, ptr::null_mut(), &raw mut error)
        };
        assert_eq!((status, error), (azk_status::AZK_OTHER, ptr::null_mut()));
        db.db.close().expect("closes");
    }

    #[test]
    fn the_error_of_the_body_is_freed_if_the_rollback_fails() {
        let mut db = azk_db { db: Database::in_memory().expect("opens") };
        let mut error = ptr::null_mut();
        // SAFETY: CAPI-1, CAPI-2: the handle and the error are those of this test.
        unsafe {
            let body: azk_body = Some(fails_with_the_rollback);
            let status = azk_retry(&raw mut db, body, ptr::null_mut(), &raw mut error);
            assert_eq!((status, FREED.get()), (azk_status::AZK_CLOSED, 1));
            azk_error_free(error);
        }
        assert_eq!(FREED.get(), 2);
        db.db.close().expect("closes");
    }
}
