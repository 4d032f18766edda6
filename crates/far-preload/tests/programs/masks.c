/* Handlers that use paged-out memory while a call waits with a mask of nearly all signals, in a process that
 * begins with nearly all signals blocked. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SIZE = 8 << 20 };
static unsigned char *far;
static int handled;

/* Blocks signals by the program's own instruction, which no hook sees. */
static void block(const sigset_t *set)
{
#ifdef __x86_64__
    long done = SYS_rt_sigprocmask;
    register long bytes __asm__("r10") = 8;
    __asm__ volatile("syscall"
                     : "+a"(done)
                     : "D"((long)SIG_SETMASK), "S"(set), "d"(0L), "r"(bytes)
                     : "rcx", "r11", "memory");
#else
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, set, NULL, 8L);
#endif
}

static void sweep(void)
{
    for (size_t i = 0; i < SIZE; i += 4096)
        far[i]++;
}

static void handle(int signal)
{
    (void)signal;
    sweep();
    handled++;
}

static int waits(int how, int queue, const sigset_t *mask)
{
    struct epoll_event event;
    switch (how) {
    case 0: return sigsuspend(mask);
    case 1: return ppoll(NULL, 0, NULL, mask);
    case 2: return pselect(0, NULL, NULL, NULL, NULL, mask);
    default: return epoll_pwait(queue, &event, 1, -1, mask);
    }
}

int __sigpause(int mask, int is_signal);

static void *beside(void *none)
{
    sweep();
    return none;
}

static ucontext_t there, here;

static void context(void) { sweep(); }

/* A thread and a context that begin with nearly all signals blocked, and a wait with an old function. */
static void begun(const sigset_t *most)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setsigmask_np(&attributes, most);
    pthread_create(&thread, &attributes, beside, NULL);
    pthread_join(thread, NULL);
    printf("a thread: %d\n", far[SIZE / 2]);
    getcontext(&there);
    there.uc_stack.ss_sp = malloc(1 << 16), there.uc_stack.ss_size = 1 << 16;
    there.uc_link = &here, there.uc_sigmask = *most;
    makecontext(&there, context, 0);
    swapcontext(&here, &there);
    printf("a context: %d\n", far[SIZE / 2]);
    pthread_kill(pthread_self(), SIGUSR1);
    __sigpause(~(1 << (SIGUSR1 - 1) | 1 << (SIGALRM - 1)), 0);
    printf("sigpause: %d\n", far[SIZE / 2]);
}

int main(int count, char **arguments)
{
    sigset_t most, but_one;
    (void)arguments;
    alarm(60); /* instead of a wait that never ends */
    sigfillset(&most);
    sigdelset(&most, SIGALRM);
    if (count == 1) {
        block(&most);
        execl("/proc/self/exe", "masks", "again", NULL);
        return perror("execl"), 1;
    }
    far = calloc(1, SIZE);
    for (int i = 0; i < 3; i++)
        sweep();
    printf("begun: %d\n", far[SIZE / 2]);
    struct sigaction action = {.sa_handler = handle};
    action.sa_mask = most;
    sigaction(SIGUSR1, &action, NULL);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &most, NULL, 8L);
    sweep();
    begun(&most);
    but_one = most;
    sigdelset(&but_one, SIGUSR1);
    int queue = epoll_create1(0);
    for (int how = 0; how < 4; how++) {
        pthread_kill(pthread_self(), SIGUSR1); /* stays pending until the wait */
        int done = waits(how, queue, &but_one);
        printf("%d: %d, interrupted %d, %d handled, ", how, done, errno == EINTR, handled);
        printf("%d\n", far[SIZE / 2]);
    }
    return 0;
}
