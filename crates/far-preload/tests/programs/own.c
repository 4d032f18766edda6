/* A process that reads and writes its own memory through /proc/self/mem and process_vm_readv, also by stream
 * and by the numbers of the system calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define BYTES (24 << 20)
#define PART (100 << 10)

static unsigned char *block, *copy;

static unsigned char of(size_t at) {
    return at * 7 + (at >> 12);
}

static void check(const char *what, ssize_t done, const unsigned char *bytes, size_t at) {
    int wrong = 0;
    for (ssize_t i = 0; i < done; i++)
        wrong += bytes[i] != of(at + i);
    if (done != PART || wrong)
        printf("%s at %zu: %zd (%s), %d wrong\n", what, at, done, done < 0 ? strerror(errno) : "", wrong);
}

static int ends[2];

/* Stores its number, and waits for a byte from the pipe. */
static void *thread(void *number) {
    char none;
    *(pid_t *)number = gettid();
    if (write(ends[1], "b", 1) != 1 || read(ends[0], &none, 1) != 1)
        perror("pipe");
    return NULL;
}

int main(void) {
    char name[64];
    block = malloc(BYTES), copy = malloc(BYTES);
    unsigned char *near = malloc(PART);
    for (size_t i = 0; i < BYTES; i++)
        block[i] = of(i);
    memset(copy, 0, BYTES);
    snprintf(name, sizeof name, "/proc/%d/mem", getpid());
    int own = open("/proc/self/mem", O_RDWR), numbered = open(name, O_RDWR);
    /* Streams first, before a descriptor was positioned, and on pages that no other call concerns. */
    FILE *stream = fopen("/proc/self/mem", "r+");
    for (size_t at = 700000; at + PART < BYTES; at += BYTES / 16 + 12345) {
        memset(near, 0, PART);
        fseeko(stream, (uintptr_t)(block + at), SEEK_SET);
        check("fread", fread(near, 1, PART, stream), near, at);
        fseeko(stream, (uintptr_t)(copy + at), SEEK_SET);
        ssize_t done = fwrite(near, 1, PART, stream);
        if (fflush(stream) != 0)
            printf("fflush at %zu: %s\n", at, strerror(errno));
        check("fwrite", done, copy + at, at);
    }
    fclose(stream);
    pthread_t other;
    pid_t number = 0;
    int to_thread[2], from_thread[2];
    char begun;
    if (pipe(to_thread) || pipe(from_thread))
        return perror("pipe"), 1;
    ends[0] = to_thread[0], ends[1] = from_thread[1];
    pthread_create(&other, NULL, thread, &number);
    if (read(from_thread[0], &begun, 1) != 1)
        return perror("pipe"), 1;
    for (size_t at = 350000; at + PART < BYTES; at += BYTES / 16 + 12345) {
        struct iovec here = {near, PART}, there = {block + at, PART};
        memset(near, 0, PART);
        check("process_vm_readv of a thread", process_vm_readv(number, &here, 1, &there, 1, 0), near, at);
    }
    if (write(to_thread[1], "e", 1) != 1)
        return perror("pipe"), 1;
    pthread_join(other, NULL);
    int by_position = 0;
    for (size_t at = 1050000; at + PART < BYTES; at += BYTES / 16 + 12345) {
        unsigned long from = (uintptr_t)(block + at);
        struct iovec here = {near, PART}, there = {copy + at, PART};
        memset(near, 0, PART);
        if (by_position && syscall(SYS_lseek, own, from, SEEK_SET) == (long)from)
            check("read by number", syscall(SYS_read, own, near, PART), near, at);
        else
            check("pread64 by number", syscall(SYS_pread64, own, near, PART, from), near, at);
        check("process_vm_writev by number",
            syscall(SYS_process_vm_writev, getpid(), &here, 1L, &there, 1L, 0L), copy + at, at);
        by_position = !by_position;
    }
    for (size_t at = 0; at + PART < BYTES; at += BYTES / 16 + 12345) {
        off_t from = (uintptr_t)(block + at), to = (uintptr_t)(copy + at);
        check("pread", pread(own, near, PART, from), near, at);
        check("pwrite", pwrite(numbered, near, PART, to), copy + at, at);
    }
    for (size_t at = 1000; at + PART < BYTES; at += BYTES / 16 + 12345) {
        off_t from = (uintptr_t)(block + at), to = (uintptr_t)(copy + at);
        check("pread to far", pread(numbered, copy + at, PART, from), copy + at, at);
        memset(near, 0, PART);
        lseek(own, from, SEEK_SET);
        check("read", read(own, near, PART), near, at);
        struct iovec parts[2] = {{near, 5000}, {near + 5000, PART - 5000}};
        memset(near, 0, PART);
        check("preadv", preadv(own, parts, 2, from), near, at);
        memset(copy + at, 0, PART);
        check("pwritev", pwritev(own, parts, 2, to), copy + at, at);
        memset(copy + at, 0, PART);
        lseek(own, to, SEEK_SET);
        check("writev", writev(own, parts, 2), copy + at, at);
        memset(near, 0, PART);
        lseek(own, from, SEEK_SET);
        check("readv", readv(own, parts, 2), near, at);
    }
    for (size_t at = 2000; at + PART < BYTES; at += BYTES / 16 + 12345) {
        struct iovec far[2] = {{block + at, 9000}, {block + at + 9000, PART - 9000}}, here = {near, PART};
        struct iovec there[2] = {{copy + at, 7000}, {copy + at + 7000, PART - 7000}};
        memset(near, 0, PART);
        check("process_vm_readv", process_vm_readv(getpid(), &here, 1, far, 2, 0), near, at);
        memset(copy + at, 0, PART);
        check("process_vm_writev", process_vm_writev(getpid(), &here, 1, there, 2, 0), copy + at, at);
        memset(copy + at, 0, PART);
        check("process_vm_readv to far", process_vm_readv(getpid(), there, 2, far, 2, 0), copy + at, at);
    }
    struct iovec here = {near, PART}, nowhere = {(void *)4096, PART};
    printf("%zd", process_vm_readv(getpid(), &here, 1, &nowhere, 1, 0));
    printf(" %s", strerror(errno));
    printf(" %zd", pread(own, near, PART, 4096));
    printf(" %s\n", strerror(errno));
    return 0;
}
