//! Recognizes waits inside memory allocators, by the functions on the stack of the waiter.
//!
//! A thread that waits below `malloc` or `free` waits for a lock of the allocator. The address of this lock
//! has no symbol, and the place of the wait is in a library, so the lock gets the name of the allocator.

use crate::frames::Stack;
use crate::symbols::{Place, Symbols};
use std::collections::BTreeMap;

/// Functions of an allocator's interface, without a prefix.
const FUNCTIONS: [&str; 13] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "cfree",
    "malloc_trim",
    "new",
    "delete",
];

/// Prefixes of these functions, with the name of the allocator. Other functions with the short prefixes may
/// be the program's own, such as `tc_acquire_table` in MariaDB.
const PREFIXES: [(&str, &str); 2] = [("tc_", "tcmalloc"), ("mi_", "mimalloc")];
/// Prefixes of all functions of jemalloc.
const JEMALLOC: [&str; 2] = ["je_", "_rjem_"];

/// Beginnings of the names of functions inside glibc's allocator, which its debug information has.
const GLIBC: [&str; 8] = [
    "_int_malloc",
    "_int_free",
    "_int_realloc",
    "_int_memalign",
    "_mid_memalign",
    "malloc_consolidate",
    "arena_get",
    "systrim",
];

/// Beginnings of the file names of libraries, with the name of the allocator.
const LIBRARIES: [(&str, &str); 3] =
    [("libjemalloc", "jemalloc"), ("libtcmalloc", "tcmalloc"), ("libmimalloc", "mimalloc")];

/// Returns the name of the allocator that `place` belongs to.
pub(crate) fn of(place: &Place) -> Option<&'static str> {
    let file = place.file.rsplit('/').next().unwrap_or_default();
    if let Some((_, name)) = LIBRARIES.iter().find(|(begin, _)| file.starts_with(begin)) {
        return Some(name);
    }
    let function = &*place.function;
    if JEMALLOC.iter().any(|prefix| function.starts_with(prefix)) {
        return Some("jemalloc");
    }
    for (prefix, name) in PREFIXES {
        if function.strip_prefix(prefix).is_some_and(|plain| FUNCTIONS.contains(&plain)) {
            return Some(name);
        }
    }
    let is_operator = ["operator new", "operator delete"].iter().any(|name| function.starts_with(name));
    // `new` and `delete` without a prefix are no functions of an interface.
    let plain = ["__libc_", "__GI___libc_", "__GI_"].iter().find_map(|prefix| function.strip_prefix(prefix));
    let plain = plain.unwrap_or(function);
    let is_glibc = file.starts_with("libc.so") || file.starts_with("libc-") || file == "malloc.c";
    let is_inner = is_glibc && GLIBC.iter().any(|begin| function.starts_with(begin));
    let is_function = is_inner || FUNCTIONS.contains(&plain) && !["new", "delete"].contains(&plain);
    let name = if is_glibc { "glibc arena" } else { "malloc of the program" };
    (is_operator || is_function).then_some(name)
}

/// Returns the allocator of an object if most of its waits are inside that allocator.
pub(crate) fn of_waits(
    stacks: &BTreeMap<Stack, u64>,
    address: u64,
    symbols: &Symbols,
) -> Option<&'static str> {
    // A function of the program's own allocator may be inlined.
    let of_frames = |address: u64| symbols.frames(address).iter().find_map(of);
    if stacks.is_empty() {
        return of_frames(address);
    }
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (stack, count) in stacks {
        // `operator new` calls `malloc`: the innermost frame has the allocator's name.
        if let Some(name) = stack.iter().find_map(|address| of_frames(*address)) {
            *counts.entry(name).or_default() += count;
        }
    }
    let all: u64 = stacks.values().sum();
    counts.into_iter().find(|(_, count)| count * 2 > all).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_libraries_of_allocators_have_the_name_of_the_allocator() {
        let at =
            |function: &str, file: &str| of(&Place { function: function.into(), file: file.into(), line: 0 });
        assert_eq!(at("free", "/usr/lib/libc.so.6"), Some("glibc arena"));
        assert_eq!(at("__libc_malloc", "./malloc/malloc.c"), Some("glibc arena"));
        assert_eq!(at("_int_free", "./malloc/./malloc/malloc.c"), Some("glibc arena"));
        assert_eq!(at("__GI___libc_free", "./malloc/./malloc/malloc.c"), Some("glibc arena"));
        assert_eq!(at("_int_free", "heap.c"), None);
        assert_eq!(at("libjemalloc.so.2+0x1234", "/usr/lib/libjemalloc.so.2"), Some("jemalloc"));
        assert_eq!(at("je_malloc_mutex_lock_slow", "mutex.c"), Some("jemalloc"));
        assert_eq!(at("malloc", "/usr/lib/libtcmalloc_minimal.so.4"), Some("tcmalloc"));
        assert_eq!(at("mi_free", "alloc.c"), Some("mimalloc"));
        assert_eq!(at("operator new(unsigned long)", "new_op.cc"), Some("malloc of the program"));
        assert_eq!(
            (at("tc_new", "a.cc"), at("tc_acquire_table", "table_cache.cc")),
            (Some("tcmalloc"), None)
        );
        for own in [
            "Pool::free",
            "new",
            "mi_lock_database",
            "free_page",
            "main",
            "libc.so.6+0x98000",
            "pthread_mutex_lock",
        ] {
            assert_eq!(at(own, "/usr/lib/libc.so.6"), None, "{own}");
        }
    }
}
