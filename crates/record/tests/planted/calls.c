// Waits in each call that receives or sends bytes, in the calls of ISO C, and in other calls: `calls NAME`.
// The exit status is the number of functions that the recorder's library should intercept but does not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 20 };

static int sockets[2];
static mtx_t ledger;
static const char *name;

static const char *const HOOKED[] = {
    "thrd_create", "thrd_join", "thrd_sleep", "mtx_lock", "mtx_trylock", "mtx_timedlock",
    "mtx_unlock", "cnd_wait", "cnd_signal", "cnd_broadcast", "cnd_timedwait", "recv", "recvfrom",
    "recvmsg", "readv", "preadv", "preadv64", "pwritev", "pwritev64", "pthread_setname_np", "send",
    "sendto", "sendmsg", "sendfile", "sendfile64", "waitpid", "wait4", "flock", "semop", "semtimedop",
    "sigwait", "sigwaitinfo", "sigtimedwait", "epoll_pwait", "__read_chk", "__pread_chk",
    "__pread64_chk", "__recv_chk", "__poll_chk",
};

static void pause_us(long us) {
    struct timespec time = {0, us * 1000};
    thrd_sleep(&time, NULL);
}

static int receiver(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        char byte = 0;
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        struct sockaddr_storage from;
        socklen_t len = sizeof from;
        long got = 0;
        if (!strcmp(name, "recvfrom")) got = recvfrom(sockets[0], &byte, 1, MSG_WAITALL, (void *)&from, &len);
        if (!strcmp(name, "recvmsg")) got = recvmsg(sockets[0], &message, MSG_WAITALL);
        if (!strcmp(name, "readv")) got = readv(sockets[0], &part, 1);
        if (got != 1 || byte != 'x') return 1;
    }
    return 0;
}

static char block[100000];

static long send_part(int file, size_t left) {
    struct iovec part = {block, left};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (!strcmp(name, "sendto")) return sendto(sockets[0], block, left, 0, NULL, 0);
    if (!strcmp(name, "sendmsg")) return sendmsg(sockets[0], &message, 0);
    if (!strcmp(name, "sendfile")) return sendfile(sockets[0], file, &(off_t){0}, left);
    return send(sockets[0], block, left, 0);
}

static int sender(void *unused) {
    (void)unused;
    int file = memfd_create("block", 0);
    if (write(file, block, sizeof block) != sizeof block) return 1;
    for (size_t left = ROUNDS * sizeof block; left;) {
        long sent = send_part(file, left < sizeof block ? left : sizeof block);
        if (sent <= 0) return 1;
        left -= sent;
    }
    return 0;
}

static int semaphore;

static int blocked(void *unused) {
    (void)unused;
    int file = open("/proc/self/exe", O_RDONLY), epoll = epoll_create1(0);
    struct epoll_event event;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    for (int i = 0; i < ROUNDS; i++) {
        struct timespec time = {0, 3000000};
        struct sembuf take = {0, -1, 0}, give = {0, 1, 0};
        if (!strcmp(name, "epoll_pwait")) epoll_pwait(epoll, &event, 1, 3, NULL);
        if (!strcmp(name, "sigtimedwait")) sigtimedwait(&signals, NULL, &time);
        if (!strcmp(name, "flock")) flock(file, LOCK_EX);
        if (!strcmp(name, "semop")) semop(semaphore, &take, 1);
        if (!strcmp(name, "waitpid")) {
            pid_t child = fork();
            if (!child) pause_us(3000), _exit(0);
            if (waitpid(child, NULL, 0) != child) return 1;
        }
        pause_us(2000);
        if (!strcmp(name, "flock")) flock(file, LOCK_UN);
        if (!strcmp(name, "semop")) semop(semaphore, &give, 1);
        pause_us(500);
    }
    return 0;
}

static int clerk(void *unused) {
    struct timespec never;
    for (int i = 0; i < ROUNDS; i++) {
        timespec_get(&never, TIME_UTC);
        never.tv_sec += 3600;
        if (unused ? mtx_timedlock(&ledger, &never) : mtx_lock(&ledger)) return 1;
        pause_us(2000);
        mtx_unlock(&ledger);
        pause_us(500); // so that the other thread can take the mutex
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count != 2) return 100;
    name = arguments[1];
    int missing = 0;
    for (unsigned i = 0; i < sizeof HOOKED / sizeof *HOOKED; i++) {
        Dl_info found;
        void *function = dlsym(RTLD_DEFAULT, HOOKED[i]);
        if (!function || !dladdr(function, &found) || strstr(found.dli_fname, "libc.so")) {
            fprintf(stderr, "%s is the C library's\n", HOOKED[i]);
            missing++;
        }
    }
    int is_lock = !strcmp(name, "timed"), sends = !strncmp(name, "send", 4);
    int receives = !strncmp(name, "rec", 3) || !strcmp(name, "readv");
    int others = !is_lock && !sends && !receives;
    semaphore = semget(IPC_PRIVATE, 1, 0600);
    semctl(semaphore, 0, SETVAL, 1);
    thrd_start_t start = is_lock ? clerk : sends ? sender : receives ? receiver : blocked;
    int started = is_lock || others ? 2 : 1;
    thrd_t threads[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || mtx_init(&ledger, mtx_timed)) return 101;
    for (int i = 0; i < started; i++)
        thrd_create(&threads[i], start, is_lock && i ? &ledger : NULL);
    for (int i = 0; receives && i < ROUNDS; i++) {
        pause_us(3000);
        if (write(sockets[1], "x", 1) != 1) return 102;
    }
    for (size_t left = sends ? ROUNDS * sizeof block : 0; left;) {
        static char into[sizeof block];
        pause_us(1000);
        long got = read(sockets[1], into, sizeof into);
        if (got <= 0) return 104;
        left -= got;
    }
    for (int i = 0; i < started; i++) {
        int result = 0;
        if (thrd_join(threads[i], &result) != thrd_success || result) return 103;
    }
    semctl(semaphore, 0, IPC_RMID);
    return missing;
}
