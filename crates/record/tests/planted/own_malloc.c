// A program with an allocator of its own: every call takes a pthread mutex and uses a thread-local, as in
// jemalloc. If a hook allocates, or registers a thread-local destructor, it calls the allocator again, which
// ends the program.
#include "planted.h"
#include <string.h>
#include <sys/mman.h>
static pthread_mutex_t heap_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned long used;
static char *heap;
static _Thread_local int inside;
static _Thread_local long allocations;
static const unsigned long heap_bytes = 1UL << 32;

static void fail(const char *why) {
    (void)!write(2, why, strlen(why));
    abort();
}

static void *take(unsigned long bytes) {
    if (inside)
        fail("the allocator was called by a call of the allocator\n");
    inside = 1;
    pthread_mutex_lock(&heap_mutex);
    if (heap == NULL)
        heap = mmap(NULL, heap_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned long at = used;
    used = at + ((bytes + 31) & ~15UL);
    if (++allocations % 50 == 0)
        work_us(100); // so that other threads wait, on any number of processors
    pthread_mutex_unlock(&heap_mutex);
    inside = 0;
    if (used > heap_bytes)
        fail("the heap is used up\n");
    *(unsigned long *)(heap + at) = bytes;
    return heap + at + 16;
}

void *malloc(size_t bytes) { return take(bytes); }
void *calloc(size_t count, size_t bytes) { return take(count * bytes); }
void *memalign(size_t to, size_t bytes) {
    return (void *)(((unsigned long)take(bytes + to) + to - 1) & ~(to - 1));
}
void *aligned_alloc(size_t to, size_t bytes) { return memalign(to, bytes); }
int posix_memalign(void **at, size_t to, size_t bytes) { return *at = memalign(to, bytes), 0; }
void free(void *block) { (void)block; }
void *realloc(void *block, size_t bytes) {
    void *larger = take(bytes);
    if (block != NULL) {
        unsigned long before = *(unsigned long *)((char *)block - 16);
        memcpy(larger, block, before < bytes ? before : bytes);
    }
    return larger;
}

static void *allocating(void *unused) {
    for (int i = 0; i < 1000; i++) {
        char *block = malloc(100);
        memset(block, 1, 100);
        free(block);
    }
    return NULL;
}

int main(void) {
    for (int round = 0; round < 3; round++)
        run_one(4, allocating);
    printf("%ld\n", allocations > 0 ? 1L : 0L);
}
