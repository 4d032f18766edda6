//! The C library's functions behind the hooks. They are found at the first call, which may be before this
//! library's constructor has run.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::{mem, ptr};

/// Defines a [`Next`] that is found while the library is loaded. A later search would take a lock of the
/// loader, and would allocate if it failed.
#[allow(unused_macros, reason = "used by the recording hooks only")]
macro_rules! next {
    ($name:ident: $type:ty = $new:ident($symbol:literal)) => {
        static $name: crate::next::Next<$type> = crate::next::Next::$new($symbol);

        const _: () = {
            extern "C" fn settle() {
                $name.settle();
            }

            #[used]
            #[unsafe(link_section = ".init_array")]
            static SETTLE: extern "C" fn() = settle;
        };
    };
}
#[allow(unused_imports, reason = "used by the recording hooks only")]
pub(crate) use next;

/// Returns `true` if the process has a function of this name. Call while the library is loaded.
#[allow(dead_code, reason = "used by the recording hooks only")]
pub(crate) fn exists(name: &CStr) -> bool {
    // SAFETY: the name is NUL-terminated.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
}

/// The next definition of a function: the C library's, or that of another library loaded before it.
pub(crate) struct Next<F> {
    name: &'static CStr,
    /// The version to search for first. Of some functions, the C library has an older version with another
    /// layout, which a search without version may find.
    version: Option<&'static CStr>,
    found: AtomicPtr<c_void>,
    kind: std::marker::PhantomData<F>,
}

// SAFETY: contains a name and an atomic address; `F` is only the type with which the address is called.
unsafe impl<F> Sync for Next<F> {}

impl<F: Copy> Next<F> {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, version: None, found: AtomicPtr::new(ptr::null_mut()), kind: std::marker::PhantomData }
    }

    /// Creates the reference for a function of condition variables: their present layout is that of version
    /// 2.3.2 (x86-64).
    pub(crate) const fn condvar(name: &'static CStr) -> Self {
        let version = if cfg!(target_arch = "x86_64") { Some(c"GLIBC_2.3.2") } else { None };
        Self { version, ..Self::new(name) }
    }

    /// Returns the function. Ends the process if no library has a function of this name: the program could
    /// not have been linked.
    #[inline]
    pub(crate) fn get(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // Relaxed: the address publishes nothing, and two threads find the same one
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            found = self.find();
        }
        // SAFETY: the address of the function of this name; the definition of the static states its type.
        unsafe { mem::transmute_copy(&found) }
    }

    /// Finds the function now, if it exists.
    pub(crate) fn settle(&self) {
        self.search();
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let found = self.search();
        if found.is_null() {
            // SAFETY: `abort` has no precondition.
            unsafe { libc::abort() }
        }
        found
    }

    fn search(&self) -> *mut c_void {
        let mut found = ptr::null_mut();
        // SAFETY: names and versions are NUL-terminated.
        unsafe {
            if let Some(version) = self.version {
                found = libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr());
            }
            if found.is_null() {
                found = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            }
        }
        self.found.store(found, Relaxed);
        found
    }
}
