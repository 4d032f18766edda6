/* Mutexes, condition variables, semaphores, barriers and read-write locks in a block that another thread
 * pages out all the time. Threads take turns by each of them. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { MB = 1 << 20, TURNS = 1500, THREADS = 3 };

/* Each object is in its own pages of far memory, which have 256 KiB. */
struct locks {
    _Alignas(MB / 2) pthread_mutex_t mutex;
    _Alignas(MB / 2) pthread_cond_t turned;
    _Alignas(MB / 2) sem_t free;
    _Alignas(MB / 2) pthread_rwlock_t shared;
    _Alignas(MB / 2) pthread_barrier_t all;
    _Alignas(MB / 2) long turn, sum, counted;
};

static struct locks *locks;
static unsigned char *volatile crowd;
static atomic_int ends;

static void *sweep(void *unused)
{
    (void)unused;
    while (!ends)
        for (size_t i = 0; i < 6 * MB && !ends; i += 4096)
            crowd[i]++;
    return NULL;
}

static void *take_turns(void *argument)
{
    long me = (long)argument;
    pthread_barrier_wait(&locks->all);
    for (int i = 0; i < TURNS; i++) {
        pthread_mutex_lock(&locks->mutex);
        while (locks->turn % THREADS != me)
            pthread_cond_wait(&locks->turned, &locks->mutex);
        locks->turn++;
        pthread_cond_broadcast(&locks->turned);
        pthread_mutex_unlock(&locks->mutex);
        sem_wait(&locks->free);
        locks->sum += i;
        sem_post(&locks->free);
        if (i % 4 == me) {
            pthread_rwlock_wrlock(&locks->shared);
            locks->counted++;
        } else {
            pthread_rwlock_rdlock(&locks->shared);
        }
        pthread_rwlock_unlock(&locks->shared);
        if (i % 64 == 0) pthread_barrier_wait(&locks->all);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS], sweeper;
    locks = aligned_alloc(MB, sizeof *locks), crowd = malloc(6 * MB);
    pthread_mutex_init(&locks->mutex, NULL), pthread_cond_init(&locks->turned, NULL),
        sem_init(&locks->free, 0, 1);
    pthread_rwlock_init(&locks->shared, NULL), pthread_barrier_init(&locks->all, NULL, THREADS);
    locks->turn = locks->sum = locks->counted = 0;
    pthread_create(&sweeper, NULL, sweep, NULL);
    for (long t = 0; t < THREADS; t++)
        pthread_create(&threads[t], NULL, take_turns, (void *)t);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    ends = 1;
    pthread_join(sweeper, NULL);
    printf("%ld turns, sum %ld, counted %ld\n", locks->turn, locks->sum, locks->counted);
    return 0;
}
