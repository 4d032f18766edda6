// Waits in each call that receives bytes, and in the calls of ISO C: `calls NAME`. The exit status is the
// number of functions that the recorder's library should intercept but does not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
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
    "recvmsg", "readv", "preadv", "preadv64", "pwritev", "pwritev64", "pthread_setname_np",
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
    int is_lock = !strcmp(name, "timed");
    thrd_t threads[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || mtx_init(&ledger, mtx_timed)) return 101;
    for (int i = 0; i < (is_lock ? 2 : 1); i++)
        thrd_create(&threads[i], is_lock ? clerk : receiver, is_lock && i ? &ledger : NULL);
    for (int i = 0; !is_lock && i < ROUNDS; i++) {
        pause_us(3000);
        if (write(sockets[1], "x", 1) != 1) return 102;
    }
    for (int i = 0; i < (is_lock ? 2 : 1); i++) {
        int result = 0;
        if (thrd_join(threads[i], &result) != thrd_success || result) return 103;
    }
    return missing;
}
