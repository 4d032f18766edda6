/* Blocks of far memory, for programs that pass them to the kernel. The including
 * file defines SLOTS, STRIDE and SHIFT: the number of pages with values, the distance
 * between them, and the position of a value in its page. */
#include <stddef.h>
#include <string.h>

enum { MB = 1 << 20 };
static char *far, *crowd;
static size_t next;

/* Pages the block `far` out: writes to another one that is larger than the local memory. */
static void sweep(void)
{
    for (size_t i = 0; i < 6 * MB; i += 4096)
        crowd[i]++;
}

/* A copy of a value in a page of its own. */
static void *put(const void *value, size_t bytes)
{
    char *at = far + next++ % SLOTS * STRIDE + SHIFT;
    return value ? memcpy(at, value, bytes) : memset(at, 0, bytes);
}

static char *text(const char *value)
{
    return put(value, strlen(value) + 1);
}
