/* Calls with names, times and results in a block that is paged out before each call: attributes of files,
 * links, special files, extended attributes, temporary files, children, connections, signals, offsets,
 * timers. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* Pages the block out before a call, and prints what the call returned. */
#define TELL(call) do { sweep(); long done = (long)(call); \
    printf("%d: %ld %s\n", __LINE__, done, done < 0 ? strerror(errno) : ""); } while (0)

/* Names of older programs. */
int __xstat(int, const char *, struct stat *);
int __lxstat(int, const char *, struct stat *);
int __fxstat(int, int, struct stat *);
int __fxstatat(int, int, const char *, struct stat *, int);
#ifdef __aarch64__
enum { VERSION = 0 };
#else
enum { VERSION = 1 };
#endif

extern char **environ;
#define SLOTS 250
#define STRIDE 16384
#define SHIFT 100
#include "far.h"

static void files(void)
{
    struct timespec times[2] = {{100, 0}, {200, 0}};
    char *a = text("file"), *b = text("user.name"), *c;
    struct stat now;
    close(open("file", O_CREAT | O_RDWR, 0600));
    c = put(times, sizeof times);
    TELL(utimensat(AT_FDCWD, a, (void *)c, 0));
    stat("file", &now);
    printf("%ld %ld\n", (long)now.st_atime, (long)now.st_mtime);
    TELL(chown(a, -1, -1));
    TELL(fchmodat(AT_FDCWD, a, 0640, 0));
    c = text("link");
    TELL(linkat(AT_FDCWD, a, AT_FDCWD, c, 0));
    TELL(renameat2(AT_FDCWD, c, AT_FDCWD, "other", 0));
    c = text("soft");
    TELL(symlinkat(a, AT_FDCWD, c));
    c = text("pipe");
    TELL(mkfifo(c, 0600));
    TELL(truncate64(a, 11));
    struct stat *found = put(NULL, sizeof *found);
    TELL(__xstat(VERSION, a, found));
    TELL(found->st_size);
    TELL(__lxstat(VERSION, c, found));
    TELL(S_ISFIFO(found->st_mode));
    TELL(__fxstat(VERSION, 1, found));
    TELL(__fxstatat(VERSION, AT_FDCWD, a, found, 0));
    TELL(found->st_size);
    c = text("named");
    TELL(pthread_setname_np(pthread_self(), c));
    c = text("/azekura-names");
    TELL(mq_open(c, O_RDONLY) >= 0 || errno != EFAULT);
    unsigned char *there = put(NULL, 4);
    TELL(mincore((void *)((size_t)&environ & ~(size_t)4095), 4096, there));
    struct statvfs *system = put(NULL, sizeof *system);
    TELL(statvfs(a, system));
    TELL(system->f_bsize > 0);
    c = text("value");
    TELL(setxattr(a, b, c, 5, 0) == 0 || errno == ENOTSUP);
    c = put(NULL, 64);
    TELL(getxattr(a, b, c, 64) == 5 || errno == ENOTSUP || errno == ENODATA);
    c = text("other");
    TELL(remove(c));
    TELL(fopen(a, "r") != NULL);
    int fd = -1;
    c = text("temporary-XXXXXX");
    TELL((fd = mkstemp(c)) >= 0);
    TELL(access(c, R_OK));
    c = text("directory-XXXXXX");
    TELL(mkdtemp(c) == c);
    TELL(rmdir(c));
    c = put(NULL, 4096);
    TELL(getcwd(c, 4096) == c && *c == '/');
    TELL(memfd_create(a, 0) >= 0);
    if (write(fd, "0123456789", 10) != 10) perror("write");
    long at = 3, to = 20;
    c = put(&at, sizeof at);
    int other = open("copy", O_CREAT | O_RDWR, 0600);
    TELL(sendfile(other, fd, (void *)c, 4));
    TELL(*(long *)c);
    long *end = put(&to, sizeof to);
    TELL(copy_file_range(fd, (void *)c, other, end, 3, 0));
    TELL(*end);
    TELL(*(long *)c);
}

static pid_t child(int state)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(state);
    return child;
}

static void results(void)
{
    int *state = put(NULL, sizeof *state);
    struct rusage *usage = put(NULL, sizeof *usage);
    siginfo_t *signal = put(NULL, sizeof *signal);
    pid_t born = child(3);
    TELL(waitpid(born, state, 0) == born);
    TELL(WEXITSTATUS(*state));
    born = child(4);
    TELL(wait4(born, state, 0, usage) == born);
    TELL(WEXITSTATUS(*state));
    born = child(5);
    TELL(waitid(P_PID, born, signal, WEXITED));
    TELL(signal->si_status);
    char *arguments[] = {text("true"), NULL};
    char **list = put(arguments, sizeof arguments);
    TELL(posix_spawnp(&born, arguments[0], NULL, NULL, list, environ));
    TELL(waitpid(born, state, 0) == born && *state == 0);
    arguments[0] = text("/bin/true");
    list = put(arguments, sizeof arguments);
    sweep();
    born = vfork();
    if (born == 0) {
        execveat(AT_FDCWD, arguments[0], list, environ, 0);
        _exit(99);
    }
    TELL(waitpid(born, state, 0) == born && *state == 0);
    int *ends = put(NULL, 2 * sizeof *ends);
    TELL(pipe(ends));
    TELL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    TELL(ends[0] > 2 && ends[1] > 2);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGUSR1), sigprocmask(SIG_BLOCK, &set, NULL);
    sigset_t *sets = put(&set, sizeof set);
    raise(SIGUSR1);
    TELL(sigwaitinfo(sets, signal));
    TELL(signal->si_signo == SIGUSR1);
    struct timespec *nap = put(&(struct timespec){0, 1000}, sizeof *nap);
    TELL(clock_nanosleep(CLOCK_MONOTONIC, 0, nap, NULL));
    struct itimerval *timer = put(&(struct itimerval){{0, 0}, {1000, 0}}, sizeof *timer);
    TELL(setitimer(ITIMER_REAL, timer, NULL));
    struct itimerval *none = put(NULL, sizeof *none);
    TELL(setitimer(ITIMER_REAL, none, timer));
    TELL(timer->it_value.tv_sec > 900);
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    bind(listener, (void *)&name, length), listen(listener, 5);
    getsockname(listener, (void *)&name, &length), connect(client, (void *)&name, length);
    struct sockaddr_in *peer = put(NULL, sizeof *peer);
    socklen_t *known = put(&length, sizeof length);
    TELL(accept(listener, (void *)peer, known) >= 0);
    TELL(*known);
    TELL(peer->sin_family == AF_INET);
}

int main(void)
{
    char directory[] = "/tmp/azekura-names-XXXXXX";
    if (!mkdtemp(directory) || chdir(directory)) return perror("mkdtemp"), 1;
    far = malloc(4 * MB + 16384), crowd = malloc(6 * MB);
    files();
    results();
    const char *made[] = {"file", "soft", "pipe", "copy"};
    for (int i = 0; i < 4; i++)
        unlink(made[i]);
    fflush(stdout);
    return chdir("/"), execlp("rm", "rm", "-r", directory, NULL);
}
