// Threads that sleep on objects of their own, in several arrangements: `queues ARRANGEMENT OBJECT THREADS`.
//
// Arrangements: `lock` (a queue lock: the holder wakes the next waiter), `pool` (rare jobs from the main
// thread), `cascade` (a pool in which a woken thread wakes the next one), `results` (the main thread gives
// out one job at a time and waits for its result), `pipeline` (each stage wakes the next one), `ring`
// (bounded stages: each stage also waits until the next one accepts). OBJECT is the object that a thread
// sleeps on: `semaphore`, `condition` or `futex`. Threads sleep instead of computing.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16, ROUNDS = 120 };

struct sleeper {
    sem_t semaphore;
    pthread_mutex_t guard;
    pthread_cond_t woken;
    atomic_int word;
    int is_woken;
    char pad[128];
};

static struct sleeper sleepers[MOST + 1], consents[MOST + 1];
static const char *arrangement, *object;
static int count;
static atomic_int is_over;

static int is(const char *name) { return strcmp(arrangement, name) == 0; }

static void sleep_us(long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

__attribute__((noinline)) static void rest(struct sleeper *s) {
    if (object[0] == 's') sem_wait(&s->semaphore);
    else if (object[0] == 'c') {
        pthread_mutex_lock(&s->guard);
        while (!s->is_woken) pthread_cond_wait(&s->woken, &s->guard);
        s->is_woken--;
        pthread_mutex_unlock(&s->guard);
    } else {
        int seen;
        for (;;) {
            while ((seen = atomic_load(&s->word)) == 0)
                syscall(SYS_futex, &s->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
            if (atomic_compare_exchange_strong(&s->word, &seen, seen - 1)) return;
        }
    }
}

__attribute__((noinline)) static void wake(struct sleeper *s) {
    if (object[0] == 's') sem_post(&s->semaphore);
    else if (object[0] == 'c') {
        pthread_mutex_lock(&s->guard);
        s->is_woken++;
        pthread_cond_signal(&s->woken);
        pthread_mutex_unlock(&s->guard);
    } else {
        atomic_fetch_add(&s->word, 1);
        syscall(SYS_futex, &s->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

// The queue lock. A mutex that is held for a few instructions protects its state.
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;
static int is_taken, first, last, waiting[MOST + 1];

static void acquire(int own) {
    pthread_mutex_lock(&inner);
    if (!is_taken) {
        is_taken = 1;
        pthread_mutex_unlock(&inner);
        return;
    }
    waiting[last++ % (MOST + 1)] = own;
    pthread_mutex_unlock(&inner);
    rest(&sleepers[own]); // the releasing thread passes the lock to this one
}

static void release(void) {
    pthread_mutex_lock(&inner);
    int next = first == last ? -1 : waiting[first++ % (MOST + 1)];
    if (next < 0) is_taken = 0;
    pthread_mutex_unlock(&inner);
    if (next >= 0) wake(&sleepers[next]);
}

static void *worker(void *argument) {
    int own = (int)(long)argument;
    if (is("lock"))
        for (int i = 0; i < ROUNDS; i++) {
            acquire(own);
            sleep_us(300 + 3000 / count);
            release();
            sleep_us(100 * own);
        }
    else if (is("private"))
        for (int i = 0; i < ROUNDS; i++) sleep_us(2000);
    else
        for (;;) {
            rest(&sleepers[own]);
            if (is_over) return NULL;
            if (is("cascade") && own + 1 < count) wake(&sleepers[own + 1]);
            sleep_us(1000);
            if (is("results")) wake(&sleepers[MOST]);
            if (is("pipeline") && own + 1 < count) wake(&sleepers[own + 1]);
            if (is("ring")) {
                wake(&consents[own]);
                if (own + 1 < count) {
                    rest(&consents[own + 1]);
                    wake(&sleepers[own + 1]);
                }
            }
        }
    return NULL;
}

int main(int arguments, char **argument) {
    if (arguments != 4) return 2;
    arrangement = argument[1];
    object = argument[2];
    count = atoi(argument[3]);
    for (int i = 0; i <= MOST; i++)
        for (int j = 0; j < 2; j++) {
            struct sleeper *s = j ? &consents[i] : &sleepers[i];
            sem_init(&s->semaphore, 0, 0);
            pthread_mutex_init(&s->guard, NULL);
            pthread_cond_init(&s->woken, NULL);
        }
    for (int i = 0; i < count; i++) wake(&consents[i]);
    pthread_t threads[MOST];
    for (long i = 0; i < count; i++) pthread_create(&threads[i], NULL, worker, (void *)i);
    if (!is("lock") && !is("private")) {
        for (int i = 0; i < 60; i++) {
            if (is("results")) {
                wake(&sleepers[i % count]);
                rest(&sleepers[MOST]);
            } else {
                sleep_us(6000);
                if (is("ring")) rest(&consents[0]);
                wake(&sleepers[is("pool") ? i % count : 0]);
            }
        }
        sleep_us(100000);
        is_over = 1;
        for (int i = 0; i < count; i++) wake(&sleepers[i]);
    }
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    return 0;
}
