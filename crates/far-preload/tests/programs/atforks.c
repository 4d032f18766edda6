/* The handlers of `fork` of a library (atfork.c) use pages that are paged out, in the parent and in the
 * child. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MB = 1 << 20 };
extern volatile unsigned *atfork_at[3];
extern unsigned atfork_read[3];

int main(int count, char **arguments)
{
    (void)arguments;
    alarm(60); /* instead of a wait that never ends */
    unsigned *numbers = malloc(3 * MB);
    volatile unsigned char *crowd = malloc(6 * MB);
    for (int round = 1; round < 5; round++) {
        for (int i = 0; i < 3; i++)
            numbers[i * MB / sizeof *numbers] = round * 10 + i;
        for (size_t i = 0; i < 6 * MB; i += 4096)
            crowd[i]++;
        for (int i = 0; i < 3; i++)
            atfork_at[i] = i < 2 || count > 1 ? numbers + i * MB / sizeof *numbers : NULL;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            printf("child: %u %u\n", atfork_read[0], atfork_read[2]);
            fflush(stdout);
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        printf("parent: %u %u, the child ended with %d\n", atfork_read[0], atfork_read[1], status);
    }
    return 0;
}
