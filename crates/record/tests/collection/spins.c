// Spin locks made of atomic operations: `spins LOCK USE`.
//
// LOCK: `tas` (exchanges until the lock is free), `ttas` (reads until it is free, then exchanges, with
// pauses), `cas` (compare-and-swap until it succeeds), `ticket` (reads until its number is served), `yield`
// (exchanges, then yields). USE: `contended` (all threads take one lock and work under it), `uncontended`
// (each thread takes its own lock for a few instructions). `counter alone` adds to one counter without a
// lock, between long computations.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { THREADS = 3 };

struct lock {
    atomic_uint word, serving;
    char pad[120];
};

static struct lock locks[THREADS];
static atomic_ulong counter;
static volatile unsigned long results[THREADS][16];
static const char *kind;
static int is_contended, is_counter;
static double seconds = 1.5;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

__attribute__((noinline)) static void tas_lock(struct lock *l) {
    while (atomic_exchange(&l->word, 1) != 0) {}
}

__attribute__((noinline)) static void ttas_lock(struct lock *l) {
    do {
        while (atomic_load_explicit(&l->word, memory_order_relaxed) != 0) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (atomic_exchange(&l->word, 1) != 0);
}

__attribute__((noinline)) static void cas_lock(struct lock *l) {
    unsigned expected = 0;
    while (!atomic_compare_exchange_weak(&l->word, &expected, 1)) expected = 0;
}

__attribute__((noinline)) static void ticket_lock(struct lock *l) {
    unsigned own = atomic_fetch_add(&l->word, 1);
    while (atomic_load(&l->serving) != own) {}
}

__attribute__((noinline)) static void yield_lock(struct lock *l) {
    while (atomic_exchange(&l->word, 1) != 0) sched_yield();
}

static void lock(struct lock *l) {
    switch (kind[0]) {
    case 'c': cas_lock(l); break;
    case 'y': yield_lock(l); break;
    default:
        if (kind[1] == 't') ttas_lock(l);
        else if (kind[1] == 'i') ticket_lock(l);
        else tas_lock(l);
    }
}

static void unlock(struct lock *l) {
    if (kind[1] == 'i') atomic_fetch_add(&l->serving, 1);
    else atomic_store(&l->word, 0);
}

__attribute__((noinline)) static unsigned long compute(unsigned long seed, int turns) {
    for (int i = 0; i < turns; i++) seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return seed;
}

static void *worker(void *argument) {
    long own = (long)argument;
    struct lock *l = &locks[is_contended ? 0 : own];
    double end = now() + seconds;
    unsigned long seed = own;
    while (now() < end) {
        for (int i = 0; i < 20; i++) {
            if (is_counter) {
                atomic_fetch_add(&counter, 1);
                seed = compute(seed, 200);
                continue;
            }
            lock(l);
            seed = compute(seed, is_contended ? 4000 : 100);
            unlock(l);
            if (!is_contended) seed = compute(seed, 400);
        }
    }
    results[own][0] = seed;
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    kind = arguments[1];
    is_contended = strcmp(arguments[2], "contended") == 0;
    is_counter = strcmp(kind, "counter") == 0;
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, worker, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
