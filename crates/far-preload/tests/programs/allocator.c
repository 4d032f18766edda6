/* An allocator of a program, such as jemalloc. It maps memory by mmap, so all its blocks are far memory, also
 * small ones, after it has used up the memory that it mapped before far memory was set up. The length of a
 * block is stored before the block. Freed blocks are counted and not reused. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK = 256 << 10, HEAD = 16, CHUNKS = 256 };
static struct { char *at; size_t bytes; } chunks[CHUNKS];
static int many;
static char *chunk;
static size_t left;
static char taken;
static size_t freed;

static void *take(size_t align, size_t bytes)
{
    char *made = NULL;
    if (align < HEAD) align = HEAD;
    if (bytes > 1 << 30) return errno = ENOMEM, NULL;
    size_t most = bytes + align + HEAD;
    while (__atomic_test_and_set(&taken, __ATOMIC_ACQUIRE))
        ;
    if (most > left) {
        size_t more = most > CHUNK ? most : CHUNK;
        char *mapped = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped != MAP_FAILED && many < CHUNKS) chunks[many].at = chunk = mapped, chunks[many++].bytes =
            left = more;
    }
    if (most <= left) {
        made = (char *)(((uintptr_t)chunk + HEAD + align - 1) / align * align);
        left -= made + bytes - chunk, chunk = made + bytes;
    }
    __atomic_clear(&taken, __ATOMIC_RELEASE);
    if (!made) return errno = ENOMEM, NULL;
    memcpy(made - sizeof bytes, &bytes, sizeof bytes);
    return made;
}

void *malloc(size_t bytes) { return take(HEAD, bytes); }
/* memory is not reused, so it is zeroed */
void *calloc(size_t count, size_t size) { return take(HEAD, count * size); }
void free(void *block) { if (block) __atomic_fetch_add(&freed, 1, __ATOMIC_RELAXED); }
void *memalign(size_t align, size_t bytes) { return take(align, bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return take(align, bytes); }
int posix_memalign(void **block, size_t align, size_t bytes) { return (*block = take(align, bytes)) ? 0 :
    ENOMEM; }

size_t malloc_usable_size(void *block)
{
    size_t bytes = 0;
    return block ? memcpy(&bytes, (char *)block - sizeof bytes, sizeof bytes), bytes : 0;
}

void *realloc(void *old, size_t bytes)
{
    void *made = take(HEAD, bytes);
    size_t before = malloc_usable_size(old);
    return old && made ? memcpy(made, old, before < bytes ? before : bytes) : made;
}

size_t freed_here(void) { return __atomic_load_n(&freed, __ATOMIC_RELAXED); }

int allocated_here(const void *block)
{
    for (int i = 0; i < many; i++)
        if ((size_t)((const char *)block - chunks[i].at) < chunks[i].bytes) return 1;
    return 0;
}
