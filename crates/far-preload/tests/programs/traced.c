/* Writes pieces of a block that is mostly paged out. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 24 << 20, PIECE = 1 << 20 };

int main(void)
{
    unsigned char *block = malloc(BYTES);
    unsigned long sum = 0;
    for (size_t i = 0; i < BYTES; i++)
        block[i] = i * 7 + (i >> 12);
    int fd = open("/dev/null", O_WRONLY);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < BYTES; i += PIECE)
            sum += write(fd, block + i, 64);
    for (size_t i = 0; i < BYTES; i += 64)
        sum = sum * 31 + block[i];
    printf("%lu\n", sum);
    return 0;
}
