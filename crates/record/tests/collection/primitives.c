// One primitive of C under one load: `primitives PRIMITIVE LOAD`.
//
// A thread sleeps while it holds a lock, so that the verdict does not depend on the number of processors.
// Loads: `contended` (four threads, one lock), `uncontended` (four threads, a lock for each), `pool` (four
// threads that wait for rare jobs), `alone` (no lock: the primitive is the work).
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

// Three waiters prove no thundering herd. With six threads, of which five wait, four of five wake-ups are in
// vain.
enum { MOST_THREADS = 6, ROUNDS = 150 };
static int threads_used = 4;

struct locks {
    pthread_mutex_t mutex;
    pthread_rwlock_t rwlock;
    pthread_spinlock_t spin;
    sem_t semaphore;
    mtx_t iso;
    atomic_int word;
    pthread_mutex_t guard;
    pthread_cond_t freed;
    int is_taken;
    char pad[256];
};

static struct locks locks[MOST_THREADS];
static const char *primitive, *load;
static int sockets[2], jobs, is_over;

static int is(const char *name) { return strcmp(primitive, name) == 0; }

static void sleep_us(long us) {
    struct timespec time = {0, us * 1000};
    nanosleep(&time, NULL);
}

static void futex_lock(atomic_int *word) {
    int seen = 0;
    if (atomic_compare_exchange_strong(word, &seen, 1)) return;
    while (atomic_exchange(word, 2) != 0) syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static void futex_unlock(atomic_int *word) {
    if (atomic_exchange(word, 0) == 2) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void lock(struct locks *l) {
    if (is("mutex")) pthread_mutex_lock(&l->mutex);
    if (is("rwlock")) pthread_rwlock_wrlock(&l->rwlock);
    if (is("spin")) pthread_spin_lock(&l->spin);
    if (is("semaphore")) sem_wait(&l->semaphore);
    if (is("iso")) mtx_lock(&l->iso);
    if (is("futex")) futex_lock(&l->word);
    if (is("condition") || is("herd")) {
        pthread_mutex_lock(&l->guard);
        while (l->is_taken) pthread_cond_wait(&l->freed, &l->guard);
        l->is_taken = 1;
        pthread_mutex_unlock(&l->guard);
    }
}

static void unlock(struct locks *l) {
    if (is("mutex")) pthread_mutex_unlock(&l->mutex);
    if (is("rwlock")) pthread_rwlock_unlock(&l->rwlock);
    if (is("spin")) pthread_spin_unlock(&l->spin);
    if (is("semaphore")) sem_post(&l->semaphore);
    if (is("iso")) mtx_unlock(&l->iso);
    if (is("futex")) futex_unlock(&l->word);
    if (is("condition") || is("herd")) {
        pthread_mutex_lock(&l->guard);
        l->is_taken = 0;
        if (is("herd")) pthread_cond_broadcast(&l->freed);
        else pthread_cond_signal(&l->freed);
        pthread_mutex_unlock(&l->guard);
    }
}

static void take_jobs(void) {
    struct locks *l = &locks[0];
    for (;;) {
        if (is("condition")) {
            pthread_mutex_lock(&l->guard);
            while (jobs == 0 && !is_over) pthread_cond_wait(&l->freed, &l->guard);
            int ends = jobs == 0;
            jobs -= !ends;
            pthread_mutex_unlock(&l->guard);
            if (ends) return;
        } else if (is("semaphore")) {
            sem_wait(&l->semaphore);
            if (is_over) return;
        } else {
            while (atomic_load(&l->word) == 0)
                syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
            if (is_over) return;
            sleep_us(2000);
        }
    }
}

static void compute(void) {
    volatile unsigned long sum = 1;
    for (long i = 0; i < 300000000; i++) sum = sum * 31 + i;
}

static void work_alone(int index) {
    char byte = 0, name[] = "collection-XXXXXX";
    if (is("cpu")) compute();
    if (is("sleep")) sleep_us(500000);
    if (is("disk")) {
        int file = mkstemp(name);
        unlink(name);
        for (int i = 0; i < 100; i++) {
            if (pwrite(file, name, sizeof name, i) < 0) exit(3);
            fsync(file);
        }
    }
    if (is("network"))
        for (int i = 0; i < 60; i++) {
            if (index % 2 == 0 && recv(sockets[0], &byte, 1, 0) < 1) exit(4);
            if (index % 2 == 1) {
                sleep_us(8000);
                if (send(sockets[1], &byte, 1, 0) < 1) exit(5);
            }
        }
}

static void *worker(void *argument) {
    int index = (int)(long)argument;
    char name[16] = "teller-0";
    name[7] += index;
    // A thread with a name is identified by it, others by their function.
    if (is("mutex")) pthread_setname_np(pthread_self(), name);
    if (strcmp(load, "pool") == 0) take_jobs();
    else if (strcmp(load, "alone") == 0) work_alone(index);
    else {
        struct locks *l = &locks[strcmp(load, "contended") == 0 ? 0 : index];
        for (int i = 0; i < ROUNDS; i++) {
            lock(l);
            sleep_us(1000);
            unlock(l);
            sleep_us(50);
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    primitive = arguments[1];
    load = arguments[2];
    if (is("herd")) threads_used = MOST_THREADS;
    int is_pool = strcmp(load, "pool") == 0;
    for (int i = 0; i < threads_used; i++) {
        pthread_mutex_init(&locks[i].mutex, NULL);
        pthread_rwlock_init(&locks[i].rwlock, NULL);
        pthread_spin_init(&locks[i].spin, 0);
        sem_init(&locks[i].semaphore, 0, !is_pool);
        mtx_init(&locks[i].iso, mtx_plain);
        pthread_mutex_init(&locks[i].guard, NULL);
        pthread_cond_init(&locks[i].freed, NULL);
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 2;
    pthread_t threads[MOST_THREADS];
    for (long i = 0; i < threads_used; i++) pthread_create(&threads[i], NULL, worker, (void *)i);
    struct locks *l = &locks[0];
    for (int i = 0; is_pool && i < 50; i++) {
        sleep_us(10000);
        pthread_mutex_lock(&l->guard);
        jobs++;
        pthread_cond_signal(&l->freed);
        pthread_mutex_unlock(&l->guard);
        sem_post(&l->semaphore);
    }
    pthread_mutex_lock(&l->guard);
    is_over = 1;
    pthread_cond_broadcast(&l->freed);
    pthread_mutex_unlock(&l->guard);
    // With other loads, the word is a lock.
    if (is_pool) atomic_store(&l->word, 1);
    if (is_pool) syscall(SYS_futex, &l->word, FUTEX_WAKE_PRIVATE, threads_used, NULL, NULL, 0);
    for (int i = 0; is_pool && i < threads_used; i++) sem_post(&l->semaphore);
    for (int i = 0; i < threads_used; i++) pthread_join(threads[i], NULL);
    return 0;
}
