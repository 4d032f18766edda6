/* Four threads use one array: each sorts its quarter, then counts in all quarters. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, EACH = 600000 };
static uint32_t *words;
static pthread_barrier_t barrier;
static uint64_t found[THREADS];

static int order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void *work(void *argument)
{
    size_t me = (size_t)argument;
    uint32_t x = 2463534242u + (uint32_t)me;
    for (size_t i = 0; i < EACH; i++) {
        x ^= x << 13; x ^= x >> 17; x ^= x << 5;
        words[me * EACH + i] = x;
    }
    qsort(words + me * EACH, EACH, sizeof *words, order);
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < (size_t)THREADS * EACH; i++)
        found[me] += words[i] % 3 == me % 3 && (i % EACH == 0 || words[i - 1] <= words[i]);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    words = malloc(sizeof *words * THREADS * EACH);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (size_t t = 0; t < THREADS; t++)
        pthread_create(&threads[t], NULL, work, (void *)t);
    for (size_t t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    for (size_t t = 0; t < THREADS; t++)
        printf("%llu\n", (unsigned long long)found[t]);
    return 0;
}
