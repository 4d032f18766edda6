/* The memory of the random program: regions of several kinds, with the rights of each piece of 4 KiB. Output
 * contains no addresses, so it is the same wherever the regions are. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

enum { PIECE = 4096, PIECES = 512, REGIONS = 8, LARGEST = 64 << 10 };
/* Rights of a piece: a hole is not mapped. */
enum { NONE = 0, READ = 1, USABLE = 3, HOLE = 8 };
enum kind { BLOCK, PLAIN, SPARSE, RESERVED, SHARED, FILED, SEGMENT, STATIC, KINDS };
static const int RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS;

struct region {
    unsigned char *at;
    size_t pieces;
    enum kind kind;
    unsigned char rights[PIECES];
};

static struct region regions[REGIONS];
static unsigned char statics[PIECES / 2 * PIECE] __attribute__((aligned(PIECE)));
static int is_static_used, is_child;
static uint64_t state;

static uint64_t draw(uint64_t below)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u, z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static uint64_t hash(const void *bytes, size_t count, uint64_t h)
{
    const unsigned char *at = bytes;
    for (; count >= 8; count -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    }
    while (count--) h = (h ^ *at++) * 0x100000001b3u;
    return h;
}

/* Prints a result of the kernel, with the error of a failed call. */
static void say(const char *what, long result)
{
    const char *error = result < 0 ? strerrorname_np(errno) : "";
    printf("%s %ld %s\n", what, result, error ? error : "?");
}

static void scribble(unsigned char *at, size_t bytes)
{
    uint64_t word = draw(UINT64_MAX);
    for (size_t i = 0; i + 8 <= bytes; i += 8, word += 0x9e3779b97f4a7c15u) memcpy(at + i, &word, 8);
}

static int rights_of(const unsigned char *at)
{
    for (int i = 0; i < REGIONS; i++)
        if (at >= regions[i].at && at < regions[i].at + regions[i].pieces * PIECE)
            return regions[i].rights[(at - regions[i].at) / PIECE];
    return HOLE;
}

/* Fills the writable pieces of a range that are readable, too. */
static void fill(unsigned char *at, size_t bytes)
{
    for (size_t i = 0, here; i < bytes; i += here) {
        here = PIECE - (uintptr_t)(at + i) % PIECE;
        if (here > bytes - i) here = bytes - i;
        if (rights_of(at + i) == USABLE) scribble(at + i, here);
    }
}

/* Fills the pieces of a region that the kernel has written with bytes that differ in each run. */
static void fill_over(unsigned char *at, size_t bytes)
{
    unsigned char *start = at - (uintptr_t)at % PIECE;
    for (int i = 0; i < REGIONS; i++) {
        size_t all = regions[i].pieces * PIECE;
        if (at < regions[i].at || at >= regions[i].at + all) continue;
        size_t rest = regions[i].at + all - start, over = at - start + bytes + PIECE - 1;
        fill(start, over / PIECE * PIECE < rest ? over / PIECE * PIECE : rest);
    }
}

static uint64_t sum_of(const unsigned char *at, size_t bytes)
{
    uint64_t h = 0;
    for (size_t i = 0, here; i < bytes; i += here) {
        here = PIECE - (uintptr_t)(at + i) % PIECE;
        if (here > bytes - i) here = bytes - i;
        int rights = rights_of(at + i);
        h = rights == USABLE || rights == READ ? hash(at + i, here, h) : h * 31 + rights;
    }
    return h;
}

static void set_rights(unsigned char *at, size_t bytes, int rights)
{
    for (size_t i = 0; i < bytes; i += PIECE)
        for (int k = 0; k < REGIONS; k++)
            if (at + i >= regions[k].at && at + i < regions[k].at + regions[k].pieces * PIECE)
                regions[k].rights[(at + i - regions[k].at) / PIECE] = rights;
}

static void drop(struct region *r)
{
    size_t bytes = r->pieces * PIECE;
    switch (r->kind) {
    case BLOCK:
        mprotect(r->at, bytes, RW);
        free(r->at);
        break;
    case STATIC:
        mprotect(r->at, bytes, RW);
        is_static_used = 0;
        break;
    default:
        munmap(r->at, bytes);
    }
    r->at = NULL, r->pieces = 0;
}

static int file_of(size_t bytes)
{
    int fd = memfd_create("random", 0);
    static unsigned char piece[PIECE];
    for (size_t i = 0; i < bytes; i += PIECE) {
        memset(piece, 1 + i / PIECE % 200, PIECE);
        if (pwrite(fd, piece, PIECE, i) != PIECE) abort();
    }
    return fd;
}

static void make(struct region *r)
{
    r->kind = draw(KINDS);
    if (r->kind == STATIC && is_static_used) r->kind = PLAIN;
    r->pieces = 40 + draw(r->kind == STATIC ? PIECES / 2 - 40 : PIECES - 40);
    size_t bytes = r->pieces * PIECE;
    int fd = -1;
    memset(r->rights, USABLE, sizeof r->rights);
    switch (r->kind) {
    case BLOCK:
        r->at = draw(2) ? aligned_alloc(PIECE, bytes) : aligned_alloc(16 * PIECE, bytes);
        memset(r->at, 0, bytes);
        break;
    case SPARSE:
        r->at = mmap(NULL, bytes, RW, ANON | MAP_NORESERVE, -1, 0);
        break;
    case RESERVED:
        r->at = mmap(NULL, bytes, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
        memset(r->rights, NONE, sizeof r->rights);
        break;
    case SHARED:
    case FILED:
        fd = file_of(bytes);
        r->at = mmap(NULL, bytes, RW, r->kind == SHARED ? MAP_SHARED : MAP_PRIVATE, fd, 0);
        close(fd);
        break;
    case SEGMENT:
        fd = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
        r->at = shmat(fd, NULL, 0);
        shmctl(fd, IPC_RMID, NULL);
        break;
    case STATIC:
        r->at = statics, is_static_used = 1;
        memset(r->at, 0, bytes);
        break;
    default:
        r->at = mmap(NULL, bytes, RW, ANON, -1, 0);
    }
    if (r->at == MAP_FAILED || !r->at) abort();
    if (draw(3)) fill(r->at, bytes);
}

/* A random region; its memory if it is not static. */
static struct region *any(void)
{
    return &regions[draw(REGIONS)];
}

/* A random range of pieces of a region. */
static unsigned char *range(struct region *r, size_t *bytes)
{
    size_t first = draw(r->pieces), count = 1 + draw(draw(2) ? 8 : r->pieces);
    if (count > r->pieces - first) count = r->pieces - first;
    *bytes = count * PIECE;
    return r->at + first * PIECE;
}

/* Ranges of the present step. They do not overlap: some contain addresses, which must not become output. */
static struct { const unsigned char *at; size_t bytes; } kept[64];
static size_t kept_count;

static int keep(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < kept_count; i++)
        if (at < kept[i].at + kept[i].bytes && kept[i].at < at + bytes) return 0;
    if (kept_count == sizeof kept / sizeof *kept) abort();
    kept[kept_count].at = at, kept[kept_count++].bytes = bytes;
    return 1;
}

/* Random bytes of a region, which may be partly or wholly inaccessible. */
static unsigned char *bytes_of(size_t most, size_t *count)
{
    for (;;) {
        struct region *r = any();
        size_t all = r->pieces * PIECE, first = draw(3) ? draw(all) : draw(r->pieces) * PIECE;
        *count = draw(4) ? 1 + draw(most) : 1 + draw(200);
        if (*count > all - first) *count = all - first;
        if (keep(r->at + first, *count)) return r->at + first;
    }
}

/* Bytes of a region that are readable and writable; NULL if 20 attempts find none. */
static unsigned char *usable(size_t count)
{
    for (int tries = 0; tries < 20; tries++) {
        struct region *r = any();
        if (r->pieces * PIECE <= count + 64) continue;
        unsigned char *at = r->at + draw(r->pieces * PIECE - count - 64) / 64 * 64;
        size_t i = 0;
        while (i < count && rights_of(at + i) == USABLE) i += PIECE;
        if (i >= count && rights_of(at + count - 1) == USABLE && keep(at, count)) return at;
    }
    return NULL;
}
