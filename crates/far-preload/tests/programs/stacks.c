/* Stacks in large blocks of the program: of threads, of contexts, of signal handlers, and (with an argument)
   stacks that the program switches to by its own instructions. On each stack, memory is allocated and freed
   while pages are paged in and out. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK = 1 << 20, SIZE = 8 << 20, ROUNDS = 3 };
static uint64_t *words;
static uint64_t volatile sum;
static long wrong;

static void *map(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void sweep(void)
{
    uint64_t all = 0;
    for (uint64_t i = 0; i < SIZE / 8; i += 64) all += words[i] != i * 7;
    wrong += all;
}

/* Uses the stack, then allocates and frees blocks, then touches paged-out memory. */
static void work(long depth)
{
    volatile unsigned char frame[20000];
    for (unsigned i = 0; i < sizeof frame; i += 512) frame[i] = depth + i;
    if (depth) work(depth - 1);
    void *a = malloc(600000), *b = map(600000);
    memset(a, 1, 600000), memset(b, 2, 600000);
    if (depth % 3 == 0) sweep();
    free(a), munmap(b, 600000);
    for (unsigned i = 0; i < sizeof frame; i += 512) sum += frame[i] != (unsigned char)(depth + i);
}

static void *thread(void *argument)
{
    for (int i = 0; i < ROUNDS; i++) work(9);
    return argument;
}

static ucontext_t home, there;

static void context(void)
{
    for (int i = 0; i < ROUNDS; i++) work(9), swapcontext(&there, &home);
}

static void handler(int signal)
{
    (void)signal;
    sweep();
}

#ifdef __x86_64__
static void on(void *top, void (*call)(long))
{
    __asm__ volatile("mov %%rsp, %%rbx\n\tmov %0, %%rsp\n\tmov $9, %%edi\n\tcall *%1\n\tmov %%rbx, %%rsp"
                     : : "r"(top), "r"(call)
                     : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
}
#endif

int main(int count, char **arguments)
{
    (void)arguments;
    words = malloc(SIZE);
    for (uint64_t i = 0; i < SIZE / 8; i++) words[i] = i * 7;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, map(STACK), STACK);
        pthread_create(&threads[i], &attributes, thread, NULL);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    printf("threads: %ld %ld\n", wrong, (long)sum);
    getcontext(&there);
    there.uc_stack.ss_sp = malloc(STACK), there.uc_stack.ss_size = STACK;
    makecontext(&there, context, 0);
    for (int i = 0; i < ROUNDS; i++) swapcontext(&home, &there), sweep();
    printf("contexts: %ld %ld\n", wrong, (long)sum);
    stack_t stack = {.ss_sp = malloc(STACK), .ss_size = STACK}, old;
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < ROUNDS; i++) sweep(), raise(SIGUSR1);
    sigaltstack(NULL, &old);
    printf("handlers: %ld %ld %d\n", wrong, (long)sum, old.ss_sp == stack.ss_sp && old.ss_size == STACK);
#ifdef __x86_64__
    unsigned char *mine = malloc(STACK);
    for (int i = 0; count > 1 && i < ROUNDS; i++) on(mine + STACK - 64, work), sweep();
#endif
    printf("%ld %ld\n", wrong, (long)sum);
    return 0;
}
