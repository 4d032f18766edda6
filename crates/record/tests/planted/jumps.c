// A thread that leaves its calls by jumps out of a signal handler, and then waits for a mutex.
#include "planted.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
static pthread_mutex_t late_mutex = PTHREAD_MUTEX_INITIALIZER;
static sigjmp_buf place;
static volatile sig_atomic_t may_jump;
static _Atomic int is_over;
static void handler(int signal) {
    (void)signal;
    if (may_jump) {
        may_jump = 0;
        siglongjmp(place, 1);
    }
}
static void *holder(void *unused) {
    while (!is_over) {
        pthread_mutex_lock(&late_mutex);
        work_us(2000);
        pthread_mutex_unlock(&late_mutex);
        work_us(100);
    }
    return unused;
}
int main(void) {
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, &before);
    pthread_t thread;
    pthread_create(&thread, NULL, holder, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (volatile int i = 0; i < 500; i++) {
        if (sigsetjmp(place, 1) == 0) {
            may_jump = 1;
            for (;;) {
                if (write(-1, "", 1) == 0) return 1;
            }
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    for (int i = 0; i < 40; i++) {
        pthread_mutex_lock(&late_mutex);
        pthread_mutex_unlock(&late_mutex);
        work_us(500);
    }
    is_over = 1;
    return pthread_join(thread, NULL);
}
