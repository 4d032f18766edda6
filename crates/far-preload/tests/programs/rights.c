/* A program that drops its privileges, limits its address space, or enters another user namespace, between
 * two uses of its memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 10 << 20 };
static uint64_t *words;

static long wrong(uint64_t by)
{
    long count = 0;
    for (uint64_t i = 0; i < SIZE / 8; i++) count += words[i] != i * by;
    return count;
}

static void fill(uint64_t by)
{
    for (uint64_t i = 0; i < SIZE / 8; i++) words[i] = i * by;
}

int main(int count, char **arguments)
{
    words = malloc(SIZE);
    fill(3);
    if (count > 1 && !strcmp(arguments[1], "strict")) {
        puts("strict"), fflush(stdout);
        prctl(PR_SET_SECCOMP, 1);
        const char *said = wrong(3) ? "wrong\n" : "right\n";
        write(1, said, 6);
        write(1, (char *)words + SIZE / 2, 0);
        syscall(SYS_exit, 0);
    }
    if (count > 1 && !strcmp(arguments[1], "descriptors")) {
        struct rlimit none = {0, 0};
        printf("%d", setrlimit(RLIMIT_NOFILE, &none));
        printf(" %ld", wrong(3)), fill(5);
        return printf(" %ld\n", wrong(5)), 0;
    }
    if (count > 1 && !strcmp(arguments[1], "files")) {
        struct rlimit small = {1 << 20, 1 << 20};
        printf("%d", setrlimit(RLIMIT_FSIZE, &small));
        printf(" %ld", wrong(3)), fill(5);
        return printf(" %ld\n", wrong(5)), 0;
    }
    if (count > 1 && !strcmp(arguments[1], "network")) {
        int done = unshare(CLONE_NEWNET);
        printf("%d\n", done), fflush(stdout);
        if (fork() == 0) return printf("child: %ld\n", wrong(3)), fflush(stdout), 3;
        int status;
        wait(&status);
        return printf("%d: %ld\n", status, wrong(3)), 0;
    }
    if (count > 1 && !strcmp(arguments[1], "alone")) {
        int done = unshare(CLONE_NEWUSER);
        int refusal = done ? errno : 0;
        return printf("%d %d: %ld\n", done, refusal, wrong(3)), 0;
    }
    if (count > 1) {
        int which = strcmp(arguments[1], "private") ? RLIMIT_AS : RLIMIT_DATA;
        struct rlimit limit;
        getrlimit(which, &limit);
        limit.rlim_cur = RLIM_INFINITY;
        printf("%d ", setrlimit(which, &limit));
        limit.rlim_cur = 400 << 20;
        printf("%d", which == RLIMIT_AS ? setrlimit(which, &limit) : prlimit(0, which, &limit, NULL));
        getrlimit(which, &limit);
        void *fits = malloc(20 << 20), *none = malloc(800u << 20);
        memset(fits, 1, 20 << 20);
        printf(" %d, %ld: %d %d\n", (int)(limit.rlim_cur >> 20), wrong(3), fits != NULL, none == NULL);
        free(fits);
        return 0;
    }
    int zero = open("/dev/zero", O_RDONLY);
    printf("%d\n", setuid(65534));
    fflush(stdout);
    if (fork() == 0) {
        long before = wrong(3);
        fill(5);
        printf("child: %ld %ld", before, wrong(5));
        printf(" %ld", (long)read(zero, words, SIZE / 20));
        printf(" %d %d\n", words[9] == 0, words[SIZE / 160 + 9] != 0);
        fflush(stdout);
        _exit(0);
    }
    int status;
    wait(&status);
    printf("%d: %ld\n", status, wrong(3));
    return 0;
}
