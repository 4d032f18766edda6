/* Static arrays, some of them set before main by a constructor: sums of all arrays, system calls with them,
 * and child processes that use them. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 3 << 20 };
static uint32_t words[N];
static unsigned char bytes[5 << 20];
static char early[100];
static double matrix[512][512];

__attribute__((constructor)) static void set(void)
{
    strcpy(early, "set by a constructor");
    strcpy((char *)bytes + (4 << 20) + 5000, "in the middle");
}

static uint64_t sum(void)
{
    uint64_t s = 0;
    for (size_t i = 0; i < N; i++)
        s = s * 31 + words[i];
    return s;
}

int main(void)
{
    for (size_t i = 0; i < N; i++)
        if (words[i]) return puts("not zero"), 1;
    if (strcmp(early, "set by a constructor") || strcmp((char *)bytes + (4 << 20) + 5000, "in the middle"))
        return puts("lost"), 1;
    for (size_t i = 0; i < N; i++)
        words[i] = (uint32_t)(i * 2654435761u);
    for (int i = 0; i < 512; i++)
        for (int j = 0; j < 512; j++)
            matrix[i][j] = i * j;
    uint64_t before = sum();
    FILE *file = tmpfile();
    if (fwrite(words, sizeof *words, N, file) != N || fflush(file)) return puts("fwrite"), 1;
    lseek(fileno(file), 0, SEEK_SET);
    for (size_t done = 0; done < sizeof bytes;) {
        ssize_t n = read(fileno(file), bytes + done, sizeof bytes - done);
        if (n <= 0) return perror("read"), 1;
        done += n;
    }
    if (memcmp(bytes, words, sizeof bytes)) return puts("read"), 1;
    fflush(stdout);
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (sum() != before || memcmp(bytes, words, sizeof bytes)) _exit(1);
        memset(words, 3, sizeof words);
        _exit(sum() == before);
    }
    waitpid(child, &status, 0);
    if (status || sum() != before) return printf("the child ended with %d\n", status), 1;
    unsigned char *page = (unsigned char *)(((uintptr_t)bytes + (1 << 20)) & ~(uintptr_t)4095);
    madvise(page, 2 << 20, MADV_DONTNEED);
    for (size_t i = 0; i < 2 << 20; i++)
        if (page[i]) return puts("not emptied"), 1;
    if (page[-1] != ((unsigned char *)words)[page - 1 - bytes] || matrix[500][300] != 150000) return
        puts("a neighbor changed"), 1;
    /* A page without access, then calls on a range with it. */
    mprotect(page, 4096, PROT_NONE);
    if (mprotect(page - 4096, 1 << 20, PROT_READ | PROT_WRITE)) return perror("mprotect"), 1;
    page[0] = 5;
    mprotect(page, 4096, PROT_READ);
    if (madvise(page - 4096, 1 << 20, MADV_DONTNEED) || page[0]) return puts("not emptied with a page"), 1;
    if (madvise(page + (2 << 20) + 100, 4096, MADV_DONTNEED) == 0) return puts("no whole pages"), 1;
    printf("%llu\n", (unsigned long long)sum());
    return 0;
}
