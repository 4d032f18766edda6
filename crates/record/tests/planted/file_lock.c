// Two processes of one thread each; one of them waits for a lock of a file that the other one holds.
#define _GNU_SOURCE
#include "planted.h"
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
static int take(int file, const char *how) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    if (!strcmp(how, "fcntl")) return fcntl(file, F_SETLKW, &lock);
    return flock(file, LOCK_EX);
}
int main(int count, char **arguments) {
    if (count != 2) return 100;
    char path[64], byte = 0;
    int ready[2], status = 0;
    int file = memfd_create("shared", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    pipe(ready);
    pid_t child = fork();
    int own = open(path, O_RDWR); // each process has a description of its own
    if (!child) {
        if (take(own, arguments[1]) || write(ready[1], "x", 1) != 1) _exit(1);
        work_us(1000000); // longer than the other process takes to find the lock taken
        _exit(0); // releases the lock
    }
    if (read(ready[0], &byte, 1) != 1 || take(own, arguments[1])) return 101;
    if (waitpid(child, &status, 0) != child || status) return 102;
    puts("end");
    return 0;
}
