/* Threads that end in every way (return, pthread_exit, pthread_cancel while they wait or work, detached), on
   the C library's stacks and on stacks in large blocks. Cleanup handlers and destructors of thread-specific
   data use paged-out memory. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 8 << 20, STACK = 1 << 20, ROUNDS = 4 };
static uint64_t *words;
static pthread_key_t key;
static long cleaned, destroyed, wrong;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static sem_t begun, ended;
static __thread char local[20000];

static long sweep(void)
{
    long bad = 0;
    for (uint64_t i = 0; i < SIZE / 8; i += 64) bad += words[i] != i * 7;
    return bad;
}

static void count(long *counter, long bad)
{
    pthread_mutex_lock(&mutex);
    ++*counter, wrong += bad;
    pthread_mutex_unlock(&mutex);
}

static void clean(void *argument)
{
    (void)argument;
    void *block = malloc(300000);
    memset(block, 1, 300000);
    count(&cleaned, sweep());
    free(block);
}

static void destroy(void *block)
{
    count(&destroyed, sweep());
    free(block);
}

static void begin(void)
{
    char *block = malloc(400000);
    memset(block, 3, 400000);
    memset(local, 4, sizeof local);
    pthread_setspecific(key, block);
}

static void *returns(void *argument)
{
    begin();
    sweep();
    return argument;
}

static void *exits(void *argument)
{
    begin();
    pthread_cleanup_push(clean, NULL);
    sweep();
    pthread_exit(argument);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *waits(void *argument)
{
    begin();
    pthread_cleanup_push(clean, NULL);
    sem_post(&begun);
    for (;;) pause();
    pthread_cleanup_pop(0);
    return argument;
}

static void *works(void *argument)
{
    begin();
    pthread_cleanup_push(clean, NULL);
    sem_post(&begun);
    for (;;) {
        free(memset(malloc(300000), 2, 300000));
        sweep();
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return argument;
}

/* A thread that is canceled at any instruction, mostly while it waits for a page. */
static void *computes(void *argument)
{
    begin();
    sem_post(&begun);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    uint64_t number = (uintptr_t)argument;
    for (volatile uint64_t all = 0;;) {
        number = number * 6364136223846793005u + 1442695040888963407u;
        all += words[(number >> 33) % (SIZE / 8)];
    }
    return argument;
}

static void handle(int signal)
{
    (void)signal;
    count(&cleaned, sweep());
    pthread_exit(PTHREAD_CANCELED);
}

/* A thread that ends in the program's own handler of SIGSEGV. */
static void *faults(void *argument)
{
    begin();
    *(volatile int *)8 = 1;
    return argument;
}

static void *detached(void *argument)
{
    (void)argument;
    begin();
    free(pthread_getspecific(key));
    pthread_setspecific(key, NULL);
    count(&cleaned, sweep());
    sem_post(&ended);
    pthread_exit(NULL);
}

static pthread_t start(void *(*work)(void *), void *argument, int own, int detach)
{
    static char *stacks[64];
    static int used;
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (own) pthread_attr_setstack(&attributes, stacks[used++] = aligned_alloc(4096, STACK), STACK);
    if (detach) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_create(&thread, &attributes, work, argument);
    pthread_attr_destroy(&attributes);
    return thread;
}

int main(void)
{
    words = malloc(SIZE);
    for (uint64_t i = 0; i < SIZE / 8; i++) words[i] = i * 7;
    pthread_key_create(&key, destroy);
    sem_init(&begun, 0, 0), sem_init(&ended, 0, 0);
    struct { const char *name; void *(*work)(void *); int cancel; } kinds[] = {
        {"return", returns, 0}, {"pthread_exit", exits, 0}, {"cancel a wait", waits, 1},
        {"cancel work", works, 1}, {"cancel anywhere", computes, 1}, {"exit in a handler", faults, 0}};
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGSEGV, &action, NULL);
    for (int own = 0; own < 2; own++) {
        for (unsigned kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
            long results = 0;
            for (int round = 0; round < ROUNDS; round += 2) {
                pthread_t pair[2];
                void *result[2];
                for (int i = 0; i < 2; i++) pair[i] = start(kinds[kind].work, words + i, own, 0);
                for (int i = 0; kinds[kind].cancel && i < 2; i++) sem_wait(&begun);
                for (int i = 0; kinds[kind].cancel && i < 2; i++) pthread_cancel(pair[i]);
                for (int i = 0; i < 2; i++) pthread_join(pair[i], &result[i]);
                for (int i = 0; i < 2; i++) results += result[i] == words + i ? 1 : 10000;
                for (int i = 0; i < 2; i++) results -= result[i] == PTHREAD_CANCELED ? 9900 : 0;
            }
            printf("%s, %s stack: %ld, ", kinds[kind].name, own ? "own" : "C library's", results);
            printf("%ld cleaned, %ld destroyed, %ld wrong\n", cleaned, destroyed, wrong);
        }
        for (int i = 0; i < 4; i++) start(detached, NULL, 0, 1);
        for (int i = 0; i < 4; i++) sem_wait(&ended);
    }
    printf("%ld\n", sweep());
    pthread_exit(NULL);
}
