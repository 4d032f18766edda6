/* Memory calls that only the kernel can execute, on memory that is mostly far. Prints everything that a
   program can observe: results, errno, faults counted by a handler, and the bytes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MB = 1 << 20, SIZE = 10 * MB, PIECE = 4096 };
static const int RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS;

/* Prints the kernel's result, and errno if the call failed. */
static void say(const char *what, long result)
{
    const char *error = result == -1 ? strerrorname_np(errno) : "";
    printf("%s: %ld %s\n", what, result < 0 || result > 100000 ? -(result < 0) : result, error);
}

static void fill(unsigned char *at, size_t bytes)
{
    for (uint64_t *w = (uint64_t *)at, i = 0; i < bytes / 8; i++) w[i] = i * 0x9e3779b97f4a7c15u;
}

static long wrong(const unsigned char *at, size_t bytes)
{
    const uint64_t *w = (const uint64_t *)at;
    long count = 0;
    for (uint64_t i = 0; i < bytes / 8; i++) count += w[i] != i * 0x9e3779b97f4a7c15u;
    return count;
}

static unsigned char *fresh(void)
{
    unsigned char *at = mmap(NULL, SIZE, RW, ANON, -1, 0);
    fill(at, SIZE);
    return at;
}

static sigjmp_buf back;
static volatile long faults;
static unsigned char *volatile opens;

/* A write barrier as a signal handler: makes the page writable, and the write is executed again. */
static void barrier(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    faults++;
    mprotect((void *)((uintptr_t)info->si_addr & ~(uintptr_t)(PIECE - 1)), PIECE, RW);
}

static void leap(int signal) { (void)signal; siglongjmp(back, 1); }

/* Returns whether a write faults. */
static int faulting(volatile unsigned char *at)
{
    struct sigaction action = {.sa_handler = leap}, before;
    sigaction(SIGSEGV, &action, &before);
    int hit = sigsetjmp(back, 1);
    if (!hit) *at = *at;
    sigaction(SIGSEGV, &before, NULL);
    return hit;
}

static void protection(void)
{
    struct sigaction action = {.sa_sigaction = barrier, .sa_flags = SA_SIGINFO}, before;
    unsigned char *a = fresh();
    say("mprotect read", mprotect(a, SIZE, PROT_READ));
    sigaction(SIGSEGV, &action, &before);
    for (volatile unsigned char *w = a; w < a + SIZE; w += 3 * PIECE) *w = *w;
    for (volatile unsigned char *w = a; w < a + SIZE; w += 2 * PIECE) *w = *w;
    sigaction(SIGSEGV, &before, NULL);
    printf("barrier: %ld faults, %ld wrong\n", faults, wrong(a, SIZE));
    unsigned char *b = fresh();
    say("mprotect guard", mprotect(b + 3 * MB, PIECE, PROT_NONE));
    printf("guard: %d %d %d\n", faulting(b + 3 * MB - 1), faulting(b + 3 * MB), faulting(b + 3 * MB + PIECE));
    int ends[2];
    say("pipe", pipe(ends));
    say("write from a guard", write(ends[1], b + 3 * MB, 1));
    say("pkey_mprotect", syscall(SYS_pkey_mprotect, b + 4 * MB, (size_t)PIECE, PROT_READ, 0));
    printf("keyed: %d\n", faulting(b + 4 * MB));
    say("mprotect back", mprotect(b, SIZE, RW));
    printf("back: %d, %ld wrong\n", faulting(b + 3 * MB), wrong(b, SIZE));
    say("munmap", munmap(b + MB, MB));
    say("mprotect a hole", mprotect(b, SIZE, RW));
    say("mprotect a hole for reading", mprotect(b, SIZE, PROT_READ));
    say("mprotect an odd address", mprotect(b + 1, SIZE, PROT_READ));
    unsigned char *c = malloc(SIZE);
    fill(c, SIZE);
    unsigned char *page = (unsigned char *)(((uintptr_t)c + 5 * MB) & ~(uintptr_t)(PIECE - 1));
    say("mprotect of a block", mprotect(page, PIECE, PROT_NONE));
    printf("block: %d", faulting(page));
    mprotect(page, PIECE, RW);
    printf(", %ld wrong\n", wrong(c, SIZE));
    free(c);
}

static void locks(void)
{
    unsigned char there[SIZE / PIECE] = {0}, *a = fresh();
    long count = 0;
    say("mlock", mlock(a, 2 * MB));
    say("mlock2", mlock2(a + 3 * MB, MB, MLOCK_ONFAULT));
    say("munlock", munlock(a, 2 * MB));
    say("msync", msync(a, SIZE, MS_SYNC));
    say("mincore", mincore(a, SIZE, there));
    for (int i = 0; i < SIZE / PIECE; i++) count += there[i] & 1;
    printf("%ld of %d pages, %ld wrong\n", count, SIZE / PIECE, wrong(a, SIZE));
    say("munmap", munmap(a, PIECE));
    say("mlock a hole", mlock(a, MB));
    say("mincore a hole", mincore(a, MB, there));
    say("msync a hole", syscall(SYS_msync, a, (size_t)MB, MS_ASYNC));
    say("munmap", munmap(a + PIECE, SIZE - PIECE));
    unsigned char *b = fresh();
    say("mlockall", mlockall(MCL_CURRENT | MCL_FUTURE));
    printf("%ld wrong\n", wrong(b, SIZE));
    unsigned char *c = malloc(2 * MB);
    memset(c, 1, 2 * MB);
    free(c);
    say("munlockall", munlockall());
    say("munmap", munmap(b, SIZE));
}

static void remaps(void)
{
    unsigned char *a = fresh(), *place = mmap(NULL, 2 * SIZE, PROT_NONE, ANON, -1, 0);
    unsigned char *b = mremap(a, SIZE, SIZE + MB, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    printf("fixed: %d, %ld wrong, %d new, %d old\n", b == place, wrong(b, SIZE), b[SIZE], faulting(a));
    a = fresh();
    b = mremap(a, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    printf("kept: %d, %ld wrong, %d left behind\n", b != a, wrong(b, SIZE), a[MB]);
    unsigned char *c = fresh();
    memset(b, 3, SIZE);
    unsigned char *d = mremap(b, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, c);
    printf("over: %d, %d %d\n", d == c, d[0], d[SIZE - 1]);
    say("odd flags", (long)mremap(d, SIZE, SIZE, 64));
    say("nothing", (long)mremap(d, SIZE, 0, MREMAP_MAYMOVE));
    d = mremap(d, SIZE, MB, 0);
    printf("short: %d, %d\n", d == c, d[MB - 1]);
    say("remap_file_pages", remap_file_pages(d, MB, 0, 0, 0));
}

static void fixed(void)
{
    unsigned char *a = fresh();
    say("no replace", (long)mmap(a + MB, PIECE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0));
    const int kept = ANON | MAP_FIXED_NOREPLACE, shared = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
    say("no replace, over its end", (long)mmap(a + SIZE - PIECE, 2 * PIECE, RW, kept, -1, 0));
    printf("%ld wrong\n", wrong(a, SIZE));
    munmap(a + 2 * MB, MB);
    printf("no replace in a hole: %d\n",
           mmap(a + 2 * MB, MB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == a + 2 * MB);
    printf("hole: %d %d %d\n", a[2 * MB - 1], a[2 * MB], a[3 * MB]);
    unsigned char *b = fresh();
    char name[] = "/tmp/azekura-far-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    if (ftruncate(fd, MB) < 0 || pwrite(fd, "file", 4, 0) != 4) puts("no file");
    printf("file: %d\n", mmap(b + 2 * MB, MB, RW, MAP_SHARED | MAP_FIXED, fd, 0) == b + 2 * MB);
    memcpy(b + 2 * MB + 4, " mapped", 8);
    char text[12];
    printf("%s, %ld\n", pread(fd, text, 12, 0) == 12 ? text : "", (long)b[5 * MB]);
    say("closed file", (long)mmap(b + 4 * MB, MB, RW, MAP_SHARED | MAP_FIXED, 987, 0));
    printf("shared: %d\n", mmap(b + 6 * MB, MB, RW, shared, -1, 0) == b + 6 * MB);
    b[6 * MB] = 1;
    if (fork() == 0) b[6 * MB] = 2, _exit(0);
    wait(NULL);
    printf("child wrote %d\n", b[6 * MB]);
    int segment = shmget(IPC_PRIVATE, MB, IPC_CREAT | 0600);
    printf("shmat: %d\n", shmat(segment, b + 8 * MB, SHM_REMAP) == b + 8 * MB);
    shmctl(segment, IPC_RMID, NULL);
    printf("%d %d\n", b[8 * MB], b[9 * MB] == a[9 * MB]);
    printf("none: %d", mmap(b, MB, PROT_NONE, ANON | MAP_FIXED, -1, 0) == b);
    printf(" %d\n", faulting(b));
    munmap(b, MB);
    munmap(b, MB);
    unsigned char *c = fresh();
    munmap(a, PIECE), munmap(a, PIECE), munmap(a, PIECE), munmap(a, PIECE); /* the piece is unmapped once */
    fill(c, SIZE);
    printf("%d\n", memcmp(a + PIECE, c + PIECE, MB));
}

static void advice(void)
{
    unsigned char *a = fresh(), *b = fresh();
    say("dontfork", madvise(a, MB, MADV_DONTFORK));
    say("wipeonfork", madvise(a + 2 * MB, MB, MADV_WIPEONFORK));
    pid_t child = fork();
    if (child == 0) {
        int gone = msync(a, MB, MS_ASYNC) == -1, wiped = a[2 * MB + 8] == 0 && a[3 * MB - 1] == 0;
        _exit(gone + 2 * wiped + 4 * (a[4 * MB + 8] == b[4 * MB + 8] && wrong(b, SIZE) == 0));
    }
    int status;
    waitpid(child, &status, 0);
    printf("child: %d; %ld wrong\n", WIFEXITED(status) ? WEXITSTATUS(status) : -status, wrong(a, SIZE));
    say("remove", madvise(a + 4 * MB, MB, MADV_REMOVE));
    say("no such", madvise(a + 4 * MB, MB, 12345));
    say("free", madvise(a + 5 * MB, MB, MADV_FREE));
    say("guard", madvise(b + MB, MB, 102) + madvise(b + MB, MB, 103));
    int hints[] = {MADV_SEQUENTIAL, MADV_NORMAL, MADV_DONTDUMP, MADV_NOHUGEPAGE};
    for (int i = 0; i < 4; i++) say("hint", madvise(a + i * MB, 2 * MB, hints[i]));
    say("hint", posix_madvise(a, SIZE, POSIX_MADV_RANDOM) + posix_madvise(a + MB, MB, POSIX_MADV_NORMAL));
    struct iovec part = {b + 6 * MB, MB};
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    say("process_madvise", process_madvise(self, &part, 1, MADV_COLD, 0) == MB);
    prctl(0x53564d41, 0, b, (size_t)MB, "far"); /* not supported by every kernel */
    say("munmap", munmap(b + 8 * MB, MB));
    say("hint for a hole", madvise(b, SIZE, MADV_WILLNEED));
    printf("%ld wrong\n", wrong(a, SIZE / 2));
}

static void nodes(void)
{
    unsigned char *a = fresh();
    unsigned long mask = 1;
    int mode = -1, status[3] = {-9, -9, -9};
    void *pages[3] = {a, a + 5 * MB, a + SIZE - PIECE};
    for (size_t i = 0; i < SIZE; i += 2 * MB) /* as in OpenBLAS: a policy for each part */
        say("mbind", syscall(SYS_mbind, a + i, (size_t)MB, 2, &mask, sizeof mask * 8, 0));
    say("get_mempolicy", syscall(SYS_get_mempolicy, &mode, NULL, 0, a + 2 * MB, 2));
    printf("mode %d\n", mode);
    say("move_pages", syscall(SYS_move_pages, 0, 3UL, pages, NULL, status, 0));
    printf("nodes %d %d %d\n", status[0], status[1], status[2]);
    say("set_mempolicy", syscall(SYS_set_mempolicy, 0, NULL, 0));
    printf("%ld wrong\n", wrong(a, SIZE));
}

static void faultfd(void)
{
    unsigned char *a = fresh(), *source = fresh();
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    say("api", ioctl(fd, UFFDIO_API, &api));
    struct uffdio_register part = {.range = {(uintptr_t)a + MB, MB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    say("register", ioctl(fd, UFFDIO_REGISTER, &part));
    madvise(a + MB, MB, MADV_DONTNEED);
    struct uffdio_copy copy = {.dst = (uintptr_t)a + MB, .src = (uintptr_t)source + MB, .len = MB};
    say("copy", ioctl(fd, UFFDIO_COPY, &copy));
    printf("%lld bytes, %ld wrong\n", (long long)copy.copy, wrong(a, SIZE));
    close(fd);
}

/* The same calls by number, without the C library's functions of these names. */
static void raw(void)
{
    unsigned char *a = fresh();
    say("mprotect", syscall(SYS_mprotect, a + MB, (size_t)MB, PROT_NONE));
    printf("%d", faulting(a + MB));
    say(" mprotect", syscall(SYS_mprotect, a + MB, (size_t)MB, RW));
    say("mlock", syscall(SYS_mlock, a + 2 * MB, (size_t)MB));
    say("munmap", syscall(SYS_munmap, a + 9 * MB, (size_t)MB));
    say("madvise", syscall(SYS_madvise, a + 4 * MB, (size_t)MB, MADV_DONTNEED));
    printf("%d %d\n", a[4 * MB + 8], a[5 * MB] == 0);
    unsigned char *b = (void *)syscall(SYS_mremap, a, (size_t)MB, 2UL * MB, MREMAP_MAYMOVE, 0);
    printf("%d %d\n", b[8], b[MB + 8]);
    int ends[2];
    struct iovec part = {b, 8 * PIECE};
    say("pipe", pipe(ends));
    say("vmsplice", vmsplice(ends[1], &part, 1, 0));
    unsigned char got[8 * PIECE];
    say("read", read(ends[0], got, sizeof got));
    printf("%d\n", memcmp(got, b, sizeof got));
}

/* Ranges of which far memory is only a part: the kernel stops at the first part that it refuses. */
static void mixed(void)
{
    unsigned char *a = fresh();
    int file = memfd_create("mixed", 0);
    say("no access", mprotect(a + MB, MB, PROT_NONE));
    say("no access", mprotect(a + 4 * MB, PIECE, PROT_NONE));
    struct iovec part = {a + 4 * MB - 2 * PIECE, 4 * PIECE};
    say("writev", writev(file, &part, 1));
    say("send", send(file, a + 4 * MB - PIECE, 2 * PIECE, 0));
    int ends[2];
    say("pipe", pipe(ends));
    say("write", write(ends[1], a + 4 * MB - 2 * PIECE, 3 * PIECE));
    unsigned char got[2 * PIECE];
    say("read", read(ends[0], got, sizeof got));
    printf("%d\n", memcmp(got, a + 4 * MB - 2 * PIECE, sizeof got));
    unsigned char *half = mmap(NULL, 4 * MB, PROT_NONE, ANON, -1, 0);
    say("commit", mprotect(half, 2 * MB, RW));
    fill(half, 2 * MB);
    munmap(fresh(), SIZE); /* pages it out */
    say("write", write(ends[1], half + 2 * MB - 2 * PIECE, 3 * PIECE));
    unsigned char *shared = mmap(a + 6 * MB, MB, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(shared, 9, MB);
    say("remove", madvise(a + 5 * MB, 2 * MB, MADV_REMOVE));
    printf("%d %d\n", shared[0], shared[MB - 1]);
}

int main(int count, char **arguments)
{
    (void)count, (void)opens;
    void (*parts[])(void) = {protection, locks, remaps, fixed, advice, nodes, faultfd, mixed, raw};
    const char *names[] = {"protection", "locks", "remaps", "fixed", "advice", "nodes", "faultfd", "mixed",
        "raw"};
    for (int i = 0; i < 9; i++)
        if (!arguments[1] || !strcmp(arguments[1], names[i])) puts(names[i]), fflush(stdout), parts[i]();
    return 0;
}
