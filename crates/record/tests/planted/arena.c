// Runs until it is killed, at most two minutes, or for the given number of rounds: four threads allocate and
// free blocks of one arena, and the blocks are too large for the lists of a thread.
#include "planted.h"
#include <malloc.h>
static long rounds = -1;
__attribute__((noinline)) void churn(void) {
    void *blocks[200];
    for (int i = 0; i < 200; i++)
        blocks[i] = malloc(2000 + i * 16);
    for (int i = 0; i < 200; i += 2)
        free(blocks[i]);
    for (int i = 1; i < 200; i += 2)
        free(blocks[i]);
}
static void *worker(void *unused) {
    for (long round = 0; round != rounds; round++)
        churn();
    return NULL;
}
int main(int count, char **arguments) {
    if (count > 1)
        rounds = atol(arguments[1]);
    mallopt(M_ARENA_MAX, 1);
    alarm(120);
    run_one(4, worker);
    return 0;
}
