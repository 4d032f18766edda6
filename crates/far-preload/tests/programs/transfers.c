/* System calls and streams that read and write blocks that are mostly paged out. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    size_t bytes = 12 << 20;
    unsigned char *a = malloc(bytes), *b = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        a[i] = (unsigned char)(i * 2654435761u >> 13);
    FILE *file = tmpfile();
    int fd = fileno(file);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, a + done, bytes - done);
        if (n <= 0) return perror("write"), 1;
        done += n;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, b + done, bytes - done, done);
        if (n <= 0) return perror("pread"), 1;
        done += n;
    }
    if (memcmp(a, b, bytes)) return puts("pread"), 1;
    memset(b, 0, bytes);
    rewind(file);
    if (fread(b, 1, bytes, file) != bytes || memcmp(a, b, bytes)) return puts("fread"), 1;
    FILE *again = tmpfile();
    if (fwrite(b, 1, bytes, again) != bytes || fflush(again)) return puts("fwrite"), 1;
    memset(a, 0, bytes);
    rewind(again);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fileno(again), a + done, bytes - done);
        if (n <= 0) return perror("read"), 1;
        done += n;
    }
    if (memcmp(a, b, bytes)) return puts("read"), 1;
    puts("well");
    return 0;
}
