/* Reads into blocks that are mostly paged out, by an io_uring of the kernel and by `aio_read`. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 8 << 20, PIECE = 256 << 10, PIECES = BYTES / PIECE };
static uint64_t *to;
static unsigned char *other;
static int fd;

static void page_out(void)
{
    memset(to, 1, BYTES);
    for (size_t i = 0; i < BYTES; i += 4096)
        other[i]++;
}

static int is_read(const char *how)
{
    for (size_t i = 0; i < BYTES / 8; i++)
        if (to[i] != i * 2654435761u) return printf("%s: word %zu is wrong\n", how, i), 0;
    return 1;
}

static int by_aio(void)
{
    struct aiocb request[PIECES];
    memset(request, 0, sizeof request);
    page_out();
    for (int i = 0; i < PIECES; i++) {
        request[i].aio_fildes = fd, request[i].aio_buf = (char *)to + i * PIECE;
        request[i].aio_nbytes = PIECE, request[i].aio_offset = i * PIECE;
        if (aio_read(&request[i])) return perror("aio_read"), 0;
    }
    for (int i = 0; i < PIECES; i++) {
        const struct aiocb *one = &request[i];
        while (aio_error(one) == EINPROGRESS)
            aio_suspend(&one, 1, NULL);
        if (aio_return(&request[i]) != PIECE) return printf("aio_read: %s\n", strerror(aio_error(one))), 0;
    }
    return is_read("aio_read");
}

static int by_ring(void)
{
    struct io_uring_params known;
    memset(&known, 0, sizeof known);
    int ring = syscall(SYS_io_uring_setup, PIECES, &known);
    if (ring < 0) return 1; /* the system has none */
    size_t bytes = known.sq_off.array + known.sq_entries * 4, length = PIECES * sizeof(struct io_uring_sqe);
    size_t more = known.cq_off.cqes + known.cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entry =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    page_out();
    for (unsigned i = 0; i < PIECES; i++) {
        memset(&entry[i], 0, sizeof entry[i]);
        entry[i].opcode = IORING_OP_READ, entry[i].fd = fd, entry[i].addr = (uintptr_t)to + i * PIECE;
        entry[i].len = PIECE, entry[i].off = i * PIECE;
        ((unsigned *)(sq + known.sq_off.array))[i] = i;
    }
    __atomic_store_n((unsigned *)(sq + known.sq_off.tail), PIECES, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, PIECES, PIECES, IORING_ENTER_GETEVENTS, NULL, 0) != PIECES)
        return perror("io_uring_enter"), 0;
    struct io_uring_cqe *done = (void *)(cq + known.cq_off.cqes);
    for (unsigned i = 0; i < PIECES; i++)
        if (done[i].res != PIECE) return printf("io_uring: %d\n", done[i].res), 0;
    return is_read("io_uring");
}

int main(void)
{
    char name[] = "azekura-rings-XXXXXX";
    fd = mkstemp(name);
    to = malloc(BYTES), other = calloc(1, BYTES);
    for (size_t i = 0; i < BYTES / 8; i++)
        to[i] = i * 2654435761u;
    if (write(fd, to, BYTES) != BYTES || fsync(fd)) return perror("write"), 1;
    int direct = open(name, O_RDONLY | O_DIRECT);
    if (direct >= 0) fd = direct;
    unlink(name);
    to = aligned_alloc(4096, BYTES);
    if (!by_aio() || !by_ring()) return 1;
    puts("well");
    return 0;
}
