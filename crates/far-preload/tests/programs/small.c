/* Small blocks of many sizes are allocated, extended, shortened, cleared, aligned, and freed in another
   order, by two threads. Also uses directories and streams of the C library, and a child process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 9000 };

struct block { uint32_t size, seed; unsigned char *at; };

static uint32_t next(uint32_t *state) { return *state = *state * 1664525u + 1013904223u, *state >> 8; }

static void fill(struct block *b)
{
    for (uint32_t i = 0; i < b->size; i++) b->at[i] = (unsigned char)(b->seed + i * 7);
}

static long wrong(const struct block *b, uint32_t bytes)
{
    long count = 0;
    for (uint32_t i = 0; i < bytes; i++) count += b->at[i] != (unsigned char)(b->seed + i * 7);
    return count;
}

static void *work(void *argument)
{
    uint32_t state = (uint32_t)(uintptr_t)argument;
    struct block *all = calloc(BLOCKS, sizeof *all);
    long bad = 0, odd = 0, large = 0, whole = 0;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            struct block *b = &all[next(&state) % BLOCKS];
            uint32_t of = next(&state) % 64, before = b->size;
            uint32_t size = of ? 1 + next(&state) % (of % 16 ? 300 : 3000) : 4097 + next(&state) % 1000;
            bad += b->at ? wrong(b, before) : 0;
            switch (next(&state) % 5) {
            case 0:
                free(b->at);
                b->at = calloc(1, size);
                for (uint32_t j = 0; j < size; j++) bad += b->at[j] != 0;
                break;
            case 1:
                free(b->at);
                size_t align = (size_t)16 << next(&state) % 6;
                if (posix_memalign((void **)&b->at, align, size)) return NULL;
                odd += (uintptr_t)b->at % align != 0;
                break;
            case 2:
                free(b->at);
                b->at = malloc(size);
                break;
            default:
                b->at = realloc(b->at, size);
                bad += wrong(b, before < size ? before : size);
            }
            odd += malloc_usable_size(b->at) < size || (uintptr_t)b->at % 16 != 0;
            large += size > 4096;
            whole += size > 4096 && (uintptr_t)b->at % 4096 == 0;
            b->size = size;
            b->seed = next(&state);
            fill(b);
        }
    }
    for (int i = 0; i < BLOCKS; i++) {
        bad += all[i].at ? wrong(&all[i], all[i].size) : 0;
        if (i % 3) free(all[i].at), all[i].at = NULL;
    }
    for (int i = 0; i < BLOCKS; i++) bad += all[i].at ? wrong(&all[i], all[i].size) : 0;
    for (int i = 0; i < BLOCKS; i++) free(all[i].at);
    free(all);
    // Blocks just above 4 KiB share pages.
    return (void *)(bad + odd + 1000 * (large < 50 || whole * 8 > large * 7));
}

int main(int count, char **arguments)
{
    (void)arguments;
    pthread_t other;
    void *there;
    pthread_create(&other, NULL, work, (void *)5);
    long here = (long)work((void *)3);
    pthread_join(other, &there);
    printf("%ld %ld wrong\n", here, (long)there);
    /* Blocks that the C library allocates. */
    DIR *directory = opendir("/");
    int entries = 0;
    while (readdir(directory)) entries++;
    closedir(directory);
    char *line = NULL, *name = realpath("/proc/self/../self/..", NULL);
    size_t room = 0;
    FILE *status = fopen("/proc/self/status", "r");
    ssize_t length = getline(&line, &room, status);
    printf("%d, %s, %d\n", entries > 3, name, length > 4 && !strncmp(line, "Name:", 5));
    fclose(status), free(line), free(name);
    if (count > 1) {
        struct block kept[500];
        for (uint32_t i = 0; i < 500; i++) {
            kept[i] = (struct block){1 + i * 7, i, malloc(1 + i * 7)};
            fill(&kept[i]);
        }
        fflush(stdout);
        if (fork() == 0) {
            long bad = (long)work((void *)9);
            for (int i = 0; i < 500; i++) bad += wrong(&kept[i], kept[i].size), free(kept[i].at);
            printf("child: %ld wrong\n", bad);
            fflush(stdout);
            _exit(0);
        }
        int status;
        wait(&status);
        long bad = 0;
        for (int i = 0; i < 500; i++) bad += wrong(&kept[i], kept[i].size), free(kept[i].at);
        printf("ended: %d, parent: %ld wrong\n", status, bad);
    }
    return 0;
}
