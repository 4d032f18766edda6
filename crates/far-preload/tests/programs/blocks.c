/* Large blocks are allocated, extended, shortened and freed, with small blocks in between. Prints a sum that
   depends on every byte. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;
static uint64_t next(void) { state ^= state << 13; state ^= state >> 7; return state ^= state << 17; }

/* Sizes that no allocator has. Volatile, because compilers know such calls. */
static int impossible(void)
{
    volatile size_t sizes[] = {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 8 * 7 + 2, (size_t)PTRDIFF_MAX + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *aligned = NULL;
        unsigned char *block = malloc(4 << 20);
        block[(4 << 20) - 1] = 9;
        if (malloc(sizes[i]) || calloc(sizes[i], 1) || realloc(NULL, sizes[i])) return 1;
        if (!posix_memalign(&aligned, 16, sizes[i]) || aligned_alloc(4096, sizes[i])) return 1;
        if (realloc(block, sizes[i]) || block[(4 << 20) - 1] != 9) return 1;
        free(block);
    }
    return 0;
}

int main(void)
{
    enum { N = 24 };
    if (impossible()) return puts("a block of an impossible size"), 1;
    unsigned char *block[N] = {0};
    size_t length[N] = {0};
    uint64_t sum = 0;
    for (int round = 0; round < 120; round++) {
        int i = next() % N;
        size_t want = next() % 4 ? next() % (3 << 20) : next() % 2000;
        for (size_t k = 0; k < length[i]; k++)
            sum = sum * 31 + block[i][k];
        switch (next() % 4) {
        case 0:
            free(block[i]);
            block[i] = calloc(1, want + 1);
            for (size_t k = 0; k <= want; k += 97)
                if (block[i][k]) return puts("calloc gave what is not zero"), 1;
            break;
        case 1: {
            void *aligned;
            free(block[i]);
            if (posix_memalign(&aligned, 4096, want + 1) || (uintptr_t)aligned % 4096) return
                puts("not aligned"), 1;
            block[i] = aligned;
            break;
        }
        default: {
            size_t kept = length[i] < want ? length[i] : want;
            unsigned char before = kept ? block[i][kept - 1] : 0;
            block[i] = realloc(block[i], want + 1);
            if (kept && block[i][kept - 1] != before) return puts("realloc lost bytes"), 1;
        }
        }
        if (!block[i] || malloc_usable_size(block[i]) < want) return puts("no block"), 1;
        length[i] = want;
        for (size_t k = 0; k < want; k++)
            block[i][k] = (unsigned char)(k * 7 + round);
    }
    for (int i = 0; i < N; i++)
        free(block[i]);
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
