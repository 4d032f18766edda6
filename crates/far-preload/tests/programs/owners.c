/* Blocks of the program's own allocator, in far memory that the allocator mapped, and large far blocks of the
 * layer. Blocks of both kinds grow, shrink, report their length and are freed by their allocator. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) do { if (!(what)) return printf("block %d, line %d: %s\n", i, __LINE__, #what), 1; } \
    while (0)

size_t freed_here(void);
int allocated_here(const void *block);

enum { SMALL = 400, BLOCKS = 16000, SOME = 40, LARGE = 300 << 10 };
static unsigned char *volatile block[BLOCKS];

static int all(const unsigned char *at, size_t n, int value)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != value) return 0;
    return 1;
}

int main(void)
{
    int i;
    for (i = 0; i < BLOCKS; i++) { /* 6 MB, then 12 MB, of which 4 MB may be local */
        block[i] = malloc(SMALL);
        MUST(block[i] && allocated_here(block[i]) && malloc_usable_size(block[i]) == SMALL);
        memset(block[i], i % 251, SMALL);
    }
    for (i = 0; i < BLOCKS; i++) {
        MUST(malloc_usable_size(block[i]) == SMALL && all(block[i], SMALL, i % 251));
        block[i] = realloc(block[i], 2 * SMALL);
        MUST(block[i] && allocated_here(block[i]) && malloc_usable_size(block[i]) == 2 * SMALL &&
            all(block[i], SMALL, i % 251));
        memset(block[i] + SMALL, i % 251, SMALL);
    }
    /* from the allocator to the far heap and back; without far memory all blocks are the allocator's */
    for (i = 0; i < SOME; i++) {
        unsigned char *large = realloc(block[i], LARGE);
        MUST(large && malloc_usable_size(large) >= LARGE && all(large, 2 * SMALL, i % 251));
        memset(large, i % 251, LARGE);
        block[i] = realloc(large, SMALL);
        MUST(block[i] && allocated_here(block[i]) && malloc_usable_size(block[i]) == SMALL && all(block[i],
            SMALL, i % 251));
        large = calloc(1, LARGE);
        MUST(large && all(large, LARGE, 0));
        memset(large, 7, LARGE);
        free(large);
    }
    for (i = 0; i < BLOCKS; i++) {
        size_t before = freed_here();
        MUST(all(block[i], SMALL, i % 251));
        free(block[i]);
        MUST(freed_here() == before + 1);
    }
    puts("well");
    return 0;
}
