/* Functions of the C library that call the kernel by code inside the library, with arguments in a block that
 * is paged out before each call. */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <netdb.h>
#include <nl_types.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <utmp.h>

/* Pages the block out before a call, and prints what the call returned. */
#define TELL(call) do { sweep(); errno = 0; long done = (long)(call); \
    printf("%d: %ld %s\n", __LINE__, done, done < 0 ? strerror(errno) : ""); } while (0)
/* Prints whether the call returned something else than an error. */
#define WELL(call) do { sweep(); errno = 0; int done = (call); \
    printf("%d: %d %s\n", __LINE__, done, done ? "" : strerror(errno)); } while (0)

int capget(void *, void *);
int capset(void *, void *);
/* Other names. */
int __open(const char *, int, ...);
ssize_t __read(int, void *, size_t);
ssize_t __write(int, const void *, size_t);
int __poll(struct pollfd *, nfds_t, int);
pid_t __waitpid(pid_t, int *, int);
int __nanosleep(const struct timespec *, struct timespec *);

extern char **environ;
#define SLOTS 250
#define STRIDE 16384
#define SHIFT 100
#include "far.h"

static void nothing(int signal)
{
    (void)signal;
}

static void *sleeps(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static void *ends(void *unused)
{
    return unused;
}

static void times(void)
{
    struct timespec soon = {0, 2000000}, *time = put(&soon, sizeof soon), *left = put(NULL, sizeof *left);
    TELL(thrd_sleep(time, left));
    TELL(__nanosleep(time, left));
    struct timespec later = {50, 0};
    struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    time = put(&later, sizeof later);
    signal(SIGALRM, nothing);
    sweep();
    setitimer(ITIMER_REAL, &often, NULL);
    int done = thrd_sleep(time, left);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("interrupted: %d, %d\n", done, left->tv_sec >= 40);
    WELL(timespec_get(time, TIME_UTC) == TIME_UTC && time->tv_sec > 1000000);
    pthread_t thread;
    pthread_create(&thread, NULL, sleeps, NULL);
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec = 0;
    time = put(&soon, sizeof soon);
    TELL(pthread_timedjoin_np(thread, NULL, time));
    TELL(pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, put(NULL, sizeof soon)));
    struct sched_param none = {0};
    TELL(pthread_setschedparam(thread, SCHED_OTHER, put(&none, sizeof none)));
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    soon.tv_sec += 100;
    time = put(&soon, sizeof soon);
    pthread_create(&thread, NULL, ends, NULL);
    TELL(pthread_timedjoin_np(thread, NULL, time));
}

static void names(void)
{
    char *path = text("."), *file = text("here");
    struct dirent **entries;
    long base;
    close(open("here", O_CREAT | O_RDWR, 0600));
    TELL(scandir(path, &entries, NULL, alphasort));
    TELL(scandirat(AT_FDCWD, path, &entries, NULL, alphasort));
    WELL(ftok(file, 3) != -1);
    TELL(lchmod(file, 0640));
    TELL(futimesat(AT_FDCWD, file, put(NULL, 32)));
    int at = open(".", O_RDONLY);
    WELL(getdirentries(at, put(NULL, 8000), 8000, &base) > 0);
    close(at);
    FILE *mounts;
    WELL((mounts = setmntent(text("/proc/self/mounts"), "r")) != NULL);
    if (mounts) endmntent(mounts);
    TELL((long)catopen(text("./nowhere"), 0));
    char *name = text("tempXXXXXX");
    WELL(*mktemp(name) == 't');
    name = text("tempXXXXXX.c");
    int fd;
    WELL((fd = mkostemps(name, 2, O_CLOEXEC)) >= 0);
    close(fd), unlink(name);
    mkdir("directory", 0700);
    WELL(strncmp(tempnam(text("directory"), "a"), "directory/a", 11) == 0);
    struct { unsigned bytes; int kind; char rest[128]; } handle = {128, 0, {0}}, *handles;
    int *mount = put(NULL, sizeof *mount);
    handles = put(&handle, sizeof handle);
    int known = name_to_handle_at(AT_FDCWD, "here", (struct file_handle *)&handle, &(int){0}, 0);
    sweep();
    int found = name_to_handle_at(AT_FDCWD, file, (struct file_handle *)handles, mount, 0);
    printf("handle: %d\n", found == known);
    sweep();
    found = open_by_handle_at(-1, (struct file_handle *)handles, O_RDONLY);
    printf("handle: %d\n", found < 0 && errno != EFAULT);
    struct utmp user = {.ut_type = USER_PROCESS};
    sweep();
    updwtmp(text("users"), put(&user, sizeof user));
    struct stat stat_of;
    printf("users: %d\n", stat("users", &stat_of)); /* not created */
    close(open("users", O_CREAT | O_RDWR, 0600));
    name = text("users");
    struct utmp *far_user = put(&user, sizeof user);
    sweep();
    updwtmp(name, far_user);
    stat("users", &stat_of);
    printf("users: %d\n", stat_of.st_size == sizeof user);
}

static void administrators(void)
{
    struct { unsigned version; int process; } header = {0x20080522, 0}, *far_header;
    far_header = put(&header, sizeof header);
    unsigned *rights = put(NULL, 24);
    TELL(capget(far_header, rights));
    TELL(capset(far_header, rights));
    struct dqblk *quota = put(NULL, sizeof *quota);
    TELL(quotactl(QCMD(Q_GETQUOTA, USRQUOTA), text("/dev/nowhere"), 0, (char *)quota));
    int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY);
    TELL(fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, text("/nowhere")));
    close(fd);
    TELL(acct(text("/nowhere/at/all")));
    TELL(swapon(text("/nowhere"), 0));
    TELL(swapoff(text("/nowhere")));
}

static void terminals(void)
{
    int of, to;
    struct winsize size = {.ws_row = 33, .ws_col = 44}, now = {0};
    struct winsize *far_size = put(&size, sizeof size);
    char *name = put(NULL, 100);
    TELL(openpty(&of, &to, NULL, NULL, far_size));
    ioctl(to, TIOCGWINSZ, &now);
    printf("size: %d, %d\n", now.ws_row, now.ws_col);
    TELL(ttyname_r(to, name, 100));
    printf("same name: %d\n", strcmp(name, ptsname(of)) == 0);
    close(of), close(to);
}

static ucontext_t *contexts; /* the main one, and one that continues it */
static sigjmp_buf *jumps;

static void continues(void)
{
    puts("in a context");
    sweep();
    swapcontext(&contexts[1000], &contexts[0]);
}

static void contexts_and_jumps(void)
{
    static char stack[65536];
    volatile int times = 0;
    sigset_t set;
    contexts = (ucontext_t *)far;
    memset(contexts, 0, sizeof *contexts);
    TELL(getcontext(&contexts[1000]));
    contexts[1000].uc_stack.ss_sp = stack, contexts[1000].uc_stack.ss_size = sizeof stack;
    makecontext(&contexts[1000], continues, 0);
    TELL(swapcontext(&contexts[0], &contexts[1000]));
    jumps = (sigjmp_buf *)(far + MB);
    sigemptyset(&set), sigaddset(&set, SIGUSR1);
    sweep();
    if (sigsetjmp(*jumps, 1) == 0) {
        sigprocmask(SIG_BLOCK, &set, NULL);
        sweep();
        times++;
        siglongjmp(*jumps, 1);
    }
    sigprocmask(SIG_BLOCK, NULL, &set);
    printf("jumped: %d, %d\n", times, sigismember(&set, SIGUSR1));
}

/* The child has the parent's memory until it executes the program. */
#define EXECUTES(call) do { int state; fflush(stdout); sweep(); pid_t child = vfork(); \
    if (child == 0) { call; _exit(99); } \
    printf("%d: %d\n", __LINE__, waitpid(child, &state, 0) == child ? state : -1); } while (0)

static void programs(void)
{
    char *program = text("/bin/echo"), *name = text("echo"), *a = text("one"), *b = text("two");
    EXECUTES(execl(program, name, a, b, a, b, a, b, NULL));
    EXECUTES(execl(program, name, a, NULL));
    EXECUTES(execlp(name, name, a, b, a, b, a, b, a, NULL));
    EXECUTES(execle(text("/bin/sh"), "sh", "-c", text("echo $A $B"), NULL,
        (char *[]){text("A=three"), text("B=four"), NULL}));
    EXECUTES(execl(text("/nowhere"), name, a, b, a, b, a, b, a, NULL));
    posix_spawn_file_actions_t plain_actions, *actions;
    posix_spawnattr_t plain_attributes, *attributes;
    posix_spawn_file_actions_init(&plain_actions);
    posix_spawn_file_actions_adddup2(&plain_actions, 1, 9);
    posix_spawnattr_init(&plain_attributes);
    actions = put(&plain_actions, sizeof plain_actions);
    attributes = put(&plain_attributes, sizeof plain_attributes);
    char **arguments = put((char *[]){name, a, b, NULL}, 4 * sizeof(char *));
    for (int i = 0; i < 4; i++) {
        int state = -1;
        pid_t child = -1;
        sweep();
        int done = i % 2 ? posix_spawnp(&child, name, actions, attributes, arguments, environ)
            : posix_spawn(&child, program, actions, attributes, arguments, environ);
        printf("spawn: %d", done);
        waitpid(child, &state, 0);
        printf(", %d\n", state);
    }
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) _exit(7);
    int *state = put(NULL, sizeof *state);
    WELL(__waitpid(child, state, 0) == child && WEXITSTATUS(*state) == 7);
}

static void transfers(void)
{
    char *name = text("bytes"), *bytes = put(NULL, 9000);
    int fd;
    WELL((fd = __open(name, O_CREAT | O_RDWR, 0600)) >= 0);
    memset(bytes, 5, 9000);
    TELL(__write(fd, bytes, 9000));
    lseek(fd, 0, SEEK_SET);
    TELL(__read(fd, bytes, 9000));
    struct pollfd polled = {fd, POLLIN, 0};
    TELL(__poll(put(&polled, sizeof polled), 1, 0));
    struct aiocb plain = {.aio_fildes = fd, .aio_nbytes = 9000}, *request;
    plain.aio_buf = bytes;
    request = put(&plain, sizeof plain);
    for (int i = 0; i < 3; i++) {
        sweep();
        printf("aio: %d", i == 2 ? aio_fsync(O_SYNC, request) : i ? aio_write(request) : aio_read(request));
        sweep();
        const struct aiocb *list[] = {request};
        while (aio_error(request) == EINPROGRESS) aio_suspend(list, 1, NULL);
        printf(", %zd\n", aio_return(request));
    }
    close(fd);
    struct gaicb numeric = {.ar_name = text("127.0.0.1")}, *names[] = {NULL};
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST};
    numeric.ar_request = put(&hints, sizeof hints);
    names[0] = put(&numeric, sizeof numeric);
    TELL(getaddrinfo_a(GAI_WAIT, names, 1, NULL));
    WELL(gai_error(names[0]) == 0 && names[0]->ar_result != NULL);
#if __GLIBC_PREREQ(2, 36)
    unsigned char *random = (unsigned char *)far;
    memset(random, 0, 2 * MB);
    sweep();
    arc4random_buf(random, 2 * MB);
    unsigned ones = 0;
    for (size_t i = 0; i < 2 * MB; i++) ones += random[i] & 1;
    printf("random: %d\n", ones > MB - MB / 10 && ones < MB + MB / 10);
#else
    puts("random: 1");
#endif
}

static void masks(void)
{
    signal(SIGSEGV, nothing);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    sigsetmask(~0);
    sweep();
    sigblock(~0);
    sighold(SIGSEGV);
    sweep();
    far[0]++;
    sigset(SIGSEGV, nothing);
    sweep();
    far[0]++;
    sigignore(SIGSEGV);
    sweep();
    far[0]++;
    sigset(SIGSEGV, SIG_DFL);
    sweep();
    far[0]++;
    sigsetmask(0);
#pragma GCC diagnostic pop
    printf("masks: %d\n", far[0]);
}

int main(void)
{
    char directory[] = "/tmp/azekura-inside-XXXXXX", command[64];
    if (!mkdtemp(directory) || chdir(directory)) return perror(directory), 1;
    unsetenv("TMPDIR");
    alarm(60); /* instead of a wait that never ends */
    far = malloc(5 * MB), crowd = calloc(1, 6 * MB);
    memset(far, 1, 5 * MB);
    memset(far, 0, 1);
    times(), alarm(60);
    names(), administrators(), terminals(), transfers(), contexts_and_jumps(), programs();
    far[0] = 0;
    masks();
    snprintf(command, sizeof command, "rm -r %s", directory);
    return system(command);
}
