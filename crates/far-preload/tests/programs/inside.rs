//! Functions of the C library that call the kernel by code inside the library. A hook of the called function
//! does not see such a call, so each of these functions needs a hook, or a reason why it needs none.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{launch, mechanisms_of_calls, same, server};

#[test]
fn f1_functions_of_the_c_library_may_have_arguments_that_are_away() {
    mechanisms_of_calls().into_iter().for_each(|mechanism| same("inside", &[], mechanism));
}

/// Such a call is repeated, unless its result is delivered once.
#[test]
fn f1_calls_by_number_may_have_addresses_inside_of_structures_that_are_away() {
    mechanisms_of_calls().into_iter().for_each(|mechanism| same("nested", &[], mechanism));
}

/// Functions that need no hook, by reason.
const NEED_NONE: [(&str, &str); 12] = [
    (
        "pass no address to the kernel",
        "_Exit _exit __getpgid __getpid __sched_get_priority_max __sched_get_priority_min \
        __sched_getscheduler __sched_yield __setpgid __vfork vfork alarm brk clock_getcpuclockid \
        epoll_create epoll_create1 eventfd fallocate fallocate64 fanotify_init fchdir fchmod fchown \
        fdatasync flock fsmount fsync ftruncate ftruncate64 getegid geteuid getgid getpgid getpgrp getpid \
        getppid getpriority getsid gettid getuid inotify_init inotify_init1 inotify_rm_watch ioperm iopl \
        kill listen mq_close msgget munlock munlockall pause personality pidfd_getfd pidfd_open pkey_alloc \
        pkey_free posix_fadvise posix_fadvise64 posix_fallocate posix_fallocate64 process_mrelease \
        readahead reboot rewinddir sched_get_priority_max sched_get_priority_min sched_getscheduler \
        sched_yield seekdir semget setegid seteuid setfsgid setfsuid setgid setpgid setpriority setregid \
        setresgid setresuid setreuid setsid setuid _setjmp shmdt shmget shutdown socket sync \
        sync_file_range syncfs tee tgkill thrd_yield timer_delete timer_getoverrun timerfd_create umask \
        vhangup",
    ),
    (
        "pass variables on the stack of the calling thread, which is never far",
        "__getwd_chk __longjmp_chk __sysconf __xpg_sigpause _longjmp abort adjtime \
        arc4random_uniform clock daemon eventfd_write fpathconf ftime get_avphys_pages get_phys_pages \
        getdomainname getdtablesize gethostname getipv4sourcefilter getloadavg getnameinfo getpass \
        getsourcefilter getwd grantpt group_member if_indextoname if_nametoindex initgroups isfdtype lockf \
        lockf64 login login_tty logwtmp longjmp ntp_gettime ntp_gettimex profil pthread_getattr_np \
        pthread_setschedprio pthread_sigqueue ptsname_r realpath rresvport_af bindresvport sched_getcpu \
        setipv4sourcefilter setsourcefilter posix_openpt getpt siginterrupt siglongjmp siggetmask \
        sigqueue sigrelse sleep sockatmark sprofil strfry sysconf tcdrain tcflow tcflush tcgetattr \
        tcgetpgrp tcgetsid tcsendbreak tcsetattr tcsetpgrp ualarm ulimit unlockpt usleep vlimit \
        __res_randomid getaddrinfo",
    ),
    (
        "pass memory of the C library, which is not far",
        "backtrace_symbols_fd __backtrace_symbols_fd catclose closelog fmtmsg getdate_r getnetgrent \
        getttyent lckpwdf ulckpwdf pthread_getschedparam sem_open sem_unlink setfsent setttyent tmpfile \
        tmpfile64 ttyname ttyslot malloc_trim fts64_children fts64_close fts64_open fts64_read \
        fts_children fts_close fts_open fts_read",
    ),
    (
        "pass the buffer of a directory, which is not far (`directory`)",
        "readdir readdir64 readdir64_r readdir_r",
    ),
    (
        "are parts of streams, which have hooks of their own (`stream`)",
        "_IO_fdopen fdopen _IO_file_open _IO_file_stat _IO_file_seek _IO_file_read _IO_file_write \
        _IO_proc_close _IO_proc_open perror",
    ),
    (
        "wake waiting threads, or take a lock that is free; a waiting thread has made the object leave \
        (`lock`)",
        "mtx_init pthread_barrier_destroy pthread_cond_broadcast pthread_cond_destroy pthread_cond_signal \
        pthread_mutex_trylock pthread_rwlock_tryrdlock pthread_rwlock_unlock sem_post",
    ),
    (
        "take locks of the C library",
        "__duplocale duplocale __freelocale freelocale __newlocale newlocale setlocale textdomain \
        dl_iterate_phdr dlsym dlvsym aio_cancel aio_cancel64 aio_error aio_error64 aio_init gai_cancel",
    ),
    ("wait on variables on the stack", "aio_suspend aio_suspend64 gai_suspend"),
    ("start threads and children, for which the layer has handlers", "__fork fork thrd_create"),
    ("belong to the C library's allocator", "__libc_realloc"),
    ("treat a directory that the kernel cannot read as unknown, and ask the kernel", "get_current_dir_name"),
    (
        "belong to interfaces without users: remote shells, signal stacks of unknown size, the function \
        `setjmp` (the macro calls another one); a name or a structure that is away may cause `EFAULT`",
        "rcmd_af rexec_af ruserpass setjmp sigstack __arch_prctl",
    ),
];

/// Functions for blocks are hooked for another reason.
const OF_BLOCKS: &str = "malloc free calloc realloc memalign aligned_alloc posix_memalign malloc_usable_size \
    reallocarray";

/// A function that a library exports: its name, and the address range of its code.
struct Function {
    name: String,
    start: usize,
    code: Vec<u8>,
}

/// Returns the functions that a program can be linked with. The library is a little-endian ELF file of 64
/// bits.
fn functions_of(library: &Path) -> Vec<Function> {
    const DYNSYM: u64 = 11;
    const VERSIONS: u64 = 0x6fff_ffff;
    const VERSION_NAMES: u64 = 0x6fff_fffd;
    let file = std::fs::read(library).unwrap();
    let number = |at: usize, bytes: usize| {
        file[at..at + bytes].iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte))
    };
    let word = |at: usize| number(at, 8) as usize;
    let text = |at: usize| {
        let end = file[at..].iter().position(|&byte| byte == 0).unwrap();
        String::from_utf8_lossy(&file[at..at + end]).into_owned()
    };
    // A section header: kind at 4, place at 24, size at 32, linked section at 40.
    let headers: Vec<usize> =
        (0..number(60, 2) as usize).map(|index| word(40) + index * number(58, 2) as usize).collect();
    let section = |kind: u64| headers.iter().copied().find(|&header| number(header + 4, 4) == kind);
    let symbols = section(DYNSYM).unwrap();
    let names = word(headers[number(symbols + 40, 4) as usize] + 24);
    let versions = section(VERSIONS).map(|header| word(header + 24));
    // The version that only libraries of the C library use.
    let private = section(VERSION_NAMES).and_then(|header| {
        let mut at = word(header + 24);
        loop {
            let (index, name, next) = (number(at + 4, 2), number(at + 12, 4) as usize, number(at + 16, 4));
            if text(names + number(at + name, 4) as usize).ends_with("PRIVATE") {
                return Some(index);
            }
            if next == 0 {
                return None;
            }
            at += next as usize;
        }
    });
    let is_linked = |index: usize| {
        // An old version of a function has the highest bit.
        let version = versions.map_or(1, |versions| number(versions + index * 2, 2));
        version & 0x8000 == 0 && Some(version) != private
    };
    let (start, bytes) = (word(symbols + 24), word(symbols + 32));
    let symbol = |index: usize| {
        let at = start + index * 24;
        let (kind, defined) = (file[at + 4] & 15, number(at + 6, 2) != 0);
        // Code of the C library is at the same place in the file and in memory.
        let (place, length) = (word(at + 8), word(at + 16));
        (matches!(kind, 2 | 10) && defined && is_linked(index)).then(|| Function {
            name: text(names + number(at, 4) as usize),
            start: place,
            code: file.get(place..place + length).unwrap_or_default().to_vec(),
        })
    };
    (0..bytes / 24).filter_map(symbol).collect()
}

/// Returns `true` if a function makes a system call by its own instructions.
fn enters_kernel(function: &Function) -> bool {
    match std::env::consts::ARCH {
        "x86_64" => function.code.windows(2).any(|bytes| bytes == [0x0f, 0x05]),
        _ => function.code.chunks_exact(4).any(|bytes| bytes == [0x01, 0x00, 0x00, 0xd4]),
    }
}

/// Returns the addresses to which a function may jump.
fn targets(function: &Function) -> Vec<usize> {
    let Function { start, code, .. } = function;
    let from = |at: usize, distance: i64| (start + at).wrapping_add_signed(distance as isize);
    if std::env::consts::ARCH == "x86_64" {
        let jumps = code.windows(5).enumerate().filter(|(_, bytes)| matches!(bytes[0], 0xe8 | 0xe9));
        let distance = |bytes: &[u8]| i32::from_le_bytes(bytes[1..].try_into().unwrap());
        return jumps.map(|(at, bytes)| from(at + 5, distance(bytes).into())).collect();
    }
    let words = code.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).enumerate();
    let jumps = words.filter(|(_, word)| matches!(word >> 26, 0b00_0101 | 0b10_0101));
    jumps.map(|(at, word)| from(at * 4, i64::from((word << 6).cast_signed() >> 6) * 4)).collect()
}

/// Returns the path of the C library of this process.
fn c_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("/libc.so.6")).unwrap();
    PathBuf::from(&line[line.find('/').unwrap()..])
}

/// A new function of the C library, or a new call inside of one, fails this test.
#[test]
fn f1_each_function_of_the_c_library_that_enters_the_kernel_has_a_hook_or_a_reason() {
    let server = server();
    let mut command = Command::new("true");
    launch(&server).prepare(&mut command).unwrap();
    let library = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").unwrap().1.unwrap().to_owned();
    let hooks: BTreeSet<String> = functions_of(Path::new(&library)).into_iter().map(|f| f.name).collect();
    let functions = functions_of(&c_library());
    assert!(hooks.contains("read") && functions.len() > 1000, "{} functions", functions.len());
    let is_of_blocks = |function: &&Function| OF_BLOCKS.split_whitespace().any(|name| name == function.name);
    let hooked: BTreeSet<usize> = functions
        .iter()
        .filter(|function| hooks.contains(&function.name) && !is_of_blocks(function))
        .map(|function| function.start)
        .collect();
    let reasons: BTreeSet<&str> = NEED_NONE.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    let needs_hook = |function: &&Function| {
        hooked.contains(&function.start)
            || enters_kernel(function)
            || targets(function).iter().any(|target| hooked.contains(target))
    };
    let missing: Vec<&str> = functions
        .iter()
        .filter(needs_hook)
        .map(|function| function.name.as_str())
        .filter(|name| !hooks.contains(*name) && !reasons.contains(name))
        .collect();
    assert!(missing.is_empty(), "neither a hook nor a reason: {missing:?}");
    let both: Vec<&&str> = reasons.iter().filter(|name| hooks.contains(**name)).collect();
    assert!(both.is_empty(), "a hook, and a reason for none: {both:?}");
}
