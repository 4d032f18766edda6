/* A block that grows in small steps, sometimes with another block after it. Prints how often it was moved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    size_t length = 1 << 20;
    unsigned char *block = malloc(length), *behind = NULL;
    int moves = 0;
    (void)argv;
    memset(block, 1, length);
    for (int step = 2; step < 60; step++) {
        size_t longer = length + length / 16;
        if (argc > 1 && step % 20 == 0) {
            behind = malloc(1 << 20); /* first-fit places it directly after the block */
            memset(behind, 255, 1 << 20);
        }
        unsigned char *grown = realloc(block, longer);
        if (!grown) return puts("no block"), 1;
        moves += grown != block;
        memset(grown + length, step, longer - length);
        block = grown;
        length = longer;
    }
    size_t at = 0, end = 1 << 20;
    for (int step = 1; step < 60; step++) {
        for (; at < end; at++)
            if (block[at] != step) return printf("byte %zu is %d, not %d\n", at, block[at], step), 1;
        end += end / 16;
    }
    for (size_t k = 0; behind && k < 1 << 20; k++)
        if (behind[k] != 255) return puts("the block behind was overwritten"), 1;
    printf("%d\n", moves);
    return 0;
}
