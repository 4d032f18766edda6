/* Waits for descriptors with all their arguments in a block that another thread pages out during each wait:
 * the time limit and a signal end each wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) return printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)), \
    1; } while (0)

enum { MB = 1 << 20, TIME = 100 /* milliseconds */ };
static unsigned char *far, *crowd;
static pthread_t waiter;
static int interrupts, ends; /* accessed atomically */

/* Pages out `far` again and again, and interrupts the wait each time. */
static void *sweep(void *none)
{
    while (!__atomic_load_n(&ends, __ATOMIC_SEQ_CST)) {
        for (size_t i = 0; i < 6 * MB; i += 4096)
            crowd[i]++;
        if (__atomic_load_n(&interrupts, __ATOMIC_SEQ_CST)) pthread_kill(waiter, SIGUSR1);
    }
    return none;
}

static void nothing(int signal) { (void)signal; }

static struct pollfd *polled;
static fd_set *set;
static struct timespec *limit;
static sigset_t *mask;
static struct epoll_event *events;

/* Each wait with an empty pipe. A negative time waits for ever. */
static int waits(int how, int fd, int queue, int time)
{
    *polled = (struct pollfd){fd, POLLIN, 77};
    *limit = (struct timespec){0, time * 1000000L};
    FD_ZERO(set);
    FD_SET(fd, set);
    sigemptyset(mask);
    struct timeval *shorter = (struct timeval *)limit;
    struct timespec *until = time < 0 ? NULL : limit;
    switch (how) {
    case 0: return poll(polled, 1, time);
    case 1: return ppoll(polled, 1, until, mask);
    case 2: return syscall(SYS_ppoll, polled, 1L, until, mask, 8L);
    case 3: return epoll_wait(queue, events, 10, time);
    case 4: return epoll_pwait(queue, events, 10, time, mask);
    case 5: return syscall(SYS_epoll_pwait, queue, events, 10, time, mask, 8L);
    case 6: return pselect(fd + 1, set, NULL, NULL, until, mask);
    default:
        shorter->tv_usec = time * 1000L;
        return select(fd + 1, set, NULL, NULL, time < 0 ? NULL : shorter);
    }
}

static int datagrams(void)
{
    int pair[2];
    struct mmsghdr *all = (struct mmsghdr *)far;
    struct iovec *parts = (struct iovec *)(far + MB);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && send(pair[0], "first", 6, 0) == 6);
    memset(all, 0, 4 * sizeof *all);
    for (int i = 0; i < 4; i++) {
        parts[i] = (struct iovec){far + 2 * MB + i * 100, 100};
        all[i].msg_hdr.msg_iov = &parts[i], all[i].msg_hdr.msg_iovlen = 1;
    }
    /* The limit has passed when the first message has arrived; there is no second one. */
    *limit = (struct timespec){0, 1};
    MUST(recvmmsg(pair[1], all, 4, 0, limit) == 1 && all[0].msg_len == 6);
    MUST(limit->tv_sec == 0 && limit->tv_nsec == 0 && strcmp((char *)far + 2 * MB, "first") == 0);
    *limit = (struct timespec){0, 1000000000};
    MUST(recvmmsg(pair[1], all, 4, MSG_DONTWAIT, limit) == -1 && errno == EINVAL);
    close(pair[0]), close(pair[1]);
    return 0;
}

int main(void)
{
    int pipes[2], queue = epoll_create1(0);
    pthread_t sweeper;
    struct sigaction action = {.sa_handler = nothing};
    struct epoll_event event = {.events = EPOLLIN};
    alarm(60); /* instead of a wait that never ends */
    far = malloc(4 * MB), crowd = calloc(1, 6 * MB);
    memset(far, 1, 4 * MB);
    polled = (struct pollfd *)far, set = (fd_set *)(far + MB), mask = (sigset_t *)(far + 3 * MB);
    limit = (struct timespec *)(far + 2 * MB + 4096), events = (struct epoll_event *)(far + 3 * MB + 4096);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0 && pipe(pipes) == 0);
    MUST(epoll_ctl(queue, EPOLL_CTL_ADD, pipes[0], &event) == 0);
    waiter = pthread_self();
    MUST(pthread_create(&sweeper, NULL, sweep, NULL) == 0);
    for (int how = 0; how < 8; how++) {
        MUST(waits(how, pipes[0], queue, TIME) == 0);
        if (how < 3) MUST(polled->revents == 0);
        if (how > 5) MUST(!FD_ISSET(pipes[0], set));
    }
    __atomic_store_n(&interrupts, 1, __ATOMIC_SEQ_CST);
    for (int how = 0; how < 8; how++)
        MUST(waits(how, pipes[0], queue, -1) == -1 && errno == EINTR);
    __atomic_store_n(&interrupts, 0, __ATOMIC_SEQ_CST);
    MUST(write(pipes[1], "x", 1) == 1);
    for (int how = 0; how < 8; how++) {
        MUST(waits(how, pipes[0], queue, -1) == 1);
        if (how < 3) MUST(polled->revents == POLLIN);
        if (how > 2 && how < 6) MUST(events->events == EPOLLIN);
        if (how > 5) MUST(FD_ISSET(pipes[0], set));
    }
    if (datagrams()) return 1;
    __atomic_store_n(&ends, 1, __ATOMIC_SEQ_CST);
    MUST(pthread_join(sweeper, NULL) == 0);
    puts("well");
    return 0;
}
