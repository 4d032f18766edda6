/* Random reads and writes over four times the local memory. Prints the voluntary context switches of all
 * threads of this process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MB = 1 << 20, TOUCHES = 6000 };

int main(void)
{
    struct rusage before, after;
    unsigned char *block = malloc(16 * MB);
    unsigned long at = 1;
    memset(block, 1, 16 * MB);
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < TOUCHES; i++) {
        at = at * 6364136223846793005 + 1442695040888963407;
        block[(at >> 33) % (16 * MB)]++;
    }
    getrusage(RUSAGE_SELF, &after);
    printf("%ld\n", after.ru_nvcsw - before.ru_nvcsw);
    return 0;
}
