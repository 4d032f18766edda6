/* System calls by number, the checked functions of `_FORTIFY_SOURCE`, calls on message queues, groups and
 * processors, calls that must not be repeated, and a robust mutex, with all their arguments in a block that
 * is paged out before each call. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(what) do { sweep(); if (!(what)) return printf("line %d: %s: %s\n", __LINE__, #what, \
    strerror(errno)), 1; } while (0)

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __readlink_chk(const char *, char *, size_t, size_t);
char *__getcwd_chk(char *, size_t, size_t);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __open_2(const char *, int);

enum { MB = 1 << 20 };
static unsigned char *far, *crowd;

static void sweep(void)
{
    for (size_t i = 0; i < 6 * MB; i += 4096)
        crowd[i]++;
}

static int numbers(void)
{
    char *name = (char *)far, *bytes = (char *)far + MB;
    strcpy(name, "/proc/self/exe");
    MUST(syscall(SYS_readlinkat, AT_FDCWD, name, bytes, 4096) > 0 && bytes[0] == '/');
    MUST(syscall(SYS_statx, AT_FDCWD, name, 0, STATX_SIZE, bytes) == 0);
    MUST(syscall(SYS_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, bytes) == 0);
    MUST(syscall(SYS_getrandom, bytes, 300000, 0) == 300000);
    MUST(syscall(SYS_getcwd, bytes, 4096) > 0);
    MUST(syscall(SYS_statfs, strcpy(name, "/"), bytes) == 0);
    MUST(syscall(SYS_sched_getattr, 0, bytes, 48, 0) == 0 && *(unsigned *)bytes == 48);
    struct sockaddr_in *address = (struct sockaddr_in *)far;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t *length = (socklen_t *)(far + 3 * MB);
    *length = sizeof *address;
    int on = socket(AF_INET, SOCK_DGRAM, 0);
    MUST(syscall(SYS_bind, on, address, sizeof *address) == 0);
    MUST(syscall(SYS_getsockname, on, address, length) == 0 && address->sin_port != 0);
    MUST(syscall(SYS_connect, on, address, sizeof *address) == 0);
    close(on);
    int fd = syscall(SYS_memfd_create, strcpy(name, "azekura"), 0);
    MUST(fd >= 0 && syscall(SYS_write, fd, bytes, 2 * MB) == 2 * MB);
    MUST(syscall(SYS_pread64, fd, bytes + 100, MB, 0L) == MB);
    struct iovec *parts = (struct iovec *)far;
    parts[0] = (struct iovec){bytes, 70000}, parts[1] = (struct iovec){bytes + 90000, 70000};
    MUST(syscall(SYS_pwritev, fd, parts, 2, 5L, 0L) == 140000);
    MUST(syscall(SYS_lseek, fd, 0L, SEEK_SET) == 0 && syscall(SYS_readv, fd, parts, 2) == 140000);
    int *ends = (int *)far, *state = (int *)(far + 8);
    MUST(syscall(SYS_pipe2, ends, 0) == 0);
    int from = ends[0], to = ends[1];
    MUST(syscall(SYS_write, to, memset(bytes, 'x', 3), 3) == 3 && syscall(SYS_read, from, bytes, 9) == 3);
    pid_t child = fork();
    if (child == 0) _exit(7);
    MUST(syscall(SYS_wait4, child, state, 0, NULL) == child && WEXITSTATUS(*state) == 7);
    struct pollfd *poll = (struct pollfd *)far;
    *poll = (struct pollfd){to, POLLOUT, 0};
    MUST(syscall(SYS_ppoll, poll, 1, NULL, NULL, 8) == 1 && poll->revents == POLLOUT);
    MUST(syscall(SYS_sched_getaffinity, 0, 128, bytes) > 0);
    unsigned long mask = 1UL << (SIGUSR2 - 1), *before = (unsigned long *)far;
    MUST(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, before, 8L) == 0 && !(*before & mask));
    MUST(syscall(SYS_rt_sigprocmask, SIG_SETMASK, before, NULL, 8L) == 0);
    MUST(syscall(SYS_read, from, NULL, 0) == 0);
    MUST(syscall(SYS_write, to, (void *)8, 1) == -1 && errno == EFAULT);
    close(from), close(to), close(fd);
    return 0;
}

static int checked(void)
{
    char *name = (char *)far, *bytes = (char *)far + MB;
    MUST(__readlink_chk(strcpy(name, "/proc/self/exe"), bytes, 4096, 4096) > 0);
    int fd = __open_2(name, O_RDONLY);
    MUST(fd >= 0 && __read_chk(fd, bytes, 8000, 9000) == 8000 && memcmp(bytes, "\177ELF", 4) == 0);
    MUST(__pread_chk(fd, bytes, 8000, 1, 9000) == 8000 && memcmp(bytes, "ELF", 3) == 0);
    MUST(__getcwd_chk(bytes, 4096, 4096) == bytes);
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0 && send(ends[0], "well", 5, 0) == 5);
    struct pollfd *poll = (struct pollfd *)far;
    *poll = (struct pollfd){ends[1], POLLIN, 0};
    MUST(__poll_chk(poll, 1, 0, sizeof *poll) == 1);
    MUST(__recv_chk(ends[1], bytes, 5, 5, 0) == 5 && strcmp(bytes, "well") == 0);
    close(fd), close(ends[0]), close(ends[1]);
    return 0;
}

static int others(void)
{
    struct { long kind; char text[100]; } *message = (void *)far;
    int queue = msgget(IPC_PRIVATE, 0600);
    if (queue >= 0) {
        message->kind = 3, strcpy(message->text, "first");
        MUST(msgsnd(queue, message, 6, 0) == 0);
        MUST(memset(message, 0, sizeof *message) && msgrcv(queue, message, 100, 0, 0) == 6);
        MUST(message->kind == 3 && strcmp(message->text, "first") == 0);
        MUST(msgctl(queue, IPC_STAT, (struct msqid_ds *)far) == 0);
        msgctl(queue, IPC_RMID, NULL);
    }
    char *name = (char *)far, *bytes = (char *)far + MB;
    sprintf(name, "/azekura-%d", getpid());
    mqd_t posix = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, NULL);
    if (posix >= 0) {
        MUST(mq_unlink(name) == 0);
        unsigned *priority = (unsigned *)far;
        MUST(mq_send(posix, strcpy(bytes, "second"), 7, 5) == 0);
        MUST(memset(bytes, 0, 9) && mq_receive(posix, bytes, 8192, priority) == 7);
        MUST(*priority == 5 && strcmp(bytes, "second") == 0);
        MUST(mq_getattr(posix, (struct mq_attr *)far) == 0);
        struct mq_attr now = {.mq_flags = O_NONBLOCK}, *before = (struct mq_attr *)far;
        MUST(mq_setattr(posix, &now, before) == 0 && before->mq_flags == 0);
        mq_close(posix);
    }
    uid_t *ids = (uid_t *)far;
    MUST(getresuid(ids, ids + 1, ids + 2) == 0 && ids[0] == getuid());
    MUST(getgroups(10000, (gid_t *)far) >= 0);
    MUST(pthread_getaffinity_np(pthread_self(), sizeof(cpu_set_t), (cpu_set_t *)far) == 0);
    MUST(pthread_setaffinity_np(pthread_self(), sizeof(cpu_set_t), (cpu_set_t *)far) == 0);
    MUST(prctl(PR_GET_NAME, far) == 0 && prctl(PR_SET_NAME, strcpy(name, "third")) == 0);
    MUST(prctl(PR_GET_NAME, bytes) == 0 && strcmp(bytes, "third") == 0);
    return 0;
}

static void nothing(int signal) { (void)signal; }

/* Calls that must not be repeated after the kernel could not access an argument, and calls of the C library
   that had no hook. */
static int once(void)
{
    char *name = (char *)far, *bytes = (char *)far + MB;
    strcpy(name, "exit 3");
    MUST(system(name) == 3 << 8);
    strcpy(name, "echo three");
    FILE *stream;
    MUST((stream = popen(name, "r")) != NULL);
    MUST(fgets(bytes, 99, stream) == bytes && strcmp(bytes, "three\n") == 0 && pclose(stream) == 0);
    stream = fopen("/dev/null", "r");
    strcpy(name, "/dev/zero");
    MUST(freopen(name, "r", stream) == stream);
    MUST(fgetc(stream) == 0 && fclose(stream) == 0);
    /* A device transfers all bytes, in one call as in several. */
    int fd = open("/dev/zero", O_RDONLY);
    MUST(read(fd, bytes, 2 * MB) == 2 * MB);
    close(fd);
    struct flock *lock = (struct flock *)far;
    *lock = (struct flock){.l_type = F_WRLCK};
    fd = syscall(SYS_memfd_create, "lock", 0);
    MUST(fcntl(fd, F_SETLK, lock) == 0);
    MUST(fcntl(fd, F_GETLK, lock) == 0 && lock->l_type == F_UNLCK);
    close(fd);
    MUST(pthread_getname_np(pthread_self(), bytes, 100) == 0);
    /* The kernel returns the error of a socket once. */
    int *error = (int *)far;
    socklen_t length = sizeof *error;
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(1)};
    nobody.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connect(fd, (struct sockaddr *)&nobody, sizeof nobody) == -1 && errno == EINPROGRESS) {
        struct pollfd ended = {.fd = fd, .events = POLLOUT};
        MUST(poll(&ended, 1, 10000) == 1);
        MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &length) == 0 && *error == ECONNREFUSED);
    }
    close(fd);
    /* A signal ends a wait. The timer repeats, because a signal may arrive before the wait begins. */
    struct timespec long_time = {.tv_sec = 50}, *left = (struct timespec *)far;
    struct itimerval soon = {.it_interval = {.tv_usec = 300000}, .it_value = {.tv_usec = 300000}};
    signal(SIGALRM, nothing);
    sweep();
    setitimer(ITIMER_REAL, &soon, NULL);
    if (nanosleep(&long_time, left) != -1 || errno != EINTR || left->tv_sec < 1)
        return puts("nanosleep was repeated"), 1;
    alarm(60); /* replaces the timer */
    signal(SIGALRM, SIG_DFL);
    return 0;
}

static void *owner(void *mutex)
{
    pthread_mutex_lock(mutex);
    sweep();
    return NULL;
}

static int robust(void)
{
    pthread_mutex_t *mutex = (pthread_mutex_t *)(far + MB);
    pthread_mutexattr_t attributes;
    pthread_t thread;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    MUST(pthread_mutex_init(mutex, &attributes) == 0);
    MUST(pthread_create(&thread, NULL, owner, mutex) == 0 && pthread_join(thread, NULL) == 0);
    MUST(pthread_mutex_lock(mutex) == EOWNERDEAD);
    return 0;
}

int main(void)
{
    alarm(60); /* instead of a wait that never ends */
    far = malloc(4 * MB), crowd = calloc(1, 6 * MB);
    memset(far, 1, 4 * MB);
    if (numbers() || checked() || others() || once() || robust()) return 1;
    puts("well");
    return 0;
}
