/* A library with a constructor that uses large blocks, while the loader holds its lock. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MB = 1 << 20 };

__attribute__((constructor)) static void construct(void)
{
    unsigned char *block = malloc(12 * MB);
    long sum = 0;
    memset(block, 3, 12 * MB);
    for (long i = 0; i < 12 * MB; i++) sum += block[i];
    printf("constructed: %ld\n", sum);
    fflush(stdout);
}
