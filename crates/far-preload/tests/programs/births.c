/* Child processes made in every way use large blocks of their parent, or only execute programs: vfork,
   posix_spawn, clone with and without the parent's memory, fork by number, _Fork. Then a chain of programs is
   executed. With an argument (for SIGSEGV) the children with a copy of the memory are left out. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 10 << 20, STACK = 1 << 20 };
extern char **environ;
static uint64_t *words, array[1 << 18];

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

/* Runs in a child: checks the parent's bytes, then writes and checks its own. */
static int copy(void *argument)
{
    (void)argument;
    if (wrong(3)) _exit(40);
    fill(5);
    _exit(wrong(5) ? 41 : 17);
}

/* Runs in a child that shares the parent's memory. */
static int shared(void *argument)
{
    (void)argument;
    if (wrong(3)) _exit(40);
    fill(9);
    _exit(wrong(9) ? 41 : 18);
}

static int reads_array(void *argument)
{
    (void)argument;
    for (int i = 0; i < 1 << 18; i++)
        if (array[i] != i + 1) _exit(40);
    _exit(0);
}

static int echo(void *text)
{
    execlp("echo", "echo", text, (char *)NULL);
    _exit(99);
}

static void told(const char *name, pid_t child, uint64_t by)
{
    int status = -1;
    waitpid(child, &status, __WALL);
    if (WIFSIGNALED(status)) printf("%s: signal %d, ", name, WTERMSIG(status));
    else printf("%s: %d, ", name, WEXITSTATUS(status));
    printf("%ld\n", wrong(by));
    fflush(stdout);
    fill(3);
}

int main(int count, char **arguments)
{
    words = malloc(SIZE);
    fill(3);
    if (count > 1 && strchr("1234", *arguments[1])) {
        printf("program %s: %ld\n", arguments[1], wrong(3));
        fflush(stdout);
        char next[2] = {*arguments[1] - 1, 0};
        if (*next == '0') return 0;
        char *vector[] = {arguments[0], next, NULL};
        execve("/proc/self/exe", vector, environ);
        return 1;
    }
    if (count > 1 && !strcmp(arguments[1], "files")) {
        char *stack = malloc(STACK);
        for (int i = 0; i < 1 << 18; i++) array[i] = i + 1;
        told("reads an array", clone(reads_array, stack + STACK, CLONE_FILES | SIGCHLD, NULL), 3);
        told("clone with files", clone(copy, stack + STACK, CLONE_FILES | SIGCHLD, NULL), 3);
        return 0;
    }
    int copies = count == 1;
    pid_t child = vfork();
    if (child == 0) {
        if (wrong(3)) _exit(40);
        words[5] = 1;
        _exit(16);
    }
    words[5] = 15;
    told("vfork", child, 3);
    if ((child = vfork()) == 0) execlp("echo", "echo", "by vfork", (char *)NULL), _exit(99);
    told("vfork and exec", child, 3);
    char *vector[] = {"echo", "by spawn", NULL};
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnp(&child, "echo", NULL, &attributes, vector, environ);
    told("posix_spawn", child, 3);
    char *stack = malloc(STACK);
    told("clone with memory", clone(shared, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL), 9);
    told("clone with memory beside", clone(shared, stack + STACK, CLONE_VM | SIGCHLD, NULL), 9);
    told("clone and exec", clone(echo, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, "by clone"), 3);
    if (copies) {
        told("clone", clone(copy, stack + STACK, SIGCHLD, NULL), 3);
        if ((child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0) copy(NULL);
        told("clone by number", child, 3);
#ifdef SYS_fork
        if ((child = syscall(SYS_fork)) == 0) copy(NULL);
        told("fork by number", child, 3);
#endif
#if __GLIBC_PREREQ(2, 34)
        if ((child = _Fork()) == 0) copy(NULL);
        told("_Fork", child, 3);
#endif
        uint64_t how[11] = {0};
        how[4] = SIGCHLD;
        if ((child = syscall(SYS_clone3, how, sizeof how)) == 0) copy(NULL);
        told("clone3 by number", child, 3);
    }
    fflush(stdout);
    char *chain[] = {arguments[0], "4", NULL};
    execv(arguments[0], chain);
    return 1;
}
