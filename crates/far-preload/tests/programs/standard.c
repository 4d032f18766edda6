/* Mutexes and conditions of C11, and calls that run once, in a block that another thread pages out all the
 * time. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>
#include <unistd.h>

enum { MB = 1 << 20, TURNS = 6000, THREADS = 3, ONCES = 300 };

/* Each object is in its own pages of far memory, which have 256 KiB. */
struct objects {
    _Alignas(MB / 2) mtx_t mutex;
    _Alignas(MB / 2) cnd_t turned;
    _Alignas(MB / 2) once_flag c11[ONCES];
    _Alignas(MB / 2) pthread_once_t posix[ONCES];
    _Alignas(MB / 2) long turn;
};

static struct objects *far;
static unsigned char *volatile crowd;
static atomic_int ends, runs;

static void *sweep(void *unused)
{
    while (!ends)
        for (size_t i = 0; i < 24 * MB && !ends; i += 4096)
            crowd[i]++;
    return unused;
}

static void count(void)
{
    thrd_yield();
    runs++;
}

static void *take_turns(void *argument)
{
    long me = (long)argument;
    for (int i = 0; i < ONCES; i++) {
        call_once(&far->c11[i], count);
        pthread_once(&far->posix[i], count);
    }
    for (int i = 0; i < TURNS; i++) {
        mtx_lock(&far->mutex);
        while (far->turn % THREADS != me)
            cnd_wait(&far->turned, &far->mutex);
        far->turn++;
        cnd_broadcast(&far->turned);
        mtx_unlock(&far->mutex);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS], sweeper;
    alarm(60); /* instead of a wait that never ends */
    far = aligned_alloc(MB, sizeof *far), crowd = malloc(24 * MB);
    mtx_init(&far->mutex, mtx_plain), cnd_init(&far->turned);
    for (int i = 0; i < ONCES; i++)
        far->c11[i] = (once_flag)ONCE_FLAG_INIT, far->posix[i] = PTHREAD_ONCE_INIT;
    far->turn = 0;
    pthread_create(&sweeper, NULL, sweep, NULL);
    for (long t = 0; t < THREADS; t++)
        pthread_create(&threads[t], NULL, take_turns, (void *)t);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    ends = 1;
    pthread_join(sweeper, NULL);
    printf("%ld turns, %d runs\n", far->turn, runs);
    return 0;
}
