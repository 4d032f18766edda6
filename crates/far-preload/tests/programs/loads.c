/* A child process that allocates its first large block while it loads a library: the layer's threads are
 * started by a thread that holds the loader's lock. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    (void)count;
    alarm(60); /* instead of a wait that never ends */
    if (fork() == 0) {
        alarm(30);
        _exit(dlopen(arguments[1], RTLD_NOW) == NULL);
    }
    int status;
    wait(&status);
    printf("child: %d\n", status);
    fflush(stdout);
    return dlopen(arguments[1], RTLD_NOW) == NULL;
}
