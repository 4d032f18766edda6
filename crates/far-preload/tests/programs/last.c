/* A main thread that ends before the program's other thread: without a free descriptor number, or with
 * another root directory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SIZE = 8 << 20 };

static void *work(void *none)
{
    unsigned char *block = malloc(SIZE);
    memset(block, 7, SIZE);
    usleep(100000);
    long sum = 0;
    for (int i = 0; i < SIZE; i += 64) sum += block[i];
    printf("the other thread: %ld\n", sum), fflush(stdout);
    return none;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    dlopen("libgcc_s.so.1", RTLD_NOW); /* which `pthread_exit` needs */
    if (count > 1) {
        if (chroot(arguments[1]) || chdir("/")) puts("no other root");
    } else {
        struct rlimit few = {40, 40};
        setrlimit(RLIMIT_NOFILE, &few);
        while (open("/dev/null", O_RDONLY) >= 0) {}
    }
    pthread_create(&thread, NULL, work, NULL);
    pthread_exit(NULL);
}
