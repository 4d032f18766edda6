// Waits in each call that receives or sends bytes, in the calls of ISO C, and in other calls: `calls NAME`.
// The exit status is the number of functions that the recorder's library should intercept but does not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
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
    "__pread64_chk", "__recv_chk", "__poll_chk", "fcntl", "fcntl64", "lockf", "lockf64", "mq_receive",
    "mq_timedreceive", "mq_send", "mq_timedsend", "connect", "msgrcv", "msgsnd", "sleep", "pause",
    "sigsuspend", "wait", "wait3", "waitid", "__ppoll_chk", "preadv2", "preadv64v2", "pwritev2",
    "pwritev64v2", "recvmmsg", "sendmmsg", "sync_file_range",
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
static mqd_t queue;
static struct sockaddr_un server = {.sun_family = AF_UNIX};

// Locks a byte of the file, which this process or its child may hold.
static int lock_byte(int file, off_t byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (strcmp(name, "lockf")) return fcntl(file, F_SETLKW, &lock);
    return lseek(file, byte, SEEK_SET) != byte || lockf(file, F_LOCK, 1);
}

// Waits for a lock of a byte that a child holds for some time.
static int lock_after_child(int file, off_t byte) {
    int ready[2];
    char is_ready = 0;
    if (pipe(ready)) return 1;
    pid_t child = fork();
    if (!child) {
        int failed = lock_byte(file, byte) || write(ready[1], "x", 1) != 1;
        pause_us(3000);
        _exit(failed);
    }
    int status = 1;
    close(ready[1]); // the read returns also if the child fails
    int failed = read(ready[0], &is_ready, 1) != 1 || lock_byte(file, byte);
    struct flock free = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    fcntl(file, F_SETLK, &free);
    close(ready[0]);
    return waitpid(child, &status, 0) != child || status || failed;
}

// Waits for the lock of another open file description, which the other thread holds for some time.
static int lock_of_description(int file) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    int failed = fcntl(file, F_OFD_SETLKW, &lock);
    pause_us(3000);
    lock.l_type = F_UNLCK;
    return fcntl(file, F_OFD_SETLK, &lock) || failed;
}

// The layout of the kernel's futex_waitv, which the headers of older systems lack.
static struct {
    uint64_t value, address;
    uint32_t flags, reserved;
} word_list[2];
static uint32_t words[2], pi_lock;

// Waits for one of two words until a time.
static int wait_for_words(void) {
    enum { CALL = 449, WORDS_OF_32_BITS = 2 };
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 3000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    for (int i = 0; i < 2; i++) {
        word_list[i].address = (uintptr_t)&words[i];
        word_list[i].flags = WORDS_OF_32_BITS;
    }
    return syscall(CALL, word_list, 2, 0, &until, CLOCK_MONOTONIC) != -1;
}

// Waits for a lock in the kernel that the other thread holds.
static int lock_in_kernel(void) {
    enum { LOCK_PI2 = 13, UNLOCK_PI = 7 };
    long failed = syscall(SYS_futex, &pi_lock, LOCK_PI2, 0, NULL, NULL, 0);
    pause_us(3000);
    return syscall(SYS_futex, &pi_lock, UNLOCK_PI, 0, NULL, NULL, 0) || failed;
}

static int connect_once(void) {
    int made = socket(AF_UNIX, SOCK_STREAM, 0);
    int failed = connect(made, (struct sockaddr *)&server, sizeof server);
    return close(made) || failed;
}

static int shared;

static int blocked(void *second) {
    char path[64], message[8] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", shared);
    int file = open("/proc/self/exe", O_RDONLY), epoll = epoll_create1(0), own = open(path, O_RDWR);
    struct epoll_event event;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    for (int i = 0; i < ROUNDS; i++) {
        struct timespec time = {0, 3000000};
        struct sembuf take = {0, -1, 0}, give = {0, 1, 0};
        int failed = 0;
        if (!strcmp(name, "epoll_pwait")) epoll_pwait(epoll, &event, 1, 3, NULL);
        if (!strcmp(name, "sigtimedwait")) sigtimedwait(&signals, NULL, &time);
        if (!strcmp(name, "flock")) flock(file, LOCK_EX);
        if (!strcmp(name, "semop")) semop(semaphore, &take, 1);
        if (!strcmp(name, "fcntl") || !strcmp(name, "lockf")) failed = lock_after_child(own, second != NULL);
        if (!strcmp(name, "description")) failed = lock_of_description(own);
        if (!strcmp(name, "mq_receive")) failed = mq_receive(queue, message, sizeof message, NULL) < 0;
        if (!strcmp(name, "mq_send")) failed = mq_send(queue, message, sizeof message, 0);
        if (!strcmp(name, "connect")) failed = connect_once();
        if (!strcmp(name, "futex_waitv")) failed = wait_for_words();
        if (!strcmp(name, "pi lock")) failed = lock_in_kernel();
        if (!strcmp(name, "sleep") && i == 0) failed = sleep(1);
        if (!strncmp(name, "wait", 4)) {
            pid_t child = fork();
            if (!child) pause_us(3000), _exit(0);
            siginfo_t ended;
            if (!strcmp(name, "waitpid")) failed = waitpid(child, NULL, 0) != child;
            if (!strcmp(name, "waitid")) failed = waitid(P_PID, child, &ended, WEXITED);
            if (!strcmp(name, "wait")) failed = wait(NULL) < 0; // the other thread's child, perhaps
        }
        if (failed) return 1;
        pause_us(2000);
        if (!strcmp(name, "flock")) flock(file, LOCK_UN);
        if (!strcmp(name, "semop")) semop(semaphore, &give, 1);
        pause_us(500);
    }
    return 0;
}

// Opens the queue or the socket of the threads that are blocked.
static int open_for_blocked(void) {
    static char path[64];
    struct mq_attr one = {.mq_maxmsg = 1, .mq_msgsize = 8};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    shared = memfd_create("shared", 0);
    snprintf(path, sizeof path, "/azekura-%d", getpid());
    snprintf(server.sun_path + 1, sizeof server.sun_path - 1, "azekura-%d", getpid());
    if (!strncmp(name, "mq_", 3)) {
        queue = mq_open(path, O_CREAT | O_RDWR, 0600, &one);
        if (queue < 0 || mq_unlink(path)) return -1;
    }
    return bind(listener, (struct sockaddr *)&server, sizeof server) || listen(listener, 0) ? -1 : listener;
}

// Serves the threads that are blocked, slowly.
static int serve_blocked(int listener) {
    char message[8] = "";
    for (int i = 0; i < 2 * ROUNDS; i++) {
        int failed = 0;
        if (!strcmp(name, "mq_receive")) failed = mq_send(queue, message, sizeof message, 0);
        if (!strcmp(name, "mq_send")) failed = mq_receive(queue, message, sizeof message, NULL) < 0;
        if (!strcmp(name, "connect")) {
            int peer = accept(listener, NULL, NULL);
            failed = peer < 0 || close(peer);
        }
        if (failed) return 1;
        if (!strncmp(name, "mq_", 3) || !strcmp(name, "connect")) pause_us(3000);
    }
    return 0;
}

static int clerk(void *is_timed) {
    struct timespec never;
    for (int i = 0; i < ROUNDS; i++) {
        timespec_get(&never, TIME_UTC);
        never.tv_sec += 3600;
        if (is_timed ? mtx_timedlock(&ledger, &never) : mtx_lock(&ledger)) return 1;
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
    int listener = others ? open_for_blocked() : 0;
    if (listener < 0) return 105;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || mtx_init(&ledger, mtx_timed)) return 101;
    for (int i = 0; i < started; i++)
        thrd_create(&threads[i], start, i ? &ledger : NULL);
    if (others && serve_blocked(listener)) return 106;
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
