// A thread waits for timers of io_uring, by the system call; with an argument, by the instruction itself, as
// liburing does. Ends with 3 if the system has no io_uring.
#define _GNU_SOURCE
#include "planted.h"
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
static int ring;
static struct io_uring_params params;
static char *queue, *completions;
static struct io_uring_sqe *entries;
static unsigned *at(char *base, unsigned offset) { return (unsigned *)(base + offset); }
static int is_inline;
__attribute__((noinline)) static long enter_inline(void) {
    long done = -1;
#ifdef __x86_64__
    register long flags asm("r10") = IORING_ENTER_GETEVENTS, none asm("r8") = 0, size asm("r9") = 0;
    asm volatile("syscall"
                 : "=a"(done)
                 : "0"(SYS_io_uring_enter), "D"(ring), "S"(1), "d"(1), "r"(flags), "r"(none), "r"(size)
                 : "rcx", "r11", "memory");
#endif
    return done;
}
__attribute__((noinline)) static long wait_for_one(void) {
    long done = syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    return done + 0 * params.flags;
}
static void *looper(void *unused) {
    long long period[2] = {0, 3000000};
    for (int i = 0; i < (is_inline ? 150 : 30); i++) {
        unsigned *tail = at(queue, params.sq_off.tail);
        unsigned slot = *tail & *at(queue, params.sq_off.ring_mask);
        memset(&entries[slot], 0, sizeof *entries);
        entries[slot].opcode = IORING_OP_TIMEOUT;
        entries[slot].fd = -1;
        entries[slot].addr = (unsigned long)period;
        entries[slot].len = 1;
        at(queue, params.sq_off.array)[slot] = slot;
        atomic_store((_Atomic unsigned *)tail, *tail + 1);
        if ((is_inline ? enter_inline() : wait_for_one()) < 0)
            exit(1);
        unsigned *head = at(completions, params.cq_off.head);
        atomic_store((_Atomic unsigned *)head, *head + 1);
    }
    return NULL;
}
int main(int count, char **arguments) {
    is_inline = count > 1 && arguments[1];
    ring = syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0)
        return 3;
    int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    unsigned length = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    queue = mmap(NULL, length, access, flags, ring, IORING_OFF_SQ_RING);
    length = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    completions = mmap(NULL, length, access, flags, ring, IORING_OFF_CQ_RING);
    entries = mmap(NULL, params.sq_entries * sizeof *entries, access, flags, ring, IORING_OFF_SQES);
    run_one(1, looper);
    return 0;
}
