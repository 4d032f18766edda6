/* Signals for the process, not for one of its threads: they are received by the thread that waits for them
 * while all threads block them, and handled in the thread that does not block them. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) return printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)), \
    1; } while (0)

enum { SIZE = 8 << 20 };
static pthread_t handler;
static sem_t begun, handled;
static int is_handler;

static void handle(int signal)
{
    (void)signal;
    is_handler = pthread_equal(pthread_self(), handler) != 0;
    sem_post(&handled);
}

static void *handles(void *none)
{
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, SIGUSR2);
    handler = pthread_self();
    pthread_sigmask(SIG_UNBLOCK, &own, NULL);
    sem_post(&begun);
    while (sem_wait(&handled) != 0)
        continue;
    return none;
}

int main(void)
{
    alarm(60); /* instead of a wait that never ends */
    unsigned char *far = calloc(1, SIZE);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < SIZE; i += 4096)
            far[i]++;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGCHLD);
    MUST(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
    int got = 0;
    siginfo_t about;
    MUST(kill(getpid(), SIGUSR1) == 0 && sigwait(&blocked, &got) == 0 && got == SIGUSR1);
    int fd = signalfd(-1, &blocked, 0);
    struct signalfd_siginfo read_about;
    MUST(fd >= 0 && kill(getpid(), SIGTERM) == 0);
    MUST(read(fd, &read_about, sizeof read_about) == sizeof read_about && read_about.ssi_signo == SIGTERM);
    pid_t child = fork();
    if (child == 0) _exit(0);
    MUST(sigwaitinfo(&blocked, &about) == SIGCHLD && about.si_pid == child);
    MUST(waitpid(child, NULL, 0) == child);
    pthread_t thread;
    struct sigaction action = {.sa_handler = handle};
    MUST(sem_init(&begun, 0, 0) == 0 && sem_init(&handled, 0, 0) == 0);
    MUST(sigaction(SIGUSR2, &action, NULL) == 0 && pthread_create(&thread, NULL, handles, NULL) == 0);
    while (sem_wait(&begun) != 0)
        continue;
    MUST(kill(getpid(), SIGUSR2) == 0 && pthread_join(thread, NULL) == 0 && is_handler);
    puts("well");
    return 0;
}
