/* System calls by number without a hook of their own, results that are delivered once, and structures that
 * contain addresses, with all of them in a block that is paged out before each call. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

/* Pages the block out before a call, and prints what the call returned. */
#define TELL(call) do { sweep(); errno = 0; long done = (long)(call); \
    printf("%d: %ld %s\n", __LINE__, done, done < 0 ? strerror(errno) : ""); } while (0)
/* The same for a new descriptor or key. */
#define NEW(variable, call) do { sweep(); errno = 0; variable = (call); \
    printf("%d: %d %s\n", __LINE__, variable >= 0, variable < 0 ? strerror(errno) : ""); } while (0)

#define SLOTS 60
#define STRIDE 65536
#define SHIFT 96
#include "far.h"

static void keys(void)
{
    char *bytes = put(NULL, 30000);
    memset(bytes, 7, 30000);
    long key;
    NEW(key, syscall(SYS_add_key, text("user"), text("azekura"), bytes, 30000L, KEY_SPEC_PROCESS_KEYRING));
    memset(bytes, 0, 30000);
    TELL(syscall(SYS_keyctl, KEYCTL_READ, key, bytes, 30000L));
    int whole = 1;
    for (int i = 0; i < 30000; i++) whole &= bytes[i] == 7;
    printf("key: %d\n", whole);
}

static void maps(void)
{
    union bpf_attr attributes = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 30000,
        .max_entries = 3};
    int map;
    NEW(map, syscall(SYS_bpf, BPF_MAP_CREATE, put(&attributes, sizeof attributes), sizeof attributes));
    uint32_t second = 1, *key = put(&second, sizeof second);
    char *value = put(NULL, 30000);
    memset(value, 9, 30000);
    /* The structure is on the stack, and contains addresses of the block. */
    attributes = (union bpf_attr){.map_fd = map, .key = (uintptr_t)key, .value = (uintptr_t)value};
    TELL(syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attributes, sizeof attributes));
    memset(value, 0, 30000);
    TELL(syscall(SYS_bpf, BPF_MAP_LOOKUP_ELEM, &attributes, sizeof attributes));
    printf("value: %d\n", value[0] + value[29999]);
    struct perf_event_attr counts = {.size = sizeof counts, .type = PERF_TYPE_SOFTWARE,
        .config = PERF_COUNT_SW_CPU_CLOCK, .exclude_kernel = 1};
    int counter;
    NEW(counter, syscall(SYS_perf_event_open, put(&counts, sizeof counts), 0, -1, -1, 0L));
    if (counter >= 0) close(counter);
    if (map >= 0) close(map);
}

static void devices(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifconf plain = {.ifc_len = 4000}, there = {.ifc_len = 4000};
    char ordinary[4000];
    plain.ifc_buf = ordinary;
    ioctl(fd, SIOCGIFCONF, &plain);
    there.ifc_buf = put(NULL, 4000);
    TELL(ioctl(fd, SIOCGIFCONF, &there));
    printf("interfaces: %d\n", there.ifc_len == plain.ifc_len &&
        !memcmp(there.ifc_buf, ordinary, plain.ifc_len));
    close(fd);
    int *mode = put(NULL, sizeof *mode);
    TELL(syscall(SYS_get_mempolicy, mode, NULL, 0L, NULL, 0L));
    unsigned long *nodes = put(&(unsigned long){1}, sizeof *nodes);
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TELL(syscall(SYS_mbind, memory, 4096L, 2L, nodes, 8L, 0L));
    TELL(syscall(SYS_prlimit64, 0L, (long)RLIMIT_NOFILE, NULL, put(NULL, sizeof(struct rlimit))));
}

static int ends(void *unused)
{
    (void)unused;
    sweep();
    return 3;
}

static void once(void)
{
    pid_t child = vfork();
    if (child == 0) _exit(5);
    siginfo_t *state = put(NULL, sizeof *state);
    TELL(syscall(SYS_waitid, (long)P_PID, (long)child, state, (long)WEXITED, NULL));
    printf("status: %d\n", state->si_status);
    struct itimerval *before = put(NULL, sizeof *before), later = {{0, 0}, {900, 0}};
    sweep();
    syscall(SYS_setitimer, (long)ITIMER_VIRTUAL, &later, NULL);
    later.it_value.tv_sec = 5;
    TELL(syscall(SYS_setitimer, (long)ITIMER_VIRTUAL, put(&later, sizeof later), before));
    printf("timer: %d\n", before->it_value.tv_sec > 800);
    int *pair = put(NULL, 8);
    TELL(syscall(SYS_socketpair, (long)AF_UNIX, (long)SOCK_STREAM, 0L, pair));
    printf("pair: %d\n", close(pair[0]) == 0 && close(pair[1]) == 0);
    /* The kernel stores the number of a child, and clears it when the child ends. */
    static char stack[65536];
    pid_t *first = put(NULL, sizeof *first), *second = put(NULL, sizeof *second);
    sweep();
    child = clone(ends, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_CHILD_CLEARTID |
        CLONE_CHILD_SETTID | CLONE_PARENT_SETTID | SIGCHLD, NULL, first, NULL, second);
    int status;
    printf("clone: %d", waitpid(child, &status, 0) == child);
    printf(", %d, %d\n", *first == child, *second);
}

static void traced(void)
{
    struct user_regs_struct *registers = put(NULL, sizeof *registers);
    struct iovec *part = put(NULL, sizeof *part);
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(child, &status, 0);
    *part = (struct iovec){registers, sizeof *registers};
    TELL(ptrace(PTRACE_GETREGSET, child, (void *)1, part));
    TELL(ptrace(PTRACE_GETSIGINFO, child, NULL, put(NULL, sizeof(siginfo_t))));
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
}

/* The kernel refuses mappings without a type, and with an offset inside of a page. */
static void mappings(void)
{
    int rights = PROT_READ | PROT_WRITE;
    TELL(mmap(NULL, 4 * MB, rights, MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0);
    TELL(mmap(NULL, 4 * MB, PROT_NONE, MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED ? -1 : 0);
    TELL(mmap(NULL, 4 * MB, rights, MAP_ANONYMOUS | 4, -1, 0) == MAP_FAILED ? -1 : 0);
    TELL(mmap(NULL, 4 * MB, rights, MAP_ANONYMOUS | 8 | MAP_PRIVATE, -1, 0) == MAP_FAILED ? -1 : 0);
    TELL(mmap(NULL, 4 * MB, rights, MAP_ANONYMOUS | MAP_PRIVATE, -1, 100) == MAP_FAILED ? -1 : 0);
    TELL(mmap(NULL, 0, rights, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0) == MAP_FAILED ? -1 : 0);
    TELL(mmap(NULL, 4 * MB, rights, MAP_ANONYMOUS | MAP_SHARED_VALIDATE, -1, 0) == MAP_FAILED ? -1 : 0);
    TELL(mmap(far, 4096, rights, MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0);
    TELL(syscall(SYS_mmap, NULL, 4L * MB, (long)rights, (long)MAP_ANONYMOUS, -1L, 0L));
}

int main(void)
{
    alarm(60); /* instead of a wait that never ends */
    far = malloc(4 * MB), crowd = calloc(1, 6 * MB);
    memset(far, 1, 4 * MB);
    keys(), maps(), devices(), once(), traced(), mappings();
    return 0;
}
