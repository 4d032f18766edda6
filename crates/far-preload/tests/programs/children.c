/* fork and exec, posix_spawn and system in a program with large blocks; the parent's blocks stay unchanged.
 * With an argument the child touches a block that it does not have, and must be ended instead of reading
 * other bytes. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv)
{
    size_t bytes = 12 << 20;
    unsigned char *block = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        block[i] = (unsigned char)(i % 251 + 1);
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (argc > 1)
            for (size_t i = 0; i < bytes; i++)
                if (block[i] != i % 251 + 1) _exit(40);
        if (argc > 1)
            _exit(41);
        free(malloc(8 << 20));
        free(block);
        execlp("echo", "echo", "by fork and exec", (char *)NULL);
        _exit(99);
    }
    waitpid(child, &status, 0);
    if (argc > 1)
        return WIFEXITED(status) && WEXITSTATUS(status) == 71 ? puts("the child was stopped"), 0 :
            (printf("the child read %d\n", WEXITSTATUS(status)), 1);
    char *arguments[] = {"echo", "by spawn", NULL};
    (void)argv;
    posix_spawnp(&child, "echo", NULL, NULL, arguments, environ);
    waitpid(child, &status, 0);
    if (system("echo by system")) return 1;
    for (size_t i = 0; i < bytes; i++)
        if (block[i] != i % 251 + 1) return puts("the parent's block changed"), 1;
    puts("well");
    return 0;
}
