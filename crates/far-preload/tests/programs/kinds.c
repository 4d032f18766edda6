/* Memory of every kind that is not far (small blocks, small mappings, executable memory, shared memory),
   large blocks, and a heap that is reserved without access and committed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MB = 1 << 20 };

int main(void)
{
    memset(malloc(8 * MB), 1, 8 * MB);
    for (int i = 0; i < 6000; i++) memset(malloc(1000), 2, 1000);
    int private = MAP_PRIVATE | MAP_ANONYMOUS;
    int usable = PROT_READ | PROT_WRITE;
    for (int i = 0; i < 64; i++) memset(mmap(NULL, MB / 8, usable, private, -1, 0), 3, MB / 8);
    char *heap = mmap(NULL, 96 * MB, PROT_NONE, private | MAP_NORESERVE, -1, 0);
    mprotect(heap, 16 * MB, PROT_READ | PROT_WRITE);
    memset(heap, 4, 16 * MB);
    mmap(NULL, 24 * MB, PROT_READ | PROT_EXEC, private, -1, 0);
    memset(mmap(NULL, 3 * MB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 5, 3 * MB);
    puts("well");
    return 0;
}
