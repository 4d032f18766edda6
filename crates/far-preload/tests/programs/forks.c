/* Child processes use their parents' blocks while the parent and one of its threads continue to use theirs.
 * Each process has the bytes of the time of the fork, and does not see the writes of the others. Then a child
 * daemonizes before it has any block. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MB = 1 << 20, BYTES = 6 * MB };
static volatile int stop;
static unsigned char *others;

static void fill(unsigned char *at, unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        at[i] = (unsigned char)((i + seed) * 2654435761u >> 11);
}

static int is(const unsigned char *at, unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        if (at[i] != (unsigned char)((i + seed) * 2654435761u >> 11)) return 0;
    return 1;
}

/* Increments each word in turn, so that every word has one of two adjacent values at any moment. */
static void *counts(void *argument)
{
    (void)argument;
    for (unsigned round = 1; !stop; round++)
        for (size_t i = 0; i < MB; i += 4096)
            *(volatile unsigned *)(others + i) = round;
    return NULL;
}

static int counted(void)
{
    unsigned first = *(unsigned *)others;
    for (size_t i = 4096, fell = 0; i < MB; i += 4096) {
        unsigned here = *(unsigned *)(others + i);
        if (here == first - 1 && !fell) fell = 1;
        if (here != first - fell) return 0;
    }
    return 1;
}

static int status_of(pid_t child)
{
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static int family(unsigned char *block, int generation)
{
    for (unsigned round = 0; round < 2; round++) {
        unsigned seed = 1000 * generation + round;
        fill(block, seed);
        pid_t child = fork();
        if (child == 0) {
            if (!is(block, seed)) _exit(40);
            if (!counted()) _exit(41);
            unsigned char *mine = calloc(1, 2 * MB);
            for (size_t i = 0; i < 2 * MB; i++)
                if (mine[i]) _exit(42);
            memset(mine, 9, 2 * MB);
            int code = generation < 1 ? family(block, generation + 1) : (fill(block, 77), !is(block, 77));
            for (size_t i = 0; i < 2 * MB; i++)
                if (mine[i] != 9) _exit(43);
            free(mine);
            free(block);
            _exit(code);
        }
        fill(block, seed + 500);
        int code = status_of(child);
        if (code) return code;
        if (!is(block, seed + 500)) return 44;
    }
    return 0;
}

int main(void)
{
    pid_t daemon = fork();
    if (daemon == 0) {
        unsigned char *block = malloc(BYTES);
        fill(block, 5);
        _exit(is(block, 5) ? 0 : 1);
    }
    int code = status_of(daemon);
    if (code) return printf("the child without a parent's block ended with %d\n", code), 1;
    pthread_t thread;
    others = calloc(1, MB);
    pthread_create(&thread, NULL, counts, NULL);
    code = family(malloc(BYTES), 0);
    stop = 1;
    pthread_join(thread, NULL);
    if (code || !counted()) return printf("a child ended with %d\n", code), 1;
    puts("well");
    return 0;
}
