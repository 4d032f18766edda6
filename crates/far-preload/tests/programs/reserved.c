/* Heaps that are reserved without access and committed in parts, as garbage collectors use them: by
   mprotect, by MAP_FIXED, by a handler of SIGSEGV. Prints everything that a program can observe: results,
   errno, which accesses are refused, and the bytes. The argument "fork" adds child processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MB = 1 << 20, SIZE = 24 * MB, PIECE = 4096 };
static const int RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS;

static void say(const char *what, long result)
{
    const char *error = result == -1 ? strerrorname_np(errno) : "";
    printf("%s: %ld %s\n", what, result < 0 || result > 100000 ? -(result < 0) : result, error);
}

static unsigned char *reserve(size_t bytes)
{
    return mmap(NULL, bytes, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
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

static long nonzero(const unsigned char *at, size_t bytes)
{
    long count = 0;
    for (size_t i = 0; i < bytes; i++) count += at[i] != 0;
    return count;
}

static sigjmp_buf back;
static void leap(int signal) { (void)signal; siglongjmp(back, 1); }

/* Returns whether a read and a write fault. */
static int refused(volatile unsigned char *at)
{
    struct sigaction action = {.sa_handler = leap}, before;
    sigaction(SIGSEGV, &action, &before);
    volatile int hits = 0;
    if (sigsetjmp(back, 1)) hits++; else (void)*at;
    if (sigsetjmp(back, 1)) hits++; else *at = *at;
    sigaction(SIGSEGV, &before, NULL);
    return hits;
}

static volatile long faults;
static void commits(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    faults++;
    mprotect((void *)((uintptr_t)info->si_addr & ~(uintptr_t)(MB - 1)), MB, RW);
}

static void by_mprotect(void)
{
    unsigned char *a = reserve(SIZE);
    printf("reserved: %d %d %d\n", refused(a), refused(a + 5 * MB + 77), refused(a + SIZE - 1));
    for (size_t at = 0; at < SIZE / 2; at += MB) mprotect(a + at, MB, RW);
    fill(a, SIZE / 2);
    printf("half: %d %d, %ld wrong\n", refused(a + SIZE / 2 - 1), refused(a + SIZE / 2), wrong(a, SIZE / 2));
    say("the rest and what is committed", mprotect(a, SIZE, RW));
    fill(a + SIZE / 2, SIZE / 2);
    printf("all: %ld %ld wrong\n", wrong(a, SIZE / 2), wrong(a + SIZE / 2, SIZE / 2));
    say("without access again", mprotect(a + 3 * MB, 2 * MB, PROT_NONE));
    printf("%d %d %d\n", refused(a + 3 * MB - 1), refused(a + 4 * MB), refused(a + 5 * MB));
    say("and with it", mprotect(a + 3 * MB, 2 * MB, RW));
    printf("%ld wrong\n", wrong(a, SIZE / 2));
    say("munmap", munmap(a, SIZE));
    unsigned char *b = mmap(NULL, SIZE, RW, ANON, -1, 0); /* perhaps at the same address */
    printf("new: %ld, %d\n", nonzero(b, SIZE), refused(b + SIZE / 2));
    munmap(b, SIZE);
}

/* Commits pages of the kernel, which are smaller than pages of far memory. */
static void by_pieces(void)
{
    unsigned char *a = reserve(8 * MB);
    say("one piece", mprotect(a + MB + PIECE, PIECE, RW));
    printf("%d %d %d\n", refused(a + MB + PIECE - 1), refused(a + MB + PIECE), refused(a + MB + 2 * PIECE));
    say("from an odd piece on", mprotect(a + 2 * MB + 3 * PIECE, 2 * MB, RW));
    printf("%d %d %d %d\n", refused(a + 2 * MB + 3 * PIECE - 1), refused(a + 2 * MB + 3 * PIECE),
           refused(a + 4 * MB + 3 * PIECE - 1), refused(a + 4 * MB + 3 * PIECE));
    fill(a + 2 * MB + 3 * PIECE, 2 * MB);
    for (size_t at = 5 * MB; at < 7 * MB; at += PIECE) {
        mprotect(a + at, PIECE, RW);
        memset(a + at, (int)(at / PIECE), PIECE);
        if (refused(a + at + PIECE) != 2) return (void)puts("more than was committed");
    }
    long others = 0;
    for (size_t at = 5 * MB; at < 7 * MB; at++) others += a[at] != (unsigned char)(at / PIECE);
    printf("grown: %ld wrong, %ld wrong\n", others, wrong(a + 2 * MB + 3 * PIECE, 2 * MB));
    say("read only", mprotect(a + 7 * MB, PIECE, PROT_READ));
    printf("%d %d\n", refused(a + 7 * MB), refused(a + 7 * MB + PIECE));
    say("head", munmap(a, MB + PIECE / 2));
    say("tail", munmap(a + 6 * MB + PIECE, 2 * MB - PIECE));
    printf("%d %d %d\n", refused(a + MB + PIECE), refused(a + 6 * MB), refused(a + 5 * MB - 1));
    say("the rest", munmap(a + MB, 5 * MB + PIECE));
}

static void by_place(void)
{
    unsigned char *a = reserve(SIZE);
    printf("commit: %d\n", mmap(a, 9 * MB, RW, ANON | MAP_FIXED, -1, 0) == a);
    fill(a, 9 * MB);
    int fixed = ANON | MAP_FIXED;
    printf("decommit: %d\n", mmap(a + 2 * MB, 3 * MB, PROT_NONE, fixed | MAP_NORESERVE, -1, 0) == a + 2 * MB);
    printf("%d %d", refused(a + 2 * MB - 1), refused(a + 2 * MB));
    printf(" %d %d\n", refused(a + 5 * MB - 1), refused(a + 5 * MB));
    printf("again: %d\n", mmap(a + 3 * MB, 16 * MB, RW, ANON | MAP_FIXED, -1, 0) == a + 3 * MB);
    printf("%ld wrong, %ld left", wrong(a, 2 * MB), nonzero(a + 3 * MB, 16 * MB));
    printf(", %d\n", refused(a + 3 * MB - 1));
    fill(a + 3 * MB, 16 * MB);
    size_t odd = 4 * MB + PIECE;
    printf("odd: %d\n", mmap(a + odd, MB, PROT_NONE, ANON | MAP_FIXED, -1, 0) == a + odd);
    printf("%d %d", refused(a + odd - 1), refused(a + odd));
    printf(" %d %d\n", refused(a + odd + MB - 1), refused(a + odd + MB));
    printf("odd: %d\n", mmap(a + odd, 2 * MB, RW, ANON | MAP_FIXED, -1, 0) == a + odd);
    printf("%ld left, %ld wrong\n", nonzero(a + odd, 2 * MB), wrong(a + 3 * MB, odd - 3 * MB));
    say("taken", (long)mmap(a + 20 * MB, MB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0));
    say("munmap", munmap(a, SIZE));
}

static void by_fault(void)
{
    struct sigaction action = {.sa_sigaction = commits, .sa_flags = SA_SIGINFO}, before;
    unsigned char *a = reserve(SIZE + MB);
    unsigned char *aligned = (unsigned char *)(((uintptr_t)a + MB) & ~(uintptr_t)(MB - 1));
    munmap(a, aligned - a);
    sigaction(SIGSEGV, &action, &before);
    fill(aligned, SIZE - MB);
    sigaction(SIGSEGV, &before, NULL);
    printf("by a handler: %ld faults, %ld wrong\n", faults, wrong(aligned, SIZE - MB));
    munmap(aligned, a + SIZE + MB - aligned);
}

static void calls(void)
{
    unsigned char *a = reserve(8 * MB);
    int ends[2];
    say("pipe", pipe(ends));
    say("write", write(ends[1], a + MB, 9));
    say("write to it", write(ends[1], "nine bytes", 9));
    say("read", read(ends[0], a + MB, 9));
    say("dontneed", madvise(a, 2 * MB, MADV_DONTNEED));
    say("populate", madvise(a, MB, MADV_POPULATE_WRITE));
    say("mlock", mlock(a + 2 * MB, PIECE));
    printf("%d %d\n", refused(a), refused(a + 2 * MB));
    unsigned char *b = mremap(a + 4 * MB, 2 * MB, 4 * MB, MREMAP_MAYMOVE);
    printf("moved: %d, %d %d\n", b != MAP_FAILED, refused(b), refused(b + 4 * MB - 1));
    say("commit", mprotect(b, 4 * MB, RW));
    fill(b, 4 * MB);
    say("without access", mprotect(a, MB, PROT_NONE));
    say("commit", mprotect(a, 4 * MB, RW));
    fill(a, 4 * MB);
    printf("%ld %ld wrong\n", wrong(a, 4 * MB), wrong(b, 4 * MB));
}

static void in_children(void)
{
    unsigned char *a = reserve(SIZE);
    for (size_t at = 0; at < SIZE; at += 4 * MB) {
        mprotect(a + at, 2 * MB, RW);
        fill(a + at, 2 * MB);
    }
    unsigned char *unforked = reserve(4 * MB);
    madvise(unforked, 4 * MB, MADV_DONTFORK);
    mprotect(unforked, 2 * MB + PIECE, RW);
    madvise(unforked + MB, MB, MADV_DOFORK);
    fill(unforked, 2 * MB + PIECE);
    fflush(stdout);
    for (int child = 0; child < 2; child++) {
        if (fork() == 0) {
            printf("child: %d %d\n", refused(a + 2 * MB), refused(a + 4 * MB));
            printf("unforked: %d %d", refused(unforked), refused(unforked + MB));
            printf(" %d\n", refused(unforked + 2 * MB));
            mprotect(a, SIZE, RW);
            fill(a, SIZE);
            printf("child: %ld wrong\n", wrong(a, SIZE));
            fflush(stdout);
            _exit(0);
        }
        int status;
        wait(&status);
        printf("ended: %d\n", status);
        long all = 0;
        for (size_t at = 0; at < SIZE; at += 4 * MB)
            all += wrong(a + at, 2 * MB) + (refused(a + at + 2 * MB) != 2);
        printf("parent: %ld %ld wrong\n", all, wrong(unforked, 2 * MB + PIECE));
        fflush(stdout);
    }
}

int main(int count, char **arguments)
{
    (void)arguments;
    by_mprotect();
    by_pieces();
    by_place();
    by_fault();
    calls();
    if (count > 1) in_children();
    return 0;
}
