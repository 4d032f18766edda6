/* Direct I/O into blocks that are mostly paged out, while another thread makes pages leave: `pread`, `preadv`
 * and asynchronous reads, also after a fork. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 8 << 20, PIECE = 256 << 10, PIECES = BYTES / PIECE };
static volatile int done;
static uint64_t *to;
static int fd;

static void *crowd(void *none)
{
    unsigned char *other = malloc(BYTES);
    while (!done)
        for (size_t i = 0; i < BYTES; i += 4096)
            other[i]++;
    return none;
}

static int is_read(const char *how)
{
    for (size_t i = 0; i < BYTES / 8; i++)
        if (to[i] != i * 2654435761u) return printf("%s: word %zu is wrong\n", how, i), 0;
    memset(to, 1, BYTES);
    return 1;
}

static int reads(int asynchronous)
{
    if (pread(fd, to, BYTES, 0) != BYTES || !is_read("pread")) return 0;
    struct iovec parts[2] = {{to, PIECE}, {to + PIECE / 8, BYTES - PIECE}};
    if (preadv(fd, parts, 2, 0) != BYTES || !is_read("preadv")) return 0;
    if (!asynchronous) return 1;
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, PIECES, &context)) return perror("io_setup"), 0;
    struct iocb all[PIECES], *list[PIECES];
    struct io_event events[PIECES];
    memset(all, 0, sizeof all);
    for (int i = 0; i < PIECES; i++) {
        list[i] = &all[i];
        all[i].aio_fildes = fd, all[i].aio_lio_opcode = IOCB_CMD_PREAD;
        all[i].aio_buf = (uintptr_t)to + i * PIECE, all[i].aio_nbytes = PIECE, all[i].aio_offset = i * PIECE;
        syscall(SYS_io_submit, context, 1, &list[i]);
    }
    if (syscall(SYS_io_getevents, context, PIECES, PIECES, events, NULL) != PIECES) return 0;
    syscall(SYS_io_destroy, context);
    for (int i = 0; i < PIECES; i++)
        if (events[i].res != PIECE) return printf("asynchronous: %lld\n", (long long)events[i].res), 0;
    return is_read("asynchronous");
}

int main(int count, char **arguments)
{
    char name[] = "azekura-direct-XXXXXX";
    fd = mkstemp(name);
    to = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < BYTES / 8; i++)
        to[i] = i * 2654435761u;
    if (write(fd, to, BYTES) != BYTES || fsync(fd)) return perror("write"), 1;
    int direct = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    if (direct < 0) return puts("well"), 0; /* the file system has no direct I/O */
    fd = direct;
    pthread_t thread;
    pthread_create(&thread, NULL, crowd, NULL);
    for (int round = 0; round < 4; round++) {
        if (!reads(count > 2)) return 1;
        if (count > 1 && round == 2) {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) sleep(1), _exit(0);
        }
    }
    done = 1;
    pthread_join(thread, NULL);
    if (count > 1) wait(NULL);
    puts("well");
    return 0;
}
