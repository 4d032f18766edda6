// Threads that read single bytes of a mapped file which is not in memory. Each one reads its own part, at
// random. The argument is the file. Ends with 3 if no page fault waited for a device, as in a file system in
// memory.
#include "planted.h"
#include <sys/mman.h>
#include <sys/resource.h>
static const long pages = 4096;
static volatile char *file;
static volatile long sum;
static void *reader(void *number) {
    for (long i = 0; i < 400; i++)
        sum += file[(((long)number * 400 + i) * 2741 % pages) * 4096];
    return NULL;
}
int main(int count, char **arguments) {
    char block[4096] = {1};
    int f = open(arguments[count - 1], O_CREAT | O_TRUNC | O_RDWR, 0600);
    for (long i = 0; i < pages; i++)
        if (write(f, block, sizeof block) < 0)
            return 1;
    fsync(f);
    file = mmap(NULL, pages * 4096, PROT_READ, MAP_SHARED, f, 0);
    if (file == MAP_FAILED || madvise((void *)file, pages * 4096, MADV_RANDOM) != 0)
        return 1;
    posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED);
    run_one(4, reader);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_majflt > 0 ? 0 : 3;
}
