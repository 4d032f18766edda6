/* mmap, munmap in pieces, mremap, madvise and MAP_FIXED over mapped memory. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MAP(n) mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
#define MUST(what) do { if (!(what)) return printf("line %d\n", __LINE__), 1; } while (0)

static int all(const unsigned char *at, size_t n, int value)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != value) return 0;
    return 1;
}

/* A mapping of the kernel may end where far memory begins. A program may treat both as one range. */
static int beside(void)
{
    size_t mb = 1 << 20;
    unsigned char *b = MAP(2 * mb), *a = b - mb;
    MUST(b != MAP_FAILED);
    if (mmap(a, mb, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == a) {
        memset(a, 7, 3 * mb);
        MUST(madvise(a + mb / 2, mb, MADV_DONTNEED) == 0);
        MUST(all(a, mb / 2, 7) && all(a + mb / 2, mb, 0) && all(b + mb / 2, 3 * mb / 2, 7));
        MUST(mprotect(a, 2 * mb, PROT_READ | PROT_WRITE) == 0);
        MUST(munmap(a, 2 * mb) == 0 && all(b + mb, mb, 7));
        MUST(mmap(a, mb, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
            == a && munmap(a, mb) == 0);
        return munmap(b + mb, mb);
    }
    return munmap(b, 2 * mb);
}

/* The kernel refuses ranges that wrap around, and leaves the memory as it was. */
static int beyond(void)
{
    volatile size_t lengths[] = {SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2 + 1};
    unsigned char *a = MAP(1 << 20);
    MUST(a != MAP_FAILED);
    memset(a, 5, 1 << 20);
    for (int i = 0; i < 3; i++) {
        MUST(munmap(a, lengths[i]) == -1);
        if (i < 2) MUST(madvise(a, lengths[i], MADV_DONTNEED) == -1);
        MUST(all(a, 1 << 20, 5));
    }
    return munmap(a, 1 << 20);
}

int main(void)
{
    size_t mb = 1 << 20;
    if (beside() || beyond()) return 1;
    for (int round = 0; round < 8; round++) { /* the total exceeds the far memory if pieces are not freed */
        unsigned char *a = MAP(6 * mb + 12288);
        MUST(a != MAP_FAILED && all(a, 6 * mb + 12288, 0));
        memset(a, 7, 6 * mb + 12288);
        MUST(munmap(a, mb / 2) == 0 && munmap(a + mb / 2, mb / 2) == 0 && munmap(a + 6 * mb, 12288) == 0);
        MUST(all(a + mb, 5 * mb, 7));
        MUST(madvise(a + mb + 4096, 2 * mb, MADV_DONTNEED) == 0);
        MUST(all(a + mb, 4096, 7) && all(a + mb + 4096, 2 * mb, 0) && all(a + 3 * mb + 4096, 3 * mb - 4096,
            7));
        unsigned char *b = mremap(a + mb, 5 * mb, 9 * mb, MREMAP_MAYMOVE);
        MUST(b != MAP_FAILED && all(b, 4096, 7) && all(b + 2 * mb + 4096, 3 * mb - 4096, 7) && all(b + 5 *
            mb, 4 * mb, 0));
        MUST(mmap(b, 2 * mb, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == b
            && all(b, 2 * mb, 0));
        MUST(mprotect(b, mb, PROT_READ | PROT_WRITE) == 0);
        MUST(mremap(b, 9 * mb, 2 * mb, 0) == b && munmap(b, 2 * mb) == 0);
    }
#ifdef MAP_32BIT
    void *low = mmap(NULL, 4 * mb, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    MUST(low != MAP_FAILED && (uintptr_t)low < 1u << 31);
#endif
    puts("well");
    return 0;
}
