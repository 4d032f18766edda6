/* A signal handler touches paged-out memory whenever it interrupts the program, which allocates and frees
 * large blocks, makes calls on its memory, and forks. With "calls" the handler itself maps and unmaps memory,
 * and forks. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 8 << 20, BLOCK = 1 << 20, ROUNDS = 40 };
static volatile uint64_t *words;
static volatile long handled, wrong;
static timer_t timer;
static int calls;

/* The next signal comes some time after the handler has returned, so that the program proceeds. */
static void begin(void)
{
    struct itimerspec once = {.it_value = {.tv_nsec = 300000}};
    timer_settime(timer, 0, &once, NULL);
}

static void handle(int signal)
{
    (void)signal;
    size_t at = (size_t)handled++ * 77777 % (SIZE / 8);
    wrong += words[at] != at * 3;
    if (calls) {
        int prot = PROT_READ | PROT_WRITE, status = 0;
        void *map = mmap(NULL, BLOCK, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        wrong += map == MAP_FAILED || munmap(map, BLOCK) != 0;
        if (handled % 20 == 0) {
            pid_t child = fork();
            if (child == 0) _exit(0);
            wrong += child < 0 || waitpid(child, &status, 0) != child || status != 0;
        }
    }
    begin();
}

/* Allocates and frees until the handler has run often at any point of the calls. */
static void allocate_meanwhile(void)
{
    while (handled < 400) {
        void *block = malloc(BLOCK);
        void *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        free(block);
        munmap(map, BLOCK);
    }
}

static long wrong_words(void)
{
    long count = 0;
    for (size_t i = 0; i < SIZE / 8; i += 8)
        count += words[i] != i * 3;
    return count;
}

int main(int count, char **arguments)
{
    calls = count > 1 && strcmp(arguments[1], "calls") == 0;
    alarm(60); /* instead of a wait that never ends */
    words = malloc(SIZE);
    for (size_t i = 0; i < SIZE / 8; i++)
        words[i] = i * 3;
    struct sigaction action = {.sa_handler = handle};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    sigaction(SIGUSR1, &action, NULL);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) return perror("timer_create"), 1;
    begin();
    if (calls) {
        allocate_meanwhile();
        timer_delete(timer);
        return printf("%ld wrong, %ld wrong\n", wrong, wrong_words()), 0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *block = malloc(BLOCK);
        unsigned char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(block, round, BLOCK), memset(map, round, BLOCK);
        madvise(map, BLOCK / 2, MADV_DONTNEED);
        if (map[BLOCK / 2 - 1] || map[BLOCK / 2] != (unsigned char)round) return printf("map\n"), 1;
        munmap(map, BLOCK);
        free(block);
    }
    for (int round = 0; round < 5; round++) {
        int status = 0;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) _exit(count > 1 ? wrong_words() != 0 : 0);
        if (child < 0) return perror("fork"), 1;
        while (waitpid(child, &status, 0) != child)
            continue;
        if (status) return printf("a child ended with %d\n", status), 1;
    }
    timer_delete(timer);
    printf("%ld wrong, %ld wrong, handled %d\n", wrong, wrong_words(), handled > 0);
    return 0;
}
