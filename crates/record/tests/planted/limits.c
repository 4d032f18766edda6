// A program with limits. Prints the results of calls, which must be equal to those without the recorder.
#define _GNU_SOURCE
#include "planted.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <semaphore.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
static pthread_mutex_t limit_mutex = PTHREAD_MUTEX_INITIALIZER;
static sem_t semaphore;
static int pipes[2];
static void *worker(void *unused) {
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&limit_mutex);
        work_us(500);
        pthread_mutex_unlock(&limit_mutex);
    }
    return NULL;
}
// Never waits: the semaphore is free in each round.
static void *canceled(void *is_timed) {
    struct timespec until = {.tv_sec = 1L << 32};
    for (;;) {
        if (is_timed)
            sem_timedwait(&semaphore, &until);
        else
            sem_wait(&semaphore);
        sem_post(&semaphore);
    }
}
static void *allocator(void *unused) {
    puts(malloc(400 << 20) ? "allocated" : "no memory");
    return NULL;
}
// Maps memory until the limit, and prints how much there is less than the limit permits, in units of 128 MB.
static void *mapper(void *megabytes) {
    long left = (long)megabytes;
    while (mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        left--;
    printf("%ld\n", left / 128);
    return NULL;
}
static void *ends_with_lock(void *mutex) {
    pthread_mutex_lock(mutex);
    return NULL;
}
// Locks a robust mutex after its owner's end, and again after it has become unrecoverable.
static void lock_robust(void) {
    pthread_mutexattr_t attributes;
    pthread_mutex_t mutex;
    pthread_t thread;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex, &attributes);
    pthread_create(&thread, NULL, ends_with_lock, &mutex);
    pthread_join(thread, NULL);
    printf("%d ", pthread_mutex_lock(&mutex));
    printf("%d ", pthread_mutex_unlock(&mutex));
    for (int i = 0; i < 3; i++)
        printf("%d ", pthread_mutex_lock(&mutex));
    puts("");
}
static void *reader(void *is_strict) {
    char byte;
    if (is_strict)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    for (int i = 0; i < 20; i++)
        read(pipes[0], &byte, 1);
    syscall(SYS_exit, 0);
    return NULL;
}
static void feed(void) {
    for (int i = 0; i < 20; i++) {
        work_us(1000);
        write(pipes[1], "x", 1);
    }
}
// Permits system calls of the program and of the C library's threads, but none of a recorder.
static void restrict_calls(int flags) {
#define PERMIT(call) BPF_JUMP(BPF_JMP + BPF_JEQ + BPF_K, SYS_##call, 0, 1), \
                     BPF_STMT(BPF_RET + BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD + BPF_W + BPF_ABS, offsetof(struct seccomp_data, nr)),
        PERMIT(read), PERMIT(write), PERMIT(exit), PERMIT(exit_group), PERMIT(futex), PERMIT(madvise),
        PERMIT(rt_sigprocmask), PERMIT(munmap), PERMIT(clone3), PERMIT(clone), PERMIT(mmap),
        PERMIT(mprotect), PERMIT(set_robust_list), PERMIT(rseq), PERMIT(clock_nanosleep), PERMIT(brk),
        PERMIT(wait4), BPF_STMT(BPF_RET + BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (flags < 0)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    else
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}
static void limited(int resource, long bytes, char *name, char *then) {
    struct rlimit limit = {bytes, bytes};
    setrlimit(resource, &limit);
    execl("/proc/self/exe", name, then, NULL);
}
int main(int count, char **arguments) {
    const char *kind = arguments[1];
    pthread_t thread;
    void *result = NULL;
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(120);
    sem_init(&semaphore, 0, 1);
    pipe(pipes);
    if (!strcmp(kind, "cancel"))
        for (long is_timed = 0; is_timed < 2; is_timed++) {
            pthread_create(&thread, NULL, canceled, (void *)is_timed);
            work_us(20000);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            printf("%d\n", result == PTHREAD_CANCELED);
        }
    if (!strcmp(kind, "times")) {
        run_one(2, worker);
        pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
        struct timespec never = {.tv_nsec = 2000000000}, late = {.tv_sec = 1L << 32};
        printf("%d ", pthread_mutex_clocklock(&limit_mutex, 77, &late));
        printf("%d ", pthread_rwlock_timedrdlock(&lock, &never));
        printf("%d ", pthread_rwlock_timedwrlock(&lock, &never));
        printf("%d ", sem_timedwait(&semaphore, &never));
        printf("%d ", sem_clockwait(&semaphore, 77, &late));
        printf("%d\n", pthread_mutex_timedlock(&limit_mutex, &never));
    }
    if (!strcmp(kind, "files"))
        limited(RLIMIT_FSIZE, 512, arguments[0], "work");
    if (!strcmp(kind, "memory"))
        limited(RLIMIT_AS, 700 << 20, arguments[0], "allocate");
    if (!strncmp(kind, "own", 3)) {
        struct rlimit limit = {600 << 20, 600 << 20};
        run_one(3, worker);
        if (!strcmp(kind, "own memory"))
            printf("%d\n", setrlimit(RLIMIT_AS, &limit));
        if (!strcmp(kind, "own memory by number"))
            printf("%ld\n", syscall(SYS_prlimit64, 0, RLIMIT_AS, &limit, NULL));
        mapper((void *)600);
        printf("%d\n", setrlimit(RLIMIT_AS, &limit));
        run_one(3, worker);
    }
    if (!strcmp(kind, "robust"))
        lock_robust();
    if (!strcmp(kind, "work"))
        run_one(3, worker);
    if (!strcmp(kind, "allocate"))
        run_one(1, allocator);
    if (!strcmp(kind, "strict")) {
        pthread_create(&thread, NULL, reader, "strict");
        feed();
        pthread_join(thread, NULL);
    }
    if (!strcmp(kind, "filter") || !strcmp(kind, "filter by number")) {
        pthread_create(&thread, NULL, worker, NULL);
        restrict_calls(strchr(kind, ' ') ? SECCOMP_FILTER_FLAG_TSYNC : -1);
        pthread_t other;
        pthread_create(&other, NULL, reader, NULL);
        feed();
        pthread_join(other, NULL);
        pthread_join(thread, NULL);
        int child = fork(), status = 0;
        if (child == 0) {
            run_one(2, worker);
            _exit(3);
        }
        waitpid(child, &status, 0);
        printf("child %d\n", WEXITSTATUS(status));
    }
    puts("end");
    return 6;
}
