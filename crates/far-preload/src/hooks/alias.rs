//! Other names of hooked functions, with the same arguments. The C library exports them for programs and
//! libraries that were linked with older versions, and for other C libraries' names.

use super::{again, descriptor, kernel, lock, message, once, own, rare, signal, stack, text};
use super::{transfer, wait};

/// Defines a function that continues in another one.
macro_rules! alias {
    ($($name:ident = $hook:path;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() {
                std::arch::naked_asm!("jmp {to}", to = sym $hook)
            }

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() {
                std::arch::naked_asm!("b {to}", to = sym $hook)
            }
        )+
    };
}

alias! {
    _IO_fopen = again::fopen;
    _IO_popen = text::popen;
    __adjtimex = once::adjtimex;
    ntp_adjtime = once::adjtimex;
    __clone = stack::clone;
    __close = descriptor::close;
    __connect = again::connect;
    __dup2 = descriptor::dup2;
    __fcntl = descriptor::fcntl;
    __gettimeofday = again::gettimeofday;
    __lseek = own::lseek;
    llseek = own::lseek;
    __nanosleep = once::nanosleep;
    __open = again::open;
    __open64 = again::open64;
    __pipe = once::pipe;
    __poll = wait::poll;
    __pread64 = transfer::pread64;
    __pwrite64 = transfer::pwrite64;
    __pthread_mutex_init = kernel::pthread_mutex_init;
    __pthread_mutex_lock = lock::pthread_mutex_lock;
    __pthread_once = lock::pthread_once;
    __pthread_rwlock_rdlock = lock::pthread_rwlock_rdlock;
    __pthread_rwlock_wrlock = lock::pthread_rwlock_wrlock;
    __read = transfer::read;
    __sched_getparam = again::sched_getparam;
    __sched_setscheduler = again::sched_setscheduler;
    __select = wait::select;
    __send = message::send;
    __setmntent = again::setmntent;
    __sigaction = signal::sigaction;
    __sigsuspend = signal::sigsuspend;
    __statfs = again::statfs;
    __wait = once::wait;
    __waitpid = once::waitpid;
    __write = transfer::write;
    ssignal = signal::signal;
    __res_send = rare::res_send;
    __res_nsend = rare::res_nsend;
    __res_query = rare::res_query;
    __res_search = rare::res_search;
    __res_nquery = rare::res_nquery;
    __res_nsearch = rare::res_nsearch;
    __res_querydomain = rare::res_querydomain;
    __res_nquerydomain = rare::res_nquerydomain;
}
