/* A program that closes all descriptors that it did not open, in every possible way, and continues. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 10 << 20 };
static uint64_t *words;

static void fill(uint64_t by)
{
    for (uint64_t i = 0; i < SIZE / 8; i++) words[i] = i * by;
}

static long wrong(uint64_t by)
{
    long count = 0;
    for (uint64_t i = 0; i < SIZE / 8; i++) count += words[i] != i * by;
    return count;
}

/* The system call instruction, which no library intercepts. */
static long bare(long number, long a, long b, long c)
{
    long result;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#else
    result = syscall(number, a, b, c);
#endif
    return result;
}

/* A child process of a program that has no descriptor number left. */
static int full(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 100;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (open("/dev/null", O_RDONLY) >= 0) {}
    printf("%d, parent: %ld\n", errno == EMFILE, wrong(3)), fill(5);
    fflush(stdout);
    if (fork() == 0) {
        printf("child: %ld", wrong(5)), fill(7);
        printf(" %ld\n", wrong(7));
        fflush(stdout);
        _exit(0);
    }
    int status;
    wait(&status);
    printf("%d, parent: %ld\n", status, wrong(5));
    getrlimit(RLIMIT_NOFILE, &limit);
    printf("limit: %d\n", (int)limit.rlim_cur);
    return 0;
}

int main(int count, char **arguments)
{
    words = malloc(SIZE);
    fill(3);
    if (count > 1 && strcmp(arguments[1], "full") == 0) return full();
    if (count > 1) {
        bare(SYS_close_range, 3, 1 << 30, 0);
        fill(4);
        puts("went on");
        return 0;
    }
    closefrom(3);
    printf("closefrom: %ld\n", wrong(3)), fill(5);
    int a = open("/dev/null", O_RDONLY), b = dup(a);
    printf("%d %d, close_range: %d", a, b, close_range(3, ~0u, 0));
    printf(", %d %d\n", fcntl(a, F_GETFD), fcntl(b, F_GETFD));
    printf("%ld, range backwards: %d %d\n", wrong(5), close_range(9, 3, 0), errno), fill(7);
    long open_before = 0, closed = 0, replaced = 0;
    for (int fd = 3; fd < sysconf(_SC_OPEN_MAX); fd++) open_before += fcntl(fd, F_GETFD) >= 0;
    for (int fd = 3; fd < sysconf(_SC_OPEN_MAX); fd++) closed += close(fd) == 0;
    printf("%ld open, %ld closed: %ld\n", open_before, closed, wrong(7)), fill(9);
    /* The descriptors that /proc lists. */
    int known[256], all = 0;
    DIR *entries = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(entries));) {
        int fd = atoi(entry->d_name);
        if (fd > 2 && fd != dirfd(entries)) known[all++] = fd;
    }
    closedir(entries);
    for (int i = 0; i < all; i++) replaced += dup2(0, known[i]) >= 0;
    printf("%ld replaced: %ld\n", replaced, wrong(9)), fill(11);
    for (int i = 0; i < all; i++) replaced += syscall(SYS_close, known[i]) == 0;
    printf("%ld closed: %ld\n", replaced, wrong(11)), fill(13);
    printf("unshared: %d", close_range(3, ~0u, CLOSE_RANGE_UNSHARE));
    printf(" %ld\n", wrong(13));
    if (fork() == 0) {
        closefrom(3);
        execlp("echo", "echo", "a child", NULL);
    }
    wait(NULL);
    close(2), close(1);
    return wrong(13) != 0;
}
