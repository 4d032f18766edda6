// A library for LD_PRELOAD that tells the calls of a function of the C library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
int pthread_cond_broadcast(pthread_cond_t *condition) {
    int (*next)(pthread_cond_t *) = dlvsym(RTLD_NEXT, "pthread_cond_broadcast", "GLIBC_2.3.2");
    if (!next)
        next = dlsym(RTLD_NEXT, "pthread_cond_broadcast");
    write(1, "broadcast\n", 10);
    return next(condition);
}
