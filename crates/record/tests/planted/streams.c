// Four threads write lines to one stream. A write takes two milliseconds, and the stream is locked meanwhile.
#define _GNU_SOURCE
#include "planted.h"
static FILE *stream;
static ssize_t slow_write(void *unused, const char *bytes, size_t count) {
    usleep(2000);
    return count;
}
__attribute__((noinline)) static int log_line(int number) {
    return fprintf(stream, "line %d\n", number) + 1;
}
static void *logger(void *unused) {
    for (int i = 0; i < 100; i++)
        if (log_line(i) < 1)
            exit(1);
    return NULL;
}
int main(void) {
    stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = slow_write});
    setvbuf(stream, NULL, _IONBF, 0);
    run_one(4, logger);
    return 0;
}
