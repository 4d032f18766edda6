// Is killed while its threads wait and sleep.
#include "planted.h"
#include <semaphore.h>
#include <signal.h>
static sem_t never;
static _Atomic int started;
static void *sleeper(void *number) {
    work_us(2000);
    started++;
    if ((long)number % 2)
        sem_wait(&never);
    sleep(60);
    return NULL;
}
int main(void) {
    pthread_t thread;
    sem_init(&never, 0, 0);
    for (long i = 0; i < 4; i++)
        pthread_create(&thread, NULL, sleeper, (void *)i);
    while (started < 4)
        work_us(10000);
    sleep(2);
    raise(SIGKILL);
}
