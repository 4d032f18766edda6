//! The C library's functions behind the hooks. They are found at the first call, which may be before this
//! library's constructor has run.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::{mem, ptr};

/// Defines a [`Next`] that is found while the library is loaded. A later search would take a lock of the
/// loader, and would allocate if it failed.
#[allow(unused_macros, reason = "used by the recording hooks only")]
macro_rules! next {
    ($name:ident: $type:ty = $new:ident($symbol:literal)) => {
        static $name: crate::next::Next<$type> = crate::next::Next::$new($symbol);

        const _: () = {
            extern "C" fn resolve() {
                $name.resolve();
            }

            #[used]
            #[unsafe(link_section = ".init_array")]
            static RESOLVE: extern "C" fn() = resolve;
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
    /// The version in the C library. Of some functions, it has an older version with another layout, which a
    /// search without version may find.
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

    /// Returns the function. If no library has a function of this name (the C library is too old), the
    /// program has found the hook by its name, and gets a function that returns -1 with `ENOSYS`.
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
    pub(crate) fn resolve(&self) {
        self.search();
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let found = self.search();
        if found.is_null() { missing as *mut c_void } else { found }
    }

    fn search(&self) -> *mut c_void {
        // SAFETY: the name is NUL-terminated.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if let Some(version) = self.version {
            // SAFETY: the name and the version are NUL-terminated.
            let present = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()) };
            // The search for a version passes over libraries that have none, such as one that the user loads
            // before the C library, or the runtime of a sanitizer.
            if !present.is_null() && (found.is_null() || object_of(found) == object_of(present)) {
                found = present;
            }
        }
        self.found.store(found, Relaxed);
        found
    }
}

/// Called in place of a function that the C library does not have. It ignores all arguments: the ABI of every
/// supported machine passes them in registers or in memory of the caller.
extern "C" fn missing() -> isize {
    // SAFETY: the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// Returns the address of the program or library with this function; `None` if it is unknown.
fn object_of(function: *mut c_void) -> Option<usize> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the call fills `info` unless it returns 0.
    unsafe { (libc::dladdr(function, info.as_mut_ptr()) != 0).then(|| info.assume_init().dli_fbase.addr()) }
}
