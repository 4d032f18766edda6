// A program that is drawn from a seed: threads, locks, signals, closed and reused descriptors, forks,
// programs started by `exec`, and ends of every kind. Its output and its end depend on the seed only.
#define _GNU_SOURCE
#include "planted.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
static unsigned long state;
static pthread_mutex_t mutexes[3] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
                                     PTHREAD_MUTEX_INITIALIZER};
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t queue_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static int queued;
static volatile sig_atomic_t signals;
static char path[64];

static unsigned long drawn(unsigned long below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 20) % below;
}
static void tell(const char *what, long value) {
    char line[80];
    int length = snprintf(line, sizeof line, "%s %ld\n", what, value);
    (void)!write(1, line, length);
}
static void on_signal(int number) {
    (void)number;
    signals++;
}
static void *locker(void *which) {
    for (int i = 0; i < 60; i++) {
        pthread_mutex_lock(&mutexes[(long)which % 3]);
        compute(2000);
        if (i % 16 == 0)
            sched_yield();
        pthread_mutex_unlock(&mutexes[(long)which % 3]);
        if (i % 4 == 0) {
            pthread_rwlock_rdlock(&table_lock);
            compute(500);
            pthread_rwlock_unlock(&table_lock);
        } else if (i % 9 == 0) {
            pthread_rwlock_wrlock(&table_lock);
            pthread_rwlock_unlock(&table_lock);
        }
    }
    if ((long)which == 1)
        pthread_exit(NULL);
    return NULL;
}
static void *taker(void *unused) {
    pthread_mutex_lock(&queue_mutex);
    while (queued == 0)
        pthread_cond_wait(&queue_filled, &queue_mutex);
    queued--;
    pthread_mutex_unlock(&queue_mutex);
    return unused;
}
static void *sleeper(void *unused) {
    for (;;)
        pause();
    return unused;
}
static void threads(void) { run_one(2 + (int)drawn(3), locker); }
static void handed_over(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, taker, NULL);
    pthread_mutex_lock(&queue_mutex);
    queued++;
    pthread_cond_signal(&queue_filled);
    pthread_mutex_unlock(&queue_mutex);
    pthread_join(thread, NULL);
}
static void cancelled(void) {
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, sleeper, NULL);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    tell("cancelled", result == PTHREAD_CANCELED);
}
static void signalled(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, locker, (void *)2);
    for (int i = 0; i < 5; i++) {
        pthread_kill(thread, SIGUSR1);
        pthread_mutex_lock(&mutexes[2]);
        pthread_mutex_unlock(&mutexes[2]);
    }
    pthread_join(thread, NULL);
    raise(SIGUSR1);
    tell("signalled", signals > 0);
}
static void descriptors(void) {
    switch (drawn(4)) {
    case 0: closefrom(3); break;
    case 1: close_range(3, ~0U, 0); break;
    case 2: dup2(1, 3 + (int)drawn(20)); break;
    default: close(3 + (int)drawn(20));
    }
    char found[64] = "";
    int file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    for (int i = 0; i < 4; i++)
        (void)!write(file, "whole\n", 6);
    tell("descriptor", file);
    tell("bytes", pread(file, found, sizeof found, 0));
    if (drawn(2))
        close(file);
}
static void rest(int depth);
static void child(int depth, int runs_again) {
    unsigned long seed = drawn(1000000) + 1;
    pid_t process = fork();
    if (process == 0) {
        if (runs_again) {
            char number[32], deep[32];
            snprintf(number, sizeof number, "%lu", seed);
            snprintf(deep, sizeof deep, "%d", depth + 1);
            execl("/proc/self/exe", "random", number, deep, path, NULL);
            _exit(99);
        }
        state = seed;
        rest(depth + 1);
        _exit(0);
    }
    int status = 0;
    while (waitpid(process, &status, 0) < 0) {
    }
    tell(runs_again ? "program" : "child", status & 0xff7f);
}
static void ended(int how) {
    switch (how) {
    case 0: exit(3);
    case 1: _exit(4);
    case 2: signal(SIGTERM, SIG_DFL), raise(SIGTERM); break;
    case 3: kill(getpid(), SIGKILL); break;
    case 4: abort();
    }
}
static void rest(int depth) {
    int steps = 2 + (int)drawn(4);
    for (int i = 0; i < steps; i++) {
        tell("step", i);
        switch (drawn(7)) {
        case 0: threads(); break;
        case 1: handed_over(); break;
        case 2: cancelled(); break;
        case 3: signalled(); break;
        case 4: descriptors(); break;
        default:
            if (depth < 2)
                child(depth, (int)drawn(2));
        }
    }
    ended((int)drawn(12));
}
int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    int depth = count > 2 ? atoi(arguments[2]) : 0;
    state = strtoul(arguments[1], NULL, 10) * 0x9e3779b97f4a7c15UL | 1;
    if (count > 3)
        snprintf(path, sizeof path, "%s", arguments[3]);
    else
        snprintf(path, sizeof path, "random-%d.txt", (int)getpid());
    if (depth == 0)
        closefrom(3);
    rest(depth);
    if (depth == 0)
        unlink(path);
    return 0;
}
