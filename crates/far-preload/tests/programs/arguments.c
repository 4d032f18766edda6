/* Long arguments and a long environment of a new program, on pages that are paged out. They do not fit into
 * the local memory together. */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 10, LENGTH = 100000, SIZE = 8 << 20 };

static unsigned long of(char **texts, const char *prefix)
{
    unsigned long sum = 5381;
    for (; *texts; texts++)
        for (char *at = *texts; !strncmp(*texts, prefix, strlen(prefix)) && *at; at++) sum = sum * 33 + *at;
    return sum;
}

int main(int count, char **arguments)
{
    if (count > 1) return printf("%d %lx %lx\n", count, of(arguments, ""), of(environ, "TEXT")), 0;
    char **all = malloc(1 << 20), **set = all + COUNT + 2, *text = malloc(2 * COUNT * (LENGTH + 1));
    unsigned char *crowd = calloc(1, SIZE);
    all[0] = "arguments";
    for (int i = 0; i < 2 * COUNT; i++, text += LENGTH + 1) {
        memset(text, 'a' + i, LENGTH), text[LENGTH] = 0;
        if (i < COUNT) all[i + 1] = text;
        else memcpy(text, "TEXT=", 5), set[i - COUNT] = text;
    }
    all[COUNT + 1] = NULL, set[COUNT / 2] = NULL;
    for (int how = 0; how < 3; how++) {
        for (int i = 0; i < SIZE; i += 4096) crowd[i]++;
        fflush(stdout);
        pid_t child = -1;
        int status = -1, done = 0;
        if (how == 0) done = posix_spawn(&child, "/proc/self/exe", NULL, NULL, all, set);
        else if (how == 1 && (child = vfork()) == 0) execve("/proc/self/exe", all, set), _exit(errno);
        if (how < 2) waitpid(child, &status, 0), printf("%d: %d, %d\n", how, done, status);
        else execve("/proc/self/exe", all, set);
    }
    return perror("execve"), 1;
}
