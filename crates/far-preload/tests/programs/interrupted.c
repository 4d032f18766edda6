/* A signal handler runs while the C library's allocator holds its lock: an allocation faults at the end of
   the heap, which is protected. The handler touches paged-out memory and makes a call on memory. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 16 << 20, PIECE = 4096, ROUNDS = 8, PART = 100000 };
static unsigned char *far;
static char *guarded;
static size_t length;
static volatile long handled, wrong;

static void handle(int signal)
{
    (void)signal;
    for (size_t i = 0; i < SIZE; i += PIECE) wrong += far[i] != (unsigned char)(i / PIECE + 1);
    if (mprotect(guarded, length, PROT_READ | PROT_WRITE)) _exit(41);
    handled++;
}

int main(void)
{
    alarm(60); /* instead of a wait that never ends */
    far = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i += PIECE) far[i] = (unsigned char)(i / PIECE + 1);
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGSEGV, &action, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        char *last = malloc(PART);
        guarded = (char *)((uintptr_t)(last + PART) / PIECE * PIECE);
        length = (size_t)((char *)sbrk(0) - guarded);
        if (mprotect(guarded, length, PROT_NONE)) return perror("mprotect"), 1;
        if (!malloc(PART)) return perror("malloc"), 1;
        /* Unless free memory before the end of the heap was found. */
        mprotect(guarded, length, PROT_READ | PROT_WRITE);
    }
    printf("%ld wrong, handled %d\n", wrong, handled > 0);
    return 0;
}
