/* A program that loads many libraries with thread-local variables, so that the loader lengthens the table of
 * each thread while the thread allocates. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MB = 1 << 20, LIBRARIES = 24 };
static int *(*of_this_thread[LIBRARIES])(void);
static pthread_barrier_t step;

static long use(int libraries)
{
    unsigned char *block = malloc(6 * MB), *small = malloc(100);
    long sum = 0;
    memset(block, libraries, 6 * MB);
    for (int i = 0; i < 6 * MB; i += 4096) sum += block[i];
    block = realloc(block, 7 * MB);
    for (int i = 0; i < libraries; i++) sum += ++*of_this_thread[i]();
    free(block), free(small);
    return sum;
}

static void *beside(void *sum)
{
    for (int i = 1; i <= LIBRARIES; i++) {
        pthread_barrier_wait(&step);
        *(long *)sum += use(i);
        pthread_barrier_wait(&step);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    char path[4096];
    long sums[2] = {0, 0};
    pthread_t thread;
    (void)count;
    pthread_barrier_init(&step, NULL, 2);
    pthread_create(&thread, NULL, beside, &sums[1]);
    for (int i = 0; i < LIBRARIES; i++) {
        snprintf(path, sizeof path, "%s/%d.so", arguments[1], i);
        void *library = dlopen(path, RTLD_NOW);
        if (library == NULL) return printf("%s\n", dlerror()), 1;
        of_this_thread[i] = (int *(*)(void))dlsym(library, "of_this_thread");
        pthread_barrier_wait(&step);
        sums[0] += use(i + 1);
        pthread_barrier_wait(&step);
    }
    pthread_join(thread, NULL);
    printf("%ld, %ld\n", sums[0], sums[1]);
    return 0;
}
