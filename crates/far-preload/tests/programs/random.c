/* Random memory calls and system calls on memory that is mostly far: random SEED STEPS [CHILDREN]. Prints
 * each result and a digest of the bytes. The output is the same with and without far memory. */
#include "random.h"
#include "random-calls.h"

static unsigned char *crowd;

/* Pages the regions out: writes to a block that is larger than the local memory. */
static void sweep(void)
{
    for (size_t i = 0; i < 6 << 20; i += PIECE) crowd[i]++;
}

static sigjmp_buf *back;

static void leap(int signal, siginfo_t *info, void *context)
{
    (void)context;
    if (!back) {
        fprintf(stderr, "signal %d at %p, rights %d\n", signal, info->si_addr, rights_of(info->si_addr));
        abort();
    }
    siglongjmp(*back, signal);
}

/* Accesses a byte; prints the byte, or the signal. The jump buffer may be far. */
static void probe(volatile unsigned char *at, int writes)
{
    static sigjmp_buf own;
    keep((unsigned char *)at, 1);
    unsigned char *far = draw(2) ? usable(sizeof own) : NULL;
    back = far ? (sigjmp_buf *)far : &own;
    int hit = sigsetjmp(*back, 1);
    if (hit) {
        printf("  signal %d\n", hit);
    } else {
        unsigned char byte = *at;
        if (writes) *at = byte + 1;
        printf("  byte %d\n", byte);
    }
    back = NULL;
    if (far) memset(far, 0, sizeof own);
}

static void op_protect(void)
{
    const int kinds[] = {NONE, READ, USABLE, USABLE, USABLE};
    size_t bytes;
    struct region *r = any();
    unsigned char *at = range(r, &bytes);
    int rights = kinds[draw(5)];
    say("mprotect", mprotect(at, bytes, rights));
    set_rights(at, bytes, rights);
    probe(at + draw(bytes), draw(2));
}

static void op_probe(void)
{
    struct region *r = any();
    probe(r->at + draw(r->pieces * PIECE), draw(2));
}

static void op_unmap(void)
{
    size_t bytes, half;
    struct region *r = any();
    unsigned char *at = range(r, &bytes);
    say("munmap", munmap(at, bytes));
    set_rights(at, bytes, HOLE);
    say(" mprotect of a hole", mprotect(at, bytes, RW));
    say(" madvise of a hole", madvise(at, bytes, MADV_DONTNEED));
    half = bytes / 2 / PIECE * PIECE;
    if (half && draw(2)) {
        say(" map a half", mmap(at, half, PROT_NONE, ANON | MAP_FIXED_NOREPLACE, -1, 0) == at);
        say(" map over it", (long)mmap(at, bytes, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0));
    }
    int flags = (draw(2) ? ANON : MAP_SHARED | MAP_ANONYMOUS) | MAP_FIXED;
    say(" map again", mmap(at, bytes, RW, flags, -1, 0) == at);
    set_rights(at, bytes, USABLE);
    fill(at, draw(bytes));
}

static void op_fixed(void)
{
    size_t bytes;
    struct region *r = any();
    unsigned char *at = range(r, &bytes);
    int none = draw(3) == 0, fd = draw(4) ? -1 : file_of(bytes), flags = fd < 0 ? ANON : MAP_PRIVATE;
    say("map over", (long)mmap(at, bytes, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0));
    say(" fixed", mmap(at, bytes, none ? PROT_NONE : RW, flags | MAP_FIXED, fd, 0) == at);
    if (fd >= 0) close(fd);
    set_rights(at, bytes, none ? NONE : USABLE);
    probe(at + draw(bytes), 1);
}

static void op_advise(void)
{
    static const int all[] = {
        MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED,
        MADV_DONTDUMP, MADV_DODUMP, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ, MADV_POPULATE_WRITE, 12345};
    size_t bytes;
    struct region *r = any();
    unsigned char *at = range(r, &bytes);
    int advice = all[draw(sizeof all / sizeof *all)];
    printf("advice %d ", advice);
    int done = madvise(at, bytes, advice);
    /* The kernel does not promise to page out. */
    if (advice != MADV_PAGEOUT) say("of", done);
    if (advice == MADV_DONTNEED) printf("  %lx\n", (long)sum_of(at, bytes));
    const int open_ended[] = {MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, 25, MADV_MERGEABLE};
    madvise(at, bytes, advice = open_ended[draw(5)]);
    if (advice == MADV_FREE) fill(at, bytes);
    if (draw(4) == 0) {
        keep(at, bytes);
        say("guard", madvise(at, bytes, 102));
        probe(at + draw(bytes), 0);
        say("no guard", madvise(at, bytes, 103));
        printf("  %lx\n", (long)sum_of(at, bytes));
    }
}

static void op_remap(void)
{
    struct region *r = any(), *other = any();
    if ((r->kind != PLAIN && r->kind != SPARSE) || r == other) return;
    size_t bytes = r->pieces * PIECE, more;
    /* The kernel refuses to lengthen several mappings. */
    if (mmap(r->at, bytes, RW, ANON | MAP_FIXED, -1, 0) != r->at) abort();
    set_rights(r->at, bytes, USABLE), fill(r->at, bytes);
    switch (draw(4)) {
    case 0:
        r->pieces -= draw(r->pieces / 4);
        if (r->pieces * PIECE == bytes) return;
        say("shorter", mremap(r->at, bytes, r->pieces * PIECE, 0) == r->at);
        break;
    case 1:
        more = r->pieces + draw(PIECES - r->pieces + 1);
        r->at = mremap(r->at, bytes, more * PIECE, MREMAP_MAYMOVE);
        if (r->at == MAP_FAILED) perror("mremap"), abort();
        r->pieces = more;
        set_rights(r->at, more * PIECE, USABLE);
        break;
    case 2:
        if (other->kind == BLOCK || other->kind == STATIC || other->pieces < r->pieces) return;
        more = (other->pieces - r->pieces) * PIECE;
        if (more) munmap(other->at + bytes, more);
        say("onto another", mremap(r->at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, other->at)
            == other->at);
        memcpy(other->rights, r->rights, sizeof r->rights);
        other->pieces = r->pieces, other->kind = r->kind;
        make(r);
        break;
    default: {
        unsigned char *old = r->at;
        r->at = mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        say("leaves the old", r->at == MAP_FAILED ? -1 : r->at != old);
        if (r->at == MAP_FAILED) r->at = old;
        else munmap(old, bytes);
    }
    }
    printf("  %lx\n", (long)sum_of(r->at, r->pieces * PIECE));
}

static void op_lock(void)
{
    size_t bytes;
    struct region *r = any();
    unsigned char *at = range(r, &bytes), *seen = bytes_of(PIECES, &(size_t){0});
    say("mlock", mlock2(at, bytes, draw(2)));
    say("munlock", munlock(at, bytes));
    say("msync", msync(at, bytes, draw(2) ? MS_ASYNC : MS_SYNC));
    say("mincore", mincore(at, PIECE, seen));
    if (rights_of(seen) == USABLE) *seen = 0;
}

static void op_copy(void)
{
    size_t count;
    unsigned char *from = usable(LARGEST), *to = usable(LARGEST);
    if (!from || !to) return;
    count = draw(LARGEST);
    memmove(to, from, count);
    printf("move %lx\n", (long)hash(to, count, 0));
}

static void op_renew(void)
{
    struct region *r = any();
    size_t bytes = r->pieces * PIECE;
    if (r->kind == BLOCK && draw(2)) {
        mprotect(r->at, bytes, RW);
        memset(r->rights, USABLE, sizeof r->rights);
        uint64_t before = hash(r->at, bytes / 2, 0);
        unsigned char *longer = realloc(r->at, bytes + bytes / 2);
        printf("realloc %d\n", before == hash(longer, bytes / 2, 0));
        free(longer);
        make(r);
        return;
    }
    drop(r), make(r);
}

static volatile uint64_t seen;
static unsigned char *watched;

static void on_stack(int signal)
{
    volatile char room[3000];
    for (size_t i = 0; i < sizeof room; i++) room[i] = signal + i;
    seen += room[2999] + (watched ? *watched : 0);
}

static void op_signal(void)
{
    unsigned char *stack = usable(64 << 10);
    if (!stack) return;
    stack_t mine = {.ss_sp = stack, .ss_size = 64 << 10}, none = {.ss_flags = SS_DISABLE}, before;
    struct sigaction action = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
    watched = usable(1);
    say("sigaltstack", sigaltstack(&mine, &before));
    sigaction(SIGUSR1, &action, NULL);
    sweep();
    raise(SIGUSR1);
    sigaltstack(&none, NULL);
    memset(stack, 0, 64 << 10);
    printf("  %ld\n", (long)seen);
}

static void *threaded(void *at)
{
    unsigned char room[PIECE];
    memset(room, *(unsigned char *)at, sizeof room);
    sweep();
    return (void *)(hash(room, sizeof room, 0) ^ hash(at, 5000, 0));
}

static void op_thread(void)
{
    unsigned char *stack = usable(128 << 10), *at = usable(5000);
    pthread_attr_t attributes;
    pthread_t thread;
    void *result = NULL;
    if (!stack || !at) return;
    pthread_attr_init(&attributes);
    if (draw(3)) pthread_attr_setstack(&attributes, stack + (-(uintptr_t)stack & 4095), 124 << 10);
    if (pthread_create(&thread, &attributes, threaded, at) == 0) pthread_join(thread, &result);
    memset(stack, 0, 128 << 10);
    printf("thread %lx\n", (long)result);
}

static void step(int children);

/* A child runs steps of its own. Memory that it shares shows them. */
static void op_fork(void)
{
    if (is_child) return;
    size_t bytes;
    struct region *r = any();
    unsigned char *at = range(r, &bytes);
    int advice = draw(4) ? 0 : draw(2) ? MADV_DONTFORK : MADV_WIPEONFORK, steps = draw(8), status;
    if (advice) say("fork advice", madvise(at, bytes, advice));
    fflush(stdout);
    pid_t child = draw(4) ? fork() : syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        is_child = 1;
        if (advice) {
            probe(at + draw(bytes), 1);
        } else {
            while (steps--) step(0);
        }
        fflush(stdout);
        _exit(7);
    }
    waitpid(child, &status, 0);
    if (advice) madvise(at, bytes, advice == MADV_DONTFORK ? MADV_DOFORK : MADV_KEEPONFORK);
    printf("child %x\n", status);
}

/* A child that its parent reads and writes. */
static void op_other(void)
{
    unsigned char *at = usable(LARGEST), *to = usable(LARGEST);
    int status, ends[2];
    char byte;
    if (is_child || !at || !to || socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return;
    fflush(stdout);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        close(ends[1]);
        scribble(at, LARGEST);
        uint64_t h = hash(to, LARGEST, 0);
        struct iovec mine = {at, 50000}, its = {to, 50000};
        long got = process_vm_readv(parent, &mine, 1, &its, 1, 0);
        printf("child reads %ld %lx %d\n", got, (long)h, got < 0 ? 0 : memcmp(at, to, 50000));
        fflush(stdout);
        sweep();
        if (write(ends[0], "", 1) != 1 || read(ends[0], &byte, 1)) abort();
        _exit(hash(at, LARGEST, 0) & 127);
    }
    close(ends[0]);
    if (read(ends[1], &byte, 1) != 1) abort();
    sweep();
    struct iovec mine = {to, 30000}, its = {at + 100, 30000};
    say("reads child", process_vm_readv(child, &mine, 1, &its, 1, 0));
    printf("  %lx\n", (long)hash(to, 30000, 0));
    memset(to, 5, 30000);
    say("writes child", process_vm_writev(child, &mine, 1, &its, 1, 0));
    close(ends[1]);
    waitpid(child, &status, 0);
    printf("  %x\n", status);
}

typedef void op(void);
static op *const memory[] = {op_protect, op_protect, op_probe, op_unmap, op_fixed, op_advise, op_advise,
    op_remap, op_lock, op_copy, op_renew, op_signal, op_thread};
static op *const forking[] = {op_fork, call_spawn, op_other};

/* With 1, children may run; with 2, their parents read and write their memory, too. */
static void step(int children)
{
    uint64_t kind = draw(20);
    kept_count = 0;
    if (kind < 9) memory[draw(sizeof memory / sizeof *memory)]();
    else if (kind < 19) calls[draw(sizeof calls / sizeof *calls)]();
    else if (children) forking[draw(1 + children)]();
    if (draw(3) == 0) sweep();
}

static void filter(void)
{
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    say("seccomp", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}

int main(int count, char **arguments)
{
    if (count < 3) return 2;
    state = strtoull(arguments[1], NULL, 10) * 0x632be59bd9b4e019u;
    int steps = atoi(arguments[2]), children = count > 3 ? atoi(arguments[3]) : 0;
    int filters = draw(8) ? steps : steps / 2;
    struct sigaction action = {.sa_sigaction = leap, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL), sigaction(SIGBUS, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    alarm(300); /* instead of a wait that never ends */
    crowd = calloc(1, 6 << 20);
    prepare_calls();
    for (int i = 0; i < REGIONS; i++) make(&regions[i]);
    for (int i = 0; i < steps; i++) {
        printf("%d ", i);
        if (i == filters) filter();
        step(children);
        struct region *r = any();
        printf("%d: %lx\n", i, (long)sum_of(r->at, r->pieces * PIECE));
    }
    for (int i = 0; i < REGIONS; i++)
        printf("%d %lx\n", regions[i].kind, (long)sum_of(regions[i].at, regions[i].pieces * PIECE));
    puts("end");
    return 0;
}
