/* A library with handlers of `fork`, registered before `main`, that read numbers of the program. */
#include <pthread.h>
#include <stddef.h>

/* Address of the number that each handler reads, or null; and the number. */
volatile unsigned *atfork_at[3];
unsigned atfork_read[3];

static void look(int which)
{
    if (atfork_at[which]) atfork_read[which] = *atfork_at[which];
}

static void before(void) { look(0); }
static void in_parent(void) { look(1); }
static void in_child(void) { look(2); }

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before, in_parent, in_child);
}
