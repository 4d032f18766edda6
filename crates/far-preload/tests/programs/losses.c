/* A program that fills its memory, waits for a line of input, and then runs into the failure that the
   argument names: all servers lost, a full server, or no memory for the layer's tables. With "child" a child
   process waits and runs into it. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 12 << 20 };

static long fill(uint64_t *words, size_t bytes)
{
    long wrong = 0;
    for (size_t i = 0; i < bytes / 8; i++) wrong += words[i] != 0, words[i] = i * 3 + 1;
    return wrong;
}

static long check(uint64_t *words)
{
    long wrong = 0;
    for (uint64_t i = 0; i < SIZE / 8; i++) wrong += words[i] != i * 3 + 1;
    return wrong;
}

/* By the processor's instruction, so that the layer does not intercept the call. */
static void limit_addresses(void)
{
#ifdef __x86_64__
    unsigned long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%lu", &pages) != 1) _exit(41);
    fclose(file);
    struct rlimit limit = {pages << 12, RLIM_INFINITY};
    long done;
    __asm__ volatile("syscall"
                     : "=a"(done)
                     : "a"(SYS_setrlimit), "D"(RLIMIT_AS), "S"(&limit)
                     : "rcx", "r11", "memory");
    if (done) _exit(42);
#endif
}

int main(int count, char **arguments)
{
    const char *part = count > 1 ? arguments[1] : "";
    uint64_t *words = malloc(SIZE);
    int sparse = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (!strcmp(part, "full")) words = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, sparse, -1, 0);
    if (!strcmp(part, "tables")) {
        uint64_t *large = mmap(NULL, 400 << 20, PROT_READ | PROT_WRITE, sparse, -1, 0);
        limit_addresses();
        /* Pages far from one another, each in a different part of the layer's tables. */
        for (size_t i = 0; i < (400u << 20) / 8; i += 512) large[i] = i;
        puts("no limit was met");
        return 0;
    }
    fill(words, SIZE);
    pid_t child = strcmp(part, "child") ? 0 : fork();
    if (child > 0) {
        int status;
        return waitpid(child, &status, 0) != child || status;
    }
    puts("filled"), fflush(stdout);
    getchar();
    printf("%ld\n", check(words));
    /* A program that begins now begins without the lost server. */
    return !strcmp(part, "child") && system("exit 0");
}
