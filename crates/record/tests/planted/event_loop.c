// A thread that only waits for events, as in many servers, and a thread that was started without a hook.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

static void *sleeper(void *unused) {
    for (int turn = 0; turn < 4; turn++) usleep(10000);
    return unused;
}

int main(void) {
    int (*start)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    start = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(
        dlopen("libc.so.6", RTLD_LAZY), "pthread_create");
    int queue = epoll_create1(0);
    struct epoll_event event;
    pthread_t thread;
    epoll_wait(queue, &event, 1, 5);
    if (!start || start(&thread, NULL, sleeper, NULL) != 0) return 1;
    for (int turn = 0; turn < 20; turn++) epoll_wait(queue, &event, 1, 5);
    return pthread_join(thread, NULL);
}
