//! System calls by the processor's instruction, for the layer's own memory and descriptors.
//!
//! In a program with the preload library, the functions of the C library, including `syscall`, are hooks of
//! that library. The hooks would treat the layer's calls as calls of the program.

/// Makes a system call. Returns -1 and sets `errno` as the C library does.
///
/// # Safety
///
/// The contract of the system call with this number.
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller keeps this function's contract.
    let result = unsafe { raw(number, arguments) };
    if (-4095..0).contains(&result) {
        // SAFETY: the address is that of this thread's `errno`.
        unsafe { *libc::__errno_location() = -(result as i32) };
        return -1;
    }
    result
}

#[cfg(target_arch = "x86_64")]
unsafe fn raw(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: follows the kernel's calling convention; the caller guarantees the contract of the system call.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn raw(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: follows the kernel's calling convention; the caller guarantees the contract of the system call.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}
