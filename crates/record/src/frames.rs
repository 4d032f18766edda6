//! Selects the frame of a stack to show to the user: the first one of the program's own code.
//!
//! A wait of a C++ or Rust program is in a function of the language's library, or of a lock library. The line
//! that the user can change is in a caller of this function.

use crate::allocators;
use crate::symbols::{Place, Symbols};
use std::collections::BTreeMap;

/// Addresses of the frames of a wait, the nearest first.
pub(crate) type Stack = Vec<u64>;

/// Prefixes of the names of library functions: language and lock libraries.
const LIBRARIES: [&str; 12] = [
    "std::",
    "core::",
    "alloc::",
    "__rustc",
    "__gnu_cxx::",
    "__gthread",
    "parking_lot::",
    "parking_lot_core::",
    "lock_api::",
    "absl::",
    "boost::",
    "folly::",
];

/// Beginnings of the functions that start the program or a thread.
const STARTS: [&str; 4] = ["__libc_start", "start_thread", "clone3", "__clone"];

/// Parts of the source paths of libraries: C++ headers and Rust's standard library.
const HEADERS: [&str; 3] = ["/include/c++/", "/rustc/", "/rustlib/src/"];

/// The place of most waits for an object.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The innermost function of the program; if there is none, the innermost function of the stack.
    pub(crate) own: Place,
    /// The function of the program that called `own`.
    pub(crate) from: Option<String>,
}

/// Returns the place of most waits, by their stacks. If there are no stacks, the place is that of `address`.
pub(crate) fn of_waits(stacks: &BTreeMap<Stack, u64>, address: u64, symbols: &Symbols) -> Waits {
    let mut counts: BTreeMap<(Place, Option<String>), u64> = BTreeMap::new();
    for (stack, count) in stacks {
        let frames = of(stack, symbols);
        let at = first_own(&frames);
        let callers = frames.get(at + 1..).unwrap_or_default();
        let from = callers.iter().find(|caller| is_own(caller)).map(|caller| caller.function.clone());
        let own = frames.into_iter().nth(at).unwrap_or_default();
        let from = from.filter(|from| *from != own.function);
        *counts.entry((own, from)).or_default() += count;
    }
    match counts.into_iter().rev().max_by_key(|(_, count)| *count) {
        Some(((own, from), _)) => Waits { own, from },
        None => Waits { own: own(&symbols.frames(address)), from: None },
    }
}

/// Returns the first frame of the program's own code; if there is none, the first frame.
pub(crate) fn own(frames: &[Place]) -> Place {
    frames.get(first_own(frames)).cloned().unwrap_or_default()
}

/// Returns the last frame of the program's own code: the first function of the program that the thread
/// called.
pub(crate) fn outermost_own(frames: &[Place]) -> Option<&Place> {
    frames.iter().rev().find(|frame| is_own(frame))
}

fn first_own(frames: &[Place]) -> usize {
    frames.iter().position(is_own).unwrap_or(0)
}

pub(crate) fn is_named(function: &str) -> bool {
    !function.contains("+0x") && !function.starts_with("0x")
}

pub(crate) fn is_own(frame: &Place) -> bool {
    is_own_name(&frame.function)
        && !HEADERS.iter().any(|part| frame.file.contains(part))
        && allocators::of(frame).is_none()
}

fn is_own_name(function: &str) -> bool {
    // glibc's debug information has its internal names.
    let mut path = function.trim_start_matches(['<', '&', '*', '(']).trim_start_matches("__GI_");
    path = path.strip_prefix("mut ").or_else(|| path.strip_prefix("dyn ")).unwrap_or(path);
    let is_library = LIBRARIES.iter().any(|library| path.starts_with(library));
    is_named(function) && !is_library && !is_start(function) && !is_parameter(path)
}

/// Returns `true` for the functions of the C library that start the program or a thread.
pub(crate) fn is_start(function: &str) -> bool {
    let plain = function.trim_start_matches("__GI_");
    STARTS.iter().any(|start| plain.starts_with(start))
}

/// Returns `true` if `path` is a method of a library trait for a type parameter, such as `<F as
/// core::ops::FnOnce>`. A method of a library trait for a type of the program is the program's own code.
fn is_parameter(path: &str) -> bool {
    let trait_of = path.split_once(" as ").filter(|(name, _)| name.len() <= 2);
    trait_of.is_some_and(|(_, name)| !is_own_name(name))
}

/// Returns the frames of a stack, including those of inlined functions.
pub(crate) fn of<'s>(stack: impl IntoIterator<Item = &'s u64>, symbols: &Symbols) -> Vec<Place> {
    let mut frames: Vec<Place> = stack.into_iter().flat_map(|address| symbols.frames(*address)).collect();
    for at in 0..frames.len() {
        // The debug information of C++ has no name for a lambda, but the name of the lambda's caller in the
        // library contains one.
        if frames[at].function == "operator()" {
            let callers = frames[at + 1..].iter().take(2);
            let lambda = callers.filter_map(|caller| lambda(&caller.function)).next().map(str::to_owned);
            lambda.into_iter().for_each(|name| frames[at].function = name);
        }
    }
    frames
}

/// Bytes of the longest call instruction.
pub(crate) const LONGEST_CALL: u64 = 7;

/// Returns `true` if the bytes end with a call instruction: on x86-64, `E8` with four bytes, or `FF /2` in
/// its usual lengths; on Arm, `BL` or `BLR`.
pub(crate) fn follows_call(before: &[u8]) -> bool {
    if cfg!(target_arch = "aarch64") {
        let Some(&[a, b, c, d]) = before.last_chunk::<4>() else { return false };
        let word = u32::from_le_bytes([a, b, c, d]);
        return word >> 26 == 0b10_0101 || word & 0xffff_fc1f == 0xd63f_0000;
    }
    let back = |n: usize| before.len().checked_sub(n).map(|at| before[at]);
    let indirect = |n: usize| back(n) == Some(0xff) && back(n - 1).is_some_and(|modrm| modrm >> 3 & 7 == 2);
    back(5) == Some(0xe8) || [2, 3, 4, 6, 7].into_iter().any(indirect)
}

/// Returns the last template argument: `f()::<lambda()>` of `__invoke_impl<void, f()::<lambda()> >`.
fn lambda(function: &str) -> Option<&str> {
    let arguments = function.strip_suffix('>')?.split_once('<')?.1;
    let (mut depth, mut begin) = (0, 0);
    for (at, byte) in arguments.bytes().enumerate() {
        match byte {
            b'<' | b'(' => depth += 1,
            b'>' | b')' => depth -= 1,
            b',' if depth == 0 => begin = at + 1,
            _ => {}
        }
    }
    Some(arguments[begin..].trim()).filter(|last| last.contains("lambda"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn return_addresses_follow_calls() {
        assert!(follows_call(&[0x90, 0x90, 0xe8, 1, 2, 3, 4]));
        assert!(follows_call(&[0, 0, 0, 0, 0, 0xff, 0xd0]), "call rax");
        assert!(follows_call(&[0, 0xff, 0x15, 1, 2, 3, 4]), "call [rip + x]");
        assert!(!follows_call(&[0, 0, 0, 0, 0, 0xff, 0xe0]), "jmp rax");
        assert!(!follows_call(&[0; 7]) && !follows_call(&[]));
    }

    #[test]
    fn functions_of_languages_and_lock_libraries_are_not_the_programs_own() {
        for library in [
            "std::mutex::lock",
            "<std::sys::sync::mutex::futex::Mutex>::lock_contended",
            "<alloc::boxed::Box<F> as core::ops::function::FnOnce<A>>::call_once",
            "<F as core::ops::function::FnOnce<A>>::call_once",
            "__gthread_mutex_lock",
            "parking_lot::raw_mutex::RawMutex::lock_slow",
            "start_thread",
            "__GI___clone3",
            "libstdc++.so.6.0.30+0xd4490",
            "0x7f00",
        ] {
            assert!(!is_own_name(library), "{library}");
        }
        for own in ["teller", "stdout_lock", "Queue::pop", "<bank::Guard as core::ops::drop::Drop>::drop"] {
            assert!(is_own_name(own), "{own}");
        }
    }

    #[test]
    fn an_inlined_lambda_has_the_name_that_its_caller_knows() {
        assert_eq!(lambda("__invoke_impl<void, run<Lock>()::<lambda()> >"), Some("run<Lock>()::<lambda()>"));
        assert_eq!(lambda("__invoke<main(int, char**)::<lambda(int)>, int&>"), None);
        assert_eq!((lambda("__invoke_impl<void, void (*)(int)>"), lambda("work")), (None, None));
        let header =
            Place { function: "_M_invoke<0>".into(), file: "/usr/include/c++/12/thread".into(), line: 1 };
        assert!(!is_own(&header) && is_own(&Place { file: "queue.cpp".into(), ..header }));
    }

    #[test]
    fn a_stack_is_named_by_its_first_frame_of_the_programs_own_code() {
        let frame = |function: &str| Place { function: function.into(), ..Place::default() };
        let frames =
            ["__gthread_mutex_lock", "std::mutex::lock", "Queue::pop", "serve", "start_thread"].map(frame);
        assert_eq!(own(&frames).function, "Queue::pop");
        assert_eq!(outermost_own(&frames).map(|frame| &*frame.function), Some("serve"));
        let library = ["std::mutex::lock", "start_thread"].map(frame);
        assert_eq!(own(&library).function, "std::mutex::lock");
        assert_eq!(outermost_own(&library), None);
    }
}
